"""``rankmill.toml``: what stands when a key is left out, and one line for every mistake, before anything is run."""

from __future__ import annotations

from dataclasses import fields

import pytest

from rankmill.config import Config
from rankmill.config_file import _keys_of, read_config, section_class
from rankmill.foundation.errors import ConfigError, InputError
from rankmill.foundation.options import values_of
from rankmill.pipeline.group.query_splits import parse_split_time
from rankmill.pipeline.options import IngestOptions
from rankmill.scorer.metrics import Policy
from rankmill.trainer.parameters import TrainParameters
from tests.refusals import refused

SMALLEST = """
[ingest]
sources = ["judgments.txt"]
{ingest}
[train]
name = "web"
{train}
{rest}
"""


def read(folder, ingest="", train="", rest="", text=SMALLEST):
    path = folder / "rankmill.toml"
    path.write_text(text.format(ingest=ingest, train=train, rest=rest) if text is SMALLEST else text, encoding="utf-8")
    return read_config(path)


def test_the_smallest_file_means_the_defaults_of_the_commands(tmp_path):
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


def test_judgments_may_come_in_files_of_their_own(tmp_path):
    config = read(tmp_path, ingest='qrels = ["qrels/*"]\naggregate = "majority"')
    assert config.ingest.qrels == ("qrels/*",)
    assert config.ingest.options == IngestOptions(aggregate="majority")
    with refused(ConfigError, "[ingest]", "aggregate", "'medain'", "'median'"):
        read(tmp_path, ingest='aggregate = "medain"')


def test_every_convention_is_a_key(tmp_path):
    policy = Policy(
        gain="table(0,1,5)", discount="letor", ties="random", ties_seed=3, nothing_relevant="one", relevant_from=2,
        max_grade=2, short_lists="zero", map_normalisation="min(R,k)", precision_normalisation="min(k,n)",
    )  # fmt: skip
    lines = [
        f"{name} = {value if isinstance(value, int) else repr(value)}" for name, value in values_of(policy).items()
    ]
    config = read(tmp_path, rest="\n".join(["[evaluate]", "convention = 'trec'", *lines]))
    assert config.evaluate.conventions == {"convention": "trec"} | values_of(policy)


def test_every_training_parameter_is_a_key(tmp_path):
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


OF_INGEST = [
    ("split = '60/20/20'", ("[ingest] split", "'60/20/20'", "{train = 0.8, test = 0.2}")),
    ("grades = 'fair=1'", ("[ingest] grades", "'fair=1'", "{good = 2, bad = 0}")),
    ("grades = ['a=1']", ("[ingest] grades", "['a=1']", "{good = 2, bad = 0}")),
    ("ignore = 'a,b'", ("[ingest] ignore", "'a,b'", '["a", "b"]')),
    ("memroy = '2GB'", ("key", "'memroy'", "'memory'", "[ingest]")),
    ("memory = 'lots'", ("2GB", "512MiB", "'lots'", "[ingest]")),
    ("memory = '1MB'", ("512MB", "1,000,000", "[ingest]", "memory")),
    ("index_base = 2", ("index_base", "2", "[ingest]", "0 .. 1")),
    ("split = {train = 0.8, vald = 0.2}", ("split", "'vald'", "'valid'", "[ingest]")),
    ("split = {train = 0.8, test = 0.1}", ("1", "0.9", "[ingest]")),
    ("folds = 5", ("[ingest]", "folds", "fold")),
    ("folds = 2\nfold = 1", ("2", "[ingest]", "3..1000", "folds")),
    ("split_time = {valid = 2026-01-01}", ("split_time", "time_column", "[ingest]")),
    ("time_column = 'seen'\nsplit_time = {valid = 2026-01-01, test = 'soon'}", ("split_time", "'soon'", "[ingest]")),
    ("format = 'letr'", ("format", "'letr'", "'letor'", "[ingest]")),
]
OF_TRAIN = [
    ("max_leafs = 3", ("key", "'max_leafs'", "'max_leaves'", "[train]")),
    ("max_leaves = '3'", ("max_leaves", "'3'", "[train]")),
    ("max_leaves = 1", ("max_leaves", "1", "[train]", "2 .. 65536")),
    ("max_leaves = true", ("max_leaves", "True", "[train]")),
    ("gain = 'expo'", ("gain", "'expo'", "'exp'", "[train]")),
    ("stop_metric = 'ncdg@10'", ("metric", "train.stop_metric", "'ncdg'", "'ndcg'")),
    ("eval_metrics = ['ncdg']", ("metric", "train.eval_metrics", "'ncdg'", "'ndcg'")),
    ("histogram_memory = 'x'", ("histogram_memory", "2GB", "512MiB", "'x'", "[train]")),
    ("monotone = {f1 = 2}", ("monotone['f1']", "-1, 0", "1", "2", "[train]", "monotone")),
    ("monotone = {f1 = 'up'}", ("train.monotone.f1", "'up'")),
    ("seed = 2024-01-01", ("'2024-01-01'", "[train]", "seed")),
]
OF_OTHERS = [
    ("[ingst]", ("key", "'ingst'", "'ingest'")),
    ("[evaluate]\nmetrics = []", "evaluate.metrics"),
    ("[evaluate]\nmetrics = 'ndcg'", ("[evaluate] metrics", "'ndcg'", '["ndcg"]')),
    ("[evaluate]\nmetrics = ['ndgc@10']", ("metric", "evaluate.metrics", "'ndgc'", "'ndcg'")),
    ("[evaluate]\nrelevant_from = 0", ("relevant_from", "1", "0", "[evaluate]")),
    ("[evaluate]\nconvention = 'trek'", ("convention", "'trek'", "'trec'", "[evaluate]")),
    ("[evaluate]\nshort = 'zero'", ("key", "'short'", "'short_lists'", "[evaluate]")),
    ("[rerank]\nout = 'x'", ("rerank.candidates", "missing")),
    ("[rerank]\ncandidates = ['a']\nmemory = '1MB'", ("512MB", "1,000,000", "[rerank]", "memory")),
    ("[promote]\nalias = '7'", ("promote.alias", "'7'", "digits")),
    ("[gate]\nmetric = 'ncdg'", ("metric", "gate.metric", "'ncdg'", "'ndcg'")),
    ("[gate]\nmargin = -1", ("0", "-1.0", "[gate]", "margin")),
    ("[gate]\nsplit = 'train'", ("gate.split", "'train'", "'test'", "'valid'")),
    ("[gate]\nmax_ratio = 2", ("key", "'max_ratio'", "'max_cost_ratio'", "[gate]")),
    ("[drift]\nagainst = ''", ("drift.against", "''")),
    ("[gate]\n[promote]", ("[promote]", "[gate]", "production")),
]


