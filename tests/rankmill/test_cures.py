r"""Every cure that a message prints is run and works: the text is taken from the message as a shell reads it, not from
here.

A row of `ROWS` is a command that is refused.  Each option with a value and each command line after the first colon or
semicolon of the message is a cure; options are added to the command, command lines are run.  With it the same refusal
is gone.
"""

import ast
import csv
import re
import shutil
import subprocess
import tomllib
from functools import cache
from pathlib import Path

import pytest

from rankmill.cli import execute
from rankmill.foundation.cures import named, shell_word, spelled_with
from rankmill.foundation.errors import DataRejected
from rankmill.foundation.options import spelled_for
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.pipeline.ingest import ingest
from rankmill.pipeline.options import IngestOptions, ReadOptions
from tests import ROOT

QUICK = ["--n-rounds", "2", "--preset", "defaults-1", "--min-rows-in-leaf", "5"]
BLANKS = {"N": "3", "FILE": "good.qrels", "PAIRS": "good.pairs", "DATASET": "d", "SRC": "good.csv", "FEATURES": "good.csv", "VERSION": "1", "ALIAS": "production", "MODEL": "base@1", "OUT": "y4.csv"}  # fmt: skip
_WORD = r"(?:\$'(?:[^'\\]|\\.)*'|'[^']*'|\"[^\"]*\"|[^\s;,()`'\"]|,(?=\S))+"
_COMMANDS = "data|models|train|cv|tune|evaluate|rerank|compare|convert|inspect|report|run|clicks|schedule|health"
_CURE = re.compile(rf"(rankmill (?:{_COMMANDS})(?: {_WORD})+)|(?<![\w'-])(--[a-z][a-z-]*)(?:[ =]({_WORD}))?")
_PROSE = {"or", "and", "is", "to", "reads", "maps", "says", "for", "as", "then", "ranks", "with", "keeps", "which", "lists", "promotes", "of", "has", "names", "uses"}  # fmt: skip


@cache
def words_of_shell(text):
    """Return the words of ``text`` as bash reads them."""
    done = subprocess.run(["bash", "-c", f"printf '%s\\0' {text}"], capture_output=True, check=True)
    return done.stdout.decode().split("\0")[:-1]


def cures_of(message):
    """Return the cures in ``message``: lists of words, those of a command line without ``rankmill``, or of an
    option."""
    said = message.removeprefix("rankmill: ")
    start = re.search("[;:] ", said)
    said = said[start.end() :] if start else said
    found = []
    for line, flag, value in _CURE.findall(said):
        if line:
            words = line.split(" ")
            prose = next((i for i, word in enumerate(words) if word in _PROSE), len(words))
            found.append(("command", words_of_shell(" ".join(words[:prose]))[1:]))
        elif value and value.rstrip(".") not in _PROSE:
            written = f"{flag} {value}"
            found.append(("option", words_of_shell(written if written in said else f"{flag}={value}")))
        elif flag in {"--overwrite", "--decimal-comma", "--force", "--all", "--complete"}:
            found.append(("option", [flag]))
    return found


def filled(words, blanks):
    return [
        re.sub(r"(?<![A-Za-z])([A-Z]+)(?![A-Za-z])", lambda word: blanks.get(word[1], word[1]), word) for word in words
    ]


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """Good and bad files, a dataset without and one with bins, and a registry with a model of two versions and no
    alias."""
    folder = tmp_path_factory.mktemp("cures")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("RANKMILL_REGISTRY", str(folder / "registry"))
        rows = [f"q{q},d{q}x{d},{(q + d) % 3},{(q + d) % 3 + 0.1 * d},{d * 7 % 5}" for q in range(30) for d in range(6)]
        for name, text in FILES.items():
            Path(name).write_text(text)
        Path("good.csv").write_text("\n".join(["qid,doc_id,grade,a,b", *rows]) + "\n")
        ungraded = (",".join(row.split(",")[:2] + row.split(",")[3:]) for row in rows)
        Path("features.csv").write_text("\n".join(["qid,doc_id,a,b", *ungraded]) + "\n")
        Path("good.qrels").write_text("".join(f"q{q} 0 d{q}x{d} {(q + d) % 3}\n" for q in range(30) for d in range(6)))
        Path("good.pairs").write_text("q1 d1x2 d1x0\n")
        for command in (
            "data ingest good.csv -o d --split train=0.6,valid=0.2,test=0.2",
            "data ingest good.csv -o bare",
            "data bin d",
            *(
                f"train d --name {name} {' '.join(QUICK)}"
                for name in ("base --max-leaves 4", "base --max-leaves 3", "plain")
            ),
            "models init --registry empty",
            "rerank good.csv --model base@1 -o list.csv",
        ):
            assert execute(command.split()) == 0
        shutil.copy("list.csv", "graded.csv")  # which no cure replaces
        shutil.copytree("d", "kept")
        yield folder


