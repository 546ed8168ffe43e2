"""Train the blend of the preset ``auto-2`` on a dataset.

It reads the values, keeps checkpoints, and collects the facts of the version.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rankmill.foundation.code_digest import OF_TRAINING, code_digest
from rankmill.foundation.records import canonical_json, from_json
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.scorer.evaluate.train_test_overlap import splits_trained_on
from rankmill.scorer.metrics.per_query import mean_of
from rankmill.scorer.models.loading import Blend
from rankmill.trainer.candidates.blend_of_kinds import LAYERS, BlendOfKinds, blend_of_kinds
from rankmill.trainer.candidates.multi_seed_training import CandidateRecord, SeedRecord
from rankmill.trainer.candidates.train_on_dataset import TrainingPlan, data_of
from rankmill.trainer.candidates.version_facts import attachments_of, dataset_facts, intervals_of, without_nan
from rankmill.trainer.nets.options import NetOptions
from rankmill.trainer.nets.train_on_dataset import split_for_net
from rankmill.trainer.options import SeedOptions
from rankmill.trainer.parameters import TrainParameters
from rankmill.trainer.presets import why_trees_alone
from rankmill.trainer.rounds.checkpoints import Checkpoints, training_key
from rankmill.trainer.rounds.training_result import REFIT, Curves
from rankmill.trainer.training_facts import MergedModel, RefitFacts, TrainingFacts
from rankmill.trainer.training_options import TrainingOptions


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BlendCandidate:
    """What :func:`train_blend_on` returns; register ``blend``, ``facts`` and ``attachments``."""

    blend: Blend
    facts: TrainingFacts
    """The manifest of the version."""
    attachments: Mapping[str, bytes]
    found: BlendOfKinds
    seed: int
    checkpoints: Checkpoints | None

    def record(self) -> CandidateRecord:
        """Return the record of how it was trained, with the curves of the first kind of trees."""
        seed = SeedRecord(
            seed=self.seed, sha256=self.blend.sha256, best_round=self.found.best_round,
            rounds_trained=len(self.found.history), metrics=self.facts.metrics or {}, key="",
            curves=Curves.of(self.found.history),
        )  # fmt: skip
        return CandidateRecord(
            sha256=self.blend.sha256, choose="best", chosen=self.seed, stop_metric=self.found.facts.measured,
            seeds=(seed,),
            noise_floor={},
        )  # fmt: skip

    def clear(self) -> None:
        """Delete the checkpoints."""
        if self.checkpoints is not None:
            self.checkpoints.clear()


def why_trees_alone_on(given: TrainParameters, options: TrainingOptions, seeds: SeedOptions, plan: TrainingPlan) -> str:
    """Return why a training on a dataset with ``auto-2`` trains trees alone, in words; empty: it blends."""
    if options.resume is not None or options.base_model is not None:
        return "it starts from another model"
    if options.cluster is not None:
        return "a cluster trains"
    if len(seeds.seeds) > 1:
        return "there are several seeds"
    return why_trees_alone(given, plan.columns)


def plan_line(plan: TrainingPlan) -> str:
    """Return a line for people on what the blend needs beside the training of ``plan``."""
    values = 4 * plan.n_features * (2 * plan.train_rows + plan.valid_rows)  # with the inputs of the net
    return (
        f"then ranking trees, a net of {' and '.join(map(str, LAYERS))} outputs, and the blend of all three; about"
        f" {values / 1e6:,.0f} MB more for the values of the features"
    )


def train_blend_on(
    dataset: Dataset, given: TrainParameters, options: TrainingOptions, plan: TrainingPlan
) -> BlendCandidate:
    """Train the blend on the train split of ``dataset``.

    The valid split, or folds of both, decide the rounds and the weights.

    The blend depends only on the rows and bins of the dataset, and on ``given``.  With ``options.checkpoint`` a killed
    training resumes: calling again with the same arguments returns the same bytes.

    Errors are those of :func:`rankmill.trainer.candidates.blend_of_kinds.blend_of_kinds`.
    """
    checkpoints = None
    if options.checkpoint is not None:
        key = training_key(dataset, given, options.eval_metrics)
        checkpoints = Checkpoints(options.checkpoint, key, options.checkpoint_every, options.on_message)
    data = data_of(dataset, plan.parameters, options, plan.columns)
    nothing = NetOptions()
    values = split_for_net(dataset, "train", nothing).train.values
    valid = split_for_net(dataset, "valid", nothing).train.values if data.eval_sets else None
    found = blend_of_kinds(data, values, valid, given, options, checkpoints)
    blend, judged = found.model, "cv" if found.cross_validation is not None else "valid"
    refit = blend.info.get(REFIT)
    metrics = without_nan({name: mean_of(each.values) for name, each in found.by_query.items()})
    facts = TrainingFacts(
        features=blend.feature_names,
        dataset_digest=dataset.digest,
        dataset=dataset_facts(dataset),
        binspec_digest=dataset.bin_set().binspec,
        parameters=blend.parameters,
        changed_parameters=(),
        code_digest=code_digest(*OF_TRAINING),
        max_grade=dataset.max_grade,
        metrics={judged: metrics} if metrics else {},
        intervals=intervals_of({judged: found.by_query}),
        best_round=found.best_round,
        rounds_trained=len(found.history),
        refit=None if refit is None else from_json(RefitFacts, canonical_json(refit), REFIT),
        merged=tuple(
            MergedModel(sha256=part.sha256, weight=weight)
            for part, weight in zip(blend.parts, blend.weights.tolist(), strict=True)
        ),
    )
    return BlendCandidate(
        blend=blend, facts=facts, attachments=attachments_of(dataset, splits=splits_trained_on(blend)), found=found,
        seed=given.seed, checkpoints=checkpoints,
    )  # fmt: skip
