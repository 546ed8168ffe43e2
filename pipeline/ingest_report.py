"""Progress bars and the final report of an ingest."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rich.console import Console
from rich.progress import TaskID

from rankmill.foundation.cures import NAME, spelled_with
from rankmill.foundation.progress import TerminalBar, stderr_console
from rankmill.foundation.records import JSON, as_json, infinite_as_words
from rankmill.pipeline.bins.vocabulary import Vocabulary
from rankmill.pipeline.dataset.manifest import JUDGMENT_REJECTS_NAME, PAIR_REJECTS_NAME, REJECTS_NAME, UNJUDGED
from rankmill.pipeline.read.grades import HIGHEST_LABEL_AS_GRADE, note_on_gains

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rankmill.pipeline.dataset.manifest import Manifest, Repeats, SourceFile
    from rankmill.pipeline.statistics.feature_statistics import Statistics


Stage = Literal["reading", "writing"]


class IngestBars(TerminalBar):
    """Progress bars for both passes of an ingest, with messages above them."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or stderr_console(soft_wrap=True, highlight=False)
        super().__init__("{task.description}", "{task.fields[amount]}", self._console)
        self._tasks: dict[Stage, TaskID] = {}

    def update(self, stage: Stage, done: int, total: int) -> None:
        """Show that ``done`` of ``total`` bytes are read, or documents written."""
        if stage not in self._tasks:
            self._tasks[stage] = self._progress.add_task(stage, total=total, amount="")
        amount = (
            f"{done / 1e6:,.0f} of {total / 1e6:,.0f} MB" if stage == "reading" else f"{done:,} of {total:,} documents"
        )
        task = self._tasks[stage]
        self._progress.update(task, completed=done, total=total, amount=amount)

    def say(self, line: str) -> None:
        """Print ``line``."""
        self._console.print(line, markup=False)


GRADES_SHOWN = 12
"""Number of grades that the report lists; the others are counted."""
CLASHES_SHOWN = 3
"""The same for categories with the same code."""