_RUN = """
work = "work"
[ingest]
sources = ["good.csv"]
split = {train = 0.6, valid = 0.2, test = 0.2}
[bin]
[train]
name = "web"
n_rounds = ROUNDS
preset = "defaults-1"
min_rows_in_leaf = 5
[gate]
margin = 0.5
"""
FILES = {
    "text.csv": "qid,grade,a,t\n1,1,2,x\n1,0,3,y\n1,0,3,5\n",
    "twice.csv": "qid,grade,a,t,t\n1,1,2,3,4\n1,0,3,4,5\n",
    "unnamed.csv": "qid,grade,a,\n1,1,2,3\n1,0,3,4\n",
    "split.csv": "qid,grade,a,split\n1,1,2,3\n1,0,3,4\n",
    "both.csv": "query,topic,grade,a\n1,2,1,2\n1,3,0,3\n",
    "near.csv": "qidd,grade,a\n1,1,2\n1,0,3\n",
    "none.csv": "a,grade,x\n1,1,2\n1,0,3\n",
    "semicolons.csv": "qid;grade;a\n1;1;2\n1;0;3\n",
    "pipes.csv": "qid|grade|a\n1|1|2\n1|0|3\n",
    "tabs.csv": "qid\tgrade\ta\n1\t1\t2\n1\t0\t3\n",
    "letor.csv": "1 qid:1 1:2\n0 qid:1 1:3\n",
    "words.csv": "qid,grade,a\n1,good,2\n1,bad,3\n",
    "negative.csv": "qid,grade,a\n1,-1,2\n1,1,3\n",
    "ungraded.csv": "qid,doc_id,a\nq1,d1x0,2\nq1,d1x2,3\n",
    "holes.csv": "qid,doc_id,grade,a\nq1,d1x0,,2\nq1,d1x2,1,3\n",
    "commas.csv": 'qid,grade,a\n1,1,"2,5"\n1,0,"3,5"\n1,0,"4,5"\n',
    "rare.csv": "qid,grade,b,a\n" + "".join(f"1,{row % 2},1,{'x' if row == 7 else row}\n" for row in range(200)),
    "zero.txt": "1 qid:1 0:2 1:3\n0 qid:1 0:3 1:1\n",
    "conflict.qrels": "q1 0 d1x0 1\nq1 0 d1x0 2\n",
    "beir.tsv": "query-id\tpage\tgrade\nq1\td1x0\t1\nq1\td1x2\t2\n",
    "dates.csv": "qid,grade,a,day\n1,1,2,2026-01-02\n1,0,3,2026-01-03\n",
    "other.csv": "qid,grade,a\n1,1,5\n1,0,6\n",
    "roles.csv": "qid,grade,q,a\n1,1,2,3\n1,0,3,4\n",
    "messy.csv": "query,topic,grade,a,t,t,,split\n1,2,1,2,x,y,3,4\n1,3,0,3,y,z,3,4\n",
    "clicks.csv": "qid,doc_id,position,clicked,visit_no\n1,a,1,1,s\n1,b,2,0,s\n",
    "log.csv": "qid,doc_id,place_,clicked,session\n1,a,1,1,s\n1,b,2,0,s\n",
    "wordgrades.csv": "qid,doc_id,grade,a,b\n1,a,good,1,2\n1,b,bad,2,3\n",
    "few.csv": "qid,doc_id,grade,a,b\n" + "".join(f"q{q},d{d},{d},{d},{q}\n" for q in range(12) for d in range(3)),
    "junk.rankmill": "x" * 500,
    "noids.csv": "qid,page,a\nq1,7,2\nq1,8,3\n",
    "noids.qrels": "q1 0 7 1\nq1 0 8 0\n",
    "amounts.csv": "qid,grade,a\n1,5000,2\n1,0,3\n",
    "labels.csv": "qid,doc_id,label,grade\nq1,d1x0,1,1\n",
    "grades.csv": "qid,doc_id,grade\nq1,d1x2,1\n",
    "words2.csv": "qid,grade,a,t\n1,good,2,x\n1,bad,3,y\n",
    "run.toml": _RUN.replace("ROUNDS", "2"),
    "again.toml": _RUN.replace("ROUNDS", "3"),
    "list.run": "q1 Q0 d1x0 1 2 t\nq1 Q0 d1x2 2 1 t\n",
}
INGEST = ["data", "ingest"]
ROWS = {
    "a column of text": [*INGEST, "text.csv", "-o", "x"],
    "a name occurs twice": [*INGEST, "twice.csv", "-o", "x"],
    "a column has no name": [*INGEST, "unnamed.csv", "-o", "x"],
    "a reserved name": [*INGEST, "split.csv", "-o", "x"],
    "a role that could be two columns": [*INGEST, "both.csv", "-o", "x"],
    "a role with a similar column": [*INGEST, "near.csv", "-o", "x"],
    "a role without a column": [*INGEST, "none.csv", "-o", "x"],
    "a role given to another column": [*INGEST, "roles.csv", "-o", "x", "--columns", "qid=q"],
    "semicolons": [*INGEST, "semicolons.csv", "-o", "x", "--delimiter", ","],
    "pipes": [*INGEST, "pipes.csv", "-o", "x", "--delimiter", ","],
    "tabs": [*INGEST, "tabs.csv", "-o", "x", "--delimiter", ","],
    "LETOR text under another name": [*INGEST, "letor.csv", "-o", "x"],
    "grades in words": [*INGEST, "words.csv", "-o", "x"],
    "negative grades": [*INGEST, "negative.csv", "-o", "x"],
    "negative grades in the map": [*INGEST, "words.csv", "-o", "x", "--grades", "good=1,bad=-1"],
    "rows without a grade": [*INGEST, "holes.csv", "-o", "x", "--unjudged", "reject"],
    "decimal commas": [*INGEST, "commas.csv", "-o", "x"],
    "rare cells": [*INGEST, "rare.csv", "-o", "x"],
    "features from 0": [*INGEST, "zero.txt", "-o", "x"],
    "dates": [*INGEST, "dates.csv", "-o", "x"],
    "many mistakes": [*INGEST, "messy.csv", "-o", "x"],
    "no grades": [*INGEST, "ungraded.csv", "-o", "x", "--columns", "grade="],
    "qrels of unknown names": [*INGEST, "ungraded.csv", "-o", "x", "--qrels", "beir.tsv"],
    "judgments that differ": [*INGEST, "features.csv", "-o", "x", "--qrels", "conflict.qrels"],
    "a dataset exists": [*INGEST, "good.csv", "-o", "bare"],
    "a dataset as input": [*INGEST, "d", "-o", "x"],
    "no bins": ["train", "bare", "--name", "new", "--n-rounds", "2"],
    "a file as dataset": ["data", "bin", "good.csv"],
    "no dataset": ["data", "bin", "nothing"],
    "a dataset in place of a model": ["models", "gate", "d", "--on", "base@2"],
    "no production": ["rerank", "features.csv", "--model", "base", "-o", "y.csv"],
    "a protected alias": ["models", "promote", "base@1"],
    "an output exists": ["rerank", "features.csv", "--model", "base@1", "-o", "list.csv"],
    "a model without its option": ["evaluate", "good.csv", "base@1"],
    "evaluate a dataset without a model": ["evaluate", "d", "--split", "test"],
    "complete without judgments": ["evaluate", "list.csv", "--complete"],
    "a file that is no model": ["inspect", "influence", "junk.rankmill"],
    "candidates of unknown grades": ["evaluate", "wordgrades.csv", "--model", "base@1"],
    "no list of a log": ["clicks", "describe", "clicks.csv"],
    "no position of a log": ["clicks", "describe", "log.csv"],
    "a tag without a model": ["models", "list", "--all"],
    "rows without the ids of judgments": [*INGEST, "noids.csv", "-o", "x", "--qrels", "noids.qrels"],
    "amounts as grades": [*INGEST, "amounts.csv", "-o", "x"],
    "labels beside grades": [*INGEST, "features.csv", "-o", "x", "--qrels", "labels.csv", "--qrels", "grades.csv"],
    "a majority of labels": [*INGEST, "features.csv", "-o", "x", "--qrels", "labels.csv", "--aggregate", "majority"],
    "words and a column of text": [*INGEST, "words2.csv", "-o", "x"],
    "an empty registry": ["models", "list", "--registry", "empty"],
    "a model of an empty registry": ["rerank", "features.csv", "--model", "base", "-o", "y3.csv", "--registry", "empty"],
    "a protection without an alias": ["models", "alias", "base", "--protect"],
    "an alias has moved": ["models", "promote", "base@1", "--expect", "7", "--force"],
    "nothing to roll back to": ["models", "rollback", "plain"],
    "a run of another tool": ["evaluate", "list.run", "--model", "base@1"],
    "an option that cannot vary": ["tune", "d", "-o", "tuned", "--vary", "nonsense=1..2"],
    "the end of a run": ["run", "run.toml"],
    "the end of another run": ["run", "again.toml"],
    "layers of trees": ["train", "d", "--name", "wide", "--layers", "4", "--epochs", "1"],
    "pairs are missing": ["train", "d", "--name", "new", "--n-rounds", "2", "--learn-from", "pairs"],
}  # fmt: skip
NAMES = {  # what stands for NAME
    "a role without a column": "a",
    "no list of a log": "visit_no",
    "no position of a log": "place_",
    "qrels of unknown names": "page",
    "a tag without a model": "base",
    "rows without the ids of judgments": "page",
    "amounts as grades": "grade",
    "an empty registry": "fresh",
    "a model of an empty registry": "fresh",
}
NOT_FOLLOWED = {  # command lines for another file or folder than one that is there
    "no dataset": "the sources are the user's",
    "a file that is no model": "the file is of no tool",
}
GATED = {11}  # a gate that is not passed has run
said_in = {}


