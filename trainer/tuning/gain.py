"""How much of the gain of a search is noise.

The best of many trials on some queries is partly the luckiest on these queries, so its gain over the options as given
looks larger than it is.  The correction is BBC-CV (Tsamardinos, Greasidou & Borboudakis 2018, Machine Learning 107). It
repeats the choice on queries drawn with replacement, and measures the chosen trial on the queries that were not drawn.
Nothing is trained again.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import fsum

import numpy as np
import numpy.typing as npt

from rankmill.foundation.records import left_out

REPLICATES, SEED = 1000, 20180903
LEAST_QUERIES = 5  # with fewer, most draws leave none or one out


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """What the best trial gains over trial 0, the options as given; positive is better, whatever the measure.

    ``observed`` is the gain on the queries that chose the trial. ``corrected`` is the mean gain of a choice on queries
    that had no part in it; ``low`` to ``high`` is its 95 % percentile interval. ``noise`` is the share of the observed
    gain that is lost.
    """

    queries: int
    observed: float
    corrected: float
    low: float
    high: float
    noise: float | None = left_out()  # None: nothing was gained

    def render(self, measure: str, trial: int) -> str:
        """Return a few lines for people."""
        if not trial:
            return f"no trial has a better {measure} than the options as given, which are trial 0"
        lost = "" if self.noise is None else f"; {self.noise:.0%} of the gain is luck of the choice"
        return (
            f"trial {trial} gains {self.observed:.4f} in {measure} over the options as given on the {self.queries:,} "
            "queries that"
            f" chose it,\nbut {self.corrected:+.4f} ({self.low:+.4f} to {self.high:+.4f}) on queries that did not{lost}"
            + ("" if self.corrected > 0.0 else ": the options as given are as good, so trial 0 wins")
        )


def gain_of(values: npt.NDArray[np.int64], best: int, unit: float) -> Gain | None:
    """Return the gain of row ``best`` of ``values`` (n_trials, n_queries) over row 0; None if there are few queries.

    ``values`` are whole multiples of ``unit``, and negative where lower is better, so that sums are exact in any order.
    Of equal trials the first is chosen.  Replicate b draws from the Philox counter generator with key (``SEED``, b),
    whose raw stream NumPy guarantees.
    """
    n = values.shape[1]
    if n < LEAST_QUERIES:
        return None
    gains, unseen = values - values[0], []
    for replicate in range(REPLICATES):
        raw = np.random.Philox(key=np.array([SEED, replicate], np.uint64)).random_raw(n)
        drawn = np.bincount(((raw >> np.uint64(32)) * np.uint64(n) >> np.uint64(32)).astype(np.intp), minlength=n)
        chosen = int(np.argmax(gains @ drawn))
        rest = gains[chosen, drawn == 0].tolist()
        if rest:
            unseen.append(sum(rest) / len(rest) * unit)
    unseen.sort()
    tail = round(0.025 * len(unseen))
    observed, corrected = sum(gains[best].tolist()) / n * unit, fsum(unseen) / len(unseen)
    return Gain(
        queries=n,
        observed=observed,
        corrected=corrected,
        low=unseen[tail],
        high=unseen[-1 - tail],
        noise=min(1.0, max(0.0, 1.0 - corrected / observed)) if observed > 0.0 else None,
    )
