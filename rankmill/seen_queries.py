"""The queries that a ranker has learnt from, to say so when it is scored on them."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from rankmill.pipeline.group.sketch import QuerySketch, overlap
from rankmill.python.other_libraries import frame_of_search


@dataclass(frozen=True, slots=True, eq=False)
class DigestedQueries:
    """Queries of rows in memory.

    They are the id of each as text (n_queries,), and a digest of its documents and their grades.
    """

    ids: npt.NDArray[np.str_]
    digests: npt.NDArray[np.uint64]

    @classmethod
    def of(
        cls, ids: npt.NDArray[np.generic], starts: npt.NDArray[np.int64], of_rows: npt.NDArray[np.uint64]
    ) -> DigestedQueries:
        """Digest the queries, whose rows (n, ..) begin at ``starts``, in any order within each."""
        return cls(ids.astype(np.str_), np.add.reduceat(of_rows[:, 0], starts[:-1]))


@dataclass(frozen=True, slots=True, eq=False)
class SeenQueries:
    """What a ranker keeps of the queries that it has learnt from: about 16 bytes for each.

    Attributes
    ----------
    ids
        Their ids.
    trained
        (n,) digests of the queries of ``X``.
    then
        The same of eval sets that were learnt from in the end, by name.
    """

    ids: QuerySketch
    trained: npt.NDArray[np.uint64]
    then: Mapping[str, npt.NDArray[np.uint64]] = field(default_factory=dict)

    def warn_of(self, scored: DigestedQueries) -> None:
        """Warn if ``scored`` queries are of an eval set that was learnt from, or have other documents in ``fit``.

        It does not warn of whole queries of ``X``: that these were learnt from is no surprise.  Ids that just count the
        queries say nothing, unless scikit-learn has cut them from the same rows.
        """
        whole = np.isin(scored.digests, self.trained)
        for name, digests in self.then.items():
            of_set = np.isin(scored.digests, digests) & ~whole
            if n_found := int(np.count_nonzero(of_set)):
                warnings.warn(
                    f"score: {n_found:,} of {len(whole):,} queries are known: {learnt_in_the_end(name)}; score "
                    "others, or fit with"
                    ' refit="none"',
                    UserWarning,
                    stacklevel=3,
                )
            whole |= of_set
        if _are_numbers(scored.ids) and frame_of_search() is None:
            return
        if n_found := overlap(self.ids, scored.ids[~whole].tolist()).found:
            warnings.warn(
                f"score: {n_found:,} of {len(whole):,} queries have ids of queries that fit has learnt from, with "
                "other documents; if they are the same queries, the score is higher than that of new ones: keep "
                "queries whole, in scikit-learn with cv=GroupKFold(..) and groups=",
                UserWarning,
                stacklevel=3,
            )


def _are_numbers(ids: npt.NDArray[np.str_]) -> bool:
    """Whether distinct ids are numbers from 0 or 1 on."""
    n = len(ids)
    return {*ids.tolist()} in ({*map(str, range(n))}, {*map(str, range(1, n + 1))})


def seen_queries(train: DigestedQueries | None, then: Mapping[str, DigestedQueries | None]) -> SeenQueries | None:
    """Return the record of the queries of ``X``, and of eval sets used for learning.

    None if they are those of a dataset.
    """
    if train is None or None in then.values():
        return None
    learnt = {name: each for name, each in then.items() if each is not None}
    parts: Iterable[list[str]] = [each.ids.tolist() for each in (train, *learnt.values())]
    return SeenQueries(QuerySketch.of(parts), train.digests, {name: each.digests for name, each in learnt.items()})


def learnt_in_the_end(eval_set: str) -> str:
    """Say what a training with ``refit="all"`` has done with the first ``eval_set``."""
    return (
        f'the model learns from the eval set {eval_set!r} too in the end (refit="all"), so its score there is no '
        "test result"
    )