def answer(words, capfd, folder):
    """Run ``words`` and return the code and what was said."""
    for left in ("x", "good.dataset"):
        shutil.rmtree(folder / left, ignore_errors=True)
    code = execute(words)
    reported = capfd.readouterr()
    return code, reported.err + ("" if code else reported.out)


@pytest.mark.parametrize("situation", ROWS)
def test_every_cure_of_the_message_works(work, monkeypatch, capfd, situation):
    monkeypatch.chdir(work)
    monkeypatch.setenv("RANKMILL_REGISTRY", str(work / "registry"))
    words = ROWS[situation]
    _, said = answer(words, capfd, work)
    cures = cures_of(said)
    assert cures, said
    said_in[situation] = (said, len(cures))
    for kind, given in cures:
        blanks = BLANKS | {"NAME": NAMES.get(situation, "a" if kind == "option" else "base@1")}
        cure = [word.replace("=?", "=1") for word in filled(given, blanks)]
        kept = list(words)
        if cure[0] in words and cure[0] not in {"--columns", "--ignore", "--categorical"}:  # in place of its value
            place = words.index(cure[0])
            kept[place : place + 2] = []
        again = cure if kind == "command" else [*kept, *cure]
        code, now = answer(again, capfd, work)
        for wrong in ("Traceback", "unknown option", "unknown command", "invalid value"):
            assert wrong not in now, (again, now)
        if code and situation not in NOT_FOLLOWED and not (cure[1:2] == ["gate"] and code in GATED):
            fault = re.sub(r"\(\d+\) ", "", said.removeprefix("rankmill: ").partition(";")[0].splitlines()[-1])
            assert situation in SEVERAL, (again, now)  # the next mistake is named
            assert fault not in now, (again, now)


