"""Bins of columns that do not fit into memory.

They are quantiles of a sample, with exact counts of frequent values and extremes.

The sample (:func:`sampled_places`): the k rows with the smallest keys.  The key of a row is element p of the splitmix64
sequence seeded with the hash of the query's id.  The position of the row in its query is p, from 1.  It depends only on
the data.  So the sample is the same for any memory, batches, threads and order, and for every feature (Cohen and
Kaplan, "Summarizing data using bottom-k sketches", PODC 2007).

Columns are read twice (:func:`atoms_of`)::

    first pass    minimum, maximum, number of missing values; candidates for heavy values (Misra and Gries, "Finding
                  repeated elements", 1982)
    second pass   exact counts of the candidates, zero, minimum and maximum, and the nearest other values on both
                  sides of each

A value is heavy if more than one row in 1,024 has it, which depends only on the multiset of values.  Heavy values, zero
and the extremes are the *atoms*: they keep their exact counts.  Their neighbours are known, so that an atom with its
own bin is really alone in it.  All other rows are distributed equally among the sampled values that are not atoms
(:func:`cumulated`).

Error: for a sample of k of these other rows, the share below an edge is wrong by more than e with a probability of at
most 2 exp(-2 k e^2) (Dvoretzky, Kiefer and Wolfowitz; Massart, "The tight constant", 1990): 0.2 % at k = 2^20 with a
probability of 1 in 2,000.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rankmill.pipeline import _kernels
from rankmill.pipeline.bins.quantiles import (
    EDGE,
    Masses,
    Values,
    bin_ends,
    cumulative_counts,
    edges_between,
    sort_values,
)
from rankmill.pipeline.group.query_splits import hash_ids

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import pyarrow as pa


SAMPLE_SALT = 0xD1B54A32D192ED03
_CHUNK_ROWS = 1 << 20  # keys computed at a time, or those of one query if it has more

Queries = tuple["pa.Array[Any]", npt.NDArray[np.int64]]


def sampled_places(batches: Callable[[], Iterator[Queries]], k: int) -> npt.NDArray[np.int64]:
    """Return the row numbers of the ``k`` smallest keys, ascending, (min(k, rows),).

    ``batches`` yields the ids and sizes of some queries, in the order of the rows; it is called twice.  Memory: 40
    bytes for each of the ``k``, and a few megabytes.
    """
    limit = np.uint64(np.iinfo(np.uint64).max)
    kept = np.empty(0, dtype=np.uint64)
    for hashes, sizes in _chunks(batches()):
        keys = np.empty(int(sizes.sum()), dtype=np.uint64)
        found = int(_kernels.keys_up_to(hashes, sizes, limit, keys))
        kept = np.concatenate((kept, keys[:found]))
        if len(kept) > 2 * k:
            kept.partition(k - 1)
            limit = kept[k - 1]
            kept = kept[:k].copy()
    if len(kept) > k:
        kept.partition(k - 1)
        limit = kept[k - 1]
    places = np.empty(min(k, len(kept)), dtype=np.int64)
    first = found = 0
    for hashes, sizes in _chunks(batches()):
        found = int(_kernels.places_up_to(hashes, sizes, limit, first, places, found))
        first += int(sizes.sum())
    return places[:found]


def _chunks(batches: Iterator[Queries]) -> Iterator[tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]]:
    """Yield the hashes of some queries and their sizes, about a million rows at a time."""
    for qid, sizes in batches:
        hashes = hash_ids(qid, SAMPLE_SALT)
        ends = np.cumsum(sizes)
        low = 0
        while low < len(sizes):
            before = ends[low - 1] if low else 0
            high = max(low + 1, int(np.searchsorted(ends, before + _CHUNK_ROWS, side="right")))
            yield hashes[low:high], sizes[low:high]
            low = high


COUNTERS = 1023  # four for each of 255 bins: values heavier than a quarter of an average bin are counted exactly
_MISSING, _ZEROS = 1, 2  # cells of the state of the first pass; cell 0 is the number of counters in use


class Atoms(NamedTuple):
    """Values of a column that are counted exactly: heavy ones, zero if it occurs, and the extremes."""

    values: Values
    """(a,) ascending."""
    counts: Masses
    """(a,)"""
    beside: Values
    """(b,) the nearest other values on both sides, ascending."""
    missing: int
    """Number of NaN values of the column."""
    present: int
    """Number of other values."""

    @property
    def extremes(self) -> tuple[float, float] | tuple[None, None]:
        """The minimum and the maximum; None if all values are missing."""
        return (float(self.values[0]), float(self.values[-1])) if self.present else (None, None)


def atoms_of(
    batches: Callable[[], Iterable[Sequence[Values]]],
    columns: int,
    note: Callable[[Sequence[Values]], None] = lambda _: None,
) -> list[Atoms]:
    """Return the atoms of some ``columns``; ``batches``, called twice, yields values (m,) of each of them.

    ``note`` is called with each batch of the first pass.
    """
    # a hash table of candidates for heavy values, by their bits, with their counters
    slots = np.full((columns, _kernels.SLOTS), _kernels.FREE, dtype=np.uint32)
    counters = np.zeros((columns, _kernels.SLOTS), dtype=np.int64)
    state = np.zeros((columns, 3), dtype=np.int64)
    extremes = np.tile(np.array([np.inf, -np.inf], dtype=EDGE), (columns, 1))
    spare_values, spare_counters = np.empty(COUNTERS, dtype=np.uint32), np.empty(COUNTERS, dtype=np.int64)
    rows = 0
    for batch in batches():
        note(batch)
        for k, values in enumerate(batch):
            _kernels.first_pass(
                values, values.view(np.uint32), slots[k], counters[k], spare_values, spare_counters, state[k],
                extremes[k]
            )  # fmt: skip
        rows += len(batch[0])
    known = []  # what the second pass counts: the candidates, zero and the extremes
    for of_column, found, ends in zip(slots, state, extremes, strict=True):
        zero = [0.0] if found[_ZEROS] else []
        outermost = (ends + EDGE(0)).tolist() if found[_MISSING] < rows else []
        candidates = of_column[of_column != _kernels.FREE].view(EDGE)
        known.append(np.union1d(candidates, np.array([*zero, *outermost], dtype=EDGE)))
    counts = [np.zeros(len(values), dtype=np.int64) for values in known]
    below, above = ([np.full(len(values), far, dtype=EDGE) for values in known] for far in (-np.inf, np.inf))
    for batch in batches():
        for k, values in enumerate(batch):
            _kernels.count_known(values, known[k], counts[k], below[k], above[k])
    missing = state[:, _MISSING].tolist()
    return [_atoms(*each, rows) for each in zip(known, counts, below, above, missing, strict=True)]


def _atoms(known: Values, counts: Masses, below: Values, above: Values, missing: int, rows: int) -> Atoms:
    """Return the atoms among the ``known`` values (k,), with the nearest other ones ``below`` and ``above`` each."""
    present = rows - missing
    if not len(known):
        return Atoms(known, counts, known, missing, present)
    keep = (counts * (COUNTERS + 1) > present) | (known == 0)
    keep[[0, -1]] = True
    below[1:] = np.maximum(below[1:], known[:-1])
    above[:-1] = np.minimum(above[:-1], known[1:])
    beside = np.concatenate((below[1:][keep[1:]], above[:-1][keep[:-1]]))
    return Atoms(known[keep], counts[keep], np.setdiff1d(beside, known[keep]), missing, present)


def sampled_edges(sample: Values, atoms: Atoms, max_bin: int) -> Values:
    """Return the ascending edges of at most ``max_bin`` bins.

    ``sample`` (k,), drawn from the column of ``atoms``, is sorted.
    """
    distinct, cumulative = cumulated(sample, atoms)
    ends = bin_ends(cumulative, max_bin)
    return edges_between(distinct[ends[:-1] - 1], distinct[ends[:-1]])


def cumulated(sample: Values, atoms: Atoms) -> tuple[Values, Masses]:
    """Return distinct values, and how many of the rows with a value are before each and in total: (d,) and (d + 1,).

    Atoms have their exact counts.  The other rows are distributed among the values of ``sample`` (k,) that are not
    atoms; neighbours of atoms that are not in the sample get one row each.
    """
    present, _ = sort_values(sample)
    light = _without(present, atoms.values)
    beside = atoms.beside
    single = beside[np.searchsorted(light, beside, "left") == np.searchsorted(light, beside, "right")]
    starts = cumulative_counts(light)
    mass = starts * (atoms.present - int(atoms.counts.sum()) - len(single))
    mass //= max(1, len(light))
    distinct = np.concatenate((light[starts[:-1]], atoms.values, single))
    masses: npt.NDArray[np.int64] = np.concatenate((np.diff(mass), atoms.counts, np.ones(len(single), dtype=np.int64)))
    del starts, mass
    order = np.argsort(distinct)
    cumulative = np.zeros(len(masses) + 1, dtype=np.int64)
    np.cumsum(masses[order], out=cumulative[1:])
    return distinct[order], cumulative


def _without(present: Values, atoms: Values) -> Values:
    """Return the ascending ``present`` values that are not among ``atoms``."""
    keep = np.ones(len(present), dtype=np.bool_)
    ends = np.searchsorted(present, atoms, side="right")
    for first, last in zip(np.searchsorted(present, atoms).tolist(), ends.tolist(), strict=True):
        keep[first:last] = False
    return present[keep]
