"""The same bytes are accepted or refused by the same rules, with the same message, in every role that reads their
format."""

import bz2
import gzip
import io
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import feather

from rankmill.foundation.errors import DataRejected
from rankmill.pipeline.judgments.judgment_files import JudgmentFile
from rankmill.pipeline.options import ReadOptions
from rankmill.pipeline.pairs.pair_files import PairFile
from rankmill.pipeline.read.batch import Quarantine
from rankmill.pipeline.read.open_source import open_source
from rankmill.scorer.evaluate.scored_file import read_qrels, read_scored
from rankmill.scorer.rerank.first_stage import FirstStage

CANDIDATES = ReadOptions(grade_required=False)
RUN, QRELS, PAIRS = b"q Q0 d 1 2.5 t\n", b"q 0 d 1\n", b"q d e .5 1\n"


def rows_of_run(path):
    rows = [(batch.qid, batch.doc_id) for batch in open_source(path, "run", CANDIDATES).batches()]
    return [pair for qid, doc_id in rows for pair in zip(qid.to_pylist(), doc_id.to_pylist(), strict=True)]


def ranked_list(path):
    table = read_scored(path)
    return list(zip(table["qid"].to_pylist(), table["doc_id"].to_pylist(), strict=True))


def judgments(path):
    found = JudgmentFile(path, ReadOptions(), Quarantine()).batches()
    return [pair for batch in found for pair in zip(*(ids.to_pylist() for ids in batch.columns[:2]), strict=True)]


def judged(path):
    table = read_qrels(path)
    return list(zip(table["qid"].to_pylist(), table["doc_id"].to_pylist(), strict=True))


def pairs(path):
    found = PairFile(path, Quarantine()).batches()
    return [row for batch in found for row in zip(*(each.to_pylist() for each in batch.columns[1:4]), strict=True)]


def outcome(read, path):
    """What ``read`` finds in ``path``, or what it says, without the name of the file."""
    try:
        return read(path)
    except DataRejected as error:
        return str(error).replace(str(path), "")


def compressed(data, name):
    if name == "gz":
        return gzip.compress(data)
    if name == "bz2":
        return bz2.compress(data)
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, {"zst": "zstd", "lz4": "lz4"}[name]) as stream:
        stream.write(data)
    return sink.getvalue().to_pybytes()


def texts(line):
    """Bytes made of a good line, by what is odd about them, and whether they are refused."""
    more = line.replace(b"d", b"f", 1)
    return {
        "as it is": (line + more, False),
        "tabs": (line.replace(b" ", b"\t") + more, False),
        "several blanks": (b" " + line.replace(b" ", b" \t "), False),
        "blank lines": (b"\n \t\n" + line + b"\n\n" + more, False),
        "CR LF": ((line + more).replace(b"\n", b"\r\n"), False),
        "a CR alone": ((line + more).replace(b"\n", b"\r"), True),
        "a byte-order mark": (b"\xef\xbb\xbf" + line, False),
        "no newline at the end": (line + more.strip(), False),
        "text of other letters": (line.replace(b"q", "é中".encode()), False),
        "a form feed is no blank": (line.replace(b" ", b"\f", 1), True),
        "UTF-16": (line.decode().encode("utf-16"), True),
        "Latin-1": (line.replace(b"q", b"\xe9"), True),
        "a NUL byte": (line.replace(b"d", b"\0"), True),
        "too few words": (line + b"q d\n", True),
    }


FORMATS = {
    "run": (
        RUN,
        (rows_of_run, ranked_list, lambda path: rows_of_run(path) if FirstStage.read([path], 1 << 20) else None),
    ),
    "qrels": (QRELS, (judgments, judged)),
}


@pytest.mark.parametrize("form", FORMATS)
def test_text_is_text_however_compressed_and_damaged_text_is_refused(tmp_path, form):
    line, roles = FORMATS[form]
    cases = {what: ("", *case) for what, case in texts(line).items()}
    for suffix in ("gz", "bz2", "zst", "lz4"):
        packed = compressed(line, suffix)
        cases |= {suffix: (f".{suffix}", packed, False), f"damaged {suffix}": (f".{suffix}", packed[:-7], True)}
    for what, (suffix, data, refused) in cases.items():
        path = tmp_path / f"a.{form}{suffix}"
        path.write_bytes(data)
        outcomes = [outcome(read, path) for read in roles]
        assert all(found == outcomes[0] for found in outcomes), (what, outcomes)
        assert isinstance(outcomes[0], str) == refused, (what, outcomes[0])


