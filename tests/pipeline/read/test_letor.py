"""LETOR text: every row comes through as written, and a bad line is named to the column."""

import bz2
import gzip
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankmill.foundation.errors import DataRejected, MalformedLine, TooManyRejects
from rankmill.pipeline.options import ReadOptions
from rankmill.pipeline.read.batch import Quarantine
from rankmill.pipeline.read.letor import LetorSource
from rankmill.pipeline.read.open_source import open_source
from tests import naive
from tests.refusals import refused


def read(path, block_bytes=1 << 20, quarantine=None, **options):
    """All rows of a file: grade, qid, doc_id, dense values at the final width."""
    batches = list(LetorSource(path, ReadOptions(**options), quarantine).batches(block_bytes))
    width = max((batch.values.shape[1] for batch in batches), default=0)
    absent = ReadOptions(**options).absent_value
    rows = []
    for batch in batches:
        doc_ids = [None] * len(batch) if batch.doc_id is None else batch.doc_id.to_pylist()
        for k, (qid, doc_id) in enumerate(zip(batch.qid.to_pylist(), doc_ids, strict=True)):
            values = np.full(width, absent, np.float32)
            values[: batch.values.shape[1]] = batch.values[k]
            rows.append((int(batch.grade[k]), qid, doc_id, values.tobytes()))
    return rows


def expected_rows(text, index_base=1, absent="zero"):
    rows = naive.parse_letor(text)
    width = max((index - index_base + 1 for *_, features in rows for index in features), default=0)
    dense = []
    for grade, qid, doc_id, features in rows:
        values = np.full(width, 0.0 if absent == "zero" else np.nan, np.float32)
        for index, value in features.items():
            values[index - index_base] = value
        dense.append((grade, qid, doc_id, values.tobytes()))
    return dense


word = st.text(st.characters(exclude_categories=["Cs", "Cc", "Z"]), min_size=1, max_size=6)
value = st.one_of(
    st.floats(width=32).map(repr),
    st.floats().map(repr),
    st.integers(0, 999).map(str),
    st.sampled_from(["NULL", "nan", "-0"]),
)
blank = st.sampled_from([" ", "  ", "\t", " \t "])
comment = st.one_of(
    st.just(""),
    st.builds(lambda a, b, c, name: f" #{a}docid{b}={c}{name} inc = 1", *[st.sampled_from(["", " "])] * 3, word),
    st.sampled_from([" # nothing", " #docid", " #docid =", " # docid : 3", " #"]),
)


@st.composite
def line(draw):
    kind = draw(st.integers(0, 9))
    if kind == 0:
        return draw(st.sampled_from(["", "  ", "# only a comment", "\t# docid = X"]))
    grade = draw(st.sampled_from(["0", "1", "2", "3.0", "4.", "00"]))
    indices = draw(st.lists(st.integers(1, 40), unique=True, max_size=8))
    fields = [grade, f"qid:{draw(word)}", *(f"{index}:{draw(value)}" for index in indices)]
    gap = draw(blank)
    return gap.join(fields) + draw(st.sampled_from(["", " "])) + draw(comment)


@st.composite
def letor_text(draw):
    lines = draw(st.lists(line(), min_size=1, max_size=12))
    end = draw(st.sampled_from(["\n", "\r\n"]))
    return draw(st.sampled_from(["", "\ufeff"])) + end.join(lines) + draw(st.sampled_from(["", end]))


@given(letor_text(), st.sampled_from([1, 7, 64, 1 << 20]), st.sampled_from(["zero", "missing"]))
@settings(max_examples=200, deadline=None)
def test_rows_are_those_of_the_naive_parser_for_any_block_size(tmp_path_factory, text, block_bytes, absent):
    path = tmp_path_factory.getbasetemp() / "any.txt"
    path.write_bytes(text.encode())
    assert read(path, block_bytes, absent=absent) == expected_rows(text, absent=absent)


