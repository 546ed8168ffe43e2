"""Hashes, buckets and the sketch of queries against their slow twins."""

import math
import pickle
import tracemalloc

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankmill.foundation.errors import DatasetFormatError
from rankmill.pipeline.group import _kernels
from rankmill.pipeline.group import bucket as bucket_module
from rankmill.pipeline.group import sketch as module
from rankmill.pipeline.group.bucket import read_bucket
from rankmill.pipeline.group.query_splits import SPLIT_SALT, buckets_of, hash_ids, splits_of
from rankmill.pipeline.group.sketch import MAGIC, MOST_HASHES, SALT, Overlap, QuerySketch, overlap
from rankmill.pipeline.group.spill import SpillFile, padded, row_schema, spill_rows
from rankmill.pipeline.read.batch import BATCH_BYTES, RowBatch
from tests import naive
from tests.refusals import refused


@given(st.lists(st.text(max_size=12), max_size=20), st.integers(0, 3))
@settings(max_examples=100, deadline=None)
def test_the_hash_of_an_id_is_the_written_one(names, skipped):
    ids = pa.array(names, pa.string()).slice(skipped)
    for salt in (0, SPLIT_SALT):
        assert hash_ids(ids, salt).tolist() == [naive.hash_of_id(name, salt) for name in names[skipped:]]


def test_known_hashes():
    assert hash_ids(pa.array(["", "10002"])).tolist() == [17665956581633026203, 13440057340273220851]


@given(st.integers(1, 7), st.integers(0, 9), st.integers(0, 2**32))
@settings(max_examples=50, deadline=None)
def test_the_digest_of_a_row_is_the_written_one(width, n, seed):
    rng = np.random.default_rng(seed)
    words = rng.integers(0, 2**32, (n, width), dtype=np.uint32)
    grade = rng.integers(0, 5, n, dtype=np.int32)
    out = np.empty((n, 2), dtype=np.uint64)
    _kernels.digest_rows(words, grade, out)
    assert [tuple(row) for row in out.tolist()] == [
        naive.digest_of_row(int(g), row) for g, row in zip(grade, words.tolist(), strict=True)
    ]


def test_rows_that_differ_in_signs_only_have_other_digests():
    signs = np.array([[1.0 if k >> f & 1 else -1.0 for f in range(8)] for k in range(256)], dtype=np.float32)
    out = np.empty((256, 2), dtype=np.uint64)
    _kernels.digest_rows(signs.view(np.uint32), np.zeros(256, dtype=np.int32), out)
    assert len(set(out[:, 0].tolist())) == len(set(out[:, 1].tolist())) == 256


