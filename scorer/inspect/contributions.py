"""Use feature contributions to explain why one document is ranked above another, and which features matter most.

Contributions are Shapley values (`rankmill.scorer.inspect.shap`), so differences between two documents add up to the
difference of their outputs, and terms that all documents of a query share cancel.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from rankmill.foundation.errors import InputError, name_hint
from rankmill.foundation.options import spelled
from rankmill.foundation.records import left_out
from rankmill.foundation.storage.publish import fsync_file, fsync_folder
from rankmill.foundation.storage.staging import staging_folder
from rankmill.scorer.forest.forest import Forest
from rankmill.scorer.forest.predict import ForestPredictor
from rankmill.scorer.inspect.documents import Documents
from rankmill.scorer.inspect.shap import Explainer
from rankmill.scorer.inspect.shap import centred as less_means
from rankmill.scorer.rerank.memory import check_table

_COPIES = 3  # of a batch: as computed, centred, and their absolute values
BATCH_BYTES = 64 << 20  # contributions per batch; at least one query
OWN_COLUMNS: tuple[tuple[str, pa.DataType], ...] = (
    ("qid", pa.string()), ("doc_id", pa.string()), ("shap_output", pa.int32()), ("shap_total", pa.float64()),
    ("shap_base", pa.float64()),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureDifference:
    """What one feature contributes to the difference between two documents."""

    feature: str
    values: tuple[float, float]
    """Its values in both documents, NaN if missing."""
    difference: float
    """What it adds to the difference of the outputs."""
    contributions: tuple[float, float] | None = left_out()
    """Of trees: its contributions to the outputs of both documents, whose difference this is."""
    categories: tuple[str, str] | None = left_out()
    """The texts of ``values`` if the feature is categorical: "missing", a category, or "other" for one that no split
    knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Why:
    """The differences between two documents by feature; they add up to the difference of ``outputs``."""

    scores: tuple[float, float]
    output: int
    """The output explained, from 0."""
    outputs: tuple[float, float]
    """For a forest with one output and no link these are the scores."""
    differences: tuple[FeatureDifference, ...]
    """All features that the model uses, the largest absolute difference first."""


def why(
    forest: Forest | Explainer,
    above: npt.ArrayLike,
    below: npt.ArrayLike,
    *,
    output: int = 0,
    n_rounds: int | None = None,
) -> Why:
    """Explain why the document ``above`` has another score than ``below``.

    Parameters
    ----------
    forest
        The trained model, or its explainer.
    above, below
        (n_features,) features of the two documents, or (n_slots,) those that the model uses; NaN where missing.
    output
        Which output to explain of a forest with several, from 0.
    n_rounds
        Explain the first ``n_rounds`` rounds; None: all.

    Raises
    ------
    InputError
        There is no such output, ``n_rounds`` is more than the model has, or it has no counts of training rows.
    ValueError
        A document has another number of features.
    """
    explainer = forest if isinstance(forest, Explainer) else Explainer(forest, n_rounds=n_rounds)
    paths = explainer.paths
    if not 0 <= output < paths.forest.n_outputs:
        raise InputError(f"output must be in 0..{paths.forest.n_outputs - 1}, got {output}")
    values = paths.asked_for(np.stack([np.asarray(document, dtype=np.float32) for document in (above, below)]))
    contributions = explainer.contributions(paths.codes(values))[:, output]
    outputs = contributions.sum(axis=1) + explainer.expected[output]
    differences = contributions[0] - contributions[1]
    scores = paths.scores(values)
    texts = [paths.value_names(slot, values[:, slot]) for slot in range(len(paths.features))]
    return Why(
        scores=(float(scores[0]), float(scores[1])),
        output=output,
        outputs=(float(outputs[0]), float(outputs[1])),
        differences=tuple(
            FeatureDifference(
                feature=paths.feature_names[slot],
                values=(float(values[0, slot]), float(values[1, slot])),
                contributions=(float(contributions[0, slot]), float(contributions[1, slot])),
                difference=float(differences[slot]),
                categories=None if (names := texts[slot]) is None else (names[0], names[1]),
            )
            for slot in np.argsort(-np.abs(differences), kind="stable")
        ),
    )


