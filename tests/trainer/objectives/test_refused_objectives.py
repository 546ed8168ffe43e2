"""Options and rows that an objective cannot learn from: a table, each refused in a line that names the facts."""

import pytest

from rankmill.foundation.errors import InvalidParameter, TrainingDataRejected
from tests.refusals import refused
from tests.trainer.objectives.loss_cases import objective_on, rows_with

OPTIONS = [
    ("gbrank(tau=0)", "above 0"),
    ("gbrank(eta=-1)", "above 0"),
    ("gbrank(trees=0)", "1 .."),
    ("ranknet(normalise=pair)", "ranknet(normalise)", "'pair'", "none, query"),
    ("ranknet(truncation=-1)", "0 .."),
    ("rankboost(pair_fraction=0)", "(0, 1]"),
    ("lambdamart(max_grade=90)", "0 .. 52"),
    ("yetirank(permutations=0)", "1 .."),
    ("yetirank(decay=1.5)", "(0, 1]"),
    ("yetirank(noise=white)", "yetirank(noise)", "'white'", "logistic, gumbel"),
    ("yetirank(mode=ndcg)", "yetirank(mode)", "'ndcg'", "classic, metric"),
    ("listnet(target=grade)", "listnet(target)", "'grade'", "'exp_grade'"),
    ("query_cross_entropy(alpha=2)", "query_cross_entropy(alpha)", "[0, 1]", "2.0"),
    ("rank_xendcg(terms=0)", "rank_xendcg(terms)", "1 .. 10", "0"),
    ("apxdcg(exact=13)", "apxdcg(exact)", "0 .. 12", "13"),
    ("stochasticrank(noise=0)", "stochasticrank(noise)", "0"),
    ("stochasticrank(samples=0)", "stochasticrank(samples)", "1 .. 100000"),
    ("stochasticrank(max_grade=53)", "stochasticrank(max_grade)", "0 .. 52"),
    ("logistrank(leaf=paper2)", "logistrank(leaf)", "paper2"),
    ("logistrank(top=-1)", "top)", "0"),
    ("mcrank(score=rank)", "mcrank(score)", "grade, gain"),
    *((written, "alpha") for written in ("quantile(alpha=0)", "quantile(alpha=1)", "quantile(alpha=nan)", "huber(alpha=1.5)")),
]  # fmt: skip
METRICS = [
    *((name, "map") for name in ("apxdcg", "stochasticrank")),
    ("apxdcg", "err"),
    *(("yetirank(mode=metric)", metric) for metric in ("concordance", "balanced_error")),
]
ALIKE = {"grades": [1, 1, 0], "sizes": [2, 1]}
ROWS = [
    *((name, {"grades": [1, 1]}, "nothing to learn") for name in ("ranknet", "rankboost", "lambdamart", "lambdaloss", "yetirank")),
    *((name, ALIKE, "different grades") for name in ("listnet", "listmle", "rank_xendcg", "apxdcg", "stochasticrank", "gbrank")),
    *((name, {"grades": [1, 0], "query_weights": [1, 1]}, "query weights", "shape") for name in ("listnet", "listmle", "rank_xendcg")),
    *((name, {"grades": [1, 0], "weights": [0, 0]}, "weights", "0") for name in ("listnet", "listmle", "rank_xendcg")),
    ("logistrank(threshold=9)", {"grades": [0, 4, 3]}, "classes"),
    ("mcrank(max_grade=2)", {"grades": [0, 2, 3]}, "mcrank(max_grade"),
    ("ordinal", {"grades": [1, 1]}, "two grades"),
    ("mcrank(score=gain)", {"grades": [0, 60]}, "many grades"),
    ("poisson", {"labels": [0.0, -1.0]}, "-1.0", "row 1"),
    ("poisson", {"labels": [0.0, 2.0], "weights": [1.0, 0.0]}, "label", "0"),
    ("l2", {"labels": [0.0, 1.0, 2.0], "weights": [1.0, 1.0]}, "shape"),
    ("coxph", {"labels": [1.0, 2.0], "events": [0, 0]}, "event"),
    ("coxph", {"labels": [1.0, 2.0], "events": [0, 1], "weights": [1, 0]}, "event"),
    ("consistent_cosine", {"grades": [0, 0]}, "query", "relevant"),
]  # fmt: skip


@pytest.mark.parametrize(("written", "facts"), [(written, facts) for written, *facts in OPTIONS])
def test_options_out_of_bounds(written, facts):
    with refused(InvalidParameter, *facts):
        objective_on(written, rows_with(grades=[0, 1, 2, 0]))


@pytest.mark.parametrize(("written", "metric"), METRICS)
def test_metrics_that_are_no_target(written, metric):
    with refused(InvalidParameter, "metric", metric, written):
        objective_on(written, rows_with(grades=[0, 1, 2, 0]), metric=metric)


@pytest.mark.parametrize(("written", "rows", "facts"), [(written, rows, facts) for written, rows, *facts in ROWS])
def test_rows_that_teach_nothing(written, rows, facts):
    with refused(TrainingDataRejected, *facts):
        objective_on(written, rows_with(**rows)).start()