NO_SCORES = {"nan", "high", "1_0", "0x1"}


@pytest.mark.parametrize("score", ["2", "-1e3", ".5", "+1.", "inf", "1e400", *sorted(NO_SCORES)])
def test_a_score_of_a_run_is_the_same_number_everywhere(tmp_path, score):
    path, refused = tmp_path / "a.run", score in NO_SCORES
    path.write_text(f"q Q0 c 1 1 t\nq Q0 d 2 {score} t\n")
    outcomes = [outcome(read, path) for read in FORMATS["run"][1]]
    assert all(found == outcomes[0] for found in outcomes), outcomes
    assert outcomes[0] == (
        f":2:10: expected a number as score, found {score!r}" if refused else [("q", "c"), ("q", "d")]
    )
    table = tmp_path / "a.csv"  # the same list as a table
    table.write_text(f"qid,doc_id,score\nq,c,1\nq,d,{score}\n")
    found = outcome(ranked_list, table)
    assert found == (f":3:5: expected a number as score, found {score!r}" if refused else outcomes[0])


def test_a_rank_need_be_a_number_only_where_it_is_a_feature(tmp_path):
    path = tmp_path / "a.run"
    path.write_text("q Q0 d - 2 t\n")
    assert ranked_list(path) == [("q", "d")]
    assert len(FirstStage.read([path], 1 << 20)) == 1
    assert outcome(rows_of_run, path) == ":1:8: expected a number as rank, found '-'"


@pytest.mark.parametrize(
    ("grade", "kept"), [("1", 1), ("+1", 1), ("2.0", 1), ("nan", 0), ("null", 0), ("1.5", -1), ("x", -1), ("1e0", 1)]
)
def test_a_grade_of_qrels_is_the_same_number_everywhere(tmp_path, grade, kept):
    path = tmp_path / "a.qrels"
    path.write_text(f"q 0 c 1\nq 0 d {grade}\n")
    found = [batch["grade"] for batch in JudgmentFile(path, ReadOptions(), Quarantine()).batches()] if kept >= 0 else []
    outcomes = [outcome(read, path) for read in (judgments, judged)]
    if kept < 0:
        assert all(f", found {grade!r}" in text and text.startswith(":2:7: expected a") for text in outcomes), outcomes
    else:
        assert outcomes[1] == [("q", "c"), ("q", "d")][: 1 + kept]
        assert (np.concatenate(found) >= 0).tolist() == [True, kept == 1]


def tables(rows):
    """The same table as bytes, by suffix; cells are text."""
    names = list(rows[0])
    table = pa.table({name: [row[name] for row in rows] for name in names})
    parquet, arrow = io.BytesIO(), io.BytesIO()
    pq.write_table(table, parquet)
    feather.write_feather(table, arrow)
    lines = [",".join(names), *(",".join(str(row[name]) for name in names) for row in rows)]
    words = [" ".join(str(row[name]) for name in names) for row in rows]
    return {
        "csv": "\n".join(lines).encode(),
        "tsv": "\n".join(lines).replace(",", "\t").encode(),
        "jsonl": "".join(json.dumps(row) + "\n" for row in rows).encode(),
        "parquet": parquet.getvalue(),
        "arrow": arrow.getvalue(),
        "txt": "\n".join(words).encode(),
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({}, None),
        ({"weight": -1.0}, "expected a weight: a number, 0 or more, found"),
        ({"probability": 2.0}, "expected a probability: a number from 0 to 1, found"),
        ({"worse": "d"}, "expected a document other than the better one, found"),
        ({"better": ""}, "expected the id of the better document, found"),
    ],
)
def test_pairs_obey_the_same_rules_in_every_format(tmp_path, change, message):
    good = {"qid": "q", "better": "d", "worse": "e", "weight": 0.5, "probability": 1.0}
    for suffix, data in tables([good, good | change]).items():
        if suffix == "txt" and "" in change.values():
            continue  # a word is never empty
        path = tmp_path / f"pairs.{suffix}"
        path.write_bytes(data)
        found = outcome(pairs, path)
        assert found == [("d", "e", 0.5)] * 2 if message is None else message in found, (suffix, found)
        quarantine = Quarantine(limit=5)
        assert sum(map(len, PairFile(path, quarantine).batches())) == (2 if message is None else 1)
        assert len(quarantine.rejects) == (message is not None)