SEVERAL = {
    "many mistakes", "no grades", "a role that could be two columns", "dates", "candidates of unknown grades",
    "no list of a log",
    "no position of a log", "amounts as grades", "words and a column of text", "nothing to roll back to",
}  # fmt: skip

EVIL = [
    "--overwrite", "-o", "a;touch x", "$(touch x)", "`touch x`", "emb[0]", "emb*", "price, $", "a,b", "# qid", "it's",
    'say "hi"',
    "tab\there", "ünïcode 日本", "a=b", "back\\slash", "!x", "~", "x y", "&", "\x1b[31mred", "z\u202ebidi", "{a,b}",
    "<x>", "%s", "NAME",
]  # fmt: skip


def table_with(folder, name, rows):
    path = folder / "evil.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["qid", "grade", "emb0", "price", "b", name], *rows])
    return path


@pytest.mark.parametrize("name", EVIL[::2])
def test_a_name_in_a_cure_is_the_column_and_nothing_else(tmp_path, monkeypatch, capfd, name):
    monkeypatch.chdir(tmp_path)
    table_with(tmp_path, name, [[1, 1, 5, 1, 2, "foo"], [1, 0, 6, 2, 3, "bar"]])
    words = ["data", "ingest", "evil.csv", "-o", "x"]
    _, said = answer(words, capfd, tmp_path)
    cures = [cure for kind, cure in cures_of(said[said.index("; correct it") :]) if cure[0] != "--max-rejects"]
    assert len(cures) == 2, said
    for cure in cures:
        assert answer([*words, *cure], capfd, tmp_path)[0] == 0, cure
        manifest = Dataset.open(Path("x")).manifest
        ignored = cure[0].startswith("--ignore")
        assert [*manifest.features] == ["emb0", "price", "b", *([] if ignored else [name])]
        assert manifest.categorical == ([] if ignored else [name])
    assert {path.name for path in tmp_path.iterdir()} == {"evil.csv", "x"}


