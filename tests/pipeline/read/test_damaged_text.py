"""Damaged and random text through the readers: the rows, and the places of the bad lines, are those of the naive
readers.

The long run checks the bounds of every access to an array besides; it prints its seed, which :func:`fuzz` takes.
"""

import os
import random
import re
import secrets
import subprocess
import sys
import time

import numpy as np
import pytest

from rankmill.foundation.errors import DataRejected
from rankmill.pipeline.options import ReadOptions
from rankmill.pipeline.pairs.pair_files import PairFile
from rankmill.pipeline.read.batch import Quarantine
from rankmill.pipeline.read.grades import GradeRules
from rankmill.pipeline.read.open_source import open_source
from tests import ROOT, naive_text
from tests.naive_text import Read

CORPUS = ROOT / "tests" / "pipeline" / "malformed"
EVERY_BAD_LINE = 10**9
LONG = 300  # seconds

GOOD_LETOR = (
    b"1 qid:12 1:0.5 2:nan 3:-1e-3 4:NULL 5:inf # docid = GX-1 inc = 1\r\n"
    b"0 qid:3 7:123456789012345678901234 # x\n2.0 qid:a\n\t3 qid:b#docid=c\n\n"
    b"1 qid:c# 1:2 # docid = a#b\n00 qid:#c 1:3 #docid=#7\n# docid = X\n+3. qid:c#d#\t1:4 #\n  \n"
    b"0 qid:12 40:16777217.000000001 41:3.4028235677973366e38 42:7e-46 300:-Infinity 1:.5 2:5.\n"
)
GOOD_PAIRS = b"7 d1 d2\nq d2 d1 0.5\r\n# a comment\n\tq\td3  d1 1e3 0.25\n\n8 a b 1 1\n"
GOOD_CSV = b"qid,doc_id,grade,f1,f2\n7,a,2,0.5,nan\n7,,0,,1e-3\r\n\n8,b, 1.0 , 5 ,NULL\n9,c,3,-inf,16777217.000000001\n"

GRADES = (("a", 1), ("1.5", 2), ("qid", 0), ("1", 2))
TOKENS = [
    *[b"qid:", b"qid", b"#", b"#docid = x", b"# docid=", b" ", b"\t", b"\n", b"\r\n", b"\r", b":", b"::", b",", b",,", b";"],
    *[b"nan", b"-nan", b"NULL", b"null", b"inf", b"-inf", b"Infinity", b"infinit", b"0x1p3", b"1_0", b"1e", b"1e+", b"--1", b"+"],
    *[b"0", b"1", b"-1", b"1.5", b".", b".5", b"5.", b"1e400", b"1e-400", b"4.9e-324", b"1.401298464324817e-45", b"65535", b"65536"],
    *[b"99999999999999999999", b"18446744073709551617", b"2147483647", b"2147483648", b"3.4028235677973366e38", b"9" * 400],
    *[b"0." + b"0" * 400 + b"1", b"\0", b"\xff", b"\xc3", b"\xc3\xa9", b"\xef\xbb\xbf", b"\xff\xfe", b"\xe2\x80\x8b", b"\xc2\xa0", b"\x0b", b"\x0c"],
    *[b'"', b"\\", b"true", b"#docid =", b"# docid : 3", b"c#", b"#c", b" \t "],
    *[b"a", b"d1", b"1:0.5 ", b" 1:1", b"0 qid:1 1:1\n", b"x" * 70, b"\xd9\xa3", b"\x7f", b"\x1b"],
]  # fmt: skip


def seeds(suffix, good):
    """Return texts to damage: a good one, often, and those of the corpus that are short."""
    corpus = [path.read_bytes() for path in sorted(CORPUS.glob(f"*{suffix}"))]
    return [*[good] * len(corpus), *(text for text in corpus if len(text) < 5000)]


