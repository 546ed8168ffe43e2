"""The options of judgments made from clicks.  Nothing heavy is imported here: the command line reads this module."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Literal, get_args

from rankmill.foundation.errors import InputError
from rankmill.foundation.options import group, option, options, spelled

ClickEstimate = Literal["dctr", "coec", "pbm", "ips", "snips"]
JudgmentForm = Literal["labels", "grades", "pairs"]

WITHOUT_PROPENSITIES = ("dctr", "coec")  # estimates that do not need them
DEFAULT_SHRINKAGE = 10.0  # of estimates for which it does not follow from the log

_GRADES = "Grades"


def _numbers(texts: Iterable[str]) -> tuple[float, ...]:
    """Read texts such as ``0.1,0.3``.

    >>> _numbers(["0.1, 0.3"])
    (0.1, 0.3)
    """
    pieces = [piece.strip() for text in texts for piece in text.split(",")]
    try:
        return tuple(map(float, pieces))
    except ValueError:
        raise InputError(f"expected numbers such as 0.1,0.3, found {','.join(pieces)!r}") from None


@options
class ClickWeighting:
    """What a click counts, and how examination probabilities are used."""

    clip: float = option(
        default=0.1,
        help="Examination probabilities below this are taken as this, so that no click counts more than 1 / clip.",
        above=0,
        most=1,
    )
    conversion_weight: float = option(
        default=0.0, help="A click counts 1, and this much more if it converted.", least=0, most=1000
    )
    min_dwell: float = option(
        default=0.0, help="Clicks with a dwell time below this many seconds do not count.", least=0, most=1e9
    )


@options
class JudgeOptions:
    """How judgments are made from clicks."""

    form: JudgmentForm = option(
        default="labels",
        help="labels: an estimate for each document. grades: also a grade. pairs: preference pairs.",
        choices=get_args(JudgmentForm),
        flags=("--as",),
    )
    estimate: ClickEstimate | None = option(
        default=None,
        help="How relevance is estimated. Default: pbm with --propensities, else dctr.",
        choices=get_args(ClickEstimate),
    )
    weighting: ClickWeighting = group(default_factory=ClickWeighting)
    shrinkage: float | None = option(
        default=None,
        help="Number of impressions of an average document that are added to each one by dctr, coec and pbm."
        " Default: 10; for pbm estimated from the log.",
        least=0,
        most=1e9,
    )
    min_impressions: int = option(
        default=1, help="Documents that were shown less often than this are left out.", least=1
    )
    thresholds: tuple[float, ...] = option(
        default=(),
        help="Lowest estimates of grade 1, 2, ..: 0.1,0.3,0.6.",
        metavar="LABEL,..",
        read=_numbers,
        repeat=True,
        convert=tuple,
        panel=_GRADES,
    )
    quantiles: tuple[float, ...] = option(
        default=(),
        help="Shares of the documents below grade 1, 2, ..; without thresholds 0.5,0.75,0.9,0.97.",
        metavar="SHARE,..",
        read=_numbers,
        repeat=True,
        convert=tuple,
        panel=_GRADES,
    )
    certainty: float = option(
        default=0.0,
        help="Leave a document out if its grade differs by more than 1 within this many standard errors of its estimate. 0: keep all.",
        least=0,
        most=100,
        panel=_GRADES,
    )

    def check_together(self) -> None:
        """Raise InputError if values do not go together."""
        for name, numbers in (("thresholds", self.thresholds), ("quantiles", self.quantiles)):
            if numbers and self.form != "grades":
                raise InputError(f"{spelled(name)} applies to {spelled('form')} grades; leave it out")
            if any(not low < high for low, high in pairwise(numbers)):
                raise InputError(f"{spelled(name)} must ascend, got {','.join(map(str, numbers))}")
        if any(not 0.0 < share < 1.0 for share in self.quantiles):
            raise InputError(
                f"{spelled('quantiles')} must be between 0 and 1, got {','.join(map(str, self.quantiles))}"
            )
        if self.thresholds and self.quantiles:
            raise InputError(f"{spelled('thresholds')} and {spelled('quantiles')}: use one of the two")
        if self.form == "pairs" and self.estimate is not None:
            raise InputError(f"{spelled('estimate')} does not apply to {spelled('form')} pairs; leave it out")