def test_a_mistake_is_one_line_with_file_and_key(tmp_path):
    for where, rows in (("ingest", OF_INGEST), ("train", OF_TRAIN), ("rest", OF_OTHERS)):
        for text, facts in rows:
            with refused(ConfigError, tmp_path / "rankmill.toml", facts):
                read(tmp_path, **{where: text})


def test_a_cluster_is_that_of_all_stages_that_have_no_other(tmp_path):
    def clusters(config):
        assert config.rerank is not None
        return [config.ingest.options.cluster, config.bin.options.cluster, config.rerank.options.cluster]

    candidates, here = '[rerank]\ncandidates = ["c.txt"]\n', '[cluster]\naddress = "local:2"\n'
    assert clusters(read(tmp_path, rest=candidates)) == [None] * 3
    assert clusters(read(tmp_path, rest=candidates + here)) == ["local:2"] * 3
    some = read(tmp_path, rest=f'{candidates}cluster = "tcp://a:1"\n{here}stages = ["rerank", "bin"]')
    assert clusters(some) == [None, "local:2", "tcp://a:1"]
    assert read(tmp_path, rest=here).rerank is None
    assert read(tmp_path, rest=here).train.where.cluster is None
    assert read(tmp_path, rest=here + 'stages = ["train"]').train.where.cluster == "local:2"
    with refused(ConfigError, "cluster", "net"):
        read(tmp_path, train='model = "net"', rest=here + 'stages = ["train"]')
    for wrong, words in (
        ('address = "local"', ("[cluster] address", "local:N", "'local'")),
        ('address = "local:2"\nstages = ["trian"]', ("cluster.stages", "'trian'")),
        ("", ("cluster.address", "missing")),
    ):
        with refused(ConfigError, *words):
            read(tmp_path, rest=f"[cluster]\n{wrong}")


def test_lists_are_not_put_where_something_else_of_the_run_is(tmp_path):
    rerank = '[rerank]\ncandidates = ["c.txt"]\nout = "OUT"'
    for out in ("", ".", "dataset", "stages/x", "./report", ".ranked", "a/../model"):
        with refused(ConfigError, "rankmill.toml", "[rerank] out", "work folder"):
            read(tmp_path, rest=rerank.replace("OUT", out))
    for out, inside in (("a/b", True), ("/a", False), ("../a", False), ("a/../../b", False)):
        section = read(tmp_path, rest=rerank.replace("OUT", out)).rerank
        assert section is not None
        assert section.in_work is inside


