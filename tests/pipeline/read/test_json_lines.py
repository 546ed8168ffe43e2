"""JSON lines: the rows are those that Python's own reader finds, whatever the lines around them and the size of a
block."""

import gzip
import json
import os
import random
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankmill.foundation.errors import DataRejected, MalformedLine, TooManyRejects
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.pipeline.ingest import ingest
from rankmill.pipeline.options import IngestOptions, ReadOptions
from rankmill.pipeline.read.batch import Quarantine
from rankmill.pipeline.read.json_lines import JsonSource
from rankmill.pipeline.read.open_source import open_source, share_features
from rankmill.scorer.rerank.candidate_sources import open_sources
from tests import ROOT, naive_json
from tests.refusals import refused
from tests.written import files_in


def read(path, block_bytes=1 << 20, quarantine=None, **options):
    """Features, and all rows: qid, doc_id, grade, values."""
    source = JsonSource(path, ReadOptions(**{"unjudged": "reject"} | options), quarantine)
    rows = []
    for batch in source.batches(block_bytes):
        doc_ids = [None] * len(batch) if batch.doc_id is None else batch.doc_id.to_pylist()
        grades = [None] * len(batch) if batch.grade is None else batch.grade.tolist()
        rows += zip(batch.qid.to_pylist(), doc_ids, grades, map(np.ndarray.tobytes, batch.values), strict=True)
    return source.columns, rows


def dense(rows):
    """The same as `read` finds, of what `naive_json.parse` finds."""
    names = sorted({name for *_, values in rows for name in values}, key=naive_json.natural)
    return [
        (*keys, np.array([values.get(name, np.nan) for name in names], np.float32).tobytes()) for *keys, values in rows
    ]


number = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False),
    st.floats(width=32, allow_nan=False, allow_infinity=False),
    st.integers(-(10**25), 10**25),
    st.sampled_from([0, -0.0, None, float("nan"), float("inf")]),
)
name = st.sampled_from(["bm25", "f10", "f9", "é", 'a"b', "\\", "x y", "f"])
an_id = st.one_of(
    st.integers(-5, 10**18), st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1)
)


@st.composite
def objects(draw):
    nested = draw(st.booleans())
    lines = []
    for _ in range(draw(st.integers(1, 12))):
        features = draw(st.dictionaries(name, number, max_size=4))
        row = {"qid": draw(an_id), "grade": draw(st.sampled_from([0, 1, 2.0, 31])), "doc_id": draw(st.none() | an_id)}
        row |= {"features": features} if nested else features
        keys = draw(st.permutations(list(row)))
        if draw(st.booleans()):
            keys = [key for key in keys if key != "doc_id"]
        separators = draw(st.sampled_from([(",", ":"), (", ", ": "), (" ,\t", " :")]))
        line = json.dumps({key: row[key] for key in keys}, ensure_ascii=draw(st.booleans()), separators=separators)
        lines.append(draw(st.sampled_from(["", " ", "\n", "\t"])) + line + draw(st.sampled_from(["", "  "])))
    every = {"qid": "last", "grade": 0, **({"features": {"f": 1}} if nested else {"f": 1})}
    end = draw(st.sampled_from(["\n", "\r\n"]))
    return (
        draw(st.sampled_from(["", "\ufeff"])) + end.join([*lines, json.dumps(every)]) + draw(st.sampled_from(["", end]))
    )


@given(objects(), st.sampled_from([1, 50, 1 << 20]))
@settings(max_examples=80, deadline=None)
def test_rows_are_those_of_pythons_reader_for_any_block_size(tmp_path_factory, text, block_bytes):
    path = tmp_path_factory.getbasetemp() / "any.jsonl"
    path.write_bytes(text.encode())
    rows, bad = naive_json.parse(text.removeprefix("\ufeff"))
    assert not bad
    names, found = read(path, block_bytes)
    keys = {key for *_, values in rows for key in values}
    extra = [key for key in names if key not in keys]  # always null
    assert [key for key in names if key in keys] == sorted(keys, key=naive_json.natural)
    width = len(names)
    places = [k for k, key in enumerate(names) if key not in extra]
    matrix = [np.frombuffer(values, np.float32).reshape(width)[places].tobytes() for *_, values in found]
    assert [(*row[:3], values) for row, values in zip(found, matrix, strict=True)] == dense(rows)


