"""What a search varies: the options of trees or of a net, and how a trial of them is trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, ClassVar, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from rankmill.foundation.options import values_of
from rankmill.foundation.records import JSON, as_json
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.pipeline.dataset.goals import ALL_GOALS
from rankmill.trainer.candidates.train_on_dataset import cross_validate, plan_of, train
from rankmill.trainer.nets.cross_validating import cross_validate_net_on
from rankmill.trainer.nets.options import NET, NetOptions
from rankmill.trainer.nets.plan import plan_net
from rankmill.trainer.nets.train_on_dataset import data_of_net
from rankmill.trainer.nets.training import train_net
from rankmill.trainer.parameters import ALL, NONE, OLDEST, TrainParameters, options_for
from rankmill.trainer.rounds.checkpoints import Checkpoints
from rankmill.trainer.rounds.training_result import CrossValidation, QueryValues, RoundRecord, note_without_splits
from rankmill.trainer.team import workers_for
from rankmill.trainer.training_options import TrainingOptions
from rankmill.trainer.tuning.space import Space

_DECIDE_MEMORY = ("layers", "batch_documents", "embedding_width", "max_categories")  # options of nets


class Measured(NamedTuple):
    """What a trial measured on held-out queries."""

    best_round: int
    trained: int
    metrics: Mapping[str, float]
    by_query: npt.NDArray[np.float64] | None
    note: str = ""  # that no tree has a split


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchedTrees:
    """The complete parameters of trial 0 for trees; other trials vary them.

    Every trial has ``members`` of them side by side: 1, where the preset would average more.
    """

    options: TrainParameters
    members: int
    unit: ClassVar[str] = "round"

    @property
    def folds(self) -> int:
        """Number of folds of the trials that are compared by folds."""
        return self.options.folds

    @property
    def most_rounds(self) -> int:
        """Maximum number of rounds."""
        return self.options.n_rounds

    def with_valid(self, *, by_folds: bool) -> bool:
        """Whether folds have the queries of the valid split, too.

        This is so if the final model learns from them, by a refit.
        """
        return by_folds and self.options.refit == ALL

    def facts(self, dataset: Dataset) -> dict[str, JSON]:
        """Return what identifies the search: the bins, the parameters and the number of members."""
        return {"binspec": dataset.bin_set().binspec, "parameters": self.stored(), "members": self.members}

    def plan(self, dataset: Dataset, space: Space, machine: TrainingOptions, *, by_folds: bool) -> tuple[int, str]:  # noqa: ARG002
        """Return the bytes that a trial needs, and what it learns from in words; errors as :func:`plan_of`."""
        compared: dict[str, Any] = {"rounds_by": "cv", "keep_rounds": ""} if by_folds else {"refit": NONE}
        plan = plan_of(dataset, replace(self.options, members=self.members, **compared), machine)
        return plan.bytes_needed, plan.learnt_from

    def trained(
        self,
        dataset: Dataset,
        values: Mapping[str, Any],
        measure: str,
        machine: TrainingOptions,
        checkpoints: Checkpoints,
        *,
        by_folds: bool,
    ) -> Measured:
        """Train the forest, or that of each fold, with these ``values``. InvalidParameter if they are incompatible."""
        parameters = replace(self.options, **{"members": self.members, **values})
        if by_folds:
            with_valid = self.with_valid(by_folds=True)
            return _of_folds(
                cross_validate(dataset, parameters, machine, checkpoints, with_valid=with_valid, by_query=True)
            )
        result = train(dataset, replace(parameters, refit=NONE), machine, checkpoints)
        found = _of_valid(result.best_round, result.history, result.by_query["valid"].get(measure))
        return found._replace(note=note_without_splits(result.forest))

    def stored(self) -> dict[str, JSON]:
        """Return the parameters that a file names."""
        return self.options.stored()

    def section(self, values: Mapping[str, Any], rounds: int | None) -> dict[str, JSON]:
        """Return the section ``[train]`` with these ``values``.

        Only those are written that the training would not have by default.

        With ``rounds`` that folds have chosen, the valid split ends nothing.
        """
        parameters = {**self.options.as_dict(), **values}
        if rounds is not None:
            parameters |= {"n_rounds": rounds, "early_stopping_rounds": 0, "keep_rounds": ""}
        usual = f"{parameters['metric']}:{ALL_GOALS}" if parameters["goals"] else parameters["metric"]
        if parameters["stop_metric"] == usual:
            parameters["stop_metric"] = OLDEST.stop_metric
        needed = options_for(parameters).keys() | {"metric"}
        return {name: value for name, value in parameters.items() if name in needed}


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchedNet:
    """The same for nets; folds are of the train split."""

    options: NetOptions
    folds: int
    unit: ClassVar[str] = "epoch"

    def with_valid(self, *, by_folds: bool) -> bool:  # noqa: ARG002 - of trees
        """Return False: there is no refit."""
        return False

    @property
    def most_rounds(self) -> int:
        """Maximum number of epochs."""
        return self.options.epochs

    def facts(self, dataset: Dataset) -> dict[str, JSON]:  # noqa: ARG002 - of trees
        """Return the options, and the number of folds."""
        return {"model": NET, "parameters": self.stored(), "folds": self.folds}

    def plan(self, dataset: Dataset, space: Space, machine: TrainingOptions, *, by_folds: bool) -> tuple[int, str]:
        """As :func:`rankmill.trainer.nets.plan.plan_net`, for the largest net of the space."""
        ends = {name: space.parts[name].ends() for name in _DECIDE_MEMORY if name in space.parts}
        nets = [replace(self.options, **dict(zip(ends, values, strict=True))) for values in product(*ends.values())]
        plans = [plan_net(dataset, each, machine, self.folds if by_folds else 0) for each in nets]
        return max(plan.bytes_needed for plan in plans), "training nets"

    def trained(
        self,
        dataset: Dataset,
        values: Mapping[str, Any],
        measure: str,  # noqa: ARG002 - the stop metric
        machine: TrainingOptions,
        checkpoints: Checkpoints,  # noqa: ARG002 - a trial that was killed starts again
        *,
        by_folds: bool,
    ) -> Measured:
        """Train the net, or that of each fold."""
        options = replace(self.options, **values)
        if by_folds:
            return _of_folds(
                cross_validate_net_on(dataset, options, self.folds, machine, on_round=machine.on_round, by_query=True)
            )
        report = machine.on_round
        result = train_net(
            lambda: data_of_net(dataset, options, machine), options, eval_metrics=machine.eval_metrics,
            n_threads=workers_for(machine.n_threads), by_query=True,
            on_epoch=None if report is None else lambda record, _: report(record),
        )  # fmt: skip
        best = result.best_epoch
        return _of_valid(best, result.history, result.by_query[best - 1] if result.by_query else None)

    def stored(self) -> dict[str, JSON]:
        """Return all options."""
        found: dict[str, JSON] = as_json(values_of(self.options))
        return found

    def section(self, values: Mapping[str, Any], rounds: int | None) -> dict[str, JSON]:
        """Return those that are not the usual ones; with epochs of folds, the valid split ends nothing."""
        options = {**values_of(self.options), **values}
        if rounds is not None:
            options |= {"epochs": rounds, "early_stopping_epochs": 0}
        if options["stop_metric"] == options["metric"]:
            options["stop_metric"] = ""
        usual = values_of(NetOptions())
        chosen = {name: value for name, value in options.items() if name == "metric" or value != usual[name]}
        return {"model": NET, **as_json(chosen)}


Searched: TypeAlias = SearchedTrees | SearchedNet


def _of_folds(cv: CrossValidation) -> Measured:
    metrics = {measure: cv.mean(measure) for measure in cv.measures}
    return Measured(cv.best_round, len(cv.histories[0]), metrics, cv.by_query, cv.note)


def _of_valid(best: int, history: tuple[RoundRecord, ...], on_valid: QueryValues | None) -> Measured:
    """``on_valid``: the stop metric of the valid queries after the best round, if it has values of queries."""
    by_query = None if on_valid is None or on_valid.weights is not None else on_valid.values
    return Measured(best, len(history), history[best - 1].metrics["valid"], by_query)
