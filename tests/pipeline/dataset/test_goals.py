"""Goals: further grades of each document, read like the main one and stored beside it."""

import json
import random

import numpy as np
import pyarrow.parquet as pq
import pytest

from rankmill.foundation.errors import DataRejected, InputError
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.pipeline.dataset.sql import query_dataset
from rankmill.pipeline.ingest import ingest
from rankmill.pipeline.options import IngestOptions, ReadOptions
from rankmill.pipeline.statistics.describe_dataset import describe
from rankmill.trainer.data.training_rows import read_columns
from rankmill.trainer.parameters import TrainParameters
from tests.refusals import refused
from tests.written import write_rows

GOALS = ("bought", "fresh")


def judgments(n=120, seed=1):
    rng = random.Random(seed)
    return [
        {
            "qid": f"q{rng.randrange(15)}",
            "doc_id": f"d{k}",
            "grade": rng.randrange(4),
            "fresh": rng.randrange(3),
            "x": rng.random(),
            "bought": rng.randrange(6),
        }
        for k in range(n)
    ]


def options(*goals, block_size=1 << 20, aggregate=None, **read):
    return IngestOptions(
        buckets=3,
        block_size=block_size,
        aggregate=aggregate,
        read=ReadOptions(goals=goals or GOALS, **read),
    )


def ingested(folder, rows, name="a.csv", **given):
    file = write_rows(folder / name, rows)
    out = folder / f"{name}.dataset"
    ingest([file], out, options=options(**given))
    return Dataset.open(out)


def shards(dataset):
    return [(shard.bucket, shard.features, shard.queries) for shard in dataset.manifest.shards]


def test_goals_are_columns_of_the_dataset_and_no_features(tmp_path):
    rows = judgments()
    dataset = ingested(tmp_path, rows)
    assert dataset.feature_names == ("x",)
    assert dataset.goals == {name: max(row[name] for row in rows) for name in GOALS}
    found = dataset.rows(None, ["doc_id", "grade", *GOALS]).to_pylist()
    wanted = [{name: row[name] for name in ("doc_id", "grade", *GOALS)} for row in rows]
    assert sorted(found, key=lambda row: row["doc_id"]) == sorted(wanted, key=lambda row: row["doc_id"])
    for goal in dataset.manifest.goals:
        counts = {count.grade: count.rows for count in goal.grades}
        values = [row[goal.name] for row in rows]
        assert counts == {grade: values.count(grade) for grade in set(values)}
    (total,) = query_dataset(dataset, "SELECT sum(bought) AS n FROM features").column("n").to_pylist()
    assert total == sum(row["bought"] for row in rows)
    training = read_columns(dataset, "train", TrainParameters())
    assert {name: values.tolist() for name, values in training.goals.items()} == {
        name: dataset.rows("train", [name]).column(0).to_pylist() for name in GOALS
    }


def test_a_row_with_a_grade_needs_its_goals_unless_empty_means_zero(tmp_path):
    rows = judgments(8)
    rows[3]["bought"] = None
    with refused(DataRejected, "a.csv:5", "grade", "unjudged zero"):
        ingested(tmp_path, rows)
    zero = ingested(tmp_path, rows, unjudged="zero")
    found = zero.rows(None, ["doc_id", "bought"]).to_pylist()
    assert {"doc_id": "d3", "bought": 0} in found
    rows[3]["grade"] = None
    kept = ingested(tmp_path, rows, "a.jsonl")
    assert kept.manifest.unjudged_rows == 1
    assert "bought" not in pq.read_schema(kept.unjudged_path(kept.manifest.unjudged[0])).names


def test_words_and_limits_of_grades_hold_for_goals(tmp_path):
    rows = judgments(30)
    names = ["none", "cart", "sale"]
    worded = [row | {"fresh": names[row["fresh"]]} for row in rows]
    words = {name: grade for grade, name in enumerate(names)}
    assert shards(ingested(tmp_path, worded, grades=words)) == shards(ingested(tmp_path, rows, "a.parquet"))
    assert ingested(tmp_path, rows, "nested.jsonl", max_grade=9).goals == {"bought": 9, "fresh": 9}
    with refused(DataRejected, "bought", 4):
        ingested(tmp_path, rows, "a.arrow", max_grade=4)


