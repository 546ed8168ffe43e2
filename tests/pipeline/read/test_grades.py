"""What grades mean: the rules of words, of negative numbers and of no grade, against a plain reading of each cell."""

import json
import math
import random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from rankmill.foundation.errors import DataRejected, InputError
from rankmill.pipeline.cli import app
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.pipeline.ingest import ingest
from rankmill.pipeline.options import MAX_GRADE, IngestOptions, ReadOptions, parse_words
from rankmill.pipeline.read.grades import GradeRules
from tests import naive_text
from tests.refusals import refused
from tests.written import data_of, write_rows

WORDS = (("Perfect", 4), ("good", 2), ("BAD", 0), ("-2", 0), ("0.5", 1), ("7", 3), ("somewhat bad", 1))
CELLS = ["perfect", " GOOD ", "bad", "b a d", "Somewhat Bad", "-2", "-2.0", "-1", "0", "-0", "1", "2.0", "2.5", ".5"]
CELLS += ["0.5", "7", "07", "3", "9", "1e1", "1.000e+00", "TRUE", "false", "inf", "x", "", " ", "nan", "NULL", None]
CELLS += ["99999999999", "-3.5"]


@given(
    st.lists(st.sampled_from(CELLS), max_size=12),
    st.sampled_from(["reject", "zero", "unjudged"]),
    st.sampled_from(["keep", "zero", "reject"]),
    st.sampled_from([(), WORDS, (("unknown", -1), *WORDS)]),
    st.sampled_from([4, 8, MAX_GRADE]),
)
@settings(deadline=None)
def test_a_cell_is_read_by_the_map_then_by_its_sign_then_by_whether_it_is_there(
    cells, negative, unjudged, words, highest
):
    if negative == "reject":
        words = words[-len(WORDS) :]
    rules = GradeRules(words=words, negative=negative, unjudged=unjudged, highest=highest)
    grades, bad = rules.read_words(pa.array(cells, pa.string()))
    assert grades.dtype == np.int32
    assert [None if b else g for g, b in zip(grades.tolist(), bad.tolist(), strict=True)] == [
        naive_text.grade(c, rules) for c in cells
    ]


@given(
    st.lists(
        st.one_of(
            st.sampled_from([-2.0, -1.0, -0.0, 0.5, 7.0, math.nan, math.inf, -math.inf]),
            st.integers(-5, 10),
            st.floats(),
        )
    ),
    st.sampled_from(["reject", "zero", "unjudged"]),
    st.sampled_from(["keep", "zero", "reject"]),
    st.booleans(),
)
@settings(deadline=None)
def test_numbers_mean_what_the_same_numbers_mean_as_text(numbers, negative, unjudged, mapped):
    rules = GradeRules(words=WORDS if mapped else (), negative=negative, unjudged=unjudged, highest=9)
    numbers = [float(x) for x in numbers]
    grades, bad = rules.resolve_numbers(np.array(numbers, dtype=np.float64))
    text = ["" if math.isnan(x) else f"{x:.400f}" if math.isfinite(x) else "inf" for x in numbers]
    reported, bad_by_kernel = rules.read_words(pa.array(text, pa.string()))
    assert bad.tolist() == bad_by_kernel.tolist()
    assert grades[~bad].tolist() == reported[~bad].tolist()


def test_a_map_that_is_none_is_refused():
    """Beside those of malformed/cases.toml."""
    for text, *facts in (("a=1,,b=2", "''"), ("a=1,=2", "'=2'"), ("1=1,1.0=2", "'1.0'", "twice")):
        with refused(InputError, "grades", *facts):
            GradeRules(words=parse_words(text), highest=5)
    for name, value, known in (("negative", "zeros", "'zero'"), ("unjudged", "keeps", "'keep'")):
        with refused(InputError, repr(value), known):
            GradeRules(**{name: value})


# ---- in an ingest --------------------------------------------------------------------------------------------------


