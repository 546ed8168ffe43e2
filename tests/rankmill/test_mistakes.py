"""A user's mistakes through the real command line: one line, the documented code, nothing written."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rankmill.cli import execute

GOOD = "".join(
    f"{grade} qid:{query} 1:{value} 2:{query}.5 3:{grade} #docid = D{query}{document}\n"
    for query in range(1, 13)
    for document, (grade, value) in enumerate([(2, 0.3), (1, 0.3), (0, 0.3), (0, 0.4), (1, 0.4)])
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with good data, its dataset, a registry with a model, and a ranked list."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "good.txt").write_text(GOOD)
    os.environ.pop("RANKMILL_REGISTRY", None)
    registry = str(folder / "registry")
    dataset = str(folder / "dataset")
    train = ["--n-rounds", "3", "--max-leaves", "3", "--min-rows-in-leaf", "2", "--n-threads", "1"]
    for line in (
        ["data", "ingest", str(folder / "good.txt"), "-o", dataset, "--buckets", "2"],
        ["data", "bin", dataset],
        ["train", dataset, "--name", "web", "--registry", registry, *train],
        ["models", "promote", "web@1", "--registry", registry],
        ["rerank", str(folder / "good.txt"), "--model", "web", "--registry", registry, "-o", str(folder / "ranked")],
    ):
        assert execute(line) == 0
    return folder


def everything_in(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def mistake(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    """Run a command that must fail; return its code and the one line of stderr that begins with the program's name."""
    capsys.readouterr()
    code = execute([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    assert out == ""
    *notes, last = err.splitlines()
    assert last.startswith("rankmill: ")
    assert not any("rankmill:" in note or "Traceback" in note for note in notes)
    return code, last.removeprefix("rankmill: ")


LINES = [
    ("a malformed token", "1 qid:1 1:0.5 2;7\n", 10, "{file}:3:15: expected "),
    ("a value that is no number", "1 qid:1 1:zero\n", 10, "{file}:3:9: expected "),
    ("no qid", "1 1:0.5 2:7\n", 10, "{file}:3:3: expected qid"),
    ("a negative grade", "-1 qid:1 1:0.5\n", 10, "{file}:3:1: expected "),
    ("a fractional grade", "1.5 qid:1 1:0.5\n", 10, "{file}:3:1: expected "),
    ("a feature index 0", "1 qid:1 0:0.5 1:3\n", 10, "{file}:3:9: "),
    ("a repeated feature", "1 qid:1 1:0.5 2:1 1:7\n", 10, "{file}:3:19: "),
]


@pytest.mark.parametrize(("line", "code", "begins"), [row[1:] for row in LINES], ids=[row[0] for row in LINES])
def test_a_bad_line_is_named_by_file_line_and_column(tmp_path: Path, capsys, line: str, code: int, begins: str) -> None:
    file = tmp_path / "bad.txt"
    file.write_text("0 qid:1 1:0.25\n2 qid:1 1:1\n" + line + "0 qid:2 1:4\n")
    before = everything_in(tmp_path)
    found, message = mistake(capsys, "data", "ingest", file, "-o", tmp_path / "out")
    assert found == code
    assert message.startswith(begins.format(file=file)), message
    assert everything_in(tmp_path) == before
    assert not (tmp_path / "out").exists()


def test_a_feature_index_0_comes_with_the_cure(tmp_path: Path, capsys) -> None:
    file = tmp_path / "zero.txt"
    file.write_text("1 qid:1 0:0.5\n")
    assert "--index-base 0" in mistake(capsys, "data", "ingest", file, "-o", tmp_path / "out")[1]


@pytest.mark.parametrize(
    ("content", "code"),
    [(b"", 10), (b"\n# nothing but a comment\n", 10), (b"1 qid:1 1:0\x00\x00\n", 10), (b"\x89PNG\r\n\xff\xfe", 10)],
)
def test_an_empty_file_or_one_that_is_not_text(tmp_path: Path, capsys, content: bytes, code: int) -> None:
    file = tmp_path / "odd.txt"
    file.write_bytes(content)
    found, message = mistake(capsys, "data", "ingest", file, "-o", tmp_path / "out")
    assert (found, str(file) in message) == (code, True)
    assert names_in(tmp_path) == ["odd.txt"]


def test_a_bad_line_in_the_last_of_several_files_leaves_nothing(tmp_path: Path, capsys) -> None:
    (tmp_path / "a.txt").write_text(GOOD)
    (tmp_path / "b.txt").write_text(GOOD.replace("qid:1 ", "qid:77 ") + "oops\n")
    files = [tmp_path / "a.txt", tmp_path / "b.txt"]
    assert mistake(capsys, "data", "ingest", *files, "-o", tmp_path / "out")[0] == 10
    assert names_in(tmp_path) == ["a.txt", "b.txt"]


MISSING = [
    ["data", "ingest", "nowhere.txt", "-o", "out"],
    ["data", "bin", "nowhere"],
    ["data", "describe", "nowhere"],
    ["train", "nowhere", "--name", "web"],
    ["rerank", "nowhere.parquet", "--model", "nowhere.rankmill", "-o", "out"],
    ["evaluate", "nowhere.run"],
    ["run", "nowhere.toml"],
]


@pytest.mark.parametrize("arguments", MISSING, ids=lambda arguments: " ".join(arguments[:2]))
def test_a_missing_file_is_usage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys, arguments: list[str]) -> None:
    monkeypatch.chdir(tmp_path)
    code, message = mistake(capsys, *arguments)
    assert (code, "nowhere" in message) == (2, True)
    assert names_in(tmp_path) == []


def test_a_dataset_of_another_format_number(tmp_path: Path, capsys) -> None:
    (tmp_path / "good.txt").write_text(GOOD)
    assert execute(["data", "ingest", str(tmp_path / "good.txt"), "-o", str(tmp_path / "d")]) == 0
    manifest = tmp_path / "d" / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"format": 2}))
    for command in (["data", "bin"], ["data", "describe"]):
        code, message = mistake(capsys, *command, tmp_path / "d")
        assert code == 13
        assert "format 2" in message
        assert "format 1" in message


