"""The model that is to be registered: trained with a seed or several, chosen or averaged, with all that is to be said of it.

What a run or a command calls, in this order::

    plan = plan_candidate(dataset, parameters, seeds=(1, 2, 3), choose="average")  # refuses what can be refused, at once
    candidate = train_candidate(dataset, parameters, seeds=(1, 2, 3), choose="average", folder=work / "model", plan=plan)
    version = registry.register(
        name, candidate.forest.to_bytes(), manifest=candidate.facts, attachments=candidate.attachments
    )
    candidate.training()  # what work/model/training.json may hold: plain values, no clocks and no paths

Nothing here knows a registry.  With ``folder`` every training that is done is kept there under its key, and one that is killed
goes on from its last checkpoint: calling again with the same arguments returns the same bytes and facts, for less work.
:meth:`rankmill.trainer.checkpoints.KeptTrainings.remove_others` lets go of what former calls have kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import fsum, sqrt
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from rankmill.foundation.errors import InvalidParameter, TrainingDataRejected
from rankmill.foundation.scalars import whole_number
from rankmill.pipeline.dataset import Dataset
from rankmill.pipeline.group.sketch import QuerySketch
from rankmill.scorer.forest import Forest
from rankmill.trainer import training
from rankmill.trainer.checkpoints import EVERY, Checkpoints, KeptTrainings, Trained, training_key
from rankmill.trainer.combined_forests import BaseModel, after_base, average
from rankmill.trainer.early_stopping import stop_measure
from rankmill.trainer.fitting import OnFold
from rankmill.trainer.growing.histogram import DEFAULT_POOL_BYTES
from rankmill.trainer.history import TRAIN, RoundRecord, TrainingResult
from rankmill.trainer.model_facts import (
    Facts,
    Origin,
    attachments_of,
    facts_of,
    facts_of_forest,
    intervals_of,
    metrics_of,
)
from rankmill.trainer.parameters import TrainParameters
from rankmill.trainer.round_metrics import measure
from rankmill.trainer.training import TrainingPlan, plan_of

VALID = "valid"

OnSeed = Callable[[int, RoundRecord], object]  # the seed, and what its last round measured


@dataclass(frozen=True, slots=True, kw_only=True)
class OfSeed:
    """What one of the seeds has come to."""

    seed: int
    key: str  # under which the training is kept
    sha256: str
    result: TrainingResult = field(repr=False)
    metrics: Mapping[str, Mapping[str, float]]  # of its best round, by split; and those of the splits measured besides

    def to_dict(self) -> dict[str, Any]:
        """Return what the manifest says of it."""
        return {
            "seed": self.seed,
            "sha256": self.sha256,
            "best_round": self.result.best_round,
            "rounds_trained": len(self.result.history),
            "metrics": self.metrics,
        }


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Candidate:
    """What :func:`train_candidate` returns; register ``forest``, ``facts`` and ``attachments``."""

    forest: Forest
    facts: Facts
    """The manifest of the version."""
    attachments: Mapping[str, bytes]
    seeds: tuple[OfSeed, ...]
    """In ascending order of the seeds."""
    choose: str
    chosen: int | None
    """The seed whose forest it is; None: the average of all."""
    noise_floor: NoiseFloor | None
    """None where there is one seed."""
    plan: TrainingPlan

    @property
    def result(self) -> TrainingResult:
        """The training whose forest it is; of an average, that of the first seed."""
        return next(each.result for each in self.seeds if self.chosen in {None, each.seed})

    @property
    def keys(self) -> tuple[str, ...]:
        """Under what the trainings are kept."""
        return tuple(each.key for each in self.seeds)

    def training(self) -> dict[str, Any]:
        """Return how it came to be, as plain values: each seed with its curves, which was chosen, the noise floor."""
        return {
            "sha256": self.forest.sha256,
            "choose": self.choose,
            "chosen": self.chosen,
            "stop_metric": str(stop_measure(self.plan.parameters, graded=self.plan.graded)),
            "seeds": [{**each.to_dict(), "key": each.key, "curves": each.result.curves()} for each in self.seeds],
            "noise_floor": {} if self.noise_floor is None else self.noise_floor.to_dict(),
        }


def plan_candidate(
    dataset: Dataset,
    parameters: TrainParameters,
    *,
    seeds: Sequence[int] = (),
    choose: str = "best",
    eval_metrics: Sequence[str] = (),
    splits: Sequence[str] = (),
    base: Origin | None = None,
    resume: Origin | None = None,
    bin_cache: Path | None = None,
    pool_bytes: int = DEFAULT_POOL_BYTES,
) -> TrainingPlan:
    """Return what :func:`train_candidate` will need, and refuse what it would refuse; its arguments and errors."""
    numbers = checked_seeds(seeds, parameters.seed)
    if resume is not None and len(numbers) > 1:
        raise InvalidParameter("resume: going on is for one seed; train the others anew, or leave seeds out")
    for split in splits:
        dataset.queries(split)  # which knows them
    plan = plan_of(
        dataset,
        replace(parameters, seed=numbers[0]),
        eval_metrics=eval_metrics,
        resume=None if resume is None else resume.forest,
        base_model=None if base is None else base.forest,
        bin_cache=bin_cache,
        pool_bytes=pool_bytes,
    )
    check_choice(choose, numbers, has_valid=plan.valid_rows > 0, link=plan.link)
    return plan


def train_candidate(
    dataset: Dataset,
    parameters: TrainParameters,
    *,
    seeds: Sequence[int] = (),
    choose: str = "best",
    eval_metrics: Sequence[str] = (),
    splits: Sequence[str] = (),
    base: Origin | None = None,
    base_queries: QuerySketch | None = None,
    resume: Origin | None = None,
    folder: Path | None = None,
    checkpoint_every: float = EVERY,
    n_threads: int = 0,
    bin_cache: Path | None = None,
    pool_bytes: int = DEFAULT_POOL_BYTES,
    profile: bool = False,
    on_round: OnSeed | None = None,
    on_fold: OnFold | None = None,
    say: Callable[[str], None] | None = None,
    plan: TrainingPlan | None = None,
) -> Candidate:
    """Train the same parameters with every seed, one after another, and choose.

    The forest, the facts and the noise floor depend on the dataset's rows and bins, the parameters, the set of seeds, and
    what is measured; not on the order of the seeds, on threads, on ``folder`` and what it holds, nor on how often this was
    killed before.

    Parameters
    ----------
    dataset
        Binned; its newest bins are used.
    parameters
        Of every training, but for the seed where there are ``seeds``.
    seeds
        Those to train with; left out, that of the parameters.
    choose
        ``best``: the forest with the best stop metric on the valid split, of equal ones that of the lowest seed;
        ``average``: one forest whose score is the mean of all scores, with as many trees as all together.
    eval_metrics
        Measured after every round besides the stop metric.
    splits
        Further splits to measure every forest on when it is done, ``test`` for one: they are in the noise floor.
    base, base_queries
        The model to correct, and the sketch of the queries that it was trained on, where that is known.
    resume
        A model to go on from, with one seed.
    folder
        Where trainings are kept and checkpoints written; None: nowhere.
    checkpoint_every
        Seconds between two checkpoints.
    n_threads, bin_cache, pool_bytes, profile
        As :func:`rankmill.trainer.training.train` takes them.
    on_round
        Called after every round of every seed, also of one that is replayed from a checkpoint.
    on_fold
        Called after every round of every fold, where ``rounds_by`` is ``cv``.
    say
        Called with a line where something is worth saying.
    plan
        What :func:`plan_candidate` has returned for the same arguments; left out, it is called.

    Raises
    ------
    InvalidParameter
        A parameter, ``seeds`` or ``choose`` is none, or cannot be on these data.
    TrainingDataRejected
        The dataset cannot be learnt from, or the best cannot be told for lack of anything relevant in the valid split.
    """
    plan = plan or plan_candidate(
        dataset, parameters, seeds=seeds, choose=choose, eval_metrics=eval_metrics, splits=splits, base=base,
        resume=resume, bin_cache=bin_cache, pool_bytes=pool_bytes,
    )  # fmt: skip
    numbers = checked_seeds(seeds, parameters.seed)
    wanted = [split for split in dict.fromkeys(splits) if len(dataset.queries(split))]
    kept = None if folder is None else KeptTrainings(folder)
    trained: list[Trained] = []
    of_seeds: list[OfSeed] = []
    for number in numbers:
        own = replace(parameters, seed=number)
        key = training_key(dataset, own, eval_metrics, None if base is None else base.identity.sha256)
        found = None if kept is None else kept.read(key)
        if found is None:
            if say is not None and len(numbers) > 1:
                say(f"seed {number}, {len(of_seeds) + 1} of {len(numbers)}")
            checkpoints = None if folder is None else Checkpoints(folder, key, checkpoint_every, say)
            result = training.train(
                dataset,
                own,
                eval_metrics=eval_metrics,
                resume=None if resume is None else resume.forest,
                base_model=None if base is None else base.forest,
                n_threads=n_threads,
                on_round=None if on_round is None else _telling(on_round, number),
                on_fold=on_fold,
                bin_cache=bin_cache,
                pool_bytes=pool_bytes,
                profile=profile,
                say=say,
                checkpoints=checkpoints,
            )
            found = Trained.of(result)
            if kept is not None and checkpoints is not None:
                kept.write(key, found)
                checkpoints.clear()
        elif say is not None:
            say(f"seed {number} was trained before: {found.result.best_round:,} rounds, kept in {folder}")
        metrics = metrics_of(found.result)
        for split in wanted:
            if split not in metrics:
                metrics[split] = _told(measure(found.result.forest, dataset, split, own, eval_metrics, n_threads)[0])
        trained.append(found)
        of_seeds.append(
            OfSeed(seed=number, key=key, sha256=found.result.forest.sha256, result=found.result, metrics=metrics)
        )
    noise = None if len(numbers) == 1 else NoiseFloor.of(numbers, [each.metrics for each in of_seeds])
    if choose == "average" and len(numbers) > 1:
        forest, facts = _averaged(dataset, parameters, numbers, of_seeds, eval_metrics, wanted, base, n_threads)
        chosen = None
    else:
        place = 0 if len(numbers) == 1 else _best(of_seeds, plan)
        chosen, forest = numbers[place], of_seeds[place].result.forest
        facts = facts_of(dataset, trained[place].result, base, trained[place].intervals)
        if wanted:
            facts["metrics"] = of_seeds[place].metrics
    if noise is not None:
        facts["seeds"] = {
            "choose": choose,
            **({} if chosen is None else {"chosen": chosen}),
            "trained": [each.to_dict() for each in of_seeds],
            "noise_floor": noise.to_dict(),
        }
    return Candidate(
        forest=forest,
        facts=facts,
        attachments=attachments_of(dataset, resume, None if base is None else base_queries),
        seeds=tuple(of_seeds),
        choose=choose,
        chosen=chosen,
        noise_floor=noise,
        plan=plan,
    )


def _telling(on_round: OnSeed, seed: int) -> Callable[[RoundRecord], None]:
    def tell(record: RoundRecord) -> None:  # and end nothing: what is kept has all its rounds
        on_round(seed, record)

    return tell


def _best(of_seeds: Sequence[OfSeed], plan: TrainingPlan) -> int:
    measured_by = stop_measure(plan.parameters, graded=plan.graded)
    values = [each.metrics.get(VALID, {}).get(str(measured_by), float("nan")) for each in of_seeds]
    if all(value != value for value in values):  # noqa: PLR0124 - NaN
        raise TrainingDataRejected(
            f"choose: no query of the valid split has a relevant document, so {measured_by} cannot tell which seed is the"
            " best; set stop_metric to deviance, or choose to average"
        )
    return best_of(values, higher_is_better=measured_by.higher_is_better)


def _averaged(
    dataset: Dataset,
    parameters: TrainParameters,
    numbers: Sequence[int],
    of_seeds: Sequence[OfSeed],
    eval_metrics: Sequence[str],
    wanted: Sequence[str],
    base: Origin | None,
    n_threads: int,
) -> tuple[Forest, Facts]:
    """Return the average of all, measured anew, and what there is to say of it."""
    below = None if base is None else BaseModel(base.forest, dataset.feature_names)
    info = {"seeds": list(numbers), "best_rounds": [each.result.best_round for each in of_seeds]}
    forest = average([after_base(each.result.forest, below) for each in of_seeds], info)
    if below is not None:
        forest = below.joined(forest)
    parameters = replace(parameters, seed=numbers[0])
    metrics: dict[str, dict[str, float]] = {}
    intervals: dict[str, dict[str, list[float]]] = {}
    for split in dict.fromkeys((TRAIN, VALID, *wanted)):
        means, by_query = measure(forest, dataset, split, parameters, eval_metrics, n_threads)
        if told := _told(means):
            metrics[split] = told
            intervals |= intervals_of({split: by_query})
    facts = facts_of_forest(dataset, forest, base)
    return forest, {**facts, "metrics": metrics, "intervals": intervals}


def _told(means: Mapping[str, float]) -> dict[str, float]:
    """Leave out the mean over no query at all."""
    return {name: value for name, value in means.items() if value == value}  # noqa: PLR0124 - not NaN


Choose: TypeAlias = Literal["best", "average"]
CHOICES: tuple[Choose, ...] = get_args(Choose)
MOST_SEEDS = 100


def checked_seeds(seeds: Sequence[int], seed: int) -> tuple[int, ...]:
    """Return the seeds in ascending order, so that nothing depends on the order they were given in; ``seed`` where there are none.

    >>> checked_seeds([3, 1, 2], 7), checked_seeds([], 7)
    ((1, 2, 3), (7,))

    Raises
    ------
    InvalidParameter
        A seed is none, one is there twice, or there are too many.
    """
    found = [whole_number("seeds", each) for each in seeds]
    for each in found:
        if not 0 <= each <= 2**63 - 1:
            raise InvalidParameter(f"seeds: expected numbers in 0 .. {2**63 - 1}, found {each}")
        if found.count(each) > 1:
            raise InvalidParameter(
                f"seeds: {each} is there {found.count(each)} times; the same seed is the same forest"
            )
    if len(found) > MOST_SEEDS:
        raise InvalidParameter(f"seeds: expected {MOST_SEEDS} at most, found {len(found)}")
    return tuple(sorted(found)) or (seed,)


def parse_seeds(written: str) -> tuple[int, ...]:
    """Read seeds as a command line gives them.

    >>> parse_seeds("1, 2,3")
    (1, 2, 3)

    Raises
    ------
    InvalidParameter
        One of them is no whole number.
    """
    parts = [part.strip() for part in written.split(",")]
    try:
        return tuple(int(part) for part in parts)
    except ValueError:
        raise InvalidParameter(f"seeds: expected whole numbers with commas, as in 1,2,3, found {written!r}") from None


def check_choice(choose: str, seeds: Sequence[int], *, has_valid: bool, link: str) -> None:
    """Raise InvalidParameter if several ``seeds`` cannot be chosen from, or not be averaged, on such data.

    Parameters
    ----------
    choose
        What is asked for.
    seeds
        Those that are trained; with one there is nothing to choose.
    has_valid
        Whether there is a valid split, whose queries no seed has learnt from, the same ones for all.
    link
        That of the objective: what makes a score of the sums of trees (:mod:`rankmill.scorer.links`).
    """
    if choose not in CHOICES:
        raise InvalidParameter(f"choose: expected {' or '.join(CHOICES)}, found {choose!r}")
    if len(seeds) < 2:
        return
    if choose == "best" and not has_valid:
        raise InvalidParameter(
            "choose: there is no valid split on which the best of several seeds would show; ingest one, or set choose to"
            " average"
        )
    if choose == "average" and link != "identity":
        raise InvalidParameter(
            "choose: scores of this objective are made of probabilities, and what trees of several seeds add up to has no"
            " such meaning; set choose to best"
        )


def best_of(values: Sequence[float], *, higher_is_better: bool) -> int:
    """Return the place of the best value, the first of equal ones; NaN is never better.

    >>> best_of([0.5, 0.7, 0.7], higher_is_better=True), best_of([float("nan"), 2.0, 1.0], higher_is_better=False)
    (1, 2)
    """
    sign = 1.0 if higher_is_better else -1.0
    return max(range(len(values)), key=lambda i: (values[i] == values[i], sign * values[i], -i))


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A metric over several seeds."""

    mean: float
    deviation: float
    """Standard deviation, n - 1 below, as that of :class:`rankmill.scorer.comparison.SeedNoise`."""
    least: float
    greatest: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Return the spread of two values or more."""
        mean = fsum(values) / len(values)
        deviation = sqrt(fsum((value - mean) ** 2 for value in values) / (len(values) - 1))
        return cls(mean=mean, deviation=deviation, least=min(values), greatest=max(values))

    def to_dict(self) -> dict[str, float]:
        """Return plain values."""
        return {"mean": self.mean, "deviation": self.deviation, "least": self.least, "greatest": self.greatest}


@dataclass(frozen=True, slots=True)
class NoiseFloor:
    """Of every metric that all seeds have measured, by split; what is learnt from is left out."""

    seeds: tuple[int, ...]
    splits: Mapping[str, Mapping[str, Spread]]

    @classmethod
    def of(cls, seeds: Sequence[int], metrics: Sequence[Mapping[str, Mapping[str, float]]]) -> NoiseFloor:
        """Take the metrics by split of each of the ``seeds``, two or more."""
        splits = {
            split: {
                metric: Spread.of([of_seed[split][metric] for of_seed in metrics])
                for metric in found
                if all(metric in of_seed.get(split, {}) for of_seed in metrics)
            }
            for split, found in metrics[0].items()
            if split != TRAIN
        }
        return cls(tuple(seeds), {split: found for split, found in splits.items() if found})

    def to_dict(self) -> dict[str, Any]:
        """Return plain values by split and metric."""
        return {
            split: {metric: spread.to_dict() for metric, spread in found.items()}
            for split, found in self.splits.items()
        }
