"""Distill a model: fit trees to the scores of a teacher, another model of any kind, so that scoring is quicker.

The labels of all documents of the train and valid splits are the teacher's scores, so grades are not needed to learn; where
there are some, they decide when to stop and say what was lost.  With ``query_rmse``, the default, only differences within a query are learnt,
which is all that a ranking depends on (Hinton, Vinyals & Dean 2015 for the idea; Cohen et al. 2018 for trees and nets of rankers).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from rankmill.foundation.errors import InvalidParameter
from rankmill.foundation.options import spelled
from rankmill.foundation.terminal import text_table
from rankmill.pipeline.dataset import Dataset
from rankmill.scorer.metrics import parse_metric
from rankmill.scorer.metrics.conventions import OURS, named_convention
from rankmill.scorer.metrics.per_query import PreparedQueries, mean_of
from rankmill.scorer.model import DATASETS_OF_BASE, Model
from rankmill.scorer.models import parts_of, predictor_of
from rankmill.trainer.blending import scores_on
from rankmill.trainer.combined_forests import datasets_of
from rankmill.trainer.objectives.registry import learns_labels
from rankmill.trainer.parameters import TrainParameters
from rankmill.trainer.presets import shape_of_dataset, with_preset
from rankmill.trainer.train_on_dataset import data_of
from rankmill.trainer.train_on_rows import fit
from rankmill.trainer.training_options import TrainingOptions
from rankmill.trainer.training_result import TrainingResult
from rankmill.trainer.workers import workers_for

QUERY_RMSE = "query_rmse"
TEACHER = "teacher"  # key of a forest's info: the digest of the model whose scores it learnt
TIMED_ROWS = 20_000
_REPEATS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class CostAndGain:
    """How a model does on some queries, and what a document costs."""

    value: float | None  # of the metric; None: no query counts
    comparisons: int
    microseconds: float  # for a document, on one thread of this machine


@dataclass(frozen=True, slots=True, kw_only=True)
class DistillingLoss:
    """What is lost and won by distilling, on a split that the student was not trained on."""

    metric: str
    split: str
    teacher: CostAndGain
    student: CostAndGain
    agreement: float
    """Share of the pairs of documents of a query that both put in the same order; ties are half."""

    def lines(self) -> list[str]:
        """Return a table for people."""
        rows = [
            [
                name,
                "" if each.value is None else f"{each.value:.4f}",
                f"{each.comparisons:,}",
                f"{each.microseconds:.3g}",
            ]
            for name, each in (("teacher", self.teacher), ("student", self.student))
        ]
        table = text_table(["", f"{self.split} {self.metric}", "comparisons", "us a document"], rows)
        return [
            *table.splitlines(),
            f"{self.agreement:.1%} of the pairs of documents are in the same order;"
            f" {self.teacher.microseconds / self.student.microseconds:.3g} times as fast",
        ]


def check_objective(parameters: TrainParameters) -> TrainParameters:
    """Return the parameters with an objective that learns scores: ``query_rmse`` if none is given.

    Raises
    ------
    InvalidParameter
        The given objective learns from grades only, or goals are given.
    """
    if parameters.goals:
        raise InvalidParameter(f"{spelled('goals')}: a teacher has one score; train it with goals instead")
    if parameters.objective is None:
        return replace(parameters, objective=QUERY_RMSE)
    if not learns_labels(parameters.objective):
        raise InvalidParameter(
            f"{spelled('objective')} {parameters.objective} learns from grades, not from scores; use query_rmse or l2"
        )
    return parameters


def distill(dataset: Dataset, teacher: Model, parameters: TrainParameters, options: TrainingOptions) -> TrainingResult:
    """Train a forest on ``dataset`` whose labels are the scores of ``teacher``; the valid split decides the rounds.

    Raises
    ------
    InvalidParameter, TrainingDataRejected
        As :func:`rankmill.trainer.train_on_dataset.train`; or the objective does not learn scores.
    rankmill.foundation.errors.CandidatesRejected
        The dataset lacks a feature of the teacher.
    """
    if options.resume is not None or options.base_model is not None:
        raise InvalidParameter("a distillation starts anew; leave resume and base_model out")
    parameters = with_preset(check_objective(parameters), shape_of_dataset(dataset))
    data = data_of(dataset, parameters, options)
    threads = workers_for(options.n_threads)

    def scores(split: str) -> npt.NDArray[np.float64]:
        return scores_on(dataset, split, [teacher], threads)[0]

    eval_sets = [(name, replace(rows, labels=scores(name))) for name, rows in data.eval_sets]
    seen = {digest for part in parts_of(teacher) for digest in datasets_of(part)} - {dataset.digest}
    info = {**data.info, TEACHER: teacher.sha256, **({DATASETS_OF_BASE: sorted(seen)} if seen else {})}
    train = replace(data.train, labels=scores("train"))
    return fit(replace(data, train=train, eval_sets=eval_sets, info=info), parameters, options)


def loss_of(
    dataset: Dataset, teacher: Model, student: Model, split: str, metric: str, n_threads: int = 1
) -> DistillingLoss:
    """Compare both on ``split``: the metric by its grades, the cost of a document, and how often they agree."""
    measure = parse_metric(metric)
    policy = named_convention(OURS).but(max_grade=max(1, dataset.max_grade)).policy_for(measure)
    starts = dataset.queries(split).starts
    grades = dataset.rows(split, ("grade",)).column(0).to_numpy().astype(np.int32)
    queries = PreparedQueries(grades, starts, policy)
    found = scores_on(dataset, split, [teacher, student], n_threads)
    counted = not queries.nothing_relevant(measure).all()
    some = np.concatenate([*_first(dataset, split)])

    def ranked(model: Model, scores: npt.NDArray[np.float64]) -> CostAndGain:
        return CostAndGain(
            value=mean_of(queries.evaluate([measure], scores)[measure]) if counted else None,
            comparisons=predictor_of(model).comparisons,
            microseconds=_microseconds(model, dataset.feature_names, some),
        )

    return DistillingLoss(
        metric=metric, split=split, teacher=ranked(teacher, found[0]), student=ranked(student, found[1]),
        agreement=agreement(found[0], found[1], starts),
    )  # fmt: skip


def agreement(one: npt.NDArray[np.float64], other: npt.NDArray[np.float64], starts: npt.NDArray[np.int64]) -> float:
    """Return the share of the pairs of documents of a query that both scores put in the same order; a tie in one is half.

    >>> agreement(np.array([3.0, 2.0, 1.0]), np.array([3.0, 1.0, 2.0]), np.array([0, 3]))
    0.6666666666666666
    """
    agreed = pairs = 0.0
    for first, last in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
        upper = np.triu_indices(last - first, 1)
        signs = [np.sign(np.subtract.outer(s[first:last], s[first:last])[upper]) for s in (one, other)]
        agreed += float(((1.0 + signs[0] * signs[1] + (signs[0] == signs[1]) * (signs[0] == 0)) / 2.0).sum())
        pairs += len(upper[0])
    return agreed / pairs if pairs else 1.0


def _first(dataset: Dataset, split: str) -> Sequence[npt.NDArray[np.float32]]:
    """Return the features of the first ``TIMED_ROWS`` rows."""
    found: list[npt.NDArray[np.float32]] = []
    for batch in dataset.feature_batches(split):
        found.append(batch[: TIMED_ROWS - sum(map(len, found))])
        if sum(map(len, found)) >= TIMED_ROWS:
            break
    return found


def _microseconds(model: Model, names: Sequence[str], values: npt.NDArray[np.float32]) -> float:
    predictor = predictor_of(model)
    columns = [list(names).index(name) for name in predictor.feature_names]
    predictor.scores(values[:1], columns=columns)
    seconds = []
    for _ in range(_REPEATS):
        begin = time.perf_counter()
        predictor.scores(values, columns=columns)
        seconds.append(time.perf_counter() - begin)
    return 1e6 * min(seconds) / len(values)