def test_features_may_be_an_array(tmp_path):
    path = tmp_path / "a.ndjson.gz"
    path.write_bytes(
        gzip.compress(b'{"grade":1,"features":[1,null,0.1],"qid":7}\n{"grade":1,"features":[NaN,2,3],"qid":7}\n')
    )
    names, rows = read(path)
    assert names == ("f1", "f2", "f3")
    assert [row[3] for row in rows] == [np.float32(v).tobytes() for v in ([1, np.nan, 0.1], [np.nan, 2, 3])]
    assert isinstance(open_source(path), JsonSource)


GOOD = '{"qid":"q","grade":1,"x":1}'
MAKE_NULL = ("null", "max_rejects N", "ignore x")
DEEP = "[" * 300 + "]" * 300
BAD = [
    ("{", 2, "key", "", "end"),
    ("[1]", 1, "{..}", "[1]", "array"),
    ("null", 1, "{..}", "null", ""),
    ("qid,grade", 1, "{..}", "qid,grade", ""),
    ('{"qid":"q","grade":1,"x":' + DEEP + "}", 22, ("number", "'x'"), "an array", MAKE_NULL),
    ('{"qid":"q","grade":1,"x":' + "[" * 10**5, 1, "64", '{"qid":"q","grade":1,"x":' + "[" * 34 + "…", ""),
    ("{} {}", 4, "one object", "{}", ""),
    ("{}null{}", 3, "one object", "null{}", ""),
    (GOOD + "x", 28, "one object", "x", ""),
    (GOOD[:-1], 27, "comma", "", "end"),
    (GOOD[:-1] + ",}", 28, "key", "}", ""),
    ('{"qid":"q","grade":1,"x":1]', 27, "comma", "]", ""),
    ('{"qid":"q', 8, "string", '"q', ""),
    ('{"qid":"q\t","grade":1,"x":1}', 10, "control character", '","grade":1,"x":1}', ""),
    ('{"qid":"q","grade":1,"x":.5}', 26, "value", ".5}", ""),
    ("{'qid':1}", 2, "key", "'qid':1}", ""),
    ('{"qid":"q","grade":1,"x":"1"}', 22, ("number", "'x'"), '"1"', MAKE_NULL),
    ('{"qid":"q","grade":1,"x":[1]}', 22, ("number", "'x'"), "an array", MAKE_NULL),
    ('{"qid":"q","grade":1,"x":1,"x":1}', 28, ("key", "once"), "x", ""),
    ('{"qid":1.5,"grade":1}', 2, ("whole number", "'qid'"), "1.5", ""),
    ('{"qid":["q"],"grade":1}', 2, ("whole number", "'qid'"), "an array", ""),
    ('{"qid":99999999999999999999,"grade":1}', 2, ("2^64", "'qid'"), "99999999999999999999", ""),
    ('{"qid":"\\ud800","grade":1}', 2, ("surrogate pair", "'qid'"), '"\\ud800"', ""),
    ('{"grade":1,"qid":""}', 12, "query", "", ""),
    ('{"grade":1}', 1, "query", "", ""),
    ('{"qid":"q", "grade":-1}', 13, "grade", "-1", "negative_grades zero"),
    ('{"qid":"q","grade":0.5}', 12, "grade", "0.5", ""),
    ('{"qid":"q","grade":"best"}', 12, "grade", "best", "grades good=1,bad=0"),
    ('{"qid":"q"}', 1, "grade", "", "unjudged keep"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "column", "expected", "found", "cure"), BAD)
