"""Which files a name, a folder or a pattern means."""

import itertools
import os

import pytest
from typer.testing import CliRunner

from rankmill.cli import execute
from rankmill.foundation.errors import InputError
from rankmill.pipeline.cli import app
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.pipeline.ingest import ingest
from rankmill.pipeline.read.files import find_files, format_of
from tests.refusals import only_line, refused, unnamed

LINE = "1 qid:{} 1:0.5\n"
TREE = """
day/a.txt day/b.txt.gz day/c.csv day/part-00000 day/X.TSV day/rank.train day/rank.train.query
day/rank.train.group.gz day/.hidden.txt day/_SUCCESS day/notes.md day/LICENSE day/Readme.dat day/sub/d.txt
day/sub/deep/e.txt day/sub/deep/.more/f.txt only/notes.md odd[1].txt odd1.txt
"""


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A folder of judgments with everything in it that may stand beside them; the current folder."""
    for name in TREE.split():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(LINE.format(name))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def names(*given, root=None):
    return [str(path) for path in find_files(given, root)]


def test_a_folder_is_the_files_of_rows_directly_in_it(tree):
    expected = ["day/X.TSV", "day/a.txt", "day/b.txt.gz", "day/c.csv", "day/part-00000", "day/rank.train"]
    assert names("day") == names("day/") == expected
    assert names("day", root=tree) == [str(tree / name) for name in expected]


def test_patterns_match_files_only_and_no_companions(tree):
    assert names("day/*.txt") == ["day/a.txt"]
    assert names("day/**/*.txt") == ["day/a.txt", "day/sub/d.txt", "day/sub/deep/e.txt"]
    assert names("day/rank*") == ["day/rank.train"]
    assert names("day/[ab].*", "day/?.csv") == ["day/a.txt", "day/b.txt.gz", "day/c.csv"]
    assert names("day/s*/*") == ["day/sub/d.txt"]
    assert names(f"{tree}/day/*.txt", root=tree / "day") == [f"{tree}/day/a.txt"]


def test_what_is_there_is_no_pattern(tree):
    assert names("odd[1].txt") == ["odd[1].txt"]
    assert names("odd[12].txt") == ["odd1.txt"]
    assert names("day/rank.train.query") == ["day/rank.train.query"]
    (tree / "c[1]*").mkdir()
    (tree / "c[1]*" / "x.txt").touch()
    assert names("c[1]*") == ["c[1]*/x.txt"]
    assert names("*.txt", root=tree / "c[1]*") == [f"{tree}/c[1]*/x.txt"]


def test_order_and_overlap_do_not_matter(tree):
    (tree / "link.txt").symlink_to("day/a.txt")
    given = ["day", "day/*.txt", "day/a.txt", "link*"]
    found = {tuple(names(*order)) for order in itertools.permutations(given)}
    assert found == {tuple(names("day"))}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("gone.txt", ("gone.txt", "no such file")),
        ("gone/*.txt", "'gone/*.txt'"),
        ("day/s[u]b", ("'day/s", "[u]")),
        ("day/*.query", "'day/*.query'"),
    ],
)
def test_what_means_nothing_is_an_error(tree, given, message):
    with refused(InputError, message):
        find_files(["day", given])


def test_the_command_takes_folders_and_patterns_for_every_split(tmp_path, monkeypatch):
    for name in ("train/a.txt", "train/b.txt", "later/v.txt", "later/t.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(LINE.format(name))
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(
        app, ["ingest", "train", "--valid", "later/v*", "--test", "*/t.txt", "-o", "one"], catch_exceptions=False
    )
    assert result.exit_code == 0
    ingest(["train/b.txt", "train/a.txt"], tmp_path / "two", valid=["later/v.txt"], test=["later/t.txt"])
    assert Dataset.open(tmp_path / "one").manifest == Dataset.open(tmp_path / "two").manifest
    with refused(InputError, "later/v.txt", "train", "valid"):
        ingest(["**/*.txt"], tmp_path / "three", valid=["later/v.txt"])
    with refused(InputError, "train/a.txt", "twice"):
        ingest(["train/a.txt", "train/a.txt"], tmp_path / "three")


def test_a_dataset_is_no_folder_of_rows(tmp_path):
    rows = tmp_path / "rows.csv"
    rows.write_text("qid,grade,x\nq,1,0.5\nq,,0.7\n")
    ingest([rows], tmp_path / "some")
    with refused(InputError, "some/_unjudged", "--split"):
        find_files([tmp_path / "some"])
    assert len(find_files([tmp_path / "some" / "_unjudged"])) == 1
    with refused(InputError, "unjudged", "some/_unjudged"):
        find_files([tmp_path / "some" / "unjudged"])
    rows.write_text("qid,grade,x\nq,1,0.5\n")
    ingest([rows], tmp_path / "all")
    with refused(InputError, "all", "re-rank"):
        find_files([tmp_path / "all"])


def test_json_is_json_lines_but_for_a_manifest(tmp_path):
    for name in ("a.json", "b.json.gz", "manifest.json"):
        (tmp_path / name).write_text('{"qid": "q", "grade": 1, "x": 0.5}\n')
    assert names(tmp_path) == [f"{tmp_path}/a.json", f"{tmp_path}/b.json.gz"]
    found = ingest([tmp_path / "a.json"], tmp_path / "out").manifest
    assert (found.rows, found.features) == (1, ["x"])
    assert {format_of(tmp_path / name) for name in ("a.json", "b.json.gz")} == {"jsonl"}


QRELS = "q 0 d 1\n"
PAIRS = "q d e\n"
ROWS = "1 qid:q 1:0.5 #docid = d\n0 qid:q 1:0.7 #docid = e\n"


@pytest.mark.parametrize("role", ["train", "valid", "qrels", "pairs"])
def test_two_files_with_the_same_bytes_are_refused(tmp_path, role):
    contents = {"train": ROWS, "valid": ROWS, "qrels": QRELS, "pairs": PAIRS}
    rows, one, other = (tmp_path / name for name in ("rows.txt", "one.txt", "other.txt"))
    rows.write_text(ROWS.replace("qid:q", "qid:q ") + "0 qid:z 1:1\n")
    one.write_text(contents[role])
    other.write_text(contents[role])
    given = {"train": [rows], role: [rows, one, other] if role == "train" else [one, other]}
    with refused(InputError, one, other, "same bytes"):
        ingest(**given, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_copy_for_another_split_is_refused_and_another_file_of_the_same_size_is_not(tmp_path):
    one, other = tmp_path / "one.txt", tmp_path / "other.txt"
    for path in (one, other):
        path.write_text(ROWS)
    with refused(InputError, "same bytes"):
        ingest([one], tmp_path / "out", valid=[other])
    other.write_text(ROWS.replace("qid:q", "qid:r"))
    assert ingest([one], tmp_path / "out", valid=[other]).manifest.rows == 4


def test_a_judgment_file_may_have_the_bytes_of_a_file_of_another_kind(tmp_path):
    rows, judged = tmp_path / "rows.csv", tmp_path / "judged.csv"
    for path in (rows, judged):
        path.write_text("qid,doc_id,grade,x\nq,d,1,0.5\n")
    assert ingest([rows], tmp_path / "out", qrels=[judged]).manifest.judgments.judgments == 1


def test_a_name_that_is_no_text_is_refused_in_one_line(tmp_path, monkeypatch, capsys):
    odd = tmp_path / os.fsdecode(b"caf\xe9")
    try:
        odd.mkdir()
    except OSError:
        pytest.skip("the file system knows text only")
    (odd / "a.txt").write_text(LINE.format(1))
    facts = rf"{tmp_path}/caf\xe9/a.txt", "UTF-8"
    for given in (str(odd / "a.txt"), str(odd), f"{tmp_path}/c*/a.txt"):
        with refused(InputError, facts):
            find_files([given])
    assert execute(["data", "ingest", f"{tmp_path}/c*/*", "-o", str(tmp_path / "out")]) == 2
    assert not unnamed(only_line(capsys.readouterr().err), facts)
    assert execute(["data", "bin", str(odd)]) == 2
    err = capsys.readouterr().err
    assert not unnamed(only_line(err), rf"{tmp_path}/caf\xe9", "UTF-8")
