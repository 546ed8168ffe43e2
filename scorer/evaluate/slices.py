"""Slices: metrics for groups of queries."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import polars as pl

from rankmill.foundation.errors import CandidatesRejected
from rankmill.foundation.options import spelled
from rankmill.scorer.evaluate.evaluation import Evaluation, Figure, Slice, Slices
from rankmill.scorer.metrics import Metric
from rankmill.scorer.metrics.significance import percentile_interval

QUERY_SIZE, GRADE_MIX = "query_size", "grade_mix"
FEW_VALUES = 10  # up to this many different numbers have a slice each
BINS = 5
MOST_NAMES = 20  # slices of a text column; rarer texts share the last
MISSING = "missing"
WITHOUT_SLICES = frozenset({"balanced_error"})  # its parts are shares of counts over all queries

Limits = tuple[float, float] | None  # the least and the greatest number of a slice


def slices_of(evaluation: Evaluation, by: str, columns: Callable[[str], pl.DataFrame]) -> list[Slices]:
    """Slice an evaluation ``by`` ``query_size``, ``grade_mix`` or a column.

    ``grade_mix`` slices by number and by share of relevant documents.

    ``columns`` gives a column's rows for its name: qid, and value (text or numbers).

    Raises
    ------
    CandidatesRejected
        A column of text has two values in one query.
    """
    facts = evaluation.facts
    if by == QUERY_SIZE:
        return [_by_number(evaluation, by, facts.n_documents.astype(np.float64), "documents of the query")]
    if by == GRADE_MIX:
        least = evaluation.policy.relevant_from
        share = np.full(len(facts.n_known), np.nan)
        np.divide(facts.n_relevant, facts.n_known, out=share, where=facts.n_known > 0)
        words = f"relevant documents (grade {least} or more) of the query"
        return [
            _by_number(evaluation, "n_relevant", facts.n_relevant.astype(np.float64), f"the number of {words}"),
            _by_number(evaluation, "share_relevant", share, f"the share of {words}"),
        ]
    rows = columns(by)
    if rows.schema["value"].is_numeric() or rows.schema["value"] == pl.Boolean:
        values = _in_order(_medians(rows), evaluation.qids)
        return [_by_number(evaluation, by, values.to_numpy(), "the lower median of the query's documents")]
    return [_by_name(evaluation, by, _in_order(_single_text(rows, by), evaluation.qids).to_list())]


def _by_number(evaluation: Evaluation, by: str, values: npt.NDArray[np.float64], what: str) -> Slices:
    """Make one slice per number if they are few, else slices of about as many queries each."""
    known = np.sort(values[~np.isnan(values)])
    different = np.unique(known)
    if len(different) <= FEW_VALUES:
        uppers, how = different, f"{what}; one slice for each value"
    else:
        uppers = np.unique(known[[math.ceil(len(known) * (b + 1) / BINS) - 1 for b in range(BINS)]])
        how = f"{what}; {len(uppers)} quantile bins with about the same number of queries; both limits are included"
    place = np.where(np.isnan(values), -1, np.searchsorted(uppers, values))
    groups: list[tuple[str, Limits, npt.NDArray[np.bool_]]] = []
    for b in range(len(uppers)):
        inside = values[place == b]
        low, high = float(inside.min()), float(inside.max())
        groups.append((_plain(low) if low == high else f"{_plain(low)} to {_plain(high)}", (low, high), place == b))
    if (place < 0).any():
        groups.append((MISSING, None, place < 0))
    return _sliced(evaluation, by, how, groups)


def _by_name(evaluation: Evaluation, by: str, values: Sequence[str | None]) -> Slices:
    """Make one slice per text, the largest first."""
    counts = pl.Series(values, dtype=pl.String).drop_nulls().value_counts(name="n")
    names = counts.sort(["n", counts.columns[0]], descending=[True, False])[counts.columns[0]].to_list()
    how = "the value of the query's documents; one slice for each value"
    kept = names if len(names) <= MOST_NAMES else names[: MOST_NAMES - 1]
    number = {name: i for i, name in enumerate(kept)}
    rest, nothing = len(kept), len(kept) + 1
    place = np.array([nothing if value is None else number.get(value, rest) for value in values], dtype=np.int64)
    groups: list[tuple[str, Limits, npt.NDArray[np.bool_]]] = [
        (name, None, np.equal(place, i)) for i, name in enumerate(kept)
    ]
    if len(names) > len(kept):
        groups.append((f"{len(names) - len(kept):,} other values", None, np.equal(place, rest)))
        how += f", the {len(kept)} of most queries"
    if (place == nothing).any():
        groups.append((MISSING, None, np.equal(place, nothing)))
    return _sliced(evaluation, by, how, groups)


def _sliced(
    evaluation: Evaluation, by: str, how: str, groups: Sequence[tuple[str, Limits, npt.NDArray[np.bool_]]]
) -> Slices:
    metrics = [metric for metric in evaluation.metrics if metric.name not in WITHOUT_SLICES]
    return Slices(
        by=by,
        how=how,
        slices=tuple(
            Slice(
                name=name,
                limits=None if limits is None else tuple(x if math.isfinite(x) else None for x in limits),
                n_queries=int(np.count_nonzero(chosen)),
                n_documents=int(evaluation.facts.n_documents[chosen].sum()),
                metrics={metric: _figure(evaluation, metric, chosen) for metric in metrics},
            )
            for name, limits, chosen in groups
        ),
    )


def _figure(evaluation: Evaluation, metric: Metric, chosen: npt.NDArray[np.bool_]) -> Figure:
    """Return the figure of the queries of a slice that count; weighted queries keep their weights."""
    values, weights = evaluation.values[metric][chosen], evaluation.weights[metric]
    counted = ~np.isnan(values)
    n = int(np.count_nonzero(counted))
    own = None if weights is None else weights[chosen]
    whole = n if own is None else math.fsum(own[counted].tolist())
    mean = math.fsum(values[counted].tolist()) / whole if n else None
    return Figure(mean, percentile_interval(values, weights=own), n)


def _medians(rows: pl.DataFrame) -> pl.DataFrame:
    """Return each query's lower median, which does not depend on the order of documents or on rounding."""
    numbers = rows.with_columns(pl.col("value").cast(pl.Float64).fill_nan(None)).drop_nulls("value")
    return numbers.group_by("qid").agg(pl.col("value").quantile(0.5, "lower"))


def _single_text(rows: pl.DataFrame, by: str) -> pl.DataFrame:
    """Return each query's only text; CandidatesRejected if a query has two."""
    found = rows.drop_nulls("value").group_by("qid").agg(least=pl.col("value").min(), most=pl.col("value").max())
    several = found.filter(pl.col("least") != pl.col("most")).sort("qid")
    if not several.is_empty():
        qid, least, most = several.row(0)
        raise CandidatesRejected(
            f"{spelled('by')} {by}: expected one text in all documents of a query, found {least!r} and {most!r} in "
            f"query {qid!r}; slices are of queries"
        )
    return found.select("qid", value="least")


def _in_order(values: pl.DataFrame, qids: Sequence[str]) -> pl.Series:
    asked = pl.DataFrame({"qid": pl.Series(qids, dtype=pl.String)})
    return asked.join(values, on="qid", how="left", maintain_order="left")["value"]


def _plain(value: float) -> str:
    return f"{value:.6g}"
