"""How bins lie in memory and how gradients are packed; sums and partitions: test_growth_by_definition.py."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankmill.foundation.errors import InvalidParameter, TrainingDataRejected
from rankmill.pipeline.bins.layout import lanes_of
from rankmill.trainer import _kernels as row_kernels
from rankmill.trainer.data.layout import BlockedBins
from rankmill.trainer.growing.histogram import scales_of
from rankmill.trainer.team import Team
from tests.refusals import refused


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


@pytest.mark.parametrize("width", [8, 32])
@pytest.mark.parametrize("n_bins", COUNTS.values(), ids=COUNTS)
def test_bins_come_back_from_the_lanes_that_they_share(n_bins, width):
    n_bins = np.array(n_bins, dtype=np.int32)
    bins = drawn(n_bins, 90, width)
    layout = BlockedBins.from_batches([bins[:40], bins[40:40], bins[40:]], 90, n_bins, width)
    rows = np.random.default_rng(width).permutation(90)[:53]
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
def test_packed_sums_are_unpacked_and_near_the_true_sums(pairs, unit):
    g = np.array([p[0] for p in pairs], dtype=np.float64) * unit
    h = np.abs(np.array([p[1] for p in pairs], dtype=np.float64)) * unit
    scale, _ = scales_of(g, h, Team(1))
    packed = np.empty(len(g), dtype=np.int64)
    rows = np.empty(len(g), dtype=np.int32)
    row_kernels.pack(g, h, scale.gradient, scale.hessian, rows[:0], 0, 0, len(g), rows, packed)
    low, high = packed & 0xFFFFFFFF, packed >> 32
    total = int(packed.sum())
    assert total >> 32 == int(high.sum())
    assert total & 0xFFFFFFFF == int(low.sum()) < 2**32
    assert abs(int(np.abs(high).sum())) < 2**31
    error = len(g) / (2 * scale.gradient) + 1e-9 * np.abs(g).sum()
    assert abs((total >> 32) / scale.gradient - g.sum()) <= error
    assert abs((total & 0xFFFFFFFF) / scale.hessian - h.sum()) <= len(h) / (2 * scale.hessian) + 1e-9 * h.sum()


def test_scales_are_powers_of_two_and_use_the_range():
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
