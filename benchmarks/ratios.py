"""One page: how many times as fast as its peers rankmill is, beside the last time on the same machine.

    python -m benchmarks.ratios [--pairs 3] [--queries 6000] [--history benchmarks/history.jsonl]

The systems take turns, and a ratio is of two runs of one turn, so that a slow or busy machine changes both.  Every page
is a line of the history file.  *slower* is a ratio of which no turn reached the lowest of the last page of this
machine; look for its reason with the benchmark that is named.  Peers that are not installed are left out, which the
page says.

Training is seconds a round, each in a separate process; prediction is from raw values to scores.  Ingest is megabytes a
second from text to a published dataset, beside scikit-learn's reader, which gets a tenth of the text.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import ingest, predict
from benchmarks.cases import CASES, Case, prepare
from benchmarks.report import render, spread, surroundings, table
from benchmarks.runs import measure
from benchmarks.systems import DEPTH, Task
from rankmill.scorer.exchange.formats import read_from

HISTORY = Path(__file__).with_name("history.jsonl")
SMALL = (80, 46)  # queries and features: about as large as a fold of MQ2008
PACKAGES = {
    "LightGBM": "lightgbm",
    "LightGBM, quantised": "lightgbm",
    "CatBoost": "catboost",
    "scikit-learn": "sklearn",
}
SYSTEMS = {"LightGBM": "lightgbm", "LightGBM, quantised": "lightgbm-quantised", "CatBoost": "catboost-oblivious"}
Pair = tuple[float, float]
"""Seconds of ours and of the peer in one turn, each for the same amount of work."""


@dataclass(frozen=True)
class Compared:
    """What is compared with which peers."""

    name: str
    peers: tuple[str, ...]
    turns: Callable[[str], Iterator[Pair]]
    """Called with a peer."""
    script: str
    """The benchmark that has the details."""


def trainings(given: argparse.Namespace, work: Path) -> Iterator[Compared]:
    """Yield the trainings to compare."""
    large, small = CASES["mslr"].sized(given.queries, None), CASES["mslr"].sized(*SMALL)
    lightgbm = ("LightGBM", "LightGBM, quantised")
    for leaves in (31, 255):
        for threads in (1, 2):
            task = Task(leaves, threads, 10)
            yield Compared(
                f"training, {leaves} leaves, {threads} threads", lightgbm, rounds(large, task, given, work), "train"
            )
    few = Task(31, 2, 100)
    yield Compared("training, 9,600 rows, 2 threads", lightgbm[:1], rounds(small, few, given, work), "train")
    trees = Task(2**DEPTH, 2, 10)
    yield Compared("training, oblivious, 2 threads", ("CatBoost",), rounds(large, trees, given, work), "train")


def rounds(case: Case, task: Task, given: argparse.Namespace, work: Path) -> Callable[[str], Iterator[Pair]]:
    """Return a function that yields the seconds of a round of ours and of a peer."""

    def turns(peer: str) -> Iterator[Pair]:
        ours = "rankmill-oblivious" if peer == "CatBoost" else "rankmill"
        folder = prepare(case, 1, work)
        for turn in range(given.pairs):
            systems = [ours, SYSTEMS[peer]]
            found = {name: measure(folder, name, task)["round_s"] for name in systems[:: 1 - 2 * (turn % 2)]}
            yield found[ours], found[SYSTEMS[peer]]

    return turns


def predictions(given: argparse.Namespace, work: Path) -> Iterator[Compared]:
    """Yield the predictions to compare."""
    train, label, values = predict.made(given.documents)

    def of_leaves(documents: int) -> Callable[[str], Iterator[Pair]]:
        def turns(_: str) -> Iterator[Pair]:
            path = work / "model.txt"
            if not path.exists():
                predict.lightgbm(500, 64, train, label, path, 0)
            forest = read_from("lightgbm", path.read_bytes(), str(path)).forest
            both = {"ours": predict.ours(forest, values), "theirs": predict.lightgbm_predict(path, values)}
            taken = predict.in_turns(both, documents, 1, given.pairs if documents > predict.QUERY else 51)
            yield from zip(taken["ours"], taken["theirs"], strict=True)

        return turns

    def oblivious(_: str) -> Iterator[Pair]:
        forest, model = predict.oblivious(train, label)
        both = {"ours": predict.ours(forest, values), "theirs": predict.catboost_predict(model, values)}
        taken = predict.in_turns(both, given.documents, 1, given.pairs)
        yield from zip(taken["ours"], taken["theirs"], strict=True)

    yield Compared("prediction, 500 x 64 leaves, one core", ("LightGBM",), of_leaves(given.documents), "predict")
    yield Compared("prediction, a query of 100 documents", ("LightGBM",), of_leaves(predict.QUERY), "one_query")
    yield Compared("prediction, oblivious, one core", ("CatBoost",), oblivious, "predict")


def ingests(given: argparse.Namespace, work: Path) -> Iterator[Compared]:
    """Yield the ingest to compare."""

    def turns(_: str) -> Iterator[Pair]:
        text, small, part = work / "judgments.txt", work / "small.txt", work / "part.txt"
        ingest.write_text(text, given.megabytes * 1e6, 136)
        ingest.write_text(part, given.megabytes * 1e5, 136)
        ingest.write_text(small, 1e6, 136)
        for _ in range(given.pairs):
            found = {"ingest": text, "sklearn": part}
            seconds = {name: ingest.measured(name, path, small, 2) for name, path in found.items()}
            yield seconds["ingest"] / text.stat().st_size, seconds["sklearn"] / part.stat().st_size

    yield Compared("ingest of text", ("scikit-learn",), turns, "ingest")


def page(now: dict[str, Any], before: dict[str, Any] | None) -> str:
    """Return the page of ratios, beside those of ``before``."""
    rows = []
    for key, one in now["ratios"].items():
        last = before["ratios"].get(key) if before else None
        verdict = "slower" if last and max(one["ratios"]) < min(last["ratios"]) else ""
        then = spread(last["ratios"]) if last else ""
        rows.append([one["name"], one["peer"], spread(one["ratios"]), then, verdict, one["script"]])
    when = "before" if before is None else f"on {before['date']}"
    text = table(["what", "peer", "times as fast (range)", when, "", "benchmarks/"], rows)
    left_out = f"\nNot installed, so left out: {', '.join(now['missing'])}.\n" if now["missing"] else ""
    return f"{render(now)}\n{text}\n{left_out}"


def last_of(history: Path, machine: str) -> dict[str, Any] | None:
    """Return the last page of this machine."""
    lines = history.read_text(encoding="utf-8").splitlines() if history.exists() else []
    return next((one for one in map(json.loads, reversed(lines)) if one["machine"] == machine), None)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print the page, and append it to the history."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--queries", type=int, default=6000, help="of the training data, about 120 documents each")
    parser.add_argument("--documents", type=int, default=60_000, help="to predict")
    parser.add_argument("--megabytes", type=float, default=200.0, help="of text to ingest")
    parser.add_argument("--history", type=Path, default=HISTORY, metavar="FILE", help="a line for each page")
    given = parser.parse_args(arguments)
    now = surroundings(["lightgbm", "catboost", "scikit-learn"])
    now |= {"ratios": {}, "missing": [peer for peer, package in PACKAGES.items() if find_spec(package) is None]}
    with tempfile.TemporaryDirectory() as name:
        for sort in (trainings, predictions, ingests):
            for compared in sort(given, Path(name)):
                for peer in (each for each in compared.peers if each not in now["missing"]):
                    ratios = [round(theirs / ours, 3) for ours, theirs in compared.turns(peer)]
                    print(f"{compared.name} / {peer}: {np.median(ratios):.2f}", file=sys.stderr, flush=True)
                    found = {"name": compared.name, "peer": peer, "script": compared.script, "ratios": ratios}
                    now["ratios"][f"{compared.name} / {peer}"] = found
    print(page(now, last_of(given.history, now["machine"])))
    with given.history.open("a", encoding="utf-8") as file:
        file.write(json.dumps(now) + "\n")


if __name__ == "__main__":
    main()
