"""What is kept of a dataset is as good as the dataset: the same comparison, whole numbers, a file that is read back as it was."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankmill.foundation.errors import DatasetFormatError, InputError
from rankmill.pipeline.dataset import Dataset
from rankmill.pipeline.ingest import ingest
from rankmill.pipeline.options import IngestOptions
from rankmill.pipeline.statistics.dataset_drift import compare, compare_and_keep, compare_with
from rankmill.pipeline.statistics.drift_reference import DriftReference, digest_in
from rankmill.pipeline.statistics.psi import Cells, FeatureSample, Sums
from tests import naive_drift
from tests.pipeline.test_drift import QUERIES, make
from tests.refusals import refused

law = settings(deadline=None, max_examples=50)


def starts_of(queries: list[list[int]]) -> np.ndarray:
    return np.cumsum([0, *map(len, queries)]).astype(np.int64)


@law
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
    wanted = naive_drift.covariance(again, max(into) + 1)
    np.testing.assert_allclose(Cells.of_sums(joined).covariance, wanted, atol=1e-12)


@law
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
    wanted = [naive_drift.cell_of(x, joined.edges.tolist(), float(joined.low), float(joined.high)) for x in others]
    assert new.counts.tolist() == [wanted.count(cell) for cell in range(len(joined.edges) + 4)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("kept")
    make(folder, "old", 1)
    make(folder, "shifted", 3, shift=1.0, grade=1)
    make(folder, "other", 5, extra="d")
    return folder


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
