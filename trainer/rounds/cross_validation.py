"""Cross-validation of a training of any kind.

Each fold is held out once; the number of rounds with the best mean wins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import fsum
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from rankmill.foundation.errors import TrainingDataRejected
from rankmill.trainer.rounds.early_stopping import DEVIANCE, EarlyStopping, Measure
from rankmill.trainer.rounds.sampling import fold_of_queries
from rankmill.trainer.rounds.training_result import HOLDOUT, CrossValidation, RoundRecord


class Trained(Protocol):
    """What a training of a fold returns."""

    @property
    def history(self) -> tuple[RoundRecord, ...]:
        """Every round, with what was measured on the fold under ``holdout``."""


Result = TypeVar("Result", bound=Trained)


@dataclass(frozen=True, slots=True, eq=False)
class Fold:
    """A fold: queries that are held out of a training."""

    number: int  # 1, 2, ..
    held_out: npt.NDArray[np.bool_]  # (n_queries,)


def folds_of(query_names: npt.NDArray[np.int64], folds: int, seed: int) -> list[Fold]:
    """Return the folds of queries by a hash of the seed and their names (n_queries,).

    Folds have whole queries; their sizes differ by one at most.

    Raises
    ------
    TrainingDataRejected
        There are fewer queries than folds.
    """
    if len(query_names) < folds:
        raise TrainingDataRejected(
            f"{folds} folds need at least as many queries, found {len(query_names)}; use fewer folds"
        )
    fold_of = fold_of_queries(query_names, folds, seed)
    return [Fold(fold + 1, fold_of == fold) for fold in range(folds)]


@contextmanager
def naming(fold: Fold, folds: int) -> Iterator[None]:
    """Let TrainingDataRejected name the fold."""
    try:
        yield
    except TrainingDataRejected as error:
        raise TrainingDataRejected(f"fold {fold.number} of {folds}: {error}") from None


def cross_validated(
    folds: list[Fold],
    measure: Measure,
    stopping: EarlyStopping,
    train: Callable[[Fold, int | None, Result | None], Result],
    values: Callable[[Fold, int, Result], npt.NDArray[np.float64]] | None = None,
    *,
    note: Callable[[Result], str] = lambda _: "",
    unit: str = "round",
    only_last: bool = False,
    together: Callable[[Sequence[tuple[Fold, int | None, Result | None]]], list[Result]] | None = None,
) -> CrossValidation:
    """Train once without each fold, all for as many rounds as the longest, and find the best round.

    Parameters
    ----------
    folds
        From :func:`folds_of`.
    measure
        The stop metric.
    stopping
        Finds the best of the means over folds.
    train
        Trains without a fold: until it stops early (None, None), or on from such a result to this number of rounds.
    values
        Returns the measure of each query of a fold after a number of rounds; None without ``by_query``.
    note
        A note about a result; it is printed if every result has one.
    unit
        Word for a round.
    only_last
        Fewer rounds would be another training, so the last one counts.
    together
        Calls ``train`` with each of several arguments, for example all at once; None: one after another.

    Raises
    ------
    TrainingDataRejected
        ``train`` rejects the rows of a fold, which the message names.
    """

    def one_after_another(asked: Sequence[tuple[Fold, int | None, Result | None]]) -> list[Result]:
        found = []
        for fold, rounds, before in asked:
            with naming(fold, len(folds)):
                found.append(train(fold, rounds, before))
        return found

    all_trained = one_after_another if together is None else together
    results = all_trained([(fold, None, None) for fold in folds])
    longest = max(len(result.history) for result in results)
    shorter = [
        (fold, longest, result) for fold, result in zip(folds, results, strict=True) if len(result.history) < longest
    ]
    if shorter:
        longer = {fold.number: result for (fold, *_), result in zip(shorter, all_trained(shorter), strict=True)}
        results = [longer.get(fold.number, result) for fold, result in zip(folds, results, strict=True)]
    histories = tuple(result.history for result in results)
    for i in range(longest):
        stopping.update(i + 1, fsum(history[i].metrics[HOLDOUT][str(measure)] for history in histories) / len(folds))
    best, by_query = longest if only_last else stopping.best_round, None
    if values is not None and measure != DEVIANCE:
        by_query = np.empty(len(folds[0].held_out))
        for fold, result in zip(folds, results, strict=True):
            by_query[fold.held_out] = values(fold, best, result)
    notes = [note(result) for result in results]
    return CrossValidation(histories, str(measure), best, by_query, unit, notes[0] if all(notes) else "")
