"""Time the histogram kernel alone: ns per (row, feature) and core, compared with a straightforward kernel.

A node has all rows, an eighth or a 64th of them, random and in ascending order.  The plain kernel adds gradient and
hessian as two float64, column by column, from column-major bins.  Both kernels read gradients in the order of the
node's rows and clear their histogram.  Each of two threads counts half of the features into its own aligned histogram.
The kernels take turns; results are medians with ranges in brackets.

Bins are from generated judgments (many zeros, few distinct values, as in real data) and uniform over all 255.

Example: python benchmarks/histogram.py --rows 720000 --features 128 --threads 1 2
"""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from numba import njit

from benchmarks.cases import DOCUMENTS_PER_QUERY
from benchmarks.report import render, spread, surroundings, table
from rankmill.pipeline.bins.layout import BIN, BINS_A_FEATURE, BLOCK_WIDTH
from rankmill.pipeline.bins.spec import BinSpec, apply_bins, feature_bins
from rankmill.pipeline.options import SynthParameters
from rankmill.pipeline.synth import generate
from rankmill.trainer.data.layout import PACKED, ROW, BlockedBins, aligned_empty
from rankmill.trainer.growing import _histogram_kernels
from rankmill.trainer.growing._state_kernels import LOOK_AHEAD, Bins

DENSITIES = (1, 8, 64)
LEAST_SECONDS = 0.05  # minimum duration of a measurement

Count = Callable[[], object]


@njit(nogil=True, cache=True, error_model="numpy")
def plain_kernel(columns, rows, gradients, hessians, first, last, histogram):
    """histogram[f, bin] += (g, h) of rows, for features first .. last; ``columns`` (n_features, n_rows)."""
    for f in range(first, last):
        column, out = columns[f], histogram[f - first]
        out[:] = 0.0
        for i in range(rows.shape[0]):
            b = column[rows[i]]
            out[b, 0] += gradients[i]
            out[b, 1] += hessians[i]


@dataclass(frozen=True)
class Node:
    rows: npt.NDArray[np.int32]  # ascending
    gradients: npt.NDArray[np.float64]  # in the order of rows
    hessians: npt.NDArray[np.float64]
    packed: npt.NDArray[np.int64]


def ours(bins: BlockedBins, node: Node, share: int, shares: int) -> Count:
    """Calls the trainer's kernel for one share of the features, as in training."""
    rows = np.concatenate([node.rows, np.zeros(LOOK_AHEAD, dtype=ROW)])  # padding for prefetching past the end
    histogram = aligned_empty((len(bins.n_bins), BINS_A_FEATURE), PACKED)
    edge = aligned_empty((bins.width, BINS_A_FEATURE), PACKED)
    table = aligned_empty((bins.width + 1, BINS_A_FEATURE), PACKED)
    blocks = np.arange(len(bins.words))
    laid_out = Bins(
        bins.words, bins.used_words, blocks, bins.n_bins, bins.lanes, bins.digits, bins.by_lane, bins.block_starts
    )
    return lambda: _histogram_kernels.count_share(
        laid_out, rows, node.packed, 0, len(node.rows), share, shares, histogram, table, edge
    )


def plain(columns: npt.NDArray[np.uint8], node: Node, share: int, shares: int) -> Count:
    n_features = len(columns)
    first, last = n_features * share // shares, n_features * (share + 1) // shares
    histogram = aligned_empty((last - first, BINS_A_FEATURE, 2), np.float64)
    return lambda: plain_kernel(columns, node.rows, node.gradients, node.hessians, first, last, histogram)


