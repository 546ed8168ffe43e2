"""JSON lines: each means what Python's own reader says, whatever the lines around it and the size of a block.

What is wrong with a line is in malformed/cases.toml.
"""

import gzip
import json
import random

import numpy as np
import pytest

from rankmill.foundation.errors import DataRejected, TooManyRejects
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.pipeline.ingest import ingest
from rankmill.pipeline.options import IngestOptions, ReadOptions
from rankmill.pipeline.read.batch import Quarantine
from rankmill.pipeline.read.explain_json import Values, read_line
from rankmill.pipeline.read.json_keys import read_keys
from rankmill.pipeline.read.json_lines import JsonSource
from rankmill.pipeline.read.open_source import share_features
from rankmill.scorer.rerank.candidate_sources import open_sources
from tests import naive_text
from tests.written import files_in


def read(path, block_bytes=1 << 20, quarantine=None, **options):
    """The source, and all rows: qid, doc_id, grade, values, and the words of the first feature, or its number."""
    source = JsonSource(path, ReadOptions(**options), quarantine)
    rows = []
    for batch in source.batches(block_bytes):
        doc_ids = [None] * len(batch) if batch.doc_id is None else batch.doc_id.to_pylist()
        grades = [None] * len(batch) if batch.grade is None else batch.grade.tolist()
        texts = {code: text for text, code in batch.categories.get(source.columns[0], {}).items()}
        words = [str(texts.get(x, x)) for x in batch.values[:, 0].tolist()]
        rows += zip(batch.qid.to_pylist(), doc_ids, grades, map(np.ndarray.tobytes, batch.values), words, strict=True)
    return source, rows


NUMBERS = ["0", "-0", "7", "-12.5", "0.1", "1e3", "-2.5E-2", "1234567890.12345678", "0.30000001192092896", "16777217"]
NUMBERS += ["1" + "0" * 40]
ODD = ["null", "true", "false", "01", ".5", "5.", "+1", "nan", "NaN", '"3"', "[1]", "{}", "tru", "1 2", "", "--1", "1e"]
ODD += ["-"]
IDS = ['"a"', '"q\\u00e9"', '"a\\nb"', '"x\\"y"', '"é"', "17", "0", '""', "null", "1.5", "-3", '"\\ud800"', '"\\q"']
IDS += ['"a\tb"', "true"]
IGNORED = ['"t"', '"a\\\\"', "[1,{\"a\":[]}]", '{"x":{"qid":"}"}}', "null", "-1.5e9", '"]"', "tru", '"\\u00"', "[}", "[]", "{}", '[ {"a" : [1, null]} , [[]] ]', "[1,]", '{"a"}', '{"a":1 "b":2}', "[1 2]", '{"a":NaN}', '["\\q"]']  # fmt: skip


def line_of(rng, form):
    """A line, mostly valid, with its keys in any order and blanks in between."""

    def value(usual, others, share=0.02):
        return rng.choice(others if rng.random() < share else usual)

    names = ["x1", "x2", "x3", "éé"]
    rng.shuffle(names)
    numbers = [(json.dumps(name), value(NUMBERS, ODD)) for name in names if rng.random() < 0.95]
    if form == "array":
        numbers = [("", value(NUMBERS, ODD)) for _ in range(value([4], [0, 3, 5]))]
    fields = [
        ('"qid"', value(IDS[:2] + IDS[5:7], IDS, 0.1)),
        ('"doc_id"', value(IDS[:6], IDS, 0.1)),
        ('"grade"', value(["0", "2", "3.0", '"1"', '"good"'], NUMBERS + ODD)),
        ('"weight"', value(["1", "0.5", "12345678901234.5"], NUMBERS + ODD)),
        ('"title"', value(IGNORED[:7], IGNORED)),
    ]
    blank = [rng.choice(["", " ", "\t"]) for _ in range(4)]
    if form == "flat":
        fields += numbers
    else:
        inner = [f"{key}{blank[0]}:{number}" if form == "object" else number for key, number in numbers]
        both = "[]" if form == "array" else "{}"
        fields.append(('"features"', both[0] + f"{blank[1]},{blank[2]}".join(inner) + both[1]))
    if rng.random() < 0.5:
        rng.shuffle(fields)
    if rng.random() < 0.03:
        fields.append(rng.choice(fields))
    line = "{" + f"{blank[3]},".join(f"{key}:{blank[0]}{text}" for key, text in fields) + blank[1] + "}"
    if rng.random() < 0.05:
        place = rng.randrange(len(line))
        line = line[:place] + rng.choice(["", "{", '"', "x", ",", "\\"]) + line[place + 1 :]
    return line


