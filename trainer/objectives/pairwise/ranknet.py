"""All pairs alike: RankNet's logistic loss and RankBoost's exponential loss.

Sources are Burges et al. 2005; Burges 2010, section 2; Freund et al. 2003.
"""

from __future__ import annotations

from typing import ClassVar

from rankmill.foundation.errors import InvalidParameter
from rankmill.foundation.options import option, option_like, options
from rankmill.trainer.data.rows import RankedRows
from rankmill.trainer.objectives.pairwise import _kernels
from rankmill.trainer.objectives.pairwise.pair_loss import PER_PAIR, PairObjective, PairOptions, Weighing
from rankmill.trainer.parameters import BOTH, TrainParameters


@options
class RankNetOptions:
    """Options of ``ranknet``."""

    normalise: str = option_like(PairOptions, "normalise", default="none")
    ties: bool = option(default=False, help="Also use pairs of equal grade, with target probability 1/2.")
    truncation: int = option_like(PairOptions, "truncation", default=0)
    pair_fraction: float = option_like(PairOptions, "pair_fraction", default=1.0)


class RankNet(PairObjective):
    r"""Minimise the sum over pairs of ``(1 - P) sigma (s_i - s_j) + log(1 + exp(-sigma (s_i - s_j)))``.

    Source: Burges 2010, 2.

    P is the target probability that i belongs above j: 1 if y_i > y_j, or that of a given pair.  Uses ``sigma`` and
    ``seed`` of the parameters; ``truncation`` is an option of its own, not the parameter.

    Raises
    ------
    TrainingDataRejected
        There is no pair.
    """

    name: ClassVar[str] = "ranknet"
    Options: ClassVar[type[RankNetOptions]] = RankNetOptions

    def __init__(self, rows: RankedRows, parameters: TrainParameters, options: RankNetOptions) -> None:
        if options.ties and parameters.learn_from == BOTH:
            raise InvalidParameter("ranknet(ties=true) works with learn_from grades only; leave ties out")
        self._set_up(
            rows,
            Weighing.even(rows),
            _kernels.PairRules(
                sigma=parameters.sigma,
                truncation=options.truncation or 2**31,
                per_pair=options.normalise == PER_PAIR,
                ties=options.ties,
                fraction=options.pair_fraction,
                seed=parameters.seed,
            ),
        )


class RankBoost(PairObjective):
    r"""Minimise the sum of ``exp(s_j - s_i)`` over pairs of which i belongs above j.

    A given pair with the target probability P counts ``P exp(s_j - s_i) + (1 - P) exp(s_i - s_j)``.  Beyond a
    difference of 30 the loss continues along its tangent with constant h, a surrogate that keeps one pair from
    dominating all others. Uses ``seed`` of the parameters, but not ``sigma``.

    Raises
    ------
    TrainingDataRejected
        There is no pair.
    """

    name: ClassVar[str] = "rankboost"
    Options: ClassVar[type[PairOptions]] = PairOptions

    def __init__(self, rows: RankedRows, parameters: TrainParameters, options: PairOptions) -> None:
        self._set_up(
            rows,
            Weighing.even(rows),
            _kernels.PairRules(
                loss=_kernels.EXPONENTIAL,
                truncation=options.truncation or 2**31,
                per_pair=options.normalise == PER_PAIR,
                fraction=options.pair_fraction,
                seed=parameters.seed,
            ),
        )