def damaged(rng, texts):
    """Return one of ``texts`` with a few bytes changed, put in, left out, or put together with another one."""
    if rng.random() < 0.05:
        alphabet = rng.choice([bytes(range(256)), b"0123456789 :.\n\r\t#-+eEqidnulaf,", b" \n\r#"])
        return bytes(rng.choices(alphabet, k=rng.randint(0, 300)))
    text = bytearray(rng.choice(texts))
    for _ in range(rng.choice([0, 1, 1, 1, 2, 3, 8])):
        place, kind = rng.randint(0, len(text)), rng.random()
        if kind < 0.35:
            text[place : place + rng.choice([0, 0, 1, 3])] = rng.choice(TOKENS)
        elif kind < 0.5 and text:
            text[place % len(text)] = rng.randrange(256)
        elif kind < 0.6 and text:
            text[place % len(text)] ^= 1 << rng.randrange(8)
        elif kind < 0.8:
            del text[place : place + rng.randint(1, 12)]
        elif kind < 0.9:
            start = rng.randint(0, len(text))
            text[place:place] = text[start : start + rng.randint(1, 60)]
        else:
            text[place:] = rng.choice(texts)
    return bytes(text)


def cells(column, n):
    """Return a column (n,) that may not be there."""
    return [None] * n if column is None else column.to_pylist()


def read_letor(path, block_bytes, options):
    """Read with the real reader; rows as those of the naive one, dense values as bytes."""
    quarantine = Quarantine(EVERY_BAD_LINE)
    batches = list(open_source(path, "letor", options, quarantine).batches(block_bytes))
    width = max((batch.values.shape[1] for batch in batches), default=0)
    read = Read(bad=[(reject.line, reject.column) for reject in quarantine.rejects])
    for batch in batches:
        values = np.full((len(batch), width), options.absent_value, np.float32)
        values[:, : batch.values.shape[1]] = batch.values
        first = batch.extras["label"] if options.labels == "real" else batch.grade
        read.rows += zip(
            first.tolist(), batch.qid.to_pylist(), cells(batch.doc_id, len(batch)), map(bytes, values), strict=True
        )
    return read


def expected_letor(data, options, name=None):
    """Read with the naive reader, and make its rows dense."""
    base = options.index_base
    top = base + options.n_features - 1 if options.n_features else 65535
    real = options.labels == "real"
    naive = naive_text.letor(data, GradeRules.of(options), base=base, top=top, real=real, name=name)
    if naive is None:
        return None
    width = options.n_features or max((index - base + 1 for *_, found in naive.rows for index in found), default=0)
    rows = []
    for *keys, found in naive.rows:
        values = np.full(width, options.absent_value, np.float32)
        for index, value in found.items():
            values[index - base] = value
        rows.append((*keys, values.tobytes()))
    return Read(rows, naive.bad)


def read_pairs(path, block_bytes):
    """Read pairs with the real reader."""
    quarantine = Quarantine(EVERY_BAD_LINE)
    rows = []
    for batch in PairFile(path, quarantine).batches(block_bytes):
        rows += zip(*(column.to_pylist() for column in batch.columns[:5]), strict=True)
    return Read(rows, [(reject.line, reject.column) for reject in quarantine.rejects])


def read_table(path, block_bytes):
    """Read a table with the real reader."""
    quarantine = Quarantine(EVERY_BAD_LINE)
    rows = []
    for batch in open_source(path, "csv", ReadOptions(), quarantine).batches(block_bytes):
        ids = (batch.qid.to_pylist(), cells(batch.doc_id, len(batch)))
        rows += zip(*ids, batch.grade.tolist(), map(bytes, batch.values), strict=True)
    return Read(rows, [(reject.line, reject.column) for reject in quarantine.rejects])


def check(data, expected, read):
    """Compare ``read()`` with what was expected; returns whether the text was read."""
    try:
        found = read()
    except DataRejected:
        assert expected is None, data
        return False
    assert expected is not None, data
    assert found == expected, data
    return True


