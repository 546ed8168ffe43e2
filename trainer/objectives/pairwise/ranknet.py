"""All pairs alike: RankNet's logistic loss (Burges et al. 2005; Burges 2010, section 2) and RankBoost's exponential (Freund et al. 2003)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rankmill.foundation.errors import InvalidParameter
from rankmill.trainer.objectives.pairwise import _kernels
from rankmill.trainer.objectives.pairwise.pair_loss import (
    PairObjective,
    PairRules,
    Weighing,
    checked_fraction,
    checked_truncation,
    divides_by_pairs,
)
from rankmill.trainer.parameters import BOTH, TrainParameters
from rankmill.trainer.rows import RankedRows


@dataclass(frozen=True, slots=True, kw_only=True)
class RankNetOptions:
    """Options of ``ranknet``.

    Attributes
    ----------
    normalise
        ``query``: divide the loss of each query by the number of its pairs.
    ties
        Whether documents of equal grade are pairs too, with target probability 1/2.
    truncation
        Pairs need a document among the first so many by score; 0: all pairs count.
    pair_fraction
        Share of the pairs that is drawn each round.
    """

    normalise: str = "none"
    ties: bool = False
    truncation: int = 0
    pair_fraction: float = 1.0

    def __post_init__(self) -> None:
        divides_by_pairs("ranknet(normalise)", self.normalise)
        checked_fraction("ranknet(pair_fraction)", self.pair_fraction)
        checked_truncation("ranknet(truncation)", self.truncation)


class RankNet(PairObjective):
    r"""Minimise the sum of ``(1 - P) sigma (s_i - s_j) + log(1 + exp(-sigma (s_i - s_j)))`` over pairs (METHODS 3.13).

    P is the target probability that i belongs above j: 1 where y_i > y_j, or that of a given pair.  The parameters
    ``sigma`` and ``seed`` count; ``truncation`` does not, the option of that name does.

    Raises
    ------
    TrainingDataRejected
        There is no pair.
    """

    name: ClassVar[str] = "ranknet"
    Options: ClassVar[type[RankNetOptions]] = RankNetOptions

    def __init__(self, rows: RankedRows, parameters: TrainParameters, options: RankNetOptions) -> None:
        if options.ties and parameters.learn_from == BOTH:
            raise InvalidParameter(
                "ranknet(ties=true): pairs of equal grade are for learn_from grades; with both, leave ties out"
            )
        self._set_up(
            rows,
            Weighing.even(rows),
            PairRules(
                sigma=parameters.sigma,
                truncation=options.truncation or 2**31,
                per_pair=divides_by_pairs("ranknet(normalise)", options.normalise),
                ties=options.ties,
                fraction=options.pair_fraction,
                seed=parameters.seed,
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RankBoostOptions:
    """Options of ``rankboost``.

    Attributes
    ----------
    normalise
        ``query``: divide the loss of each query by the number of its pairs.
    truncation
        Pairs need a document among the first so many by score; 0: all pairs count.
    pair_fraction
        Share of the pairs that is drawn each round.
    """

    normalise: str = "none"
    truncation: int = 0
    pair_fraction: float = 1.0

    def __post_init__(self) -> None:
        divides_by_pairs("rankboost(normalise)", self.normalise)
        checked_fraction("rankboost(pair_fraction)", self.pair_fraction)
        checked_truncation("rankboost(truncation)", self.truncation)


class RankBoost(PairObjective):
    r"""Minimise the sum of ``exp(s_j - s_i)`` over pairs of which i belongs above j (METHODS 3.14).

    A given pair with the target probability P counts ``P exp(s_j - s_i) + (1 - P) exp(s_i - s_j)``.  Beyond a difference
    of 30 the loss goes on along its tangent, and h stays what it is there: a surrogate, without which one pair would
    drown all others.  Of the parameters only ``seed`` counts; ``sigma`` does not.

    Raises
    ------
    TrainingDataRejected
        There is no pair.
    """

    name: ClassVar[str] = "rankboost"
    Options: ClassVar[type[RankBoostOptions]] = RankBoostOptions

    def __init__(self, rows: RankedRows, parameters: TrainParameters, options: RankBoostOptions) -> None:
        self._set_up(
            rows,
            Weighing.even(rows),
            PairRules(
                loss=_kernels.EXPONENTIAL,
                truncation=options.truncation or 2**31,
                per_pair=divides_by_pairs("rankboost(normalise)", options.normalise),
                fraction=options.pair_fraction,
                seed=parameters.seed,
            ),
        )
