"""What a user may set, with bounds; part of the model file, so nothing here depends on the machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from difflib import get_close_matches
from math import isfinite
from typing import Any

from rankmill.foundation.errors import InvalidParameter
from rankmill.foundation.scalars import real_number, text, truth, whole_number
from rankmill.trainer.monotone import without_zeros
from rankmill.trainer.objectives.registry import canonical

PRESET = "defaults@1"  # raised whenever a default changes; stored in every model

CRITERIA = ("rwse", "se", "ole")
CRITERION_ALIASES = {"wse": "rwse"}  # equal wherever h > 0 (METHODS 1)
LEAVES = ("newton", "exact")
GAINS = ("exp", "linear")
GRADES, PAIRS, BOTH = LEARN_FROM = ("grades", "pairs", "both")
KEEP_ROUNDS = ("best", "all")
ROUNDS_BY = ("valid", "test", "oob", "cv")
STEP_SEARCHES = ("none", "line")
GROWTHS = ("best_first", "breadth_first", "depth_first", "oblivious")
OBLIVIOUS_DEPTH = 6  # where max_depth is left at 0
MOST_OBLIVIOUS_DEPTH = 12  # 4096 leaves, half as many histograms at once

_PLAIN: Mapping[Any, Callable[[str, Any], object]] = {
    "int": whole_number,
    "float": real_number,
    "bool": truth,
    "str": text,
}  # by the annotation of a field


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainParameters:
    """Parameters of one training run.

    Numbers of any kind may be given, NumPy's too, and are kept as plain int and float: ``max_leaves=31.0`` is 31,
    ``max_leaves=31.5`` is refused.  A direction of 0 in ``monotone`` says nothing and is left out.

    Raises
    ------
    InvalidParameter
        A value is of another kind or outside its bounds; the message has name, bound and value.
    """

    objective: str = "lambdamart"  # a name, options in brackets: quantile(alpha=0.9)
    learn_from: str = ""  # grades, pairs (given ones) or both; empty: grades, or pairs where no query has two grades
    pairs_weight: float = 1.0  # for both, above 0: so many pairs of grades weigh as much as a given pair
    metric: str = "ndcg@10"  # what lambdamart optimises
    stop_metric: str = ""  # early stopping watches it on the valid split; empty: the same as metric, for coxph deviance
    gain: str = "exp"  # gain of a grade in the metric: 2 ** y - 1, or y
    n_rounds: int = 500  # trees at most, 1 or more
    learning_rate: float = 0.1  # (0, 1]
    early_stopping_rounds: int = 50  # rounds without a better stop_metric; 0: never stop early
    keep_rounds: str = ""  # best, or all that were trained; empty: best, but all where early_stopping_rounds is 0
    min_improvement: float = 0.0  # by how much a value must be better to count as better; 0 or more
    rounds_by: str = "valid"  # who says how many rounds are kept: the first eval set; test, queries kept apart; oob; cv
    holdout_fraction: float = 0.2  # for test, (0, 1): queries of the train split that are kept apart
    folds: int = 5  # for cv, 2 or more
    step_search: str = "none"  # line: the trees of a round are scaled by what lowers the loss most
    criterion: str = ""  # by which splits are chosen; empty: the default of the objective
    ole_features: int = 8  # for ole: so many features that look best to rwse are searched by the loss; 0: all
    ole_pairs: float = 1.0  # for ole: pairs a document that are drawn for that, about (65,536 at least); 0: all
    leaf: str = (
        ""  # steps of leaves: newton, h document by document; exact, pairs inside a leaf left out; empty: exact for ole
    )
    grow: str = "best_first"  # which leaf is split next; oblivious: one condition for all leaves of a depth
    max_leaves: int = 31  # 2 or more; oblivious trees have 2 ** max_depth
    max_depth: int = 0  # 0: no bound; for oblivious trees 6
    min_rows_in_leaf: int = 20  # 1 or more
    min_hessian_in_leaf: float = 1e-3  # 0 or more
    lambda_l2: float = 0.0  # 0 or more
    min_gain: float = 0.0  # 0 or more
    monotone: Mapping[str, int] = field(default_factory=dict)  # by feature: 1 scores never fall with it, -1 never rise
    feature_fraction: float = 1.0  # (0, 1]: features drawn for each tree
    query_fraction: float = 1.0  # (0, 1]: whole queries drawn for each tree
    row_fraction: float = 1.0  # (0, 1]: documents drawn for each tree, of the drawn queries
    sigma: float = 1.0  # above 0
    truncation: int = 30  # pairs need a document among the first so many by score; 1 or more
    lambda_normalisation: bool = True
    seed: int = 7  # 0 .. 2 ** 63 - 1

    def __post_init__(self) -> None:
        for parameter in fields(TrainParameters):
            if parameter.type in _PLAIN:
                plain = _PLAIN[parameter.type](parameter.name, getattr(self, parameter.name))
                object.__setattr__(self, parameter.name, plain)
        object.__setattr__(self, "monotone", without_zeros(self.monotone))
        object.__setattr__(self, "objective", canonical(self.objective))
        object.__setattr__(self, "criterion", CRITERION_ALIASES.get(self.criterion, self.criterion))
        _one_of("criterion", self.criterion, ("", *CRITERIA))
        _one_of("leaf", self.leaf, ("", *LEAVES))
        if self.metric == "deviance":
            raise InvalidParameter(
                "metric 'deviance' is the loss, which is minimised in any case; to watch it set stop_metric to deviance"
            )
        _one_of("gain", self.gain, GAINS)
        _one_of("grow", self.grow, GROWTHS)
        _one_of("rounds_by", self.rounds_by, ROUNDS_BY)
        _one_of("learn_from", self.learn_from, ("", *LEARN_FROM))
        _one_of("keep_rounds", self.keep_rounds, ("", *KEEP_ROUNDS))
        if self.keep_rounds == "all" and self.rounds_by != "valid":
            raise InvalidParameter(
                f"keep_rounds 'all' keeps every round, but rounds_by {self.rounds_by!r} chooses how many; leave one of them out"
            )
        _one_of("step_search", self.step_search, STEP_SEARCHES)
        _between("folds", self.folds, 2, 1_000_000)
        if not 0.0 < self.holdout_fraction < 1.0:
            raise InvalidParameter(f"holdout_fraction must be above 0 and below 1, got {self.holdout_fraction}")
        _between("n_rounds", self.n_rounds, 1, 1_000_000)
        _between("early_stopping_rounds", self.early_stopping_rounds, 0, 1_000_000)
        _between("max_leaves", self.max_leaves, 2, 65_536)
        _between("max_depth", self.max_depth, 0, 65_536)
        _between("min_rows_in_leaf", self.min_rows_in_leaf, 1, 2**31)
        _between("ole_features", self.ole_features, 0, 2**31)
        _between("truncation", self.truncation, 1, 2**31)
        _between("seed", self.seed, 0, 2**63 - 1)
        for name in ("learning_rate", "feature_fraction", "query_fraction", "row_fraction"):
            if not 0.0 < getattr(self, name) <= 1.0:
                raise InvalidParameter(f"{name} must be in (0, 1], got {getattr(self, name)}")
        for name in ("sigma", "pairs_weight"):
            if not (getattr(self, name) > 0.0 and isfinite(getattr(self, name))):
                raise InvalidParameter(f"{name} must be a number above 0, got {getattr(self, name)}")
        for name in ("min_hessian_in_leaf", "lambda_l2", "min_gain", "ole_pairs", "min_improvement"):
            value = getattr(self, name)
            if not (value >= 0.0 and isfinite(value)):
                raise InvalidParameter(f"{name} must be a number of 0 or more, got {value}")
        if self.criterion == "ole" and self.monotone:
            raise InvalidParameter("monotone constraints bound Newton steps; criterion is 'ole'")
        if self.grow == "oblivious":
            if self.monotone:
                raise InvalidParameter(
                    "monotone constraints are for trees that split leaf by leaf; grow is 'oblivious'"
                )
            _between("max_depth of oblivious trees", self.max_depth, 0, MOST_OBLIVIOUS_DEPTH)

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


def _one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        near = get_close_matches(value, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(filter(None, known))}"
        raise InvalidParameter(f"unknown {name} {value!r}; {hint}")


def _between(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise InvalidParameter(f"{name} must be in {low} .. {high}, got {value}")