def write(path, grades, words):
    """Rows whose grades are ``grades``, or the ``words`` for them; the features distinguish them."""
    blank = " " if path.suffix == ".csv" else ""
    cells = [f"{blank}{words[grade]}{blank}" if words else grade for grade in grades]
    rows = [{"qid": k // 5, "doc_id": f"d{k}", "grade": cell, "f1": float(k)} for k, cell in enumerate(cells)]
    return write_rows(path, rows, encoded=("grade",) if words else ())


@pytest.mark.parametrize("suffix", [".csv", ".txt", ".parquet", ".jsonl"])
def test_grades_by_other_words_make_the_dataset_of_the_numbers(tmp_path, suffix):
    """What each cell means is tested above, here that every format asks those rules."""
    rng = random.Random(4)
    grades = [0, 1, 2, 3, 4] + [rng.randrange(5) for _ in range(45)]
    ingest([write(tmp_path / f"plain{suffix}", grades, {})], tmp_path / "plain", options=IngestOptions(buckets=3))
    for words, block_bytes, options in (
        ("Bad FAIR good Excellent perfect", 50, {"grades": parse_words("perfect=4,excellent=3,good=2,fair=1,bad=0")}),
        ("-2 1 2 3 4", 1 << 20, {"negative_grades": "unjudged", "unjudged": "zero"}),
        ("? 1 2.0 3 best", 1 << 20, {"grades": parse_words("?=-1,best=4"), "negative_grades": "zero"}),
    ):
        worded = write(tmp_path / f"worded{suffix}", grades, dict(enumerate(words.split())))
        read = IngestOptions(buckets=3, read=ReadOptions(**options), block_size=block_bytes, overwrite=True)
        ingest([worded], tmp_path / "worded", options=read)
        assert data_of(tmp_path / "worded", "meaning") == data_of(tmp_path / "plain", "meaning")


def test_the_manifest_says_options_of_grades_were_given_and_nothing_else(tmp_path):
    (tmp_path / "in.txt").write_text("good qid:1 1:1\n-1 qid:1 1:2\nbad qid:1 1:3\n")
    reported = ["--grades", "good=1,bad=0", "--negative-grades", "zero", "--unjudged", "zero"]
    result = CliRunner().invoke(
        app, ["ingest", str(tmp_path / "in.txt"), "-o", str(tmp_path / "out"), *reported, "--json"]
    )
    assert json.loads(result.stdout)["grades"] == {"0": 2, "1": 1}
    meaning = json.loads((tmp_path / "out" / "_manifest.json").read_bytes())["meaning"]
    assert meaning == {
        "absent": "zero",
        "grades": {"bad": 0, "good": 1},
        "index_base": 1,
        "negative_grades": "zero",
        "no_grade": "zero",
        "split": None,
    }


def test_grades_that_are_mapped_are_bounded_and_no_labels(tmp_path):
    with refused(InputError, "grades", "good", "3", "max_grade 2"):
        ReadOptions(grades=parse_words("good=3"), max_grade=2)
    with refused(InputError, "labels real"):
        ReadOptions(grades=parse_words("good=3"), labels="real")
    (tmp_path / "in.txt").write_text("1 qid:1 1:1\n7 qid:1 1:2\n")
    options = IngestOptions(read=ReadOptions(grades=parse_words("1=0"), max_grade=2))
    with refused(DataRejected, "in.txt:2:1", "grade", "2", "'7'"):
        ingest([tmp_path / "in.txt"], tmp_path / "out", options=options)


@pytest.mark.parametrize(
    ("suffix", "words", "options"),
    [
        (".csv", {0: "nan", 1: "1", 2: "2"}, {}),
        (".parquet", {0: "-1", 1: "1", 2: "2"}, {"negative_grades": "unjudged"}),
        (".txt", {0: "?", 1: "1", 2: "2"}, {"negative_grades": "unjudged", "grades": parse_words("?=-1")}),
        (".jsonl", {0: "-1", 1: "1", 2: "2"}, {"negative_grades": "unjudged"}),
    ],
)
def test_unjudged_rows_leave_the_dataset_of_the_others(tmp_path, suffix, words, options):
    rng = random.Random(6)
    grades = [0, 1, 2] + [rng.randrange(3) for _ in range(60)]
    unjudged = {f"d{k}" for k, grade in enumerate(grades) if grade == 0}
    report = ingest(
        [write(tmp_path / f"in{suffix}", grades, words)],
        tmp_path / "out",
        options=IngestOptions(read=ReadOptions(**options)),
    )
    assert report.manifest.unjudged_rows == len(unjudged)
    kept = [pq.read_table(file, columns=["doc_id"]) for file in (tmp_path / "out" / "_unjudged").iterdir()]
    assert {doc_id for table in kept for doc_id in table["doc_id"].to_pylist()} == unjudged
    rows = Dataset.open(tmp_path / "out").rows(None, ["doc_id", "grade", "f1"])
    found = zip(*(rows[name].to_pylist() for name in rows.column_names), strict=True)
    assert sorted(found) == sorted((f"d{k}", grade, float(k)) for k, grade in enumerate(grades) if grade)


def test_rows_without_a_judgment_need_judgments_or_pairs(tmp_path):
    (tmp_path / "a.csv").write_text("qid,doc_id,grade,x\n1,a,,1\n1,b,-1,2\n")
    (tmp_path / "pairs.txt").write_text("1 b a\n")
    (tmp_path / "qrels").write_text("1 0 b 2\n")
    reported = {"negative_grades": "unjudged"}
    with refused(DataRejected, "grade", "qrels FILE", "pairs FILE", "unjudged zero"):
        ingest([tmp_path / "a.csv"], tmp_path / "out", options=IngestOptions(read=ReadOptions(**reported)))
    assert not (tmp_path / "out").exists()
    options = IngestOptions(read=ReadOptions(**reported, unjudged="zero"))
    report = ingest([tmp_path / "a.csv"], tmp_path / "paired", pairs=[tmp_path / "pairs.txt"], options=options)
    assert [(count.grade, count.rows) for count in report.manifest.grades] == [(0, 2)]
    options = IngestOptions(read=ReadOptions(**reported))
    report = ingest([tmp_path / "a.csv"], tmp_path / "judged", qrels=[tmp_path / "qrels"], options=options)
    assert [(count.grade, count.rows) for count in report.manifest.grades] == [(2, 1)]
    assert report.manifest.unjudged_rows == 1
