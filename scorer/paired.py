"""Two rankings of the same queries, compared query by query."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rankmill.scorer.metrics.bootstrap import percentile_interval
from rankmill.scorer.metrics.queries import mean_of

TIED = 1e-9  # differences up to this are rounding
MOST_SHOWN = 20  # queries that lost most
_BELOW_ONE_IN_40, _BELOW_ONE_IN_5 = 1.959963984540054, 0.8416212335729143  # standard deviations of a normal variable
_SHARES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)

Values = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Paired:
    """How much better one ranking of the same queries is than another.

    Attributes
    ----------
    n_queries
        Queries that count.
    candidate, other
        Means over them.
    difference
        Mean over the queries of candidate - other, or of other - candidate where lower is better: above 0 the candidate
        is better.
    interval
        95 % percentile bootstrap interval of ``difference`` (see `rankmill.scorer.metrics.bootstrap`).
    wins, ties, losses
        Queries in which the candidate is better, within 1e-9, worse.
    effect_size
        ``difference`` divided by the standard deviation of the differences (Cohen's d of paired samples); None where
        they do not vary.
    quantiles
        Of the differences: the least value that at least this share of them does not exceed.
    worst
        The queries that lost most: id, candidate, other and difference, the largest loss first.
    """

    n_queries: int
    candidate: float
    other: float
    difference: float
    interval: tuple[float, float]
    wins: int
    ties: int
    losses: int
    effect_size: float | None
    quantiles: dict[str, float]
    worst: tuple[tuple[str, float, float, float], ...]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        facts = asdict(self)
        facts["interval"] = list(self.interval)
        facts["worst"] = [
            dict(zip(("qid", "candidate", "other", "difference"), row, strict=True)) for row in self.worst
        ]
        return facts


def compare(
    candidate: Values,
    other: Values,
    qids: Any,
    *,
    weights: Values | None = None,
    higher_is_better: bool = True,
    most_shown: int = MOST_SHOWN,
) -> Paired | None:
    """Compare a metric of the same queries under two rankings; None where fewer than two queries count.

    Parameters
    ----------
    candidate, other
        (q,) float64 values, NaN where a query does not count: for both or for neither.
    qids
        (q,) ids, an Arrow array of strings.
    weights
        (q,) of the queries in the mean, where they differ (`rankmill.scorer.metrics.queries.PreparedQueries.weights`).
    higher_is_better
        Whether a larger value is a better one.
    most_shown
        How many queries ``worst`` may name.

    Raises
    ------
    ValueError
        The two are not about the same queries.
    """
    counts = ~np.isnan(candidate)
    if candidate.shape != other.shape or not np.array_equal(counts, ~np.isnan(other)):
        raise ValueError("the two rankings are not about the same queries")
    differences = candidate - other if higher_is_better else other - candidate
    differences = differences + 0.0  # no -0.0: equal differences have equal bytes
    interval = percentile_interval(differences, weights=weights)
    if interval is None:
        return None
    place = np.flatnonzero(counts)
    found = differences[place]
    lost = place[np.argsort(found, kind="stable")[:most_shown]]
    ordered = np.sort(found)
    n = len(found)
    return Paired(
        n_queries=n,
        candidate=mean_of(candidate),
        other=mean_of(other),
        difference=mean_of(differences),
        interval=interval,
        wins=int(np.count_nonzero(found > TIED)),
        ties=int(np.count_nonzero(np.abs(found) <= TIED)),
        losses=int(np.count_nonzero(found < -TIED)),
        effect_size=_effect_size(found.tolist()),
        quantiles={str(share): float(ordered[max(0, math.ceil(share * n) - 1)]) for share in _SHARES},
        worst=tuple(
            (str(qids[int(q)]), float(candidate[q]), float(other[q]), float(differences[q]))
            for q in lost
            if differences[q] < -TIED
        ),
    )


def queries_for(margin: float, found: Paired, difference: float = 0.0) -> int | None:
    """About how many queries like these would pass ``margin`` four times in five if ``difference`` is the true one.

    The lower end of an interval is the mean less 1.96 standard errors, and the mean itself is below the true difference by
    0.84 of them once in five times: both together may not exceed margin + difference.  A standard error falls with the square
    root of the number of queries, so that it takes ((1.96 + 0.84) / 1.96 * width / room)^2 times as many as there
    were, for the width from mean to lower end and the room margin + difference.  None where the interval is narrow enough
    already, or no number is enough.
    """
    width, room = found.difference - found.interval[0], margin + difference
    if room <= 0.0 or width <= room:
        return None
    exact = found.n_queries * ((_BELOW_ONE_IN_40 + _BELOW_ONE_IN_5) / _BELOW_ONE_IN_40 * width / room) ** 2
    digits = int(10 ** max(0, math.floor(math.log10(exact)) - 1))
    return math.ceil(exact / digits) * digits


def _effect_size(differences: list[float]) -> float | None:
    if min(differences) == max(differences):
        return None
    n = len(differences)
    mean = math.fsum(differences) / n
    return mean / math.sqrt(math.fsum((x - mean) * (x - mean) for x in differences) / (n - 1))
