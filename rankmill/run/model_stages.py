"""The stages train and evaluate: from the binned dataset to a registered version and its metrics."""

from __future__ import annotations

import json
import os
from functools import cached_property
from typing import TYPE_CHECKING, Any

from rankmill.foundation.code_digest import OF_TRAINING
from rankmill.foundation.errors import UnknownModel
from rankmill.foundation.kernels.compiling import compilation_announced
from rankmill.foundation.records import as_json, from_json, to_line
from rankmill.foundation.storage.publish import write_atomically
from rankmill.registry.names import PRODUCTION
from rankmill.run import EVALUATION, TRAINING
from rankmill.run.events import Artefact
from rankmill.run.stage import Made, Say, Stage
from rankmill.run.stage_facts import EvaluateFacts, TrainFacts
from rankmill.run.stage_records import Inputs, as_options
from rankmill.run.work import version_artefact
from rankmill.scorer.evaluate import evaluate
from rankmill.scorer.model_service import MODEL_SUFFIX, find_model, queries_trained_on
from rankmill.trainer.candidate import Candidate, plan_candidate, train_candidate
from rankmill.trainer.checkpoints import KeptTrainings
from rankmill.trainer.model_facts import Origin
from rankmill.trainer.progress import progress_of

if TYPE_CHECKING:
    from rankmill.run.stage_records import Record

MEASURED = "test"  # besides train and valid, where there are several seeds


class Train(Stage):
    """The next version of ``[train] name`` in the registry; ``WORK/model`` keeps each seed's training, and what came of all."""

    name, facts, code = "train", TrainFacts, OF_TRAINING

    @cached_property
    def base(self) -> Origin | None:
        """The model to correct: a file beside the configuration, or one of the registry."""
        base = self.work.config.train.base_model
        if base is None:
            return None
        beside = self.work.folder / base
        if beside.is_file() or base.endswith(MODEL_SUFFIX):
            named = os.fspath(beside)
        else:  # whatever lies in the folder that the run was started from
            named = base if "@" in base else f"{base}@{PRODUCTION}"
        return Origin(*find_model(named, self.work.registry.root))

    def own_inputs(self) -> Inputs:
        config, dataset = self.work.config.train, self.work.dataset()
        return {
            "dataset": dataset.digest,
            "bins": dataset.bin_set().binspec,
            **({} if self.base is None else {"base model": self.base.identity.sha256}),
            **as_options(
                name=config.name, eval_metrics=config.eval_metrics, seeds=config.seeds, choose=config.choose,
                **config.parameters.as_dict(),
            ),
        }  # fmt: skip

    def doing(self) -> str:
        config = self.work.config.train
        return config.name + (f", {config.choose} of seeds {', '.join(map(str, config.seeds))}" if config.seeds else "")

    def reads(self) -> tuple[Artefact, ...]:
        return (self.work.dataset_artefact(),)

    def run(self, say: Say) -> Made:
        candidate = self._trained(say)
        forest = candidate.forest
        version = self.work.registry.register(
            self.work.config.train.name,
            forest.to_bytes(),
            manifest=candidate.facts,
            attachments=candidate.attachments,
            reason="rankmill run",
        )
        path = self.work.path / TRAINING
        text = json.dumps({"model": str(version), **candidate.training()}, sort_keys=True, allow_nan=False)
        write_atomically(path, f"{text}\n".encode())
        KeptTrainings(path.parent).remove_others(candidate.keys)
        metrics = candidate.facts["metrics"]
        return Made(
            facts=TrainFacts(
                model=str(version),
                sha256=version.sha256,
                trees=forest.n_trees,
                rounds=forest.n_rounds,
                train=metrics.get("train", {}),
                valid=metrics.get("valid", {}),
            ),
            files=(path,),
            artefacts=(version_artefact(version),),
        )

    def _trained(self, say: Say) -> Candidate:
        config, dataset = self.work.config.train, self.work.dataset()
        several = len(config.seeds) > 1 and MEASURED in dataset.manifest.unseen
        asked: dict[str, Any] = {
            "seeds": config.seeds,
            "choose": config.choose,
            "eval_metrics": config.eval_metrics,
            "splits": (MEASURED,) if several else (),
            "base": self.base,
            "pool_bytes": config.pool_bytes,
        }
        plan = plan_candidate(dataset, config.parameters, **asked)
        say(plan.render())
        self.work.registry.prepare()  # what cannot be registered is not to be trained for hours
        with compilation_announced(say), progress_of(config.parameters, config.seeds, say=say) as progress:
            return train_candidate(
                dataset,
                config.parameters,
                **asked,
                base_queries=None
                if self.base is None
                else queries_trained_on(self.base.identity, self.work.registry.root),
                folder=(self.work.path / TRAINING).parent,
                n_threads=config.n_threads,
                on_round=lambda seed, record: progress.update(record, seed),
                on_fold=lambda fold, record: progress.update(record, fold, "fold"),
                say=say,
                plan=plan,
            )

    def fault(self, record: Record) -> str | None:
        model = record.facts.model
        try:
            version = self.work.registry.resolve(model, bare="latest")
        except UnknownModel:
            return f"{model} is not in the registry"
        if version.swept_in is not None:
            return f"the bytes of {model} were swept"
        if version.sha256 != record.facts.sha256:
            return f"{model} is another model"
        return super().fault(record)


class Evaluate(Stage):
    """``WORK/evaluation.json``."""

    name, facts, code = "evaluate", EvaluateFacts, ("rankmill.pipeline", "rankmill.scorer")

    def skip_reason(self) -> str | None:
        return None if self.work.split is not None else "there are no queries that the training has not seen"

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

    def holds(self, record: Record) -> bool:  # not what another version was worth
        return record.inputs["model"] == self._model

    def doing(self) -> str:
        return f"{self.work.candidate} on {self.work.split}"

    def run(self, say: Say) -> Made:
        config, candidate = self.work.config.evaluate, self.work.candidate
        found = evaluate(
            self.work.dataset_path,
            model=self.work.forest_of(candidate),
            split=self.work.split,
            metrics=config.metrics,
            **config.conventions,
        )
        path = self.work.path / EVALUATION
        facts = from_json(EvaluateFacts, {"split": self.work.split, **found.to_dict()}, str(path))
        model = {"version": str(candidate), "sha256": candidate.sha256}
        write_atomically(path, f"{to_line({'model': model, **as_json(facts)})}\n".encode())
        return Made(facts=facts, files=(path,))
