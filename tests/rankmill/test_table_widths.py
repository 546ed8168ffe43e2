"""What commands print fits the terminal; nothing that is printed in a wide one is lost in a narrow one."""

import re

import pytest
from rich.cells import cell_len

from rankmill.cli import execute
from rankmill.foundation.terminal import text_table

SETUP = """
data synth -o j.txt --queries 60 --seed 7 --features 12
data ingest j.txt -o d --split train=0.5,valid=0.2,test=0.3
data bin d
train d --name a-model-with-a-name --n-rounds 4
train d --name a-model-with-a-name --n-rounds 8 --seed 3
models promote a-model-with-a-name@1 --force
rerank j.txt --model a-model-with-a-name@1 -o ranked
"""
COMMANDS = """
data describe d --against d
evaluate ranked --by query_size --by grade_mix
compare a-model-with-a-name@1 a-model-with-a-name@2 --on d --split test
models gate a-model-with-a-name@2 --on d
models list
models show a-model-with-a-name@1
models diff a-model-with-a-name@1 a-model-with-a-name@2
inspect dependence a-model-with-a-name f1 f2 --on d
inspect shap a-model-with-a-name --on d
inspect why a-model-with-a-name --on d --qid 10
explain-metric ranked --qid 10 --metric ndcg@10
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("work")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for line in SETUP.strip().splitlines():
            assert execute(line.split()) == 0, line
    return folder


def tables_of(text):
    """The lines of tables: a line above each rule, the rule, and all up to an empty line."""
    lines, found = text.splitlines(), set()
    for at, line in enumerate(lines):
        if re.search("──", line):
            after = next((i for i in range(at, len(lines)) if not lines[i].strip()), len(lines))
            found |= set(range(max(at - 1, 0), after))
    return [lines[at] for at in sorted(found)]


@pytest.mark.slow
def test_no_table_is_wider_than_the_terminal(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "60")
    for line in COMMANDS.strip().splitlines():
        assert execute(line.split()) in {0, 11}, capsys.readouterr().err
        out = capsys.readouterr().out
        assert max(map(cell_len, tables_of(out)), default=0) <= 60, out


def test_a_table_in_a_narrow_terminal_has_every_cell_of_the_wide_one(monkeypatch):
    header = ["metric", *(f"column {i}" for i in range(12)), ""]
    rows = [[f"ndcg@{row}", *(f"{row}.{i:04d}" for i in range(12)), "#" * 20] for row in range(5)]
    monkeypatch.delenv("COLUMNS", raising=False)
    whole = text_table(header, rows)
    assert len(whole.splitlines()) == 7
    for columns in (40, 60, 80, 120):
        monkeypatch.setenv("COLUMNS", str(columns))
        table = text_table(header, rows)
        assert max(map(cell_len, table.splitlines())) <= columns
        words = set(table.split())
        assert words >= {word for word in whole.split() if "─" not in word}
        for part in table.split("\n\n"):  # each part says whose cells they are
            assert [part.splitlines()[2 + row].split()[0] for row in range(5)] == [f"ndcg@{row}" for row in range(5)]
