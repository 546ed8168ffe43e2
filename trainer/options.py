"""Options of commands that train, tune or change models, besides the training options themselves."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from rankmill.foundation.cluster.options import ClusterOptions
from rankmill.foundation.errors import InvalidParameter
from rankmill.foundation.options import group, option, option_like, options, spelled
from rankmill.foundation.scalars import whole_number
from rankmill.trainer.parameters import COMPARE_BY, MOST

CHECKPOINT_SECONDS = 300.0  # a kill loses at most this, plus the current round
CHOICES = ("best", "average")  # of several seeds

T = TypeVar("T", int, float)


def numbers_in(kind: type[T], expected: str, written: str) -> tuple[T, ...]:
    """Parse numbers of a ``kind`` separated by commas; ``expected`` says what they are, for a message.

    >>> numbers_in(int, "seeds: expected whole numbers", "1, 2,3")
    (1, 2, 3)

    Raises
    ------
    InvalidParameter
        One of them is no such number.
    """
    try:
        return tuple(kind(part) for part in written.split(","))
    except ValueError:
        raise InvalidParameter(f"{expected}, found {written!r}") from None


parse_seeds = partial(numbers_in, int, "seeds: expected whole numbers separated by commas, such as 1,2,3")
MOST_SEEDS = 100


def as_seeds(given: Sequence[Any]) -> tuple[int, ...]:
    """Return seeds in ascending order, so that their given order has no effect.

    >>> as_seeds([3, 1, 2])
    (1, 2, 3)

    Raises
    ------
    InvalidParameter
        A seed is invalid or repeated, or there are too many.
    """
    name = spelled("seeds")
    found = [whole_number(name, each) for each in given]
    for each in found:
        if not 0 <= each <= 2**63 - 1:
            raise InvalidParameter(f"{name}: expected numbers in 0 .. {2**63 - 1}, found {each}")
        if found.count(each) > 1:
            raise InvalidParameter(f"{name}: {each} is given {found.count(each)} times; each seed must be unique")
    if len(found) > MOST_SEEDS:
        raise InvalidParameter(f"{name}: expected at most {MOST_SEEDS}, found {len(found)}")
    return tuple(sorted(found))


parse_weights = partial(numbers_in, float, "weights: expected numbers separated by commas, such as 0.3,0.7")


@options
class MachineOptions:
    """Options for metrics, threads and memory.  They never change the model."""

    eval_metrics: Sequence[str] = option(
        default=(),
        help="Another metric to measure after every round; repeat for several. Never changes the model.",
        flags=("--eval-metric",),
        read=tuple,
        repeat=True,
    )
    n_threads: int = option(
        default=0, help="Number of threads; 0: all cores available to this process. Never changes the model.", least=0
    )
    histogram_memory: int = option(
        default="512MiB",
        help="Maximum memory for histograms; less memory makes training slower. Oblivious trees use"
        " what they need. Never changes the model.",
        size=True,
    )


@options
class CheckpointOptions(MachineOptions):
    """MachineOptions plus checkpoints, from which a killed command resumes."""

    checkpoint: Path | None = option(
        default=None,
        help="Folder for checkpoints: after a kill, the same command resumes. They are removed once"
        " the model is registered. Never changes the model.",
        metavar="DIR",
    )
    checkpoint_every: float = option(
        default=CHECKPOINT_SECONDS, help="Minimum seconds between checkpoints; 0: after every round.", least=0
    )
    naive_beside: bool = option(
        default=True,
        help="Where clicks are corrected, also train without the correction and show both. Never changes the model.",
    )


@options
class HowOptions:
    """How to train, and where."""

    machine: CheckpointOptions = group(default_factory=CheckpointOptions)
    where: ClusterOptions = group(default_factory=ClusterOptions)


@options
class StartOptions:
    """What a training starts from."""

    params: Path | None = option(
        default=None,
        help="TOML file whose section [train] has training parameters, such as winner.toml of tune. Given options win.",
        metavar="FILE",
    )
    resume: str | None = option(
        default=None,
        help="Resume this model (a file, NAME, NAME@7, NAME@latest; NAME means production) until"
        " it has N_ROUNDS rounds in total. It must have been trained on DATASET with the same"
        " options. The result is identical to one uninterrupted training.",
        metavar="MODEL",
    )
    base_model: str | None = option(
        default=None,
        help="Train new trees on top of the scores of this model. The registered model contains"
        " both. DATASET must have the features of this model.",
        metavar="MODEL",
    )


@options
class SelectOptions:
    """How to select features."""

    drop_fraction: float = option(
        default=0.2,
        help="Share of the features left to drop in each step: those that no tree uses, then those whose loss is "
        "lowest; at least one.",
        above=0,
        below=1,
    )
    least_features: int = option(default=1, help="Stop at this many features.", least=1, most=MOST)
    tolerance: float = option(
        default=0.001,
        help="How much worse than the best step the recommended step may be, in units of the stop metric.",
        least=0,
    )
    repeats: int = option(default=3, help="Number of permutations of each feature.", least=1, most=1000)


@options
class MergeOptions:
    """How to merge models into one."""

    weights: Sequence[float] = option(
        default=(),
        help="Weight of each model, in their order, such as 0.3,0.7. Default: all 1; in a blend, those that rank best.",
        metavar="W,W,..",
        read=parse_weights,
    )
    how: str = option(
        default="mean",
        help="Score of the result: the weighted mean of the scores, or their sum.",
        choices=("mean", "sum"),
    )


@options
class BlendOptions:
    """How to find the weights of a blend."""

    metric: str = option(default="ndcg@10", help="Metric that the weights maximise, as in evaluate.")
    split: str = option(
        default="valid",
        help="Split of the dataset on which to find the weights; no model may have learnt from it.",
        choices=("valid", "test", "train"),
    )
    weights: Sequence[float] = option_like(MergeOptions, "weights", default=())


@options
class SeedOptions:
    """Which seeds to train, and which model to keep.

    ``splits``: more splits, such as ``test``, on which to evaluate every trained forest for the noise floor.
    """

    seeds: Sequence[int] = option(
        default=(),
        help="Train one model per seed, such as 1,2,3, and register the one chosen by --choose. Overrides --seed.",
        metavar="N,N,..",
        read=parse_seeds,
        convert=as_seeds,
    )
    choose: str = option(
        default="best",
        help="Model to register from several seeds: best on the valid split, or average (one model"
        " with the mean scores of all).",
        choices=CHOICES,
    )
    splits: Sequence[str] = ()


@options
class SpaceOptions:
    """The search space: from a file, from the command line, or both."""

    space: Path | None = option(
        default=None,
        help='TOML file with the search space: learning_rate = "0.02..0.3:log", objective = ["lambdamart", "l2"].',
        metavar="FILE",
    )
    vary: tuple[str, ...] = option(
        default=(),
        help="Search this parameter: LOW..HIGH, LOW..HIGH:log, or A,B,C; repeat for several. Overrides --space. "
        "Without both: objective, learning rate, tree sizes, sampling and regularisation.",
        metavar="NAME=VALUES",
        read=tuple,
        repeat=True,
    )


@options
class TuneOptions:
    """How to search for parameters; repeats use the seeds that follow the seed of the parameters."""

    trials: int = option(
        default=0,
        help="Number of random trials, in addition to one with the options as given. 0: 30, or with --minutes no "
        "limit.",
        least=0,
        most=100_000,
    )
    minutes: float = option(
        default=0.0,
        help="Time limit of the whole command: start no trial that would, with the repeats after it, end later, and "
        "stop what is not done then after its round. The same command continues the search for that many more "
        "minutes. 0: none.",
        least=0,
    )
    compare_by: str = option(
        default="",
        help="What to compare trials on. valid: the valid split. folds: a cross-validation over all queries that the"
        " model will learn from (with --refit all also those of the valid split). Default: folds for up to 5,000 train"
        " queries or without a valid split.",
        choices=("", *COMPARE_BY),
    )
    best: int = option(default=3, help="Number of best trials to repeat with other seeds.", least=1, most=1000)
    repeat: int = option(
        default=2,
        help="Number of other seeds, and with folds of other folds, for these repeats; 0: no repeats.",
        least=0,
        most=100,
    )
    workers: int = option(
        default=0,
        help="Number of parallel trials, each a process with one thread; 0: all cores available to"
        " this process; 1: one trial at a time on all cores. Never changes the outcome.",
        least=0,
        most=4096,
    )


@options
class SearchOptions:
    """What to search, how, and where."""

    searched: SpaceOptions = group(default_factory=SpaceOptions)
    how: TuneOptions = group(default_factory=TuneOptions)
    where: ClusterOptions = group(default_factory=ClusterOptions)

    def check_together(self) -> None:
        """Check that a cluster has no processes beside it."""
        if self.where.cluster is not None and self.how.workers:
            raise InvalidParameter(
                f"{spelled('workers')} counts processes of this machine; leave it out with {spelled('cluster')}, "
                "which has its own"
            )