def make_node(n_rows: int, density: int, seed: int) -> Node:
    rng = np.random.default_rng(seed)
    kept = np.sort(rng.choice(n_rows, n_rows // density, replace=False)).astype(ROW)
    g, h = rng.normal(size=len(kept)), rng.random(len(kept))
    steps = 2.0**31 / (4.0 * n_rows)  # sums fit into 32 bits
    packed = (np.rint(g * steps).astype(np.int64) << 32) + np.rint(h * steps).astype(np.int64)
    return Node(kept, g, h, packed)


def judgments(n_rows: int, n_features: int, seed: int) -> npt.NDArray[np.uint8]:
    """Bins (n_rows, n_features) of generated judgments."""
    queries = n_rows // DOCUMENTS_PER_QUERY + 20
    parameters = SynthParameters(
        queries=queries, documents_per_query=DOCUMENTS_PER_QUERY, features=n_features, seed=seed
    )
    x = np.concatenate([block.values.T for block in generate(parameters)])[:n_rows]
    spec = BinSpec(tuple(feature_bins(f"f{i}", x[:, i].copy()) for i in range(n_features)))
    return apply_bins(x, spec)


def evenly(n_rows: int, n_features: int, seed: int) -> npt.NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(1, 256, (n_rows, n_features), dtype=BIN)


def seconds_of(counts: list[Count], repeats: int) -> float:
    """Return the mean wall time of one count in seconds, while each thread repeats its own."""
    if len(counts) == 1:
        begin = time.perf_counter()
        for _ in range(repeats):
            counts[0]()
        return (time.perf_counter() - begin) / repeats
    barrier, taken = threading.Barrier(len(counts)), list[float]()

    def work(count: Count) -> None:
        barrier.wait()
        taken.append(seconds_of([count], repeats))

    threads = [threading.Thread(target=work, args=(count,)) for count in counts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return max(taken)


def nanoseconds(counts: list[Count], visits: int) -> Callable[[], float]:
    """Return a measurement of ns per (row, feature) and core, with enough repetitions to be timed."""
    once = seconds_of(counts, 1)  # compiles or loads the kernel
    once = min(once, seconds_of(counts, 1))
    repeats = max(1, int(LEAST_SECONDS / once))
    return lambda: seconds_of(counts, repeats) * len(counts) / visits * 1e9


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=720_000)
    parser.add_argument("--features", type=int, default=128, help="whole blocks: nothing is counted in vain")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--block-width", type=int, nargs="+", default=[BLOCK_WIDTH])
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    if any(given.features % width for width in given.block_width):
        parser.error(f"--features must fill blocks of {' and '.join(map(str, given.block_width))}")
    return given


def main() -> None:
    given = arguments()
    print(render(surroundings()))
    for name, make in (("of generated judgments", judgments), ("spread evenly", evenly)):
        matrix = make(given.rows, given.features, given.seed)
        n_bins = matrix.max(axis=0).astype(np.int32) + 1
        columns = np.ascontiguousarray(matrix.T)
        blocked = {w: BlockedBins.from_batches([matrix], len(matrix), n_bins, w) for w in given.block_width}
        del matrix
        lines = []
        for density in DENSITIES:
            node = make_node(given.rows, density, given.seed)
            visits = len(node.rows) * given.features
            for threads in given.threads:
                measured = {
                    f"ours, blocks of {width}": nanoseconds(
                        [ours(bins, node, share, threads) for share in range(threads)], visits
                    )
                    for width, bins in blocked.items()
                } | {"plain": nanoseconds([plain(columns, node, s, threads) for s in range(threads)], visits)}
                taken: dict[str, list[float]] = {kernel: [] for kernel in measured}
                for _ in range(given.turns):
                    for kernel, measurement in measured.items():
                        taken[kernel].append(measurement())
                for kernel, values in taken.items():
                    ratios = [mine / other for mine, other in zip(values, taken["plain"], strict=True)]
                    share = "1" if density == 1 else f"1/{density}"
                    lines.append([share, str(threads), kernel, spread(values, 3), spread(ratios)])
        headings = ["rows in the node", "threads", "kernel", "ns per (row, feature) and core", "to plain"]
        print(f"{given.rows:,} rows x {given.features} features, bins {name}, turns: {given.turns}\n")
        print(table(headings, lines) + "\n", flush=True)


if __name__ == "__main__":
    main()
