"""Drift: the index, what chance makes of it when rows of a query are alike, and what is found."""

import json
import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from rankmill.foundation.errors import DatasetFormatError, DriftAlarm, InputError
from rankmill.pipeline.bins.binning import bin_dataset
from rankmill.pipeline.bins.spec import feature_bins
from rankmill.pipeline.cli import app
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.pipeline.ingest import ingest
from rankmill.pipeline.options import IngestOptions
from rankmill.pipeline.statistics.dataset_drift import (
    FALSE_ALARMS,
    LARGE,
    compare,
    compare_and_keep,
    compare_with,
    drift_from,
)
from rankmill.pipeline.statistics.drift_reference import DriftReference, digest_in
from rankmill.pipeline.statistics.psi import (
    FeatureSample,
    Index,
    Sums,
    cell_edges,
    cells_for,
    cells_of,
    chi_square_quantile,
)
from tests import naive_datasets
from tests.refusals import refused


def feature_drift(name, before, now, starts, tail):
    """Compare the values ``before`` with those of ``now``, whose queries begin at ``starts`` each."""
    most = cells_for(*(len(of) - 1 for of in starts))
    return drift_from(FeatureSample.of(name, before, starts[0], most), now, starts[1], tail)


law = settings(deadline=None, max_examples=30)
QUERIES = st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=6), min_size=1, max_size=12)


def sums_of(queries, n_cells=5):
    cells = np.array([cell for query in queries for cell in query], dtype=np.uint8)
    return Sums.of(cells, np.cumsum([0, *map(len, queries)]).astype(np.int64), n_cells)


@law
@given(QUERIES)
def test_counts_and_covariance_are_those_of_the_queries(queries):
    found = sums_of(queries)
    flat = [cell for query in queries for cell in query]
    assert found.counts.tolist() == [flat.count(cell) for cell in range(5)]
    np.testing.assert_allclose(found.covariance, naive_datasets.covariance(queries, 5), atol=1e-12)


@law
@given(QUERIES, QUERIES)
def test_the_index_is_its_formula_and_knows_no_order(old, new):
    one, other = sums_of(old), sums_of(new)
    index = Index.of(one, other)
    shares = [cells.shares(size).tolist() for cells, size in zip((one, other), index.effective, strict=True)]
    assert index.psi == pytest.approx(naive_datasets.psi(*shares))
    assert index.psi >= 0
    back = Index.of(other, one)
    assert (back.psi, back.expected) == (pytest.approx(index.psi), pytest.approx(index.expected))
    again = Index.of(sums_of(old[::-1]), sums_of([query[::-1] for query in new]))
    assert again.psi == pytest.approx(index.psi)
    assert Index.of(one, one).psi == 0


def test_independent_rows_are_worth_themselves_and_rows_of_a_query_of_one_value_a_query():
    rng = np.random.default_rng(3)
    size, n_queries = 20, 2000
    alone = [[int(cell)] for cell in rng.integers(0, 5, size * n_queries)]
    alike = [[int(cell)] * size for cell in rng.integers(0, 5, n_queries)]
    for queries, worth in ((alone, size * n_queries), (alike, n_queries)):
        index = Index.of(sums_of(queries), sums_of(queries))
        assert index.effective == pytest.approx((worth, worth), rel=0.02)
        assert index.expected == pytest.approx(4 * 2 / worth, rel=0.02)
        assert index.freedom == pytest.approx(4, rel=0.02)


def test_quantiles_are_those_of_scipy():
    stats = pytest.importorskip("scipy.stats")
    for freedom in (1, 1.5, 2, 5, 20, 200):
        for tail in (0.01, 1e-3, 1e-5, 1e-7):
            exact = stats.chi2.isf(tail, freedom)
            assert 0.99 * exact < chi_square_quantile(tail, freedom) < 1.2 * exact


@law
@given(
    st.lists(st.floats(width=32) | st.integers(-5, 5).map(float), max_size=60),
    st.lists(st.floats(width=32) | st.integers(-7, 7).map(float), max_size=30),
    st.integers(2, 20),
)
def test_cells_follow_the_bins_and_the_range(before, now, most):
    bins = feature_bins("x", np.array(before, dtype=np.float32))
    edges, low, high = cell_edges(bins, most)
    assert len(edges) < most
    assert np.all(np.isin(edges, bins.edges))
    values = np.array(now, dtype=np.float32)
    found = cells_of(values, edges, low, high)
    wanted = [naive_datasets.cell_of(value, edges.tolist(), float(low), float(high)) for value in values.tolist()]
    assert found.tolist() == wanted