def test_a_broken_file_is_one_line(tmp_path):
    for text, message in (
        ("", ("[ingest]", "missing")),
        ("ingest = 3", ("ingest", "3", "{name = value}")),
        ("[ingest]\nsources = = 3", ":2:11"),
        ("[ingest]\nsources = ['a']\nsources = ['b']", (":3:16", "sources", "twice")),
        ("[train]\nname = 'a'\n[train]", (":3:7", "[train]", "twice")),
        ("[ingest]\nsources = 'a, b'", ("[ingest] sources", '["a", "b"]', "'a, b'")),
        ("[ingest]\nsorces = ['a']\n[train]\nname = 'a'", ("key", "'sorces'", "'sources'", "[ingest]")),
    ):
        with refused(ConfigError, tmp_path / "rankmill.toml", message):
            read(tmp_path, text=text)


def test_dates_of_the_file_are_those_of_the_command(tmp_path):
    for written in ("2026-01-01", "'2026-01-01'", "2026-01-01T02:00:00+02:00", "2026-01-01T00:00:00"):
        config = read(tmp_path, ingest=f"time_column = 'seen'\nsplit_time = {{valid = {written}, test = 2026-02-01}}")
        assert config.ingest.options.split_time == parse_split_time("valid=2026-01-01,test=2026-02-01")


def test_a_file_that_is_not_there_or_not_text(tmp_path):
    with refused(InputError, "no.toml", "no such file"):
        read_config(tmp_path / "no.toml")
    with pytest.raises(InputError, match="no such file"):
        read_config(tmp_path)
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"bytes\.toml: expected UTF-8 text"):
        read_config(tmp_path / "bytes.toml")


def test_metrics_name_goals_of_the_ingest(tmp_path):
    ingest, gate = 'goals = ["bought"]', '[gate]\nmargin = 0.01\nalso = {"ndcg@10:bought" = 0.005}'
    config = read(tmp_path, ingest, 'stop_metric = "map:bought"', gate)
    assert config.ingest.options.read.goals == ("bought",)
    assert config.gate is not None
    assert config.gate.options.also == {"ndcg@10:bought": 0.005}
    assert read(tmp_path, ingest, 'goals = {bought = 0.5}\nstop_metric = "map:goals"').train.parameters.goals
    for lines in (
        {"rest": '[evaluate]\nmetrics = ["ndcg@10:sold"]'},
        {"rest": '[gate]\nalso = {"ndcg@10:sold" = 0.1}'},
        {"rest": '[gate]\nmetric = "ndcg@10:sold"'},
        {"train": 'stop_metric = "ndcg@10:sold"'},
        {"train": 'eval_metrics = ["ndcg@10:sold"]'},
    ):
        with refused(ConfigError, "ndcg@10:sold", "bought"):
            read(tmp_path, ingest, **lines)
    with refused(ConfigError, "evaluate.metrics", "map:goals", "training"):
        read(tmp_path, ingest, rest='[evaluate]\nmetrics = ["map:goals"]')
    with refused(ConfigError, "[ingest]", "goals", "list"):
        read(tmp_path, 'goals = "bought"')


NEEDED: dict[str, str] = {
    "ingest": 'sources = ["a"]',
    "train": 'name = "m"',
    "clicks": 'sources = ["c"]',
    "blend": 'name = "b"\nmodels = ["x"]',
    "rerank": 'candidates = ["c"]',
    "cluster": 'address = "local:2"',
}


@pytest.mark.parametrize("value", ["{x = [{y = 1}]}", "-1e9"])
def test_a_wrong_value_of_any_key_is_refused_by_section_and_key(tmp_path, value):
    path = tmp_path / "rankmill.toml"
    sections = [each.name for each in fields(Config) if section_class(each.name) is not None]
    for section, key in ((name, key) for name in sections for key in (*_keys_of([name]), "unknown")):
        tables = {name: NEEDED.get(name, "") for name in ("ingest", "train", section)}
        needed = [line for line in tables[section].splitlines() if not line.startswith(f"{key} =")]
        tables[section] = "\n".join([*needed, f"{key} = {value}"])
        path.write_text("".join(f"[{name}]\n{text}\n" for name, text in tables.items()), encoding="utf-8")
        try:
            read_config(path)
        except ConfigError as error:
            said = str(error).removeprefix(str(path))
            assert "\n" not in said, said
            assert f"[{section}]" in said or f"{section}." in said, (key, said)
            assert key in said, said
        else:
            assert key != "unknown"
