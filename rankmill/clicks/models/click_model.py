"""Fit click models to counts.

All have the form ``P(click on d at rank k | last click at l) = P(examined) gamma_d``.  They differ in what an
examination probability is for, a cell, and in whether the user may leave after a click:

    dctr        one cell of 1: everything is examined (document click-through rate)
    pbm         a cell for each rank
    ubm         a cell for each rank and rank of the last click (Dupret and Piwowarski 2008)
    cascade     1 up to the first click, then nothing (Craswell et al. 2008)
    dcm         1 up to a click at k, after which the user continues with probability lambda_k (Guo et al. 2009)
    allpairs    as pbm, from documents shown at both of two ranks; a relevance for each pair of ranks (Agarwal et al.
                2019)
    randomised  as pbm, from the click-through rate of each rank under a policy of random order
    trust       as pbm, and with ``trust_k`` users click at rank k whatever the document (affine; Vardasbi et al. 2020)

The cascade and dependent click models are fitted to the impressions whose examination depends on one number alone.
These are those above the first click, and those directly below the last click so far, of which the share ``lambda_k``
is examined.  That is consistent, and needs counts only; Guo et al.  use all impressions but take those after the last
click for unexamined, which is biased.

Each document has a relevance of its own.  With many documents that were shown a few times each, maximum likelihood is
biased (Neyman and Scott 1948).  In a simulated log with 44 impressions a document, examination at rank 8 was 1.5 times
too high.  So examination is fitted to the documents that were shown ``OFTEN`` times or more, if they link all ranks,
and relevance is then found for all documents.

Affine models are the same for relevance ``a gamma + b``.  As much of ``trust`` as possible is taken for relevance, so
that the rank with the smallest trust, relative to examination, has 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rankmill.clicks.models import _kernels as kernels
from rankmill.clicks.models.counts import ClickCounts, summed
from rankmill.clicks.options import ClickFitOptions, ClickModelName
from rankmill.foundation.errors import DataRejected
from rankmill.foundation.options import spelled
from rankmill.foundation.shown import few

Floats = npt.NDArray[np.float64]
Rows = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], Floats, Floats]  # document, cell, shown, clicked


OFTEN = 50  # impressions
_ROWS_AT_ONCE = 1 << 18  # of the counts
_MOST_ALIKE = 500.0  # impressions in which chance moves a click-through rate as much as documents differ


class NotIdentified(DataRejected):
    """A log does not determine the examination probabilities of a model."""


@dataclass(frozen=True, slots=True)
class ClickModel:
    """A click model fitted to a log: ``P(click) = going * examination[k, l] * relevance[d]``.

    Ranks count from 0; l = 0 means no click above.

    The probability ``going`` that the user is still there is 1 at the top, follows from Bayes' rule after a skip, and
    is ``continuation[k]`` after a click at k.
    """

    name: ClickModelName
    examination: Floats
    """(ranks, ranks + 1), 1 at the first rank; NaN where a combination is not identified."""
    continuation: Floats
    """(ranks,)"""
    relevance: Floats
    """(documents,) the estimate that the log supports most (maximum likelihood), NaN for documents that were never
    shown."""
    prior: tuple[float, float]
    """Clicks and skips of examined documents that shrink the relevance of rarely examined documents to the mean."""
    log_likelihoods: tuple[float, ...]
    """Before each step of the fit that was kept and after the last, ascending; none where no probability of examination
    is fitted."""
    converged: bool
    parameters: Floats
    """(2 cells,) as the fit left them, to start others from."""
    shrunken: Floats
    """(documents,) relevance with the prior, for predictions; the mean for documents that were never shown."""
    trust: Floats
    """(ranks,) the probability of a click on an irrelevant document; 0 in models without it."""
    only_often: bool = False
    """Whether examination was fitted to the documents that were shown ``OFTEN`` times or more."""

    @property
    def by_rank(self) -> Floats:
        """Examination probabilities of a list without clicks so far, (ranks,)."""
        return self.examination[:, 0]


class _Cells(NamedTuple):
    of_row: npt.NDArray[np.int64]
    """(rows,) -1: the row is not used."""
    free: npt.NDArray[np.uint8]
    """(cells,)"""


def fit_click_model(
    name: ClickModelName,
    counts: ClickCounts,
    options: ClickFitOptions | None = None,
    *,
    start: ClickModel | None = None,
    random: ClickCounts | None = None,
) -> ClickModel:
    """Return the model ``name`` with the greatest likelihood of ``counts``.

    ``start`` is a fit of the same model to begin with.  ``random`` are the counts of the lists in random order, which
    ``randomised`` takes examination from.

    Raises
    ------
    NotIdentified
        The log does not determine the model: no clicks, or ranks at which no clicked document of the other ranks was
        shown.
    """
    options = options or ClickFitOptions()
    if not counts.clicked.sum() > 0.0:
        raise NotIdentified(f"{name}: the log has no click down to rank {counts.ranks}")
    if not counts.clicked.sum() < counts.shown.sum():
        raise NotIdentified(
            f"{name}: every document in the log was clicked; a log needs a row for each document shown, clicked or not"
        )
    if name == "randomised":
        return _with_relevance(name, counts, _table(_of_random_lists(random or counts), counts.ranks))
    if name == "allpairs":
        rows = _pair_rows(counts)
        cells = _Cells(rows[1], np.ones(counts.ranks, dtype=np.uint8))
        _check_ranks(name, rows, counts.ranks)
        parameters, fit = _maximised(rows, cells, options)
        theta = parameters[: counts.ranks]
        return replace(_with_relevance(name, counts, _table(theta / theta[0], counts.ranks)), **fit)
    cells = _cells_of(name, counts)
    rows, often = _rows_to_fit(name, counts, cells)
    parameters, fit = _maximised(rows, cells, options, start, trusting=name == "trust")
    fit["only_often"] = often
    theta, trust = np.split(parameters[: 2 * len(cells.free)], 2)
    if name == "trust":
        _check_spread(counts, theta)
        trust = np.maximum(trust - theta * (trust / theta).min(), 0.0)
        return replace(_with_relevance(name, counts, _table(theta / theta[0], counts.ranks), trust), **fit)
    return replace(_with_relevance(name, counts, _tables(name, theta, rows, counts.ranks)), **fit)


def _rows_to_fit(name: ClickModelName, counts: ClickCounts, cells: _Cells) -> tuple[Rows, bool]:
    """Return the rows of the documents to fit examination to.

    They are often shown ones, with a note, or all if those do not determine it.
    """
    shown = counts.by_document(counts.shown)
    lost: npt.NDArray[np.int64] = np.arange(1, 1)
    for least in (OFTEN, 0):
        used = (cells.of_row >= 0) & (counts.shown > 0.0) & (shown[counts.document] >= least)
        if used.any():
            rows = _merged(counts.document[used], cells.of_row[used], counts.shown[used], counts.clicked[used])
            if name in {"pbm", "ubm", "trust"}:
                group = _groups(rows, len(cells.free))[:: len(cells.free) // counts.ranks]
                lost = np.flatnonzero(group != group[0])
            else:  # what no row has cannot be fitted, however many documents there are
                lost = np.flatnonzero(np.bincount(rows[1], minlength=len(cells.free)) == 0)
            if not len(lost):
                return rows, least > 0
    if name in {"pbm", "ubm", "trust"}:
        raise _not_connected(name, lost + 1)
    return rows, False


def _cells_of(name: ClickModelName, counts: ClickCounts) -> _Cells:
    rank, last, ranks = counts.rank.astype(np.int64), counts.last.astype(np.int64), counts.ranks
    if name in {"pbm", "trust"}:
        return _Cells(rank - 1, np.ones(ranks, dtype=np.uint8))
    if name == "ubm":
        return _Cells((rank - 1) * (ranks + 1) + last, np.ones(ranks * (ranks + 1), dtype=np.uint8))
    free = np.ones(ranks, dtype=np.uint8)
    free[0] = 0
    if name == "dctr":
        return _Cells(np.zeros(len(rank), dtype=np.int64), free[:1])
    if name == "cascade":
        return _Cells(np.where(last == 0, 0, -1), free[:1])
    return _Cells(np.where(last == 0, 0, np.where(rank == last + 1, last, -1)), free)


def _merged(document: npt.NDArray[np.int64], cell: npt.NDArray[np.int64], shown: Floats, clicked: Floats) -> Rows:
    """Return rows with those of one document and cell added up, in ascending order of document."""
    width = int(cell.max(initial=0)) + 1
    key, place = np.unique(document * width + cell, return_inverse=True)
    return key // width, key % width, summed(place, shown, len(key)), summed(place, clicked, len(key))


def _maximised(
    rows: Rows, cells: _Cells, options: ClickFitOptions, start: ClickModel | None = None, *, trusting: bool = False
) -> tuple[Floats, dict[str, Any]]:
    """Return theta and trust (2 cells,), and the fields of the model that say how they were found."""
    n = len(cells.free)
    used, document = np.unique(rows[0], return_inverse=True)
    parameters = np.full(2 * n + len(used), 0.5)
    parameters[:n][cells.free == 0] = 1.0
    parameters[n : 2 * n] = 0.02 if trusting else 0.0
    if start is not None:
        parameters[: 2 * n] = np.clip(start.parameters, 1e-3, 1.0)
        parameters[n : 2 * n] *= trusting
        both = np.maximum(parameters[:n] + parameters[n : 2 * n], 1.0)
        parameters[: 2 * n] /= np.tile(both, 2)
        found = np.nan_to_num(start.relevance[used], nan=0.5)
        parameters[2 * n :] = np.clip(found / (1.0 if trusting else parameters[0]), 1e-3, 1.0 - 1e-3)
    free = np.concatenate([cells.free, np.full(n, trusting, dtype=np.uint8)])
    trace = np.zeros(options.max_steps)
    scratch = np.zeros((6, len(parameters)))
    kept = kernels.maximise((document, *rows[1:]), free, options.tolerance, parameters, scratch, trace)
    likelihoods = tuple(trace[: abs(kept)].tolist())
    return parameters, {"log_likelihoods": likelihoods, "converged": kept > 0, "parameters": parameters[: 2 * n]}


def _tables(name: ClickModelName, theta: Floats, rows: Rows, ranks: int) -> tuple[Floats, Floats]:
    """Return the examination by rank and last click, and the continuation."""
    if name == "pbm":
        return _table(theta / theta[0], ranks)
    if name == "dcm":
        return np.ones((ranks, ranks + 1)), np.append(theta[1:], 1.0)
    if name in {"dctr", "cascade"}:
        return np.ones((ranks, ranks + 1)), np.full(ranks, 1.0 if name == "dctr" else 0.0)
    group = _groups(rows, len(theta))
    table = (theta / theta[0]).reshape(ranks, ranks + 1)
    table = np.where((group == group[0]).reshape(table.shape), table, np.nan)
    return table, np.ones(ranks)


def _table(theta: Floats, ranks: int) -> tuple[Floats, Floats]:
    return np.repeat(theta[:, None], ranks + 1, axis=1), np.ones(ranks)


def _with_relevance(
    name: ClickModelName, counts: ClickCounts, tables: tuple[Floats, Floats], trust: Floats | None = None
) -> ClickModel:
    """Return the model with relevance given examination.

    It is fitted without a prior, then with one fitted to the documents by moments.
    """
    examination, continuation = tables
    trust = np.zeros(counts.ranks) if trust is None else trust
    examined, clicks = np.zeros(counts.documents), np.zeros(counts.documents)
    for here in _parts(counts):
        document, theta, trusted, shown, clicked = _examined(name, here, examination, continuation, trust)
        np.add.at(examined, document, shown * theta)
        np.add.at(clicks, document, clicked - shown * trusted)
    prior = _prior(np.maximum(clicks, 0.0), examined)
    plain, shrunken = np.full(counts.documents, np.nan), np.full(counts.documents, prior[0] / (prior[0] + prior[1]))
    for here in _parts(counts):
        rows = _examined(name, here, examination, continuation, trust)
        kernels.relevance_given(*rows, np.zeros(2), plain)
        kernels.relevance_given(*rows, np.array(prior), shrunken)
    return ClickModel(name, examination, continuation, plain, prior, (), True, np.empty(0), shrunken, trust)


def _parts(counts: ClickCounts) -> Iterator[ClickCounts]:
    """Yield the rows in parts of whole documents.

    Documents have few rows, so that results of a part need little memory.
    """
    ends = np.arange(_ROWS_AT_ONCE, len(counts.document), _ROWS_AT_ONCE)
    ends = np.searchsorted(counts.document, counts.document[ends])  # the first row of the document there
    for first, last in pairwise(np.unique(np.concatenate([[0], ends, [len(counts.document)]])).tolist()):
        names = ("document", "rank", "last", "shown", "clicked")
        yield replace(counts, **{column: getattr(counts, column)[first:last] for column in names})


def _examined(
    name: ClickModelName, counts: ClickCounts, examination: Floats, continuation: Floats, trust: Floats
) -> tuple[npt.NDArray[np.int64], Floats, Floats, Floats, Floats]:
    """Return of the rows that were examined: document, examination, trust, impressions and clicks."""
    last, rank = counts.last.astype(np.int64), counts.rank.astype(np.int64) - 1
    theta = examination[rank, last]
    if name in {"cascade", "dcm"}:
        theta = np.where(last == 0, 1.0, np.where(last == rank, continuation[np.maximum(last - 1, 0)], np.nan))
    used = (counts.shown > 0.0) & ~np.isnan(theta) & (theta > 0.0)
    return counts.document[used], theta[used], trust[rank[used]], counts.shown[used], counts.clicked[used]


def _prior(clicks: Floats, examined: Floats) -> tuple[float, float]:
    """Return the beta distribution of relevance by the method of moments.

    These are the mean, and the variance beyond that of binomial counts.
    """
    seen = examined > 0.0
    n, rate = examined[seen], np.minimum(clicks[seen] / examined[seen], 1.0)
    mean = min(float(clicks.sum() / n.sum()), 0.99)
    spread = float((n * (rate - mean) ** 2).sum())
    noise = (len(n) - 1) * mean * (1.0 - mean)
    share = (spread - noise) / ((n.sum() - (n * n).sum() / n.sum()) * mean * (1.0 - mean)) if len(n) > 1 else 0.0
    strength = 1.0 / min(max(share, 1e-3), 1.0 - 1e-3) - 1.0
    return mean * strength, (1.0 - mean) * strength


def _check_spread(counts: ClickCounts, theta: Floats) -> None:
    """Raise NotIdentified if documents hardly differ: then examination and trust are alike."""
    examined = summed(counts.document, counts.shown * theta[counts.rank - 1], counts.documents)
    strength = sum(_prior(counts.by_document(counts.clicked), examined))
    if strength > _MOST_ALIKE:
        raise NotIdentified(
            "trust: the documents hardly differ in relevance, so that trust cannot be distinguished from examination"
        )


def _groups(rows: Rows, cells: int) -> npt.NDArray[np.int64]:
    """Return for each cell the first cell that it is connected to through clicked documents."""
    document, cell, _, clicked = rows
    clicks_of = np.bincount(document, weights=clicked)
    parent = np.arange(cells)
    kernels.connect(document, cell, clicks_of, parent)
    while not np.array_equal(parent, parent[parent]):
        parent = parent[parent]
    return parent


def _check_ranks(name: ClickModelName, rows: Rows, ranks: int) -> None:
    group = _groups(rows, ranks)
    lost = np.flatnonzero(group != group[0])
    if len(lost):
        raise _not_connected(name, lost + 1)


def _not_connected(name: ClickModelName, ranks: npt.NDArray[np.int64]) -> NotIdentified:
    named = few([*map(str, ranks.tolist())], 10)
    first = int(ranks[0])
    cure = "show some lists with swapped neighbours" if first == 2 else f"fit {spelled('ranks')} {first - 1}"
    noun = "rank" if len(ranks) == 1 else "ranks"
    return NotIdentified(
        f"{name}: no clicked document links {noun} {named} to rank 1, so that examination there cannot be "
        f"distinguished from relevance; {cure}"
    )


def _of_random_lists(counts: ClickCounts) -> Floats:
    shown, clicked = counts.by_rank(counts.shown), counts.by_rank(counts.clicked)
    if not (clicked > 0.0).all():
        lost = np.flatnonzero(clicked == 0.0) + 1
        raise NotIdentified(
            f"randomised: no click at rank {int(lost[0])} of the lists in random order; fit fewer {spelled('ranks')}"
        )
    rate: Floats = clicked / shown
    rate /= rate[0]
    return rate


def _pair_rows(counts: ClickCounts) -> Rows:
    """Return two rows for each pair of ranks, like a document that was shown at both."""
    weighted, unclicked = np.zeros((counts.ranks,) * 2), np.zeros((counts.ranks,) * 2)
    used = counts.shown > 0.0
    columns = (column[used] for column in (counts.document, counts.rank, counts.shown, counts.clicked))
    kernels.add_pairs(*columns, np.int64(counts.ranks), weighted, unclicked)
    above, below = np.triu_indices(counts.ranks, 1)
    pair = np.repeat(np.arange(len(above)), 2)
    rank, other = np.stack([above, below], axis=1).ravel(), np.stack([below, above], axis=1).ravel()
    clicks = weighted[rank, other]
    shown = clicks + unclicked[rank, other]
    kept = shown > 0.0
    return pair[kept], rank[kept], shown[kept], clicks[kept]