@pytest.mark.parametrize("name", EVIL[1::4])
def test_a_name_in_a_role_is_the_column(tmp_path, monkeypatch, capfd, name):
    monkeypatch.chdir(tmp_path)
    given = f"{name} grad"
    with Path("evil.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["qid", given, "a"], [1, 1, 2], [1, 0, 3]])
    words = ["data", "ingest", "evil.csv", "-o", "x"]
    with spelled_for("command line"):
        cure = words_of_shell(spelled_with("columns", {"grade": given}))
    assert answer([*words, *cure], capfd, tmp_path)[0] == 0
    assert [*Dataset.open(Path("x")).manifest.features] == ["a"]


def test_cures_are_spelled_as_python_and_as_toml_where_options_are_written_so():
    for name in (*EVIL, "line\nend"):
        meant = {"ignore": [name], "columns": {"qid": name}}
        assert eval(f"dict({', '.join(spelled_with(*option) for option in meant.items())})") == meant
        with spelled_for("file"):
            assert tomllib.loads("\n".join(spelled_with(*option) for option in meant.items())) == meant
        assert words_of_shell(shell_word(name)) == [name]


def test_the_error_of_python_is_cured_in_python(tmp_path):
    source = table_with(tmp_path, "price, $", [[1, 1, 5, 1, 2, "foo"], [1, 0, 6, 2, 3, "bar"]])
    with pytest.raises(DataRejected) as caught:
        ingest([source], tmp_path / "x")
    options = dict(re.findall(r"(ignore|categorical)=(\[.*?\])", str(caught.value)))
    assert options.keys() == {"ignore", "categorical"}
    for option, value in options.items():
        read = ReadOptions(**{option: tuple(ast.literal_eval(value))})
        ingest([source], tmp_path / option, options=IngestOptions(read=read))


@pytest.mark.parametrize("name", ["a;touch x", "-o", "it's"])
def test_a_path_in_a_command_line_is_the_path(tmp_path, monkeypatch, capfd, name):
    monkeypatch.chdir(tmp_path)
    table_with(tmp_path, "t", [[1, 1, 5, 1, 2, 3], [1, 0, 6, 2, 3, 4]])
    assert execute(["data", "ingest", "evil.csv", "-o", f"./{name}"]) == 0
    capfd.readouterr()
    _, said = answer(["train", f"./{name}", "--name", "m"], capfd, tmp_path)
    ((kind, cure),) = cures_of(said)
    assert kind == "command"
    assert answer(cure, capfd, tmp_path)[0] == 0
    assert Dataset.open(Path(name)).manifest.bins
    assert {path.name for path in tmp_path.iterdir()} <= {"evil.csv", name, "registry-data"}


def test_an_exact_name_comes_before_a_comma():
    for texts, known, names in (
        (["emb[0]"], ["emb[0]", "emb0"], ("emb[0]",)),
        (["price, $"], ["price", "price, $"], ("price, $",)),
        (["price, $,a"], ["price, $", "a"], ("price, $", "a")),
        (["a,b,c"], ["a,b", "b,c", "c"], ("a,b", "c")),
        (["a,b"], ["a", "b"], ("a", "b")),
        ([" a , b_* "], ["a"], ("a", "b_*")),
        (["a,", "b"], ["a,", "b"], ("a,", "b")),
        ([",".join(MANY)], MANY, tuple(MANY)),
    ):
        assert named(texts, known) == names


MANY = [f"f{n}" for n in range(20_000)]
_SHOWING = {"spelled_with", "command", "shell_line"}
_LINE = re.compile(rf"rankmill (?:{_COMMANDS})\b")
_ELSEWHERE = {  # files whose texts are no messages
    "foundation/cures.py", "rankmill/demo.py", "rankmill/clicks/demo.py", "rankmill/reference/options.py",
    "rankmill/reference/pages.py",
    "rankmill/report/provenance.py", "rankmill/warm.py",
}  # fmt: skip
NOT_RUN = {
    ("trainer/rounds/round_metrics.py", "cannot decide when to stop"): "objectives/test_objective_errors.py runs it in Python",
    ("pipeline/read/columns.py", "is a key of the folders"): "pipeline/read/test_containers.py reads keys by such options",
    ("pipeline/read/made_columns.py", "lists of one length"): "pipeline/read/test_containers.py leaves out such a column",
    ("rankmill/python/loading.py", "models register"): "names a command, in Python",
    ("registry/archive.py", "--move-aliases"): "needs a bundle of another registry: tests/registry/test_cli.py",
    ("rankmill/cli.py", "Get started"): "the first steps, which the pages run",
    ("rankmill/python/ranker.py", "features are selected"): "names a command, in Python",
    ("rankmill/python/ranker.py", "measures the importance"): "names a command, in Python",
    ("pipeline/dataset/dataset.py", "a Dataset is a folder"): "names a command, in Python",
    ("rankmill/run/gate_stages.py", "rankmill run"): "the author of an entry of the log",
    ("rankmill/run/model_stages.py", "rankmill run"): "the author of an entry of the log",
    ("rankmill/run/gate_stages.py", "promotes it again"): "as the promotion of a protected alias, above",
    ("rankmill/report/subject.py", "rankmill run"): "names the command that writes a work folder",
    ("rankmill/gate/gate_rules.py", "choose another"): "a policy that only another version can write",
    ("registry/model_registry.py", "create one with"): "names a command, in Python",
    ("registry/model_registry.py", "to change it for one model"): "names a command",
    ("registry/cli.py", "older versions"): "needs more versions than are listed",
    ("registry/cli.py", "no alias of"): "needs a registry without protection; the promotion as of a protected alias",
    ("registry/cli_options.py", "or create it"): "as of an empty registry, above",
    ("registry/promotion.py", "lists them"): "needs an alias that was rolled back: tests/registry/test_promotion.py",
    ("registry/blob_store.py", "models copy"): "needs a registry copied between a disk and a bucket: tests/cloud",
    ("registry/storage.py", "models log"): "needs a failing disk: tests/registry",
    ("pipeline/bins/vocabulary.py", "too different"): "needs more categories than fit: pipeline/bins/test_categories.py",
    ("rankmill/clicks/interleaving.py", "clicks interleave"): "names a command",
    ("scorer/exchange/formats.py", "models merge"): "names a command",
    ("rankmill/clicks/read_log.py", "policies"): "needs a log of many policies: clicks/test_click_logs.py",
    ("rankmill/clicks/read_log.py", "all files of a log"): "needs several files: clicks/test_click_logs.py",
    ("rankmill/clicks/sorted_log.py", "several lists of a query"): "needs contradictory lists: the same tests",
}  # fmt: skip


def templates():
    """Yield the place, and the text with a NUL for each value, of all texts in the sources that print an option with a
    value or a command."""
    for top in ("foundation", "pipeline", "rankmill", "registry", "scorer", "trainer"):
        for path in sorted((ROOT / top).glob("**/*.py")):
            place = str(path.relative_to(ROOT))
            if place in _ELSEWHERE or place.startswith(
                tuple(f"rankmill/{each}/" for each in ("foundation", "pipeline", "registry", "scorer", "trainer"))
            ):
                continue
            source = path.read_text(encoding="utf-8")
            if not _LINE.search(source) and not any(name in source for name in _SHOWING):
                continue
            tree, skipped = ast.parse(source), set()
            for node in ast.walk(tree):
                if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                    skipped.add(id(node.value))
                elif isinstance(node, ast.keyword) and node.arg in {"help", "metavar", "options_metavar"}:
                    skipped.update(map(id, ast.walk(node.value)))
                elif isinstance(node, ast.JoinedStr):
                    skipped.update(id(part) for part in node.values if isinstance(part, ast.Constant))
            for node in (node for node in ast.walk(tree) if id(node) not in skipped):
                if isinstance(node, ast.JoinedStr):
                    calls = (part for value in node.values for part in ast.walk(value) if isinstance(part, ast.Call))
                    shows = any(isinstance(call.func, ast.Name) and call.func.id in _SHOWING for call in calls)
                    text = "".join(part.value if isinstance(part, ast.Constant) else "\0" for part in node.values)
                    if shows or _LINE.search(text):
                        yield place, text
                elif isinstance(node, ast.Constant) and isinstance(node.value, str) and _LINE.search(node.value):
                    yield place, node.value


def test_every_message_with_a_cure_is_in_the_table():
    """Texts with an option and its value, or a command line; texts that name an option alone are not run here."""
    if len(said_in) < len(ROWS):
        pytest.skip("needs the messages of all rows: run the whole file in one process")
    reported = "\n".join(said for said, _ in said_in.values())
    missing, texts = [], list(templates())
    for place, text in texts:
        form = ".*".join(map(re.escape, text.split("\0")))
        if not re.search(form, reported) and not any(place == at and part in text for at, part in NOT_RUN):
            missing.append((place, text.replace("\0", "{}")))
    print("\n".join(map(str, missing)))
    assert not missing, f"no row of ROWS prints {len(missing)} texts: add one, or name it in NOT_RUN with a reason"
    unused = [key for key in NOT_RUN if not any(key[0] == place and key[1] in text for place, text in texts)]
    assert not unused, unused


LEAVE_OUT = {  # commands with an option that the message says to leave out
    "a cluster for a list": ["evaluate", "graded.csv", "--cluster", "local:2"],
    "a cluster for a net": ["cv", "kept", "--model", "net", "--epochs", "1", "--folds", "2", "--cluster", "local:2"],
    "seeds of a net": ["train", "kept", "--name", "net", "--model", "net", "--epochs", "1", "--seeds", "1,2"],
    "features of a table": [*INGEST, "good.csv", "-o", "x", "--n-features", "9"],
    "a prefix without splits": [*INGEST, "good.csv", "-o", "x", "--split-prefix", "q"],
    "extra trees with ole": ["train", "kept", "--name", "left", *QUICK, "--criterion", "ole", "--extra-trees"],
    "an estimate for a net": ["train", "kept", "--name", "net", "--model", "net", "--epochs", "1", "--max-leaves", "4"],
}  # fmt: skip


@pytest.mark.parametrize("situation", LEAVE_OUT)
def test_a_command_without_the_option_that_its_message_leaves_out_is_not_refused(work, monkeypatch, capfd, situation):
    monkeypatch.chdir(work)
    monkeypatch.setenv("RANKMILL_REGISTRY", str(work / "registry"))
    words = LEAVE_OUT[situation]
    code, said = answer(words, capfd, work)
    assert code, said
    named = re.search(r"(--[a-z-]+)[^;]*;.*leave (?:it|(--[a-z-]+)) out|leave out (--[a-z-]+)", said)
    assert named, said
    flag = next(each for each in named.groups()[::-1] if each)
    at = words.index(flag)
    ends = next((i for i in range(at + 1, len(words)) if words[i].startswith("-")), len(words))
    code, now = answer([*words[:at], *words[ends:]], capfd, work)
    assert code == 0, now
