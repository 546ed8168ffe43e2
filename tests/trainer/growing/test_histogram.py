"""Histogram, packing, subtraction and partition kernels against their slow twins."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankmill.foundation.errors import InvalidParameter, TrainingDataRejected
from rankmill.pipeline.bins.layout import lanes_of
from rankmill.trainer import _kernels as row_kernels
from rankmill.trainer.data.layout import BlockedBins
from rankmill.trainer.growing import _histogram_kernels, _partition_kernels
from rankmill.trainer.growing._state_kernels import LOOK_AHEAD as READ_PAST
from rankmill.trainer.growing._state_kernels import Bins
from rankmill.trainer.growing.histogram import scales_of
from rankmill.trainer.team import Team
from tests import naive
from tests.refusals import refused

LOOK_AHEAD = np.zeros(READ_PAST, dtype=np.int32)


def blocked(bins, width=16):
    return BlockedBins.from_batches([bins], len(bins), np.full(bins.shape[1], 256, dtype=np.int32), width)


def kernel_histogram(layout, rows, packed, shares=1):
    out = np.full((len(layout.n_bins), 256), 7, dtype=np.int64)  # 7: cells must be cleared first
    rows = np.concatenate([rows.astype(np.int32), LOOK_AHEAD])
    edges = np.full((shares, layout.width, 256), 7, dtype=np.int64)
    table = np.full((layout.width + 1, 256), 7, dtype=np.int64)
    blocks = np.arange(len(layout.words))
    bins = Bins(
        layout.words,
        layout.used_words,
        blocks,
        layout.n_bins,
        layout.lanes,
        layout.digits,
        layout.by_lane,
        layout.block_starts,
    )
    partial = [
        _histogram_kernels.count_share(bins, rows, packed, 0, len(packed), share, shares, out, table, edges[share])
        for share in range(shares)
    ]
    for share, block in enumerate(partial):
        if block >= 0:
            for first in range(0, layout.n_features, 5):  # in pieces, as several workers do it
                last = min(first + 5, layout.n_features)
                _histogram_kernels.hand_out(edges[share], block, bins, first, last, np.bool_(False), table[-1], out)
    return np.where(np.arange(256) < layout.n_bins[:, None], out, 0)


def test_batches_of_any_size_fill_the_same_blocks():
    bins = np.random.default_rng(3).integers(0, 200, size=(64, 21), dtype=np.uint8)
    n_bins = np.full(21, 200, dtype=np.int32)
    whole = BlockedBins.from_batches([bins], 64, n_bins)
    parts = BlockedBins.from_batches([bins[:1], bins[1:40], bins[40:40], bins[40:]], 64, n_bins)
    assert np.array_equal(whole.words, parts.words)
    assert np.array_equal(np.concatenate(list(whole.batches(np.arange(64)))), bins)


def drawn(n_bins, n_rows, seed):
    rng = np.random.default_rng(seed)
    return np.stack([rng.integers(0, n, n_rows) for n in n_bins], axis=1).astype(np.uint8)


COUNTS = {
    "none": [256] * 17 + [129] * 3,
    "some": [256, 3, 14, 1, 5] * 12,
    "pairs": [16] * 20,
    "many": [2] * 90,
    "to the last code": [2] * 16 + [4] * 8,
    "one": [1] * 9,
}


@pytest.mark.parametrize(("width", "shares"), [(8, 3), (16, 1), (32, 64)])
@pytest.mark.parametrize("n_bins", COUNTS.values(), ids=COUNTS)
def test_features_that_share_lanes_are_counted_as_if_they_did_not(n_bins, width, shares):
    n_bins = np.array(n_bins, dtype=np.int32)
    bins = drawn(n_bins, 90, width)
    layout = BlockedBins.from_batches([bins[:40], bins[40:]], 90, n_bins, width)
    rows = np.random.default_rng(shares).permutation(90)[:53]
    packed = np.random.default_rng(1).integers(-(2**40), 2**40, size=53)
    assert np.array_equal(kernel_histogram(layout, rows, packed, shares), naive.histogram(bins, rows, packed))
    assert np.array_equal(np.concatenate(list(layout.batches(rows))), bins[rows])


@settings(max_examples=80, deadline=None)
@given(st.lists(st.one_of(st.integers(1, 20), st.integers(1, 256)), min_size=1, max_size=60))
def test_every_feature_has_a_place_in_a_lane_of_its_own_or_with_others(n_bins):
    lanes = lanes_of(np.array(n_bins, dtype=np.int32))
    used = sorted(set(lanes[:, row_kernels.LANE].tolist()))
    assert used == list(range(len(used)))
    assert len(used) == len(n_bins) or -(-len(used) // 8) < -(-len(n_bins) // 8)
    for lane in used:
        own = [tuple(row) for row, n in zip(np.c_[lanes, n_bins].tolist(), n_bins, strict=True) if row[0] == lane]
        product = 1
        for _, place, codes, n in sorted(own, key=lambda row: (row[1], row[3])):
            assert place == product
            product *= n
            assert codes <= 256
        assert product == own[0][2]


def test_narrow_features_save_words():
    layout = BlockedBins.from_batches([np.zeros((5, 32), np.uint8)], 5, np.array([256, 3, 3, 3] * 8, dtype=np.int32))
    assert layout.words.shape == (1, 5, 2)  # 8 lanes of their own, and 5 lanes of up to 5 features
    assert layout.used_words.tolist() == [2]


@pytest.mark.parametrize(
    ("batches", "error"),
    [
        ([np.zeros((3, 2), np.uint8)], TrainingDataRejected),  # a row short
        ([np.zeros((4, 3), np.uint8)], TrainingDataRejected),  # a feature too many
        ([np.full((4, 2), 9, np.uint8)], TrainingDataRejected),  # a bin out of range
    ],
)
def test_bins_that_do_not_fit_are_refused(batches, error):
    with refused(InvalidParameter, "8"):
        BlockedBins.from_batches([np.zeros((1, 1), np.uint8)], 1, np.array([5], dtype=np.int32), width=12)
    with pytest.raises(error):
        BlockedBins.from_batches(batches, 4, np.array([5, 5], dtype=np.int32))


numbers = st.floats(-1e6, 1e6, allow_nan=False, width=32)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=50), st.sampled_from([1e-12, 1.0, 1e12]))
def test_packed_sums_come_apart_and_are_near_the_true_sums(pairs, unit):
    g = np.array([p[0] for p in pairs], dtype=np.float64) * unit
    h = np.abs(np.array([p[1] for p in pairs], dtype=np.float64)) * unit
    scale, _ = scales_of(g, h, Team(1))
    packed = np.empty(len(g), dtype=np.int64)
    row_kernels.pack(g, h, scale.gradient, scale.hessian, 0, len(g), packed)
    low, high = packed & 0xFFFFFFFF, packed >> 32
    total = int(packed.sum())
    assert total >> 32 == int(high.sum())
    assert total & 0xFFFFFFFF == int(low.sum()) < 2**32
    assert abs(int(np.abs(high).sum())) < 2**31
    error = len(g) / (2 * scale.gradient) + 1e-9 * np.abs(g).sum()
    assert abs((total >> 32) / scale.gradient - g.sum()) <= error
    assert abs((total & 0xFFFFFFFF) / scale.hessian - h.sum()) <= len(h) / (2 * scale.hessian) + 1e-9 * h.sum()


def test_scales_are_powers_of_two_and_use_the_room():
    rng = np.random.default_rng(1)
    g, h = rng.normal(size=10_000), rng.random(10_000)
    histograms, leaves = scales_of(g, h, Team(1))
    for scale, total, bits in (
        (histograms.gradient, np.abs(g).sum(), 31),
        (histograms.hessian, h.sum(), 31),
        (leaves.gradient, np.abs(g).sum(), 62),
    ):
        assert np.frexp(scale)[0] == 0.5
        assert 2.0 ** (bits - 2) - 10_000 < total * scale < 2.0**bits
    assert scales_of(np.zeros(5), np.zeros(5), Team(1))[0].gradient == 1.0


@pytest.mark.parametrize("seed", range(2))
def test_children_add_up_to_the_parent(seed):
    rng = np.random.default_rng(seed)
    bins = rng.integers(0, 256, size=(200, 20), dtype=np.uint8)
    packed = rng.integers(-(2**40), 2**40, size=200)
    layout = blocked(bins)
    rows = rng.permutation(200)
    parent = np.zeros((len(layout.n_bins), 256), dtype=np.int64)
    parent[:20] = kernel_histogram(layout, rows, packed[rows])
    small = np.zeros_like(parent)
    small[:20] = kernel_histogram(layout, rows[:70], packed[rows[:70]])
    _histogram_kernels.subtract(parent, small, layout.n_bins, 0, len(layout.n_bins))
    assert np.array_equal(parent[:20], naive.histogram(bins, rows[70:], packed[rows[70:]]))


def sides_of(threshold, missing_left):
    """Return 1 for the bins that a split sends left, (256,)."""
    sides = (np.arange(256) <= threshold).astype(np.uint8)
    sides[0] = missing_left
    return sides


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=40),
    st.integers(1, 5),
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_partition_keeps_order_on_both_sides(column, threshold, missing_left, random):
    n = len(column)
    bins = np.array(column, dtype=np.uint8)
    order = list(range(n))
    random.shuffle(order)
    first = random.randrange(n)
    last = random.randrange(first, n + 1)
    rows = np.array([*order, *LOOK_AHEAD], dtype=np.int32)
    packed = rows[:n].astype(np.int64) * 10
    n_left = _partition_kernels.partition(
        bins,
        1,
        sides_of(threshold, missing_left),
        rows,
        packed,
        first,
        last,
        np.empty(n, np.int32),
        np.empty(n, np.int64),
    )
    middle = order[first:last]
    left = [row for row in middle if (missing_left if column[row] == 0 else column[row] <= threshold)]
    right = [row for row in middle if row not in left]
    assert n_left == len(left)
    assert rows[:n].tolist() == order[:first] + left + right + order[last:]
    assert packed.tolist() == [row * 10 for row in rows[:n].tolist()]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=40), st.integers(1, 5), st.booleans(), st.integers(1, 6))
def test_a_partition_shared_out_is_the_partition(column, threshold, missing_left, workers):
    n = len(column)
    bins, rule = np.array(column, dtype=np.uint8), (1, sides_of(threshold, missing_left))
    start = np.concatenate([np.arange(n, dtype=np.int32), LOOK_AHEAD])
    alone, packed = start.copy(), np.arange(n, dtype=np.int64) * 10
    spare = np.empty(n, np.int32), np.empty(n, np.int64)
    expected = _partition_kernels.partition(bins, *rule, alone, packed, 0, n, *spare)
    rows, together = start.copy(), np.arange(n, dtype=np.int64) * 10
    cuts = [worker * n // workers for worker in range(workers + 1)]
    n_left = [
        _partition_kernels.deal_out(bins, *rule, rows, together, first, last, *spare)
        for first, last in itertools.pairwise(cuts)
    ]
    for worker in range(workers):
        before = sum(n_left[:worker])
        right_to = cuts[worker] + sum(n_left) - before
        first, last = cuts[worker], cuts[worker + 1]
        _partition_kernels.collect(*spare, first, last, n_left[worker], before, right_to, rows, together)
    assert sum(n_left) == expected
    assert rows.tolist() == alone.tolist()
    assert together.tolist() == packed.tolist()
