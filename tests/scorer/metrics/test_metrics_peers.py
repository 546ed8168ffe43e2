"""The same question put to trec_eval and scikit-learn; where conventions differ, the policy says so, not a tolerance."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankmill.scorer.evaluate.evaluate import evaluate_scored
from rankmill.scorer.metrics import Metric, Policy, parse_metric
from rankmill.scorer.metrics.conventions import CONVENTIONS
from rankmill.scorer.metrics.per_query import evaluate_queries

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


@pytest.mark.parametrize("results", ["results.test", "results.trunc"])
def test_graded_and_negative_judgments_agree_with_pytrec_eval(test_data, results):
    pytrec_eval = pytest.importorskip("pytrec_eval")
    folder = test_data / "trec_eval"
    qrels, run = {}, {}
    for line in (folder / "qrels.rel_level").read_text().splitlines():
        qid, _, doc_id, grade = line.split()
        qrels.setdefault(qid, {})[doc_id] = int(grade)
    for line in (folder / results).read_text().splitlines():
        qid, _, doc_id, _, score = line.split()[:5]
        run.setdefault(qid, {})[doc_id] = float(score)
    assert any(grade < 0 for judged in qrels.values() for grade in judged.values())
    peer = pytrec_eval.RelevanceEvaluator(
        qrels, {"ndcg", "map", "recip_rank", "ndcg_cut", "map_cut", "P", "recall"}
    ).evaluate(run)
    found = evaluate_scored(folder / results, METRICS, TREC, qrels=folder / "qrels.rel_level")
    assert set(found.qids) == set(peer)
    for name, theirs in TREC_NAMES.items():
        expected = [peer[qid][theirs] for qid in found.qids]
        np.testing.assert_allclose(found.values[parse_metric(name)], expected, rtol=0, atol=1e-12, err_msg=name)


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
