"""Malformed input through the command: the line and the code that malformed/cases.toml says, and nothing left behind."""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path

import pytest
from typer.main import get_command

import rankmill.cli
from pipeline.sources.files import COMPANIONS
from rankmill.cli import execute
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


def put(name: str, folder: Path) -> None:
    """Bring the file ``name``, and the sizes of its queries, into ``folder``, if the corpus has them."""
    if name in GENERATED:
        GENERATED[name](folder / name)
    for companion in ("", *COMPANIONS):
        if (FOLDER / f"{name}{companion}").is_file():
            shutil.copy(FOLDER / f"{name}{companion}", folder)


@pytest.mark.parametrize(("arguments", "code", "message"), CASES)
def test_malformed_input_is_answered_by_one_line_and_leaves_nothing(
    tmp_path, monkeypatch, capfd, arguments, code, message
):
    monkeypatch.chdir(tmp_path)
    for word in arguments:
        put(word, tmp_path)
    before = {path.name for path in tmp_path.iterdir()}
    assert execute(["data", "ingest", *arguments, "-o", "dataset"]) == code
    out, err = capfd.readouterr()
    line = err.removeprefix("rankmill: ").removesuffix("\n")
    assert (out, err) == ("", f"rankmill: {line}\n")
    if message.endswith("…"):
        line = line[: len(message) - 1] + "…"
    assert line == message
    assert {path.name for path in tmp_path.iterdir()} == before


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
