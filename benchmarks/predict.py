"""Time scoring of raw features, compared with predict() of other tools on the same trees.

    python benchmarks/predict.py [--documents 120000] [--repeats 5] [--categorical 20] [--lleaves PYTHON]

LightGBM trains two models (500 trees of 64 leaves, 1,000 of 31; 136 features).  They are scored by LightGBM and, after
conversion with the reader of ``rankmill convert``, by us; the scores must agree.  Oblivious trees (1,000 of depth 6)
are scored by CatBoost and by us, each with its own model of the same shape.  The systems take turns; results are
medians.  lleaves compiles for minutes and needs its own environment: PYTHON is an interpreter with lleaves and numpy.
With ``--categorical`` so many of the first columns are categories, of 10, 100 or 1,000 each, which LightGBM splits by
sets; CatBoost is then left out.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.report import render, spread, surroundings, table
from rankmill.scorer.exchange.formats import read_from
from rankmill.scorer.forest.forest import Forest
from rankmill.scorer.forest.predict import TILE, ForestPredictor

FEATURES = 136
TRAINED_ON = 30_000
QUERY = 100  # documents in a measurement of latency
SHAPES = ((500, 64), (1000, 31))
LLEAVES = """
import json, sys, time
import numpy as np
import lleaves
values = np.load(sys.argv[2])
begin = time.perf_counter()
model = lleaves.Model(model_file=sys.argv[1])
model.compile()
print(json.dumps(time.perf_counter() - begin), flush=True)
for line in sys.stdin:
    documents, threads = json.loads(line)
    rows = values[:documents]
    begin = time.perf_counter()
    scores = model.predict(rows, n_jobs=threads)
    print(json.dumps([time.perf_counter() - begin, float(np.sum(scores))]), flush=True)
"""

Timed = Callable[[int, int], float]
"""Returns the seconds for a number of documents on a number of threads."""


def with_categories(values: np.ndarray, columns: int) -> None:
    """Replace the first ``columns`` by the numbers of their quantiles, in a random order."""
    for f in range(columns):
        k = (10, 100, 1000)[f % 3]
        numbers = np.random.default_rng(f).permutation(k)
        values[:, f] = numbers[np.searchsorted(np.quantile(values[:, f], np.arange(1, k) / k), values[:, f])]


def made(documents: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return features for training and scoring, and labels that depend on half of the features."""
    generator = np.random.Generator(np.random.PCG64(3))
    values = generator.standard_normal((TRAINED_ON + documents, FEATURES), dtype=np.float32)
    values[:, ::3] = np.exp(values[:, ::3])
    label = values[:TRAINED_ON, : FEATURES // 2] @ generator.standard_normal(FEATURES // 2) + 8 * np.sin(
        values[:TRAINED_ON, 1]
    )
    return values[:TRAINED_ON], label, np.ascontiguousarray(values[TRAINED_ON:])


def ours(forest: Forest, values: np.ndarray) -> Timed:
    predictor = ForestPredictor(forest)

    def run(documents: int, threads: int) -> float:
        rows = values[:documents]
        begin = time.perf_counter()
        predictor.scores(rows, n_threads=threads)
        return time.perf_counter() - begin

    return run


def lightgbm(trees: int, leaves: int, train: np.ndarray, label: np.ndarray, path: Path, categorical: int) -> None:
    import lightgbm as lgb

    parameters = {
        "objective": "regression", "num_leaves": leaves, "learning_rate": 0.05, "min_data_in_leaf": 20, "verbose": -1,
        "num_threads": 2, "boost_from_average": False,
    }  # fmt: skip
    rows = lgb.Dataset(train, label, categorical_feature=[*range(categorical)])
    lgb.train(parameters, rows, trees).save_model(path)


def lightgbm_predict(path: Path, values: np.ndarray) -> Timed:
    import lightgbm as lgb

    booster = lgb.Booster(model_file=path)

    def run(documents: int, threads: int) -> float:
        rows = values[:documents]
        begin = time.perf_counter()
        booster.predict(rows, num_threads=threads)
        return time.perf_counter() - begin

    return run


class Lleaves:
    """Runs lleaves in another interpreter."""

    def __init__(self, python: str, model: Path, values: Path) -> None:
        command = [python, "-c", LLEAVES, str(model), str(values)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.compiled_in = float(self._answer())

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("lleaves has ended; see above")
        return line

    def __call__(self, documents: int, threads: int) -> float:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([documents, threads]) + "\n")
        self._process.stdin.flush()
        return float(json.loads(self._answer())[0])

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def oblivious(train: np.ndarray, label: np.ndarray) -> tuple[Forest, object]:
    from catboost import CatBoostRegressor

    from rankmill import Ranker

    qid = np.arange(len(label)) // 100
    ranker = Ranker(
        preset="defaults-1",
        objective="l2",
        metric="ndcg@10",
        grow="oblivious",
        max_depth=6,
        n_rounds=1000,
        learning_rate=0.05,
        n_threads=2,
    )
    grades = np.clip(np.round((label - label.mean()) / label.std() * 1.5 + 2), 0, 4).astype(np.int32)
    ranker.fit(train, grades, qid=qid)
    peer = CatBoostRegressor(
        iterations=1000, depth=6, learning_rate=0.05, verbose=False, allow_writing_files=False, thread_count=2
    )
    peer.fit(train, label)
    return ranker.forest_, peer


