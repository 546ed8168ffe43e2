"""What holds for every objective that is registered, whatever it is."""

import re
import sys
from dataclasses import replace
from functools import cache
from itertools import pairwise
from types import ModuleType

import numpy as np
import pytest

from rankmill.foundation.errors import InvalidParameter
from rankmill.foundation.options import spelled_for
from rankmill.pipeline.bins.spec import BinSpec, feature_bins
from rankmill.scorer.metrics import Policy, parse_metric
from rankmill.scorer.metrics.per_query import PreparedQueries
from rankmill.trainer.data.rows import RankedRows
from rankmill.trainer.objectives.pairwise import pair_loss
from rankmill.trainer.objectives.protocol import ROWS, Learns, Leaves, Objective, Splits
from rankmill.trainer.objectives.registry import criterion_of, objective_class, objective_of
from rankmill.trainer.objectives.spelling import OBJECTIVES, canonical, class_named
from rankmill.trainer.objectives.weights import document_weights
from rankmill.trainer.team import Team, with_team
from tests import ROOT
from tests.refusals import refused
from tests.trainer.fixed import fixed
from tests.trainer.objectives.loss_cases import case, derivatives
from tests.trainer.planted import fit, planted, rows_of, small_data

NAMES = list(dict.fromkeys({where: name for name, where in reversed(OBJECTIVES.items())}.values()))
NAMES.remove("user")  # has no function of its own: test_user_objectives.py
# what grades of documents do not teach: how to rank them
NOT_FOR_GRADES = {"coxph"}
# while it averages rounds, scores alone do not determine its loss
NO_DEVIANCE = {"gbrank"}


def made(name, weights=None, **parameters):
    rows = rows_of(small_data()[0], small_data()[2], weights=weights)
    return rows, objective_of(rows, fixed(objective=name, **parameters))


def shaped(objective, rows, seed=1):
    shape = (rows.n_rows,) if objective.n_outputs == 1 else (objective.n_outputs, rows.n_rows)
    return np.random.default_rng(seed).normal(size=shape)


@pytest.mark.parametrize("name", NAMES)
def test_what_a_class_says_of_itself_fits_together(name):
    rows, objective = made(name)
    assert objective.name in OBJECTIVES
    assert objective.sums_over in {"rows", "queries"}
    assert set(objective.splits.criteria) <= {"rwse", "se", "ole"}
    assert objective.splits.criteria
    assert objective.link == "identity" or objective.n_outputs > 1 or objective.link.startswith("ordinal")
    scores = shaped(objective, rows)
    if name in NO_DEVIANCE:
        with refused(InvalidParameter, name, "deviance"):
            objective.deviance(scores)
        return
    parts = objective.losses(scores)
    assert parts.shape == ((rows.n_rows,) if objective.sums_over == "rows" else (rows.n_queries,))
    assert np.isfinite(parts).all()
    assert np.isfinite(objective.deviance(scores))
    assert np.isfinite(objective.start())
    assert type(objective).__doc__


# spellings and parameters of all objectives that are computed in different ways
CASES = [
    *((name, {}) for name in NAMES),
    *(("lambdamart", {"metric": metric}) for metric in ("err", "map@3", "concordance")),
    ("lambdamart", {"lambda_normalisation": False, "truncation": 3}),
    *((f"{name}(normalise=query)", {}) for name in ("lambdamart", "lambdaloss", "ranknet", "rankboost")),
    *((f"logistrank(leaf={leaf})", {}) for leaf in ("paper", "newton")),
    *((f"{name}(target=exp_grade)", {}) for name in ("softmax", "listnet")),
    *(("stochasticrank(samples=3)", {"metric": metric}) for metric in ("dcg@3", "err@3")),
    *(("yetirank(mode=metric)", {"metric": metric}) for metric in ("ndcg@5", "mrr@3")),
    *(
        (name, {})
        for name in (
            "ranknet(ties=true)", "quantile(alpha=0.3)", "huber(alpha=0.8)", "logistic2(balanced=true)",
            "rank_xendcg(terms=1)", "query_cross_entropy(alpha=1)", "query_cross_entropy(2, alpha=0.3)",
            "apxdcg(samples=4, exact=0)",
        )
    ),
]  # fmt: skip
OF_PAIRS = {"lambdamart", "ranknet", "rankboost", "gbrank"}
OF_LISTS = {"listnet", "softmax", "listmle", "query_cross_entropy", "rank_xendcg", "apxdcg", "stochasticrank"}
OF_DIFFERENCES = OF_LISTS | {"query_rmse", "lambdamart", "lambdaloss", "ranknet", "rankboost", "yetirank"}
BY_ROW_NUMBER = {"listmle", "rank_xendcg", "apxdcg", "stochasticrank", "yetirank"}  # draws, and the order of ties
every_case = pytest.mark.parametrize(("spelling", "parameters"), CASES, ids=str)