@pytest.mark.parametrize("block_bytes", [1, 1 << 20])
def test_a_bad_line_is_named(tmp_path, line, column, expected, found, cure, block_bytes):
    path = tmp_path / "a.jsonl"
    path.write_text(f"{GOOD}\n\n{line}\n{GOOD}\n")
    with refused(MalformedLine, f"{path}:3:{column}", expected, cure) as caught:
        read(path, block_bytes)
    assert caught.value.found == found
    quarantine = Quarantine(limit=1)
    assert len(read(path, block_bytes, quarantine)[1]) == 2
    assert [(r.line, r.column, r.text) for r in quarantine.rejects] == [(3, column, line[:4096])]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"qid":"q","grade":1}', (":2:1", "object", "'features'", "nothing")),
        ('{"qid":"q","grade":1,"features":null}', (":2:22", "object", "'features'", "nothing")),
        ('{"qid":"q","grade":1,"features":[1]}', (":2:22", "object", "'features'", "array")),
        ('{"qid":"q","grade":1,"features":{"x":"a"}}', (":2:34", "'x'", "'\"a\"'", *MAKE_NULL)),
        ('{"qid":"q","grade":1,"features":{"x":1,"x":2}}', (":2:40", "once", "'x'")),
    ],
)  # fmt: skip
def test_bad_features_are_named(tmp_path, line, message):
    path = tmp_path / "a.jsonl"
    path.write_text('{"qid":"q","grade":1,"features":{"x":1},"weigth":"w"}\n' + line + "\n")
    with refused(MalformedLine, path, message):
        read(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no rows"),
        ("\n \n", "no rows"),
        ("\nqid,grade\n", (":2:1", "{..}", "'qid,grade'")),
        ('{"qid":1,"grade":1}\n', ("feature", "grade, qid")),
        ('{"qid":1,"grade":1,"features":{"weight":1}}', ("'weight'", "'features'", "reserved")),
        ('{"qid":1,"grade":1,"x":1}\0', (":1", "NUL")),
    ],
)  # fmt: skip
def test_a_file_without_rows_says_why(tmp_path, text, message):
    path = tmp_path / "a.jsonl"
    path.write_text(text)
    with refused(DataRejected, path, message):
        read(path)


def test_types_may_change_at_any_row(tmp_path):
    path = tmp_path / "a.jsonl"
    kinds = ["7", '"7"', "null", str(2**63), '"é"']
    lines = [
        f'{{"qid":{kinds[k % 2]},"doc_id":{kinds[k % 5]},"grade":{k % 3},"x":{"1" if k < 300 else "1.5"}}}'
        for k in range(400)
    ]
    path.write_text("\n".join(lines))
    for block_bytes in (100, 1 << 20):
        _, rows = read(path, block_bytes)
        assert {row[0] for row in rows} == {"7"}
        assert [row[1] for row in rows[:5]] == ["7", "7", None, str(2**63), "é"]
        assert [np.frombuffer(row[3], np.float32)[0] for row in rows] == [1.0] * 300 + [1.5] * 100


