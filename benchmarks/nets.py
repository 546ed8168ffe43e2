"""Speed of nets: matrix products beside OpenBLAS, epochs beside PyTorch, and what factoring RankNet's update gains.

    products  our kernels and numpy's matrix product on one core, GFLOP/s
    epochs    seconds of an epoch on generated judgments (720,000 x 136, about 120 documents a query), and of PyTorch if
              --torch names an interpreter that has it; preparing the inputs, once a training, is measured separately
    factored  microseconds of one query of 10 .. 1,000 documents, pair by pair and factored, and the fitted exponents
    scores    documents a second of ``Net.predict``: from values, and from prepared inputs, where it only multiplies

Example: python benchmarks/nets.py products epochs --threads 1 2 --torch /opt/torch/bin/python
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from benchmarks import _ranknet_kernels
from rankmill.foundation.kernels.dense import add_products, dense, in_panels
from rankmill.trainer.data.rows import RankedRows
from rankmill.trainer.nets import _kernels
from rankmill.trainer.nets.options import NetOptions
from rankmill.trainer.nets.training import NetData, NetRows, train_net

SHAPES = [(4096, 136, 256), (4096, 256, 128), (4096, 128, 64), (1024, 46, 64)]
QUERY_SIZES = (10, 20, 50, 100, 200, 500, 1000)
WIDTHS = (256, 128)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=["products", "epochs", "factored", "scores"])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rows", type=int, default=720_000)
    parser.add_argument("--epochs", type=int, default=3, help="timed; one more comes first")
    parser.add_argument("--documents", type=int, default=4096, help="of a batch")
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--objective", default="softmax")
    parser.add_argument("--torch", type=Path, metavar="PYTHON", help="an interpreter that has torch")
    return parser.parse_args()


def main() -> None:
    given = arguments()
    for part in given.parts:
        print(f"{part}:", flush=True)
        PARTS[part](given)


def best_of(function: Callable[..., object], *given: object, times: int = 20) -> float:
    """Return the least seconds of this thread on a core, which other programs on the machine lengthen little."""
    function(*given)
    seconds = []
    for _ in range(times):
        start = time.thread_time()
        function(*given)
        seconds.append(time.thread_time() - start)
    return min(seconds)


def products(_: argparse.Namespace) -> None:
    rng = np.random.default_rng(0)
    for n, k, m in SHAPES:
        x, y, weights = (rng.normal(size=s).astype(np.float32) for s in ((n, k), (n, m), (k, m)))
        panels, bias, out = in_panels(weights), np.zeros(m, np.float32), np.zeros((n, m), np.float32)
        gradient, result = np.zeros_like(panels), np.zeros((k, m), np.float32)
        flops = 2e-9 * n * k * m
        ours, blas = best_of(dense, x, panels, bias, 0, n, out), best_of(np.dot, x, weights, out)
        back, blas_back = best_of(add_products, x, y, n, 0, k, gradient), best_of(np.dot, x.T, y, result)
        print(
            f"  [{n} x {k}] @ [{k} x {m}]: {flops / ours:4.0f} GFLOP/s, OpenBLAS {flops / blas:4.0f} "
            f"({blas / ours:.0%});"
            f" gradient of weights {flops / back:4.0f}, OpenBLAS {flops / blas_back:4.0f} ({blas_back / back:.0%})"
        )


def generated(n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((n, 136), dtype=np.float32)
    relevance = x[:, 0] + x[:, 1] * x[:, 2] + rng.standard_normal(n, dtype=np.float32)
    sizes = rng.integers(60, 181, size=n // 60)
    ends = np.cumsum(sizes)
    starts = np.concatenate(([0], ends[ends < n], [n])).astype(np.int64)
    return x, np.clip(relevance, 0, 4).astype(np.int32), starts


def epochs(given: argparse.Namespace) -> None:
    x, grades, starts = generated(given.rows)
    data = NetData(
        train=NetRows(x, RankedRows(grades, starts, ())), feature_names=[f"f{i}" for i in range(136)], max_grade=4
    )
    options = {"objective": given.objective, "layers": WIDTHS, "dropout": given.dropout}
    options |= {"batch_documents": given.documents, "epochs": given.epochs + 1}
    few = NetData(
        train=NetRows(x[:5000], RankedRows(grades[:5000], np.array([0, 2500, 5000]), ())),
        feature_names=data.feature_names, max_grade=4,
    )  # fmt: skip
    train_net(few, NetOptions(**{**options, "epochs": 1}), n_threads=2)  # compiles
    with tempfile.TemporaryDirectory() as folder:
        if given.torch:
            for name, array in (("x", x), ("grades", grades), ("starts", starts)):
                np.save(f"{folder}/{name}.npy", array)
        for threads in given.threads:
            wall, cores = epochs_of(data, NetOptions(**options), threads)
            print(
                f"  {threads} threads: an epoch {min(wall[1:]):.2f} s at best, {np.median(wall[1:]):.2f} s median,"
                f" {min(cores[1:]):.2f} s of cores; the first, with the inputs, {wall[0]:.2f} s",
                flush=True,
            )
            if given.torch:
                words = [given.torch, Path(__file__).with_name("nets_torch.py"), folder, threads, given.epochs + 1]
                words += [given.documents, given.dropout, json.dumps(WIDTHS)]
                done = subprocess.run([*map(str, words)], capture_output=True, text=True, check=False)
                if done.returncode:
                    sys.exit(done.stderr)
                peer = json.loads(done.stdout)
                theirs, of_cores = peer["seconds"][1:], peer["cores"][1:]
                print(
                    f"    PyTorch {peer['torch']}: {min(theirs):.2f} s at best, {np.median(theirs):.2f} s median,"
                    f" {min(of_cores):.2f} s of cores: {min(theirs) / min(wall[1:]):.2f}, "
                    f"{np.median(theirs) / np.median(wall[1:]):.2f}"
                    f" and {min(of_cores) / min(cores[1:]):.2f} times ours",
                    flush=True,
                )


def epochs_of(data: NetData, options: NetOptions, threads: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the seconds of each epoch, and those of all cores."""
    wall, cores = [time.perf_counter()], [time.process_time()]

    def note(*_: object) -> None:
        wall.append(time.perf_counter())
        cores.append(time.process_time())

    train_net(data, options, n_threads=threads, on_epoch=note)
    return np.diff(wall), np.diff(cores)


