"""Speed, memory and quality of training, compared with LightGBM, XGBoost, CatBoost, hessboost and YDF.

Every run is a separate process that reads the same float32 arrays.  It warms up on a tiny part first, so that
compilation of our kernels is not part of the comparison.  The systems take turns (every other turn in reverse order),
so that changes of the machine's speed affect all alike, and ratios are computed within a turn.  Leaves, bins, rounds,
learning rate and threads are equal; other settings are printed above the tables.

Cases:

    mslr             720,000 generated rows x 136 features, about 120 documents a query
    mq2008           the parts S1 to S3 of a LETOR folder (--letor), tested on S5
    mslr-categories  as mslr, but the first 20 columns are categories of 10, 100 and 1,000
    wide             100,000 generated rows x 700 features, half of the cells missing

--compare oblivious sets symmetric trees of depth 6 and the squared error against CatBoost's, both without sampling.

Example: python benchmarks/train.py --cases mslr --leaves 31 --threads 1 2 --pairs 5 --seeds 1 2 3 --json runs.jsonl
         python benchmarks/train.py --from runs.jsonl
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cases import CASES, Case, prepare
from benchmarks.letor import missing_parts
from benchmarks.report import render, spread, surroundings, table
from benchmarks.runs import RunFailed, measure
from benchmarks.systems import DEPTH, OBLIVIOUS, RANKING, SYSTEMS, System, Task

Run = dict[str, Any]  # one line of the JSON file: which run it was, and its figures
_SAID_ABOVE_TABLES = ("max_leaves", "max_num_nodes", "num_leaves", "num_threads", "nthread", "thread_count")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compare", choices=["ranking", "oblivious"], default="ranking")
    parser.add_argument("--cases", nargs="+", choices=list(CASES), help="default: mslr, wide, and mq2008 with --letor")
    parser.add_argument("--letor", type=Path, metavar="FOLDER", help="holds S1.txt .. S5.txt of MQ2008")
    parser.add_argument("--leaves", type=int, nargs="+", help="default: 31 and 255 for mslr, 31 for the others")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--pairs", type=int, default=5, help="turns, one run of each system in each")
    parser.add_argument(
        "--seeds", type=int, nargs="+", default=[1, 2, 3], help="of the judgments; turns rotate over them"
    )
    parser.add_argument("--systems", nargs="+", choices=list(SYSTEMS), help="ratios are to the first")
    parser.add_argument("--queries", type=int, help="of the generated cases, about 120 documents each")
    parser.add_argument("--features", type=int, help="of the generated cases")
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="keep the generated arrays here and use them again")
    parser.add_argument("--json", type=Path, metavar="FILE", help="append the figures of every run, a line each")
    parser.add_argument("--from", dest="saved", type=Path, metavar="FILE", help="make the tables of such a file again")
    given = parser.parse_args()
    if given.cases and "mq2008" in given.cases and not given.letor:
        parser.error("the case mq2008 needs --letor FOLDER")
    if given.letor and (missing := missing_parts(given.letor)):
        parser.error(f"{given.letor} lacks {', '.join(missing)}")
    return given


def main() -> None:
    given = arguments()
    if given.saved:
        show_saved(given.saved)
        return
    session = datetime.now(UTC).isoformat(timespec="seconds")
    systems = given.systems or installed(OBLIVIOUS if given.compare == "oblivious" else RANKING)
    header = header_of(systems, given.rounds) | {"session": session}
    append(given.json, {"header": header})
    print(render_header(header), flush=True)
    with tempfile.TemporaryDirectory() as work:
        for name in given.cases or (["mslr", "wide", "mq2008"] if given.letor else ["mslr", "wide"]):
            case = CASES[name].sized(given.queries, given.features)
            leaves = [2**DEPTH] if given.compare == "oblivious" else given.leaves or case.leaves
            for task in (Task(each, threads, given.rounds) for each in leaves for threads in given.threads):
                runs = []
                try:
                    for run in take_turns(case, task, systems, given, given.data or Path(work)):
                        runs.append({"session": session, **run})
                        append(given.json, runs[-1])
                except RunFailed as failure:
                    sys.exit(str(failure))
                print(render_runs(runs), flush=True)


def take_turns(case: Case, task: Task, systems: list[str], given: argparse.Namespace, root: Path) -> Iterator[Run]:
    seeds = case.seeds(given.seeds)
    for turn in range(max(given.pairs, len(seeds))):
        seed = seeds[turn % len(seeds)]
        folder = prepare(case, seed, root, given.letor)
        for system in systems if turn % 2 == 0 else reversed(systems):
            figures = measure(folder, system, task)
            place = {"case": case.name, "leaves": task.leaves, "threads": task.threads, "turn": turn, "seed": seed}
            print(f"{place} {system}: {figures['round_s']:.4f} s/round", file=sys.stderr)
            yield {**place, "system": system, **figures}


def installed(systems: Mapping[str, System]) -> list[str]:
    """Return the names of the systems whose package is installed; the others are reported."""
    found = [name for name, system in systems.items() if not system.package or find_spec(system.package)]
    if missing := systems.keys() - found:
        print(f"Not installed, so left out: {', '.join(sorted(missing))}", file=sys.stderr)
    return found


def append(path: Path | None, line: dict[str, Any]) -> None:
    if path is not None:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def header_of(systems: list[str], rounds: int) -> dict[str, Any]:
    shown = {}
    for name in systems:
        settings = SYSTEMS[name].settings(Task(leaves=0, threads=0, rounds=rounds))
        kept = {key: value for key, value in settings.items() if key not in _SAID_ABOVE_TABLES}
        shown[name] = {"settings": kept, "note": SYSTEMS[name].note}
    packages = dict.fromkeys(SYSTEMS[name].package for name in systems if SYSTEMS[name].package)
    return surroundings(packages) | {"systems": shown}


def render_header(header: dict[str, Any]) -> str:
    lines = [render(header), "Settings besides leaves and threads, all else as each system has it:\n"]
    for name, shown in header["systems"].items():
        note = f"; {shown['note']}" if shown["note"] else ""
        lines.append(f"- {name}: `{json.dumps(shown['settings'])}`{note}")
    lines.append(
        "\nMedians over the turns; in brackets the range. `x` is construction seconds, rounds a second, and CPU "
        "seconds of a\nround, against the first system's, paired by turn. NDCG@10 is the mean over the seeds. `MB` is "
        "the peak of resident\nmemory above what it is with the arrays loaded."
    )
    return "\n".join(lines) + "\n"


def render_runs(runs: list[Run]) -> str:
    first, systems = runs[0], list(dict.fromkeys(run["system"] for run in runs if run["turn"] == 0))
    of = {system: {run["turn"]: run for run in runs if run["system"] == system} for system in systems}
    seeds = list(dict.fromkeys(run["seed"] for run in runs))
    turns = [turn for turn in of[systems[0]] if all(turn in of[system] for system in systems)]
    reference = of[systems[0]]
    quality = {system: by_seed(list(of[system].values()), "ndcg@10") for system in systems}
    with_rmse = all("rmse" in run for run in runs)
    rows = []
    for system in systems:
        paired = [(reference[turn], of[system][turn]) for turn in turns]
        differences = [mine - ours for mine, ours in zip(quality[system], quality[systems[0]], strict=True)]
        row = [
            system,
            f"{median(of[system], 'construct_s'):.2f}",
            spread([theirs["construct_s"] / ours["construct_s"] for ours, theirs in paired]),
            f"{median(of[system], 'round_s'):.4f}",
            spread([ours["round_s"] / theirs["round_s"] for ours, theirs in paired]),
            *of_cpu(of[system], paired),
            f"{np.mean(quality[system]):.4f}",
            f"{np.mean(differences):+.4f}",
            megabytes(of[system], "construct_mb"),
            megabytes(of[system], "train_mb"),
        ]
        if with_rmse:
            row.append(f"{np.mean(by_seed(list(of[system].values()), 'rmse')):.4f}")
        rows.append(row)
    headings = [
        "system", "construction s", "construction x", "s/round", "rounds a second x", "CPU s/round", "CPU x",
        "test NDCG@10", "minus the first's", "construction MB", "training MB",
    ]  # fmt: skip
    title = (
        f"{first['case']}: {first['rows']:,} x {first['features']}, {first['queries']:,} queries, {first['leaves']} "
        f"leaves; threads: {first['threads']}, rounds: {len(first['rounds_s'])}, turns: {len(turns)}, seeds of data: "
        f"{len(seeds)}"
    )
    return f"{title}\n\n{table(headings + (['RMSE'] if with_rmse else []), rows)}\n"


def of_cpu(runs: dict[int, Run], paired: list[tuple[Run, Run]]) -> tuple[str, str]:
    """Return the processor seconds of a round, and how many times those of the first system they are."""
    if not all("round_cpu_s" in run for pair in paired for run in pair):
        return "", ""  # a file of earlier runs
    ratios = [theirs["round_cpu_s"] / ours["round_cpu_s"] for ours, theirs in paired]
    return f"{median(runs, 'round_cpu_s'):.4f}", spread(ratios)


def median(runs: dict[int, Run], key: str) -> float:
    return float(np.median([run[key] for run in runs.values()]))


def megabytes(runs: dict[int, Run], key: str) -> str:
    return "-" if any(run[key] is None for run in runs.values()) else str(round(median(runs, key)))


def by_seed(runs: list[Run], key: str) -> list[float]:
    """Return the mean over the turns of each seed, by ascending seed, so that all seeds count equally."""
    return [
        float(np.mean([run[key] for run in runs if run["seed"] == seed])) for seed in sorted({r["seed"] for r in runs})
    ]


def show_saved(path: Path) -> None:
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    for header in (line["header"] for line in lines if "header" in line):
        print(render_header(header))
        runs = [line for line in lines if line.get("session") == header["session"]]
        groups: dict[tuple[Any, ...], list[Run]] = {}
        for run in runs:
            groups.setdefault((run["case"], run["leaves"], run["threads"]), []).append(run)
        for group in groups.values():
            print(render_runs(group))


if __name__ == "__main__":
    main()