def catboost_predict(model: object, values: np.ndarray) -> Timed:
    def run(documents: int, threads: int) -> float:
        rows = values[:documents]
        begin = time.perf_counter()
        model.predict(rows, thread_count=threads)  # type: ignore[attr-defined]
        return time.perf_counter() - begin

    return run


def after_binning(forest: Forest) -> float:
    """Return the nanoseconds per tree and document without binning: the minimum of many turns on one thread."""
    predictor = ForestPredictor(forest)
    layout = predictor._layout
    codes = np.random.default_rng(0).integers(0, 250, size=(layout.n_slots, TILE)).astype(layout.code)
    at, scores = np.empty(TILE, layout.code), np.zeros(TILE)
    trees = np.arange(forest.n_trees, dtype=np.int32)
    taken = []
    for _ in range(200):
        begin = time.perf_counter()
        layout.add_trees(codes, TILE, trees, at, scores, 0)
        taken.append(time.perf_counter() - begin)
    return min(taken[1:]) / TILE / forest.n_trees * 1e9


def in_turns(systems: dict[str, Timed], documents: int, threads: int, repeats: int) -> dict[str, list[float]]:
    """Return the seconds of each system over several interleaved turns; the first turn is not counted."""
    taken: dict[str, list[float]] = {name: [] for name in systems}
    for turn in range(repeats + 1):
        for name, run in systems.items():
            seconds = run(documents, threads)
            if turn:
                taken[name].append(seconds)
    return taken


def rows_of(title: str, systems: dict[str, Timed], trees: int, documents: int, repeats: int) -> list[list[str]]:
    rows = []
    for threads in (1, 2):
        taken = in_turns(systems, documents, threads, repeats)
        first = taken["rankmill"]
        for name, seconds in taken.items():
            each = statistics.median(seconds) / documents / trees * 1e9 * threads
            times = "" if name == "rankmill" else f"{spread([s / o for s, o in zip(seconds, first, strict=True)], 1)} x"
            rows.append([title, str(threads), name, spread([s * 1e3 for s in seconds], 0), f"{each:.2f}", times])
    alone = in_turns(systems, QUERY, 1, max(repeats, 51))
    first = alone["rankmill"]
    for name, seconds in alone.items():
        micros = [s * 1e6 for s in seconds]
        times = "" if name == "rankmill" else f"{statistics.median(seconds) / statistics.median(first):.1f} x"
        rows.append([f"{title}, one query of {QUERY}", "1", name, f"{statistics.median(micros):.0f} us", "", times])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--documents", type=int, default=120_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--categorical", type=int, default=0, help="number of categorical columns")
    parser.add_argument("--lleaves", metavar="PYTHON", help="an interpreter that has lleaves")
    options = parser.parse_args()
    train, label, values = made(options.documents)
    if options.categorical:
        both = np.concatenate([train, values])
        with_categories(both, options.categorical)
        train, values = both[:TRAINED_ON], np.ascontiguousarray(both[TRAINED_ON:])
    rows, notes = [], []
    with tempfile.TemporaryDirectory() as folder:
        table_path = Path(folder) / "values.npy"
        np.save(table_path, values)
        for trees, leaves in SHAPES:
            path = Path(folder) / f"{trees}x{leaves}.txt"
            lightgbm(trees, leaves, train, label, path, options.categorical)
            forest = read_from("lightgbm", path.read_bytes(), str(path)).forest
            import lightgbm as lgb

            far = np.abs(
                lgb.Booster(model_file=path).predict(values[:5000]) - ForestPredictor(forest).scores(values[:5000])
            )
            notes.append(f"{trees} x {leaves}: largest difference to LightGBM's scores {far.max():.1e}")
            systems: dict[str, Timed] = {"rankmill": ours(forest, values), "LightGBM": lightgbm_predict(path, values)}
            peer = None
            if options.lleaves:
                peer = Lleaves(options.lleaves, path, table_path)
                systems["lleaves"] = peer
                notes.append(f"{trees} x {leaves}: lleaves compiled for {peer.compiled_in:.0f} s")
            rows += rows_of(f"{trees} x {leaves} leaves", systems, trees, options.documents, options.repeats)
            by_set = float(forest.splits_by_set[forest.node_feature >= 0].mean())
            notes.append(
                f"{trees} x {leaves}: {after_binning(forest):.2f} ns a document and tree after binning; {by_set:.0%} "
                "of the splits by sets"
            )
            if peer is not None:
                peer.close()
    if not options.categorical:
        forest, peer_model = oblivious(train, label)
        systems = {"rankmill": ours(forest, values), "CatBoost": catboost_predict(peer_model, values)}
        rows += rows_of("1000 x depth 6, oblivious", systems, forest.n_trees, options.documents, options.repeats)
        notes.append(f"oblivious: {after_binning(forest):.2f} ns a document and tree after binning")
    print(render(surroundings(["lightgbm", "catboost"])))
    headings = ["model", "threads", "system", "ms", "ns a document, tree and core", "times ours"]
    print(table(headings, rows))
    print()
    print("\n".join(f"- {note}" for note in notes))


if __name__ == "__main__":
    main()