def fuzz(folder, seed, *, inputs=10**9, seconds=10**9):
    """Try ``inputs`` texts for at most ``seconds``; returns how many there were and how many were not refused as a
    whole."""
    rng = random.Random(seed)
    letor, pairs, table = seeds(".txt", GOOD_LETOR), seeds("pair*.txt", GOOD_PAIRS), seeds(".csv", GOOD_CSV)
    header = GOOD_CSV.split(b"\n")[0] + b"\n"
    path, beside = folder / "fuzz.txt", folder / "fuzz.txt.query"
    read, end = 0, time.monotonic() + seconds
    for number in range(inputs):
        if time.monotonic() > end:
            return number, read
        path.unlink(missing_ok=True)  # some file systems write a file out when it is cut to nothing
        block_bytes = rng.choice([1, 2, 3, 7, 20, 64, 300, 1 << 20])
        kind = rng.random()
        if kind < 0.7:
            data = damaged(rng, letor)
            labels = rng.choice(["grade", "grade", "real"])
            options = ReadOptions(
                index_base=rng.choice([1, 1, 0]),
                n_features=rng.choice([None, None, 40]),
                max_grade=rng.choice([None, None, 2]),
                labels=labels,
                grades=rng.choice([(), (), GRADES]) if labels == "grade" else (),
                negative_grades=rng.choice(["reject", "zero", "unjudged"]),
                unjudged=rng.choice(["keep", "zero", "reject"]),
                absent=rng.choice(["zero", "missing"]),
            )
            grouped = rng.random() < 0.3  # as LightGBM has it: no qid, but the sizes of the queries in a file beside
            if grouped:
                data = re.sub(rb"[ \t]*qid:[^ \t\r\n#]*", b"", data)
            path.write_bytes(data)
            expected = expected_letor(data, options, path.name if grouped else None)
            if grouped:
                beside.write_text("" if expected is None else "1\n" * (len(expected.rows) + len(expected.bad)))
            read += check(data, expected, lambda: read_letor(path, block_bytes, options))  # noqa: B023
            beside.unlink(missing_ok=True)
        elif kind < 0.85:
            data = damaged(rng, pairs)
            path.write_bytes(data)
            read += check(data, naive_text.pairs(data), lambda: read_pairs(path, block_bytes))  # noqa: B023
        else:
            data = header + damaged(rng, table).removeprefix(header).replace(b'"', b"").replace(b"\r", b"")
            path.write_bytes(data)
            expected = naive_text.delimited(data, ",", GradeRules.of(ReadOptions()))
            read += check(data, expected, lambda: read_table(path, block_bytes))  # noqa: B023
    return inputs, read


@pytest.mark.parametrize("seed", range(4))
def test_damaged_text_is_read_as_the_naive_readers_do(tmp_path, seed):
    inputs, read = fuzz(tmp_path, 20261121 + seed, inputs=250)
    assert inputs // 4 < read < inputs


def test_blanks_around_ids_are_no_part_of_them_in_both_readers(tmp_path):
    data, path = b"qid,doc_id,grade,f1\n 1:1,,0,1e-3\n8,b\t, 1.0 , 5 \n", tmp_path / "a.csv"
    path.write_bytes(data)
    assert check(data, naive_text.delimited(data, ",", GradeRules.of(ReadOptions())), lambda: read_table(path, 64))


@pytest.mark.slow
def test_five_minutes_of_damaged_text_and_no_access_out_of_bounds(tmp_path):
    seed = secrets.randbits(32)
    script = (
        "import pathlib, sys; from tests.pipeline.read.test_damaged_text import LONG, fuzz\n"
        "seed, folder = int(sys.argv[1]), pathlib.Path(sys.argv[2])\n"
        "print('inputs, read of them:', *fuzz(folder, seed, seconds=LONG))\n"
    )
    environment = os.environ | {"NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    print(f"seed {seed}, {LONG} seconds")
    done = subprocess.run(
        [sys.executable, "-c", script, str(seed), tmp_path],
        env=environment, cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    print(done.stdout)
    assert done.returncode == 0, f"seed {seed}\n{done.stderr}"
