"""What a user may set of a training, declared once; part of the model file, so nothing here depends on the machine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rankmill.foundation.errors import InvalidParameter
from rankmill.foundation.options import option, options, spelled
from rankmill.foundation.scalars import whole_number
from rankmill.trainer.objectives.spelling import OBJECTIVES, canonical

PRESET = "defaults@1"  # raised whenever a default changes; stored in every model

CRITERIA = ("rwse", "se", "ole")
CRITERION_ALIASES = {"wse": "rwse"}  # equal wherever h > 0 (METHODS 1)
LEAVES = ("newton", "exact")
GAINS = ("exp", "linear")
GRADES, PAIRS, BOTH = LEARN_FROM = ("grades", "pairs", "both")
KEEP_ROUNDS = ("best", "all")
ROUNDS_BY = ("valid", "test", "oob", "cv")
STEP_SEARCHES = ("none", "line")
SEARCHES = ("random", "halving")
CHECKPOINT_SECONDS = 300.0  # what a kill costs at most, but for a last round
CHOICES = ("best", "average")  # of several seeds
GROWTHS = ("best_first", "breadth_first", "depth_first", "oblivious")
OBLIVIOUS_DEPTH = 6  # where max_depth is left at 0
MOST_OBLIVIOUS_DEPTH = 12  # 4096 leaves, half as many histograms at once
MOST = 1_000_000
NAMES = [name for name in OBJECTIVES if name != "user"]  # a command line has no functions


def parse_monotone(texts: Iterable[str]) -> dict[str, int]:
    """Read ``NAME:1`` (scores never fall with the feature) and ``NAME:-1`` (they never rise).

    >>> parse_monotone(["bm25:1", "age:days:-1"])
    {'bm25': 1, 'age:days': -1}

    Raises
    ------
    InvalidParameter
        A text is neither, or a feature comes twice.
    """
    found: dict[str, int] = {}
    for text in texts:
        name, _, direction = text.rpartition(":")
        if not name or direction.strip() not in {"1", "+1", "-1", "0"}:
            raise InvalidParameter(f"monotone: expected NAME:1 or NAME:-1, found {text!r}")
        if name in found:
            raise InvalidParameter(f"monotone: the feature {name!r} is given twice")
        found[name] = int(direction)
    return found


def without_zeros(monotone: Any) -> dict[str, int]:
    """Return the directions by feature name that say something, as plain numbers.

    >>> without_zeros({"bm25": 1, "age": 0})
    {'bm25': 1}

    Raises
    ------
    InvalidParameter
        It is no mapping from names to -1, 0 or 1.
    """
    if not isinstance(monotone, Mapping) or not all(isinstance(name, str) for name in monotone):
        raise InvalidParameter("monotone must hold a direction by feature name, such as {'bm25': 1}")
    found = {str(name): whole_number(f"monotone[{name!r}]", direction) for name, direction in monotone.items()}
    for name, direction in found.items():
        if direction not in {-1, 0, 1}:
            raise InvalidParameter(f"monotone[{name!r}] must be -1, 0 or 1, got {direction}")
    return {name: direction for name, direction in found.items() if direction}


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


@options
class TrainParameters:
    """Parameters of one training run.

    Numbers of any kind may be given, NumPy's too, and are kept as plain int and float: ``max_leaves=31.0`` is 31,
    ``max_leaves=31.5`` is refused.  A direction of 0 in ``monotone`` says nothing and is left out.

    Raises
    ------
    InvalidParameter
        A value is of another kind or outside its bounds; the message has name, bound and value.
    """

    objective: str = option(
        default="lambdamart",
        help="The loss, such as lambdamart or quantile(alpha=0.9); docs/objectives.md says what each is for: "
        + ", ".join(NAMES)
        + ".",
        metavar="NAME[(OPTION=VALUE, ..)]",
        convert=canonical,
    )
    learn_from: str = option(
        default="",
        help="What to learn from, if DATASET has preference pairs: grades, pairs or both; left out: grades, or pairs if no"
        " query has two different grades.",
        choices=("", *LEARN_FROM),
    )
    pairs_weight: float = option(
        default=1.0,
        help="When learning from both: weight of a given pair, where a pair of different grades weighs 1.",
        above=0,
    )
    metric: str = option(
        default="ndcg@10",
        help="What lambdamart optimises: ndcg, dcg, err, map, mrr, precision, recall, wta, rbp(p) or concordance, with"
        " @k; lambdaloss takes ndcg, apxdcg and stochasticrank ndcg or dcg.  The others are only stopped by it.",
    )
    stop_metric: str = option(
        default="",
        help="Early stopping watches it on the valid split, deviance is the loss; left out: the metric itself (coxph: deviance).",
    )
    gain: str = option(
        default="exp", help="Gain of a grade y in the metrics: exp (2^y - 1) or linear (y).", choices=GAINS
    )
    n_rounds: int = option(default=500, help="Trees at most.", least=1, most=MOST)
    learning_rate: float = option(default=0.1, help="Shrinkage of every tree, in (0, 1].", above=0.0, most=1.0)
    early_stopping_rounds: int = option(
        default=50,
        help="Stop after this many rounds without a better valid metric.  0: off, train all rounds and keep them all.",
        least=0,
        most=MOST,
    )
    keep_rounds: str = option(
        default="",
        help="Rounds to keep: best (up to the best one on the valid split) or all that were trained; left out: best, but"
        " all where early stopping is off.",
        choices=("", *KEEP_ROUNDS),
    )
    min_improvement: float = option(
        default=0.0, help="A round is better only if the value is so by more than this.", least=0
    )
    rounds_by: str = option(
        default="valid",
        help="Who says how many rounds are kept: valid (the valid split), test (queries of the train split that are"
        " kept apart), oob (what the trees of a round have not seen), or cv (a cross-validation first).",
        choices=ROUNDS_BY,
    )
    holdout_fraction: float = option(
        default=0.2,
        help="Share of the queries that are kept apart where rounds are chosen by test, in (0, 1).",
        above=0,
        below=1,
    )
    folds: int = option(default=5, help="Parts of a cross-validation.", least=2, most=MOST)
    step_search: str = option(
        default="none",
        help="line: scale the trees of a round by what lowers the loss most, then shrink; or none.",
        choices=STEP_SEARCHES,
    )
    criterion: str = option(
        default="",
        help="By which splits are chosen: se (squared error), rwse (weighted by curvature) or ole (the loss itself);"
        " left out: what the objective does best with.",
        choices=("", *CRITERIA),
        convert=lambda name: CRITERION_ALIASES.get(name, name),
    )
    ole_features: int = option(
        default=8,
        help="For ole: so many features that look best to rwse are searched by the loss; 0: all.",
        least=0,
        most=2**31,
    )
    ole_pairs: float = option(
        default=1.0,
        help="For ole: pairs a document drawn to measure curvature, about, and 65,536 at least; 0: all pairs.",
        least=0,
    )
    leaf: str = option(
        default="",
        help="Steps of leaves: newton, or exact (pairs of documents in one leaf do not count); left out: exact for ole.",
        choices=("", *LEAVES),
    )
    grow: str = option(
        default="best_first",
        help="Which leaf is split next: best_first, breadth_first or depth_first; or oblivious, one condition for"
        " all leaves of a depth.",
        choices=GROWTHS,
    )
    max_leaves: int = option(
        default=31, help="Leaves of a tree at most; oblivious trees have 2^max_depth.", least=2, most=65_536
    )
    max_depth: int = option(
        default=0, help="Depth of a tree at most; 0: no bound, oblivious trees 6.", least=0, most=65_536
    )
    min_rows_in_leaf: int = option(default=20, help="Documents in a leaf at least.", least=1, most=2**31)
    min_hessian_in_leaf: float = option(default=1e-3, help="Sum of curvatures in a leaf at least.", least=0)
    lambda_l2: float = option(default=0.0, help="Added to the curvature of a leaf.", least=0)
    min_gain: float = option(default=0.0, help="A split must gain more than this.", least=0)
    monotone: Mapping[str, int] = option(
        default_factory=dict,
        help="Scores never fall (1) or never rise (-1) with this feature; repeat for several.",
        metavar="NAME:1|-1",
        read=parse_monotone,
        repeat=True,
        convert=without_zeros,
    )
    feature_fraction: float = option(
        default=1.0, help="Share of the features drawn for each tree, in (0, 1].", above=0.0, most=1.0
    )
    query_fraction: float = option(
        default=1.0, help="Share of the queries drawn for each tree, in (0, 1].", above=0.0, most=1.0
    )
    row_fraction: float = option(
        default=1.0, help="Share of the documents of these queries drawn for each tree, in (0, 1].", above=0.0, most=1.0
    )
    sigma: float = option(default=1.0, help="Steepness of the pairwise logistic loss.", above=0)
    truncation: int = option(
        default=30, help="Pairs need a document among the first so many by score.", least=1, most=2**31
    )
    lambda_normalisation: bool = option(default=True, help="Damp pairs far apart and scale queries alike.")
    seed: int = option(default=7, help="Key of all randomness.", least=0, most=2**63 - 1)

    def check_together(self) -> None:
        """Raise InvalidParameter if values do not go together."""
        if self.metric == "deviance":
            raise InvalidParameter(
                "metric 'deviance' is the loss, which is minimised in any case; to watch it set stop_metric to deviance"
            )
        if self.keep_rounds == "all" and self.rounds_by != "valid":
            raise InvalidParameter(
                f"{spelled('keep_rounds')} 'all' keeps every round, but {spelled('rounds_by')} {self.rounds_by!r} chooses how many;"
                " leave one of them out"
            )
        if self.criterion == "ole" and self.monotone:
            raise InvalidParameter(f"monotone constraints bound Newton steps; {spelled('criterion')} is 'ole'")
        if self.grow == "oblivious":
            if self.monotone:
                raise InvalidParameter(
                    f"monotone constraints are for trees that split leaf by leaf; {spelled('grow')} is 'oblivious'"
                )
            if self.max_depth > MOST_OBLIVIOUS_DEPTH:
                raise InvalidParameter(
                    f"{spelled('max_depth')} of oblivious trees must be in 0 .. {MOST_OBLIVIOUS_DEPTH}, got {self.max_depth}"
                )

    @property
    def keeps_best(self) -> bool:
        """Whether trees after the best round are left out, where something says which round is the best one."""
        if self.keep_rounds:
            return self.keep_rounds == "best"
        return self.early_stopping_rounds > 0 or self.rounds_by != "valid"

    @property
    def depth(self) -> int:
        """Depth of a tree at most; 0: no bound."""
        return self.max_depth or (OBLIVIOUS_DEPTH if self.grow == "oblivious" else 0)

    @property
    def leaves(self) -> int:
        """Leaves of a tree at most."""
        return 2**self.depth if self.grow == "oblivious" else self.max_leaves

    def as_dict(self) -> dict[str, Any]:
        """Return every parameter by name, for the model file."""
        return asdict(self)


@options
class MachineOptions:
    """What a training measures and takes of the machine: nothing of it changes the model."""

    eval_metrics: Sequence[str] = option(
        default=(),
        help="Measured after every round as well; repeat for several.  Never changes the model.",
        flags=("--eval-metric",),
        read=tuple,
        repeat=True,
    )
    n_threads: int = option(
        default=0, help="Threads; 0: the cores this process may use.  Never changes the model.", least=0
    )
    bin_cache: Path | None = option(
        default=None,
        help="Map the bins from a file in this folder instead of holding them in memory.  It is built at the first"
        " training and used again while data and bins are the same; files of other data are left: delete them as"
        " you like.  Never changes the model.",
        metavar="DIR",
    )
    histogram_memory: int = option(
        default="512MiB",
        help="Bound of the memory for histograms; with less, training takes longer.  Oblivious trees take what they"
        " need.  Never changes the model.",
        size=True,
    )


@options
class CheckpointOptions(MachineOptions):
    """The same, and where finished trainings and checkpoints are kept, so that a killed command resumes."""

    checkpoint: Path | None = option(
        default=None,
        help="Keep in this folder what is trained so far, so that the same command goes on after a kill; emptied of it"
        " when the model is registered.  Never changes the model.",
        metavar="DIR",
    )
    checkpoint_every: float = option(
        default=CHECKPOINT_SECONDS, help="Seconds between two checkpoints; 0: after every round.", least=0
    )
    profile: bool = option(default=False, help="Show where the time of a round went.")


@options
class SeedOptions:
    """Which seeds are trained, and what becomes of their forests.

    ``splits``: further splits to measure every forest on when it is done, ``test`` for one; they are in the noise floor.
    """

    seeds: Sequence[int] = option(
        default=(),
        help="Train with each of these seeds, such as 1,2,3, and register what --choose says; --seed is passed over.",
        metavar="N,N,..",
        read=parse_seeds,
    )
    choose: str = option(
        default="best",
        help="Of several seeds: best, the model that is best on the valid split, or average, one model whose scores are"
        " the means of all.",
        choices=CHOICES,
    )
    splits: Sequence[str] = ()


@options
class SpaceOptions:
    """What to search, in a file, on the command line, or both."""

    space: Path | None = option(
        default=None,
        help='What to search, in TOML: learning_rate = "0.02..0.3:log", objective = ["lambdamart", "l2"].',
        metavar="FILE",
    )
    vary: tuple[str, ...] = option(
        default=(),
        help="Search this, over what FILE says of it: LOW..HIGH, LOW..HIGH:log, or A,B,C; repeat for several.  Without"
        " it and FILE: objective, learning rate, sizes of leaves, what a tree sees.",
        metavar="NAME=VALUES",
        read=tuple,
        repeat=True,
    )


@options
class TuneOptions:
    """How to search for parameters.

    ``halving`` gives few rounds to all trials, and more to the best ``factor``-th.  Further seeds are those after the seed of the
    parameters.
    """

    trials: int = option(default=30, help="Drawn, besides that of the options as they are.", least=1, most=100_000)
    search: str = option(
        default="random",
        help="random: all rounds for every trial; halving: a few for all, then more for the best --factor-th, and so on.",
        choices=SEARCHES,
    )
    factor: int = option(
        default=3, help="Of halving: so much fewer trials, and so many more rounds.", least=2, most=100
    )
    best: int = option(default=3, help="So many of the best are repeated with other seeds.", least=1, most=1000)
    repeat: int = option(default=2, help="With so many other seeds; 0: with none.", least=0, most=100)
    workers: int = option(
        default=0,
        help="Trials at a time, each in a process with one thread; 0: the cores this process may use; 1: one after"
        " another with all cores.  Never changes the outcome.",
        least=0,
        most=4096,
    )