# ---- chance and change -----------------------------------------------------------------------------------------------


def sample(rng, kind, n_queries):
    sizes = 1 + rng.poisson(15, n_queries)
    starts = np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)
    of_query = np.repeat(np.arange(n_queries), sizes)
    row, query = rng.normal(size=len(of_query)), rng.normal(size=n_queries)[of_query]
    values = {
        "of the row": row,
        "of the query": query,
        "of both": query + row,
        "sparse": np.where(rng.random(len(row)) < 0.9, 0.0, np.exp(row)),
        "missing by query": np.where(query < -0.5, np.nan, row),
        "two values of a query": (query > 0).astype(float),
    }[kind]
    return values.astype(np.float32), starts


KINDS = ("of the row", "of the query", "of both", "sparse", "missing by query", "two values of a query")


@pytest.mark.parametrize("kind", KINDS)
def test_chance_raises_the_index_as_often_as_is_said_and_hardly_ever_an_alarm(kind):
    rng = np.random.default_rng(17)
    runs, beyond, alarms, naive = 120, 0, 0, 0
    for _ in range(runs):
        (before, old), (now, new) = sample(rng, kind, 200), sample(rng, kind, 200)
        drift = feature_drift("x", before, now, (old, new), 0.05)
        cells = [drift.effective_rows, drift.cells]
        assert all(np.isfinite(cells[0]))
        edges, low, high = cell_edges(feature_bins("x", before), 20)
        found = [cells_of(values, edges, low, high) for values in (before, now)]
        index = Index.of(*(Sums.of(out, s, len(edges) + 4) for out, s in zip(found, (old, new), strict=True)))
        beyond += index.psi > index.quantile(0.05)
        used = len(np.unique(np.concatenate(found)))
        naive += index.psi > chi_square_quantile(0.05, used - 1) * (1 / len(before) + 1 / len(now))
        alarms += feature_drift("x", before, now, (old, new), FALSE_ALARMS / 100).alarm
    assert beyond <= 0.05 * runs + 3 * math.sqrt(0.05 * runs)
    assert alarms == 0
    if kind not in {"of the row", "sparse"}:  # as if rows of a query were independent
        assert naive > 0.3 * runs


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("of the row", lambda x: x + 0.5),
        ("of the row", lambda x: 1.8 * x),
        ("of the row", lambda x: np.where(np.arange(len(x)) % 4 == 0, np.nan, x)),
        ("of the query", lambda x: x + 1.2),
        ("of both", lambda x: x + 1.2),
        ("sparse", lambda x: np.where(np.arange(len(x)) % 2 == 0, 0.3, x)),
        ("of the row", lambda x: x * 100),
    ],
)
def test_what_changed_is_found(kind, change):
    rng = np.random.default_rng(23)
    for _ in range(5):
        (before, old), (now, new) = sample(rng, kind, 300), sample(rng, kind, 300)
        drift = feature_drift("x", before, change(now).astype(np.float32), (old, new), FALSE_ALARMS / 100)
        assert drift.alarm
        assert drift.psi > drift.threshold >= LARGE


def test_a_constant_that_begins_to_vary_is_found():
    rng = np.random.default_rng(1)
    _, starts = sample(rng, "of the row", 100)
    before = np.zeros(starts[-1], dtype=np.float32)
    now = np.where(rng.random(len(before)) < 0.2, 1, before).astype(np.float32)
    drift = feature_drift("x", before, now, (starts, starts), 1e-5)
    assert drift.alarm
    assert drift.beyond == pytest.approx(0.2, abs=0.05)
    same = feature_drift("x", before, before, (starts, starts), 1e-5)
    assert (same.psi, same.expected, same.alarm) == (0.0, 0.0, False)
    lost = feature_drift("x", before, np.full_like(before, np.nan), (starts, starts), 1e-5)
    assert lost.alarm
    assert lost.missing == (0.0, 1.0)
    assert feature_drift("x", np.full_like(before, np.nan), before, (starts, starts), 1e-5).alarm


# ---- datasets --------------------------------------------------------------------------------------------------------


