"""The report: all facts as one record, and three files made from it, published atomically as a folder.

It contains no times and no absolute paths: the same work folder and registry give the same bytes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rankmill.foundation.errors import InputError
from rankmill.foundation.records import as_json
from rankmill.foundation.storage.staging import staging_folder
from rankmill.report.facts import ModelFacts, Outcome, PresentFacts, Report
from rankmill.report.findings import title
from rankmill.report.page import markdown, page
from rankmill.report.provenance import click_facts, commands, data_facts, drift_facts, lineage_facts, rollback
from rankmill.report.rankings import metrics_facts, query_facts, rankings_of, slice_facts
from rankmill.report.training import influence_facts, learning_facts, noise_facts
from rankmill.scorer.rerank.publish import replace_folder

if TYPE_CHECKING:
    from rankmill.report.subject import Subject

PAGE, FACTS, TEXT = "index.html", "report.json", "report.md"


def gather(subject: Subject, n_threads: int = 0) -> Report:
    """Gather the facts about ``subject``, scoring with ``n_threads``; 0: all cores."""
    rankings = rankings_of(subject, n_threads)
    version, model, present, gate = subject.version, subject.model, subject.present, subject.gate
    return Report(
        date=subject.date,
        model=ModelFacts(
            name=version.name,
            version=str(version),
            sha256=version.sha256,
            bytes=version.size,
            objective=model.objective,
            trees=model.n_trees,
            features=model.n_features,
        ),
        present=None if present is None else PresentFacts(version=str(present), sha256=present.sha256),
        alias=subject.alias,
        outcome=_outcome(subject),
        gate=gate,
        metrics=None if rankings is None else metrics_facts(rankings),
        queries=None if rankings is None else query_facts(rankings),
        slices=() if rankings is None else slice_facts(rankings),
        learning=learning_facts(subject),
        noise=noise_facts(subject),
        influence=influence_facts(subject),
        clicks=click_facts(subject),
        data=data_facts(subject),
        drift=drift_facts(subject.records["drift"]),
        lineage=lineage_facts(subject),
        commands=commands(subject),
        rollback=rollback(subject),
        notes=(*(() if gate is None else gate.notes), *subject.notes),
    )


def _outcome(subject: Subject) -> Outcome:
    """Return whether the version was promoted."""
    gate, state, number = subject.gate, subject.version.state, subject.version.number
    if state.target(subject.alias) == number:
        return "promoted"
    if gate is not None and not gate.passed:
        return "not promoted"
    if any(move.version == number for move in state.moves.get(subject.alias, [])):
        return "replaced"
    return "registered" if gate is None else "passed"


def to_bytes(report: Report) -> bytes:
    """Return ``report.json``: the title, the facts in the order of the page with all digits, and a newline."""
    facts = {"title": title(report), **as_json(report)}
    return (json.dumps(facts, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


@dataclass(frozen=True, slots=True)
class ReportPaths:
    """The paths of a report, and its finding on one line."""

    page: Path
    facts: Path
    markdown: Path
    title: str


def write_report(subject: Subject, folder: Path, *, n_threads: int = 0) -> ReportPaths:
    """Replace ``folder`` by the report of ``subject``: ``index.html``, ``report.json`` and ``report.md``.

    Raises
    ------
    InputError
        ``folder`` has other files.
    CandidatesRejected
        The dataset lacks a feature of the version.
    """
    _check_free(folder)
    report = gather(subject, n_threads)
    with staging_folder(folder) as staged:
        made = staged / "made"
        made.mkdir()
        (made / FACTS).write_bytes(to_bytes(report))
        (made / TEXT).write_text(markdown(report), encoding="utf-8")
        (made / PAGE).write_text(page(report), encoding="utf-8")
        replace_folder(made, folder, staged)
    return ReportPaths(page=folder / PAGE, facts=folder / FACTS, markdown=folder / TEXT, title=title(report))


def _check_free(folder: Path) -> None:
    """Raise InputError unless ``folder`` is missing, empty, or an older report."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise InputError(f"{folder}: is a file; choose a folder for the report")
    names = {path.name for path in folder.iterdir()}
    if names - {PAGE, FACTS, TEXT} or (names and FACTS not in names):
        raise InputError(f"{folder}: is a folder with other files; choose another folder for the report")