GOOD = "1 qid:7 1:0.5 2:1\n"
NO_QID = "bad.txt.query"
MALFORMED = [
    ("x qid:7 1:1", 1, "grade", "x", "grades good=1,bad=0"),
    ("x quid:7 1:1", 1, "grade", "x", ""),
    ("-1 qid:7 1:1", 1, "grade", "-1", "negative_grades zero"),
    ("0.5 qid:7 1:1", 1, "grade", "0.5", ""),
    ("1e-1 qid:7 1:1", 1, "grade", "1e-1", ""),
    (" nan qid:7", 2, "grade", "nan", "unjudged keep"),
    ("qid:7 1:1", 1, "grade", "qid:7", ""),
    (".0 qid:7", 1, "grade", ".0", ""),
    ("99999999999999999999 qid:7 1:1", 1, "2147483647", "99999999999999999999", ""),
    ("1 1:0.5", 3, "qid:ID", "1:0.5", NO_QID),
    ("1", 2, "qid:ID", "", NO_QID),
    ("1 # docid = 3", 3, "qid:ID", "#", NO_QID),
    ("1 QID:7 1:0.5", 3, "qid:ID", "QID:7", NO_QID),
    ("1 qid: 1:0.5", 3, "id", "qid:", ""),
    ("1 qid:7 0:0.5", 9, "index", "0:0.5", "index_base 0"),
    ("1 qid:7 1:0.5 1:0.5", 15, "once", "1:0.5", ""),
    ("1 qid:7 2:1 1:0.5 2:0.5 # c", 19, "once", "2:0.5", ""),
    ("1 qid:7 1:", 9, "number", "1:", ""),
    ("1 qid:7 1:a", 9, "number", "1:a", ""),
    ("1 qid:7 1:0.5x 2:1", 9, "number", "1:0.5x", ""),
    ("1 qid:7 1:1_0", 9, "number", "1:1_0", ""),
    ("1 qid:7 1:0x1", 9, "number", "1:0x1", ""),
    ("1 qid:7 1:0.5:3", 9, "number", "1:0.5:3", ""),
    ("1 qid:7 1 :0.5", 9, "index:value", "1", ""),
    ("1 qid:7 a:0.5", 9, "index:value", "a:0.5", ""),
    ("1 qid:7 :0.5", 9, "index:value", ":0.5", ""),
    ("1 qid:7 -1:0.5", 9, "index:value", "-1:0.5", ""),
    ("1 qid:7 1.5:0.5", 9, "index:value", "1.5:0.5", ""),
    ("1 qid:7 1:0.5#docid=3", 9, "number", "1:0.5#docid=3", "comment begins with a blank"),
    ("1# qid:7 1:1", 1, "grade", "1#", ""),
    ("1 qid:7 1#:1", 9, "index:value", "1#:1", ""),
    ("1 qid:7 1:1 qid:8", 13, "index:value", "qid:8", ""),
    ("1 qid:7 70000:1", 9, "65535", "70000:1", ""),
    ("1 qid:7 99999999999999999999:1", 9, "65535", "99999999999999999999:1", ""),
    ("1 qid:é 1:x", 9, "number", "1:x", ""),
    ("1\vqid:7", 1, "grade", "1\vqid:7", ""),
    ("1 qid:7 " + "9" * 100, 9, "index:value", "9" * 59 + "…", ""),
]  # fmt: skip


@pytest.mark.parametrize("block_bytes", [5, 1 << 20])
@pytest.mark.parametrize(("bad", "column", "expected", "found", "cure"), MALFORMED)
def test_a_bad_line_is_named_to_the_column(tmp_path, bad, column, expected, found, cure, block_bytes):
    path = tmp_path / "bad.txt"
    path.write_bytes((GOOD + "\n" + GOOD + bad + "\n" + GOOD).encode())
    with refused(MalformedLine, f"{path}:4:{column}", expected, repr(found) if found else "nothing", cure):
        read(path, block_bytes, unjudged="reject")


def test_bounds_that_were_asked_for(tmp_path):
    path = tmp_path / "bad.txt"
    path.write_text("3 qid:7 1:1 5:1\n")
    with refused(MalformedLine, "bad.txt:1:1", "grade", "2", "'3'"):
        read(path, max_grade=2)
    with refused(MalformedLine, "bad.txt:1:13", "index", "4", "'5:1'", "n_features 4"):
        read(path, n_features=4)
    with refused(MalformedLine, "index", "4", "'5:1'"):
        read(path, n_features=5, index_base=0)
    assert read(path, n_features=7, max_grade=3)[0][3] == np.float32([1, 0, 0, 0, 1, 0, 0]).tobytes()


def test_features_may_count_from_zero(tmp_path):
    path = tmp_path / "zero.txt"
    path.write_text("0 qid:1 0:5 2:7\n")
    assert read(path, index_base=0) == expected_rows("0 qid:1 0:5 2:7", index_base=0)
    assert LetorSource(path, ReadOptions(index_base=0)).names(3) == ("f0", "f1", "f2")
    assert LetorSource(path, ReadOptions()).names(2) == ("f1", "f2")


