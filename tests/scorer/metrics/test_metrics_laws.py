"""Laws that hold for any lists."""

import itertools
import math
import pickle
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankmill.foundation.errors import CandidatesRejected, InputError
from rankmill.scorer.evaluate.evaluate import evaluate_scored
from rankmill.scorer.metrics import TIES, Metric, Policy, arrangement, parse_metric
from rankmill.scorer.metrics.conventions import CONVENTIONS
from rankmill.scorer.metrics.metric import MEASURES, METRIC_NAMES
from rankmill.scorer.metrics.per_query import PreparedQueries, evaluate_queries, mean_of
from rankmill.scorer.metrics.significance import percentile_interval
from tests.refusals import refused

ALL = [
    Metric(name, k, 0.8 if name == "rbp" else None)
    for name in METRIC_NAMES
    for k in (None, 1, 4, 10)
    if MEASURES[name].cutoff != ("needed" if k is None else "none")
]
RANKED = [metric for metric in ALL if metric.name != "balanced_error"]  # it looks at the scores themselves
LAW = settings(deadline=None, max_examples=30)  # the first call compiles


@st.composite
def queries(draw, *, min_docs=0):
    """Some queries of 0 to 40 documents; scores come from few values, so that they tie."""
    sizes = draw(st.lists(st.integers(min_docs, 40), min_size=1, max_size=6))
    n = sum(sizes)
    grades = draw(st.lists(st.integers(-1, 4), min_size=n, max_size=n))
    scores = draw(st.lists(st.sampled_from([-math.inf, -2.5, -0.0, 0.0, 1e-300, 1.0, 3.0]), min_size=n, max_size=n))
    return np.array(grades, np.int32), np.array(scores, np.float64), np.cumsum([0, *sizes])


def same(a, b):
    assert a.keys() == b.keys()
    for metric in a:
        np.testing.assert_array_equal(a[metric], b[metric], err_msg=str(metric))


@LAW
@given(queries(), st.randoms(use_true_random=False))
def test_row_order_changes_no_bit_where_ties_count_their_expected_value(lists, random):
    grades, scores, starts = lists
    moved = np.arange(grades.size)
    for lo, hi in itertools.pairwise(starts):
        rows = moved[lo:hi].tolist()
        random.shuffle(rows)
        moved[lo:hi] = rows
    policy = Policy(max_grade=4)
    same(
        evaluate_queries(ALL, scores, grades, starts, policy),
        evaluate_queries(ALL, scores[moved], grades[moved], starts, policy),
    )


@LAW
@given(queries(), st.sampled_from(TIES))
def test_only_the_order_of_scores_matters(lists, ties):
    grades, scores, starts = lists
    policy = Policy(ties=ties, max_grade=4)
    ids = np.arange(grades.size)[::-1]
    order = np.unique(scores, return_inverse=True)[1].astype(np.float64)
    first = evaluate_queries(RANKED, scores, grades, starts, policy, ids)
    same(first, evaluate_queries(RANKED, 8.0 * order - 100.0, grades, starts, policy, ids))
    same(first, evaluate_queries(RANKED, order.astype(np.float32), grades, starts, policy, ids))


@LAW
@given(queries(), st.permutations(ALL))
def test_metrics_asked_together_are_those_asked_alone(lists, metrics):
    grades, scores, starts = lists
    prepared = PreparedQueries(grades, starts, Policy(max_grade=4))
    together = prepared.evaluate(metrics, scores)
    for metric in metrics[:5]:
        np.testing.assert_array_equal(together[metric], prepared.evaluate([metric], scores)[metric])


