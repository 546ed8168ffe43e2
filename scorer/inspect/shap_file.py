"""Contributions of many documents: whole queries at a time, summed up, and written to a Parquet file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from rankmill.foundation.errors import InputError
from rankmill.foundation.storage.publish import fsync_file, fsync_folder, staging_folder
from rankmill.scorer.inspect.documents import Documents
from rankmill.scorer.inspect.shap import Explainer, without_query_mean

BATCH_BYTES = 64 << 20  # of contributions, but at least one query
OUTPUT, TOTAL, BASE = "shap_output", "shap_total", "shap_base"


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """What the contributions of all documents come to; arrays are by output and slot of `Paths.features`."""

    features: tuple[str, ...]
    centred: bool
    """Whether the mean of each query was taken off."""
    n_documents: int
    n_queries: int
    mean_size: npt.NDArray[np.float64]
    """(n_outputs, n_slots) mean of the contributions' absolute values."""
    greatest: npt.NDArray[np.float64]
    """(n_outputs, n_slots) greatest absolute value."""


def explain_documents(
    explainer: Explainer, documents: Documents, *, centred: bool = True, out: Path | None = None, n_threads: int = 1
) -> Explained:
    """Explain every document, and write the contributions to ``out`` if it is given.

    The file has a row for each document and output: qid, doc_id, ``shap_output`` (from 0), ``shap_total`` (the output itself),
    ``shap_base`` (what is left of it without the contributions), and a float64 column for each feature that the model asks for.

    Parameters
    ----------
    explainer
        The model.
    documents
        Of whole queries.
    centred
        Take the mean of its query off each contribution; it goes into the base.
    out
        A .parquet file, replaced in one step if it exists.
    n_threads
        The result does not depend on it.

    Raises
    ------
    InputError
        ``out`` has another ending, or a feature has the name of one of the file's own columns.
    """
    names = explainer.paths.feature_names
    n_outputs = explainer.paths.forest.n_outputs
    if out is not None:
        checked_name(out)
    sums, greatest = np.zeros((n_outputs, len(names))), np.zeros((n_outputs, len(names)))
    batches = _batches(explainer, documents, centred=centred, n_threads=n_threads)
    if out is None:
        for _, values, _ in batches:
            _add_up(values, sums, greatest)
    else:
        schema = _schema(names, out)
        with staging_folder(out) as folder:
            staged = folder / out.name
            with pq.ParquetWriter(staged, schema) as writer:
                for rows, values, base in batches:
                    _add_up(values, sums, greatest)
                    writer.write_batch(_record_batch(documents, rows, values, base, schema))
            fsync_file(staged)
            staged.replace(out)
            fsync_folder(out.parent)
    n = len(documents.doc_ids)
    return Explained(
        features=names, centred=centred, n_documents=n, n_queries=len(documents.qids), mean_size=sums / n, greatest=greatest
    )  # fmt: skip


def checked_name(out: Path) -> None:
    """Raise InputError unless ``out`` names a Parquet file."""
    if out.suffix.lower() != ".parquet" or out.is_dir():
        raise InputError(f"{out}: expected the name of a file that ends in .parquet for the contributions")


def _batches(
    explainer: Explainer, documents: Documents, *, centred: bool, n_threads: int
) -> Iterator[tuple[slice, npt.NDArray[np.float64], npt.NDArray[np.float64]]]:
    """Yield rows, contributions (m, n_outputs, n_slots) and bases (m, n_outputs) of whole queries."""
    codes = documents.codes(explainer.paths)
    width = 8 * explainer.paths.forest.n_outputs * max(1, len(explainer.paths.features))
    starts = documents.starts
    first = 0
    while first < len(documents.qids):
        last = first + 1
        while last < len(documents.qids) and (starts[last + 1] - starts[first]) * width <= BATCH_BYTES:
            last += 1
        rows = slice(int(starts[first]), int(starts[last]))
        values = explainer.contributions(codes[rows], n_threads=n_threads)
        base = np.repeat(explainer.expected[np.newaxis], len(values), axis=0)
        if centred:
            values, base = without_query_mean(values, base, documents.query[rows] - first)
        yield rows, values, base
        first = last


def _add_up(values: npt.NDArray[np.float64], sums: npt.NDArray[np.float64], greatest: npt.NDArray[np.float64]) -> None:
    sizes = np.abs(values)
    sums += sizes.sum(axis=0)
    np.maximum(greatest, sizes.max(axis=0, initial=0.0), out=greatest)


def _schema(names: tuple[str, ...], out: Path) -> pa.Schema:
    own: list[tuple[str, pa.DataType]] = [
        ("qid", pa.string()), ("doc_id", pa.string()), (OUTPUT, pa.int32()), (TOTAL, pa.float64()), (BASE, pa.float64()),
    ]  # fmt: skip
    for name, _ in own:
        if name in names:
            raise InputError(f"{out}: a feature is called {name}, as a column of the file is; rename the feature")
    return pa.schema([pa.field(name, kind) for name, kind in [*own, *((name, pa.float64()) for name in names)]])


def _record_batch(
    documents: Documents,
    rows: slice,
    values: npt.NDArray[np.float64],
    base: npt.NDArray[np.float64],
    schema: pa.Schema,
) -> pa.RecordBatch:
    n, n_outputs, n_slots = values.shape
    queries = documents.query[rows]
    totals = values.sum(axis=2) + base
    columns: list[Any] = [
        pa.array([documents.qids[q] for q in queries for _ in range(n_outputs)], pa.string()),
        pa.array([name for name in documents.doc_ids[rows] for _ in range(n_outputs)], pa.string()),
        pa.array(np.tile(np.arange(n_outputs, dtype=np.int32), n)),
        pa.array(totals.ravel()),
        pa.array(base.ravel()),
        *(pa.array(np.ascontiguousarray(values[:, :, slot]).ravel()) for slot in range(n_slots)),
    ]
    return pa.record_batch(columns, schema=schema)