@dataclass(frozen=True, slots=True)
class IngestReport:
    """The result of an ingest and its duration."""

    path: Path
    manifest: Manifest
    seconds: float
    statistics: Statistics
    """Statistics of the columns."""
    read: Sequence[SourceFile] = ()
    """The files read by this ingest."""
    columns_guessed: Mapping[str, str] = field(default_factory=dict)
    """Inferred roles with the names of their columns."""
    vocabulary: Vocabulary = field(default_factory=Vocabulary)
    """The categories of the categorical features."""
    empty_files: int = 0
    """Number of files that were skipped because they have no rows."""

    @property
    def megabytes_per_second(self) -> float:
        """Size of the input files divided by the time until the dataset was published."""
        return sum(source.size for source in self.read) / 1e6 / max(self.seconds, 1e-9)

    @property
    def missing_share(self) -> float:
        """Share of missing values."""
        return self.manifest.missing_values / (self.manifest.rows * len(self.manifest.features))

    @property
    def remarks(self) -> list[str]:
        """Remarks for users, one line each."""
        lines = self.statistics.remarks
        for name, clashes in self.vocabulary.clashes.items():
            what = "; ".join(" and ".join(map(repr, texts)) for texts in clashes[:CLASHES_SHOWN])
            more = f" and {len(clashes) - CLASHES_SHOWN:,} more" if len(clashes) > CLASHES_SHOWN else ""
            lines.append(f"categories of {name} with the same code by chance, which count as one: {what}{more}")
        if "train" not in self.manifest.splits:
            lines.append("no query is in the train split: training needs one")
        highest = max((count.grade for count in self.manifest.grades), default=0)
        if highest > HIGHEST_LABEL_AS_GRADE:
            lines.append(
                f"grades up to {highest:,}: amounts are labels (a column label, "
                f"{spelled_with('columns', {'label': NAME})}; {spelled_with('labels', 'real')} for LETOR text)"
            )
        elif note := note_on_gains(count.grade for count in self.manifest.grades):
            lines.append(note)
        return lines

    def render(self) -> str:
        """Return the report as text."""
        manifest = self.manifest
        names = manifest.features
        size = sum(source.size for source in self.read) / 1e6
        shares = [f"{g.grade}: {g.rows:,} ({g.rows / manifest.rows:.1%})" for g in manifest.grades]
        grades = ", ".join(shares[:GRADES_SHOWN])
        if len(shares) > GRADES_SHOWN:
            grades += f" and {len(shares) - GRADES_SHOWN:,} more"
        splits = ", ".join(f"{n} {c.queries:,} queries / {c.rows:,} documents" for n, c in manifest.splits.items())
        speed = f"{size:.1f} MB in {self.seconds:.1f} s ({self.megabytes_per_second:.1f} MB/s)"
        if size < 1:  # mostly the time of the start
            speed = f"{round(size * 1e6):,} bytes in {self.seconds:.1f} s"
        lines = [
            f"{self.path}: {manifest.rows:,} documents of {manifest.queries:,} queries",
            f"  features  {len(names)} ({_first_and_last(names)}), {self.missing_share:.1%} of the values missing",
            f"  grades    {grades}",
            f"  splits    {splits}",
            f"  read      {number_of(len(self.read), 'file')}, {speed}",
        ]
        if manifest.categories is not None:
            lines.insert(2, f"  categories {self.vocabulary.summary(manifest.categorical)}")
        if manifest.columns:
            lines.insert(-2, f"  besides   {', '.join(manifest.columns)}")
        if manifest.pairs is not None:
            lines.append(f"  pairs     {manifest.pairs.pairs:,} from {number_of(len(manifest.pairs.sources), 'file')}")
            lines += self._rejected(manifest.pairs.rejected, "pair", PAIR_REJECTS_NAME)
        lines += self._judged()
        lines += [f"  {'' if number else 'remarks':<10}{line}" for number, line in enumerate(self.remarks)]
        lines += self._rejected(manifest.rejected_rows, "row", REJECTS_NAME)
        return "\n".join(lines)

    def _rejected(self, rejected: int, what: str, name: str) -> list[str]:
        return [f"  rejected  {number_of(rejected, what)}, listed in {self.path / name}"] if rejected else []

    def _judged(self) -> list[str]:
        """Return lines about separate judgments, documents with several rows, and unjudged rows."""
        lines = []
        found, repeats = self.manifest.judgments, self.manifest.repeats
        if found is not None:
            ungraded = f", {found.ungraded:,} without a grade" if found.ungraded else ""
            lines.append(
                f"  judged    by {found.judgments:,} judgments from {number_of(len(found.sources), 'file')}{ungraded};"
                f" {found.without_row:,} of documents that have no row"
            )
            if found.repeated:
                lines.append(f"            {several(found.repeated, found.conflicting, 'judged more than once')}")
            lines += self._rejected(found.rejected, "judgment", JUDGMENT_REJECTS_NAME)
        if repeats is not None:
            lines.append(f"  repeated  {repeated(repeats)}")
        if self.manifest.unjudged:
            rows = number_of(self.manifest.unjudged_rows, "row")
            lines.append(f"  unjudged  {rows}, kept for re-ranking in {self.path / UNJUDGED}")
        return lines

    def to_json(self) -> dict[str, JSON]:
        """Return the report as JSON values."""
        manifest = self.manifest
        return {
            "dataset": str(self.path),
            "digest": manifest.data_digest(),
            "rows": manifest.rows,
            "queries": manifest.queries,
            "features": len(manifest.features),
            "categories": {name: self.vocabulary.number(name) for name in manifest.categorical},
            "max_grade": manifest.max_grade,
            "columns": list(manifest.columns),
            "columns_guessed": dict(self.columns_guessed),
            "pairs": 0 if manifest.pairs is None else manifest.pairs.pairs,
            "rejected_pairs": 0 if manifest.pairs is None else manifest.pairs.rejected,
            "grades": {str(g.grade): g.rows for g in manifest.grades},
            "splits": as_json(manifest.splits),
            "repeats": as_json(manifest.repeats),
            "judgments": as_json(manifest.judgments),
            "unjudged_rows": manifest.unjudged_rows,
            "remarks": self.remarks,
            "statistics": infinite_as_words(as_json(self.statistics)),
            "missing_values": manifest.missing_values,
            "missing_share": self.missing_share,
            "rejected_rows": manifest.rejected_rows,
            "sources": as_json(manifest.sources),
            "empty_files": self.empty_files,
            "seconds": self.seconds,
            "megabytes_per_second": self.megabytes_per_second,
        }


def _first_and_last(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} .. {names[-1]}"


def number_of(n: int, what: str) -> str:
    """Return ``n`` and its noun.

    >>> number_of(1, "row"), number_of(1200, "row")
    ('1 row', '1,200 rows')
    """
    return f"{n:,} {what}{'s' * (n != 1)}"


def repeated(found: Repeats) -> str:
    """Describe documents with several rows, and how they were merged."""
    merged = found.merged_rows
    what = f"; {number_of(merged, 'row')} merged into others of their documents" if merged else ""
    return several(found.documents, found.conflicting, "with several rows") + what


def several(documents: int, conflicting: int, how: str) -> str:
    """Describe how many documents have several rows or judgments, and how many of them have different grades.

    >>> several(12, 1, "judged more than once")
    '12 documents judged more than once, 1 of them with different grades'
    """
    differ = (
        f", {conflicting:,} of them with different grades" if conflicting else ", none of them with different grades"
    )
    return f"{number_of(documents, 'document')} {how}{differ}"
