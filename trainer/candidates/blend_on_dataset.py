"""Train the blend of the preset ``auto-2`` on a dataset.

It reads the values, keeps checkpoints, and collects the facts of the version.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil

from rankmill.foundation.code_digest import OF_TRAINING, code_digest
from rankmill.foundation.records import canonical_json, from_json
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.scorer.evaluate.train_test_overlap import splits_trained_on
from rankmill.scorer.metrics.per_query import mean_of
from rankmill.scorer.models.loading import Blend
from rankmill.trainer.candidates.blend_of_kinds import (
    FOLDS,
    LAYERS,
    BlendOfKinds,
    blend_of_kinds,
    first_trees,
    net_options,
)
from rankmill.trainer.candidates.multi_seed_training import CandidateRecord, SeedRecord
from rankmill.trainer.candidates.train_on_dataset import TrainingPlan, data_of
from rankmill.trainer.candidates.version_facts import attachments_of, dataset_facts, intervals_of, without_nan
from rankmill.trainer.nets.options import NetOptions
from rankmill.trainer.nets.plan import plan_net
from rankmill.trainer.nets.train_on_dataset import split_for_net
from rankmill.trainer.options import CheckpointOptions, SeedOptions
from rankmill.trainer.parameters import ALL, NONE, TrainParameters
from rankmill.trainer.presets import choices_line, shape_of_dataset, why_trees_alone
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


def plan_of_blend(
    dataset: Dataset, given: TrainParameters, options: TrainingOptions, plan: TrainingPlan
) -> TrainingPlan:
    """Return ``plan``, of trees alone, as that of the blend: its rounds, how its kinds are judged, and its memory.

    Measured, the peak of the process grows by this within 25 %, beside 50 MB of libraries and kernels (as for trees).
    """
    trees, folded = first_trees(given, shape_of_dataset(dataset))
    again = plan.valid_rows if trees.refit == ALL else 0
    rows = plan.train_rows + again
    alone, share = replace(trees, refit=NONE), rows / plan.train_rows
    last = replace(
        plan,
        parameters=alone,
        train_rows=rows,
        valid_rows=0,
        column_bytes=ceil(plan.column_bytes * share),
        objective_bytes=ceil(plan.objective_bytes * share),
    )
    judging = replace(last, parameters=replace(alone, members=1, rounds_by="cv")) if folded else plan
    net = replace(
        plan_net(dataset, net_options(trees), CheckpointOptions(n_threads=options.n_threads), FOLDS * folded),
        train_rows=rows, keeps_nets=folded,
    )  # fmt: skip
    a_row = 4 * plan.n_features
    held = a_row * (plan.train_rows + plan.valid_rows + again + plan.train_rows * bool(again))
    held += last.bin_bytes * bool(again)
    most = max(last.bytes_needed, judging.bytes_needed, net.bytes_needed - a_row * rows)
    folds = f"{FOLDS} folds of the {'train and valid splits' if again else 'train split'}"
    then = "both splits" if again else "all of it" if folded else ""
    return replace(
        plan,
        parameters=trees,
        choices=choices_line(given, trees, ""),
        blend=f"trees, ranking trees and a net of {' and '.join(map(str, LAYERS))} outputs, each judged by "
        f"{folds if folded else 'the valid split'}{f', then trained on {then}' * bool(then)}, and blended",
        blend_bytes=held + most,
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
    data, shape = data_of(dataset, plan.parameters, options, plan.columns), shape_of_dataset(dataset)
    nothing = NetOptions()
    values = split_for_net(dataset, "train", nothing).train.values
    valid = split_for_net(dataset, "valid", nothing).train.values if data.eval_sets else None
    found = blend_of_kinds(data, values, valid, given, options, checkpoints, shape)
    blend, judged = found.model, "cv" if found.cross_validation is not None else "valid"
    refit = blend.info.get(REFIT)
    metrics = without_nan({name: mean_of(each.values) for name, each in found.by_query.items()})
    facts = TrainingFacts(
        features=blend.feature_names,
        dataset_digest=dataset.digest,
        dataset=dataset_facts(dataset),
        binspec_digest=dataset.bin_set().binspec,
        parameters=blend.parameters,
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
