"""From the binned dataset to a registered version."""

from __future__ import annotations

import os
from functools import cached_property
from typing import TYPE_CHECKING

from rankmill.run.events import Artefact
from rankmill.run.records import CODE, Inputs, as_options
from rankmill.run.stage import Made, Say, Stage
from registry.errors import UnknownModel
from scorer.cli import find_model
from trainer.cli import train_and_register
from trainer.code_digest import code_digest

if TYPE_CHECKING:
    from rankmill.run.records import Record


class Train(Stage):
    """The next version of ``[train] name``, in the registry."""

    name = "train"

    @cached_property
    def base_model(self) -> str | None:
        """The model to correct: a file beside the configuration, or one of the registry."""
        base = self.work.config.train.base_model
        if base is not None and (self.work.folder / base).is_file():
            return os.fspath(self.work.folder / base)
        return base

    def inputs(self) -> Inputs:
        config = self.work.config.train
        base = None if self.base_model is None else find_model(self.base_model, self.work.registry.root)[1].sha256
        return {
            CODE: code_digest(),
            "dataset": self.work.dataset().digest,
            "bins": self.work.dataset().bin_set().binspec,
            **({} if base is None else {"base model": base}),
            **as_options(name=config.name, eval_metrics=config.eval_metrics, **config.parameters.as_dict()),
        }

    def doing(self) -> str:
        return self.work.config.train.name

    def reads(self) -> tuple[Artefact, ...]:
        dataset = self.work.dataset()
        return (Artefact(kind="dataset", name=self.work.named(dataset.path), digest=dataset.digest),)

    def run(self, say: Say) -> Made:
        config = self.work.config.train
        facts, _ = train_and_register(
            self.work.dataset_path,
            config.name,
            self.work.registry.root,
            config.parameters,
            eval_metrics=config.eval_metrics,
            base_model=self.base_model,
            n_threads=config.n_threads,
            pool_bytes=config.pool_bytes,
        )
        kept = ("model", "sha256", "trees", "rounds", "rounds_trained", "train", "valid")
        artefact = Artefact(kind="model", name=facts["model"], digest=facts["sha256"], facts={"bytes": facts["bytes"]})
        return Made(
            outputs={facts["model"]: facts["sha256"]},
            facts={name: facts[name] for name in kept if name in facts},
            artefacts=(artefact,),
        )

    def fault(self, record: Record) -> str | None:
        model = record.facts["model"]
        try:
            version = self.work.registry.resolve(model, bare="latest")
        except UnknownModel:
            return f"{model} is not in the registry"
        if version.swept_in is not None:
            return f"the bytes of {model} were swept"
        return None if version.sha256 == record.facts["sha256"] else f"{model} is another model"
