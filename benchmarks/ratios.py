"""One page: how many times as fast as its peers rankmill is, beside the last time on the same machine.

    python -m benchmarks.ratios [--pairs 3] [--queries 3000] [--history benchmarks/history.jsonl]

All systems take turns, and a ratio is of two runs of one turn, so that a slow or busy machine changes both.  Training
is a round, by processor time and by the clock, of processes of their own; NDCG@10 is that of the test part after
``--rounds`` rounds, ours and the peer's.  Prediction is from raw values to scores; ingest is megabytes a second from
text to a published dataset, beside scikit-learn's reader, which gets a tenth of the text.

Every page is a line of the history file.  *slower* is a ratio of which no turn reached the lowest of the last page of
this machine, by processor time where it is known; look for its reason with the benchmark that is named.  Peers that are
not installed are left out, which the page says.
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
from benchmarks.systems import DEPTH, OBLIVIOUS, RANKING, Task
from rankmill.scorer.exchange.formats import read_from

HISTORY = Path(__file__).with_name("history.jsonl")
SMALL = (80, 46)  # queries and features: about as large as a fold of MQ2008
PACKAGES = {name: system.package for name, system in (RANKING | OBLIVIOUS).items() if system.package}
OF_255_LEAVES = ("lightgbm", "lightgbm-quantised", "hessboost")  # the others take minutes


@dataclass(frozen=True)
class Run:
    """What one system took in one turn, for the same amount of work as the others."""

    clock: float  # s
    cpu: float | None = None  # s of the processor
    ndcg: float | None = None


@dataclass(frozen=True)
class Compared:
    """What is compared with which peers; ``turns`` yields a run of each, ours first."""

    name: str
    peers: tuple[str, ...]
    turns: Callable[[Sequence[str]], Iterator[list[Run]]]  # called with the peers
    script: str = "train"  # the benchmark that has the details


def trainings(given: argparse.Namespace, work: Path) -> Iterator[Compared]:
    """Yield the trainings to compare."""
    large, small = CASES["mslr"].sized(given.queries, None), CASES["mslr"].sized(*SMALL)
    peers = {31: tuple(RANKING)[1:], 255: OF_255_LEAVES}
    for leaves in (31, 255):
        for threads in (1, 2):
            turns = rounds("rankmill", large, Task(leaves, threads, given.rounds), given, work)
            yield Compared(f"training, {leaves} leaves, {threads} threads", peers[leaves], turns)
    for threads in (1, 2):
        turns = rounds("rankmill", small, Task(31, threads, 100), given, work)
        yield Compared(f"training, 9,600 rows, {threads} threads", ("lightgbm",), turns)
    ours, *theirs = OBLIVIOUS
    turns = rounds(ours, large, Task(2**DEPTH, 2, given.rounds), given, work)
    yield Compared("training, oblivious, 2 threads", tuple(theirs), turns)


def rounds(
    ours: str, case: Case, task: Task, given: argparse.Namespace, work: Path
) -> Callable[[Sequence[str]], Iterator[list[Run]]]:
    """Return a function that yields a round of ours and of each peer."""

    def turns(peers: Sequence[str]) -> Iterator[list[Run]]:
        systems = [ours, *peers]
        for turn in range(given.pairs):
            folder = prepare(case, given.seeds[turn % len(given.seeds)], work)
            found = {name: measure(folder, name, task) for name in systems[:: 1 - 2 * (turn % 2)]}
            yield [Run(found[each]["round_s"], found[each]["round_cpu_s"], found[each]["ndcg@10"]) for each in systems]

    return turns


def predictions(given: argparse.Namespace, work: Path) -> Iterator[Compared]:
    """Yield the predictions to compare."""
    train, label, values = predict.made(given.documents)

    def runs(both: dict[str, predict.Timed], documents: int, threads: int) -> Iterator[list[Run]]:
        taken = predict.in_turns(both, documents, threads, given.pairs if documents > predict.QUERY else 51)
        yield from ([Run(each) for each in turn] for turn in zip(*taken.values(), strict=True))

    def of_leaves(documents: int, threads: int) -> Callable[[Sequence[str]], Iterator[list[Run]]]:
        def turns(_: Sequence[str]) -> Iterator[list[Run]]:
            path = work / "model.txt"
            if not path.exists():
                predict.lightgbm(500, 64, train, label, path, 0)
            forest = read_from("lightgbm", path.read_bytes(), str(path)).forest
            both = {"ours": predict.ours(forest, values), "theirs": predict.lightgbm_predict(path, values)}
            return runs(both, documents, threads)

        return turns

    def oblivious(_: Sequence[str]) -> Iterator[list[Run]]:
        forest, model = predict.oblivious(train, label)
        both = {"ours": predict.ours(forest, values), "theirs": predict.catboost_predict(model, values)}
        return runs(both, given.documents, 1)

    for threads in (1, 2):
        name = f"prediction, 500 x 64 leaves, {threads} threads"
        yield Compared(name, ("lightgbm",), of_leaves(given.documents, threads), "predict")
    yield Compared("prediction, a query of 100 documents", ("lightgbm",), of_leaves(predict.QUERY, 1), "one_query")
    yield Compared("prediction, oblivious, 1 thread", ("catboost-oblivious",), oblivious, "predict")


def ingests(given: argparse.Namespace, work: Path) -> Iterator[Compared]:
    """Yield the ingest to compare."""

    def turns(peers: Sequence[str]) -> Iterator[list[Run]]:
        text, small, part = work / "judgments.txt", work / "small.txt", work / "part.txt"
        for path, size in ((text, given.megabytes * 1e6), (part, given.megabytes * 1e5), (small, 1e6)):
            ingest.write_text(path, size, 136)
        for _ in range(given.pairs if peers else 0):
            found = {"ingest": text, "sklearn": part}
            yield [Run(ingest.measured(name, path, small, 2) / path.stat().st_size) for name, path in found.items()]

    yield Compared("ingest of text", ("scikit-learn",), turns, "ingest")


def ratios_of(turns: Sequence[Sequence[Run]], peer: int) -> dict[str, Any]:
    """Return the ratios of the peer at this place to ours, turn by turn, and both NDCG."""
    pairs = [(turn[0], turn[peer]) for turn in turns]
    found: dict[str, Any] = {"ratios": [round(theirs.clock / ours.clock, 3) for ours, theirs in pairs]}
    if all(ours.cpu and theirs.cpu for ours, theirs in pairs):
        found["cpu"] = [round((theirs.cpu or 0.0) / (ours.cpu or 1.0), 3) for ours, theirs in pairs]
    if all(ours.ndcg and theirs.ndcg for ours, theirs in pairs):
        found["ndcg"] = [round(float(np.mean([pair[side].ndcg or 0.0 for pair in pairs])), 4) for side in (0, 1)]
    return found


def page(now: dict[str, Any], before: dict[str, Any] | None) -> str:
    """Return the page of ratios, beside those of ``before``."""
    rows = []
    for key, one in now["ratios"].items():
        last = before["ratios"].get(key) if before else None
        by = "cpu" if last and "cpu" in one and "cpu" in last else "ratios"
        verdict = "slower" if last and max(one[by]) < min(last[by]) else ""
        then = spread(last[by]) if last else ""
        cpu = spread(one["cpu"]) if "cpu" in one else ""
        ndcg = ", ".join(f"{value:.4f}" for value in one.get("ndcg", []))
        rows.append([one["name"], one["peer"], cpu, spread(one["ratios"]), ndcg, then, verdict, one["script"]])
    when = "before" if before is None else f"on {before['date']}"
    headings = ["what", "peer", "times as fast by CPU time", "by the clock", "NDCG@10", when, "", "benchmarks/"]
    left_out = f"\nNot installed, so left out: {', '.join(now['missing'])}.\n" if now["missing"] else ""
    return f"{render(now)}\n{table(headings, rows)}\n{left_out}"


def last_of(history: Path, machine: str) -> dict[str, Any] | None:
    """Return the last page of this machine."""
    lines = history.read_text(encoding="utf-8").splitlines() if history.exists() else []
    return next((one for one in map(json.loads, reversed(lines)) if one["machine"] == machine), None)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print the page, and append it to the history."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--queries", type=int, default=3000, help="of the training data, about 120 documents each")
    parser.add_argument("--rounds", type=int, default=30, help="of a training")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="of the data; turns rotate over them")
    parser.add_argument("--documents", type=int, default=60_000, help="to predict")
    parser.add_argument("--megabytes", type=float, default=200.0, help="of text to ingest")
    parser.add_argument("--only", default="", metavar="TEXT", help="what has this in its name")
    parser.add_argument("--history", type=Path, default=HISTORY, metavar="FILE", help="a line for each page")
    given = parser.parse_args(arguments)
    packages = PACKAGES | {"scikit-learn": "sklearn"}
    now = surroundings(sorted({*PACKAGES.values(), "scikit-learn"}))
    now |= {"ratios": {}, "missing": [peer for peer, package in packages.items() if find_spec(package) is None]}
    with tempfile.TemporaryDirectory() as name:
        for sort in (trainings, predictions, ingests):
            for compared in (each for each in sort(given, Path(name)) if given.only in each.name):
                peers = [each for each in compared.peers if each not in now["missing"]]
                turns = list(compared.turns(peers)) if peers else []
                for place, peer in enumerate(peers, 1):
                    found = {"name": compared.name, "peer": peer, "script": compared.script, **ratios_of(turns, place)}
                    print(f"{compared.name} / {peer}: {np.median(found['ratios']):.2f}", file=sys.stderr, flush=True)
                    now["ratios"][f"{compared.name} / {peer}"] = found
    print(page(now, last_of(given.history, now["machine"])))
    with given.history.open("a", encoding="utf-8") as file:
        file.write(json.dumps(now) + "\n")


if __name__ == "__main__":
    main()
