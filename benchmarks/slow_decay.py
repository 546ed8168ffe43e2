"""Do many small losses pass the gate?  Chains of nightly promotions, judged by the gate's own functions.

Each night brings a version whose true NDCG@10 differs from that of the present version by a step; the gate compares
both on queries drawn for that night.  A version's value of a query is its true quality plus noise.  The noise is drawn
from the differences between two real models (MQ2008, other seeds and nine tenths of the training queries), so it has
their ties and long tails.  It is scaled to the spread that is asked for: fewer queries then have the standard error of
many, and a night costs less.

``margin only`` is the rule of before: the lower end of the interval above -margin, against the present version.
``not worse`` also refuses what is significantly worse than it.  ``best of 5`` is the default of the gate: the same
against the best of the last five versions.

The bootstrap draws the same queries whenever their number is the same, so the draws are kept as a matrix here.  The
first intervals of each process are compared with those of `percentile_interval`.

Example: python -m benchmarks.slow_decay --data FOLDER
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
from joblib import Parallel, delayed

from benchmarks.letor import PARTS, make_fold
from benchmarks.report import table
from rankmill import Ranker
from rankmill.gate.rankings import Rival
from rankmill.scorer.metrics import Policy, parse_metric, significance
from rankmill.scorer.metrics.per_query import PreparedQueries
from rankmill.scorer.metrics.significance import BOOTSTRAP_SEED, REPLICATES, compare_paired, percentile_interval

Values = npt.NDArray[np.float64]
METRIC = parse_metric("ndcg@10")
GAIN = 0.006  # of the truly better version now and then
RULES = {
    "margin only": (1, True),
    "not worse": (1, False),
    "best of 5": (5, False),
}  # versions, and whether worse is allowed


@dataclass(frozen=True)
class Scenario:
    name: str
    step: float  # true difference from the present version
    better: float = 0.0  # share of nights with a version that is better by GAIN


SCENARIOS = (
    Scenario("the same", 0.0),
    Scenario(".002 worse a night", -0.002),
    Scenario("one in five .006 better, else the same", 0.0, 0.2),
    Scenario("one in five .006 better, else .002 worse", -0.002, 0.2),
)


def real_differences(folder: Path) -> Values:
    """Return the differences in NDCG@10 of two models on the test queries of all folds, of mean 0."""
    rng, found = np.random.default_rng(1), []
    with tempfile.TemporaryDirectory() as work:
        for number in range(PARTS):
            fold = make_fold(folder, number, Path(work))
            train, test = fold.train, fold.test
            queries = PreparedQueries(test.grades, test.starts, Policy())
            values = []
            for seed in (1, 2):
                kept = np.flatnonzero(rng.random(len(train.sizes)) < 0.9)
                rows = np.concatenate([np.arange(train.starts[q], train.starts[q + 1]) for q in kept])
                model = Ranker(n_rounds=100, seed=seed, n_threads=1)
                model.fit(train.x[rows], train.grades[rows], qid=np.repeat(kept, train.sizes[kept]))
                values.append(queries.evaluate([METRIC], model.predict(test.x))[METRIC])
            found.append((values[1] - values[0])[queries.can_differ([METRIC])[METRIC]])
    differences: Values = np.concatenate(found)
    moved = np.abs(differences) > 1e-9
    differences[moved] -= differences.mean() / moved.mean()
    return differences


class Draws:
    """`percentile_interval` for one number of queries, with the same draws."""

    def __init__(self, n: int) -> None:
        self._counts, self._left = np.zeros((REPLICATES, n)), 20
        for b in range(REPLICATES):
            raw = np.random.Philox(key=np.array([BOOTSTRAP_SEED, b], np.uint64)).random_raw(n)
            self._counts[b] = np.bincount(((raw >> np.uint64(32)) * np.uint64(n)) >> np.uint64(32), minlength=n)

    def interval(self, values: Values, *, weights: None = None) -> tuple[float, float]:  # noqa: ARG002
        means = np.sort(self._counts @ values / len(values))
        lowest = round(0.025 * REPLICATES)
        found = float(means[lowest]), float(means[REPLICATES - 1 - lowest])
        if self._left:
            self._left -= 1
            np.testing.assert_allclose(found, percentile_interval(values) or (), rtol=0.0, atol=1e-12)
        return found


@dataclass(frozen=True)
class Case:
    """What chains share: ``noise`` are differences of two models, ``rule`` is one of `RULES`."""

    noise: Values
    scenario: Scenario
    rule: tuple[int, bool]
    margin: float
    queries: int
    nights: int

    def chains(self, n: int) -> npt.NDArray[np.float64]:
        """Return (n, 4): the true quality at the end, promotions, better versions that came, and those refused."""
        rng = np.random.default_rng(40)
        with patch.object(significance, "percentile_interval", Draws(self.queries).interval):
            return np.array([self._chain(rng) for _ in range(n)])

    def _chain(self, rng: np.random.Generator) -> tuple[float, int, int, int]:
        (reach, worse_allowed), held, came, refused = self.rule, [0.0], 0, 0
        qids, everywhere = range(self.queries), np.ones(self.queries, dtype=bool)

        def measured(quality: float) -> Values:
            drawn = self.noise[rng.integers(0, len(self.noise), self.queries)]
            values: Values = quality + drawn * (rng.integers(0, 2, self.queries) * 2 - 1) / np.sqrt(2.0)
            return values

        def passes(candidate: Values, other: Values) -> bool:
            found = compare_paired(candidate, other, qids, can_differ=everywhere, most_shown=0)
            assert found is not None
            return Rival("", "", candidate, "not worse").passed(found, self.margin, worse_allowed)

        for _ in range(self.nights):
            better = rng.random() < self.scenario.better
            quality = held[-1] + (GAIN if better else self.scenario.step)
            candidate, *values = (measured(true) for true in [quality, *held[-reach:]])
            present, best = len(values) - 1, max(range(len(values)), key=lambda at: float(values[at].mean()))
            passed = all(passes(candidate, values[at]) for at in dict.fromkeys((present, best)))
            came, refused = came + better, refused + (better and not passed)
            if passed:
                held.append(quality)
        return held[-1], len(held) - 1, came, refused


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with mq2008/S1.txt ..")
    parser.add_argument("--chains", type=int, default=1000)
    parser.add_argument("--nights", type=int, default=30)
    parser.add_argument("--queries", type=int, default=500)
    parser.add_argument("--spread", type=float, default=0.03, help="standard deviation of a difference")
    parser.add_argument("--margin", type=float, default=0.01)
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args()
    real = real_differences(given.data / "mq2008")
    ties = np.mean(np.abs(real) <= 1e-9)
    print(f"two models on {len(real)} queries: standard deviation {real.std():.3f}, {ties:.0%} ties")
    cases = [
        (
            scenario,
            name,
            Case(real * given.spread / real.std(), scenario, rule, given.margin, given.queries, given.nights),
        )
        for scenario in SCENARIOS
        for name, rule in RULES.items()
    ]
    found = Parallel(n_jobs=given.processes)(delayed(case.chains)(given.chains) for *_, case in cases)
    rows = []
    for (scenario, name, _), chains in zip(cases, found, strict=True):
        ends, promoted, came, refused = chains.T
        share = f"{refused.sum() / came.sum():.1%}" if came.any() else ""
        quality = [f"{ends.mean():+.4f}", f"{np.quantile(ends, 0.05):+.4f}"]
        rows.append([scenario.name, name, *quality, f"{promoted.mean():.1f} of {given.nights}", share])
    head = ["versions of a night", "rule", "quality at the end", "worst 5 %", "promoted", "better ones refused"]
    print(table(head, rows))


if __name__ == "__main__":
    main()
