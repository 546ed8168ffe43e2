"""Cross-validate a training of a net: the folds of trees, each with inputs that are fitted to its own training part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.scorer.nets.net import Net
from rankmill.trainer.data.measured_queries import check_decides
from rankmill.trainer.nets.options import COSINE, NetOptions
from rankmill.trainer.nets.train_on_dataset import OnRound, data_of_net
from rankmill.trainer.nets.training import NetData, NetResult, train_net, with_pairs_chosen
from rankmill.trainer.options import MachineOptions
from rankmill.trainer.rounds.cross_validation import Fold, cross_validated, folds_of
from rankmill.trainer.rounds.early_stopping import EarlyStopping, stop_measure
from rankmill.trainer.rounds.training_result import TRAIN, CrossValidation, RoundRecord
from rankmill.trainer.team import workers_for


def cross_validate_net(
    data: NetData,
    options: NetOptions,
    folds: int,
    *,
    eval_metrics: Sequence[str] = (),
    n_threads: int = 1,
    on_round: OnRound | None = None,
    by_query: bool = False,
    keep_nets: bool = False,
) -> CrossValidation:
    """Train a net without the queries of each fold of ``data.train`` in turn, and measure it on them.

    The valid split is not used.

    Each fold stops early by its own held-out queries; then all are trained for as many epochs as the longest, from
    where they stopped.  With the schedule ``cosine``, where fewer epochs are another training, no fold stops early, and
    the last epoch counts.  Queries go to folds as for trees
    (:func:`rankmill.trainer.rounds.train_on_rows.cross_validate_rows`).  ``by_query``: also return the stop metric of
    each query; ``keep_nets``: also the net of every epoch, which memory then holds.

    Errors are those of :func:`rankmill.trainer.rounds.cross_validation.folds_of` and
    :func:`rankmill.trainer.nets.training.train_net`.
    """
    data, last = with_pairs_chosen(data, options), options.schedule == COSINE
    rows = data.train.rows
    measure = stop_measure(options.losses(), graded=rows.graded)
    check_decides(rows, measure, options.losses(), {"": data.max_grade, **data.goals}, TRAIN)
    of_epochs: dict[int, list[npt.NDArray[np.float64]]] = {}
    nets: dict[int, list[Net]] = {}

    def train(fold: Fold, epochs: int | None, before: NetResult | None) -> NetResult:
        def after(record: RoundRecord, _: Callable[[], bytes]) -> bool:
            if on_round is not None:
                on_round(replace(record, fold=fold.number))
            return record.round_number == epochs

        result = train_net(
            lambda: data.without_queries(fold.held_out),
            options if epochs is None and not last else replace(options, early_stopping_epochs=0),
            eval_metrics=eval_metrics,
            n_threads=n_threads,
            on_epoch=after,
            resume=None if before is None else before.checkpoint,
            by_query=by_query,
            keep_nets=keep_nets,
        )
        nets.setdefault(fold.number, []).extend(result.nets)
        of_epochs.setdefault(fold.number, []).extend(each.values for each in result.by_query)
        return result

    def values(fold: Fold, epochs: int, _: NetResult) -> npt.NDArray[np.float64]:
        return of_epochs[fold.number][epochs - 1]

    found = cross_validated(
        folds_of(rows.query_names, folds, options.seed),
        measure,
        EarlyStopping(patience=0, higher_is_better=measure.higher_is_better),
        train,
        values if by_query else None,
        unit="epoch",
        only_last=last,
    )
    return replace(found, nets=nets) if keep_nets else found


def cross_validate_net_on(
    dataset: Dataset,
    options: NetOptions,
    folds: int,
    machine: MachineOptions,
    *,
    on_round: OnRound | None = None,
    by_query: bool = False,
) -> CrossValidation:
    """Cross-validate on the train split of a dataset: see :func:`cross_validate_net`."""
    return cross_validate_net(
        data_of_net(dataset, options, machine, with_valid=False), options, folds, eval_metrics=machine.eval_metrics,
        n_threads=workers_for(machine.n_threads), on_round=on_round, by_query=by_query,
    )  # fmt: skip
