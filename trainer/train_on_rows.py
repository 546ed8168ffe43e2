"""One training on rows: on all of them, without some that are held out, or after a cross-validation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import fsum

import numpy as np
import numpy.typing as npt

from rankmill.foundation.errors import TrainingDataRejected
from rankmill.trainer.boosting import boost
from rankmill.trainer.checkpoints import Checkpoints
from rankmill.trainer.early_stopping import EarlyStopping, stop_measure
from rankmill.trainer.parameters import TrainParameters
from rankmill.trainer.rows import RankedRows, TrainingData
from rankmill.trainer.sampling import fold_of_queries, queries_apart
from rankmill.trainer.training_options import DEFAULT_OPTIONS, StartingModel, TrainingOptions
from rankmill.trainer.training_result import HOLDOUT, CrossValidation, TrainingResult
from rankmill.trainer.training_rows import resolved


def fit(
    data: TrainingData,
    parameters: TrainParameters,
    options: TrainingOptions = DEFAULT_OPTIONS,
    checkpoints: Checkpoints | None = None,
) -> TrainingResult:
    """Train, and keep the rounds that ``parameters.rounds_by`` says.

    valid
        The first eval set says which round is the best one.
    test
        So do ``holdout_fraction`` of the queries of ``data.train``, which are not learnt from (gbm's train.fraction); they
        are the first eval set, ``holdout``, and the others are only measured.
    oob
        The round with the highest sum of out-of-bag improvements so far.
    cv
        As many rounds as are best on average over ``folds`` parts of ``data.train``, each of them measured while the others
        are learnt from; then all of them are learnt from.

    ``checkpoints`` are those of the whole training and of each fold; options and errors are those of
    :func:`rankmill.trainer.boosting.boost`.

    Raises
    ------
    TrainingDataRejected
        There are too few queries to divide.
    """
    whole = None if checkpoints is None else checkpoints.of("whole")
    if parameters.rounds_by == "test":
        apart = queries_apart(data.train.query_names, parameters.holdout_fraction, parameters.seed)
        if not apart.any():
            raise TrainingDataRejected(
                "rounds_by test: the train split needs at least two queries, one of them to hold out"
            )
        data = _held_out(data.blocked(), apart, data.eval_sets)
    if parameters.rounds_by != "cv":
        return boost(data, parameters, options, checkpoint=whole)
    data = data.blocked()
    found = cross_validate_rows(data, parameters, options, checkpoints)
    result = boost(data, parameters, options, checkpoint=whole, rounds=found.best_round)
    return replace(result, cross_validation=found)


def cross_validate_rows(
    data: TrainingData,
    parameters: TrainParameters,
    options: TrainingOptions = DEFAULT_OPTIONS,
    checkpoints: Checkpoints | None = None,
) -> CrossValidation:
    """Train ``parameters.folds`` times, each time on all queries of ``data.train`` but those of a fold, and measure on these.

    Whole queries are dealt out to folds in the order of keys of (seed, name of the query); all folds have the same
    bins.  They are trained one after another with all threads, so the result depends on no number of workers, and at
    most one copy of the bins is held besides ``data``.

    With ``early_stopping_rounds`` a fold ends when its own held-out queries have seen no better value for so long;
    then all are trained for as many rounds as the longest, so that every mean is one of all folds.  The best round is
    the one with the best mean of the stop metric, better than the best before it by more than ``min_improvement``.

    Neither ``rounds_by``, nor ``options.resume`` and ``options.profile``, nor eval sets mean anything here.  A fold may be
    reported twice, to be made longer.

    Raises
    ------
    InvalidParameter
        As :func:`rankmill.trainer.boosting.boost`.
    TrainingDataRejected
        There are fewer queries than folds, or ``boost`` refuses the rows of a fold.
    """
    folds, rows = parameters.folds, data.train
    if rows.n_queries < folds:
        raise TrainingDataRejected(
            f"{folds} folds need at least as many queries, found {rows.n_queries}; use fewer folds"
        )
    data = replace(data.blocked(), info={})
    fold_of = fold_of_queries(rows.query_names, folds, parameters.seed)
    own = replace(resolved(rows, parameters), rounds_by="valid")

    def train(fold: int, rounds: int | None = None, resume: StartingModel | None = None) -> TrainingResult:
        try:
            return boost(
                _held_out(data, fold_of == fold),
                own,
                replace(options, resume=resume, profile=False),
                checkpoint=None if checkpoints is None else checkpoints.of(f"fold-{fold + 1}"),
                rounds=rounds,
                fold=fold + 1,
            )
        except TrainingDataRejected as error:
            raise TrainingDataRejected(f"fold {fold + 1} of {folds}: {error}") from None

    results = [train(fold) for fold in range(folds)]
    longest = max(len(result.history) for result in results)
    histories = tuple(
        result.history if len(result.history) == longest else train(fold, longest, StartingModel(result.forest)).history
        for fold, result in enumerate(results)
    )
    measure = stop_measure(parameters, graded=rows.graded)
    stopping = EarlyStopping(0, measure.higher_is_better, min_improvement=parameters.min_improvement)
    for i in range(longest):
        stopping.update(i + 1, fsum(history[i].metrics[HOLDOUT][str(measure)] for history in histories) / folds)
    return CrossValidation(histories=histories, stop_metric=str(measure), best_round=stopping.best_round)


def _held_out(
    data: TrainingData, apart: npt.NDArray[np.bool_], eval_sets: Sequence[tuple[str, RankedRows]] = ()
) -> TrainingData:
    """Return ``data`` without the queries ``apart`` (n_queries,), which become the first eval set, before ``eval_sets``."""
    held_out = data.train.of_queries(apart, row_major=True)
    return replace(data, train=data.train.of_queries(~apart), eval_sets=[(HOLDOUT, held_out), *eval_sets])
