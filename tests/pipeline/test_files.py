"""Which files a name, a folder or a pattern means."""

import itertools

import pytest
from typer.testing import CliRunner

from pipeline.cli import app
from pipeline.dataset import Dataset
from pipeline.errors import InputError
from pipeline.ingest import ingest
from pipeline.sources.files import find_files
from rankmill.cli import execute

LINE = "1 qid:{} 1:0.5\n"


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A folder of judgments with everything in it that may stand beside them; the current folder."""
    for name in (
        "day/a.txt",
        "day/b.txt.gz",
        "day/c.csv",
        "day/part-00000",
        "day/X.TSV",
        "day/rank.train",
        "day/rank.train.query",
        "day/rank.train.group.gz",
        "day/.hidden.txt",
        "day/_SUCCESS",
        "day/notes.md",
        "day/LICENSE",
        "day/Readme.dat",
        "day/sub/d.txt",
        "day/sub/deep/e.txt",
        "day/sub/deep/.more/f.txt",
        "only/notes.md",
        "odd[1].txt",
        "odd1.txt",
    ):
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
        ("gone.txt", "gone.txt: no such file"),
        ("gone/*.txt", "no file matches 'gone/*.txt'"),
        ("day/s[u]b", "no file matches 'day/s[u]b'"),
        ("day/*.query", "no file matches 'day/*.query'"),
    ],
)
def test_what_means_nothing_is_an_error(tree, given, message):
    with pytest.raises(InputError) as caught:
        find_files(["day", given])
    assert str(caught.value) == message


def test_a_folder_without_rows_says_which_suffixes_count(tree):
    with pytest.raises(InputError, match=r"^only: no file in this folder has a known suffix \(\.arrow .*\.csv .*\.txt"):
        find_files(["only"])


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
    with pytest.raises(InputError, match=r"^later/v.txt: is given twice, for train and for valid$"):
        ingest(["**/*.txt"], tmp_path / "three", valid=["later/v.txt"])
    with pytest.raises(InputError, match=r"^train/a.txt: is given twice$"):
        ingest(["train/a.txt", "train/a.txt"], tmp_path / "three")


def test_a_pattern_without_files_ends_with_2(tree, capsys):
    assert execute(["data", "ingest", "day/*.gone", "-o", "out"]) == 2
    assert capsys.readouterr().err == "rankmill: no file matches 'day/*.gone'\n"
