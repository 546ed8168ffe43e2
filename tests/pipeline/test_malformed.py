"""Malformed input through the command: the line and the code that malformed/cases.toml says, and nothing left
behind."""

import shutil
import tomllib
from pathlib import Path

import pytest
from typer.main import get_command

import rankmill.cli
from rankmill.cli import execute
from rankmill.pipeline.read.files import COMPANIONS
from tests.pipeline.malformed.generated import GENERATED

FOLDER = Path(__file__).parent / "malformed"
CODES = {"data-rejected": 10, "usage": 2}
CASES = [
    pytest.param(arguments.split(), CODES[kind], message, id=arguments)
    for kind, answers in tomllib.loads((FOLDER / "cases.toml").read_text(encoding="utf-8")).items()
    for arguments, message in answers.items()
]


@pytest.fixture(autouse=True, scope="module")
def built_once():
    """Typer builds all commands anew at every call: most of the time that a refusal takes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rankmill.cli, "app", get_command(rankmill.cli.app))
        yield


def put(name, folder):
    """Bring the file ``name``, and the sizes of its queries, into ``folder``, if the corpus has them."""
    if name in GENERATED:
        GENERATED[name](folder / name)
    for companion in ("", *COMPANIONS):
        if (FOLDER / f"{name}{companion}").is_file():
            shutil.copy(FOLDER / f"{name}{companion}", folder)


def refused(folder, monkeypatch, capfd, arguments):
    """Ingest in ``folder``, see that nothing is left there, and return the exit code and the one line on stderr."""
    monkeypatch.chdir(folder)
    for word in arguments:
        put(word, folder)
    before = {path.name for path in folder.iterdir()}
    code = execute(["data", "ingest", *arguments, "-o", "dataset"])
    out, err = capfd.readouterr()
    text = err.removeprefix("rankmill: ").removesuffix("\n")
    assert (out, err) == ("", f"rankmill: {text}\n")
    line = text.replace(":\n  (1)", ": (1)").replace("\n  ", "; ")  # several columns have a line each
    assert "\n" not in line
    assert {path.name for path in folder.iterdir()} == before
    return code, line


@pytest.mark.parametrize(("arguments", "code", "message"), CASES)
def test_malformed_input_is_answered_by_one_line_and_leaves_nothing(
    tmp_path, monkeypatch, capfd, arguments, code, message
):
    found = refused(tmp_path, monkeypatch, capfd, arguments)
    if message.endswith("…"):
        found = found[0], found[1][: len(message) - 1] + "…"
    assert found == (code, message)


SEVERAL_MISTAKES = {"good.parquet --format letor"}  # as text: no grade in the first line, a NUL byte in the second one


@pytest.mark.slow
@pytest.mark.parametrize(("arguments", "code", "message"), [case for case in CASES if case.values[1] == 10])
def test_several_threads_and_small_blocks_answer_the_same(tmp_path, monkeypatch, capfd, arguments, code, message):
    if " ".join(arguments) in SEVERAL_MISTAKES:
        pytest.skip("which mistake is found first depends on the size of the blocks")
    given = ["--threads", "3", "--block-size", "7"]
    code_found, found = refused(tmp_path, monkeypatch, capfd, [*arguments, *given])
    found = found.replace(f" {' '.join(given)}", "")  # where a cure repeats the command
    assert (code_found, found.startswith(message.removesuffix("…"))) == (code, True), found


@pytest.mark.parametrize(
    "name", sorted({name for name in GENERATED if name.startswith("good")} | {"good.txt", "good.csv"})
)
def test_what_is_put_beside_them_is_good(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    put(name, tmp_path)
    assert execute(["data", "ingest", name, "-o", "dataset"]) == 0


def test_every_file_of_the_corpus_has_its_answer():
    named = {word for case in CASES for word in case.values[0]}
    used = named | {f"{word}{companion}" for word in named for companion in COMPANIONS}
    kept = {path.name for path in FOLDER.iterdir() if path.is_file()} - {"cases.toml", "generated.py"}
    assert sorted(kept | GENERATED.keys()) == sorted(used & (kept | GENERATED.keys()))
    assert len(CASES) >= 60
