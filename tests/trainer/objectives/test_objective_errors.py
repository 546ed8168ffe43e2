"""What a user may get wrong about objectives, and whether the answer names the right thing and a cure that is there."""

import re

import numpy as np
import pytest

from rankmill import Ranker, cross_validate
from rankmill.foundation.errors import InvalidParameter, TrainingDataRejected
from rankmill.trainer.objectives.spelling import canonical
from rankmill.trainer.objectives.user import remember_objective
from tests.refusals import refused

RNG = np.random.default_rng(5)
N_QUERIES, LENGTH = 40, 12
X = RNG.normal(size=(N_QUERIES * LENGTH, 3))
SIGNAL = X[:, 0] + 0.5 * X[:, 1]
QID = np.repeat(np.arange(N_QUERIES), LENGTH)
SEEN = QID % 4 > 0
SMALL = {"preset": "defaults-1", "n_rounds": 12, "max_leaves": 4, "min_rows_in_leaf": 5, "n_threads": 1}


def halves(y, **extras):
    """What ``fit`` takes for three quarters of the queries, and the others as an eval set."""
    first = {"X": X[SEEN], "y": y[SEEN], "qid": QID[SEEN], **{name: of_row[SEEN] for name, of_row in extras.items()}}
    rest = {"qid": QID[~SEEN], **{name: of_row[~SEEN] for name, of_row in extras.items()}}
    return first, [X[~SEEN], y[~SEEN], rest]


def test_hazards_stop_by_their_loss_and_not_by_a_metric_of_the_reversed_order():
    times = np.clip(np.floor(6 - 2 * SIGNAL), 0, 31)
    train, watched = halves(times, event=(RNG.random(len(X)) < 0.8).astype(int))
    ranker = Ranker(objective="coxph", **SMALL).fit(**train, eval_set=[tuple(watched)])
    assert list(ranker.evals_result_["valid"]) == ["deviance"]
    assert ranker.best_round_ > 5
    assert np.corrcoef(ranker.predict(X), times)[0, 1] < -0.8
    folds = cross_validate(Ranker(objective="coxph", **SMALL), train["X"], train["y"], qid=train["qid"])
    assert folds.stop_metric == "deviance"
    named = Ranker(objective="coxph", stop_metric="ndcg@5", **SMALL).fit(**train, eval_set=[tuple(watched)])
    assert list(named.evals_result_["valid"]) == ["ndcg@5"]


@pytest.mark.parametrize("objective", ["l2", "coxph"])
def test_whole_numbers_that_are_too_large_for_grades_are_labels(objective):
    days = np.round(300 + 80 * SIGNAL)
    as_whole, as_real = (
        Ranker(objective=objective, **SMALL).fit(X, y, qid=QID).predict(X) for y in (days.astype(np.int64), days)
    )
    given = Ranker(objective=objective, **SMALL).fit(X, np.zeros(len(X)), qid=QID, label=days).predict(X)
    assert np.array_equal(as_whole, as_real)
    assert np.array_equal(as_whole, given)


def test_a_stop_metric_without_a_value_is_refused_only_where_it_decides():
    pairs = np.array([(i, i + 1) for i in range(0, SEEN.sum(), 2)])
    first, watched = halves(np.zeros(len(X), dtype=int))
    parameters = {"objective": "ranknet", "query_fraction": 0.5, **SMALL}
    watched[2] = {"qid": QID[~SEEN], "pairs": pairs[: (~SEEN).sum() // 2]}
    with refused(TrainingDataRejected, "relevant", "ndcg@10", "keep_rounds='all'", "early_stopping_rounds=0"):
        Ranker(**parameters).fit(**first, pairs=pairs, eval_set=[tuple(watched)])
    for cure in ({"rounds_by": "oob"}, {"stop_metric": "deviance"}, {"keep_rounds": "all", "early_stopping_rounds": 0}):
        assert Ranker(**parameters, **cure).fit(**first, pairs=pairs, eval_set=[tuple(watched)]).best_round_ >= 1


@pytest.mark.parametrize("objective", ["mcrank", "bernoulli"])
def test_what_is_wrong_with_the_train_split_is_not_said_of_an_eval_set(objective):
    first, watched = halves(np.where(SEEN, 0, RNG.integers(0, 3, len(X))))
    with pytest.raises(TrainingDataRejected, match=f"^{objective}"):
        Ranker(objective=objective, **SMALL).fit(**first, eval_set=[tuple(watched)])


def test_a_name_in_capitals_is_answered_and_a_bad_option_says_whose_it_is():
    for theirs, ours in (("LambdaMART", "lambdamart"), ("RANK_XENDCG", "rank_xendcg"), ("lambdarank", "lambdamart")):
        with refused(InvalidParameter, f"'{ours}'"):
            canonical(theirs)
    with pytest.raises(InvalidParameter, match="known: lambdamart, l2") as unknown:
        canonical("zzzzz")
    assert "user" not in str(unknown.value)  # which needs a function
    for written in (
        "mcrank(score=x)",
        "listnet(target=x)",
        "apxdcg(samples=1)",
        "stochasticrank(noise=0)",
        "lambdamart(tail=yes)",
    ):
        with pytest.raises(InvalidParameter, match=re.escape(f"{written.partition('=')[0]})")):
            canonical(written)


def test_a_function_of_another_form_is_refused_before_training():
    def theirs(y_true, y_pred):  # as LightGBM takes it
        return y_pred - y_true, np.ones_like(y_pred)

    with refused(InvalidParameter, "(scores, targets, starts, g, h)"):
        remember_objective(theirs)
