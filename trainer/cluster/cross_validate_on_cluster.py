"""Cross-validate on a cluster: a fold is a task, which trains on all threads of its worker."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace

from rankmill.foundation.cluster.duty import stopper
from rankmill.foundation.cluster.workers import Cluster
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.trainer.candidates.train_on_dataset import data_of
from rankmill.trainer.cluster.shared_dataset import SharedDataset
from rankmill.trainer.cluster.train_on_cluster import for_workers
from rankmill.trainer.data.measured_queries import check_decides
from rankmill.trainer.data.training_rows import read_columns
from rankmill.trainer.parameters import TrainParameters
from rankmill.trainer.presets import shape_of_dataset, with_preset
from rankmill.trainer.rounds.cross_validation import Fold, cross_validated, folds_of, naming
from rankmill.trainer.rounds.early_stopping import EarlyStopping, stop_measure
from rankmill.trainer.rounds.train_on_rows import train_fold
from rankmill.trainer.rounds.training_result import (
    TRAIN,
    CrossValidation,
    RoundRecord,
    TrainingResult,
    note_without_splits,
)
from rankmill.trainer.training_options import TrainingOptions

_Asked = tuple[Fold, int | None, TrainingResult | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldTask:
    """Train without a fold.

    ``rounds`` and ``before`` are those of :func:`rankmill.trainer.rounds.train_on_rows.train_fold`.
    """

    dataset: SharedDataset
    parameters: TrainParameters
    options: TrainingOptions
    fold: int  # 1, 2, ..
    rounds: int | None
    before: TrainingResult | None


def cross_validate_on_cluster(
    dataset: Dataset, parameters: TrainParameters, options: TrainingOptions, cluster: Cluster
) -> CrossValidation:
    """Cross-validate on the workers of ``cluster``, with the same result as in one process.

    See :func:`rankmill.trainer.candidates.train_on_dataset.cross_validate`.

    They must see the dataset under the same path, and each holds all rows in memory.  ``options.on_round`` is called
    with the rounds of a fold when it is trained; ``options.n_threads`` is not used.

    Raises
    ------
    InvalidParameter
        There is a cache of bins; and as ``cross_validate``.
    TrainingDataRejected
        As ``cross_validate``.
    rankmill.foundation.errors.InputError, rankmill.foundation.errors.WorkerLost,
    rankmill.foundation.errors.ClusterUnavailable
        As :meth:`rankmill.foundation.cluster.workers.Cluster.run`.
    """
    parameters = with_preset(parameters, shape_of_dataset(dataset).in_folds())
    rows = read_columns(dataset, "train", parameters)
    measure = stop_measure(parameters, graded=rows.graded)
    check_decides(rows, measure, parameters, {"": dataset.max_grade, **dataset.goals}, TRAIN)
    shared = SharedDataset.of(dataset)

    def together(asked: Sequence[_Asked]) -> list[TrainingResult]:
        tasks = [
            FoldTask(
                dataset=shared,
                parameters=parameters,
                options=for_workers(options),
                fold=fold.number,
                rounds=rounds,
                before=before,
            )
            for fold, rounds, before in asked
        ]
        found: dict[int, TrainingResult] = {}
        with closing(cluster.run(_train_fold, tasks, dataset.path, resumes=False)) as results:
            for task, result in results:
                found[task.fold] = result
                reported = 0 if task.before is None else task.before.forest.n_rounds
                for record in result.history[reported:]:
                    if options.on_round is not None:
                        options.on_round(record)
        return [found[task.fold] for task in tasks]

    def alone(fold: Fold, rounds: int | None, before: TrainingResult | None) -> TrainingResult:
        return together([(fold, rounds, before)])[0]

    return cross_validated(
        folds_of(rows.query_names, parameters.folds, parameters.seed),
        measure,
        EarlyStopping.of(parameters, higher_is_better=measure.higher_is_better, patience=0),
        alone,
        note=lambda result: note_without_splits(result.forest),
        together=together,
    )


def _train_fold(task: FoldTask, threads: int) -> TrainingResult:
    """Train without a fold, or stop when its result is no longer needed."""
    stop_if_unwanted = stopper()

    def after_round(_: RoundRecord) -> None:
        stop_if_unwanted()

    parameters = task.parameters
    options = replace(task.options, n_threads=threads, on_round=after_round)
    data = data_of(task.dataset.opened(), parameters, options).blocked()
    fold = folds_of(data.train.query_names, parameters.folds, parameters.seed)[task.fold - 1]
    with naming(fold, parameters.folds):
        return train_fold(
            data, parameters, options, fold, task.rounds, None if task.before is None else task.before.forest
        )
