"""Writing a report: gather, lay out, publish the folder in one step."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankmill.foundation.errors import InputError
from rankmill.foundation.storage.publish import staging_folder
from rankmill.registry import Registry
from rankmill.report.facts import gather, to_bytes
from rankmill.report.markdown import markdown
from rankmill.report.page import page
from rankmill.report.subject import Known, subject_of, subject_of_version
from rankmill.scorer.replacing import replace_folder

if TYPE_CHECKING:
    from collections.abc import Sequence

PAGE, FACTS, TEXT = "index.html", "report.json", "report.md"


@dataclass(frozen=True, slots=True)
class ReportPaths:
    """Where a report is."""

    folder: Path
    page: Path
    facts: Path
    markdown: Path
    title: str
    """What it says, in one line."""


def write_report(
    work: Path,
    registry: Path,
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
        Folder of the registry that the version is in.
    out
        Where to write, a folder of its own that is replaced; by default ``WORK/report``.
    by
        Columns of the dataset to slice the queries by, besides their size and the mix of their grades.
    known
        What the caller knows besides; what it does not is looked up.
    n_threads
        Threads to score with; 0: the cores there are.

    Raises
    ------
    rankmill.foundation.errors.InputError
        There is no such work folder, nothing in it says which version was trained, or ``out`` holds something else.
    rankmill.foundation.errors.RankmillError
        The version is not in the registry, or damaged.
    rankmill.foundation.errors.RankmillError
        The dataset is missing or damaged, or has no such column.
    """
    folder = work / "report" if out is None else out
    _check_free(folder)
    return _published(gather(subject_of(work, Registry(registry), known or Known(), by), n_threads), folder)


def write_version_report(reference: str, registry: Path, *, out: Path | None = None) -> ReportPaths:
    """Write the report of a version, made from what the registry holds of it.

    Parameters
    ----------
    reference
        ``NAME`` (its latest version), ``NAME@7`` or ``NAME@alias``.
    registry
        Folder of the registry.
    out
        Where to write, a folder of its own that is replaced; by default ``NAME@7.report``.

    Raises
    ------
    rankmill.foundation.errors.InputError
        ``out`` holds something else.
    rankmill.foundation.errors.RankmillError
        The version is not in the registry, or damaged.
    """
    subject = subject_of_version(Registry(registry), reference)
    folder = Path(f"{subject.version}.report") if out is None else out
    _check_free(folder)
    return _published(gather(subject), folder)


def _published(facts: dict[str, Any], folder: Path) -> ReportPaths:
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
    """Raise InputError unless ``folder`` is not there, empty, or an older report."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise InputError(f"{folder}: is a file; a report is a folder")
    names = {path.name for path in folder.iterdir()}
    if names - {PAGE, FACTS, TEXT} or (names and not _is_report(folder / FACTS)):
        raise InputError(f"{folder}: is a folder with other things in it; choose another one for the report")


def _is_report(path: Path) -> bool:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and {"format", "findings", "verdict"} <= content.keys()
