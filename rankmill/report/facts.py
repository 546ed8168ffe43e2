"""All facts of a report as one JSON object; the page and the Markdown are made of it, and say nothing besides.

There are no times and no paths of a machine in it: the same work folder and registry give the same bytes.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from rankmill.gate.report import asked
from rankmill.report.data import data_facts, drift_facts
from rankmill.report.findings import findings_of
from rankmill.report.learning import learning_facts, noise_facts
from rankmill.report.lineage import commands, lineage_facts, rollback
from rankmill.report.models import dependence_facts, influence_facts, score_facts
from rankmill.report.queries import query_facts
from rankmill.report.rankings import metrics_facts, rankings_of, slice_facts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rankmill.report.subject import Subject

_FOUND = ("n_queries", "candidate", "other", "difference", "interval", "wins", "ties", "losses")
FORMAT = 1  # of report.json; docs/report.md says what is where

Facts = dict[str, Any]


def gather(subject: Subject, n_threads: int = 0) -> Facts:
    """Gather the facts about ``subject``; what there is nothing to say of is None or empty."""
    rankings = rankings_of(subject, n_threads)
    metric = str(subject.metric)
    facts: Facts = {
        "format": FORMAT,
        "date": subject.date,
        "model": _model(subject),
        "present": None
        if subject.present is None
        else {"version": str(subject.present), "sha256": subject.present.sha256},
        "verdict": verdict_of(subject),
        "metrics": None if rankings is None else metrics_facts(rankings, subject),
        "recorded": _recorded(subject),
        "queries": None if rankings is None else query_facts(rankings, subject),
        "slices": [] if rankings is None else slice_facts(rankings, subject),
        "learning": learning_facts(subject.training, metric),
        "noise_floor": noise_facts(subject.training, subject.version.manifest, metric),
        "influence": influence_facts(subject),
        "dependence": dependence_facts(subject),
        "scores": None if rankings is None else score_facts(rankings),
        "data": data_facts(subject),
        "drift": drift_facts(subject.drift),
        "lineage": lineage_facts(subject),
        "commands": commands(subject),
        "rollback": rollback(subject),
        "notes": [*((subject.gate or {}).get("notes") or ()), *subject.notes],
    }
    plain: Facts = _plain(facts)
    plain["findings"] = findings_of(plain)
    return plain


def to_bytes(facts: Facts) -> bytes:
    """Return ``report.json``: in the order of the page, numbers with all their digits, one newline at the end."""
    return (json.dumps(facts, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def verdict_of(subject: Subject) -> Facts:
    """Tell whether the version took the place, and why or why not, as the gate said."""
    gate, moves = subject.gate, subject.version.state.moves.get(subject.alias, [])
    held = any(move.version == subject.version.number for move in moves)
    passed = None if gate is None else bool(gate.get("passed"))
    if subject.promoted:
        outcome = "promoted"
    elif passed is False:
        outcome = "not promoted"
    elif held:
        outcome = "replaced"
    else:
        outcome = "not promoted" if passed is None else "passed"
    gate = gate or {}
    return {
        "outcome": outcome,
        "alias": subject.alias,
        "gate": passed,
        "reasons": list(gate.get("reasons") or ()),
        "metric": gate.get("metric"),
        "split": gate.get("split"),
        "margin": gate.get("margin"),
        "guardrails": [
            {key: rail.get(key) for key in ("name", "verdict", "words")} for rail in gate.get("guardrails") or ()
        ],
        "bars": [
            {key: bar.get(key) for key in ("against", "words", "must_be_beaten", "passed")}
            | {"asked": asked(bar, gate["margin"]), "found": _only(bar["metrics"][gate["metric"]], *_FOUND)}
            for bar in gate.get("comparisons") or ()
        ],
    }


def _recorded(subject: Subject) -> list[Facts]:
    """Tell what the training measured, as the version's manifest has it: by split and metric, with 95 % intervals."""
    manifest = subject.version.manifest
    intervals = manifest.get("intervals") or {}
    return [
        {"split": split, "metric": metric, "mean": mean, "interval": (intervals.get(split) or {}).get(metric)}
        for split, metrics in (manifest.get("metrics") or {}).items()
        for metric, mean in metrics.items()
    ]


def _only(row: Mapping[str, Any], *names: str) -> Facts:
    return {name: row.get(name) for name in names}


def _model(subject: Subject) -> Facts:
    forest = subject.forest
    return {
        "name": subject.name,
        "version": str(subject.version),
        "number": subject.version.number,
        "sha256": subject.version.sha256,
        "objective": forest.objective,
        "trees": forest.n_trees,
        "features": forest.n_features,
    }


def _plain(value: Any) -> Any:
    """Return JSON values: tuples as lists, and None for what is not a number."""
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
