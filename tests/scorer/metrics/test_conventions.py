"""Conventions of other tools: against the tools where they are installed, else by hand from their definitions.

Scores are exact in float32, for XGBoost and trec_eval keep no more; trec_eval itself is in test_metrics_peers.
"""

import importlib
import json
import math

import numpy as np
import pyarrow as pa
import pytest

from rankmill.foundation.errors import InputError
from rankmill.foundation.options import values_of
from rankmill.scorer.evaluate.evaluate import evaluate
from rankmill.scorer.metrics import Metric, Policy, parse_metric
from rankmill.scorer.metrics.conventions import CONVENTIONS, as_convention, named_convention
from rankmill.scorer.metrics.per_query import evaluate_queries, mean_of
from tests.refusals import refused

DRAWS = 4


def value(name, convention, grades, scores, sizes=None, **more):
    """Mean of one metric under a convention, over queries of these sizes (one, by default)."""
    metric = parse_metric(name)
    more = {"doc_order": np.arange(len(grades))} | more
    starts = np.cumsum([0, *(sizes if sizes is not None else [len(grades)])])
    values = evaluate_queries(
        [metric], np.array(scores, float), np.array(grades, np.int32), starts, convention.policy_for(metric), **more
    )
    return mean_of(values[metric])


def loaded(name):
    """Import a peer; skip where it is not installed or its libraries are not (a slim image has no libgomp)."""
    try:
        return importlib.import_module(name)
    except (ImportError, OSError, ValueError) as error:
        pytest.skip(f"{name} cannot be loaded: {error}")


def drawn(draw, highest=4):
    """Queries of 1 to 12 documents, some with nothing relevant; scores are quarters, so that they tie now and then."""
    rng = np.random.default_rng(draw)
    sizes = rng.integers(1, 13, 9)
    grades = np.concatenate([rng.integers(0, (0 if rng.random() < 0.3 else highest) + 1, size) for size in sizes])
    return grades.astype(np.int32), rng.integers(-12, 12, sizes.sum()) / 4.0, sizes


@pytest.mark.parametrize("draw", range(DRAWS))
def test_lightgbm_agrees_on_ndcg_and_map(draw):
    lightgbm = loaded("lightgbm")
    grades, scores, sizes = drawn(draw)
    quiet = {"verbose": -1, "min_data_in_leaf": 1, "feature_pre_filter": False, "num_threads": 1}
    cuts = [1, 2, 3, 5, 10, 30]
    data = lightgbm.Dataset(np.zeros((len(grades), 1)), label=grades, group=sizes, init_score=scores, params=quiet)
    booster = lightgbm.Booster({"objective": "lambdarank", "metric": ["ndcg", "map"], "eval_at": cuts, **quiet}, data)
    found = {row[1]: row[2] for row in booster.eval_train()}
    assert len(found) == 2 * len(cuts)
    for name, theirs in found.items():
        assert value(name, CONVENTIONS["lightgbm"], grades, scores, sizes) == pytest.approx(theirs, abs=1e-12), name


@pytest.mark.parametrize("draw", range(DRAWS))
def test_xgboost_agrees_on_ndcg_map_and_precision(draw):
    """Its map and precision need labels 0 and 1; ``-`` is nothing relevant zero; sums are in float64, means in
    float32."""
    xgboost = loaded("xgboost")
    convention = CONVENTIONS["xgboost"]
    for highest, theirs, gain in ((4, ("ndcg",), "exp"), (4, ("ndcg",), "linear"), (1, ("ndcg", "map", "pre"), "exp")):
        grades, scores, sizes = drawn(draw, highest)
        data = xgboost.DMatrix(np.zeros((len(grades), 1)), label=grades, base_margin=scores)
        data.set_group(sizes)
        names = [f"{name}{at}{sign}" for name in theirs for at in ("@1", "@3", "@10", "") for sign in ("", "-")]
        names = [name for name in names if "@" in name or name in {"ndcg", "map"}]
        settings = {"objective": "rank:pairwise", "base_score": 0.0, "nthread": 1, "ndcg_exp_gain": gain == "exp"}
        booster = xgboost.Booster({**settings, "eval_metric": names}, [data])
        found = [float(text.rsplit(":", 1)[1]) for text in booster.eval(data).split("\t")[1:]]
        for name, theirs_value in zip(names, found, strict=True):
            rules = convention.but(gain=gain, nothing_relevant="zero" if name.endswith("-") else None)
            ours = value(name.rstrip("-").replace("pre@", "precision@"), rules, grades, scores, sizes)
            assert ours == pytest.approx(theirs_value, abs=1e-6), name


