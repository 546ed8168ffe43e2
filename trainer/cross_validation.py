"""Cross-validation: what a training is worth on queries that it has not seen, round by round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import fsum

import numpy as np
import numpy.typing as npt

from rankmill.foundation.errors import TrainingDataRejected
from rankmill.scorer.forest import Forest
from rankmill.trainer.boosting import boost
from rankmill.trainer.checkpoint import Checkpoints
from rankmill.trainer.growing.histogram import DEFAULT_POOL_BYTES
from rankmill.trainer.history import HOLDOUT, CrossValidation, RoundRecord, TrainingResult
from rankmill.trainer.learnt_from import settled
from rankmill.trainer.measures import stop_measure
from rankmill.trainer.parameters import TrainParameters
from rankmill.trainer.rows import RankedRows
from rankmill.trainer.sampling import fold_of_queries
from rankmill.trainer.stopping import EarlyStopping

OnFold = Callable[[int, RoundRecord], object]  # the fold, 1, 2, .., and what its last round measured


def cross_validate(
    rows: RankedRows,
    edges: Sequence[npt.NDArray[np.float32]],
    feature_names: Sequence[str],
    parameters: TrainParameters,
    *,
    max_grade: int,
    eval_metrics: Sequence[str] = (),
    n_threads: int = 0,
    pool_bytes: int | None = None,
    on_round: OnFold | None = None,
    checkpoints: Checkpoints | None = None,
) -> CrossValidation:
    """Train ``parameters.folds`` times, each time on all queries but those of a fold, and measure on these.

    Whole queries are dealt out to folds in the order of keys of (seed, name of the query); all folds have the same
    bins.  They are trained one after another with all threads, so the result depends on no number of workers, and at
    most one copy of the bins is held besides ``rows``.

    With ``early_stopping_rounds`` a fold ends when its own held-out queries have seen no better value for so long;
    then all are trained for as many rounds as the longest, so that every mean is one of all folds.  The best round is
    the one with the best mean of the stop metric, better than the best before it by more than ``min_improvement``.

    Parameters
    ----------
    rows
        All that may be learnt from.
    edges, feature_names, max_grade, eval_metrics, n_threads, pool_bytes
        As :func:`rankmill.trainer.boosting.boost` takes them.
    parameters
        Of each training, and ``folds``; ``rounds_by`` says nothing here.
    on_round
        Called after every round of every fold; a fold may come twice, to be made longer.
    checkpoints
        Where each fold keeps what it has so far, and goes on from.

    Raises
    ------
    InvalidParameter
        As ``boost``.
    TrainingDataRejected
        There are fewer queries than folds, or ``boost`` refuses the rows of a fold.
    """
    folds = parameters.folds
    if rows.n_queries < folds:
        raise TrainingDataRejected(f"{folds} folds need as many queries, found {rows.n_queries}; take fewer folds")
    n_bins = np.array([len(cuts) + 2 for cuts in edges], dtype=np.int32)
    rows = replace(rows, bins=rows.blocked(n_bins))
    fold_of = fold_of_queries(rows.query_names, folds, parameters.seed)
    own = replace(settled(rows, parameters), rounds_by="valid")

    def train(fold: int, rounds: int | None = None, resume: Forest | None = None) -> TrainingResult:
        apart = fold_of == fold
        try:
            return boost(
                rows.of_queries(~apart),
                [(HOLDOUT, rows.of_queries(apart, row_major=True))],
                edges,
                feature_names,
                own,
                max_grade=max_grade,
                eval_metrics=eval_metrics,
                resume=resume,
                n_threads=n_threads,
                pool_bytes=DEFAULT_POOL_BYTES if pool_bytes is None else pool_bytes,
                on_round=None if on_round is None else partial(_tell, on_round, fold + 1),
                checkpoint=None if checkpoints is None else checkpoints.of(f"fold-{fold + 1}"),
                rounds=rounds,
            )
        except TrainingDataRejected as error:
            raise TrainingDataRejected(f"fold {fold + 1} of {folds}: {error}") from None

    results = [train(fold) for fold in range(folds)]
    longest = max(len(result.history) for result in results)
    histories = tuple(
        result.history if len(result.history) == longest else train(fold, longest, result.forest).history
        for fold, result in enumerate(results)
    )
    measure = stop_measure(parameters, graded=rows.graded)
    stopping = EarlyStopping(0, measure.higher_is_better, min_improvement=parameters.min_improvement)
    for i in range(longest):
        stopping.update(i + 1, fsum(history[i].metrics[HOLDOUT][str(measure)] for history in histories) / folds)
    return CrossValidation(histories=histories, stop_metric=str(measure), best_round=stopping.best_round)


def _tell(on_round: OnFold, fold: int, record: RoundRecord) -> None:
    on_round(fold, record)
