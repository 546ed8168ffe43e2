"""One training on rows: on all of them, without some that are held out, or after a cross-validation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from math import fsum

import numpy as np
import numpy.typing as npt

from rankmill.foundation.errors import TrainingDataRejected
from rankmill.trainer.boosting import boost
from rankmill.trainer.checkpoints import Checkpoints
from rankmill.trainer.early_stopping import EarlyStopping, stop_measure
from rankmill.trainer.layout import BlockedBins
from rankmill.trainer.parameters import NONE, TrainParameters
from rankmill.trainer.rows import RankedRows, TrainingData
from rankmill.trainer.sampling import fold_of_queries, queries_apart
from rankmill.trainer.training_options import DEFAULT_OPTIONS, StartingModel, TrainingOptions
from rankmill.trainer.training_result import HOLDOUT, REFIT, CrossValidation, TrainingResult
from rankmill.trainer.training_rows import resolved

NOTHING_MORE = "refit all needs a valid split; add one (in Python: an eval_set), or set refit to none"


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

    With ``parameters.refit`` the first eval set is then learnt from as well: the forest is trained again, for as many rounds,
    on ``data.train`` and the first eval set together.  All the rest of the result stays that of the first training, so that
    no metric is one of rows that were learnt from.  ``options.resume`` is such a forest then.

    ``checkpoints`` are those of the whole training, of each fold and of the refit; options and errors are those of
    :func:`rankmill.trainer.boosting.boost`.

    Raises
    ------
    TrainingDataRejected
        There are too few queries to divide, or no eval set to learn from as well.
    """
    if parameters.refit == NONE:
        return _fit_once(data, parameters, options, checkpoints)
    if not data.eval_sets:
        raise TrainingDataRejected(NOTHING_MORE)
    (name, valid), *others = data.eval_sets
    valid = replace(valid, bins=[valid.row_major(data.n_bins)])  # read twice
    data = replace(data.blocked(), eval_sets=[(name, valid), *others])
    first = _fit_once(data, parameters, replace(options, resume=None), checkpoints)
    return _refitted(first, data, parameters, options, checkpoints)


def _fit_once(
    data: TrainingData, parameters: TrainParameters, options: TrainingOptions, checkpoints: Checkpoints | None
) -> TrainingResult:
    """Train without a refit."""
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
    the one with the best mean of the stop metric, smoothed over ``stop_window`` rounds, better than the best before it by more
    than ``min_improvement``.

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
    stopping = EarlyStopping.of(parameters, higher_is_better=measure.higher_is_better, patience=0)
    for i in range(longest):
        stopping.update(i + 1, fsum(history[i].metrics[HOLDOUT][str(measure)] for history in histories) / folds)
    return CrossValidation(histories=histories, stop_metric=str(measure), best_round=stopping.best_round)


def _refitted(
    first: TrainingResult,
    data: TrainingData,
    parameters: TrainParameters,
    options: TrainingOptions,
    checkpoints: Checkpoints | None,
) -> TrainingResult:
    """Return ``first`` with a forest that has learnt from the first eval set, too."""
    rounds, train, (_, valid) = first.best_round, data.train, data.eval_sets[0]
    if train.pairs is None:  # then there was no choice of what to learn from
        valid = replace(valid, pairs=None)
    if options.on_message is not None:
        options.on_message(
            f"training again on {train.n_rows + valid.n_rows:,} documents, those of the valid split included; {rounds:,} rounds"
        )
    batches = chain(train.blocked(data.n_bins).batches(np.arange(train.n_rows)), [valid.row_major(data.n_bins)])
    bins = BlockedBins.from_batches(batches, train.n_rows + valid.n_rows, data.n_bins)
    rows = train.followed_by(valid, bins)
    found = boost(
        replace(data, train=rows, eval_sets=()),
        replace(parameters, learn_from=resolved(train, parameters).learn_from),  # not resolved once more
        replace(options, on_round=None, profile=False),
        checkpoint=None if checkpoints is None else checkpoints.of("refit"),
        rounds=rounds,
    )
    facts = {**first.forest.info, REFIT: {"rows": rows.n_rows, "queries": rows.n_queries, "rounds": rounds}}
    return replace(first, forest=replace(found.forest, parameters=first.forest.parameters, info=facts))


def _held_out(
    data: TrainingData, apart: npt.NDArray[np.bool_], eval_sets: Sequence[tuple[str, RankedRows]] = ()
) -> TrainingData:
    """Return ``data`` without the queries ``apart`` (n_queries,), which become the first eval set, before ``eval_sets``."""
    held_out = data.train.of_queries(apart, row_major=True)
    return replace(data, train=data.train.of_queries(~apart), eval_sets=[(HOLDOUT, held_out), *eval_sets])