@pytest.mark.parametrize("draw", range(DRAWS))
def test_catboost_agrees_on_all_it_has(draw):
    catboost = loaded("catboost.utils")
    grades, scores, sizes = drawn(draw)
    groups = np.repeat(np.arange(len(sizes)), sizes)
    convention = CONVENTIONS["catboost"]
    names = {
        "ndcg": "NDCG:type=Base", "dcg": "DCG:type=Base", "map": "MAP", "mrr": "MRR",
        "precision": "PrecisionAt", "recall": "RecallAt",
    }  # fmt: skip
    for name, theirs in names.items():
        for k in (1, 2, 3, 5, 10, 30):
            described = f"{theirs}{';' if ':' in theirs else ':'}top={k}"
            expected = catboost.eval_metric(grades, scores, described, group_id=groups, thread_count=1)[0]
            ours = value(f"{name}@{k}", convention, grades, scores, sizes)
            assert ours == pytest.approx(expected, abs=1e-12), described
    for gain, kind in (("linear", "Base"), ("exp", "Exp")):
        expected = catboost.eval_metric(grades, scores, f"NDCG:type={kind}", group_id=groups, thread_count=1)[0]
        assert value("ndcg", convention.but(gain=gain), grades, scores, sizes) == pytest.approx(expected, abs=1e-12)
    # its ERR takes the label for the probability that a document satisfies the reader
    stops = (2.0**grades - 1) / 16
    expected = catboost.eval_metric(stops, scores, "ERR:top=5", group_id=groups, thread_count=1)[0]
    ours = value("err@5", convention.but(max_grade=4), grades, scores, sizes)
    assert ours == pytest.approx(expected, abs=1e-7)  # labels are float32 there


# ---- by hand -----------------------------------------------------------------------------------------------------

LOG3 = math.log2(3)


BY_HAND = [  # convention, metric, grades, scores (None: falling), value
    ("gdeval", "ndcg@2", [1, 0, 2], None, 1 / (3 + 1 / LOG3)),
    ("gdeval", "err@2", [1, 4, 2], None, 1 / 16 + 15 / 16 * 15 / 16 / 2),
    ("gdeval", "ndcg@20", [0, 0], None, math.nan),  # never counted
    ("gdeval", "ndcg@1", [0, 3], [1, 1], 1.0),  # the later id first
    ("ranklib", "ndcg@3", [0, 2, 1], None, (3 / LOG3 + 1 / 2) / (3 + 1 / LOG3)),
    ("ranklib", "ndcg@3", [0, 0], None, 0.0),
    ("ranklib", "err@10", [2, 4], None, 3 / 16 + 13 / 16 * 15 / 16 / 2),
    ("ranklib", "precision@5", [0, 2, 1], None, 2 / 3),
    ("ranklib", "map", [0, 2, 1], None, (1 / 2 + 2 / 3) / 2),
    ("ranklib", "mrr@10", [0, 2, 1], [0, 0, 0], 0.5),  # a stable sort
    ("letor4", "ndcg@3", [0, 2, 1, 1], None, (3 + 1 / LOG3) / (3 + 1 + 1 / LOG3)),
    ("letor4", "ndcg@4", [0, 2, 1, 1], None, (3 + 1 / LOG3 + 1 / 2) / (3 + 1 + 1 / LOG3)),
    ("letor4", "ndcg@5", [0, 2, 1, 1], None, 0.0),  # four documents
    ("letor4", "ndcg@2", [2, 1], None, 1.0),
    ("letor4", "precision@10", [0, 2, 1, 1], None, 0.3),  # the lacking ones are not relevant
    ("letor4", "map", [0, 2, 1, 1], None, (1 / 2 + 2 / 3 + 3 / 4) / 3),
    ("letor4", "map", [0, 0], None, 0.0),
    ("letor4", "ndcg@1", [1, 2], [0, 0], 1 / 3),  # as the file lists them
    ("mslr", "ndcg@3", [1, 4, 2], None, (1 + 15 + 3 / LOG3) / (15 + 3 + 1 / LOG3)),
    ("mslr", "ndcg@10", [1, 4, 2], None, (1 + 15 + 3 / LOG3) / (15 + 3 + 1 / LOG3)),
    ("mslr", "map", [1, 4, 2], None, (1 / 2 + 2 / 3) / 2),
    ("mslr", "precision@3", [1, 4, 2], None, 2 / 3),
    ("mslr", "map", [1, 0], None, 0.0),
    ("yahoo", "ndcg@10", [3, 4], None, (7 + 15 / LOG3) / (15 + 7 / LOG3)),
    ("yahoo", "err", [3, 4], None, 7 / 16 + 9 / 16 * 15 / 16 / 2),
]


