"""Train on rows in memory: choose the number of rounds, cross-validate, and refit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain

import numpy as np
import numpy.typing as npt

from rankmill.foundation.errors import InvalidParameter, TrainingDataRejected
from rankmill.scorer.forest.forest import Forest
from rankmill.trainer.data.layout import BlockedBins
from rankmill.trainer.data.measured_queries import check_decides
from rankmill.trainer.data.rows import RankedRows, TrainingData
from rankmill.trainer.data.training_rows import resolved
from rankmill.trainer.incompatible import check_cluster
from rankmill.trainer.parameters import NONE, TrainParameters
from rankmill.trainer.rounds.boosting import boost
from rankmill.trainer.rounds.checkpoints import Checkpoints
from rankmill.trainer.rounds.cross_validation import Fold, cross_validated, folds_of
from rankmill.trainer.rounds.early_stopping import EarlyStopping, stop_measure
from rankmill.trainer.rounds.sampling import held_out_queries
from rankmill.trainer.rounds.training_result import (
    HOLDOUT,
    REFIT,
    TRAIN,
    CrossValidation,
    RoundRecord,
    TrainingResult,
    note_without_splits,
)
from rankmill.trainer.training_options import DEFAULT_OPTIONS, OnRound, StartingModel, TrainingOptions

NOTHING_MORE = "refit all needs a valid split; add one (in Python: an eval_set), or set refit to none"
SAME_AGAIN = "resume: the model was trained again with its valid split; give the same one (in Python: eval_set)"


def fit(
    data: TrainingData,
    parameters: TrainParameters,
    options: TrainingOptions = DEFAULT_OPTIONS,
    checkpoints: Checkpoints | None = None,
) -> TrainingResult:
    """Train, and keep the number of rounds that ``parameters.rounds_by``, which are complete, chooses.

    valid
        The best round is that of the first eval set.
    test
        ``holdout_fraction`` of the queries of ``data.train`` are held out (gbm's train.fraction).  They become the
        first eval set, ``holdout``; the others are only measured.
    oob
        The round with the highest sum of out-of-bag improvements so far.
    cv
        The best number of rounds on average over ``folds`` cross-validation folds of ``data.train``.  The model is then
        trained on all of ``data.train``.

    With ``parameters.refit`` the forest is then trained again, for the same number of rounds, on ``data.train`` and the
    first eval set together.  Everything else in the result is from the first training, so that the valid metrics are
    never those of rows that were trained on.  ``options.resume`` is then a refitted forest.

    ``checkpoints`` cover the training, each fold and the refit.  For options and errors see
    :func:`rankmill.trainer.rounds.boosting.boost`.

    Raises
    ------
    TrainingDataRejected
        There are too few queries to split, or a refit has no eval set.
    """
    if options.shard is not None:
        check_cluster(parameters, options.base_model)
    if parameters.refit == NONE:
        return _fit_once(data, parameters, options, checkpoints)
    if not data.eval_sets:
        again = options.resume is not None and REFIT in options.resume.forest.info
        raise TrainingDataRejected(SAME_AGAIN if again else NOTHING_MORE)
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
        held_out = held_out_queries(data.train.query_names, parameters.holdout_fraction, parameters.seed)
        if not held_out.any():
            raise TrainingDataRejected(
                "rounds_by test: the train split needs at least two queries, one of them to hold out"
            )
        data = _without(data.blocked(), held_out, data.eval_sets)
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
    *,
    by_query: bool = False,
) -> CrossValidation:
    """Train ``parameters.folds`` times, each time without the queries of one fold, and measure on that fold.

    ``parameters`` are complete.  Whole queries are assigned to folds by a hash of the seed and the query's name.  All
    folds have the same bins.  They are trained one after another with all threads. So the result does not depend on the
    number of workers, and memory holds at most one more copy of the bins.

    With ``early_stopping_rounds`` each fold stops early by its own held-out queries. Then all folds are trained for as
    many rounds as the longest, so that every mean is over all folds.  The best round is the one with the best mean of
    the stop metric, smoothed over ``stop_window`` rounds, better than the best before it by more than
    ``min_improvement``.

    ``rounds_by``, ``refit``, ``options.resume`` and eval sets are ignored.  ``options.on_round`` is called once for
    each round of a fold.  ``by_query``: also return the stop metric of each query, of :attr:`RankedRows.n_queries`.

    Raises
    ------
    InvalidParameter
        As :func:`rankmill.trainer.rounds.boosting.boost`.
    TrainingDataRejected
        There are fewer queries than folds, or ``boost`` rejects the rows of a fold.
    """
    rows = data.train
    folds = folds_of(rows.query_names, parameters.folds, parameters.seed)
    data = data.blocked()
    measure = stop_measure(parameters, graded=rows.graded)
    check_decides(rows, measure, parameters, data.scale, TRAIN)

    def train(
        fold: Fold, rounds: int | None, before: TrainingResult | None, on_round: OnRound | None = options.on_round
    ) -> TrainingResult:
        reporting = replace(options, on_round=on_round)
        return train_fold(
            data, parameters, reporting, fold, rounds, None if before is None else before.forest, checkpoints
        )

    def values(fold: Fold, rounds: int, before: TrainingResult) -> npt.NDArray[np.float64]:
        return train(fold, rounds, before, None).by_query[HOLDOUT][str(measure)].values

    stopping = EarlyStopping.of(parameters, higher_is_better=measure.higher_is_better, patience=0)
    return cross_validated(
        folds,
        measure,
        stopping,
        train,
        values if by_query else None,
        note=lambda result: note_without_splits(result.forest),
    )


def train_fold(
    data: TrainingData,
    parameters: TrainParameters,
    options: TrainingOptions,
    fold: Fold,
    rounds: int | None,
    before: Forest | None,
    checkpoints: Checkpoints | None = None,
    measured: Mapping[str, npt.NDArray[np.bool_]] | None = None,
) -> TrainingResult:
    """Train without the queries of a fold, and measure on them.

    If ``before`` is given, training resumes from that forest until there are ``rounds``; only its new ones are
    reported.  Held-out queries that are also among those ``measured`` (n_queries,), by name, are measured under that
    name, too.
    """
    # all rounds of a fold are kept, so that longer trainings and measurements resume from them
    own = replace(resolved(data.train, parameters), rounds_by="valid", keep_rounds="all")
    parts = {name: fold.held_out & queries for name, queries in (measured or {}).items()}
    also = [(name, data.train.of_queries(part, row_major=True)) for name, part in parts.items() if part.any()]
    report, reported = options.on_round, 0 if before is None else before.n_rounds

    def report_new(record: RoundRecord) -> None:
        if report is not None and record.round_number > reported:
            report(record)

    return boost(
        _without(replace(data, info={}), fold.held_out, also),
        own,
        replace(options, resume=None if before is None else StartingModel(before), on_round=report_new),
        checkpoint=None if checkpoints is None else checkpoints.of(f"fold-{fold.number}"),
        rounds=rounds,
        fold=fold.number,
    )


def _refitted(
    first: TrainingResult,
    data: TrainingData,
    parameters: TrainParameters,
    options: TrainingOptions,
    checkpoints: Checkpoints | None,
) -> TrainingResult:
    """Return ``first`` with a forest that is trained on the first eval set as well."""
    rounds, pooled = first.best_round, with_first_eval_set(data)
    rows = pooled.train
    if options.on_message is not None:
        options.on_message(
            f"training again on {rows.n_rows:,} documents, those of the valid split included; {rounds:,} rounds"
        )
    now, before = {"rows": rows.n_rows, "queries": rows.n_queries}, None
    if options.resume is not None:
        before = options.resume.forest.info.get(REFIT)
    if isinstance(before, Mapping) and any(before[name] != value for name, value in now.items()):
        raise InvalidParameter(
            f"resume: the model was trained again on {before['rows']} documents of {before['queries']} queries, its "
            f"first eval set included, but now there are {rows.n_rows} of {rows.n_queries}; give the same eval set"
        )
    found = boost(
        pooled,
        replace(
            parameters, learn_from=resolved(data.train, parameters).learn_from
        ),  # as the first training resolved it
        replace(options, on_round=None),
        checkpoint=None if checkpoints is None else checkpoints.of("refit"),
        rounds=rounds,
    )
    facts = {**first.forest.info, REFIT: {**now, "rounds": rounds}}
    return replace(first, forest=replace(found.forest, parameters=first.forest.parameters, info=facts))


def with_first_eval_set(data: TrainingData) -> TrainingData:
    """Return ``data`` whose training rows are followed by those of its first eval set, and no eval sets."""
    train, (_, more) = data.train, data.eval_sets[0]
    if train.pairs is None:  # so there is no choice between grades and pairs
        more = replace(more, pairs=None)
    batches = chain(train.blocked(data.n_bins).batches(np.arange(train.n_rows)), [more.row_major(data.n_bins)])
    bins = BlockedBins.from_batches(batches, train.n_rows + more.n_rows, data.n_bins)
    return replace(data, train=train.followed_by(more, bins), eval_sets=())


def _without(
    data: TrainingData, queries: npt.NDArray[np.bool_], eval_sets: Sequence[tuple[str, RankedRows]] = ()
) -> TrainingData:
    """Return ``data`` without ``queries``, a mask (n_queries,).

    These become the first eval set, before ``eval_sets``.
    """
    held_out = data.train.of_queries(queries, row_major=True)
    return replace(data, train=data.train.of_queries(~queries), eval_sets=[(HOLDOUT, held_out), *eval_sets])
