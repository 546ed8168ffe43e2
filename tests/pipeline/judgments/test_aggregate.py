"""Several judgments of a document become one, as their definitions say."""

import itertools
import random

import polars as pl
import pytest

from rankmill.pipeline.judgments.aggregate import one_judgment
from rankmill.pipeline.options import AGGREGATES, WITH_LABEL
from tests import naive_judgments


def found_of(judgments, how):
    """{document: (grade, label, judgments, lowest, highest)} as the pipeline has it."""
    documents = sorted({judgment[:2] for judgment in judgments}, key=hash)
    number = {document: 7 * k - 3 for k, document in enumerate(documents)}
    kinds = {"document": pl.Int64, "grade": pl.Int32, "time": pl.Int64}
    judged = [(number[qid, doc_id], grade, time) for qid, doc_id, grade, time in judgments]
    found = one_judgment(pl.DataFrame(judged, schema=kinds, orient="row"), how)
    assert found.schema["grade"] == pl.Int32
    assert ("label" in found.columns) == (how in WITH_LABEL)
    assert sorted(found["document"]) == sorted(number.values())
    label = pl.col("label") if how in WITH_LABEL else pl.lit(None)
    facts = found.select("grade", label.alias("label"), "judgments", "lowest", "highest").rows()
    of_number = dict(zip(found["document"], facts, strict=True))
    return {document: of_number[number[document]] for document in documents}


def expected_of(judgments, how):
    return {
        document: (
            *naive_judgments.aggregate(given, how),
            len(given),
            min(grade for grade, _ in given),
            max(grade for grade, _ in given),
        )
        for document, given in naive_judgments.by_document(judgments).items()
    }


@pytest.mark.parametrize("how", AGGREGATES)
def test_all_small_cases(how):
    """Every list of up to four judgments with grades 0..3 and, for latest, times 0..2."""
    kinds = list(itertools.product(range(4), range(3))) if how == "latest" else [(grade, 0) for grade in range(4)]
    most = 3 if how == "latest" else 5
    judgments = []
    for size in range(1, most + 1):
        for number, case in enumerate(itertools.product(kinds, repeat=size)):
            judgments += [(f"q{size}", f"d{number}", grade, time) for grade, time in case]
    expected = expected_of(judgments, how)
    random.Random(1).shuffle(judgments)
    assert found_of(judgments, how) == expected


@pytest.mark.parametrize("how", AGGREGATES)
def test_many_large_grades_in_any_order(how):
    rng = random.Random(2)
    highest = 2**31 - 1
    pool = [0, 1, highest - 1, highest, *(rng.randrange(highest) for _ in range(5))]
    judgments = [
        (f"q{rng.randrange(4)}", f"d{rng.randrange(4)}", rng.choice(pool), rng.choice([-(2**62), -5, 7, 2**62]))
        for _ in range(2000)
    ]
    expected = expected_of(judgments, how)
    for _ in range(3):
        rng.shuffle(judgments)
        assert found_of(judgments, how) == expected


def test_judges_who_agree_count_as_one():
    judgments = [("q", d, g, 3) for d, g in (("a", 0), ("b", 2), ("c", 7)) for _ in range(g + 1)]
    assert {d: g for (_, d), (g, *_) in found_of(judgments, None).items()} == {"a": 0, "b": 2, "c": 7}


def test_no_judgments_give_no_documents():
    for how in (*AGGREGATES, None):
        assert found_of([], how) == {}