@given(st.integers(1, 200), st.integers(1, 9))
@settings(max_examples=50, deadline=None)
def test_turn_is_take_and_transpose(n, width):
    values = np.arange(n * width, dtype=np.float32).reshape(n, width)
    order = np.random.default_rng(n).permutation(n)[: n // 2 + 1]
    out = np.empty((width, len(order)), dtype=np.float32)
    _kernels.turn(values, order, out)
    assert (out == values[order].T).all()


def test_shares_of_splits_are_met_and_say_nothing_about_buckets():
    ids = pa.array([f"q{k}" for k in range(20000)])
    split = splits_of(ids, {"train": 0.8, "valid": 0.15, "test": 0.05})
    assert np.allclose(np.bincount(split) / len(split), [0.8, 0.15, 0.05], atol=0.01)
    table = np.zeros((3, 32))
    np.add.at(table, (split, buckets_of(ids, 32)), 1)
    assert np.allclose(table[0] / table.sum(axis=0), 0.8, atol=0.08)
    assert (splits_of(ids, {"test": 1.0}) == 2).all()
    assert (splits_of(ids, {"train": 1.0}) == 0).all()


def test_narrow_rows_are_widened_some_at_a_time(tmp_path):
    """A hundred thousand rows of one feature, 0.4 MB, would be 400 MB with all features."""
    n, width = 100_000, 1000
    file = SpillFile(tmp_path / "spill", 1, row_schema())
    for rows, features in ((n, 1), (1, width)):
        qid = pa.array([f"q{k % 100}" for k in range(rows)])
        values = np.ones((rows, features), dtype=np.float32)
        spill_rows(file, RowBatch(qid=qid, doc_id=None, grade=np.zeros(rows, dtype=np.int32), values=values), 0)
    spilled = file.finish()
    assert (spilled.width, spilled.rows.tolist()) == (width, [n + 1])
    tracemalloc.start()
    read = sum(len(rows) for rows, _ in padded(spilled, 0, width, 0.0))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert read == n + 1
    assert peak < 3 * BATCH_BYTES


def test_rows_that_came_one_by_one_are_read_in_their_order(tmp_path, monkeypatch):
    file = SpillFile(tmp_path / "spill", 1, row_schema())
    for k in range(20):
        qid, doc_id = pa.array([f"q{k}"]), pa.array([f"d{k}"]) if k % 3 else None
        spill_rows(file, RowBatch(qid=qid, doc_id=doc_id, grade=None, values=np.full((1, 1), k, dtype=np.float32)), k)
    spilled = file.finish()
    whole = read_bucket(spilled, 0, 1, 0.0)
    assert whole.column("qid").to_pylist() == [f"q{k}" for k in range(20)]
    for most in (2, 3, 19, 20):
        monkeypatch.setattr(bucket_module, "_MOST_PARTS", most)
        assert read_bucket(spilled, 0, 1, 0.0) == whole
    sent = pickle.loads(pickle.dumps(spilled))  # to another process
    assert read_bucket(sent, 0, 1, 0.0) == whole


# ---- the sketch of queries trained on, against sets of their ids
# ---------------------------------------------------------

IDS = st.lists(st.text(max_size=6), max_size=40)


def naive_hashes(ids: list[str]) -> list[int]:
    return sorted({int(hash_ids(pa.array([each], pa.string()), SALT)[0]) for each in ids})


@settings(deadline=None)
@given(trained=IDS, asked=IDS)
def test_small_sets_are_counted_exactly(trained: list[str], asked: list[str]) -> None:
    sketch = QuerySketch.of([trained])
    assert sketch.queries == len(set(trained))
    assert sketch.hashes.tolist() == naive_hashes(trained)
    shared = len(set(trained) & set(asked))
    assert overlap(sketch, asked) == Overlap(found=shared, looked_at=len(set(asked)), queries=len(set(asked)))
    assert overlap(sketch, asked).exact
    assert overlap(sketch, asked).estimate == shared


@settings(deadline=None)
@given(trained=IDS, asked=IDS, most=st.integers(1, 50), cut=st.integers(0, 40))
def test_cut_sketches_look_at_what_they_can_tell(trained: list[str], asked: list[str], most: int, cut: int) -> None:
    trained = sorted(set(trained))
    sketch = QuerySketch.of([trained[:cut], trained[cut:]], most)
    assert sketch.queries == len(trained)
    assert sketch.hashes.tolist() == naive_hashes(trained)[:most]
    assert sketch.exact == (len(trained) <= most)
    found = overlap(sketch, pa.array(asked, pa.string()))
    last = math.inf if sketch.exact else naive_hashes(trained)[most - 1]
    looked_at = {h for h in naive_hashes(asked) if h <= last}
    assert found == Overlap(len(set(asked)), len(looked_at), len(looked_at & set(naive_hashes(trained))))
    assert found.found <= len(set(trained) & set(asked))


@settings(deadline=None)
@given(one=IDS, other=IDS, parts=st.integers(1, 5), seed=st.integers(0, 99))
def test_bytes_depend_on_the_set_alone(one: list[str], other: list[str], parts: int, seed: int) -> None:
    ids = sorted({*one, *other})
    shuffled = np.random.default_rng(seed).permutation(np.array([*ids, *ids], dtype=object)).tolist()
    whole = QuerySketch.of([ids])
    assert QuerySketch.of([shuffled[i::parts] for i in range(parts)]).to_bytes() == whole.to_bytes()
    assert QuerySketch.of([one]).union(QuerySketch.of([other])).to_bytes() == whole.to_bytes()
    again = QuerySketch.from_bytes(whole.to_bytes())
    assert again.to_bytes() == whole.to_bytes()
    assert (again.queries, again.exact) == (len(ids), True)


def test_a_union_with_a_cut_sketch_is_cut_where_both_can_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_HASHES", 100)
    many, few = [f"m{i}" for i in range(900)], [f"f{i}" for i in range(60)]
    cut = QuerySketch.of([many], 100)
    for both in (cut.union(QuerySketch.of([few])), QuerySketch.of([few]).union(cut)):
        assert both.hashes.tolist() == naive_hashes(many + few)[:100]
        assert not both.exact
        assert 900 <= both.queries <= 960
        found = overlap(both, few)
        assert found.found == found.looked_at < 60


def test_a_sample_of_many_queries_says_how_many_are_shared() -> None:
    trained = pa.array([f"q{i}" for i in range(100_000)])
    sketch = QuerySketch.of([trained])
    assert (sketch.queries, len(sketch.hashes), sketch.exact) == (100_000, MOST_HASHES, False)
    assert len(sketch.to_bytes()) == 16 + 8 * MOST_HASHES
    asked = [f"q{i}" for i in range(0, 100_000, 10)] + [f"x{i}" for i in range(30_000)]
    found = overlap(sketch, asked)
    assert abs(found.looked_at - 40_000 * MOST_HASHES / 100_000) < 5 * math.sqrt(40_000 * 0.25)
    assert abs(found.estimate - 10_000) < 5 * 40_000 * math.sqrt(0.25 * 0.75 / found.looked_at)
    assert overlap(sketch, [f"x{i}" for i in range(30_000)]).found == 0
    assert math.isnan(overlap(sketch, [next(i for i in asked if overlap(sketch, [i]).looked_at == 0)]).estimate)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"RMQUERY0" + bytes(8),
        MAGIC + bytes(7),
        MAGIC + (3).to_bytes(8, "little"),
        MAGIC + (1).to_bytes(8, "little") + bytes(16),
        MAGIC + (2).to_bytes(8, "little") + bytes(16),
        MAGIC + (1).to_bytes(8, "little") + bytes(9),
    ],
)
def test_other_bytes_are_refused(data: bytes) -> None:
    with refused(DatasetFormatError, "sketch"):
        QuerySketch.from_bytes(data)