def test_conventions_by_hand():
    for name, metric, grades, scores, expected in BY_HAND:
        found = value(metric, CONVENTIONS[name], grades, scores or -np.arange(len(grades)))
        assert found == pytest.approx(expected, nan_ok=True), (name, metric, grades)
    with refused(InputError, "grade 5", "max_grade 4"):
        value("err@2", CONVENTIONS["gdeval"], [5, 0], [1, 0])


# ---- a convention as a value ---------------------------------------------------------------------------------------


def test_single_options_override_a_convention_and_its_exceptions():
    convention = named_convention("catboost")
    assert convention.policy_for(Metric("ndcg")).nothing_relevant == "one"
    assert convention.policy_for(Metric("map")).nothing_relevant == "zero"
    other = convention.but(nothing_relevant="skip", gain=None, ties="pessimistic")
    assert other.exceptions == {}
    assert other.changed == ("nothing_relevant",)
    assert other.policy_for(Metric("map")).nothing_relevant == "skip"
    assert convention.but(nothing_relevant="one").changed == ("nothing_relevant",)  # it was another for map
    assert hash(convention) == hash(convention.but())
    with refused(InputError, "ties", "worst"):
        convention.but(ties="worst")
    with refused(InputError, "convention", "treceval", "trec"):
        named_convention("treceval")


def test_a_policy_is_our_convention_with_what_it_changes():
    assert as_convention(Policy(max_grade=4)).changed == ()
    assert as_convention(Policy(gain="linear")).describe().startswith("rankmill with another gain: gain linear")
    assert as_convention(CONVENTIONS["trec"]) is CONVENTIONS["trec"]


@pytest.mark.parametrize("name", CONVENTIONS)
def test_every_report_names_its_convention_and_what_it_does_not_have(name):
    rows = {"qid": ["a", "a", "b"], "doc_id": ["x", "y", "z"], "score": [1.0, 1.0, 0.0]}
    table = pa.table(rows | {"grade": pa.array([0, 2, 0], pa.int32())})
    found = evaluate(table, metrics=["ndcg@3", "map", "wta"], convention=name)
    for metric in found.metrics:
        policy = CONVENTIONS[name].policy_for(metric)
        assert found.n_counted(metric) == (1 if policy.nothing_relevant == "skip" else 2)
    text = " ".join(found.render().split())
    assert f"conventions {name}: gain" in text
    assert (f"{name} has no" in text) == (name != "rankmill")
    report = json.loads(found.to_json())
    assert report["convention"]["name"] == name
    assert report["policy"] == values_of(CONVENTIONS[name].policy)
    words = ("2 queries", "nothing relevant: 1", "a single document: 1", "one grade only: none", "tied documents 2")
    for word in words:
        assert word in text
    changed = evaluate(table, metrics=["ndcg"], convention=name, ties="optimistic", nothing_relevant="skip")
    assert changed.means[Metric("ndcg")] == 1.0
    assert "ties" in json.loads(changed.to_json())["convention"]["changed"]


def test_a_convention_of_a_scale_keeps_it_and_one_without_takes_the_data_s():
    table = pa.table({"qid": ["a"], "doc_id": ["x"], "score": [1.0], "grade": pa.array([2], pa.int32())})
    assert evaluate(table, metrics=["err"], convention="ranklib").policy.max_grade == 4
    found = evaluate(table, metrics=["err"], convention="xgboost")
    assert (found.policy.max_grade, found.convention.changed) == (2, ())
