"""Read a dataset: queries, rows, features and bins of a split, in canonical order.

The canonical order is (hash bucket of the query, qid, doc_id with nulls last, digest of the row).  One shard holds
one bucket, so a reader goes through the shards in the manifest's order and selects the rows of the queries of its
split.  All functions need memory for their result and one row group.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rankmill.foundation.cures import command
from rankmill.foundation.errors import ConflictError, DatasetFormatError, InputError, InvalidParameter
from rankmill.foundation.notebook_html import HtmlTable, ShareCell, card
from rankmill.foundation.storage.locks import alone
from rankmill.foundation.storage.publish import write_atomically
from rankmill.foundation.storage.url_arguments import fetched
from rankmill.pipeline.dataset.manifest import (
    BINS,
    MANIFEST_NAME,
    SPLITS,
    BinSet,
    Manifest,
    Shard,
    SplitName,
)
from rankmill.pipeline.dataset.stored_shards import QUERY_WEIGHT, StoredShards, read_manifest, row_major
from rankmill.pipeline.pairs.stored_pairs import PreferencePairs, by_rows
from rankmill.pipeline.read.column_roles import type_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rankmill.pipeline.bins.spec import BinSpec


@dataclass(frozen=True, slots=True)
class Queries:
    """The queries of a split (or of all), in canonical order."""

    qid: pa.StringArray  # (n_queries,)
    starts: npt.NDArray[np.int64]  # (n_queries + 1,) row offsets within the split
    split: str | None
    weights: npt.NDArray[np.float64] | None = None  # (n_queries,), if the dataset has query weights

    def __len__(self) -> int:
        return len(self.qid)

    @property
    def n_rows(self) -> int:
        """Number of documents of these queries."""
        return int(self.starts[-1])


class Dataset(StoredShards):
    """A dataset on disk, opened with :meth:`open`.  Later changes of the dataset have no effect on it.

    Attributes
    ----------
    path
        The dataset's folder.
    manifest
        Its manifest when it was opened.
    """

    def __init__(self, path: Path, manifest: Manifest) -> None:
        if not isinstance(manifest, Manifest):
            raise InvalidParameter(
                "a Dataset is a folder that rankmill data ingest has written: Dataset.open(path); for arrays and "
                "frames use BinnedDataset(X, y, qid=qid)"
            )
        super().__init__(path, manifest)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Dataset:
        """Read the manifest of the dataset at ``path`` and check that its shards exist.

        A dataset at a URL is fetched whole, and stays on the disk until the process ends, or in RANKMILL_CACHE.

        Raises
        ------
        InputError
            There is no dataset at ``path``.
        DatasetFormatError
            The manifest is damaged or of an unknown format, or a shard is missing or has the wrong size.
        """
        folder = fetched(path)
        dataset = cls(folder, read_manifest(folder))
        dataset.check_sizes()
        return dataset

    def __repr__(self) -> str:
        return f"<Dataset {self.path}: {self.manifest.queries:,} queries, {self.manifest.rows:,} rows>"

    def _repr_html_(self) -> str:
        """Return its size, splits and grades for a notebook."""
        known = self.manifest
        facts = {"queries": f"{known.queries:,}", "rows": f"{known.rows:,}", "features": f"{len(known.features):,}"}
        facts |= {"pairs": f"{known.pairs.pairs:,}"} if known.pairs else {}
        facts |= {
            "bins": ", ".join(f"{bins.max_bin} a feature" for bins in known.bins) or "none yet",
            "digest": self.digest[:12],
        }
        splits = [[name, f"{size.queries:,}", f"{size.rows:,}"] for name in SPLITS if (size := known.splits.get(name))]
        grades = [
            [count.grade, f"{count.rows:,}", ShareCell(count.rows / max(known.rows, 1))] for count in known.grades
        ]
        tables = [HtmlTable(["split", "queries", "rows"], splits), HtmlTable(["grade", "rows", "share"], grades)]
        return card(f"Dataset {self.path}", facts, tables)

    def verify(self) -> None:
        """Read every shard and compare it with the digest in its name.

        Raises
        ------
        DatasetFormatError
            A file has changed since it was written.
        """
        self._whole.clear()
        for file, _ in self.files():
            self.check(file)
        for bins in self.manifest.bins:
            self.binspec(bins.binspec)
            for file in self.bin_files(bins).values():
                self.check(file, self._bins_cure(bins))

    def queries(self, split: str | None = None) -> Queries:
        """Return the queries of ``split``; None: of the whole dataset."""
        table = pa.concat_tables(self._queries_of(split))
        starts = np.zeros(len(table) + 1, dtype=np.int64)
        np.cumsum(table.column("n_docs").to_numpy(), out=starts[1:])
        return Queries(
            qid=cast("pa.StringArray", table.column("qid").combine_chunks()),
            starts=starts,
            split=split,
            weights=table.column(QUERY_WEIGHT).to_numpy() if QUERY_WEIGHT in self.manifest.columns else None,
        )

    def query_batches(self, split: str) -> Iterator[tuple[pa.Array[Any], npt.NDArray[np.int64]]]:
        """Yield ids and documents of the queries of ``split``, a shard at a time, in canonical order."""
        self._check_split(split)
        for shard in self.manifest.shards:
            table = self.read(self.queries_path(shard), ["qid", "split", "n_docs"])
            table = table.filter(pa.array(_is_in(table, split)))
            yield table.column("qid").combine_chunks(), table.column("n_docs").to_numpy()

    def rows(self, split: str | None = None, columns: Sequence[str] = ("grade",)) -> pa.Table:
        """Return the narrow ``columns`` of ``split``, in canonical order.

        These are qid, doc_id, grade, optional columns, and features by name.
        """
        self._check_columns(columns)
        parts = []
        for shard, keep in self._chosen(split):
            table = self.read(self.features_path(shard), list(columns))
            parts.append(table if keep is None else table.filter(pa.array(keep)))
        if not parts:
            types: dict[str, pa.DataType] = {"qid": pa.string(), "doc_id": pa.string(), "grade": pa.int32()}
            types |= {name: type_of(name) for name in self.optional_columns}
            return pa.schema([pa.field(name, types.get(name, pa.float32())) for name in columns]).empty_table()
        return pa.concat_tables(parts).combine_chunks()

    def pairs(self, split: str | None = None) -> PreferencePairs | None:
        """Return the preference pairs of ``split`` as row numbers; None if the dataset has no pairs."""
        if self.manifest.pairs is None:
            return None
        stored = {shard.bucket: self.pairs_path(shard) for shard in self.manifest.pairs.shards}

        def parts() -> Iterator[tuple[pa.Table | None, pa.Array[Any], npt.NDArray[np.int64]]]:
            for shard, chosen in zip(self.manifest.shards, self._queries_of(split), strict=True):
                pairs = self.read(stored[shard.bucket]) if shard.bucket in stored and len(chosen) else None
                yield pairs, chosen.column("qid").combine_chunks(), chosen.column("n_docs").to_numpy()

        return by_rows(parts())

    def feature_column(self, name: str, split: str | None = None) -> npt.NDArray[np.float32]:
        """Return one feature of ``split``, (n,) float32, NaN where missing."""
        self._check_columns([name], only_features=True)
        column: npt.NDArray[np.float32] = self.rows(split, [name]).column(0).to_numpy()
        return column

    def feature_batches(
        self, split: str | None = None, features: Sequence[str] | None = None, batch_rows: int = 65536
    ) -> Iterator[npt.NDArray[np.float32]]:
        """Yield (m, F) float32 blocks of ``split`` in canonical order, m <= ``batch_rows``.

        ``features`` selects and orders columns.
        """
        names = list(self.manifest.features if features is None else features)
        self._check_columns(names, only_features=True)
        for shard, keep in self._chosen(split):
            for batch in self.batches(shard, names, keep, batch_rows):
                yield row_major(batch, names)

    def column_batches(
        self, split: str | None, features: Sequence[str], batch_rows: int = 65536
    ) -> Iterator[list[npt.NDArray[np.float32]]]:
        """Yield ``features`` of ``split`` as columns (m,), m <= ``batch_rows``, in canonical order.

        Memory: a batch, and these columns of a row group.
        """
        self._check_columns(features, only_features=True)
        for shard, keep in self._chosen(split):
            for batch in self.batches(shard, features, keep, batch_rows):
                yield [batch.column(name).to_numpy() for name in features]

    def bins_folder(self, digest: str) -> Path:
        """Return the folder with the binned copy ``digest``."""
        return self.path / BINS / digest

    def bin_set(self, digest: str | None = None) -> BinSet:
        """Return the entry of the binned copy ``digest`` (None: the newest); InputError if there is none."""
        found = [entry for entry in self.manifest.bins if digest in {None, entry.binspec}]
        if not found:
            what = "no bins" if digest is None else f"no bins of digest {digest}"
            raise InputError(f"{self.path}: {what}; run: {command('data', 'bin', self.path)}")
        return found[-1]

    def bin_files(self, entry: BinSet) -> dict[str, Path]:
        """Return the files with the bins of the splits."""
        return {split: self.bins_folder(entry.binspec) / f"{digest}.bins" for split, digest in entry.splits.items()}

    def binspec(self, digest: str | None = None) -> BinSpec:
        """Return the bin edges of the binned copy ``digest`` (None: the newest); InputError if there is none."""
        from rankmill.pipeline.bins.spec import BinSpec  # and its kernels, which a look at the rows does not need

        entry = self.bin_set(digest)
        file = self.bins_folder(entry.binspec) / "binspec.json"
        try:
            spec = BinSpec.from_json(file.read_bytes().decode("utf-8", "replace"), str(file))
        except FileNotFoundError:
            raise DatasetFormatError(f"{file}: missing; {self._bins_cure(entry)}") from None
        if spec.digest != entry.binspec:
            raise DatasetFormatError(f"{file}: differs from the digest in its folder's name; {self._bins_cure(entry)}")
        return spec

    def bin_words(self, split: str, binspec_digest: str | None = None) -> npt.NDArray[np.uint64]:
        """Map the bins of ``split``, in canonical order, as `rankmill.pipeline.bins.layout` lays them out.

        The file is read once from end to end, against its digest; that also brings it into the page cache.
        """
        from rankmill.pipeline.bins.layout import WORD, blocks_shape, lanes_of, mapped, n_lanes

        entry, spec = self.bin_set(binspec_digest), self.binspec(binspec_digest)
        shape = blocks_shape(n_lanes(lanes_of(spec.n_bins)), self.queries(split).n_rows)
        file = self.bin_files(entry).get(split)
        if file is None:
            return np.zeros((shape[0], 0, shape[2] // 8), dtype=WORD)
        self.check(file, self._bins_cure(entry))
        if file.stat().st_size != prod(shape):
            raise DatasetFormatError(f"{file}: expected {prod(shape):,} bytes; {self._bins_cure(entry)}")
        return mapped(file, shape)

    def commit_bins(self, entry: BinSet) -> Dataset:
        """Make the binned copy ``entry``, whose files exist already, the newest of this dataset; return the new state.

        Files of ``entry`` are ``binspec.json`` and ``<sha256 of its bytes>.bins`` in :meth:`bins_folder`.
        """
        with alone(self.path):
            current = read_manifest(self.path)
            if current.data_digest() != self.digest:
                raise ConflictError(
                    f"{self.path}: another command replaced the dataset while it was being"
                    " binned; run the command again"
                )
            others = [bins for bins in current.bins if bins.binspec != entry.binspec]
            manifest = current.model_copy(update={"bins": [*others, entry]})
            if manifest != current:
                write_atomically(self.path / MANIFEST_NAME, manifest.to_bytes())
        return Dataset(self.path, manifest)

    @cached_property
    def _query_tables(self) -> list[pa.Table]:
        return [self.read(self.queries_path(shard)) for shard in self.manifest.shards]

    def _queries_of(self, split: str | None) -> list[pa.Table]:
        """Return the queries of ``split`` of each shard."""
        self._check_split(split)
        if split is None:
            return self._query_tables
        return [table.filter(pa.array(_is_in(table, split))) for table in self._query_tables]

    def _bins_cure(self, entry: BinSet) -> str:
        return f"run: {command('data', 'bin', self.path, '--max-bin', entry.max_bin)}"

    def _chosen(self, split: str | None) -> Iterator[tuple[Shard, npt.NDArray[np.bool_] | None]]:
        """Yield the shards with rows of ``split``, and the mask of these rows (None: all)."""
        self._check_split(split)
        for shard in self.manifest.shards:
            if split is None:
                yield shard, None
                continue
            split_of, sizes = self.query_sizes[shard.bucket]
            wanted = split_of == SPLITS.index(cast("SplitName", split))
            if wanted.all():
                yield shard, None
            elif wanted.any():
                yield shard, np.repeat(wanted, sizes)

    def _check_split(self, split: str | None) -> None:
        if split is not None and split not in SPLITS:
            raise InputError.unknown("split", split, SPLITS)

    def _check_columns(self, names: Sequence[str], *, only_features: bool = False) -> None:
        known = set(self.manifest.features)
        if not only_features:
            known |= {"qid", "doc_id", "grade", *self.optional_columns}
        for name in names:
            if name not in known:
                raise InputError.unknown("feature" if only_features else "column", name, sorted(known))


def _is_in(queries: pa.Table, split: str) -> npt.NDArray[np.bool_]:
    """Return which rows of a shard's ``queries`` belong to ``split``."""
    found: npt.NDArray[np.bool_] = pc.equal(queries.column("split"), pa.scalar(split)).to_numpy()
    return found
