"""Laws of the quantile bins."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rankmill.foundation.errors import DatasetFormatError, InputError
from rankmill.pipeline.bins import spec as binspec
from rankmill.pipeline.bins.spec import BinSpec, FeatureBins, apply_bins, feature_bins, matrix_bins
from tests import naive
from tests.refusals import refused

FLOATS = hnp.arrays(np.float32, st.integers(0, 60), elements=st.floats(width=32, allow_nan=True, allow_infinity=True))
COARSE = hnp.arrays(np.float32, st.integers(0, 400), elements=st.integers(-20, 20).map(float))
SAMPLES = FLOATS | COARSE
# the first example waits for the compiler
law = settings(deadline=None, max_examples=50)


def edges_of(values, max_bin=255):
    return feature_bins("x", values, max_bin).edges


def masses(values, edges):
    """Values and their counts, bin by bin, without bin 0."""
    bins = [Counter() for _ in range(len(edges) + 1)]
    for x in values[~np.isnan(values)].tolist():
        bins[naive.bin_of(x, edges.tolist()) - 1][x + 0.0] += 1
    return bins


@law
@given(SAMPLES, st.integers(2, 60), st.randoms(use_true_random=False))
def test_edges_are_midpoints_of_neighbours_that_leave_no_bin_empty_or_too_full(values, max_bin, random):
    edges = edges_of(values, max_bin)
    present = np.unique(values[~np.isnan(values)] + np.float32(0)).astype(np.float64)
    assert edges.dtype == np.float32
    assert len(edges) == max(0, min(len(present), max_bin) - 1)
    for edge in edges.tolist():
        below, above = present[present <= edge][-1], present[present > edge][0]
        middle = float(np.float32((below + above) / 2)) if np.isfinite([below, above]).all() else edge
        assert edge == (middle if middle < above else below)
        assert np.isfinite(edge) or edge == below
    n = int((~np.isnan(values)).sum())
    for bins in masses(values, edges):
        assert bins or not len(present)
        assert len(bins) < 2 or bins.total() <= 2 * n / (max_bin - 1) + 1
    shuffled = values.tolist()
    random.shuffle(shuffled)
    np.testing.assert_array_equal(edges, edges_of(np.array(shuffled, dtype=np.float32), max_bin))


@law
@given(st.lists(st.integers(1, 9), min_size=1, max_size=9), st.integers(2, 8))
def test_no_other_cut_has_a_lighter_heaviest_bin(counts, max_bin):
    values = np.repeat(np.arange(len(counts), dtype=np.float32), counts)
    heaviest = max((b.total() for b in masses(values, edges_of(values, max_bin)) if len(b) > 1), default=0)
    assert heaviest == naive.lightest_heaviest_bin(counts, max_bin)


@pytest.mark.parametrize("max_bin", [15, 255])
def test_a_value_heavier_than_its_fair_share_stands_alone(max_bin):
    rng = np.random.default_rng(9)
    n = 4000
    normal = rng.normal(size=n)
    columns = [
        np.where(rng.random(n) < 1.5 / max_bin, 0.0, normal),
        np.where(rng.random(n) < 0.3, rng.integers(-3, 4, n), normal),
        np.round(rng.lognormal(size=n), 2),
        rng.geometric(0.03, n).astype(float),
        np.where(rng.random(n) < 0.95, 0.0, normal),
        np.maximum(normal, 0.0),
    ]
    for column in columns:
        for bins in masses(column.astype(np.float32), edges_of(column.astype(np.float32), max_bin)):
            assert len(bins) == 1 or max(bins.values()) <= n / max_bin


@pytest.mark.parametrize(
    ("below", "above", "edge"),
    [
        (1.0, np.nextafter(np.float32(1), np.float32(2)), 1.0),
        (0.0, 1e-45, 0.0),
        (-1e-45, 0.0, np.float32(-1e-45)),
        (-3e38, 3e38, 0.0),
        (3e38, 3.4e38, np.float32(3.2e38)),
        (-np.inf, 1.0, np.finfo(np.float32).min),
        (1.0, np.inf, np.finfo(np.float32).max),
        (np.finfo(np.float32).max, np.inf, np.finfo(np.float32).max),
        (-np.inf, np.finfo(np.float32).min, -np.inf),
        (-np.inf, np.inf, 0.0),
    ],
)
def test_edges_at_the_limits_of_float32(below, above, edge):
    edges = edges_of(np.array([above, below], dtype=np.float32))
    assert edges.tolist() == pytest.approx([float(edge)], rel=1e-7)
    assert np.float32(below) <= edges[0] < np.float32(above)


def test_negative_zero_is_zero():
    assert len(edges_of(np.array([-0.0, 0.0], dtype=np.float32))) == 0
    edges = edges_of(np.array([-0.0, 2.0], dtype=np.float32))
    assert edges.tolist() == [1.0]
    spec = BinSpec((feature_bins("x", np.array([-0.0, 0.0, 1e-45], dtype=np.float32)),))
    column = np.array([[-0.0], [0.0], [1e-45]], dtype=np.float32)
    assert apply_bins(column, spec).ravel().tolist() == [1, 1, 2]


@law
@given(SAMPLES, SAMPLES, st.integers(2, 255))
def test_apply_is_the_rule_of_the_docstring(train, values, max_bin):
    bins = feature_bins("x", train, max_bin)
    with np.errstate(over="ignore", under="ignore"):
        behind = np.nextafter(bins.edges, np.float32(np.inf))
    probe = np.concatenate([values, bins.edges, behind])[:, None]
    found = apply_bins(probe, BinSpec((bins,))).ravel()
    assert found.dtype == np.uint8
    assert found.tolist() == [naive.bin_of(x, bins.edges.tolist()) for x in probe.ravel().tolist()]
    order = np.argsort(probe.ravel(), kind="stable")
    present = found[order][~np.isnan(probe.ravel()[order])].astype(int)
    assert np.all(np.diff(present) >= 0)


@law
@given(SAMPLES, st.integers(2, 255))
def test_counts_extremes_and_missing(values, max_bin):
    bins = feature_bins("x", values, max_bin)
    found = apply_bins(values[:, None], BinSpec((bins,))).ravel()
    np.testing.assert_array_equal(bins.counts, np.bincount(found, minlength=bins.n_bins))
    assert bins.counts.sum() == len(values)
    assert bins.missing == np.isnan(values).sum()
    present = values[~np.isnan(values)]
    assert bins.minimum == (float(present.min()) if len(present) else None)
    assert bins.maximum == (float(present.max()) if len(present) else None)


def test_apply_walks_every_block_and_column(monkeypatch):
    rng = np.random.default_rng(1)
    train = rng.normal(size=(3000, 5)).astype(np.float32)
    train[:, 2] = 4.0
    spec = BinSpec(tuple(feature_bins(f"f{f}", train[:, f]) for f in range(5)))
    values = rng.normal(size=(777, 5)).astype(np.float32)
    values[rng.random(values.shape) < 0.1] = np.nan
    expected = np.stack([np.searchsorted(spec.features[f].edges, values[:, f]) + 1 for f in range(5)], axis=1)
    expected[np.isnan(values)] = 0
    np.testing.assert_array_equal(apply_bins(values, spec), expected)
    np.testing.assert_array_equal(apply_bins(np.asfortranarray(values), spec), expected)
    monkeypatch.setattr(binspec, "_FEW_VALUES", 0)  # let small work be shared out as well
    for n_threads in (2, 3, 7):
        np.testing.assert_array_equal(apply_bins(values, spec, n_threads=n_threads), expected)
    assert apply_bins(values[:0], spec).shape == (0, 5)


@law
@given(SAMPLES, st.integers(2, 255))
def test_a_binspec_reads_back_exactly(values, max_bin):
    spec = BinSpec((feature_bins("a", values, max_bin), feature_bins("ü", -values)), max_bin)
    again = BinSpec.from_json(spec.to_json())
    assert again.digest == spec.digest
    assert again.feature_names == ("a", "ü")
    for one, other in zip(spec.features, again.features, strict=True):
        assert one.edges.tobytes() == other.edges.tobytes()


def test_a_broken_binspec_is_refused():
    text = BinSpec((feature_bins("a", np.arange(5, dtype=np.float32)),)).to_json()
    with refused(DatasetFormatError, "bin specification", "1", "7"):
        BinSpec.from_json(text.replace('"format":1', '"format":7'))
    for broken in ("", "[]", "{}", text.replace("0.5", "1.5"), text.replace('"missing":0', '"missing":3')):
        with refused(DatasetFormatError, "bin specification"):
            BinSpec.from_json(broken)


def test_impossible_arguments_are_refused():
    with refused(InputError, "max_bin", "2", "255", "256"):
        edges_of(np.zeros(3, dtype=np.float32), 256)
    none = FeatureBins("x", np.zeros(0, np.float32), np.zeros(2, np.int64), None, None)
    with pytest.raises(ValueError, match="shape"):
        apply_bins(np.zeros((2, 3), dtype=np.float32), BinSpec((none,)))


@pytest.mark.parametrize(("n_features", "n_threads"), [(1, 2), (31, 1), (32, 5), (70, 2)])
def test_bins_of_a_matrix_are_those_of_its_columns(n_features, n_threads, monkeypatch):
    monkeypatch.setattr(binspec, "_FEW_VALUES", 0)
    rng = np.random.default_rng(n_features)
    values = rng.normal(size=(200, n_features)).round(2).astype(np.float32)
    values[rng.random(values.shape) < 0.1] = np.nan
    names = [f"f{i}" for i in range(n_features)]
    alone = BinSpec(tuple(feature_bins(name, values[:, i].copy(), 20) for i, name in enumerate(names)), 20)
    assert matrix_bins(names, values, 20, n_threads=n_threads).digest == alone.digest