def factored(_: argparse.Namespace) -> None:
    rng = np.random.default_rng(2)
    table: dict[str, list[float]] = {"pair by pair": [], "factored": []}
    for n in QUERY_SIZES:
        x, grades = rng.normal(size=(n, 46)), rng.integers(0, 3, n)
        hidden, biases, top = rng.normal(size=(46, 10)), rng.normal(size=10), rng.normal(size=10)
        into = [np.zeros_like(a) for a in (hidden, biases, top)]
        times = 3 if n > 200 else 20
        net = x, grades, hidden, biases, top, 1.0, *into
        table["pair by pair"].append(best_of(_kernels.pair_by_pair, *net, 0.0, times=times))
        table["factored"].append(best_of(_ranknet_kernels.factored_gradient, *net, times=times))
    for name, seconds in table.items():
        exponent = np.polyfit(np.log(QUERY_SIZES), np.log(seconds), 1)[0]
        cells = " ".join(f"{n}: {1e6 * s:.0f}" for n, s in zip(QUERY_SIZES, seconds, strict=True))
        print(f"  {name}: us by documents of a query {cells}; time grows as n^{exponent:.2f}")


def scores(given: argparse.Namespace) -> None:
    x, grades, starts = generated(120_000)
    data = NetData(
        train=NetRows(x, RankedRows(grades, starts, ())), feature_names=[f"f{i}" for i in range(136)], max_grade=4
    )
    for transform in ("quantile", "log1p", "linear"):
        net = train_net(data, NetOptions(layers=WIDTHS, epochs=1, transform=transform)).net
        for threads in given.threads:
            systems = {"values": partial(net.predict, x, threads)}
            if transform == "quantile":
                inputs = np.empty((len(x), net.inputs.n_base), dtype=np.float32)
                net.inputs.write_numbers(net_rows(x), 0, len(x), inputs)
                none = np.zeros((len(x), 0), dtype=np.int32)
                systems["inputs"] = partial(net.scores_of_inputs, inputs, none, threads)
            for what, (wall, cores) in alternating(systems).items():
                speed = f"{len(x) / wall:,.0f} documents a second ({1e6 * cores / len(x):.2f} us of a core)"
                print(f"  {transform}, from {what}, {threads} threads: {speed}", flush=True)


def net_rows(x: np.ndarray) -> np.ndarray:
    rows = x.view()
    rows.flags.writeable = False  # kernels are compiled for one type
    return rows


def alternating(systems: dict[str, Callable[[], object]], times: int = 7) -> dict[str, tuple[float, float]]:
    """Return the least seconds by the clock and of all cores, of several calls of each system in turn."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in systems}
    for _ in range(times + 1):
        for name, call in systems.items():
            wall, cores = time.perf_counter(), time.process_time()
            call()
            found[name].append((time.perf_counter() - wall, time.process_time() - cores))
    return {name: (min(w for w, _ in each[1:]), min(c for _, c in each[1:])) for name, each in found.items()}


PARTS = {"products": products, "epochs": epochs, "factored": factored, "scores": scores}

if __name__ == "__main__":
    main()
