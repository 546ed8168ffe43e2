"""Metrics of a goal: the same numbers as of input whose main grade is that column."""

import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

from rankmill.foundation.errors import CandidatesRejected, DataRejected, InputError
from rankmill.pipeline.ingest import ingest
from rankmill.pipeline.options import IngestOptions, ReadOptions
from rankmill.scorer.evaluate.compare import Ranking, compare
from rankmill.scorer.evaluate.evaluate import evaluate
from rankmill.scorer.metrics import parse_metric
from rankmill.scorer.metrics.explain_metric import explain_metric
from rankmill.scorer.rerank.rerank import rerank
from tests.refusals import refused
from tests.scorer.forests import random_forest
from tests.scorer.rerank.candidate_files import as_table, random_candidates, write_letor

METRICS = ("ndcg@5", "err@5", "map", "precision@3", "concordance_micro")
OF_GOAL = tuple(f"{metric}:bought" for metric in METRICS)


@pytest.fixture(scope="module")
def forest():
    return random_forest(5, n_trees=10, max_leaves=12, info={"max_grade": 6})


@pytest.fixture(scope="module")
def tables():
    """Candidates with a goal, and those whose main grade it is."""
    table = as_table(random_candidates(1))
    bought = pa.array(np.random.default_rng(2).integers(0, 4, len(table)), pa.int32())
    return table.append_column("bought", bought), table.set_column(table.column_names.index("grade"), "grade", bought)


def means(evaluation):
    return {str(metric).removesuffix(":bought"): mean for metric, mean in evaluation.means.items()}


def scored(tables, seed=0):
    """Scored lists with a goal, and those whose main grade it is."""
    score = np.round(np.random.default_rng(seed).normal(size=len(tables[0])), 1)
    names = ("qid", "doc_id", "grade", "bought", "score")
    lists = [table.append_column("score", pa.array(score)) for table in tables]
    return [table.select([name for name in names if name in table.column_names]) for table in lists]


def alike(one, other):
    """The evaluations are the same but for the names of metrics."""
    facts = [json.loads(each.to_json(per_query=True).replace(":bought", "")) for each in (one, other)]
    for fact in facts:
        fact["policy"].pop("max_grade")
        fact.pop("goal_scales", None)
    assert facts[0] == facts[1]


def test_lists_in_every_format(tmp_path, tables):
    with_goal, main = scored(tables)
    expected = evaluate(main, metrics=METRICS)
    pq.write_table(with_goal, tmp_path / "a.parquet")
    pacsv.write_csv(with_goal, tmp_path / "a.csv")
    pacsv.write_csv(with_goal, tmp_path / "a.tsv", pacsv.WriteOptions(delimiter="\t"))
    for subject in (with_goal, *(tmp_path / f"a.{suffix}" for suffix in ("parquet", "csv", "tsv"))):
        found = evaluate(subject, metrics=OF_GOAL)
        alike(found, expected)
        assert found.goal_scales == {"bought": 3}
        both = evaluate(subject, metrics=[*OF_GOAL, *METRICS])
        assert {str(metric): both.means[metric] for metric in both.metrics if metric.goal} == {
            str(metric): mean for metric, mean in found.means.items()
        }
        own = evaluate(with_goal, metrics=METRICS)
        assert own.means == {metric: mean for metric, mean in both.means.items() if not metric.goal}
        assert own.policy == both.policy