def make(folder, name, seed, *, shift=0.0, grade=0, extra="c"):
    rng = np.random.default_rng(seed)
    n_queries, size = 300, 12
    n = n_queries * size
    table = {
        "qid": np.repeat([f"q{i}" for i in range(n_queries)], size),
        "doc_id": [f"d{i}" for i in range(n)],
        "grade": np.minimum(rng.integers(0, 3, n) + grade * (rng.random(n) < 0.7), 4).astype(np.int32),
        "a": rng.normal(size=n).astype(np.float32),
        "b": (rng.normal(size=n) + shift).astype(np.float32),
        extra: rng.random(n).astype(np.float32),
    }
    pq.write_table(pa.table(table), folder / f"{name}.parquet")
    shares = {"train": 0.7, "test": 0.3}
    ingest([folder / f"{name}.parquet"], folder / name, options=IngestOptions(split=shares, buckets=3))
    return Dataset.open(folder / name)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("drift")
    make(folder, "old", 1)
    make(folder, "same", 2)
    make(folder, "shifted", 3, shift=1.0)
    make(folder, "graded", 4, grade=2)
    make(folder, "other", 5, extra="d")
    return folder


def against_old(folder, name):
    return compare(Dataset.open(folder / name), Dataset.open(folder / "old"))


def test_only_what_changed_is_reported(folder):
    assert against_old(folder, "same").alarms == ()
    shifted = against_old(folder, "shifted")
    assert shifted.alarms == ("b",)
    assert shifted.split == "train"
    assert [drift.name for drift in shifted.features] == ["a", "b", "c"]
    assert against_old(folder, "graded").alarms == ("grades",)
    other = against_old(folder, "other")
    assert (other.alarms, other.came, other.went) == (("d", "c"), ("d",), ("c",))
    assert against_old(folder, "old").features[0].psi == 0


def test_exact_bins_make_no_difference_to_the_quantiles_of_all_rows(folder):
    bare = against_old(folder, "shifted")
    bin_dataset(Dataset.open(folder / "old"), 255)
    binned = against_old(folder, "shifted")
    assert binned.alarms == bare.alarms
    for one, other in zip(bare.features, binned.features, strict=True):
        assert one == other


def test_nothing_in_common_is_an_error(folder, tmp_path):
    (tmp_path / "in.csv").write_text("qid,grade,z\na,1,2\n")
    ingest([tmp_path / "in.csv"], tmp_path / "z")
    with refused(InputError, "feature"):
        compare(Dataset.open(tmp_path / "z"), Dataset.open(folder / "old"))


def test_all_rows_are_compared_where_one_has_no_train_split(folder, tmp_path):
    options = IngestOptions(split={"test": 1.0})
    ingest([folder / "same.parquet"], tmp_path / "data", options=options)
    found = compare(Dataset.open(tmp_path / "data"), Dataset.open(folder / "old"))
    assert (found.split, found.rows, found.alarms) == (None, (3600, 3600), ())


def test_the_command_reports_drift_and_exits_with_an_error_only_if_asked(folder):
    old, shifted, same = (str(folder / name) for name in ("old", "shifted", "same"))
    run = CliRunner()
    reported = run.invoke(app, ["describe", shifted, "--against", old])
    assert reported.exit_code == 0
    lines = reported.stdout.splitlines()
    assert lines[-1] == "1 of 3 features moved"
    (line,) = (line for line in lines if line.split()[:1] == ["b"])
    assert line.split()[-1] == "drift"
    content = json.loads(run.invoke(app, ["describe", shifted, "--against", old, "--json"]).stdout)
    assert content["alarms"] == ["b"]
    assert [feature["alarm"] for feature in content["features"]] == [False, True, False]
    failed = run.invoke(app, ["describe", shifted, "--against", old, "--fail-on-drift"])
    assert isinstance(failed.exception, DriftAlarm)
    assert str(failed.exception) == f"{shifted}: drifted from {old} in b"
    assert failed.stdout == reported.stdout
    assert run.invoke(app, ["describe", same, "--against", old, "--fail-on-drift"]).exit_code == 0
    alone = run.invoke(app, ["describe", same, "--fail-on-drift"])
    assert isinstance(alone.exception, InputError)


# ---- what is kept of a dataset is as good as the dataset
# ---------------------------------------------------------------

fewer = settings(deadline=None, max_examples=50)


def starts_of(queries):
    return np.cumsum([0, *map(len, queries)]).astype(np.int64)


@fewer
@given(
    QUERIES,
    st.lists(st.integers(0, 2), min_size=5, max_size=5).filter(lambda into: set(into) == set(range(max(into) + 1))),
)
def test_joined_sums_are_those_of_joined_cells(queries, into):
    flat = np.array([cell for query in queries for cell in query], dtype=np.uint8)
    joined = Sums.of(flat, starts_of(queries), 5).joined(np.array(into))
    direct = Sums.of(np.array(into, dtype=np.uint8)[flat], starts_of(queries), max(into) + 1)
    for one, other in zip((joined.counts, joined.weighted, joined.products), (direct.counts, direct.weighted, direct.products), strict=True):  # fmt: skip
        assert np.array_equal(one, other)
    assert joined.squares == direct.squares
    again = [[into[cell] for cell in query] for query in queries]
    wanted = naive_datasets.covariance(again, max(into) + 1)
    np.testing.assert_allclose(joined.covariance, wanted, atol=1e-12)