@LAW
@given(queries(), st.data())
def test_queries_may_be_shared_out_among_threads(lists, data):
    grades, scores, starts = lists
    prepared = PreparedQueries(grades, starts, Policy(max_grade=4))
    whole = prepared.evaluate(ALL, scores)
    out = np.full((len(ALL), prepared.n_queries), -1.0)
    cut = data.draw(st.integers(0, prepared.n_queries))
    workers = [
        threading.Thread(target=prepared.evaluate_into, args=(ALL, scores, first, last, out))
        for first, last in ((0, cut), (cut, prepared.n_queries))
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for metric, values in zip(ALL, out, strict=True):
        np.testing.assert_array_equal(values, whole[metric])


def test_long_lists_sort_as_numpy_does():
    """Lengths around the run and merge widths of the sort, ties broken by row."""
    rng = np.random.default_rng(11)
    for n in [*range(14, 20), 31, 32, 33, 63, 64, 65, 127, 129, 1000, 4097]:
        grades = rng.integers(0, 5, n).astype(np.int32)
        for scores in (
            rng.normal(size=n),
            rng.integers(0, 9, n).astype(float),
            np.arange(n) * 1.0,
            -np.arange(n) * 1.0,
        ):
            order = np.argsort(-scores, kind="stable")
            direct = evaluate_queries(
                [Metric("dcg"), Metric("map")], scores, grades, np.array([0, n]), Policy(ties="row_order")
            )
            listed = evaluate_queries(
                [Metric("dcg"), Metric("map")], -np.arange(n) * 1.0, grades[order], np.array([0, n]), Policy()
            )
            same(direct, listed)


def test_a_mean_is_exact_in_any_order():
    values = np.array([1e16, 1.0, -1e16, math.nan, 1.0])
    assert mean_of(values) == 0.5
    assert mean_of(values[::-1]) == 0.5
    assert math.isnan(mean_of(np.array([math.nan])))
    assert math.isnan(mean_of(np.array([])))


def test_err_needs_a_scale_that_holds_the_grades():
    grades, scores, starts = np.array([0, 3], np.int32), np.zeros(2), np.array([0, 2])
    with pytest.raises(InputError, match="max_grade"):
        evaluate_queries([Metric("err")], scores, grades, starts, Policy())
    with refused(InputError, "grade 3", "max_grade 2"):
        evaluate_queries([Metric("err")], scores, grades, starts, Policy(max_grade=2))
    assert evaluate_queries([Metric("ndcg")], scores, grades, starts, Policy(max_grade=2))


def test_wrong_shapes_and_scores_are_refused():
    grades, starts = np.array([0, 1, 1], np.int32), np.array([0, 1, 3])
    with refused(InputError, "ties doc_id"):
        PreparedQueries(grades, starts, Policy(ties="doc_id"))
    for bad in (
        np.array([0, 3, 1, 3]),
        np.array([1, 3]),
        np.array([0, 2]),
        np.array([0.0, 3.0]),
        np.zeros((1, 2), int),
    ):
        with pytest.raises(ValueError, match="starts"):
            PreparedQueries(grades, bad, Policy())
    with refused(ValueError, "grades", "integers"):
        PreparedQueries(np.array([0.5]), np.array([0, 1]), Policy())
    with refused(ValueError, "together"):
        PreparedQueries(grades, starts, Policy(), ideal_grades=grades)
    with pytest.raises(ValueError, match="ideal_starts"):
        PreparedQueries(grades, starts, Policy(), ideal_grades=grades, ideal_starts=np.array([0, 3]))
    prepared = PreparedQueries(grades, starts, Policy())
    with pytest.raises(ValueError, match="scores"):
        prepared.evaluate([Metric("ndcg")], np.zeros(2))
    with refused(CandidatesRejected, "score", "row 2", "1"):
        prepared.evaluate([Metric("ndcg")], np.array([0.0, 1.0, math.nan]))


def test_the_bootstrap_interval_is_a_function_of_the_values():
    rng = np.random.default_rng(1)
    values = rng.normal(0.5, 0.1, 400)
    lo, hi = percentile_interval(values)
    assert (lo, hi) == percentile_interval(values)
    assert (lo, hi) == percentile_interval(np.concatenate([values[:7], [math.nan], values[7:]]))
    assert (lo, hi) != percentile_interval(values, seed=1)
    standard = 1.96 * values.std() / math.sqrt(400)
    assert lo == pytest.approx(values.mean() - standard, abs=0.15 * standard)
    assert hi == pytest.approx(values.mean() + standard, abs=0.15 * standard)
    assert percentile_interval(np.full(5, 0.25)) == (0.25, 0.25)
    assert percentile_interval(np.array([0.25, math.nan])) is None


def test_the_bootstrap_draws_what_a_plain_loop_draws():
    values = np.array([0.1, 0.9, 0.4])
    means = []
    for b in range(100):
        raw = np.random.Philox(key=np.array([3, b], np.uint64)).random_raw(3)
        means.append(sum(values[(int(r) >> 32) * 3 >> 32] for r in raw) / 3)
    means.sort()
    assert percentile_interval(values, replicates=100, seed=3, level=0.9) == (means[5], means[94])


def test_an_interval_over_pairs_draws_queries_with_their_pairs():
    """Queries of two documents and of many, both always right: whatever is drawn, the share of pairs is one."""
    grades = np.array([*[0, 1] * 20, *range(5)], np.int32)
    starts = np.array([*range(0, 41, 2), 45])
    prepared = PreparedQueries(grades, starts, Policy())
    metric = Metric("concordance_micro")
    values = prepared.evaluate([metric], grades * 1.0)[metric]
    weights = prepared.weights(metric)
    np.testing.assert_allclose(values, weights)
    assert weights.mean() == pytest.approx(1.0)
    assert percentile_interval(values, weights=weights) == (pytest.approx(1.0), pytest.approx(1.0))
    assert percentile_interval(values)[1] > 1.1
    assert prepared.weights(Metric("concordance")) is None


def test_prepared_queries_travel_to_another_process():
    grades, starts = np.array([0, 1, 2], np.int32), np.array([0, 3])
    prepared = PreparedQueries(grades, starts, Policy())
    copy = pickle.loads(pickle.dumps(prepared))
    same(prepared.evaluate([Metric("ndcg")], np.arange(3.0)), copy.evaluate([Metric("ndcg")], np.arange(3.0)))


@pytest.mark.parametrize("highest", [1, 4, 2**31 - 1])
@pytest.mark.parametrize("bits", [63, 8])
def test_rows_by_value_are_those_of_a_sort_by_two_keys(highest, bits, monkeypatch):
    """Packed into one number or, where that has too few bits, sorted by two keys: the same rows."""
    monkeypatch.setattr(arrangement, "_KEY_BITS", bits)
    rng = np.random.default_rng(highest)
    for n_queries in (1, 5, 300):
        sizes = rng.integers(0, 2000 if n_queries == 5 else 9, n_queries)
        starts = np.concatenate([[0], np.cumsum(sizes)])
        values = rng.integers(-highest, highest, starts[-1], endpoint=True).astype(np.int32)
        expected = np.lexsort((values, np.repeat(np.arange(n_queries), sizes)))
        assert arrangement.rows_by(values, starts).tolist() == expected.tolist()


# ---- other implementations -------------------------------------------------------------------------------------------

TREC = CONVENTIONS["trec"].policy
CUTS = (5, 10, 15, 20, 30, 100, 200, 500, 1000)
TREC_NAMES = {"ndcg": "ndcg", "map": "map", "mrr": "recip_rank"} | {
    f"{ours}@{k}": f"{theirs}_{k}"
    for ours, theirs in (("ndcg", "ndcg_cut"), ("map", "map_cut"), ("precision", "P"), ("recall", "recall"))
    for k in CUTS
}
METRICS = [parse_metric(name) for name in TREC_NAMES]


def test_every_printed_digit_of_trec_eval(test_data):
    """Its own regression file: three queries, ties among the scores, means under 'all'."""
    folder = test_data / "trec_eval"
    printed = {}
    for line in (folder / "out.test.aq").read_text().splitlines():
        measure, qid, value = line.split()
        printed[measure, qid] = value
    found = evaluate_scored(folder / "results.test", METRICS, TREC, qrels=folder / "qrels.test")
    assert found.qids == ("301", "302", "303")
    assert found.counts.n_tied_documents > 0
    for name, theirs in TREC_NAMES.items():
        metric = parse_metric(name)
        for qid, value in zip(found.qids, found.values[metric], strict=True):
            assert f"{value:.4f}" == printed[theirs, qid], (name, qid)
        assert f"{found.means[metric]:.4f}" == printed[theirs, "all"], name


@st.composite
def judged_runs(draw):
    """Queries with judged, unjudged and unretrieved documents; scores are exact in float32 and often tie.

    At least one document of a query has a grade of 0 or more: with none, pytrec_eval 0.5 reads memory that it has not
    written, and sometimes never returns.
    """
    qrels, run = {}, {}
    for q in range(draw(st.integers(1, 4))):
        judged = draw(st.dictionaries(st.integers(0, 30), st.integers(-1, 4), min_size=1, max_size=20))
        scored = draw(st.dictionaries(st.integers(0, 40), st.integers(-6, 6), min_size=1, max_size=25))
        judged[draw(st.sampled_from(sorted(judged)))] = draw(st.integers(0, 4))
        qrels[f"q{q}"] = {f"d{d}": grade for d, grade in judged.items()}
        run[f"q{q}"] = {f"d{d}": score / 4 for d, score in scored.items()}
    return qrels, run


@settings(deadline=None, max_examples=25)
@given(judged_runs(), st.integers(1, 3))
def test_drawn_runs_agree_with_pytrec_eval(tmp_path_factory, lists, relevant_from):
    pytrec_eval = pytest.importorskip("pytrec_eval")
    qrels, run = lists
    folder = tmp_path_factory.mktemp("trec")
    (folder / "qrels").write_text("".join(f"{q} 0 {d} {y}\n" for q, judged in qrels.items() for d, y in judged.items()))
    (folder / "run").write_text(
        "".join(f"{q}\tQ0 {d} 0 {s} x\n" for q, scored in run.items() for d, s in scored.items())
    )
    convention = CONVENTIONS["trec"].but(relevant_from=relevant_from)
    found = evaluate_scored(folder / "run", METRICS, convention, qrels=folder / "qrels", replicates=0)
    measures = {"ndcg", "map", "recip_rank", "ndcg_cut", "map_cut", "P", "recall"}
    peer = pytrec_eval.RelevanceEvaluator(qrels, measures, relevance_level=relevant_from).evaluate(run)
    for name, theirs in TREC_NAMES.items():
        expected = [peer[qid][theirs] for qid in found.qids]
        np.testing.assert_allclose(found.values[parse_metric(name)], expected, rtol=0, atol=1e-12, err_msg=name)


@settings(deadline=None, max_examples=25)
@given(st.data(), st.integers(2, 25), st.sampled_from([None, 1, 3, 10, 40]), st.sampled_from(["exp", "linear"]))
def test_tied_documents_count_as_in_scikit_learn(data, n, k, gain):
    """scikit-learn averages ties too; its gain is its input, and a list with nothing relevant is worth 0 there."""
    peer = pytest.importorskip("sklearn.metrics")
    grades = np.array(data.draw(st.lists(st.integers(0, 4), min_size=n, max_size=n)), np.int32)
    scores = np.array(data.draw(st.lists(st.integers(0, 5), min_size=n, max_size=n)), float)
    gains = np.exp2(grades) - 1.0 if gain == "exp" else grades * 1.0
    policy = CONVENTIONS["sklearn"].but(gain=gain).policy
    ndcg, dcg = Metric("ndcg", k), Metric("dcg", k)
    ours = evaluate_queries([ndcg, dcg], scores, grades, np.array([0, n]), policy)
    assert ours[ndcg][0] == pytest.approx(peer.ndcg_score([gains], [scores], k=k), abs=1e-12)
    assert ours[dcg][0] == pytest.approx(peer.dcg_score([gains], [scores], k=k), abs=1e-12)


@settings(deadline=None, max_examples=25)
@given(st.data(), st.integers(2, 25), st.integers(1, 3))
def test_concordance_and_balanced_errors_agree_with_scikit_learn(data, n, relevant_from):
    """For two grades concordance is the area under the ROC curve, over one query or over all pairs of one list."""
    peer = pytest.importorskip("sklearn.metrics")
    grades = np.array(data.draw(st.lists(st.integers(0, 3), min_size=n, max_size=n)), np.int32)
    scores = np.array(data.draw(st.lists(st.integers(-3, 3), min_size=n, max_size=n)), float)
    relevant = (grades >= relevant_from).astype(np.int32)
    names = [Metric("concordance"), Metric("concordance_micro")]
    for found in evaluate_queries(names, scores, relevant, np.array([0, n]), Policy()).values():
        two = 0 < relevant.sum() < n
        assert found[0] == pytest.approx(peer.roc_auc_score(relevant, scores) if two else np.nan, nan_ok=True)
    error = Metric("balanced_error", None, 0.25)
    starts = np.array([0, n // 2, n])
    found = evaluate_queries([error], scores, grades, starts, Policy(relevant_from=relevant_from))[error].mean()
    expected = 1 - peer.balanced_accuracy_score(relevant, scores > 0.25) if two else np.nan
    assert found == pytest.approx(expected, nan_ok=True)
