"""Train the model to register: with one or several seeds, choose one or average them, and collect its metadata.

What a run or a command calls, in this order::

    options = TrainingOptions(checkpoint=work / "model")
    seeds = SeedOptions(seeds=(1, 2, 3), choose="average")
    plan = plan_candidate(dataset, parameters, options, seeds)  # raises early what can be checked early
    candidate = train_candidate(dataset, parameters, options, seeds, plan)
    version = registry.register(
        name, candidate.forest.to_bytes(), manifest=as_json(candidate.facts), attachments=candidate.attachments
    )
    as_json(candidate.record())  # content of work/model/training.json: plain values, no times and no paths

This module does not use a registry (:mod:`rankmill.trainer.training_service` does).  With ``checkpoint`` every finished
training is kept there under its key, and a killed one resumes from its last checkpoint: calling again with the same
arguments returns the same bytes and facts, for less work.
:meth:`rankmill.trainer.rounds.checkpoints.FinishedTrainings.remove_others` deletes what earlier calls kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from rankmill.foundation.errors import InvalidParameter
from rankmill.foundation.options import spelled
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.scorer.evaluate.train_test_overlap import splits_trained_on
from rankmill.scorer.forest.forest import Forest
from rankmill.trainer.candidates import train_on_dataset as training
from rankmill.trainer.candidates.combined_forests import BaseModel, after_base, average
from rankmill.trainer.candidates.train_on_dataset import TrainingPlan, plan_of
from rankmill.trainer.candidates.version_facts import (
    Intervals,
    attachments_of,
    facts_of,
    facts_of_forest,
    intervals_of,
    metrics_of,
    without_nan,
)
from rankmill.trainer.clicks.naive_beside import click_facts, naive_of
from rankmill.trainer.cluster.train_on_cluster import train_on_cluster
from rankmill.trainer.data.measured_queries import check_decides
from rankmill.trainer.data.rows import RankedRows
from rankmill.trainer.data.training_rows import read_columns
from rankmill.trainer.options import SeedOptions
from rankmill.trainer.parameters import NONE, TrainParameters
from rankmill.trainer.rounds.checkpoints import Checkpoints, FinishedTrainings, training_key
from rankmill.trainer.rounds.early_stopping import stop_measure
from rankmill.trainer.rounds.round_metrics import measure
from rankmill.trainer.rounds.training_result import TRAIN, Curves, RoundRecord, TrainingResult
from rankmill.trainer.training_facts import (
    ClickFacts,
    Metrics,
    NoiseFloor,
    SeedFacts,
    SeedsFacts,
    Spread,
    TrainingFacts,
)
from rankmill.trainer.training_options import DEFAULT_OPTIONS, OnRound, TrainingOptions

VALID = "valid"
ONE_SEED = SeedOptions()


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedRecord(SeedFacts):
    """The facts of one seed's training, its key and its curves."""

    key: str
    curves: Curves


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateRecord:
    """How a candidate was trained: each seed with its curves, the choice, and the noise floor."""

    sha256: str
    choose: str
    chosen: int | None  # None: the average
    stop_metric: str
    seeds: tuple[SeedRecord, ...]
    noise_floor: NoiseFloor


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedTraining:
    """The finished training of one seed."""

    seed: int
    key: str  # of the kept training
    result: TrainingResult = field(repr=False)
    metrics: Metrics  # of its best round, by split; and of the extra splits

    def facts(self) -> SeedFacts:
        """Return its part of the manifest."""
        return SeedFacts(
            seed=self.seed,
            sha256=self.result.forest.sha256,
            best_round=self.result.best_round,
            rounds_trained=len(self.result.history),
            metrics=self.metrics,
        )

    def record(self) -> SeedRecord:
        """Return its facts, its key and its curves."""
        facts = self.facts()
        return SeedRecord(
            seed=facts.seed, sha256=facts.sha256, best_round=facts.best_round, rounds_trained=facts.rounds_trained,
            metrics=facts.metrics, key=self.key, curves=Curves.of(self.result.history),
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Candidate:
    """What :func:`train_candidate` returns; register ``forest``, ``facts`` and ``attachments``."""

    forest: Forest
    facts: TrainingFacts
    """The manifest of the version."""
    attachments: Mapping[str, bytes]
    seeds: tuple[SeedTraining, ...]
    """In ascending order of the seeds."""
    choose: str
    chosen: int | None
    """The seed whose forest was chosen; None: the average of all."""
    noise_floor: NoiseFloor | None
    """None if there is only one seed."""
    plan: TrainingPlan

    @property
    def trainings(self) -> tuple[SeedTraining, ...]:
        """The trainings whose trees are in the forest."""
        return tuple(each for each in self.seeds if self.chosen in {None, each.seed})

    @property
    def result(self) -> TrainingResult:
        """The chosen training; for an average, that of the first seed."""
        return self.trainings[0].result

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys of the kept trainings."""
        return tuple(each.key for each in self.seeds)

    def record(self) -> CandidateRecord:
        """Return the record of how it was trained."""
        return CandidateRecord(
            sha256=self.forest.sha256,
            choose=self.choose,
            chosen=self.chosen,
            stop_metric=str(stop_measure(self.plan.parameters, graded=self.plan.graded)),
            seeds=tuple(each.record() for each in self.seeds),
            noise_floor=self.noise_floor or {},
        )


def plan_candidate(
    dataset: Dataset,
    parameters: TrainParameters,
    options: TrainingOptions = DEFAULT_OPTIONS,
    seeds: SeedOptions = ONE_SEED,
) -> TrainingPlan:
    """Return the plan of :func:`train_candidate`, or raise its errors. The arguments are the same."""
    numbers = seeds.seeds or (parameters.seed,)
    if options.resume is not None and len(numbers) > 1:
        raise InvalidParameter(
            "resume: only one seed can be resumed; leave seeds out, or train all seeds without resume"
        )
    for split in seeds.splits:
        dataset.queries(split)  # raises for an unknown split
    plan = plan_of(dataset, replace(parameters, seed=numbers[0]), options)
    if len(numbers) == 1:
        return plan
    if seeds.choose == "average" and plan.link != "identity":
        raise InvalidParameter(
            f"{spelled('choose')}: scores of this objective come from probabilities, which cannot be averaged over "
            "seeds; set it to best"
        )
    if seeds.choose == "best":
        if not plan.valid_rows:
            raise InvalidParameter(
                f"{spelled('choose')}: the best of several seeds is chosen on the valid split, but there is none; "
                "ingest a valid split, or set it to average"
            )
        valid, stop_metric = (
            read_columns(dataset, VALID, plan.parameters),
            stop_measure(plan.parameters, graded=plan.graded),
        )
        check_decides(valid, stop_metric, plan.parameters, {"": dataset.max_grade, **dataset.goals}, VALID)
    return plan


def train_candidate(
    dataset: Dataset,
    parameters: TrainParameters,
    options: TrainingOptions = DEFAULT_OPTIONS,
    seeds: SeedOptions = ONE_SEED,
    plan: TrainingPlan | None = None,
) -> Candidate:
    """Train with every seed, one after another, and choose or average.

    The forest, the facts and the noise floor depend only on the dataset's rows and bins, the parameters, the set of
    seeds and the metrics. The order of the seeds, threads, checkpoints and earlier kills do not change them.  The
    chosen model has the bytes of a training with its seed alone.

    Parameters
    ----------
    dataset
        A binned dataset; its newest bins are used.
    parameters
        Of every training; ``seeds`` override their seed.
    options
        Of every training; ``on_round`` cannot end one.
    seeds
        The seeds, and whether to choose or to average.
    plan
        Result of :func:`plan_candidate` for the same arguments. Default: it is called here.

    Raises
    ------
    InvalidParameter
        A parameter or an option is out of bounds or does not fit the data.
    TrainingDataRejected
        The dataset cannot be trained on, or trainings cannot be compared because the valid split has no relevant
        document.
    """
    plan = plan or plan_candidate(dataset, parameters, options, seeds)
    numbers, parameters = seeds.seeds or (parameters.seed,), plan.parameters
    seeds = replace(seeds, splits=[split for split in dict.fromkeys(seeds.splits) if len(dataset.queries(split))])
    trainings = []
    for i, number in enumerate(numbers, 1):
        which = f"seed {number}, {i} of {len(numbers)}" if len(numbers) > 1 else None
        trainings.append(
            _trained(dataset, replace(parameters, seed=number), options, seeds.splits, which, plan.columns)
        )
    several = len(numbers) > 1
    chosen: int | None = None
    if seeds.choose == "average" and several:
        forest, facts = _averaged(dataset, replace(parameters, seed=numbers[0]), options, trainings, seeds.splits)
    else:
        best = trainings[_best(trainings, plan) if several else 0]
        chosen, forest = best.seed, best.result.forest
        facts = facts_of(dataset, best.result, options.base_model)
        facts = replace(facts, metrics=best.metrics) if seeds.splits else facts
    if (naive := naive_of(parameters)) is not None:
        corrected = next((each for each in trainings if each.seed == chosen), trainings[0])
        facts = replace(facts, clicks=_beside(dataset, corrected, parameters, naive, options))
    noise = None
    if several:
        noise = noise_floor([each.metrics for each in trainings])
        trained = tuple(each.facts() for each in trainings)
        facts = replace(facts, seeds=SeedsFacts(choose=seeds.choose, chosen=chosen, trained=trained, noise_floor=noise))
    return Candidate(
        forest=forest,
        facts=facts,
        attachments=attachments_of(dataset, options.resume, options.base_model, splits_trained_on(forest)),
        seeds=tuple(trainings),
        choose=seeds.choose,
        chosen=chosen,
        noise_floor=noise,
        plan=replace(plan, columns=None),
    )


def _trained(
    dataset: Dataset,
    parameters: TrainParameters,
    options: TrainingOptions,
    splits: Sequence[str],
    which: str | None,
    columns: RankedRows | None = None,
) -> SeedTraining:
    """Train with one seed, or return the kept training; ``which``: a line for people if there are several trainings."""
    base, say = options.base_model, options.on_message
    key = training_key(dataset, parameters, options.eval_metrics, None if base is None else base.sha256)
    kept = None if options.checkpoint is None else FinishedTrainings(options.checkpoint)
    found = None if kept is None else kept.read(key)
    if found is None:
        if say is not None and which is not None:
            say(which)
        checkpoints = None
        if options.checkpoint is not None:
            checkpoints = Checkpoints(options.checkpoint, key, options.checkpoint_every, say)
        options = replace(options, on_round=_listener(options))
        if options.cluster is None:
            found = training.train(dataset, parameters, options, checkpoints, columns)
        else:
            found = train_on_cluster(dataset, parameters, options, checkpoints, options.cluster, key)
        found = replace(found, intervals=intervals_of(found.by_query))
        if kept is not None and checkpoints is not None:
            kept.write(key, found)
            checkpoints.clear()
    elif say is not None:
        what = f"seed {parameters.seed}" if which is None else which.partition(", ")[0]
        say(f"{what} is already trained: {found.best_round:,} rounds, from the checkpoint in {options.checkpoint}")
    metrics = metrics_of(found)
    for split in splits:
        if split not in metrics:
            means, _ = measure(found.forest, dataset, split, parameters, options.eval_metrics, options.n_threads)
            metrics[split] = without_nan(means)
    return SeedTraining(seed=parameters.seed, key=key, result=found, metrics=metrics)


def _beside(
    dataset: Dataset,
    corrected: SeedTraining,
    parameters: TrainParameters,
    naive: TrainParameters,
    options: TrainingOptions,
) -> ClickFacts:
    """Train the naive model of a corrected one, unless that is switched off, and return the facts of both."""
    found = None
    if options.naive_beside:
        if options.on_message is not None:
            options.on_message("the same without the correction of clicks, to compare")
        own = replace(options, resume=None, on_round=None, checkpoint=None)
        found = _trained(dataset, replace(naive, seed=corrected.seed), own, (), None).result
    return click_facts(dataset, parameters, corrected.result, found)


def _listener(options: TrainingOptions) -> OnRound | None:
    """Return ``on_round`` without its answer: it cannot end a training, because a kept training must be complete."""
    listener = options.on_round
    if listener is None:
        return None

    def listen(record: RoundRecord) -> None:
        listener(record)

    return listen


def _best(trainings: Sequence[SeedTraining], plan: TrainingPlan) -> int:
    measured_by = stop_measure(plan.parameters, graded=plan.graded)
    values = [each.metrics.get(VALID, {}).get(str(measured_by), float("nan")) for each in trainings]
    return best_of(values, higher_is_better=measured_by.higher_is_better)


def best_of(values: Sequence[float], *, higher_is_better: bool) -> int:
    """Return the index of the best value, the first of equal ones; NaN is never better.

    >>> best_of([0.5, 0.7, 0.7], higher_is_better=True), best_of([float("nan"), 2.0, 1.0], higher_is_better=False)
    (1, 2)
    """
    sign = 1.0 if higher_is_better else -1.0
    return max(range(len(values)), key=lambda i: (values[i] == values[i], sign * values[i], -i))


def noise_floor(metrics: Sequence[Metrics]) -> NoiseFloor:
    """Return how much metrics vary between trainings that differ only in their seed.

    ``metrics`` are by split, for two or more seeds.  The training split and metrics that not all have are left out.
    """
    splits = {
        split: {
            metric: Spread.of([of_seed[split][metric] for of_seed in metrics])
            for metric in found
            if all(metric in of_seed.get(split, {}) for of_seed in metrics)
        }
        for split, found in metrics[0].items()
        if split != TRAIN
    }
    return {split: found for split, found in splits.items() if found}


def _averaged(
    dataset: Dataset,
    parameters: TrainParameters,
    options: TrainingOptions,
    trainings: Sequence[SeedTraining],
    splits: Sequence[str],
) -> tuple[Forest, TrainingFacts]:
    """Return the average of all seeds and its facts; it is measured again.

    ``parameters`` are those of the first seed.
    """
    base = None
    if options.base_model is not None:
        categorical = dataset.manifest.categorical
        base = BaseModel(options.base_model.forest, dataset.feature_names, categorical=categorical)
    info = {
        "seeds": [each.seed for each in trainings],
        "best_rounds": [each.result.best_round for each in trainings],
    }
    forest = average([after_base(each.result.forest, base) for each in trainings], info)
    if base is not None:
        forest = base.joined(forest)
    metrics: dict[str, dict[str, float]] = {}
    intervals: Intervals = {}
    for split in dict.fromkeys((TRAIN, *([VALID] if parameters.refit == NONE else []), *splits)):
        means, by_query = measure(forest, dataset, split, parameters, options.eval_metrics, options.n_threads)
        if found := without_nan(means):
            metrics[split] = found
            intervals = {**intervals, **intervals_of({split: by_query})}
    facts = facts_of_forest(dataset, forest, options.base_model)
    return forest, replace(facts, metrics=metrics, intervals=intervals)