def test_candidates_and_datasets(tmp_path, forest, tables):
    pq.write_table(tables[0], tmp_path / "a.parquet")
    pacsv.write_csv(tables[0], tmp_path / "a.csv")
    lines = [json.dumps({k: v for k, v in row.items() if v is not None}) for row in tables[0].to_pylist()]
    (tmp_path / "a.jsonl").write_text("\n".join(lines) + "\n")
    pq.write_table(tables[1], tmp_path / "main.parquet")
    # the scale of the goal is its own highest grade
    expected = evaluate(tmp_path / "main.parquet", model=forest, metrics=METRICS, max_grade=3)
    for name in ("a.parquet", "a.csv", "a.jsonl"):
        alike(evaluate(tmp_path / name, model=forest, metrics=OF_GOAL), expected)
    read = ReadOptions(goals=("bought",), absent="missing")
    ingest([tmp_path / "a.parquet"], tmp_path / "data", options=IngestOptions(buckets=3, read=read))
    assert means(evaluate(tmp_path / "data", model=forest, metrics=OF_GOAL, split="all")) == means(expected)
    assert means(evaluate(tmp_path / "data", model=forest, metrics=["map"], split="all")) == means(
        evaluate(tmp_path / "a.parquet", model=forest, metrics=["map"])
    )


def test_comparisons(tables):
    found, expected = (
        compare(
            [Ranking(name=str(seed), source=scored(tables, seed)[place]) for seed in range(3)],
            metrics=OF_GOAL if place == 0 else METRICS,
        )
        for place in range(2)
    )
    for other, differences in expected.differences.items():
        assert {
            str(metric).removesuffix(":bought"): difference for metric, difference in found.differences[other].items()
        } == {str(metric): difference for metric, difference in differences.items()}


def test_all_lists_of_a_comparison_have_one_scale_of_a_goal(tables):
    with_goal = scored(tables, 0)[0]
    higher = with_goal.set_column(3, "bought", pa.array(np.asarray(with_goal["bought"]) + 2, pa.int32()))
    found = compare([Ranking(name="a", source=with_goal), Ranking(name="b", source=higher)], metrics=["err:bought"])
    assert [each.goal_scales for each in found.evaluations] == [{"bought": 5}, {"bought": 5}]


def test_explanations(tables):
    with_goal, main = scored(tables)
    for metric in METRICS:
        found, expected = explain_metric(with_goal, "q3", f"{metric}:bought"), explain_metric(main, "q3", metric)
        assert found.value == expected.value
        assert replace(found, metric=metric, convention=expected.convention) == expected


def test_what_has_no_grades_of_a_goal_is_refused(tmp_path, forest, tables):
    with_goal, main = scored(tables)
    with refused(InputError, "bought", "column"):
        evaluate(main, metrics=OF_GOAL)
    (tmp_path / "qrels").write_text("q1 0 d1 1\n")
    with refused(InputError, "qrels", "bought"):
        evaluate(with_goal, metrics=OF_GOAL, qrels=tmp_path / "qrels")
    with refused(InputError, "ndcg:goals", "training", "weights"):
        evaluate(with_goal, metrics=["ndcg:goals"])
    text = write_letor(tmp_path / "c.txt", random_candidates(1))
    with refused(InputError, "c.txt", "goals", "table"):
        evaluate(text, model=forest, metrics=OF_GOAL)
    pq.write_table(tables[1], tmp_path / "main.parquet")
    with refused(DataRejected, "main.parquet", "'bought'", "metrics"):
        evaluate(tmp_path / "main.parquet", model=forest, metrics=OF_GOAL)
    ingest([text], tmp_path / "data")
    with refused(InputError, "map:bought", "no goal"):
        evaluate(tmp_path / "data", model=forest, metrics=["map:bought"])
    rerank(text, forest, tmp_path / "top", top_k=2)
    with refused(InputError, "bought"):
        evaluate(tmp_path / "top", metrics=OF_GOAL)
    with refused(CandidatesRejected, "bought", "int32"):
        evaluate(with_goal.set_column(3, "bought", pa.array([0.5] * len(with_goal))), metrics=OF_GOAL)


def test_spellings():
    for text in ("ndcg@10:bought", "rbp(0.8)@20:a.b-c_1", "map:x"):
        assert str(parse_metric(text)) == text
    assert str(parse_metric(" ndcg@10 ")) == "ndcg@10"
    for text in ("ndcg@10:", "ndcg:a b", "ndcg:a:b", "ndcg:bought@10"):
        with refused(InputError, "goal"):
            parse_metric(text)
