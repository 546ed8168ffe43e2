"""One training on rows: on all of them, without some that are held out, or after a cross-validation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import fsum
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from rankmill.foundation.errors import TrainingDataRejected
from rankmill.scorer.forest import Forest
from rankmill.trainer.boosting import BoostOptions, boost
from rankmill.trainer.checkpoints import Checkpoints
from rankmill.trainer.early_stopping import EarlyStopping, stop_measure
from rankmill.trainer.growing.histogram import DEFAULT_POOL_BYTES
from rankmill.trainer.history import HOLDOUT, CrossValidation, RoundRecord, TrainingResult
from rankmill.trainer.parameters import TrainParameters
from rankmill.trainer.rows import RankedRows
from rankmill.trainer.sampling import fold_of_queries, queries_apart
from rankmill.trainer.training_rows import settled


def fit(
    train: RankedRows,
    eval_sets: Sequence[tuple[str, RankedRows]],
    edges: Sequence[npt.NDArray[np.float32]],
    feature_names: Sequence[str],
    parameters: TrainParameters,
    **options: Unpack[BoostOptions],
) -> TrainingResult:
    """Train, and keep the rounds that ``parameters.rounds_by`` says; arguments and errors are those of ``boost``.

    ``on_fold`` is called with the fold, 1, 2, .., and the record of every round of a cross-validation.

    valid
        The first eval set says which round is the best one.
    test
        So do ``holdout_fraction`` of the queries of ``train``, which are not learnt from (gbm's train.fraction); they
        are the first eval set, ``holdout``, and the others only watched.
    oob
        The round with the highest sum of out-of-bag improvements so far.
    cv
        As many rounds as are best on average over ``folds`` parts of ``train``, each of them watched while the others
        are learnt from; then all of ``train`` is learnt from.

    Raises
    ------
    TrainingDataRejected
        There are too few queries to part, besides what :func:`rankmill.trainer.boosting.boost` raises.
    """
    n_bins = np.array([len(cuts) + 2 for cuts in edges], dtype=np.int32)
    checkpoints, on_fold = options.pop("checkpoints", None), options.pop("on_fold", None)
    whole: Any = {**options, "checkpoint": None if checkpoints is None else checkpoints.of("whole")}
    if parameters.rounds_by == "test":
        apart = queries_apart(train.query_names, parameters.holdout_fraction, parameters.seed)
        if not apart.any():
            raise TrainingDataRejected("rounds_by test: the train split needs two queries or more, one to keep apart")
        train = replace(train, bins=train.blocked(n_bins))
        eval_sets = [(HOLDOUT, train.of_queries(apart, row_major=True)), *eval_sets]
        train = train.of_queries(~apart)
    if parameters.rounds_by != "cv":
        return boost(train, eval_sets, edges, feature_names, parameters, **whole)
    train = replace(train, bins=train.blocked(n_bins))
    found = cross_validate(
        train,
        edges,
        feature_names,
        parameters,
        max_grade=options["max_grade"],
        eval_metrics=options.get("eval_metrics", ()),
        n_threads=options.get("n_threads", 0),
        pool_bytes=options.get("pool_bytes"),
        on_round=on_fold,
        checkpoints=checkpoints,
    )
    result = boost(train, eval_sets, edges, feature_names, parameters, rounds=found.best_round, **whole)
    return replace(result, cross_validation=found)


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
