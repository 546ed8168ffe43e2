"""What is printed never moves a cursor, hides text or turns its direction, whatever names and ids hold; data keep every
byte."""

import csv
import io
import json
import random
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankmill.cli import execute
from rankmill.foundation.errors import InputError, MalformedLine
from rankmill.foundation.notebook_html import escape
from rankmill.foundation.shown import Shown, shown, shown_in_line
from rankmill.foundation.terminal import console_on
from rankmill.scorer.evaluate.scored_file import read_scored

HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
TITLE = "\x1b]0;pwn\x1b\\\x1b[31m"
FEATURES = [
    *(f"{TITLE}f0", f"{TITLE}f1<script>", "\x9b31mC1", "z\u202ebidi"),
    *(f"{TITLE}last\u2028x", "\u2067isolate\x7f", "bell\x07\x08"),
]
CATEGORY = f"{TITLE}cat"


@given(st.text())
def test_shown_text_has_nothing_hidden_and_json_stays_the_same(text):
    assert not HIDDEN.search(shown(text))
    assert json.loads(shown(json.dumps(text, ensure_ascii=False))) == text
    assert len(shown_in_line(text).splitlines()) <= 1


@given(st.text())
def test_errors_show_what_their_names_hide(text):
    for error in (
        InputError(f"{text}: no such file"),
        MalformedLine(Path(f"x{text}".replace("\0", "")), 1, 2, text, "a number"),
    ):
        assert not HIDDEN.search(str(error))


def test_styles_of_our_own_are_printed_on_a_terminal_and_those_of_names_are_not():
    for name in FEATURES:
        page = io.StringIO()
        console_on(Shown(page), force_terminal=True, width=200, highlight=False).print(name, style="bold", markup=False)
        assert not HIDDEN.search(re.sub("\x1b\\[1m|\x1b\\[0m", "", page.getvalue()))
        kept = name.translate(dict.fromkeys(map(ord, "\x07\x08")))  # rich leaves these out
        assert shown(kept) in page.getvalue()
    assert not HIDDEN.search(escape(FEATURES[0]))


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """Files whose names of columns, ids and categories are full of escapes, a dataset, and a model with two
    versions."""
    folder = tmp_path_factory.mktemp("escapes")
    rng = random.Random(2)
    with (folder / "esc.csv").open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["qid", "doc_id", "grade", CATEGORY, *FEATURES])
        for query in range(40):
            for document in range(6):
                values = [rng.random() for _ in FEATURES]
                grade = min(4, int(2 * values[0] + 2 * values[1] + rng.random()))
                category = rng.choice([f"{TITLE}c1", "\x1b[33mc2<b>", "=1"])
                ids = f"{TITLE}q{query}\u202e", f"{TITLE}<img>{document}"
                rows.writerow([*ids, grade, category, *(f"{x:.3f}" for x in values)])
    (folder / f"{TITLE.replace('/', '')}.csv").write_text("nothing\n", encoding="utf-8")
    return folder


COMMANDS = [
    ["data", "ingest", "esc.csv", "-o", "d"],
    ["data", "ingest", "esc.csv", "-o", "d", "--ignore", f"{TITLE}f"],
    ["data", "ingest", f"{TITLE}.csv", "-o", "x"],
    ["data", "ingest", f"{TITLE}missing.csv", "-o", "x"],
    ["data", "ingest", "esc.csv", "-o", "d", "--categorical", CATEGORY, "--split", "train=0.5,valid=0.2,test=0.3"],
    ["data", "bin", "d"],
    ["data", "describe", "d"],
    ["data", "describe", "d", "--against", "d"],
    ["data", "describe", "d", "--json"],
    ["train", "d", "--name", "web", "--n-rounds", "3", "--preset", "defaults-1"],
    ["train", "d", "--name", "web", "--n-rounds", "2", "--preset", "defaults-1", "--monotone", f"{TITLE}no:1"],
    ["train", "d", "--name", "web", "--n-rounds", "2", "--preset", "defaults-1", "--max-leaves", "3"],
    ["models", "gate", "web@2", "--on", "d", "--margin", "0.5"],
    ["models", "promote", "web@1", "--force", "--reason", "x\x1b[31m"],
    ["models", "list"],
    ["models", "show", "web@2"],
    ["models", "show", "web@2", "--json"],
    ["models", "diff", "web@1", "web@2"],
    ["models", "log", "web"],
    ["evaluate", "d", "--model", "web@2", "--by", CATEGORY],
    ["evaluate", "d", "--model", "web@2", "--by", f"{TITLE}nothing"],
    ["evaluate", "d", "--model", "web@2", "--json"],
    ["compare", "web@1", "web@2", "--on", "d", "--split", "all"],
    ["rerank", "esc.csv", "--model", "web@1", "-o", "ranked"],
    ["rerank", "esc.csv", "--model", "web@1", "-o", "ranked.run"],
    ["evaluate", "ranked"],
    ["inspect", "influence", "web@2"],
    ["inspect", "influence", "web@2", "--json"],
    ["inspect", "shap", "web@2", "--on", "d"],
    ["inspect", "why", "web@2", "--on", "d", "--qid", f"{TITLE}q1\u202e"],
    ["inspect", "why", "web@2", "--on", "d", "--qid", f"{TITLE}q77"],
    ["inspect", "dependence", "web@2", FEATURES[0]],
    ["inspect", "dependence", "web@2", f"{TITLE}x"],
    ["report", "web@2", "--on", "d", "-o", "report"],
    [f"{TITLE}no-command"],
    ["data", "ingest", f"--{TITLE}no-option"],
]  # fmt: skip


@pytest.mark.slow
def test_no_command_prints_what_would_be_hidden(work, monkeypatch, capfd):
    monkeypatch.chdir(work)
    monkeypatch.setenv("RANKMILL_REGISTRY", str(work / "registry"))
    done = 0
    for command in COMMANDS:
        code = execute(command)
        reported = capfd.readouterr()
        for text in (reported.out, reported.err):
            assert not HIDDEN.search(text), (command, text)
        assert "Traceback" not in reported.err, reported.err
        if "--json" in command:
            assert code == 0, reported.err
            assert json.loads(reported.out)
        done += code == 0
    assert done >= 22  # the others are mistakes
    for page in (*(work / "report").glob("*.html"), *(work / "report").glob("*.md")):
        text = page.read_text(encoding="utf-8")
        assert not HIDDEN.search(text), page
    assert f"{TITLE}q1\u202e" in read_scored(work / "ranked")["qid"].to_pylist()


def test_the_help_keeps_its_styles():
    page = io.StringIO()
    stream = Shown(page)
    stream.allow("\x1b[1mOptions\x1b[0m")
    stream.write("\x1b[1mOptions\x1b[0m\n")
    stream.write("\x1b[1mname\x1b[0m\n")
    assert page.getvalue() == "\x1b[1mOptions\x1b[0m\n\\u001b[1mname\\u001b[0m\n"
