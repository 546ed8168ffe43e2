"""One training as users ask for it: on all rows or less some that are kept apart, after a cross-validation or not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from rankmill.foundation.errors import TrainingDataRejected
from rankmill.trainer.boosting import BoostOptions, boost
from rankmill.trainer.cross_validation import cross_validate
from rankmill.trainer.history import HOLDOUT, TrainingResult
from rankmill.trainer.parameters import TrainParameters
from rankmill.trainer.rows import RankedRows
from rankmill.trainer.sampling import queries_apart


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
