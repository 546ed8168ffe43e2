"""Ranking quality of all systems on the same data: mean test NDCG@10, paired differences, and seconds of training.

Every system trains on the train part, is stopped early by NDCG@10 of the valid part (50 rounds of patience) and scores
the test part.  The others train at most 1,000 rounds, ours as many as its preset says.  *refitted* is trained again on
both parts for the rounds found, as ours is by its preset.  One function of ours measures all of them: exponential
gains, equal scores count as the mean over their orders, queries with nothing relevant are left out.  Documents are
shuffled within each query; the seed of the order is the seed of the system too.

The mean of a set is that over its folds; sets weigh the same.  Intervals are 95 % bootstrap intervals of the paired
difference: queries are drawn anew within each fold, averaged over seeds; of generated sets the seeds are drawn anew as
well.  Seconds are of the processor, on one thread, from arrays to the trained model and its test scores; the
compilation of our kernels is left out.

Every training is one small file in the cache, found by the settings of the system: another system trains alone, and
several processes may fill one cache (``--shard``).

Example: python -m benchmarks.quality --data FOLDER --cache work --ours small=max_leaves=8,learning_rate=0.05
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks import net_systems, stopped
from benchmarks.intervals import Differences, paired_interval
from benchmarks.letor import Parts, Split
from benchmarks.quality_sets import GENERATED, REAL, SETS, SMALL, Unit, units
from benchmarks.report import render, surroundings, table
from rankmill.scorer.metrics import Policy, parse_metric
from rankmill.scorer.metrics.per_query import PreparedQueries
from rankmill.trainer.parameters import TrainParameters

NDCG = parse_metric("ndcg@10")
POLICY = Policy(gain="exp", ties="expected", nothing_relevant="skip")
ROUNDS, PATIENCE = 1000, 50
AVERAGE = "average"  # of ours: so many trainings with seeds of their own, scores averaged
OURS = "rankmill"


@dataclass(frozen=True)
class System:
    name: str
    kind: str  # OURS or a name of PEERS
    settings: Mapping[str, Any]
    code: str = ""  # of ours: which version of the code it is
    refit: bool = False  # of a peer: train again on train and valid; ours do if their preset says so

    @property
    def key(self) -> str:
        """The name of its files in the cache, which its settings decide."""
        package = "" if self.kind in {OURS, *NETS} else version("xgboost-cpu" if self.kind == "xgboost" else self.kind)
        settings = {"preset": TrainParameters().preset, **self.settings} if self.kind == OURS else dict(self.settings)
        facts = [self.kind, package, settings, self.code, ROUNDS, PATIENCE, *(["refit"] if self.refit else [])]
        return f"{self.kind}-{hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]}"

    def run(self, parts: Parts, seed: int) -> stopped.Scored:
        if self.kind == OURS:
            return ours(parts, self.settings, seed)
        if self.kind in NETS:
            return NETS[self.kind](parts, self.settings, seed)
        return peer(self)(parts, {**self.settings, "seed": seed}, ROUNDS, PATIENCE)


def ours(parts: Parts, settings: Mapping[str, Any], seed: int) -> stopped.Scored:
    from rankmill import Ranker

    given = {"early_stopping_rounds": PATIENCE, "n_threads": 1, "verbose": 0, **settings}
    members = given.pop(AVERAGE, 1)
    total, rounds = np.zeros(len(parts.test.grades)), 0
    for member in range(members):
        ranker = Ranker(**{"categorical": [*parts.categorical] or None, **given}, seed=seed * 100 + member)
        ranker.fit(
            parts.train.x, parts.train.grades, group=parts.train.sizes,
            eval_set=[(parts.valid.x, parts.valid.grades)], eval_group=[parts.valid.sizes],
        )  # fmt: skip
        total += ranker.predict(parts.test.x)
        rounds += ranker.best_round_
    return stopped.Scored(total / members, rounds)


NETS = {"net": net_systems.only_net, "blend": net_systems.blend}
PEERS = {
    "lightgbm": stopped.lightgbm,
    "xgboost": stopped.xgboost,
    "hessboost": stopped.hessboost,
    "catboost": stopped.catboost,
}
_PUBLISHED = {net_systems.PUBLISHED: True, net_systems.RATES: (1e-5, 1e-4, 1e-3, 1e-2, 1e-1)}
_LIGHTGBM = {"objective": "lambdarank", "metric": "ndcg", "eval_at": [10], "num_threads": 1}
_XGBOOST = {"objective": "rank:ndcg", "eval_metric": "ndcg@10", "tree_method": "hist", "nthread": 1}
_HESSBOOST = {"objective": "rank:ndcg", "eval_metric": "ndcg@10", "nthread": 1}
_MODEST = {"grow_policy": "lossguide", "max_depth": 0, "max_leaves": 16, "eta": 0.05}
_CATBOOST = {
    "loss_function": "YetiRank", "eval_metric": "NDCG:top=10;type=Exp;hints=skip_train~true", "thread_count": 1
}  # fmt: skip
BUILT_IN = {
    system.name: system
    for system in (
        System("ours", OURS, {}),
        System("ours fast", OURS, {"budget": "fast"}),
        System("ours without refit", OURS, {"refit": "none"}),
        System("ours defaults-1", OURS, {"preset": "defaults-1"}),
        System("ours, codes as numbers", OURS, {"categorical": None}),
        System("net", "net", {}),
        System("ranknet, linear", "net", {**_PUBLISHED, "layers": ()}),
        System("ranknet, 10 hidden", "net", _PUBLISHED),
        System("lambdarank, linear", "net", {**_PUBLISHED, "layers": (), "objective": "lambdamart"}),
        System("lambdarank, 10 hidden", "net", {**_PUBLISHED, "objective": "lambdamart"}),
        System("blend of trees and net", "blend", {}),
        System("lightgbm", "lightgbm", _LIGHTGBM),
        System("lightgbm modest", "lightgbm", {**_LIGHTGBM, "num_leaves": 16, "learning_rate": 0.05}),
        System("xgboost", "xgboost", _XGBOOST),
        System("xgboost modest", "xgboost", {**_XGBOOST, **_MODEST}),
        System("hessboost", "hessboost", _HESSBOOST),
        System("hessboost modest", "hessboost", {**_HESSBOOST, **_MODEST}),
        System("catboost", "catboost", _CATBOOST),
        System("catboost modest", "catboost", {**_CATBOOST, "depth": 4, "learning_rate": 0.05}),
    )
}  # fmt: skip

BUILT_IN |= {
    f"{name}, refitted": replace(system, name=f"{name}, refitted", refit=True)
    for name, system in BUILT_IN.items()
    if system.kind in PEERS
}


def peer(system: System) -> stopped.Peer:
    """Return what trains the peer ``system``."""
    return stopped.refitted(PEERS[system.kind]) if system.refit else PEERS[system.kind]


def parse_ours(text: str, code: str = "") -> System:
    """Return the system ``name=key=value,key=value``; commas in parentheses belong to the value.

    >>> parse_ours("a=max_leaves=8,objective=yetirank(decay=0.9)").settings
    {'max_leaves': 8, 'objective': 'yetirank(decay=0.9)'}
    """
    name, _, rest = text.partition("=")
    pairs = [part.partition("=") for part in re.split(r",(?![^(]*\))", rest) if part]
    return System(name, OURS, {key: _value(value) for key, _, value in pairs}, code)


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


@dataclass(frozen=True)
class Outcome:
    """What one training came to: the NDCG@10 of each test query, NaN where it does not count."""

    ndcg: npt.NDArray[np.float64]
    rounds: int
    seconds: float  # of the processor


@dataclass
class Cache:
    folder: Path
    _read: dict[Path, Outcome] = field(default_factory=dict)

    def path(self, system: System, unit: Unit) -> Path:
        return self.folder / unit.name / f"{unit.fold}-{unit.seed}" / f"{system.key}.npz"

    def get(self, system: System, unit: Unit) -> Outcome | None:
        path = self.path(system, unit)
        if path not in self._read:
            if not path.exists():
                return None
            with np.load(path) as stored:
                self._read[path] = Outcome(stored["ndcg"], int(stored["rounds"]), float(stored["seconds"]))
        return self._read[path]

    def put(self, system: System, unit: Unit, outcome: Outcome) -> None:
        """Publish in one step: another process sees a whole file or none."""
        path = self.path(system, unit)
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_suffix(f".{os.getpid()}")
        facts = json.dumps([system.name, dict(system.settings), system.code])
        with aside.open("wb") as file:
            np.savez(file, ndcg=outcome.ndcg, rounds=outcome.rounds, seconds=outcome.seconds, facts=facts)
        aside.replace(path)
        self._read.pop(path, None)


def measure(system: System, parts: Parts, seed: int) -> Outcome:
    begin = time.process_time()
    scored = system.run(parts, seed)
    seconds = time.process_time() - begin
    queries = PreparedQueries(parts.test.grades, parts.test.starts, POLICY)
    return Outcome(queries.evaluate([NDCG], scored.scores)[NDCG], scored.rounds, seconds)


def warm_up(system: System, parts: Parts) -> None:
    """Train two rounds on a few queries, so that libraries are loaded and our kernels are compiled."""
    few = Parts(
        *(_first_queries(split, 40) for split in (parts.train, parts.valid, parts.test)), categorical=parts.categorical
    )
    if system.kind in NETS:
        NETS[system.kind](few, {**system.settings, "epochs": 1}, 1)
    elif system.kind == OURS:
        ours(few, {**system.settings, "n_rounds": 2, AVERAGE: 1}, 1)
    else:
        peer(system)(few, system.settings, 2, PATIENCE)


def _first_queries(split: Split, n: int) -> Split:
    starts = split.starts[: n + 1]
    return Split(split.x[: starts[-1]], split.grades[: starts[-1]], starts)


def train(systems: Sequence[System], asked: Iterable[Unit], cache: Cache, data: Path, fresh: Sequence[str]) -> None:
    """Train what the cache lacks, and the systems named in ``fresh`` in any case."""
    warm = set[str]()
    for unit in asked:
        lacking = [system for system in systems if system.name in fresh or not cache.path(system, unit).exists()]
        if not lacking:
            continue
        parts = unit.parts(data)
        for system in lacking:
            if system.name not in fresh and cache.path(system, unit).exists():
                continue  # another process was here in the meantime
            if system.key not in warm:
                warm_up(system, parts)
                warm.add(system.key)
            outcome = measure(system, parts, unit.seed)
            cache.put(system, unit, outcome)
            print(
                f"{unit.name} fold {unit.fold} seed {unit.seed} {system.name}: {np.nanmean(outcome.ndcg):.4f},"
                f" {outcome.rounds} rounds, {outcome.seconds:.1f} s",
                file=sys.stderr,
            )


@dataclass(frozen=True)
class Report:
    """Tables of what is in the cache; ``(n/N)`` marks means over n of the N trainings that were asked for."""

    systems: Sequence[System]
    asked: Sequence[Unit]
    cache: Cache
    reference: System

    def render(self) -> str:
        names = list(dict.fromkeys(unit.name for unit in self.asked))
        small = [name for name in names if GENERATED.get(name, SMALL + 1) <= SMALL]
        groups = {name: [name] for name in names} | {
            title: members
            for title, members in (
                ("mean, real", [n for n in names if n in REAL]),
                (f"mean, generated <= {SMALL:,}", small),
            )
            if len(members) > 1
        }
        headings = ["system", *groups]
        parts = []
        for title, cell in (
            ("Mean test NDCG@10", self._ndcg),
            (f"NDCG@10 minus that of {self.reference.name} (95 % interval)", self._difference),
            ("Seconds of training (mean)", self._seconds),
            ("Rounds kept (median)", self._rounds),
        ):
            rows = [[system.name, *(cell(system, members) for members in groups.values())] for system in self.systems]
            parts.append(f"{title}\n\n{table(headings, [row for row in rows if any(c != '-' for c in row[1:])])}\n")
        return "\n".join(parts)

    def _outcomes(self, system: System, name: str) -> dict[Unit, Outcome]:
        found = {unit: self.cache.get(system, unit) for unit in self.asked if unit.name == name}
        return {unit: outcome for unit, outcome in found.items() if outcome is not None}

    def _ndcg(self, system: System, names: Sequence[str]) -> str:
        found = [self._outcomes(system, name) for name in names]
        if not all(found):
            return "-"
        means = [np.mean([np.nanmean(outcome.ndcg) for outcome in one.values()]) for one in found]
        n, of = sum(map(len, found)), sum(unit.name in names for unit in self.asked)
        return f"{np.mean(means):.4f}" + (f" ({n}/{of})" if n < of else "")

    def _difference(self, system: System, names: Sequence[str]) -> str:
        sets = [self._differences(system, name) for name in names]
        if system == self.reference or not all(one.folds for one in sets):
            return "-"
        return str(paired_interval(sets))

    def _differences(self, system: System, name: str) -> Differences:
        theirs, found = self._outcomes(self.reference, name), self._outcomes(system, name)
        folds: dict[int, list[npt.NDArray[np.float64]]] = {}
        for unit in found.keys() & theirs.keys():  # of generated sets each seed is a fold: other data
            place = unit.seed if name not in REAL else unit.fold
            folds.setdefault(place, []).append(found[unit].ndcg - theirs[unit].ndcg)
        means = [np.mean(values, axis=0) for _, values in sorted(folds.items())]
        return Differences([mean[np.isfinite(mean)] for mean in means], redraw_folds=name not in REAL)

    def _seconds(self, system: System, names: Sequence[str]) -> str:
        return self._over_trainings(system, names, "seconds", np.mean, ".1f")

    def _rounds(self, system: System, names: Sequence[str]) -> str:
        return self._over_trainings(system, names, "rounds", np.median, ".0f")

    def _over_trainings(self, system: System, names: Sequence[str], what: str, middle: Any, digits: str) -> str:
        found = [[getattr(outcome, what) for outcome in self._outcomes(system, name).values()] for name in names]
        return f"{np.mean([middle(values) for values in found]):{digits}}" if all(found) else "-"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("RANKMILL_TEST_DATA", ".")),
                        help="folder of the real sets; default: RANKMILL_TEST_DATA")  # fmt: skip
    parser.add_argument("--cache", type=Path, required=True, help="folder of results; new ones are added")
    parser.add_argument(
        "--sets",
        nargs="+",
        choices=SETS,
        metavar="SET",
        default=[*REAL, *list(GENERATED)[:3]],
        help=f"of {', '.join(SETS)}; default: the real sets and the generated ones up to 1,000",
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[1], help="of the real sets")
    parser.add_argument("--generated-seeds", type=int, nargs="+", default=[1, 2], help="of the generated sets")
    parser.add_argument("--systems", nargs="*", choices=list(BUILT_IN), metavar="NAME", default=list(BUILT_IN),
                        help=f"of {', '.join(BUILT_IN)}; default: all")  # fmt: skip
    parser.add_argument(
        "--ours",
        action="append",
        default=[],
        metavar="NAME=KEY=VALUE,..",
        help="a system of ours: parameters of Ranker, and average=N for N seeds; repeat for several",
    )
    parser.add_argument("--code", default="", help="version of the code of --ours, where results of several are kept")
    parser.add_argument("--reference", default="catboost modest", help="system that differences are against")
    parser.add_argument("--fresh", nargs="+", default=[], metavar="NAME", help="systems to train again")
    parser.add_argument("--shard", default="1/1", metavar="I/N", help="train only every N-th unit, from the I-th on")
    parser.add_argument("--no-train", action="store_true", help="only print tables of what is there")
    return parser.parse_args()


def main() -> None:
    given = arguments()
    systems = [BUILT_IN[name] for name in given.systems] + [parse_ours(text, given.code) for text in given.ours]
    named = {system.name: system for system in systems}
    if len(named) < len(systems):
        sys.exit("quality: two systems have the same name")
    asked, cache = units(given.sets, given.seeds, given.generated_seeds), Cache(given.cache)
    shard, shards = map(int, given.shard.split("/"))
    if not given.no_train:
        train(systems, asked[shard - 1 :: shards], cache, given.data, given.fresh)
    reference = named.get(given.reference) or BUILT_IN.get(given.reference)
    if reference is None:
        sys.exit(f"quality: no system is named {given.reference!r}")
    print(render(surroundings(["lightgbm", "xgboost", "catboost"])))
    for system in systems:
        print(f"- {system.name}: {system.kind} {json.dumps(dict(system.settings))}")
    print(f"\n{Report(systems, asked, cache, reference).render()}")


if __name__ == "__main__":
    main()
