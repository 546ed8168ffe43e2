"""The report: all facts as one record, and three files made from it, published atomically as a folder.

It contains no times and no absolute paths: the same work folder and registry give the same bytes.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankmill.foundation.errors import InputError
from rankmill.foundation.records import as_json
from rankmill.foundation.storage.staging import staging_folder
from rankmill.registry import Registry
from rankmill.report import Facts
from rankmill.report.findings import findings_of
from rankmill.report.model_section import dependence_facts, influence_facts, learning_facts, noise_facts, score_facts
from rankmill.report.page import markdown, page
from rankmill.report.provenance import commands, data_facts, drift_facts, lineage_facts, rollback
from rankmill.report.rankings import metrics_facts, query_facts, rankings_of, slice_facts
from rankmill.report.subject import Known, subject_of, subject_of_version
from rankmill.scorer.rerank.publish import replace_folder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rankmill.foundation.storage.location import Location
    from rankmill.gate.gate_report import FurtherVerdict, GateReport, RivalFacts
    from rankmill.report.subject import Subject

_FOUND = ("n_queries", "candidate", "other", "difference", "interval", "wins", "ties", "losses")
FORMAT = 1  # of report.json, which docs/report.md describes


def gather(subject: Subject, n_threads: int = 0) -> Facts:
    """Gather the facts about ``subject``; missing parts are None or empty."""
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
        "learning": learning_facts(subject.training, metric, refit="refit" in subject.version.manifest),
        "noise_floor": noise_facts(subject.training, subject.version.manifest, metric),
        "influence": influence_facts(subject),
        "dependence": dependence_facts(subject),
        "scores": None if rankings is None else score_facts(rankings),
        "data": data_facts(subject),
        "drift": drift_facts(subject.drift),
        "lineage": lineage_facts(subject),
        "commands": commands(subject),
        "rollback": rollback(subject),
        "notes": [*(() if subject.gate is None else subject.gate.notes), *subject.notes],
    }
    if subject.clicks is not None:
        facts["clicks"] = subject.clicks
    plain: Facts = _plain(facts)
    plain["findings"] = findings_of(plain)
    return plain


def to_bytes(facts: Facts) -> bytes:
    """Return ``report.json``: in the order of the page, numbers with all digits, a newline at the end."""
    return (json.dumps(facts, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def verdict_of(subject: Subject) -> Facts:
    """Return whether the version was promoted, and the reasons from the gate."""
    gate, moves = subject.gate, subject.version.state.moves.get(subject.alias, [])
    was_promoted = any(move.version == subject.version.number for move in moves)
    passed = None if gate is None else gate.passed
    if subject.promoted:
        outcome = "promoted"
    elif passed is False:
        outcome = "not promoted"
    elif was_promoted:
        outcome = "replaced"
    else:
        outcome = "not promoted" if passed is None else "passed"
    return {
        "outcome": outcome,
        "alias": subject.alias,
        "gate": passed,
        "reasons": [] if gate is None else list(gate.reasons),
        "metric": None if gate is None else gate.metric,
        "split": None if gate is None else gate.split,
        "margin": None if gate is None else gate.margin,
        "guardrails": []
        if gate is None
        else [{"name": rail.name, "verdict": rail.verdict, "words": rail.words} for rail in gate.guardrails],
        "bars": [] if gate is None else [_rival(rival, gate) for rival in gate.comparisons],
    }


def _rival(rival: RivalFacts, gate: GateReport) -> Facts:
    further = [
        {"metric": each.metric, **_judged(each, each.metric, rival, each.asked(gate.limits))}
        for each in rival.also or ()
    ]
    return {
        "against": rival.against,
        "words": rival.words,
        "must_be_beaten": rival.must_be_beaten,
        **_judged(rival, gate.metric, rival, rival.asked(gate.margin, gate.limits)),
        **({"also": further} if further else {}),
    }


def _judged(verdict: RivalFacts | FurtherVerdict, metric: str, rival: RivalFacts, asked: str) -> Facts:
    found: Facts = as_json(rival.metrics[metric]) or {}
    return {"passed": verdict.passed, "asked": asked, "found": {name: found.get(name) for name in _FOUND}}


def _recorded(subject: Subject) -> list[Facts]:
    """Return the metrics measured in training, from the version's manifest.

    They are by split and metric, with 95 % intervals.
    """
    manifest = subject.version.manifest
    intervals = manifest.get("intervals") or {}
    return [
        {"split": split, "metric": metric, "mean": mean, "interval": (intervals.get(split) or {}).get(metric)}
        for split, metrics in (manifest.get("metrics") or {}).items()
        for metric, mean in metrics.items()
    ]


def _model(subject: Subject) -> Facts:
    model = subject.model
    return {
        "name": subject.name,
        "version": str(subject.version),
        "number": subject.version.number,
        "sha256": subject.version.sha256,
        "objective": model.objective,
        "trees": model.n_trees,
        "features": model.n_features,
    }


def _plain(value: Any) -> Any:
    """Convert to JSON values: tuples to lists, and NaN to None."""
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


PAGE, FACTS, TEXT = "index.html", "report.json", "report.md"


@dataclass(frozen=True, slots=True)
class ReportPaths:
    """The paths of a report."""

    folder: Path
    page: Path
    facts: Path
    markdown: Path
    title: str
    """The finding on one line."""


def write_report(
    work: Path,
    registry: Location,
    *,
    out: Path | None = None,
    by: Sequence[str] = (),
    known: Known | None = None,
    n_threads: int = 0,
) -> ReportPaths:
    """Write the report of the run in ``work``: ``index.html``, ``report.json`` and ``report.md``.

    Parameters
    ----------
    work
        The work folder of the run.
    registry
        Folder of the registry with the version.
    out
        Folder for the report, which is replaced; default: ``WORK/report``.
    by
        Columns of the dataset for slices, in addition to query size and mix of grades.
    known
        Facts that the caller has already; others are looked up.
    n_threads
        Number of threads for scoring; 0: all cores.

    Raises
    ------
    rankmill.foundation.errors.InputError
        The work folder does not exist or has no record of a trained version, or ``out`` has other files.
    rankmill.foundation.errors.RankmillError
        The version is not in the registry, or damaged.
    rankmill.foundation.errors.RankmillError
        The dataset is missing or damaged, or has no such column.
    """
    folder = work / "report" if out is None else out
    _check_free(folder)
    return _published(gather(subject_of(work, Registry(registry), known or Known(), by), n_threads), folder)


def write_version_report(reference: str, registry: Location, *, out: Path | None = None) -> ReportPaths:
    """Write the report of a version from its facts in the registry.

    Parameters
    ----------
    reference
        ``NAME`` (its production version), ``NAME@7``, ``NAME@latest`` or ``NAME@alias``.
    registry
        Folder of the registry.
    out
        Folder for the report, which is replaced; default: ``NAME@7.report``.

    Raises
    ------
    rankmill.foundation.errors.InputError
        ``out`` has other files.
    rankmill.foundation.errors.RankmillError
        The version is not in the registry, or damaged.
    """
    subject = subject_of_version(Registry(registry), reference)
    folder = Path(f"{subject.version}.report") if out is None else out
    _check_free(folder)
    return _published(gather(subject), folder)


def _published(facts: Facts, folder: Path) -> ReportPaths:
    with staging_folder(folder) as staged:
        made = staged / "made"
        made.mkdir()
        (made / FACTS).write_bytes(to_bytes(facts))
        (made / TEXT).write_text(markdown(facts), encoding="utf-8")
        (made / PAGE).write_text(page(facts), encoding="utf-8")
        replace_folder(made, folder, staged)
    return ReportPaths(
        folder=folder,
        page=folder / PAGE,
        facts=folder / FACTS,
        markdown=folder / TEXT,
        title=facts["findings"]["title"],
    )


def _check_free(folder: Path) -> None:
    """Raise InputError unless ``folder`` is missing, empty, or an older report."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise InputError(f"{folder}: is a file; choose a folder for the report")
    names = {path.name for path in folder.iterdir()}
    if names - {PAGE, FACTS, TEXT} or (names and not _is_report(folder / FACTS)):
        raise InputError(f"{folder}: is a folder with other files; choose another folder for the report")


def _is_report(path: Path) -> bool:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and {"format", "findings", "verdict"} <= content.keys()
