"""RankNet's loss (Burges et al. 2005; Burges 2010, section 2): a logistic loss for every pair of documents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rankmill.foundation.errors import InvalidParameter
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
