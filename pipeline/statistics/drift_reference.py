"""Drift reference: a small Parquet file with what is needed to compare later datasets with a deleted one.

The first row is for the grades, the others for the features.  A row has cell edges and the values of
`rankmill.pipeline.statistics.psi.Sums` (only the upper triangle of the symmetric products, row by row).  It has
``known`` if there are categorical features.  The metadata key ``rankmill`` has the rest as JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rankmill.foundation.errors import DatasetFormatError, IntegrityError
from rankmill.foundation.records import from_json, other_format, to_line
from rankmill.foundation.storage.publish import write_atomically
from rankmill.pipeline.bins.quantiles import EDGE, Values
from rankmill.pipeline.bins.spec import FeatureBins
from rankmill.pipeline.bins.write import columns_of
from rankmill.pipeline.dataset.manifest import SplitName
from rankmill.pipeline.statistics.psi import FeatureSample, Sums, cells_for

if TYPE_CHECKING:
    from rankmill.pipeline.dataset.dataset import Dataset


FORMAT = 1
GRADES = "grades"
_METADATA = b"rankmill"
_SCHEMA = pa.schema(
    [
        pa.field("name", pa.string(), nullable=False),
        pa.field("edges", pa.list_(pa.float32()), nullable=False),
        pa.field("low", pa.float32(), nullable=False),
        pa.field("high", pa.float32(), nullable=False),
        pa.field("counts", pa.list_(pa.int64()), nullable=False),
        pa.field("weighted", pa.list_(pa.int64()), nullable=False),
        pa.field("products", pa.list_(pa.int64()), nullable=False),
    ]
)


@dataclass(frozen=True, slots=True)
class _Facts:
    """The metadata of the file."""

    format: int
    dataset: str
    split: SplitName | None
    rows: int
    queries: int
    squares: int


@dataclass(frozen=True, slots=True)
class DriftReference:
    """Summary of a dataset: its digest, the numbers of rows and queries of ``split``, and their cells."""

    digest: str
    split: SplitName | None
    """None: all rows."""
    rows: int
    queries: int
    grades: FeatureSample
    features: tuple[FeatureSample, ...]

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names in the order of the dataset."""
        return tuple(sample.name for sample in self.features)

    @classmethod
    def of(
        cls,
        dataset: Dataset,
        split: SplitName | None = "train",
        *,
        most: int | None = None,
        features: Sequence[str] | None = None,
        note: Callable[[str, Values], None] | None = None,
    ) -> DriftReference:
        """Compute the reference from ``split`` of ``dataset`` with at most ``most`` value cells.

        None: as many as its queries allow.

        ``note`` is called with the name and the values of each feature.
        """
        starts = dataset.queries(split).starts
        most = cells_for(len(starts) - 1) if most is None else most
        known: dict[str, FeatureBins] = {}
        if dataset.manifest.bins and split == "train":
            known = {bins.name: bins for bins in dataset.binspec().features}
        samples = []
        for name, values in columns_of(dataset, split, features=features):
            if note is not None:
                note(name, values)
            categorical = name in dataset.manifest.categorical
            samples.append(FeatureSample.of(name, values, starts, most, known.get(name), categorical=categorical))
        grades = FeatureSample.of(GRADES, grades_of(dataset, split), starts, most)
        return cls(dataset.digest, split, int(starts[-1]), len(starts) - 1, grades, tuple(samples))

    def write(self, path: Path) -> None:
        """Write it to ``path`` atomically; the same dataset gives the same bytes."""
        samples = (self.grades, *self.features)
        columns: dict[str, list[Any]] = {
            "name": [sample.name for sample in samples],
            "edges": [sample.edges for sample in samples],
            "low": [sample.low for sample in samples],
            "high": [sample.high for sample in samples],
            "counts": [sample.sums.counts for sample in samples],
            "weighted": [sample.sums.weighted for sample in samples],
            "products": [
                sample.sums.products[np.triu_indices(len(sample.sums.counts))] for sample in samples
            ],
        }  # fmt: skip
        facts = _Facts(FORMAT, self.digest, self.split, self.rows, self.queries, self.grades.sums.squares)
        metadata = {_METADATA: to_line(facts).encode()}
        schema = _SCHEMA
        if any(len(sample.known) for sample in samples):
            columns["known"] = [sample.known for sample in samples]
            schema = schema.append(pa.field("known", pa.list_(pa.float32()), nullable=False))
        arrays = [pa.array(columns[field.name], field.type) for field in schema]
        table = pa.Table.from_arrays(arrays, schema=schema.with_metadata(metadata))
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, compression="zstd", use_dictionary=False)
        write_atomically(path, sink.getvalue().to_pybytes())

    @classmethod
    def read(cls, path: Path) -> DriftReference:
        """Read what `write` wrote.

        Raises
        ------
        FileNotFoundError
        The file does not exist.
        DatasetFormatError
        The format number is unknown, or it is another kind of file.
        """
        try:
            with pq.ParquetFile(path) as file:
                facts = _facts(file.schema_arrow.metadata, path)
                table = file.read()
            names = [*_SCHEMA.names, *(["known"] if "known" in table.column_names else [])]
            grades, *features = [_sample(row, facts.squares) for row in table.select(names).to_pylist()]
            return cls(facts.dataset, facts.split, facts.rows, facts.queries, grades, tuple(features))
        except (pa.ArrowException, IntegrityError, KeyError, TypeError, ValueError) as error:
            raise DatasetFormatError(f"{path}: not a valid drift reference ({error}); {_CURE}") from error


_CURE = "delete it; the next run creates it again"


def digest_in(path: Path) -> str | None:
    """Return the digest of the dataset in the file at ``path``, reading only metadata.

    None if it is missing or damaged.
    """
    try:
        return _facts(pq.read_schema(path).metadata, path).dataset
    except (FileNotFoundError, DatasetFormatError, IntegrityError, pa.ArrowException, KeyError):
        return None


def grades_of(dataset: Dataset, split: SplitName | None) -> Values:
    """Return the grades of ``split`` (n,), as values of a feature."""
    return dataset.rows(split, ["grade"]).column(0).to_numpy().astype(EDGE)


def _facts(metadata: Mapping[bytes, bytes] | None, path: Path) -> _Facts:
    facts = from_json(_Facts, (metadata or {})[_METADATA], "metadata")
    if facts.format != FORMAT:
        raise DatasetFormatError(other_format(f"{path}: drift reference", facts.format, FORMAT, _CURE))
    return facts


def _sample(row: Mapping[str, Any], squares: int) -> FeatureSample:
    edges = np.array(row["edges"], dtype=EDGE)
    counts, weighted = (np.array(row[name], dtype=np.int64) for name in ("counts", "weighted"))
    n_cells = len(edges) + 4
    if counts.shape != (n_cells,) or weighted.shape != (n_cells,):
        raise ValueError(f"{row['name']!r}: the counts do not fit its {len(edges)} edges")
    products = np.zeros((n_cells, n_cells), dtype=np.int64)
    products[np.triu_indices(n_cells)] = row["products"]
    products += np.triu(products, 1).T
    sums, known = Sums(counts, weighted, products, squares), np.array(row.get("known", ()), dtype=EDGE)
    return FeatureSample(str(row["name"]), edges, EDGE(row["low"]), EDGE(row["high"]), sums, known)
