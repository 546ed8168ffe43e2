"""Losses and swap deltas that users write: they do what the built-in ones do, and say what is wrong with them."""

import numba
import numpy as np
import pytest

from rankmill.foundation.errors import InvalidParameter
from rankmill.python.ranker import Ranker
from rankmill.trainer.objectives.pairwise import pair_loss as pairwise
from rankmill.trainer.objectives.user import check_lambdas, remember_delta, remember_objective, spelled
from rankmill.trainer.team import with_team
from tests.refusals import refused
from tests.trainer.objectives.loss_cases import build, case, derivatives


def reciprocal_gain(grades, i, j):
    return (2.0 ** grades[i] - 2.0 ** grades[j]) * (1.0 / np.log2(i + 2.0) - 1.0 / np.log2(j + 2.0))


@numba.njit
def compiled(grades, i, j):
    return (2.0 ** grades[i] - 2.0 ** grades[j]) * (1.0 / np.log2(i + 2.0) - 1.0 / np.log2(j + 2.0))


def squared(scores, targets, starts, g, h):
    g[:] = scores - targets
    h[:] = 1.0


def data():
    rng = np.random.default_rng(3)
    x, qid = rng.normal(size=(400, 4)).astype(np.float32), np.repeat(np.arange(40), 10)
    y = np.clip(np.round(x[:, 0] + x[:, 1] * 0.5 + 1 + 0.3 * rng.normal(size=400)), 0, 4)
    return x, y, qid


@pytest.mark.parametrize("delta", [reciprocal_gain, compiled], ids=["plain", "compiled"])
@pytest.mark.parametrize("given", [False, True])
def test_a_delta_that_is_that_of_dcg_learns_as_dcg_does(delta, given, monkeypatch):
    monkeypatch.setattr(pairwise, "_LEAST_WORK", 1)
    monkeypatch.setattr(pairwise, "_MOST_CELLS", 40)
    rows, scores = case(1, weighted=True, given=given)
    name = remember_delta(delta)
    mine = build(rows, f"lambdamart(delta={name})", truncation=6)
    own = build(rows, "lambdamart", metric="dcg", truncation=6)
    for found, expected in zip(derivatives(mine, scores), derivatives(own, scores), strict=True):
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-13)
    assert mine.losses(scores) == pytest.approx(own.losses(scores), rel=1e-9)
    shared = with_team(
        3, lambda team: derivatives(build(rows, f"lambdamart(delta={name})", truncation=6), scores, team=team)
    )
    assert np.array_equal(shared[0], derivatives(mine, scores)[0])


def test_rankers_take_functions():
    x, y, qid = data()
    common = {"n_rounds": 10, "max_leaves": 6, "n_threads": 1}
    mine = Ranker(objective=squared, **common).fit(x, y, qid=qid)
    own = Ranker(objective="l2", **common).fit(x, y, qid=qid)
    assert mine.forest_.parameters["objective"] == "user(function=squared)"
    # l2 starts from the mean instead of 0
    assert np.corrcoef(mine.predict(x), own.predict(x))[0, 1] > 0.97
    dcg = Ranker(objective="lambdamart", metric="dcg", **common).fit(x, y, qid=qid)
    delta = Ranker(objective="lambdamart", metric="dcg", delta=reciprocal_gain, **common).fit(x, y, qid=qid)
    assert delta.forest_.parameters["objective"] == "lambdamart(delta=reciprocal_gain)"
    assert delta.predict(x) == pytest.approx(dcg.predict(x), abs=1e-3)
    again = Ranker(**mine.get_params()).fit(x, y, qid=qid)
    assert again.forest_.to_bytes() == mine.forest_.to_bytes()
    assert (
        spelled("lambdamart(normalise=query)", reciprocal_gain) == "lambdamart(normalise=query, delta=reciprocal_gain)"
    )


def test_lambdas_of_every_built_in_loss_are_symmetric_at_a_fixed_order():
    rows, _ = case(4, given=False)
    first, last = rows.starts[3], rows.starts[4]
    grades = rows.grades[first:last]
    for objective, metric in (
        ("lambdamart", "ndcg@3"), ("lambdamart", "err"), ("lambdamart", "map"), ("lambdaloss", "ndcg"),
        ("ranknet", "ndcg"),
        ("rankboost", "ndcg"), ("lambdamart", "concordance"),
    ):  # fmt: skip

        def lambdas(scores, targets, starts, g, h, objective=objective, metric=metric):
            one = type(rows)(grades, starts, [])
            g[:], h[:] = derivatives(build(one, objective, metric=metric, lambda_normalisation=False), scores)

        assert check_lambdas(lambdas, grades).from_a_loss, (objective, metric)


def test_lambdas_that_come_from_no_loss_are_found():
    def burges(scores, targets, starts, g, h):  # dF/dx = 1, dF/dy = x, of no F
        g[:] = [1.0, scores[0]]

    found = check_lambdas(burges, [0.0, 0.0])
    assert not found.from_a_loss
    assert sorted(found.worst) == [0, 1]
    assert found.asymmetry == pytest.approx(1.0)

    # the factors of a query are frozen within a round, but as functions of the scores they have no loss
    def normalised(scores, targets, starts, g, h):
        one = type(case(0)[0])(targets.astype(np.int32), starts, [])
        g[:], h[:] = derivatives(build(one, "lambdamart", lambda_normalisation=True), scores)

    assert not check_lambdas(normalised, [3, 0, 1, 2, 0]).from_a_loss


def test_what_is_wrong_with_a_function_is_said():
    rows, scores = case(5)
    weighted, _ = case(5, weighted=True)

    def forgets(scores, targets, starts, g, h):
        g[:] = 0.0
        h[1:] = 1.0

    def bottomless(grades, i, j):
        return 1.0 / (i - i)

    def unknown(grades, i, j):
        return grades[i] + "a"

    with refused(InvalidParameter, "function", "Ranker(objective=nobody)"):
        build(rows, "user(nobody)")
    with refused(InvalidParameter, "function", "Ranker(delta=nobody)"):
        build(rows, "lambdamart(delta=nobody)")
    with refused(InvalidParameter, "weights"):
        build(weighted, f"user({remember_objective(squared)})")
    with refused(InvalidParameter, "row 0", "g", "h", "0.0", "nan"):
        derivatives(build(rows, f"user({remember_objective(forgets)})"), scores)
    with refused(InvalidParameter, "loss"):
        build(rows, "user(forgets)").losses(scores)
    with refused(InvalidParameter, "finite", "pair"):
        derivatives(build(rows, f"lambdamart(delta={remember_delta(bottomless)})"), scores)
    with pytest.raises(InvalidParameter, match="Numba"):
        remember_delta(unknown)
    with refused(InvalidParameter, "named function"):
        remember_objective(lambda scores, targets, starts, g, h: None)
    with refused(InvalidParameter, "objective lambdamart"):
        spelled("ranknet", reciprocal_gain)
