"""What must be on a local disk is refused by URL in one line, and so is any URL without the library."""

import sys

from tests.refusals import only_line, unnamed

LOCAL = (
    "run s3://bucket/rankmill.toml",
    "health gs://bucket/work",
    "report s3://bucket/work",
    "train web.dataset --name web --checkpoint az://container/checkpoint",
)
ANYWHERE = (
    "data ingest s3://bucket/j.csv -o d.dataset",
    "data ingest j.csv -o s3://bucket/d.dataset",
    "train az://container/d.dataset --name web",
    "rerank s3://bucket/c/*.csv --model web -o out.csv",
    "evaluate x.run --qrels gs://bucket/q.txt",
    "models import s3://bucket/web.tar",
    "models register s3://bucket/web.rankmill --name web",
    "compare s3://bucket/a.run s3://bucket/b.run",
)


def test_a_url_is_refused_where_a_local_path_belongs_and_without_the_library(tmp_path, monkeypatch, typed):
    monkeypatch.chdir(tmp_path)
    for words in LOCAL:
        said = only_line(typed.err(words, code=2))
        assert not unnamed(said, next(word for word in words.split() if "://" in word), "local path")
    for name in ("obstore", "obstore.exceptions", "obstore.store"):
        monkeypatch.setitem(sys.modules, name, None)
    for words in ANYWHERE:
        assert not unnamed(only_line(typed.err(words, code=2)), "pip install 'rankmill[cloud]'")
    assert list(tmp_path.iterdir()) == []
