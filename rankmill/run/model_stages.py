"""The stages train and evaluate: from the binned dataset to a registered version and its metrics."""

from __future__ import annotations

import json
import os
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from rankmill.foundation.cluster.workers import open_cluster
from rankmill.foundation.code_digest import OF_TRAINING
from rankmill.foundation.errors import UnknownModel
from rankmill.foundation.options import spelled, values_of
from rankmill.foundation.records import as_json, from_json, to_line
from rankmill.foundation.storage.publish import write_atomically
from rankmill.gate.learnt_from_clicks import CLICKS as CLICKS_LEARNT_FROM
from rankmill.gate.learnt_from_clicks import LearntFromClicks
from rankmill.registry.names import PRODUCTION
from rankmill.run import EVALUATION, TRAINING
from rankmill.run.stage import Inputs, Made, Say, Stage, as_options
from rankmill.run.stage_facts import EvaluateFacts, NaiveFacts, TrainFacts
from rankmill.scorer.evaluate.evaluate import evaluate
from rankmill.scorer.models.model_service import MODEL_SUFFIX, find_model, trained_model
from rankmill.trainer.candidates.blend_on_dataset import BlendCandidate
from rankmill.trainer.candidates.blending import check_unseen
from rankmill.trainer.derived_models_service import blend_and_register
from rankmill.trainer.nets.options import NET
from rankmill.trainer.nets.train_on_dataset import NetCandidate
from rankmill.trainer.options import CheckpointOptions
from rankmill.trainer.rounds.checkpoints import FinishedTrainings
from rankmill.trainer.training_options import StartingModel, TrainingOptions
from rankmill.trainer.training_service import (
    TrainedVersion,
    TrainingReport,
    starting_model,
    train_and_register,
    train_net_and_register,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from rankmill.pipeline.dataset.dataset import Dataset
    from rankmill.registry import Version
    from rankmill.run.stage import StageRecord
    from rankmill.run.work import Work
    from rankmill.trainer.candidates.multi_seed_training import CandidateRecord

MEASURED = "test"  # split to measure in addition to train and valid, with several seeds


class TrainStage(Stage):
    """The next version of ``[train] name`` in the registry.

    ``WORK/model`` has the training of each seed, and the result.
    """

    name, facts, code = "train", TrainFacts, OF_TRAINING

    @cached_property
    def base(self) -> StartingModel | None:
        """The base model: a file next to the configuration, or a model of the registry."""
        base = self.work.config.train.base_model
        if base is None:
            return None
        beside = self.work.one_path(base)
        if beside.is_file() or base.endswith(MODEL_SUFFIX):
            named = os.fspath(beside)
        else:  # not a file in the working directory
            named = base if "@" in base else f"{base}@{PRODUCTION}"
        return starting_model(named, self.work.registry.root, spelled("base_model"))

    def own_inputs(self) -> Inputs:
        config, dataset, clicks = self.work.config.train, self.work.dataset(), self._attached()
        config_of_blend = self.work.config.blend
        return {
            "dataset": dataset.digest,
            "bins": dataset.bin_set().binspec,
            **{name: data.decode() for name, data in clicks.items()},
            **({} if self.base is None else {"base model": self.base.sha256}),
            **({} if config_of_blend is None else {"blended with": json.dumps(self.others)}),
            **({} if config_of_blend is None else as_options(blend=config_of_blend)),
            **as_options(
                name=config.name, eval_metrics=config.machine.eval_metrics, seeds=config.seeds.seeds,
                choose=config.seeds.choose,
                **self._learnt(),
            ),
        }  # fmt: skip

    def _attached(self) -> dict[str, bytes]:
        """Return what the version says of the clicks that it is learnt from."""
        clicks, naive = self.work.facts.clicks, self.work.facts.naive
        if clicks is None:
            return {}
        found = LearntFromClicks(model=clicks.model, naive=None if naive is None else naive.model, judged=clicks.judged)
        return {CLICKS_LEARNT_FROM: found.to_bytes()}

    def _learnt(self) -> dict[str, Any]:
        """Return what is stored of the parameters of the training."""
        config = self.work.config.train
        if config.kind.model == NET:
            return {"model": NET, **values_of(config.kind.net_options(config.parameters))}
        return dict(config.parameters.stored())

    @cached_property
    def others(self) -> dict[str, str]:
        """The versions with which the trained model is blended, with their digests."""
        blend, store = self.work.config.blend, self.work.registry
        found = [] if blend is None else [store.resolve(model, bare=PRODUCTION) for model in blend.models]
        return {str(version): version.sha256 for version in found}

    def doing(self) -> str:
        blend = self.work.config.blend
        return self._trains() + ("" if blend is None else f", blended with {', '.join(blend.models)} as {blend.name}")

    def _trains(self) -> str:
        config = self.work.config.train
        if config.kind.model == NET:
            return f"{config.name}, a net"
        return config.name + (
            f", {config.seeds.choose} of seeds {', '.join(map(str, config.seeds.seeds))}" if config.seeds.seeds else ""
        )

    def run(self, say: Say) -> Made:
        config, dataset = self.work.config.train, self.work.dataset()
        path, root = self.work.path / TRAINING, self.work.registry.root
        if (blend := self.work.config.blend) is not None:  # before hours of training
            others = [trained_model(*find_model(name, root), root, name) for name in self.others]
            check_unseen(others, dataset, blend.options.split)
        trained = self.train(dataset, config.name, path.parent, say, self._attached())
        if trained.report.note is not None:
            say(f"note: {trained.report.note}")
        if trained.report.blend is not None:
            say(trained.report.blend.line())
        made = self._published(path, trained.version, trained.report, trained.candidate.record(), say)
        if isinstance(trained.candidate, NetCandidate | BlendCandidate):
            trained.candidate.clear()
        else:
            FinishedTrainings(path.parent).remove_others(trained.candidate.keys)
        return made

    def train(
        self, dataset: Dataset, name: str, folder: Path, say: Say, attached: Mapping[str, bytes] | None = None
    ) -> TrainedVersion[Any]:
        """Train by ``[train]`` and register the model as the next version of ``name``.

        ``folder`` keeps what can be resumed.
        """
        config = self.work.config.train
        if config.kind.model == NET:
            return train_net_and_register(
                dataset,
                name,
                self.work.registry,
                config.kind.net_options(config.parameters),
                CheckpointOptions(**values_of(config.machine), checkpoint=folder),
                on_message=say,
                reason="rankmill run",
                attached=attached,
            )
        several = len(config.seeds.seeds) > 1 and MEASURED in dataset.manifest.unseen
        options = TrainingOptions(
            **values_of(config.machine),
            base_model=self.base,
            checkpoint=folder,
            on_message=say,
        )
        seeds = replace(config.seeds, splits=(MEASURED,) if several else ())
        with ExitStack() as stack:
            if config.where.cluster is not None:
                options = replace(options, cluster=stack.enter_context(open_cluster(config.where.cluster, say)))
            return train_and_register(
                dataset,
                name,
                self.work.registry,
                config.parameters,
                options,
                seeds,
                reason="rankmill run",
                attached=attached,
            )

    def _published(
        self, path: Path, version: Version, report: TrainingReport, record: CandidateRecord, say: Say
    ) -> Made:
        """Blend the trained ``version`` if there is ``[blend]``, and write the record of the training."""
        blend, valid = self.work.config.blend, report.valid
        if blend is not None:
            models = [str(version), *self.others]
            done = blend_and_register(
                self.work.dataset(),
                models,
                blend.name,
                self.work.registry,
                blend.options,
                reason="rankmill run",
                attached=self._attached(),
            )
            version = self.work.registry.resolve(done.model, bare="latest")
            say(done.render())
            valid = {done.metric: done.together}
        text = json.dumps({"model": str(version), **as_json(record)}, sort_keys=True, allow_nan=False)
        write_atomically(path, f"{text}\n".encode())
        return Made(
            facts=TrainFacts(
                model=str(version),
                sha256=version.sha256,
                trees=report.trees,
                rounds=report.rounds,
                train=report.train,
                valid=valid,
            ),
            files=(path,),
        )

    def fault(self, record: StageRecord) -> str | None:
        return version_fault(self.work, record.facts) or super().fault(record)


def version_fault(work: Work, facts: TrainFacts | NaiveFacts) -> str | None:
    """Describe why the version of ``facts`` cannot be used any more; None if it can."""
    try:
        version = work.registry.resolve(facts.model, bare="latest")
    except UnknownModel:
        return f"{facts.model} is not in the registry"
    if version.swept_in is not None:
        return f"the file of {facts.model} was swept"
    return None if version.sha256 == facts.sha256 else f"{facts.model} is another model"


class EvaluateStage(Stage):
    """``WORK/evaluation.json``."""

    name, facts, code = "evaluate", EvaluateFacts, ("rankmill.pipeline", "rankmill.scorer")

    def skip_reason(self) -> str | None:
        return None if self.work.split is not None else "all queries were used in training"

    def own_inputs(self) -> Inputs:
        config = self.work.config.evaluate
        return {
            "dataset": self.work.dataset().digest,
            "model": self._model,
            **as_options(split=self.work.split, metrics=config.metrics, **config.conventions),
        }

    @property
    def _model(self) -> str:
        return f"{self.work.candidate} {self.work.candidate.sha256}"

    def doing(self) -> str:
        return f"{self.work.candidate} on {self.work.split}"

    def run(self, say: Say) -> Made:
        config, candidate = self.work.config.evaluate, self.work.candidate
        found = evaluate(
            self.work.dataset_path,
            model=self.work.model_of(candidate),
            split=self.work.split,
            metrics=config.metrics,
            **config.conventions,
        )
        path = self.work.path / EVALUATION
        facts = from_json(EvaluateFacts, {"split": self.work.split, **as_json(found.record())}, str(path))
        model = {"version": str(candidate), "sha256": candidate.sha256}
        write_atomically(path, f"{to_line({'model': model, **as_json(facts)})}\n".encode())
        return Made(facts=facts, files=(path,))