def test_candidates_that_lack_features_of_the_model(made: Path, tmp_path: Path, capsys) -> None:
    table = pa.table({"qid": ["1", "1"], "doc_id": ["a", "b"], "f1": pa.array([0.1, 0.9], pa.float32())})
    pq.write_table(table, tmp_path / "c.parquet")
    (tmp_path / "c.txt").write_text("0 qid:1 1:0.5\n")
    model = ["--model", "web", "--registry", made / "registry", "-o", tmp_path / "out"]
    for file in ("c.parquet", "c.txt"):
        code, message = mistake(capsys, "rerank", tmp_path / file, *model)
        assert code == 10
        assert "f3" in message
    assert names_in(tmp_path) == ["c.parquet", "c.txt"]


UNKNOWN = [
    (["evaluate", "{made}/ranked", "--metric", "ncdg@10"], "did you mean 'ndcg'"),
    (["evaluate", "{made}/ranked", "--metric", "ndcg@x"], "whole number"),
    (["evaluate", "{made}/ranked", "--ties", "expectd"], "did you mean 'expected'"),
    (["evaluate", "{made}/ranked", "--gain", "expo"], "did you mean 'exp'"),
    (["evaluate", "{made}/ranked", "--nothing-relevant", "zer"], "did you mean 'zero'"),
    (["train", "{made}/dataset", "--name", "web", "--objective", "lambdamat"], "did you mean 'lambdamart'"),
    (["train", "{made}/dataset", "--name", "web", "--metric", "ndgc@5"], "did you mean 'ndcg'"),
    (["train", "{made}/dataset", "--name", "web", "--stop-metric", "mapp"], "did you mean 'map'"),
    (["train", "{made}/dataset", "--name", "Not a name"], "Not a name"),
    (["train", "{made}/dataset", "--name", "web", "--learning-rate", "2"], "learning_rate must be in (0, 1], got 2.0"),
    (["rerank", "{made}/good.txt", "--model", "wbe", "-o", "out"], "did you mean"),
    (["rerank", "{made}/good.txt", "--model", "web@9", "-o", "out"], "9"),
    (["rerank", "{made}/good.txt", "--model", "web", "-o", "out", "--memory", "2 apples"], "2 apples"),
    (["rerank", "{made}/good.txt", "--model", "web", "-o", "out", "--absent", "zeros"], "did you mean 'zero'"),
    (["data", "ingest", "{made}/good.txt", "-o", "out", "--split", "train=0.5,vald=0.5"], "did you mean 'valid'"),
    (["data", "bin", "{made}/dataset", "--max-bin", "300"], "300"),
    (["models", "show", "wbe"], "did you mean"),
    (["models", "promote", "web@9"], "9"),
]


@pytest.mark.parametrize(
    ("arguments", "hint"), UNKNOWN, ids=lambda value: " ".join(value[2:]) if isinstance(value, list) else ""
)
def test_an_unknown_value_is_usage_with_a_hint(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys, arguments: list[str], hint: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RANKMILL_REGISTRY", str(made / "registry"))
    before = everything_in(made)
    code, message = mistake(capsys, *(argument.format(made=made) for argument in arguments))
    assert code == 2
    assert hint in message
    assert names_in(tmp_path) == []
    assert everything_in(made) == before


def test_training_without_bins_names_the_command_that_makes_them(tmp_path: Path, capsys) -> None:
    (tmp_path / "good.txt").write_text(GOOD)
    assert execute(["data", "ingest", str(tmp_path / "good.txt"), "-o", str(tmp_path / "d")]) == 0
    code, message = mistake(capsys, "train", tmp_path / "d", "--name", "web", "--registry", tmp_path / "r")
    assert (code, "rankmill data bin" in message) == (2, True)
    assert not (tmp_path / "r").exists()


def test_grades_that_teach_nothing_are_rejected(tmp_path: Path, capsys) -> None:
    (tmp_path / "flat.txt").write_text("1 qid:1 1:0.5\n1 qid:1 1:0.7\n")
    assert execute(["data", "ingest", str(tmp_path / "flat.txt"), "-o", str(tmp_path / "d")]) == 0
    assert execute(["data", "bin", str(tmp_path / "d")]) == 0
    code, message = mistake(capsys, "train", tmp_path / "d", "--name", "web", "--registry", tmp_path / "r")
    assert (code, "nothing to learn" in message) == (10, True)
    assert not (tmp_path / "r").exists()


def test_a_damaged_model_is_an_integrity_error(made: Path, tmp_path: Path, capsys) -> None:
    blob = max(
        (made / "registry" / "blobs").rglob("*/*"), key=lambda path: path.stat().st_size if path.is_file() else 0
    )
    (tmp_path / "m.rankmill").write_bytes(blob.read_bytes()[:-1])
    code, _ = mistake(capsys, "rerank", made / "good.txt", "--model", tmp_path / "m.rankmill", "-o", tmp_path / "out")
    assert code == 13
    assert names_in(tmp_path) == ["m.rankmill"]
