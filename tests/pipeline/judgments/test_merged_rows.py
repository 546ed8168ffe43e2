"""Which grade a row has, which rows become one and which nobody has judged: held against plain Python."""

import itertools
import random

import numpy as np
import pyarrow as pa
import pytest

from rankmill.foundation.errors import DataRejected
from rankmill.pipeline.group.bucket import repeats
from rankmill.pipeline.group.spill import HIGH, LOW, PLACE, row_schema, with_columns
from rankmill.pipeline.judgments.aggregate import grade_by_judgments, merge_rows
from rankmill.pipeline.options import AGGREGATES
from tests import naive_judgments
from tests.refusals import refused

JUDGMENTS = {"qid": pa.string(), "doc_id": pa.string(), "grade": pa.int32(), "time": pa.int64()}
FEATURES = ("bm25", "age")


def bucket(rows):
    """Columns of dicts qid, doc_id, grade, values, and perhaps time and weight; a digest is the numbers themselves."""
    extras = {
        name: np.array([row[name] for row in rows], dtype=kind)
        for name, kind in (("weight", np.float64), ("time", np.int64))
        if rows and name in rows[0]
    }
    values = np.array([row["values"] for row in rows], dtype=np.float32).reshape(len(rows), 2)
    columns = [[row[name] for row in rows] for name in ("qid", "doc_id", "grade")]
    narrow = pa.record_batch([*columns, [0] * len(rows)], schema=row_schema())
    digest = dict(zip((HIGH, LOW), values.view(np.uint32).astype(np.uint64).T, strict=True))
    return with_columns(narrow, {**extras, **digest, PLACE: np.arange(len(rows))}), lambda chosen: values[list(chosen)]


def merged(rows, how):
    columns, values_of = bucket(rows)
    found, tally = merge_rows(columns, how, FEATURES, values_of)
    return found.to_pylist(), tally


def content(rows, found):
    """What stands in the dataset and what stands apart, whatever the order of the rows."""
    parts = []
    places = [row[PLACE] for row in found]
    assert places == sorted(places)
    for judged in (True, False):
        some = [row for row in found if (row["grade"] >= 0) == judged]
        parts.append(
            sorted(
                (
                    row["qid"],
                    row["doc_id"] or "",
                    row["grade"],
                    rows[row[PLACE]]["values"],
                    row.get("label", -1.0),
                    row.get("time", -1),
                )
                for row in some
            )
        )
    return parts


def random_rows(rng, n, *, agree):
    values = {}
    rows = []
    for number in range(n):
        qid, doc_id = f"q{rng.randrange(6)}", rng.choice([None, *(f"d{d}" for d in range(8))])
        own = (float(rng.randrange(3)), 0.5)
        if doc_id is not None and agree:
            own = values.setdefault((qid, doc_id), own)
        time = rng.randrange(5) if agree else number  # which row is the latest must not be a question of chance
        rows.append({"qid": qid, "doc_id": doc_id, "grade": rng.randrange(-1, 4), "values": own, "time": time})
    return rows


def merged_by_hand(rows, how):
    """(judged, unjudged) as `content` has them."""
    groups = {}
    for number, row in enumerate(rows):
        key = (row["qid"], row["doc_id"]) if row["doc_id"] is not None else number
        groups.setdefault(key, []).append(row)
    judged, unjudged = [], []
    for group in groups.values():
        known = [row for row in group if row["grade"] >= 0]
        counted = known or group
        chosen = max(counted, key=lambda row: (row["time"], row["grade"])) if how == "latest" else counted[0]
        time = max(row["time"] for row in (counted if how == "latest" else group))
        grade, label = (-1, None)
        if known:
            grade, label = naive_judgments.aggregate([(row["grade"], row["time"]) for row in known], how)
        label = (label or 0.0) if how in {"mean", "median"} else -1.0
        line = (chosen["qid"], chosen["doc_id"] or "", grade, chosen["values"], label, time)
        (judged if known else unjudged).append(line)
    return [sorted(judged), sorted(unjudged)]


@pytest.mark.parametrize("how", AGGREGATES)
@pytest.mark.parametrize("n", [0, 1, 2, 30, 200])
def test_rows_of_a_document_become_one(how, n):
    rng = random.Random(n)
    rows = random_rows(rng, n, agree=how != "latest" or n == 30)
    expected = merged_by_hand(rows, how)
    for _ in range(3):
        found, tally = merged(rows, how)
        assert content(rows, found) == expected
        assert len(found) + tally.merged == n
        known = [(row["qid"], row["doc_id"], row["grade"], 0) for row in rows if row["doc_id"] and row["grade"] >= 0]
        several = [group for group in naive_judgments.by_document(known).values() if len(group) > 1]
        assert (tally.repeated, tally.conflicting) == (
            len(several),
            sum(len(set(group)) > 1 for group in several),
        )
        rng.shuffle(rows)


@pytest.mark.parametrize("how", AGGREGATES)
def test_all_small_cases_of_one_document(how):
    kinds = list(itertools.product((-1, 0, 2), (0, 1)))
    for size in (2, 3):
        for case in itertools.product(kinds, repeat=size):
            rows = [{"qid": "q", "doc_id": "d", "grade": g, "values": (1.0, 2.0), "time": t} for g, t in case]
            assert content(rows, merged(rows, how)[0]) == merged_by_hand(rows, how)


