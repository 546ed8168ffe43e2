"""Hashes against their slow twins, and shards that do not depend on how much memory there was."""

import pickle
import tracemalloc

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from rankmill.pipeline.grouping import _kernels
from rankmill.pipeline.grouping import bucket_rows as bucket_module
from rankmill.pipeline.grouping.bucket_files import BucketFiles
from rankmill.pipeline.grouping.bucket_rows import RowSpill, padded, read_bucket, spilled_schema
from rankmill.pipeline.grouping.query_splits import SPLIT_SALT, buckets_of, hash_ids, splits_of
from rankmill.pipeline.sources.batch import BATCH_BYTES, RowBatch
from tests import naive


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
    spill = RowSpill(BucketFiles(tmp_path / "spill", 1, spilled_schema()))
    for rows, features in ((n, 1), (1, width)):
        qid = pa.array([f"q{k % 100}" for k in range(rows)])
        values = np.ones((rows, features), dtype=np.float32)
        spill.add(RowBatch(qid=qid, doc_id=None, grade=np.zeros(rows, dtype=np.int32), values=values), 0)
    tracemalloc.start()
    read = sum(len(rows.grade) for rows, _ in padded(spill, 0, width, 0.0))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert read == n + 1
    assert peak < 3 * BATCH_BYTES


def test_rows_that_came_one_by_one_are_read_in_their_order(tmp_path, monkeypatch):
    files = BucketFiles(tmp_path / "spill", 1, spilled_schema())
    spill = RowSpill(files)
    for k in range(20):
        qid, doc_id = pa.array([f"q{k}"]), pa.array([f"d{k}"]) if k % 3 else None
        spill.add(RowBatch(qid=qid, doc_id=doc_id, grade=None, values=np.full((1, 1), k, dtype=np.float32)), k)
    whole = read_bucket(spill, 0, 1, 0.0)
    assert whole.qid.to_pylist() == [f"q{k}" for k in range(20)]
    for most in (2, 3, 19, 20):
        monkeypatch.setattr(bucket_module, "_MOST_PARTS", most)
        found = read_bucket(spill, 0, 1, 0.0)
        assert (found.qid, found.doc_id) == (whole.qid, whole.doc_id)
        assert (found.source == whole.source).all()
    sent = RowSpill(pickle.loads(pickle.dumps(files)))  # to another process
    assert read_bucket(sent, 0, 1, 0.0).qid == whole.qid