def chosen_two(
    doc_ids: Sequence[str], scores: npt.NDArray[np.float64], above: str | None, below: str | None, qid: str
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Find two documents of one query by their ids.

    Parameters
    ----------
    doc_ids, scores
        Of the documents of the query, ids ascending: equal scores are ranked in this order, as `rerank` does.
    above, below
        Ids; None: the first document, and the one right below the other.
    qid
        The query, for messages.

    Returns
    -------
    Their places among the documents, and their ranks from 1.

    Raises
    ------
    InputError
        There is no such document, both are the same, or there is none below.
    """
    order = np.argsort(-scores, kind="stable")
    rank_of = np.empty(len(order), dtype=np.int64)
    rank_of[order] = np.arange(len(order))

    def place(name: str) -> int:
        if name in doc_ids:
            return doc_ids.index(name)
        hint = name_hint(name, doc_ids)
        raise InputError(f"query {qid}: there is no document {name!r} among its {len(doc_ids):,}; {hint}")

    first = int(order[0]) if above is None else place(above)
    if below is not None:
        second = place(below)
    elif rank_of[first] + 1 < len(order):
        second = int(order[rank_of[first] + 1])
    else:
        raise InputError(
            f"query {qid}: no document is ranked below {doc_ids[first]!r}; name another one with {spelled('below')}"
        )
    if first == second:
        raise InputError(f"query {qid}: {doc_ids[first]!r} is compared with itself; name two documents")
    return (first, second), (int(rank_of[first]) + 1, int(rank_of[second]) + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """A summary of the contributions of all documents, or of their SHAP interaction values.

    ``mean_size`` and ``greatest`` are the mean and the greatest of the absolute values, (n_outputs, n_slots), by slot
    of `Paths.features`.  Of interactions they are (n_outputs, n_slots, n_slots), off the diagonal the values of both
    orders of a pair together.  ``centred``: the mean of each query was subtracted.
    """

    features: tuple[str, ...]
    centred: bool
    n_documents: int
    n_queries: int
    mean_size: npt.NDArray[np.float64]
    greatest: npt.NDArray[np.float64]

    @property
    def facts(self) -> dict[str, object]:
        """What was explained, for a report."""
        return {"n_documents": self.n_documents, "n_queries": self.n_queries, "centred": self.centred}


def explain_documents(
    explainer: Explainer,
    documents: Documents,
    *,
    pairs: bool = False,
    centred: bool = True,
    out: Path | None = None,
    n_threads: int = 1,
) -> Explained:
    """Explain every document by features, or by features and ``pairs`` of features.

    The contributions are written to ``out`` if it is given.

    The file has a row for each document and output. Its columns are qid, doc_id, ``shap_output`` (from 0),
    ``shap_total`` (the output itself), ``shap_base`` (the output minus the contributions), and a float64 column for
    each used feature.

    Parameters
    ----------
    explainer
        The model.
    documents
        Of whole queries.
    centred
        Subtract the mean of its query from each contribution, and add it to the base.
    out
        A .parquet file, replaced atomically if it exists.
    n_threads
        The result does not depend on it.

    Raises
    ------
    InputError
        ``out`` has another suffix, or a feature has the name of one of the file's own columns.
    """
    paths, names = explainer.paths, explainer.paths.feature_names
    if out is not None:
        checked_name(out)
    n, n_outputs, n_slots = len(documents.doc_ids), paths.forest.n_outputs, len(names)
    shape = (n_slots, n_slots) if pairs else (n_slots,)
    both = np.full(shape, 2.0) - np.eye(n_slots) if pairs else np.ones(shape)
    sums, greatest = np.zeros((n_outputs, *shape)), np.zeros((n_outputs, *shape))
    codes, values_of = paths.codes(documents.values), explainer.interactions if pairs else explainer.contributions

    def batches() -> Iterator[tuple[slice, npt.NDArray[np.float64], npt.NDArray[np.float64]]]:
        for rows, first in _whole_queries(documents, 8 * n_outputs * max(1, n_slots) ** len(shape)):
            query = documents.query[rows] - first if centred else None
            values, base = less_means(values_of(codes[rows], n_threads=n_threads), explainer.expected, query)
            sizes = np.abs(values) * both
            sums[:] += sizes.sum(axis=0)
            np.maximum(greatest, sizes.max(axis=0, initial=0.0), out=greatest)
            yield rows, values, base

    if out is None:
        for _ in batches():
            pass
    else:
        schema = _schema(names, out)
        _write(out, schema, (_record_batch(documents, *batch, schema) for batch in batches()))
    return Explained(
        features=names, centred=centred, n_documents=n, n_queries=len(documents.qids), mean_size=sums / n,
        greatest=greatest
    )  # fmt: skip


def _write(out: Path, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
    """Write a Parquet file, replaced atomically if it exists."""
    with staging_folder(out) as folder:
        staged = folder / out.name
        with pq.ParquetWriter(staged, schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
        fsync_file(staged)
        staged.replace(out)
        fsync_folder(out.parent)


def write_leaves(forest: Forest, documents: Documents, out: Path, *, n_threads: int = 1) -> None:
    """Write the leaf of each document in each tree to the .parquet file ``out``.

    Columns are qid, doc_id, and ``leaves``, a list of int32.

    See `rankmill.scorer.forest.predict.ForestPredictor.leaves`.
    """
    checked_name(out)
    predictor, n_trees = ForestPredictor(forest), forest.n_trees
    schema = pa.schema([*OWN_COLUMNS[:2], ("leaves", pa.list_(pa.int32()))])
    rows_each = max(1, BATCH_BYTES // (4 * max(1, n_trees)))

    def batches() -> Iterator[pa.RecordBatch]:
        for first in range(0, len(documents.doc_ids), rows_each):
            rows = slice(first, first + rows_each)
            columns = np.arange(len(predictor.features))
            found = predictor.leaves(documents.values[rows], columns=columns, n_threads=n_threads)
            lists = pa.ListArray.from_arrays(
                pa.array(np.arange(len(found) + 1) * n_trees, pa.int32()), pa.array(found.ravel())
            )
            qids = pa.array([documents.qids[q] for q in documents.query[rows]], pa.string())
            yield pa.record_batch([qids, pa.array(documents.doc_ids[rows], pa.string()), lists], schema=schema)

    _write(out, schema, batches())


def checked_name(out: Path) -> None:
    """Raise InputError unless ``out`` names a Parquet file."""
    if out.suffix.lower() != ".parquet" or out.is_dir():
        raise InputError(f"{out}: expected the name of a file that ends in .parquet for the contributions")


def _whole_queries(documents: Documents, width: int) -> Iterator[tuple[slice, int]]:
    """Yield the rows of some queries, of ``width`` bytes each, and the number of the first of these queries."""
    starts = documents.starts
    largest = int(np.diff(starts).max(initial=0))
    check_table(
        _COPIES * width * largest,
        f"the contributions of a query of {largest:,} documents",
        f"choose others with {spelled('qids')}, or a model of fewer features",
    )
    first = 0
    while first < len(documents.qids):
        last = first + 1
        while last < len(documents.qids) and (starts[last + 1] - starts[first]) * width <= BATCH_BYTES:
            last += 1
        yield slice(int(starts[first]), int(starts[last])), first
        first = last


def _schema(names: tuple[str, ...], out: Path) -> pa.Schema:
    for name, _ in OWN_COLUMNS:
        if name in names:
            raise InputError(f"{out}: a feature is called {name}, as a column of the file is; rename the feature")
    return pa.schema([*OWN_COLUMNS, *((name, pa.float64()) for name in names)])


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
    columns = [
        pa.array([documents.qids[q] for q in queries for _ in range(n_outputs)], pa.string()),
        pa.array([name for name in documents.doc_ids[rows] for _ in range(n_outputs)], pa.string()),
        pa.array(np.tile(np.arange(n_outputs, dtype=np.int32), n)),
        pa.array(totals.ravel()),
        pa.array(base.ravel()),
        *(pa.array(np.ascontiguousarray(values[:, :, slot]).ravel()) for slot in range(n_slots)),
    ]
    return pa.record_batch(columns, schema=schema)