def test_rows_that_stay_are_counted():
    rng = random.Random(3)
    rows = random_rows(rng, 100, agree=False)
    ordered = sorted(
        (row for row in rows if row["grade"] >= 0), key=lambda r: (r["qid"], r["doc_id"] is None, r["doc_id"])
    )
    columns, _ = bucket(ordered)
    groups = {}
    for row in ordered:
        if row["doc_id"] is not None:
            groups.setdefault((row["qid"], row["doc_id"]), []).append(row["grade"])
    tally = repeats(columns)
    assert tally.repeated == sum(len(g) > 1 for g in groups.values()) > 0
    assert tally.conflicting == sum(len(set(g)) > 1 for g in groups.values()) > 0
    empty, _ = bucket([])
    assert repeats(empty).repeated == 0


def frame(judgments):
    columns = zip(JUDGMENTS, zip(*judgments, strict=True), strict=True)
    return pa.table({name: pa.array(column, JUDGMENTS[name]) for name, column in columns})


@pytest.mark.parametrize("how", [*AGGREGATES, None])
def test_judgments_are_looked_up(how):
    rng = random.Random(7)
    rows = random_rows(rng, 150, agree=False)
    grade_of = {(f"q{q}", f"d{d}"): rng.randrange(5) for q in range(8) for d in range(11)}
    judgments = []
    for _ in range(120):
        qid, doc_id = rng.choice(list(grade_of))
        grade = grade_of[qid, doc_id] if how is None else rng.randrange(5)
        judgments.append((qid, doc_id, rng.choice([grade, grade, -1]), rng.randrange(3)))
    known = naive_judgments.by_document([j for j in judgments if j[2] >= 0])
    answer = {document: naive_judgments.aggregate(given, how) for document, given in known.items()}
    documents = {(row["qid"], row["doc_id"]) for row in rows}
    for _ in range(3):
        columns, _ = bucket(rows)
        graded, tally = grade_by_judgments(columns, frame(judgments), how)
        found = graded.to_pylist()
        for place, row in enumerate(rows):
            grade, label = answer.get((row["qid"], row["doc_id"]), (-1, None))
            assert found[place]["grade"] == grade
            assert found[place].get("label") == ((label or 0.0) if how in {"mean", "median"} else None)
        assert tally.judgments == sum(map(len, known.values()))
        assert tally.ungraded == len(judgments) - tally.judgments > 0
        assert (
            tally.without_row == sum(len(given) for document, given in known.items() if document not in documents) > 0
        )
        assert tally.repeated == sum(len(given) > 1 for given in known.values())
        assert tally.conflicting == sum(len({grade for grade, _ in given}) > 1 for given in known.values())
        assert tally.merged == 0
        rng.shuffle(rows)
        rng.shuffle(judgments)


def test_rows_without_a_judgment_may_be_zero_or_refused():
    rows = [
        {"qid": q, "doc_id": d, "grade": 3, "values": (0.0, 0.0)}
        for q, d in (("q", None), ("q", "z"), ("q", "a"), ("p", "a"))
    ]
    columns, _ = bucket(rows)
    assert grade_by_judgments(columns, frame([("q", "a", 2, 0)]), None, "zero")[0]["grade"].to_pylist() == [0, 0, 2, 0]
    with refused(DataRejected, "'q'", "'a'", "unjudged keep", "unjudged zero"):
        grade_by_judgments(columns, frame([("p", "a", 2, 0)]), None, "reject")
    with refused(DataRejected, "'q'", "doc_id", "judgment"):
        grade_by_judgments(columns, frame([(q, d, 2, 0) for q in "pq" for d in "az"]), None, "reject")


def test_judges_who_differ_need_a_rule():
    columns, _ = bucket([{"qid": "q", "doc_id": "a", "grade": 0, "values": (0.0, 0.0)}])
    judgments = [
        ("q", "b", 1, 0),
        ("q", "b", 3, 0),
        ("q", "b", 0, 0),
        ("q", "b", 3, 0),
        ("q", "c", 1, 0),
        ("q", "c", 0, 0),
    ]
    for order in itertools.permutations(judgments, len(judgments)):
        with refused(
            DataRejected, "'q'", "'b'", "0, 1 and 3", "aggregate", "mean", "median", "max", "majority", "latest"
        ):
            grade_by_judgments(columns, frame(order), None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"values": (1.0, 7.5)}, ("2 and 7.5", "feature 'age'")),
        ({"values": (np.nan, 2.0)}, ("1 and nan", "feature 'bm25'")),
        ({"weight": 0.25}, ("0.25 and 1", "column 'weight'")),
    ],
)
def test_rows_that_differ_in_more_than_the_grade_are_not_merged(change, message):
    good = {"qid": "q", "doc_id": "b", "grade": 1, "values": (1.0, 2.0), "weight": 1.0, "time": 4}
    other = {**good, "grade": 2, "time": 3, **change}
    worse = {**good, "doc_id": "c", "values": (9.0, 9.0)}
    for rows in itertools.permutations([good, other, good, worse, {**worse, "values": (8.0, 8.0)}]):
        for how in ("mean", "max"):
            with refused(DataRejected, "query 'q'", "document 'b'", message, f"aggregate {how}", "latest"):
                merged(list(rows), how)
        found, _ = merged(list(rows), "latest")
        assert sorted(row["doc_id"] for row in found) == ["b", "c"]
    for nothing in ({}, {"time": 9}, {"grade": 0}):
        assert len(merged([good, {**good, **nothing}], "mean")[0]) == 1


def test_of_equal_times_the_higher_grade_is_the_latest_whole_row():
    rows = [
        {"qid": "q", "doc_id": "d", "grade": g, "values": v, "time": t}
        for g, v, t in ((3, (1.0, 1.0), 1), (0, (2.0, 2.0), 2), (1, (3.0, 3.0), 2), (-1, (4.0, 4.0), 9))
    ]
    for order in itertools.permutations(rows):
        found, tally = merged(list(order), "latest")
        assert [(order[row[PLACE]]["values"], row["time"]) for row in found] == [((3.0, 3.0), 2)]
        assert tally.merged == 3