def test_optional_columns_times_and_words(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(
        '{"qid":1,"grade":"good","weight":2,"at":"2026-01-01","x":1}\n{"qid":1,"grade":0,"weight":0.5,"at":60,"x":1}\n'
    )
    options = ReadOptions(time_column="at", grades=(("good", 3),))
    (rows,) = JsonSource(path, options).batches()
    assert rows.grade.tolist() == [3, 0]
    assert rows.extras["weight"].tolist() == [2.0, 0.5]
    assert rows.extras["time"].tolist() == [1767225600 * 10**6, 60 * 10**6]
    path.write_text('{"qid":1,"grade":0,"weight":2,"x":1}\n{"qid":1,"grade":0,"x":1}\n')
    with refused(MalformedLine, "a.jsonl:2:1", "weight", "1"):
        read(path)


def test_files_share_their_keys(tmp_path):
    rows = [
        {"qid": f"q{k % 9}", "doc_id": f"d{k}", "grade": k % 3, "features": {f"x{k % 11}": k, "y": -k}}
        for k in range(99)
    ]
    lines = [json.dumps(row) + "\n" for row in rows]
    (tmp_path / "all.jsonl").write_text("".join(lines))
    ingest([tmp_path / "all.jsonl"], tmp_path / "one")
    expected = files_in(tmp_path / "one", "*.parquet")
    for seed in range(3):
        shuffled = random.Random(seed).sample(lines, len(lines))
        folder = tmp_path / f"parts{seed}"
        folder.mkdir()
        for k in range(20):
            (folder / f"{k}.jsonl").write_text("".join(shuffled[k::20]))
        ingest([folder], tmp_path / f"out{seed}", options=IngestOptions(block_size=100))
        assert files_in(tmp_path / f"out{seed}", "*.parquet") == expected
    assert Dataset.open(tmp_path / "one").feature_names == (*(f"x{k}" for k in range(11)), "y")
    candidates = open_sources(sorted((tmp_path / "parts0").iterdir()), "auto", ReadOptions(grade_required=False))
    assert {source.columns for source in candidates} == {Dataset.open(tmp_path / "one").feature_names}
    (tmp_path / "a.jsonl").write_text('{"qid":1,"grade":1,"features":[1,2]}')
    (tmp_path / "b.jsonl").write_text('{"qid":1,"grade":1,"features":[1,2,3]}')
    with pytest.raises(DataRejected, match="f3"):
        ingest([tmp_path / "a.jsonl", tmp_path / "b.jsonl"], tmp_path / "no")
    arrays = [JsonSource(tmp_path / name, ReadOptions()) for name in ("a.jsonl", "b.jsonl")]
    share_features(arrays)
    assert [source.columns for source in arrays] == [("f1", "f2"), ("f1", "f2", "f3")]


def test_features_may_be_left_out_of_arrays_and_objects(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"qid":1,"grade":1,"features":[1,2,3]}\n{"qid":1,"grade":1,"features":[4,null,6]}\n')
    names, rows = read(path, ignore=("f2",))
    assert (names, [row[3] for row in rows]) == (("f1", "f3"), [np.float32(v).tobytes() for v in ([1, 3], [4, 6])])
    path.write_text('{"qid":1,"grade":1,"features":{"x":1,"t":"text"}}\n')
    assert read(path, ignore=("t",))[0] == ("x",)


CANDIDATES = {
    "flat": ('{"qid":1,"t":"text","x1":5}\n', '{"qid":2,"t":"text","x2":7,"y":0}\n'),
    "object": ('{"qid":1,"features":{"t":"text","x1":5}}\n', '{"qid":2,"t":"text","features":{"x2":7,"y":0}}\n'),
}


@pytest.mark.parametrize("texts", CANDIDATES.values(), ids=CANDIDATES)
def test_candidates_pass_over_what_the_model_does_not_know(tmp_path, texts):
    for name, text in zip("ab", texts, strict=True):
        (tmp_path / f"{name}.jsonl").write_text(text)
    options = ReadOptions(grade_required=False, known_features=frozenset({"x1", "x2"}))
    sources = open_sources([tmp_path / "a.jsonl", tmp_path / "b.jsonl"], "auto", options)
    assert [source.columns for source in sources] == [("x1", "x2")] * 2
    values = [next(iter(source.batches())).values.tolist()[0] for source in sources]
    assert np.nan_to_num(values, nan=-1).tolist() == [[5, -1], [-1, 7]]


def test_judgments_of_their_own_may_be_json_lines(tmp_path):
    (tmp_path / "rows.csv").write_text("qid,doc_id,x\nq,1,1\nq,2,2\nq,3,3\n")
    texts = {
        "flat": '{"qid":"q","doc_id":1,"grade":2}\n{"qid":"q","doc_id":"2","grade":0,"judge":"me"}\n',
        "nested": '{"qid":"q","doc_id":1,"grade":2,"features":{"x":1}}\n{"qid":"q","doc_id":"2","grade":0}\n',
    }
    for name, text in texts.items():
        (tmp_path / f"{name}.jsonl").write_text(text)
        ingest([tmp_path / "rows.csv"], tmp_path / name, qrels=[tmp_path / f"{name}.jsonl"])
        rows = Dataset.open(tmp_path / name).rows(None, ["doc_id", "grade"])
        assert rows.to_pydict() == {"doc_id": ["1", "2"], "grade": [2, 0]}


def test_wide_rows_are_read_in_small_batches(tmp_path):
    path = tmp_path / "a.jsonl"
    lines = [json.dumps({"qid": 1, "grade": 0, f"k{k}": 1}) + "\n" for k in range(3000)]
    path.write_text("".join(lines))
    sizes = [batch.values.nbytes for batch in JsonSource(path, ReadOptions()).batches()]
    assert sum(sizes) == 4 * 3000**2
    assert max(sizes) <= 16 << 20


# ---- damaged text ----------------------------------------------------------------------------------------------------

SEEDS = [
    '{"qid":"a","grade":1,"x":0.5,"y":null}\r\n{"grade":2.0,"qid":12,"doc_id":"d\\"1","y":-1e-3}\n\n{"qid":"\\u00e9","grade":0}\n{"qid":"z","grade":0,"x":1}',
    '{"qid":"a","grade":1,"features":{"x":1,"y":2},"t":[{"q":"]"},null]}\n{"grade":0,"qid":"b","features":{}}\n{"qid":3,"grade":1,"features":{"x":-2.5}}',
]  # fmt: skip
ALPHABET = '{}[]":,\\ \n\ttfalsenu0123456789.-+eqxyé'


def damaged(rng):
    text = list(rng.choice(SEEDS))
    for _ in range(rng.randint(1, 4)):
        place, kind = rng.randrange(len(text)), rng.random()
        if kind < 0.4:
            text[place] = rng.choice(ALPHABET)
        elif kind < 0.7:
            text.insert(place, rng.choice(ALPHABET))
        else:
            del text[place : place + rng.randint(1, 5)]
    return "".join(text)


def check_damaged(path, rng, n):
    some_bad = 0
    for _ in range(n):
        text = damaged(rng)
        path.write_bytes(text.encode())
        rows, bad = naive_json.parse(text)
        results = []
        for block_bytes in (1, 40, 1 << 20):
            quarantine = Quarantine(limit=100)
            try:
                names, found = read(path, block_bytes, quarantine)
            except (DataRejected, TooManyRejects):
                results.append(None)
                continue
            results.append((names, found, [(r.line, r.column, r.reason) for r in quarantine.rejects]))
        assert results[0] == results[1] == results[2], text
        if results[0] is None:
            continue
        names, found, rejects = results[0]
        assert all(reason.startswith("expected ") for *_, reason in rejects)
        if sorted({key for *_, values in rows for key in values}) == sorted(names) and "features" not in names:
            assert [line for line, *_ in rejects] == bad, text
            assert found == dense(rows), text
            some_bad += bool(bad)
    assert some_bad > n // 20


def test_damaged_lines_are_those_that_pythons_reader_refuses(tmp_path):
    check_damaged(tmp_path / "damaged.jsonl", random.Random(3), 75)


@pytest.mark.slow
def test_damaged_lines_make_no_kernel_read_out_of_bounds(tmp_path):
    script = (
        "import pathlib, random, sys; from tests.pipeline.read import test_json_lines as t\n"
        "t.check_damaged(pathlib.Path(sys.argv[1]), random.Random(4), 5000)\n"
    )
    environment = os.environ | {"NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    subprocess.run([sys.executable, "-c", script, tmp_path / "x.jsonl"], env=environment, cwd=ROOT, check=True)
