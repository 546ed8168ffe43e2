"""``run --plan`` looks at the candidates with the options that the run would use, before and after the data are
read."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankmill.cli import execute

CONFIG = """
work = "out"
[ingest]
sources = ["rows.csv"]
split = {train = 0.7, valid = 0.3}
grades = {good = 1, bad = 0}
SETTING
[train]
name = "web"
n_rounds = 2
preset = "defaults-1"
min_rows_in_leaf = 5
[promote]
alias = "staging"
[rerank]
candidates = ["candidates.csv"]
"""
ROWS = "".join(f"q{q},d{d},{'good' if d % 3 else 'bad'},{d % 3 + 0.1 * q},{d}\n" for q in range(20) for d in range(6))
GOOD = "qid,doc_id,grade,a,b\nq,d,good,1,2\nq,e,bad,2,3\n"
BAD = {  # what is wrong: the options of [rerank], the candidates, facts of the message
    "a cell that is no number": ("", "qid,doc_id,a,b\nq,d,1,2\nq,e,x,3\n", ("candidates.csv:3:5", "'x'")),
    "no feature": ("", "qid,doc_id,c\nq,d,1\n", ("'a'", "'b'")),
    "no query": ("", "query,doc_id,a,b\nq,d,1,2\n".replace("query", "x"), ("'qid'",)),
    "another format": ('format = "parquet"\n', GOOD, ("candidates.csv",)),
    "columns that are not there": ('columns = {qid = "search"}\n', GOOD, ("'search'",)),
    "another delimiter": ('delimiter = ";"\n', GOOD, ("candidates.csv",)),
    "a word that is no grade": ("", GOOD.replace("bad", "poor"), ("'poor'",)),
    "no such run": ('run = ["first.run"]\n', GOOD, ("rerank.run", "first.run")),
    "a run that is none": ('run = ["rows.csv"]\n', GOOD, ("rows.csv",)),
}


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project that was run once."""
    folder = tmp_path_factory.mktemp("done")
    write(folder, "", GOOD)
    assert execute(["run", str(folder / "rankmill.toml"), "--registry", str(folder / "registry")]) == 0
    return folder


def write(folder: Path, options: str, candidates: str, setting: str = "") -> None:
    (folder / "rows.csv").write_text("qid,doc_id,grade,a,b\n" + ROWS)
    (folder / "candidates.csv").write_text(candidates)
    (folder / "rankmill.toml").write_text(CONFIG.replace("SETTING", setting) + options)


def plan(folder: Path, capsys) -> str:
    capsys.readouterr()
    code = execute(["run", str(folder / "rankmill.toml"), "--registry", str(folder / "registry"), "--plan"])
    said = capsys.readouterr()
    return "" if code == 0 else said.err


@pytest.mark.parametrize("state", ["new", "ingest is due", "train is due", "nothing is due"])
def test_candidates_that_cannot_be_ranked_are_refused_by_the_plan(state, done, tmp_path, capsys):
    folder = tmp_path if state == "new" else done
    setting = {"ingest is due": "max_grade = 7"}.get(state, "")
    for what, (options, candidates, facts) in BAD.items():
        write(folder, options, candidates, setting)
        if state == "train is due":
            path = folder / "rankmill.toml"
            path.write_text(path.read_text().replace("n_rounds = 2", "n_rounds = 3"))
        message = plan(folder, capsys)
        assert all(fact in message for fact in facts), (what, message)
    write(folder, "", GOOD, setting)
    assert not plan(folder, capsys)


def test_options_of_the_candidates_are_used(tmp_path, capsys):
    text = "search;doc_id;a;b\nq;d;1,5;2\n"
    write(tmp_path, 'delimiter = ";"\ndecimal_comma = true\ncolumns = {qid = "search"}\n', text)
    assert not plan(tmp_path, capsys)
    write(tmp_path, "", text)
    assert plan(tmp_path, capsys)
    write(tmp_path, "", "qid,doc_id,a\nq,d,1\n")  # a model need not use every feature
    assert not plan(tmp_path, capsys)


def test_stages_before_promote_need_no_candidates(tmp_path, capsys):
    write(tmp_path, "", "nothing of the kind")
    args = ["run", str(tmp_path / "rankmill.toml"), "--registry", str(tmp_path / "registry"), "--plan"]
    assert execute([*args, "--until", "train"]) == 0
    assert execute(args) != 0