def first_word(spelling):
    return spelling.partition("(")[0]


def lists(spelling, seed=4, sizes=(1, 6, 9, 2, 4)):
    """Return weighted rows, with pairs if the objective learns from them, and scores for each of its outputs."""
    rows, scores = case(seed, weighted=True, given=first_word(spelling) in OF_PAIRS, sizes=sizes)
    return rows, np.round(scores * 64) / 64  # sums with 8 are exact


def all_of(spelling, parameters, rows, scores, team=None, step=3):
    """Return all that a training asks of the objective: arrays and numbers."""
    objective = objective_of(rows, fixed(objective=spelling, **parameters))
    if objective.n_outputs > 1:
        scores = np.stack([scores * factor for factor in np.linspace(1.0, -1.0, objective.n_outputs)])
    team = team or Team(1)
    g, h = derivatives(objective, scores, step=step, team=team)
    found = {"start": objective.start(), "g": g, "h": h}
    if spelling not in NO_DEVIANCE:
        found |= {"losses": objective.losses(scores), "deviance": objective.deviance(scores)}
    order = np.random.default_rng(1).permutation(rows.n_rows).astype(np.int32)
    starts = np.array([0, rows.n_rows // 2, rows.n_rows // 2 + 1, rows.n_rows - 1])
    found["steps"] = objective.leaf_steps(0, scores, Leaves(order, starts, team))
    if "ole" in objective.splits.criteria and not objective.splits.additive:
        pairs = objective.pair_hessians(step, scores, 0.05, team).copy()
        found |= {"first": pairs.first, "second": pairs.second, "hessian": pairs.hessian}
    return {name: value for name, value in found.items() if value is not None}


def differing(one, other, **tolerance):
    """Return the names of what differs, by a bit or by more than the tolerance."""
    assert one.keys() == other.keys()
    same = (lambda a, b: np.shape(a) == np.shape(b) and np.allclose(a, b, **tolerance)) if tolerance else np.array_equal
    return [name for name in one if not same(one[name], other[name])]


@pytest.fixture
def shared_out(monkeypatch):
    """Let small work be shared out as well."""
    for name in NAMES:
        class_named(name)
    for name, module in list(sys.modules.items()):
        if name.startswith("rankmill.trainer.objectives."):
            for least in filter(re.compile(r"_?LEAST\w*_(ROWS|WORK|LISTED)").fullmatch, list(vars(module))):
                monkeypatch.setattr(module, least, 1)
    monkeypatch.setattr(pair_loss, "_MOST_CELLS", 30)


@every_case
def test_a_team_changes_no_bit_and_hessians_are_no_less_than_zero(spelling, parameters, shared_out):
    rows, scores = lists(spelling, sizes=np.random.default_rng(4).integers(1, 30, size=40))
    alone = all_of(spelling, parameters, rows, scores.round(0))  # with ties
    assert all(np.isfinite(value).all() for value in alone.values())
    assert (alone["h"] >= 0.0).all()
    for size in (3,):
        together = with_team(size, lambda team: all_of(spelling, parameters, rows, scores.round(0), team))
        assert not differing(alone, together)


@every_case
def test_only_ratios_of_weights_matter(spelling, parameters):
    rows, scores = lists(spelling)
    rows = replace(rows, query_weights=np.array([1.0, 2.0, 0.0, 3.0, 2.0]))
    plain = all_of(spelling, parameters, rows, scores)
    for scale in (0.25, 2.0**1000):  # powers of two keep every bit
        scaled = replace(rows, weights=rows.weights * scale, query_weights=rows.query_weights / scale)
        assert not differing(plain, all_of(spelling, parameters, scaled, scores))
    assert not plain["g"][..., 7:16].any()  # a query of weight 0
    alike = replace(rows, weights=np.full(rows.n_rows, 3.0), query_weights=np.full(rows.n_queries, 0.5))
    without = replace(rows, weights=None, query_weights=None)
    found = [all_of(spelling, parameters, each, scores) for each in (alike, without)]
    assert not differing(*found, rtol=1e-12, atol=1e-14)


@every_case
def test_scores_far_apart_stay_finite(spelling, parameters):
    rows = RankedRows(np.array([0, 1, 3, 0, 2], np.int32), np.array([0, 5]), ())
    for scores in ([0.0, -600.0, -750.0, 40.0, -1e5], [1e6, 0.0, -1e6, -2e6, 1e6], [-800.0, 0.0, 800.0, 1600.0, 3.0]):
        found = all_of(spelling, parameters, rows, np.array(scores))
        assert all(np.isfinite(found[name]).all() for name in ("g", "h"))
        assert (found["h"] >= 0.0).all()
        if first_word(spelling) in OF_LISTS:
            assert np.isfinite(found["losses"]).all()
            assert (np.abs(found["g"]) <= 5.0).all()


@pytest.mark.parametrize(
    ("spelling", "parameters"), [each for each in CASES if first_word(each[0]) in OF_DIFFERENCES], ids=str
)
def test_gradients_of_a_query_sum_to_zero_and_ignore_a_shift(spelling, parameters):
    rows, scores = lists(spelling)
    found = all_of(spelling, parameters, rows, scores)
    if spelling not in {"query_cross_entropy", "query_cross_entropy(2, alpha=0.3)"}:  # which say how high scores are
        assert np.add.reduceat(found["g"], rows.starts[:-1]) == pytest.approx(0.0, abs=1e-12)
        assert found["start"] == found["g"][0] == found["h"][0] == 0.0  # a list of one
        shifted = all_of(spelling, parameters, rows, scores + 8.0)
        rounds = spelling.startswith(("query", "yetirank"))  # residuals round, and so does noise
        assert not differing(found, shifted, **({"rtol": 1e-9, "atol": 1e-12} if rounds else {}))


@pytest.mark.parametrize(
    ("spelling", "parameters"), [each for each in CASES if first_word(each[0]) not in BY_ROW_NUMBER], ids=str
)
def test_the_order_of_rows_in_a_query_does_not_matter(spelling, parameters):
    rows, scores = lists(spelling)
    place = np.concatenate([a + np.random.default_rng(0).permutation(b - a) for a, b in pairwise(rows.starts)])
    back = np.argsort(place)  # row i goes to place[i]
    moved = replace(rows, grades=rows.grades[back], weights=rows.weights[back])
    if rows.pairs is not None:
        better, worse = (place[of].astype(np.int32) for of in (rows.pairs.better, rows.pairs.worse))
        moved = replace(moved, pairs=replace(rows.pairs, better=better, worse=worse))
    found, other = (all_of(spelling, parameters, *each) for each in ((rows, scores), (moved, scores[back])))
    for name in ("g", "h", *(["losses"] if len(found.get("losses", ())) == rows.n_rows else [])):
        other[name] = other[name][..., place]
    kept = ("start", "g", "h", "losses", "deviance")
    found, other = ({name: of[name] for name in kept if name in of} for of in (found, other))
    assert not differing(found, other, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("name", [*NAMES, "yetirank(mode=metric)"])
def test_models_have_the_same_bytes_for_any_threads_and_after_a_resume(name, shared_out):
    searched = {} if made(name)[1].steps_a_round > 1 else {"step_search": "line"}
    way = {
        "objective": name, "metric": "err" if name == "stochasticrank" else "ndcg@10", "query_fraction": 0.5,
        "rounds_by": "oob", "early_stopping_rounds": 0, "watch": False, "learning_rate": 0.05, **searched,
    }  # fmt: skip
    whole, shared, half = (
        fit(small_data(), n_rounds=n_rounds, options={"n_threads": n}, **way)
        for n_rounds, n in ((4, 1), (4, 3), (2, 1))
    )
    resumed = fit(small_data(), n_rounds=4, options={"resume": half.forest}, **way)
    for other in (shared, resumed):
        assert other.forest.to_bytes() == whole.forest.to_bytes()
        assert other.history == whole.history


# what two classes of grades, or averages of rounds, leave unlearnt in 100 rounds
FURTHER_OFF = {
    "bernoulli": 0.08,
    "logistic2": 0.08,
    "adaboost": 0.08,
    "logistrank": 0.1,
    "query_cross_entropy": 0.08,
    "gbrank": 0.12,
}


@cache
def larger_data():
    train, valid = planted(1, 200), planted(2, 200)
    features = tuple(feature_bins(f"f{i}", train[0][:, i].copy()) for i in range(train[0].shape[1]))
    x = np.nan_to_num(valid[0].astype(np.float64))
    signal = x[:, 0] + x[:, 1] * x[:, 2]
    metric = parse_metric("ndcg@10")
    known = PreparedQueries(valid[1], valid[2], Policy()).means([metric], signal)[metric]
    return (train, valid, BinSpec(features)), known


@pytest.mark.parametrize("name", [name for name in NAMES if name not in NOT_FOR_GRADES])
def test_trees_come_near_the_planted_signal(name):
    data, known = larger_data()
    watched = {} if name in NO_DEVIANCE else {"eval_metrics": ["deviance"]}
    result = fit(
        data, objective=name, n_rounds=50, learning_rate=0.2, max_leaves=12, early_stopping_rounds=0, options=watched
    )
    first, last = result.history[0].metrics, result.history[-1].metrics
    assert last["valid"]["ndcg@10"] > known - FURTHER_OFF.get(name, 0.05)
    assert not watched or last["train"]["deviance"] < first["train"]["deviance"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("criterion", ["se", "rwse", "ole"])
def test_a_criterion_works_or_is_refused_with_a_reason(name, criterion):
    data = small_data()
    _, objective = made(name)
    parameters = fixed(objective=name, criterion=criterion)
    if criterion in objective.splits.criteria:
        assert criterion_of(objective, parameters) in {criterion, "rwse"}
        forest = fit(data, objective=name, criterion=criterion, n_rounds=1, watch=False).forest
        assert np.isfinite(forest.node_value).all()
        assert (forest.node_gain >= 0.0).all()
    else:
        with refused(InvalidParameter, "criterion", f"'{criterion}'", objective.name):
            fit(data, objective=name, criterion=criterion, n_rounds=2)


@pytest.mark.parametrize("name", [name for name in NAMES if "ole" in objective_class(name).splits.criteria])
def test_pair_hessians_add_up_to_the_change_of_the_gradient(name):
    """The sum over the pairs of a row is its h, since a common step of a query moves no loss of differences."""
    rows, objective = made(name)
    if objective.splits.additive:
        return
    scores = shaped(objective, rows)
    _, h = derivatives(objective, scores, step=3)
    pairs = objective.pair_hessians(3, scores, 0.0, Team(1)).copy()
    assert (pairs.first < pairs.second).all()
    summed = np.zeros(rows.n_rows)
    np.add.at(summed, pairs.first, pairs.hessian)
    np.add.at(summed, pairs.second, pairs.hessian)
    if objective.losses(scores + 0.25) == pytest.approx(objective.losses(scores), rel=1e-9):
        assert summed == pytest.approx(h, rel=1e-8, abs=1e-10)
    else:  # it also says how high the scores of a query are: its pairs explain a part of h
        assert (summed <= h * (1 + 1e-9)).all()
    together = with_team(3, lambda team: objective.pair_hessians(3, scores, 0.0, team).copy())
    assert np.array_equal(together.first, pairs.first)
    assert np.array_equal(together.hessian, pairs.hessian)
    leaf_of_row = np.random.default_rng(2).integers(-1, 4, size=rows.n_rows).astype(np.int32)
    inside = objective.hessian_inside(3, scores, leaf_of_row, 4, pairs.hessian.sum(), Team(1))
    same = leaf_of_row[pairs.first] == leaf_of_row[pairs.second]
    listed = [pairs.hessian[same & (leaf_of_row[pairs.first] == leaf)].sum() for leaf in range(4)]
    assert inside == pytest.approx(listed, rel=1e-9)
    of_three = with_team(3, lambda team: objective.hessian_inside(3, scores, leaf_of_row, 4, pairs.hessian.sum(), team))
    assert np.array_equal(of_three, inside)
    drawn = objective.pair_hessians(3, scores, float(np.median(pairs.hessian)), Team(1)).copy()
    assert len(drawn.first) < len(pairs.first)
    assert drawn.hessian.sum() == pytest.approx(pairs.hessian.sum(), rel=0.1)
    assert drawn.hessian.min() >= float(np.median(pairs.hessian))
    again = objective.pair_hessians(3, scores, float(np.median(pairs.hessian)), Team(1)).first
    assert np.array_equal(again, drawn.first)


@pytest.mark.parametrize("name", NAMES)
def test_what_learns_labels_says_so(name):
    rng = np.random.default_rng(7)
    grades = np.tile(np.arange(4, dtype=np.int32), 10)
    rows = RankedRows(grades, np.arange(0, 41, 8, dtype=np.int64), [])
    labels = grades[np.argsort(np.repeat(np.arange(5), 8) + rng.random(40) * 0.9)].astype(np.float64)
    parameters = fixed(objective=name, gain="linear")

    def of_first_step(rows):
        objective = objective_of(rows, parameters)
        shape = (40,) if objective.n_outputs == 1 else (objective.n_outputs, 40)
        scores, g, h = np.full(shape, 0.1) * np.arange(40), np.empty(shape), np.empty(shape)
        objective.gradients(1, scores, g, h, Team(1))
        return g

    assert (
        np.array_equal(of_first_step(rows), of_first_step(replace(rows, labels=labels)))
        != objective_class(name).learns.labels
    )


def test_the_objective_of_the_guide_works(monkeypatch):
    guide = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    code, line = re.search(r"```python\n(.*?)```.*?`(\"log_squared\": .*?),`", guide, flags=re.DOTALL).groups()
    name, where = (part.strip().strip('"') for part in line.split(": ", 1))
    module = ModuleType(where.partition(":")[0])
    module.__dict__.update(
        np=np, Objective=Objective, Splits=Splits, Learns=Learns, ROWS=ROWS, document_weights=document_weights
    )
    exec(code, module.__dict__)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(OBJECTIVES, name, where)
    forest = fit(small_data(), objective=name, n_rounds=10).forest
    assert forest.objective == "log_squared"
    test_what_learns_labels_says_so(name)
    assert forest.n_trees > 3
    rows, objective = made(name)
    scores = shaped(objective, rows)
    above, below = (objective.losses(scores + step).sum() for step in (1e-4, -1e-4))
    assert derivatives(objective, scores, step=3)[0].sum() == pytest.approx((above - below) / 2e-4, rel=1e-6)
    class_named.cache_clear()


def test_options_are_named_by_their_objective_and_not_as_flags():
    with spelled_for("command line"), refused(InvalidParameter, "apxdcg(samples)", "2 .. 100000", "1"):
        canonical("apxdcg(samples=1)")
