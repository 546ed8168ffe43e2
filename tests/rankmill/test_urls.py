"""A URL is taken where it works, and refused in one line everywhere else."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankmill.cli import execute
from tests.refusals import unnamed

WORDS = (
    ["data", "ingest", "s3://bucket/j.csv", "-o", "d.dataset"],
    ["data", "ingest", "j.csv", "-o", "s3://bucket/d.dataset"],
    ["train", "az://container/d.dataset", "--name", "web"],
    ["rerank", "s3://bucket/c.csv", "--model", "web", "-o", "out.csv"],
    ["models", "import", "s3://bucket/web.tar"],
    ["models", "export", "web", "-o", "gs://bucket/web.tar"],
    ["run", "s3://bucket/rankmill.toml"],
)


@pytest.mark.parametrize("words", WORDS, ids=lambda words: " ".join(words[:3]))
def test_a_url_where_a_local_path_belongs_is_refused(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert execute(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert not unnamed(line, next(word for word in words if "://" in word), "local path", "registry")
    assert list(tmp_path.iterdir()) == []