def first_line(form):
    fields = {"qid": "q", "doc_id": "d", "grade": 1, "weight": 2, "title": "t"}
    features = {"x1": 1, "x2": 2, "x3": 3, "éé": 4}
    fields |= features if form == "flat" else {"features": features if form == "object" else list(features.values())}
    return json.dumps(fields, ensure_ascii=False)


def as_row(values, source):
    top = {key: value for key, value in values.top.items() if value is not None}
    numbers = [values.features.get(key) for key in source.columns]
    with np.errstate(over="ignore"):
        numbers = np.array([np.nan if number is None else float(number) for number in numbers]).astype(np.float32)
    return str(top["qid"]), str(top.get("doc_id", "")) or None, numbers.tobytes()


@pytest.mark.parametrize("form", ["flat", "object", "array"])
@pytest.mark.parametrize("seed", range(4))
def test_lines_are_read_as_python_reads_them(tmp_path, form, seed):
    rng, path, quarantine = random.Random(seed), tmp_path / "a.jsonl", Quarantine(10_000)
    lines = [first_line(form)] + [line_of(rng, form) for _ in range(1500)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    source, rows = read(path, 20_000, quarantine, ignore=("title",), grades=(("good", 3),))
    rejected = {reject.line for reject in quarantine.rejects}
    expected, unreadable, keys = [], set(), read_keys(path)
    for number, line in enumerate(lines, 1):
        values = read_line(line.strip(" \t"), source.roles, keys)
        if not isinstance(values, Values):
            unreadable.add(number)
        elif number not in rejected:
            expected.append(as_row(values, source))
    assert unreadable <= rejected  # the others have an invalid id, grade or weight
    assert 100 < len(rejected) < 1000
    assert [(qid, doc_id, values) for qid, doc_id, _, values, _ in rows] == expected


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


def test_damaged_lines_are_those_that_pythons_reader_refuses(tmp_path):
    path, rng, some_bad = tmp_path / "damaged.jsonl", random.Random(3), 0
    for _ in range(150):
        text, results = damaged(rng), []
        path.write_bytes(rng.choice([b"", b"\xef\xbb\xbf"]) + text.encode())
        expected, bad = naive_text.parse(text)
        for block_bytes in (1, 40, 1 << 20):
            quarantine = Quarantine(limit=100)
            try:
                source, found = read(path, block_bytes, quarantine, unjudged="reject")
            except (DataRejected, TooManyRejects):
                results.append(None)
                continue
            results.append((source.columns, found, [(r.line, r.column, r.reason) for r in quarantine.rejects]))
        assert results[0] == results[1] == results[2], text
        if results[0] is None:
            continue
        names, found, rejects = results[0]
        assert all(reason.startswith("expected ") for *_, reason in rejects)
        every = sorted({name for *_, values in expected for name in values}, key=naive_text.natural)
        if every == list(names) and "features" not in names:
            assert [line for line, *_ in rejects] == bad, text
            assert [row[:4] for row in found] == [
                (*keys, np.array([values.get(name, np.nan) for name in names], np.float32).tobytes())
                for *keys, values in expected
            ], text
            some_bad += bool(bad)
    assert some_bad > 7


@pytest.mark.parametrize("name", ["aa\\nb", 'a"b', "a\\", "a\nb"])
def test_keys_with_escapes_are_themselves(tmp_path, name):
    path, other = tmp_path / "a.jsonl", "aa\nb"
    rows = [{"qid": "q", "grade": 1, name: 1.5}, {"qid": "q", "grade": 1, other: 2.5}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = JsonSource(path, ReadOptions())
    (batch,) = source.batches()
    expected = {name: [1.5, np.nan], other: [np.nan, 2.5]}
    np.testing.assert_array_equal(batch.values.T, np.float32([expected[column] for column in source.columns]))


UNUSUAL = [
    '{"qid":"q","grade":1,"x":' + "1" * 5000 + ',"shop":"s"}',
    '{"qid":Infinity,"grade":1,"x":1,"shop":"s"}',
    '{"qid":"q","grade":1,"x":Infinity,"shop":"s"}',
    '{"qid":"q","grade":1,"x":Inf,"shop":"s"}',
    '{"qid":"q","grade":1,"x":NaN,"shop":"s"}',
    '{"qid":"q","grade":1,"x":-0,"shop":-0}',
    '{"qid":"q","grade":1,"x":1e400,"shop":0.5}',
    '{"qid":1.5,"grade":1,"x":1,"shop":1.5}',
    '{"qid":7.0,"grade":1,"x":true,"shop":true}',
    '{"qid":9007199254740993,"grade":2.0,"x":1,"shop":9007199254740993}',
    '{"qid":-0,"grade":true,"x":null,"shop":null}',
    '{"qid":1e18,"grade":1,"x":1,"shop":1}',
    '{"qid":"1e18","grade":"2","x":1,"shop":1e18}',
    '{"qid":"q","grade":1,"x":"1","shop":"s"}',
    '{"qid":"q","grade":1,"x":1,"x":2,"shop":"s"}',
    '{"qid":"q","grade":1,"x":1}{"qid":"q","grade":1,"x":1}',
    '{"qid":"q","grade":1,"x":1,"note":' + "[" * 63 + "]" * 63 + "}",
    '{"qid":"q","grade":1,"x":1,"note":' + "[" * 64 + "]" * 64 + "}",
    '{"qid":"q","grade":1,"x":1,"note":' + "[" * 100_000 + "]" * 100_000 + "}",
    '{"qid":"q","grade":1,"x":1,"note":[' + "{}," * 100 + '"[[[["]}',
    "null",
    "{}",
    '{"qid":"q",',
    '  \t{"qid":"q","grade":1,"x":1}\t ',
]


@pytest.mark.parametrize("usual", ['{"qid":"a","grade":1,"x":2.5,"shop":"s"}', '{"qid":3,"grade":"1","x":2,"shop":7}'])
def test_a_line_means_the_same_beside_any_others(tmp_path, usual):
    """Also the rare forms that Arrow refuses, or reads in another way, among many that it reads."""
    for line in UNUSUAL:
        found = []
        for before, after in ((1, 0), (700, 300)):
            lines, quarantine = [usual] * before + [line] + [usual] * after, Quarantine(10_000)
            (tmp_path / "a.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8", newline="")
            rows = read(tmp_path / "a.jsonl", quarantine=quarantine, categorical=frozenset({"shop"}))[1]
            found.append((rows, {reject.line - before for reject in quarantine.rejects}))
        (alone, bad), (rows, among) = found
        assert among == bad
        assert rows == alone[:1] * 700 + alone[1:] + alone[:1] * 300


def test_the_first_line_may_have_a_number_of_any_length(tmp_path):
    lines = ['{"qid":"q","grade":1,"x":-' + "1" * 5000 + "}", '{"qid":"q","grade":0,"x":1}']
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    assert [np.frombuffer(row[3], np.float32)[0] for row in read(tmp_path / "a.jsonl")[1]] == [-np.inf, 1.0]


def test_features_may_be_an_array_with_categories_and_some_left_out(tmp_path):
    path, nan = tmp_path / "a.ndjson.gz", np.nan
    text = '{"grade":1,"features":[1,null,0.1],"qid":7}\n{"grade":1,"features":[NaN,2,3],"qid":7}\n'
    path.write_bytes(gzip.compress(text.encode()))
    for ignored, wanted in (((), [[1, nan, 0.1], [nan, 2, 3]]), (("f2",), [[1, 0.1], [nan, 3]])):
        source, rows = read(path, ignore=ignored)
        assert source.columns == tuple(name for name in ("f1", "f2", "f3") if name not in ignored)
        assert [row[3] for row in rows] == [np.float32(values).tobytes() for values in wanted]
    path = tmp_path / "a.jsonl"
    path.write_text('{"qid":1,"grade":1,"features":{"x":1,"t":"text"}}\n')
    assert read(path, ignore=("t",))[0].columns == ("x",)
    path.write_text("".join(f'{{"qid":"q","grade":1,"features":[{x},1]}}\n' for x in ("2", "2.0", "16777217", "null")))
    _, rows = read(path, categorical=frozenset({"f1"}))
    assert [row[4] for row in rows] == ["2.0", "2.0", "16777217", "nan"]


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


def test_judgments_of_their_own_may_have_features(tmp_path):
    (tmp_path / "rows.csv").write_text("qid,doc_id,x\nq,1,1\nq,2,2\nq,3,3\n")
    text = '{"qid":"q","doc_id":1,"grade":2,"features":{"x":1}}\n{"qid":"q","doc_id":"2","grade":0}\n'
    (tmp_path / "judged.jsonl").write_text(text)
    ingest([tmp_path / "rows.csv"], tmp_path / "d", qrels=[tmp_path / "judged.jsonl"])
    rows = Dataset.open(tmp_path / "d").rows(None, ["doc_id", "grade"])
    assert rows.to_pydict() == {"doc_id": ["1", "2"], "grade": [2, 0]}


def test_wide_rows_are_read_in_small_batches(tmp_path):
    path = tmp_path / "a.jsonl"
    lines = [json.dumps({"qid": 1, "grade": 0, f"k{k}": 1}) + "\n" for k in range(3000)]
    path.write_text("".join(lines))
    sizes = [batch.values.nbytes for batch in JsonSource(path, ReadOptions()).batches()]
    assert sum(sizes) == 4 * 3000**2
    assert max(sizes) <= 16 << 20