def test_amounts_are_refused_with_the_way_out(tmp_path):
    rows = [row | {"bought": row["x"] + 0.5} for row in judgments(9)]
    for name in ("a.csv", "a.jsonl", "a.parquet", "a.arrow"):
        with refused(DataRejected, "levels", "ntile"):
            ingested(tmp_path, rows, name)


@pytest.mark.parametrize("how", ["mean", "majority", "latest"])
def test_goals_of_merged_rows_are_combined_like_grades(tmp_path, how):
    rng = np.random.default_rng(3)
    rows = [
        {"qid": f"q{k % 4}", "doc_id": f"d{k % 8}", "grade": grade, "bought": goal, "x": k % 8, "seen": k}
        for k, (grade, goal) in enumerate(rng.integers(0, 5, (60, 2)).tolist())
    ]
    swapped = [row | {"grade": row["bought"], "bought": row["grade"]} for row in rows]
    tables = []
    for number, some in enumerate((rows, swapped)):
        file = write_rows(tmp_path / f"{number}.csv", some)
        given = options("bought", aggregate=how, time_column="seen")
        ingest([file], tmp_path / str(number), options=given)
        table = Dataset.open(tmp_path / str(number)).rows(None, ["doc_id", "grade", "bought"])
        tables.append({row["doc_id"]: (row["grade"], row["bought"]) for row in table.to_pylist()})
    assert tables[0] == {doc: goal[::-1] for doc, goal in tables[1].items()}


def test_goals_beside_judgments_in_files(tmp_path):
    rows = judgments(40)
    plain = ingested(tmp_path, rows)
    qrels = tmp_path / "qrels.txt"
    qrels.write_text("".join(f"{row['qid']} 0 {row['doc_id']} {row['grade']}\n" for row in rows))
    file = write_rows(tmp_path / "rows.jsonl", [{k: v for k, v in row.items() if k != "grade"} for row in rows])
    ingest([file], tmp_path / "joined", qrels=[qrels], options=options())
    assert shards(Dataset.open(tmp_path / "joined")) == shards(plain)
    write_rows(file, [{k: v for k, v in row.items() if k not in {"grade", "fresh"}} | {"fresh": -1} for row in rows])
    with refused(DataRejected, "rows.jsonl:1", -1, "negative_grades zero"):
        ingest([file], tmp_path / "refused", qrels=[qrels], options=options())


def test_names_that_a_metric_could_not_spell_are_refused():
    """Beside those of malformed/cases.toml."""
    for name in ("a b", "a:b", "", "Weight"):
        with refused(InputError, "goals", repr(name)):
            ReadOptions(goals=(name,))


def test_a_goal_may_have_any_name_that_is_not_reserved(tmp_path):
    names = ("bought", "source", "width", "values", "digest", "high", "document", "place")  # some are ours inside
    rows = [row | dict.fromkeys(names, row["bought"]) for row in judgments()]
    ingest([write_rows(tmp_path / "a.csv", rows)], tmp_path / "out", options=options(*names, ignore=("fresh",)))
    plain, *others = Dataset.open(tmp_path / "out").rows("train", names).columns
    assert all(other.equals(plain) for other in others)


def test_describe_counts_the_grades_of_goals(tmp_path):
    rows = judgments()
    dataset = ingested(tmp_path, rows)
    found = describe(dataset)
    (split,) = found.splits
    for name in GOALS:
        values = [row[name] for row in rows]
        assert split.goals[name] == {grade: values.count(grade) for grade in sorted(set(values))}
    assert "bought 5" in found.render()
    assert json.loads(found.to_json())["splits"][0]["goals"]["fresh"]["0"] == [row["fresh"] for row in rows].count(0)
