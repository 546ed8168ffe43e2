"""Judgments in files of their own: every form of them says the same, and what is none is named with its place."""

import gzip
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rankmill.foundation.errors import DataRejected, TooManyRejects
from rankmill.pipeline.judgments.judgment_files import JudgmentFile
from rankmill.pipeline.options import MAX_GRADE, ReadOptions
from rankmill.pipeline.read.batch import Quarantine
from rankmill.pipeline.read.grades import GradeRules
from tests.refusals import refused
from tests.written import write_rows

KEEP = GradeRules(unjudged="keep", negative="unjudged")


def write(path, judgments):
    """[(qid, doc_id, grade, time)] in the form that the suffix asks for; times in tables only."""
    if path.suffix in {".parquet", ".feather", ".jsonl", ".csv", ".tsv"}:
        rows = [{"when": t, "grade": g, "judge": "me", "qid": q, "doc_id": d} for q, d, g, t in judgments]
        return write_rows(path, rows, group=7)
    text = "\n".join(f"{q}\t0 {' ' * (g + 1)}{d} {g}\r\n" for q, d, g, _ in judgments)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def options_of(rules, **given):
    return ReadOptions(
        grades=rules.words,
        negative_grades=rules.negative,
        unjudged=rules.unjudged,
        max_grade=None if rules.highest == MAX_GRADE else rules.highest,
        **given,
    )


def read(path, rules=KEEP, limit=0, block_bytes=1 << 20, **given):
    quarantine = Quarantine(limit)
    options = options_of(rules, **given)
    found = []
    for batch in JudgmentFile(path, options, quarantine).batches(block_bytes):
        columns = batch.to_pydict()
        times = [time // 10**6 for time in columns["time"]] if "time" in columns else [None] * len(batch)
        found += zip(columns["qid"], columns["doc_id"], columns["grade"], times, strict=True)
    return found, quarantine.rejects


def some_judgments(n=200, seed=1):
    rng = random.Random(seed)
    return [
        (f"q{rng.randrange(20)}", f"d{rng.randrange(99)}", rng.randrange(-1, 5), rng.randrange(9)) for _ in range(n)
    ]


@pytest.mark.parametrize("name", ["a.txt", "qrels", "a.gz", "a.csv", "a.tsv", "a.parquet", "a.feather", "a.jsonl"])
@pytest.mark.parametrize("block_bytes", [1, 64, 1 << 20])
def test_every_form_says_the_same(tmp_path, name, block_bytes):
    judgments = some_judgments()
    path = write(tmp_path / name, judgments)
    table = path.suffix in {".csv", ".tsv", ".parquet", ".feather", ".jsonl"}
    wanted = [(q, d, g, t if table else None) for q, d, g, t in judgments]
    assert read(path, time_column="when" if table else None, block_bytes=block_bytes) == (wanted, [])
    if table:
        assert read(path)[0] == [(q, d, g, None) for q, d, g, _ in judgments]


def test_grades_are_read_by_the_rules_of_all_sources(tmp_path):
    rules = GradeRules(words=(("perfect", 4), ("bad", 0)), negative="zero", unjudged="keep")
    words = ["Perfect", "bad", "-3", "2", "null"]
    wanted = [("q", f"d{k}", grade, None) for k, grade in enumerate([4, 0, 0, 2, -1])]
    (tmp_path / "a").write_text("".join(f"q 0 d{k} {word}\n" for k, word in enumerate(words)))
    (tmp_path / "a.csv").write_text("qid,doc_id,grade\n" + "".join(f"q,d{k},{word}\n" for k, word in enumerate(words)))
    pq.write_table(
        pa.table({"qid": ["q"] * 5, "doc_id": [f"d{k}" for k in range(5)], "grade": words}), tmp_path / "a.parquet"
    )
    for name in ("a", "a.csv", "a.parquet"):
        assert read(tmp_path / name, rules)[0] == wanted


def test_columns_have_the_names_that_options_or_habits_give(tmp_path):
    for name, header, columns in (
        ("a.csv", "judge,qid,doc_id,grade", {}),
        ("b.csv", "judge,query_id,url,Relevance", {}),
        ("c.csv", "grade,q,d,g", {"qid": "q", "doc_id": "d", "grade": "g"}),
        ("d.csv", "judge,qid,doc_id,grade", {"qid": "of the rows", "weight": "w"}),
    ):
        (tmp_path / name).write_text(f"{header}\nme,1,2,3\n")
        assert read(tmp_path / name, columns=columns)[0] == [("1", "2", 3, None)]
    (tmp_path / "e.csv").write_text("qid,doc_id,rel,rating\n")
    with refused(DataRejected, "grade", "'rel'", "'rating'"):
        read(tmp_path / "e.csv")


def test_whole_numbers_may_be_ids_and_grades_may_be_floats(tmp_path):
    table = pa.table(
        {"doc_id": pa.array([7, 8], pa.int16()), "grade": [1.0, None], "qid": pa.array([301, 302], pa.uint64())}
    )
    pq.write_table(table, tmp_path / "a.parquet")
    assert read(tmp_path / "a.parquet")[0] == [("301", "7", 1, None), ("302", "8", -1, None)]


def test_what_is_no_judgment_is_named(tmp_path):
    """Beside those of malformed/cases.toml."""
    for name, text, *facts in (
        ("a", "1 0 dé 1.5\n", ":1:8", "'1.5'", "grade"),
        ("a", "1 0 d1 null\n", ":1:8", "'null'", "unjudged keep"),
        ("a", "1 0 d1 99\n", ":1:8", "9", "'99'"),
        ("a", "1 0 \0 1\n", ":1", "NUL"),
        ("a.csv", "qid,doc_id,grade,qid\n", "'qid'", "twice"),
        ("a.csv", "grade,qid,doc_id\n0,1,2\n0,,2\n", ":3:3", "query"),
        ("a.csv", "grade,qid,doc_id\n0,1,\n", ":2:5", "document"),
        ("a.jsonl", '{"qid": 1, "doc_id": "", "grade": 1}\n', ":1:12", "document"),
        ("a.csv", "qid,doc_id,grade\n1,2\n", ":2:1", "3", "'2 cells'"),
    ):
        (tmp_path / name).write_text(text)
        with refused(DataRejected, tmp_path / name, *facts):
            read(tmp_path / name, GradeRules(highest=9))


@pytest.mark.parametrize("name", ["a.txt", "a.csv", "a.parquet"])
@pytest.mark.parametrize("block_bytes", [1, 1 << 20])
def test_bad_judgments_are_quarantined_in_order_and_the_good_ones_stay(tmp_path, name, block_bytes):
    judgments = some_judgments(n=100)
    path = write(tmp_path / name, judgments)
    bad = [k for k, judgment in enumerate(judgments) if judgment[2] < 0]
    found, rejects = read(path, GradeRules(), limit=len(bad), block_bytes=block_bytes)
    assert [judgment[:3] for judgment in found] == [judgment[:3] for judgment in judgments if judgment[2] >= 0]
    first, step = {"a.txt": (1, 2), "a.csv": (2, 1), "a.parquet": (1, 1)}[name]
    assert [(reject.source, reject.line) for reject in rejects] == [(name, first + step * k) for k in bad]
    with pytest.raises(TooManyRejects):
        read(path, GradeRules(), limit=len(bad) - 1, block_bytes=block_bytes)
