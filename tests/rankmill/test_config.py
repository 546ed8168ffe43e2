"""``rankmill.toml``: what stands when a key is left out, and one line for every mistake, before anything is run."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankmill.config import Config, DriftSection, Tell
from rankmill.config_file import read_config
from rankmill.foundation.errors import ConfigError, InputError
from rankmill.foundation.options import values_of
from rankmill.pipeline.grouping.query_splits import parse_split_time
from rankmill.pipeline.options import IngestOptions
from rankmill.run.observers import Files, files_of
from rankmill.scorer.metrics import Policy
from rankmill.trainer.parameters import TrainParameters
from tests.refusals import refused

ROOT = Path(__file__).resolve().parents[2]

SMALLEST = """
[ingest]
sources = ["judgments.txt"]
{ingest}
[train]
name = "web"
{train}
{rest}
"""


def read(folder: Path, ingest: str = "", train: str = "", rest: str = "", text: str = SMALLEST) -> Config:
    path = folder / "rankmill.toml"
    path.write_text(text.format(ingest=ingest, train=train, rest=rest) if text is SMALLEST else text, encoding="utf-8")
    return read_config(path)


def test_the_smallest_file_means_the_defaults_of_the_commands(tmp_path: Path) -> None:
    config = read(tmp_path)
    assert config.ingest.sources == ("judgments.txt",)
    assert config.train.parameters == TrainParameters()
    assert config.ingest.options == IngestOptions()
    assert config.bin.options.max_bin == 255
    assert config.evaluate.conventions == {"convention": "rankmill"}
    assert config.promote is None
    assert config.gate is None
    assert config.rerank is None
    assert config.drift is None
    assert config.tell == Tell(log=None, lineage=None, prometheus=None, keep="16MB")


def test_the_run_is_told_of_in_its_work_folder_unless_somebody_says_where(tmp_path: Path) -> None:
    work = tmp_path / "work"
    found = files_of(read(tmp_path), tmp_path)
    assert found == Files(log=work / "log.jsonl", lineage=work / "lineage.jsonl", prometheus=work / "metrics.prom")
    elsewhere = '[tell]\nlog = ""\nlineage = "../l.jsonl"\nprometheus = "/metrics.d"\nkeep = "1MB"'
    found = files_of(read(tmp_path, rest=elsewhere), tmp_path)
    assert found == Files(log=None, lineage=tmp_path / "../l.jsonl", prometheus=Path("/metrics.d/rankmill_web.prom"))
    assert files_of(read(tmp_path, rest='[tell]\nprometheus = "m.prom"'), tmp_path).prometheus == tmp_path / "m.prom"


def test_drift_is_against_the_previous_dataset_unless_another_is_named(tmp_path: Path) -> None:
    assert read(tmp_path, rest="[drift]").drift == DriftSection(against="previous", stop=False)
    assert read(tmp_path, rest='[drift]\nagainst = "old"\nstop = true').drift == DriftSection(against="old", stop=True)


def test_judgments_may_come_in_files_of_their_own(tmp_path: Path) -> None:
    config = read(tmp_path, ingest='qrels = ["qrels/*"]\naggregate = "majority"')
    assert config.ingest.qrels == ("qrels/*",)
    assert config.ingest.options == IngestOptions(aggregate="majority")
    with refused(ConfigError, "[ingest]", "aggregate", "'medain'", "'median'"):
        read(tmp_path, ingest='aggregate = "medain"')


def test_every_convention_is_a_key(tmp_path: Path) -> None:
    policy = Policy(
        gain="table(0,1,5)", discount="letor", ties="random", ties_seed=3, nothing_relevant="one", relevant_from=2,
        max_grade=2, short_lists="zero", map_normalisation="hits", precision_normalisation="min(k,n)",
    )  # fmt: skip
    lines = [
        f"{name} = {value if isinstance(value, int) else repr(value)}" for name, value in values_of(policy).items()
    ]
    config = read(tmp_path, rest="\n".join(["[evaluate]", "convention = 'trec'", *lines]))
    assert config.evaluate.conventions == {"convention": "trec"} | values_of(policy)


def test_every_training_parameter_is_a_key(tmp_path: Path) -> None:
    text = """
        metric = "ndcg@5"
        n_rounds = 3
        learning_rate = 1
        lambda_normalisation = false
        max_leaves = 7
        grow = "breadth_first"
        monotone = {bm25 = 1, "age.days" = -1}
        feature_fraction = 0.5
        n_threads = 2
        eval_metrics = ["map", "err@5"]
        histogram_memory = "64MiB"
    """
    config = read(tmp_path, train=text)
    expected = TrainParameters(
        metric="ndcg@5", n_rounds=3, learning_rate=1.0, lambda_normalisation=False, max_leaves=7, grow="breadth_first",
        monotone={"bm25": 1, "age.days": -1}, feature_fraction=0.5,
    )  # fmt: skip
    assert config.train.parameters == expected
    assert config.train.machine.n_threads == 2
    assert config.train.machine.eval_metrics == ["map", "err@5"]
    assert config.train.machine.histogram_memory == 64 * 2**20


@pytest.mark.parametrize(
    ("where", "text", "message"),
    [
        ("ingest", "split = '60/20/20'", "ingest.split: expected a table, such as { NAME = VALUE }, found '60/20/20'"),
        ("ingest", "grades = 'fair=1'", "ingest.grades: expected a table, such as { NAME = VALUE }, found 'fair=1'"),
        ("ingest", "grades = ['a=1']", "ingest.grades: expected a table, such as { NAME = VALUE }, found ['a=1']"),
        ("ingest", "ignore = 'a,b'", "ingest.ignore: expected a list, such as [VALUE], found 'a,b'"),
        ("train", "max_leafs = 3", "unknown key 'max_leafs' in [train]; did you mean 'max_leaves'?"),
        ("train", "max_leaves = '3'", "[train] max_leaves must be a whole number, got '3'"),
        ("train", "max_leaves = 1", "[train] max_leaves must be in 2 .. 65536, got 1"),
        ("train", "max_leaves = true", "[train] max_leaves must be a whole number, got True"),
        ("train", "gain = 'expo'", "[train] unknown value of gain 'expo'; did you mean 'exp'?"),
        ("train", "stop_metric = 'ncdg@10'", "train.stop_metric: unknown metric 'ncdg'; did you mean 'ndcg'?"),
        ("train", "eval_metrics = ['ncdg']", "train.eval_metrics: unknown metric 'ncdg'; did you mean 'ndcg'?"),
        (
            "train",
            "histogram_memory = 'x'",
            "[train] histogram_memory: expected a size such as 2GB or 512MiB, found 'x'",
        ),
        ("train", "monotone = {f1 = 2}", "[train] monotone['f1'] must be -1, 0 or 1, got 2"),
        ("train", "monotone = {f1 = 'up'}", "train.monotone.f1: expected a valid integer, found 'up'"),
        ("train", "grow = 'obvious'", "[train] unknown value of grow 'obvious'; did you mean 'oblivious'?"),
        ("train", "seed = 2024-01-01", "[train] seed must be a whole number, got '2024-01-01'"),
        ("ingest", "memroy = '2GB'", "unknown key 'memroy' in [ingest]; did you mean 'memory'?"),
        ("ingest", "memory = 'lots'", "[ingest] memory: expected a size such as 2GB or 512MiB, found 'lots'"),
        ("ingest", "index_base = 2", "[ingest] index_base must be in 0 .. 1, got 2"),
        ("ingest", "split = {train = 0.8, vald = 0.2}", "[ingest] unknown split 'vald'; did you mean 'valid'?"),
        (
            "ingest",
            "folds = 5",
            "[ingest] folds and fold are needed together: the number of folds, and the fold to build",
        ),
        (
            "ingest",
            "folds = 2\nfold = 1",
            "[ingest] folds must be in 3..1000, got 2: train, valid and test need one part each",
        ),
        (
            "ingest",
            "split_time = {valid = 2026-01-01}",
            "[ingest] split_time needs a column of times; name it with time_column",
        ),
        (
            "ingest",
            "time_column = 'seen'\nsplit_time = {valid = 2026-01-01, test = 'soon'}",
            "[ingest] split_time: test: expected a time such as 2026-01-31, 2026-01-31T08:30:00Z or whole seconds since 1970,"
            " found 'soon'",
        ),
        (
            "ingest",
            "format = 'letr'",
            "[ingest] unknown value of format 'letr'; did you mean 'letor'?",
        ),
        ("rest", "[ingst]", "unknown key 'ingst' in the configuration; did you mean 'ingest'?"),
        ("rest", "[evaluate]\nmetrics = []", "evaluate.metrics: expected at least one value, found none"),
        ("rest", "[evaluate]\nmetrics = 'ndcg'", "evaluate.metrics: expected a list, such as [VALUE], found 'ndcg'"),
        ("rest", "[evaluate]\nmetrics = ['ndgc@10']", "evaluate.metrics: unknown metric 'ndgc'; did you mean 'ndcg'?"),
        ("rest", "[evaluate]\nrelevant_from = 0", "[evaluate] relevant_from must be 1 or more, got 0"),
        ("rest", "[evaluate]\ngain = 'expo'", "[evaluate] unknown value of gain 'expo'; did you mean 'exp'?"),
        ("rest", "[evaluate]\nconvention = 'trek'", "[evaluate] unknown convention 'trek'; did you mean 'trec'?"),
        ("rest", "[evaluate]\nshort = 'zero'", "unknown key 'short' in [evaluate]; did you mean 'short_lists'?"),
        ("rest", "[rerank]\nout = 'x'", "rerank.candidates is missing"),
        (
            "rest",
            "[rerank]\ncandidates = ['a']\nmemory = '1MB'",
            "[rerank] memory must be at least 512MB, got 1,000,000 bytes",
        ),
        (
            "rest",
            "[promote]\nalias = '7'",
            "promote.alias: alias '7': expected 1 to 64 of a-z 0-9 . _ - that begin with a letter or digit, not digits alone",
        ),
        ("rest", "[gate]\nmetric = 'ncdg'", "gate.metric: unknown metric 'ncdg'; did you mean 'ndcg'?"),
        ("rest", "[gate]\nmargin = -1", "[gate] margin must be a number of 0 or more, got -1.0"),
        ("rest", "[gate]\nsplit = 'train'", "gate.split: found 'train', expected 'test' or 'valid'"),
        ("rest", "[gate]\nmax_ratio = 2", "unknown key 'max_ratio' in [gate]; did you mean 'max_cost_ratio'?"),
        ("rest", "[drift]\nagainst = ''", "drift.against: expected String should have at least 1 character, found ''"),
        ("rest", "[drift]\nfail = true", "unknown key 'fail' in [drift]; known: against, stop"),
        ("rest", "[tell]\nprometeus = 'x'", "unknown key 'prometeus' in [tell]; did you mean 'prometheus'?"),
        ("rest", "[tell]\nlog = false", "tell.log: expected a valid string, found False"),
        ("rest", "[tell]\nkeep = 'all'", "[tell] keep: expected a size such as 2GB or 512MiB, found 'all'"),
        ("rest", "[tell]\nkeep = '1KB'", "[tell] keep must be at least 64KB, got 1KB"),
        ("rest", "[gate]\n[promote]", "[promote] and [gate] both move production; remove [promote]"),
        ("ingest", "split = {train = 0.8, test = 0.1}", "[ingest] split: the shares must add up to 1, got 0.9"),
        ("ingest", "memory = '1MB'", "[ingest] memory must be at least 512MB, got 1,000,000 bytes"),
    ],
)
def test_a_mistake_is_one_line_with_file_and_key(tmp_path: Path, where: str, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, **{where: text})
    assert str(caught.value) == f"{tmp_path / 'rankmill.toml'}: {message}"


@pytest.mark.parametrize("out", ["", ".", "dataset", "stages/x", "./report", ".ranked", "a/../model"])
def test_lists_are_not_put_where_something_else_of_the_run_is(tmp_path: Path, out: str) -> None:
    with refused(ConfigError, "rankmill.toml", "[rerank] out", "work folder"):
        read(tmp_path, rest=f'[rerank]\ncandidates = ["c.txt"]\nout = "{out}"')


@pytest.mark.parametrize(("out", "inside"), [("a/b", True), ("/a", False), ("../a", False), ("a/../../b", False)])
def test_lists_may_lie_outside_of_the_work_folder(tmp_path: Path, out: str, inside: bool) -> None:
    section = read(tmp_path, rest=f'[rerank]\ncandidates = ["c.txt"]\nout = "{out}"').rerank
    assert section is not None
    assert section.in_work is inside


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", ": section [ingest] is missing"),
        ("ingest = 3", ": ingest: expected a table, such as { NAME = VALUE }, found 3"),
        ("[ingest]\nsources = = 3", ":2:11: Invalid value"),
        (
            "[ingest]\nsorces = ['a']\n[train]\nname = 'a'",
            ": unknown key 'sorces' in [ingest]; did you mean 'sources'?",
        ),
    ],
)
def test_a_broken_file_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text=text)
    assert str(caught.value) == f"{tmp_path / 'rankmill.toml'}{message}"


def test_dates_of_the_file_are_those_of_the_command(tmp_path: Path) -> None:
    for written in ("2026-01-01", "'2026-01-01'", "2026-01-01T02:00:00+02:00", "2026-01-01T00:00:00"):
        config = read(tmp_path, ingest=f"time_column = 'seen'\nsplit_time = {{valid = {written}, test = 2026-02-01}}")
        assert config.ingest.options.split_time == parse_split_time("valid=2026-01-01,test=2026-02-01").bounds()


def test_a_file_that_is_not_there_or_not_text(tmp_path: Path) -> None:
    with refused(InputError, "no.toml", "no such file"):
        read_config(tmp_path / "no.toml")
    with pytest.raises(InputError, match="no such file"):
        read_config(tmp_path)
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"bytes\.toml: expected UTF-8 text"):
        read_config(tmp_path / "bytes.toml")
