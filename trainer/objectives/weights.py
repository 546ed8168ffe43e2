"""Weights as the losses take them: relative, that is divided by their mean, so that only their ratios matter.

- losses of documents: :func:`document_weights`, the document's times its query's
- losses of pairs: :func:`relative_weights` of documents, of queries and of given pairs, each by itself
- losses of lists: :func:`list_weights`, the mean of the documents' times the query's
"""

from __future__ import annotations

from math import frexp, fsum

import numpy as np
import numpy.typing as npt

from rankmill.foundation.errors import TrainingDataRejected
from rankmill.scorer.metrics.arrangement import queries_of
from rankmill.trainer.data.rows import RankedRows


def check_weights(weights: npt.NDArray[np.float64]) -> None:
    """Raise TrainingDataRejected, naming the first row, unless all weights (n_rows,) are finite and 0 or more."""
    bad = ~(np.isfinite(weights) & (weights >= 0.0))
    if bad.any():
        row = int(np.argmax(bad))
        raise TrainingDataRejected(f"row {row}: expected a weight of 0 or more, found {weights[row]}")


def relative_weights(weights: npt.NDArray[np.float64] | None, n_rows: int) -> npt.NDArray[np.float64]:
    """Return the weights divided by their mean, (n_rows,) float64; empty if there are none.

    Raises
    ------
    TrainingDataRejected
        Another number of weights than rows, a weight that is negative or not finite, or none above 0.

    Examples
    --------
    >>> relative_weights(np.array([1.0, 3.0]), 2).tolist()
    [0.5, 1.5]
    """
    if weights is None:
        return np.empty(0, dtype=np.float64)
    weights = np.ascontiguousarray(weights, dtype=np.float64)
    if weights.shape != (n_rows,):
        raise TrainingDataRejected(f"weights must have shape ({n_rows},), one per document, got {weights.shape}")
    check_weights(weights)
    highest = float(weights.max(initial=0.0))
    if highest == 0.0:
        raise TrainingDataRejected(
            "all weights are 0, so there is nothing to learn; leave them out to weigh all rows equally"
        )
    weights = np.ldexp(weights, -frexp(highest)[1])  # by a power of two: no bit is lost, and no sum can overflow
    # rounded once: np.mean adds up in an order that depends on the machine
    relative: npt.NDArray[np.float64] = weights / (fsum(weights.tolist()) / n_rows)
    return relative


def _query_weights(rows: RankedRows) -> npt.NDArray[np.float64]:
    """Return the given weights of the queries, (n_queries,), checked; errors as :func:`relative_weights`."""
    weights = np.asarray(rows.query_weights, dtype=np.float64)
    if weights.shape != (rows.n_queries,):
        raise TrainingDataRejected(f"query weights must have shape ({rows.n_queries},), got {weights.shape}")
    check_weights(weights)
    return weights


def document_weights(rows: RankedRows) -> npt.NDArray[np.float64]:
    """Return the weight of every document times that of its query, relative to their mean, (n_rows,); empty: all 1.

    Errors as :func:`relative_weights`; also another number of query weights than queries.
    """
    if rows.query_weights is None:
        return relative_weights(rows.weights, rows.n_rows)
    of_row = np.repeat(_query_weights(rows), np.diff(rows.starts))
    if rows.weights is not None:
        # both relative first: no product can overflow
        of_row = relative_weights(of_row, rows.n_rows) * relative_weights(rows.weights, rows.n_rows)
    return relative_weights(of_row, rows.n_rows)


def list_weights(rows: RankedRows) -> npt.NDArray[np.float64]:
    """Return the weight of every list, (n_queries,).

    It is the mean of its documents' times its query's, relative to their mean.

    A query without documents counts 0.  Errors as :func:`document_weights`.
    """
    weights = (np.diff(rows.starts) > 0).astype(np.float64)
    if rows.weights is None and rows.query_weights is None:
        return weights
    documents = relative_weights(rows.weights, rows.n_rows)
    if len(documents):
        weights = sums_of_lists(documents, rows.starts) / np.maximum(np.diff(rows.starts), 1)
    if rows.query_weights is not None:
        weights = weights * relative_weights(_query_weights(rows), rows.n_queries)
    return relative_weights(weights, rows.n_queries)


def sums_of_lists(values: npt.NDArray[np.float64], starts: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Return the sum of the ``values`` (n_rows,) of each list, (n_queries,).

    They are added row by row: the same bits on every machine.
    """
    return np.bincount(queries_of(starts), weights=values, minlength=len(starts) - 1).astype(np.float64)


def shares_of_lists(
    values: npt.NDArray[np.float64], starts: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return each of the ``values`` (n_rows,) over the sum of its list, 0 if that is 0, and these sums (n_queries,)."""
    sums = sums_of_lists(values, starts)
    of_rows = np.repeat(sums, np.diff(starts))
    return np.divide(values, of_rows, out=np.zeros(len(values)), where=of_rows > 0.0), sums
