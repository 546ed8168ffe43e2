"""JSON lines are read as Python's parser reads each of them, however they are written."""

import json
import random

import numpy as np
import pytest

from rankmill.pipeline.options import ReadOptions
from rankmill.pipeline.read.batch import Quarantine
from rankmill.pipeline.read.explain_json import Values, read_line
from rankmill.pipeline.read.json_keys import read_keys
from rankmill.pipeline.read.json_lines import JsonSource

NUMBERS = [
    "0",
    "-0",
    "7",
    "-12.5",
    "0.1",
    "1e3",
    "-2.5E-2",
    "1234567890.12345678",
    "0.30000001192092896",
    "16777217",
    "1" + "0" * 40,
]
ODD = [
    "null",
    "true",
    "false",
    "01",
    ".5",
    "5.",
    "+1",
    "nan",
    "NaN",
    '"3"',
    "[1]",
    "{}",
    "tru",
    "1 2",
    "",
    "--1",
    "1e",
    "-",
]
IDS = [
    '"a"',
    '"q\\u00e9"',
    '"a\\nb"',
    '"x\\"y"',
    '"é"',
    "17",
    "0",
    '""',
    "null",
    "1.5",
    "-3",
    '"\\ud800"',
    '"\\q"',
    '"a\tb"',
    "true",
]
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
    rng = random.Random(seed)
    lines = [first_line(form)] + [line_of(rng, form) for _ in range(1500)]
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    options = ReadOptions(ignore=("title",), grades=(("good", 3),))
    quarantine = Quarantine(10_000)
    source = JsonSource(path, options, quarantine)
    found = []
    for batch in source.batches(20_000):
        doc_ids = [None] * len(batch) if batch.doc_id is None else batch.doc_id.to_pylist()
        found += zip(batch.qid.to_pylist(), doc_ids, map(np.ndarray.tobytes, batch.values), strict=True)
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
    assert found == expected


def test_categories_may_be_in_arrays(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("".join(f'{{"qid":"q","grade":1,"features":[1,{x}]}}\n' for x in ("2", "2.0", "16777217", "null")))
    (batch,) = JsonSource(path, ReadOptions(categorical=frozenset({"f2"}))).batches()
    two, same, large, missing = batch.values[:, 1].tolist()
    assert (two, same) == (2.0, 2.0)
    assert large == np.float32(batch.categories["f2"]["16777217"])
    assert np.isnan(missing)


@pytest.mark.parametrize("name", ["aa\\nb", 'a"b', "a\\", "a\nb"])
def test_keys_with_escapes_are_themselves(tmp_path, name):
    path, other = tmp_path / "a.jsonl", "aa\nb"
    rows = [{"qid": "q", "grade": 1, name: 1.5}, {"qid": "q", "grade": 1, other: 2.5}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = JsonSource(path, ReadOptions())
    (batch,) = source.batches()
    expected = {name: [1.5, np.nan], other: [np.nan, 2.5]}
    np.testing.assert_array_equal(batch.values.T, np.float32([expected[column] for column in source.columns]))


def read(path, lines, **options):
    """All rows, and the numbers of the lines that are no rows."""
    path.write_text("\n".join(lines) + "\n", encoding="utf-8", newline="")
    quarantine = Quarantine(10_000)
    rows = []
    for batch in JsonSource(path, ReadOptions(**options), quarantine).batches(1 << 20):
        names = {code: text for text, code in batch.categories.get("shop", {}).items()}
        doc_ids = [None] * len(batch) if batch.doc_id is None else batch.doc_id.to_pylist()
        shops = [str(names.get(value, value)) for value in batch.values[:, 0].tolist()]
        rows += zip(
            batch.qid.to_pylist(), doc_ids, batch.grade.tolist(), map(np.ndarray.tobytes, batch.values), shops, strict=True
        )  # fmt: skip
    return rows, {reject.line for reject in quarantine.rejects}


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


def test_the_first_line_may_have_a_number_of_any_length(tmp_path):
    lines = ['{"qid":"q","grade":1,"x":-' + "1" * 5000 + "}", '{"qid":"q","grade":0,"x":1}']
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    batches = [*JsonSource(tmp_path / "a.jsonl", ReadOptions()).batches()]
    assert np.concatenate([batch.values[:, 0] for batch in batches]).tolist() == [-np.inf, 1.0]


@pytest.mark.parametrize("usual", ['{"qid":"a","grade":1,"x":2.5,"shop":"s"}', '{"qid":3,"grade":"1","x":2,"shop":7}'])
def test_a_line_means_the_same_beside_any_others(tmp_path, usual):
    """Also the rare forms that Arrow refuses, or reads in another way, among many that it reads."""
    for line in UNUSUAL:
        alone, bad = read(tmp_path / "a.jsonl", [usual, line], categorical=frozenset({"shop"}))
        rows, among = read(
            tmp_path / "b.jsonl", [usual] * 700 + [line] + [usual] * 300, categorical=frozenset({"shop"})
        )
        assert among == {number + 699 for number in bad}
        assert rows == alone[:1] * 700 + alone[1:] + alone[:1] * 300
