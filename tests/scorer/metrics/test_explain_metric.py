"""The calculation laid open: every step by its definition, and the same value as evaluate."""

import itertools
import json
import math

import numpy as np
import pyarrow as pa
import pytest
from typer.testing import CliRunner

from rankmill.foundation.errors import InputError
from rankmill.scorer.cli import app
from rankmill.scorer.evaluate.evaluate import evaluate_scored
from rankmill.scorer.metrics import parse_metric
from rankmill.scorer.metrics.conventions import named_convention
from rankmill.scorer.metrics.explain_metric import explain_metric
from tests.refusals import refused

EVERY = [
    *("ndcg@2", "ndcg", "dcg@3", "err@2", "err", "map@2", "map", "mrr", "precision@3", "recall@2", "wta", "rbp(0.7)@3"),
    *("concordance", "concordance_micro", "balanced_error", "balanced_error(1)"),
]


def table(seed=0, n=60):
    """Some queries whose rows are mixed in the file; ids are not in the order of rows, scores tie."""
    rng = np.random.default_rng(seed)
    qids = [f"q{q}" for q in rng.integers(0, 9, n)]
    return pa.table(
        {
            "qid": [*qids, "lone", "nothing", "nothing", "alike", "alike"],
            "doc_id": [f"d{d}" for d in rng.permutation(n + 5)],
            "score": [*(rng.integers(-3, 4, n) / 2.0), 0.5, 1.0, 0.0, 0.0, 0.0],
            "grade": pa.array([*rng.integers(-1, 4, n), 2, 0, 0, 2, 2], pa.int32()),
        }
    )


@pytest.mark.parametrize(
    "options",
    [
        *({"convention": name} for name in ("rankmill", "letor4", "catboost", "gdeval")),
        *({"ties": ties} for ties in ("pessimistic", "random")),
        {"nothing_relevant": "one"},
    ],
    ids=lambda options: next(iter(options.values())),
)
def test_the_value_is_that_of_evaluate(options):
    scored = table()
    options = {"max_grade": 4} | options
    rules = named_convention(options.get("convention", "rankmill")).but(
        **{name: value for name, value in options.items() if name != "convention"}
    )
    found = evaluate_scored(scored, [parse_metric(metric) for metric in EVERY], rules, replicates=0)
    for metric, qid in itertools.product(EVERY, ("q0", "q3", "lone", "nothing", "alike")):
        shown = explain_metric(scored, qid, metric, **options)
        value = found.values[parse_metric(metric)][found.qids.index(qid)]
        assert shown.value == value or (shown.value is None and math.isnan(value))
        if shown.divisor:
            assert shown.sum / shown.divisor == pytest.approx(value, abs=1e-12), metric
        elif shown.divisor is None:
            assert value == 0.0
        else:
            assert "nothing relevant" in shown.words["value"]
        steps = [each.step for each in shown.ranks if each.step is not None]
        assert [step["sum"] for step in steps] == pytest.approx(
            list(itertools.accumulate(step["term"] for step in steps))
        )
        if steps:
            assert steps[-1]["sum"] == shown.sum
        if qid in {"q0", "nothing"}:  # laying tables out takes longer than all the rest
            assert f"{metric} of query {qid}: " in shown.render()
        report = json.loads(shown.to_json())
        assert report["value"] == (None if math.isnan(value) else value)
        assert report["metric"] == metric


def test_ranks_name_the_documents_that_stand_there():
    scored = table(3)
    ids = dict(zip(zip(scored["qid"].to_pylist(), scored["doc_id"].to_pylist(), strict=True), range(65), strict=True))
    shown = explain_metric(scored, "q4", "map", ties="doc_id_descending")
    assert len(shown.ranks) == scored["qid"].to_pylist().count("q4")
    for each in shown.ranks:
        row = ids["q4", each.doc_id]
        assert (each.score, each.grade) == (scored["score"][row].as_py(), max(0, scored["grade"][row].as_py()))
    keys = [(-each.score, [-ord(c) for c in each.doc_id]) for each in shown.ranks]
    assert [score for score, _ in keys] == sorted(score for score, _ in keys)
    bare = explain_metric(scored.drop_columns("doc_id"), "lone", "ndcg")
    assert [(each.place, each.doc_id, each.score, each.grade) for each in bare.ranks] == [("1", "row 1", 0.5, 2)]


SMALL = pa.table(
    {
        "qid": ["a"] * 4,
        "doc_id": ["w", "x", "y", "z"],
        "score": [1.0, 0.5, 0.5, 0.0],
        "grade": pa.array([0, 2, 0, 1], pa.int32()),
    }
)


@pytest.mark.parametrize(
    ("metric", "options", "words"),
    [
        ("map@2", {"map_normalisation": "min(R,k)"}, "divided by min(R,k)"),
        ("precision@9", {"precision_normalisation": "min(k,n)"}, "divided by min(k,n)"),
        ("recall@2", {}, "divided by R, the relevant documents known"),
        ("ndcg@9", {"convention": "letor4"}, "the list has 4 documents, fewer than k = 9: it counts 0"),
        ("concordance", {}, "divided by the pairs of different grade"),
        ("mrr", {"relevant_from": 3}, "nothing relevant: the query is skipped"),
        ("mrr", {"relevant_from": 3, "convention": "xgboost"}, "nothing relevant: the query counts 1"),
        ("map", {"convention": "catboost"}, "catboost: gain linear (grade), discount 1/log2(rank + 1), ties pessim"),
    ],
)
def test_the_words_beside_it(metric, options, words):
    assert words in " ".join(explain_metric(SMALL, "a", metric, **options).render().split())


def test_judgments_and_documents_that_were_not_retrieved(tmp_path):
    (tmp_path / "run").write_text("7 Q0 a 1 2.0 x\n7 Q0 b 2 1.0 x\n8 Q0 c 1 1.0 x\n")
    (tmp_path / "qrels").write_text("7 0 b 1\n7 0 missed 3\n9 0 c 1\n")
    shown = explain_metric(tmp_path / "run", "7", "ndcg", qrels=tmp_path / "qrels", convention="trec")
    assert shown.value == pytest.approx((1 / math.log2(3)) / (3 + 1 / math.log2(3)))
    assert [row["grade"] for row in shown.ideal] == [3, 1]
    assert "all judged documents" in shown.render()
    with refused(InputError, "query '8'", "1", "'7'"):
        explain_metric(tmp_path / "run", "8", "ndcg", qrels=tmp_path / "qrels")


def test_the_command(tmp_path):
    import pyarrow.parquet as pq

    path = tmp_path / "s.parquet"
    pq.write_table(SMALL, path)

    def call(*arguments):
        result = CliRunner().invoke(app, ["explain-metric", str(path), "--qid", "a", *arguments])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result.stdout

    assert call("--metric", "ndcg@3") == explain_metric(SMALL, "a", "ndcg@3").render()
    report = json.loads(call("--metric", "err@3", "--convention", "gdeval", "--ties", "expected", "--json"))
    assert report["policy"]["max_grade"] == 4
    assert report["convention"]["changed"] == ["ties"]
    assert [step["rank"] for step in report["ranks"]] == [1, 2, 3]
    assert report["ranks"][-1]["step"]["sum"] == report["sum"] == pytest.approx(report["value"])
    assert explain_metric(path, "a", "err").policy.max_grade == 2  # the highest grade there is
    with refused(InputError, "metric", "ngcd"):
        call("--metric", "ngcd")
