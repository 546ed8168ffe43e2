"""Cost of a round: fit seconds = a + b x over rows and over features, in multiples of the smallest.

First rows x 1, 2, 4 (180,000 to 720,000) with all features, then features x 1, 2, 4 (34 to 136) with all rows.  Data
are generated as for benchmarks/train.py.  Every point is the median of interleaved runs, each in its own process with
kernels compiled before the clock starts.  The fit minimises the relative error, so that all points count equally.

Example: python benchmarks/cost.py --threads 1 --turns 5
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.cases import Case, prepare
from benchmarks.report import render, surroundings, table
from benchmarks.runs import RunFailed, measure
from benchmarks.systems import RANKING, Task

MULTIPLES = (1, 2, 4)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--system", choices=list(RANKING), default="rankmill")
    parser.add_argument("--queries", type=int, default=6000, help="at x 4, about 120 documents each")
    parser.add_argument("--features", type=int, default=136, help="at x 4; 10 at least at x 1")
    parser.add_argument("--leaves", type=int, default=31)
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1, help="of the judgments")
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="keep the generated arrays here and use them again")
    return parser.parse_args()


def fit(sizes: npt.ArrayLike, seconds: npt.ArrayLike) -> tuple[float, float, npt.NDArray[np.float64]]:
    """Fit seconds = a + b size by least squares of the relative error; return a, b and the error at each point.

    >>> a, b, errors = fit([1, 2, 4], [3.0, 5.0, 9.0])
    >>> round(a, 9), round(b, 9), bool(np.allclose(errors, 0))
    (1.0, 2.0, True)
    """
    x, y = np.asarray(sizes, dtype=np.float64), np.asarray(seconds, dtype=np.float64)
    columns = np.stack([np.ones_like(x), x], axis=1) / y[:, None]
    (a, b), *_ = np.linalg.lstsq(columns, np.ones_like(y), rcond=None)
    return float(a), float(b), (a + b * x) / y - 1.0


def main() -> None:
    given = arguments()
    sweeps = {
        "rows": [(given.queries * m // MULTIPLES[-1], given.features) for m in MULTIPLES],
        "features": [(given.queries, given.features * m // MULTIPLES[-1]) for m in MULTIPLES],
    }
    points = list(dict.fromkeys(point for sweep in sweeps.values() for point in sweep))
    system = RANKING[given.system]
    print(render(surroundings([system.package] if system.package else [])), flush=True)
    with tempfile.TemporaryDirectory() as work:
        cases = {point: Case(name="mslr", queries=point[0], features=point[1]) for point in points}
        folders = {point: prepare(case, given.seed, given.data or Path(work)) for point, case in cases.items()}
        for threads in given.threads:
            task = Task(given.leaves, threads, given.rounds)
            seconds: dict[tuple[int, int], list[float]] = {point: [] for point in points}
            rows: dict[tuple[int, int], int] = {}
            for turn in range(given.turns):
                for point in points if turn % 2 == 0 else reversed(points):
                    try:
                        figures = measure(folders[point], given.system, task)
                    except RunFailed as failure:
                        sys.exit(str(failure))
                    print(f"turn {turn} {figures['rows']:,} x {point[1]}: {figures['round_s']:.4f}", file=sys.stderr)
                    seconds[point].append(figures["round_s"])
                    rows[point] = figures["rows"]
            print(
                f"{given.system}, {given.leaves} leaves; threads: {threads}, rounds: {given.rounds}, turns: "
                f"{given.turns}\n"
            )
            for over, sweep in sweeps.items():
                sizes = [rows[point] if over == "rows" else point[1] for point in sweep]
                show(over, sizes, [float(np.median(seconds[point])) for point in sweep])


def show(over: str, sizes: list[int], seconds: list[float]) -> None:
    a, b, errors = fit(sizes, seconds)
    unit = 100_000 if over == "rows" else 1
    label = "100,000 rows" if over == "rows" else "feature"
    print(f"over {over}: s/round = a + b x with a = {a:.5f} s, b = {b * unit:.6f} s a {label}\n")
    lines = [
        (f"{size:,}", f"{measured:.4f}", f"{a + b * size:.4f}", f"{error:+.1%}")
        for size, measured, error in zip(sizes, seconds, errors.tolist(), strict=True)
    ]
    print(table([over, "s/round", "a + b x", "residual"], lines) + "\n", flush=True)


if __name__ == "__main__":
    main()