def test_a_million_short_lines_with_one_high_index_do_not_take_the_memory(tmp_path):
    path = tmp_path / "wide.txt"
    path.write_text("0 qid:1 65000:1\n" * 600)
    sizes = [batch.values.nbytes for batch in LetorSource(path, ReadOptions()).batches()]
    assert len(sizes) > 1
    assert max(sizes) <= 64 << 20


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"1 qid:1 1:1\n1 qid:\xe9 1:1\n", ":2: not a text file: byte 0xE9 is not UTF-8; convert the file to UTF-8"),
        (b"1 qid:1 1:1\n\n1 qid:\0 1:1\n", ":3: not a text file: it has a NUL byte; give format if it is a table"),
        ("1 qid:1 1:1\n".encode("utf-16"), ": is text in UTF-16 or UTF-32; convert the file to UTF-8"),
        (
            b"1 qid:1 1:1\r1 qid:\xc3\xa9\r\n",
            ":1:12: expected lines that end with LF or CR LF, found a CR alone; convert",
        ),
    ],
)
@pytest.mark.parametrize("block_bytes", [4, 1 << 20])
def test_what_is_no_text_is_said_to_be_none(tmp_path, data, message, block_bytes):
    path = tmp_path / "data.txt"
    path.write_bytes(data)
    with pytest.raises(DataRejected) as caught:
        read(path, block_bytes)
    assert str(caught.value).startswith(f"{path}{message}")


def test_compressed_text_is_read_and_damage_is_said(tmp_path):
    text = (GOOD * 50).encode()
    for suffix, compress in ((".gz", gzip.compress), (".bz2", bz2.compress)):
        path = tmp_path / f"rows.txt{suffix}"
        path.write_bytes(compress(text[:500]) + compress(text[500:]))
        assert len(read(path, 100)) == 50
        path.write_bytes(compress(text)[:-6])
        with refused(DataRejected, "damaged", "truncated"):
            read(path, 100)


def test_rejects_are_listed_up_to_the_limit(tmp_path):
    path = tmp_path / "rows.txt"
    path.write_text(f"{GOOD}1 qid:2 1:x\n{GOOD}# c\n-1 qid:3 # why\n{GOOD}")
    for block_bytes in (1, 30, 1 << 20):
        quarantine = Quarantine(limit=2)
        assert len(read(path, block_bytes, quarantine)) == 3
        assert [(r.source, r.line, r.column, r.text) for r in quarantine.rejects] == [
            ("rows.txt", 2, 9, "1 qid:2 1:x"),
            ("rows.txt", 5, 1, "-1 qid:3 # why"),
        ]
        assert quarantine.rejects[1].reason.startswith(
            "expected a grade: a whole number, 0 or more, found -1; to accept neg"
        )
    with refused(TooManyRejects, "rows.txt:2:9", "index:value", "max_rejects 1"):
        read(path, quarantine=Quarantine(limit=1))


def test_a_rejected_line_leaves_no_trace(tmp_path):
    path = tmp_path / "rows.txt"
    path.write_text("1 qid:1 1:1\n1 qid:2 9:1 1:0.30000001192092896 2:x\n1 qid:3 2:2 1:3\n")
    rows = read(path, quarantine=Quarantine(limit=1))
    assert rows == expected_rows("1 qid:1 1:1\n1 qid:3 2:2 1:3\n")


def test_a_row_whose_grade_is_bad_leaves_no_trace(tmp_path):
    path = tmp_path / "rows.txt"
    good = ["1 qid:1 1:1 # docid = a\n", "2 qid:2 1:0.3 3:0.30000001192092896\n", "0 qid:1 2:2 1:3 # docid = b\n"]
    bad = ["good qid:1 9:1 2:0.30000001192092896 # docid = c\n", "-1 qid:4 70:1\n", "3 qid:\n", "-x qid:1 8:1\n"]
    rng = random.Random(3)
    for _ in range(30):
        lines = rng.choices(good, k=4) + bad
        rng.shuffle(lines)
        path.write_text("".join(lines))
        for block_bytes in (1, 60, 1 << 20):
            quarantine = Quarantine(limit=4)
            rows = read(path, block_bytes, quarantine)
            assert rows == expected_rows("".join(line for line in lines if line not in bad))
            assert [r.text + "\n" for r in quarantine.rejects] == [line for line in lines if line in bad]
            assert [r.line for r in quarantine.rejects] == [k for k, line in enumerate(lines, 1) if line in bad]
        worst = next(k for k, line in enumerate(lines, 1) if line in bad)
        with pytest.raises(MalformedLine, match=rf"rows.txt:{worst}:"):
            read(path)


def test_open_source_goes_by_the_suffix(tmp_path):
    path = tmp_path / "rows.txt"
    path.write_text(GOOD)
    assert isinstance(open_source(path), LetorSource)


def test_a_mark_inside_a_word_is_part_of_it(tmp_path):
    lines = ["2 qid:c 1:1", "1 qid:c# 1:2 # docid = a#b", "0 qid:#c 1:3 #docid=#7", "0 qid:c#d#\t1:4 #", "#2 qid:x 1:5"]
    (tmp_path / "rows.txt").write_text("\n".join(lines))
    found = [(qid, doc_id, values) for _, qid, doc_id, values in read(tmp_path / "rows.txt")]
    numbers = [np.float32([x]).tobytes() for x in (1, 2, 3, 4)]
    assert found == [*zip(["c", "c#", "#c", "c#d#"], [None, "a#b", "#7", None], numbers, strict=True)]