@fewer
@given(
    st.lists(
        st.lists(st.floats(-9, 9, width=32) | st.just(float("nan")), min_size=1, max_size=9), min_size=1, max_size=9
    ),
    st.lists(st.floats(-9, 9, width=32) | st.just(float("nan")), min_size=1, max_size=20),
    st.integers(2, 6),
)
def test_cells_that_are_joined_hold_what_they_would_have_held(queries, others, most):
    values = np.array([value for query in queries for value in query], dtype=np.float32)
    fine = FeatureSample.of("x", values, starts_of(queries), 20)
    joined = fine.joined(most)
    assert len(joined.edges) < most
    assert np.all(np.isin(joined.edges, fine.edges))
    placed = joined.placed(values, starts_of(queries))
    for one, other in zip((joined.sums.counts, joined.sums.weighted), (placed.counts, placed.weighted), strict=True):
        assert np.array_equal(one, other)
    assert np.array_equal(joined.sums.products, placed.products)
    new = joined.placed(np.array(others, dtype=np.float32), np.array([0, len(others)]))
    wanted = [naive_datasets.cell_of(x, joined.edges.tolist(), float(joined.low), float(joined.high)) for x in others]
    assert new.counts.tolist() == [wanted.count(cell) for cell in range(len(joined.edges) + 4)]


@pytest.mark.parametrize("name", ["shifted", "other"])
def test_what_is_kept_finds_what_the_dataset_would(folder, tmp_path, name):
    new, old = Dataset.open(folder / name), Dataset.open(folder / "old")
    wanted = compare(new, old)
    DriftReference.of(old).write(tmp_path / "kept")
    kept = DriftReference.read(tmp_path / "kept")
    assert compare_with(new, kept) == wanted
    found, of_new = compare_and_keep(new, kept)
    assert found == wanted
    of_new.write(tmp_path / "new")
    DriftReference.of(new).write(tmp_path / "again")
    assert (tmp_path / "new").read_bytes() == (tmp_path / "again").read_bytes()
    assert (digest_in(tmp_path / "new"), digest_in(tmp_path / "kept")) == (new.digest, old.digest)
    assert (tmp_path / "kept").stat().st_size < 50_000


def test_fewer_queries_than_the_former_one_had_are_cut_into_fewer_cells(folder, tmp_path):
    old = Dataset.open(folder / "old")
    table = pq.read_table(folder / "shifted.parquet").slice(0, 60 * 12)
    pq.write_table(table, tmp_path / "few.parquet")
    ingest([tmp_path / "few.parquet"], tmp_path / "few", options=IngestOptions(split={"test": 1.0}))
    few = Dataset.open(tmp_path / "few")
    found, wanted = compare_with(few, DriftReference.of(old, None)), compare(few, old)
    assert found.alarms == wanted.alarms
    cells = [drift.cells for drift in (found.grades, *found.features)]
    assert max(cells) <= 6 + 3
    for one, other in zip(found.features, wanted.features, strict=True):
        assert one.psi == pytest.approx(other.psi, abs=0.1)
    with refused(InputError, "train", "former"):
        compare_with(few, DriftReference.of(old))


def test_what_is_no_reference_is_said_to_be_none(folder, tmp_path):
    kept = tmp_path / "kept"
    with pytest.raises(FileNotFoundError):
        DriftReference.read(kept)
    assert digest_in(kept) is None
    DriftReference.of(Dataset.open(folder / "old")).write(kept)
    whole = kept.read_bytes()
    wrong = {"cut": whole[: len(whole) // 2], "text": b"hello", "empty": b""}
    for content in wrong.values():
        kept.write_bytes(content)
        with refused(DatasetFormatError, "drift reference"):
            DriftReference.read(kept)
        assert digest_in(kept) is None
    pq.write_table(pq.read_table(folder / "old.parquet"), kept)  # a file of something else
    with pytest.raises(DatasetFormatError):
        DriftReference.read(kept)
    kept.write_bytes(whole)
    table = pq.read_table(kept)
    metadata = {b"rankmill": table.schema.metadata[b"rankmill"].replace(b'"format": 1', b'"format": 9')}
    pq.write_table(table.replace_schema_metadata(metadata), kept)
    with refused(DatasetFormatError, "format", "1", "9"):
        DriftReference.read(kept)
