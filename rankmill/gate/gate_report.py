"""The report of a gate: the record stored in the registry and ``WORK/gate.json``, and its text."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass

from rankmill.foundation.records import left_out
from rankmill.foundation.terminal import page_width, text_table
from rankmill.gate.gate_rules import ConventionFacts, GateLimits
from rankmill.gate.guardrails import Guardrail
from rankmill.gate.rankings import Rule
from rankmill.scorer.metrics.significance import Bootstrap, Paired

FORMAT = 1
BASELINE, RECENT = "baseline", "best recent version"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContenderFacts:
    """A version, and the digests of its model and manifest."""

    version: str
    model: str
    manifest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GateQueries:
    """The queries on which the models were compared, and their number of documents."""

    digest: str
    queries: int
    documents: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FurtherVerdict:
    """The verdict by a further metric, which must not be worse by more than ``margin``.

    The figures are among the metrics.
    """

    metric: str
    margin: float
    passed: bool
    reason: str | None = left_out()


def not_worse(margin: float, limits: GateLimits) -> str:
    """Return the rule against the current version in words."""
    words = f"must not be worse by more than {margin:g}"
    return words if limits.allow_significantly_worse else f"{words}, nor significantly worse"


@dataclass(frozen=True, slots=True, kw_only=True)
class RivalFacts:
    """The candidate against another ranking, by every metric; None for a metric with too few queries that count.

    ``passed`` and ``reasons`` are those of the deciding metric, ``also`` has the verdicts by further ones.
    """

    against: str
    words: str
    rule: Rule
    above: float
    passed: bool
    reasons: tuple[str, ...]
    metrics: Mapping[str, Paired | None]
    also: tuple[FurtherVerdict, ...] | None = left_out()
    worse: bool | None = left_out()
    """True if the candidate is significantly worse by one of the metrics that decide, which was allowed."""

    def asked(self, margin: float, limits: GateLimits) -> str:
        """Return the rule of the comparison."""
        words = {"better": "must be better", "not shown to be worse": "must not be significantly worse"}
        return words.get(self.rule, not_worse(margin, limits))

    def verdicts(self, report: GateReport) -> list[tuple[str, bool, str]]:
        """Return each deciding metric, whether the candidate passed, and the rule."""
        further = [(each.metric, each.passed, not_worse(each.margin, report.limits)) for each in self.also or ()]
        return [(report.metric, self.passed, self.asked(report.margin, report.limits)), *further]

    def decisive(self, metric: str) -> Paired:
        """Return the comparison by the deciding ``metric``, which exists because too few queries are an error."""
        found = self.metrics[metric]
        assert found is not None  # noqa: S101
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class GateReport:
    """The result of a gate, without times and paths: the same input gives the same report."""

    format: int = FORMAT
    passed: bool
    reasons: tuple[str, ...]
    notes: tuple[str, ...]
    candidate: ContenderFacts
    baseline: ContenderFacts | None
    dataset: str
    split: str
    queries: GateQueries
    metric: str
    margin: float
    limits: GateLimits
    convention: ConventionFacts
    convention_sha256: str
    max_grade: int | None
    bootstrap: Bootstrap
    comparisons: tuple[RivalFacts, ...]
    guardrails: tuple[Guardrail, ...]
    code: str
    worse: bool | None = left_out()
    """True if the candidate passed although it is significantly worse than a version that had the alias, which was
    allowed."""

    def render(self) -> str:
        """Return the report as text."""
        candidate, counts = self.candidate.version, self.queries
        lines = [
            f"{candidate} on the split {self.split} of dataset {self.dataset[:12]}: {counts.queries:,} queries, "
            f"{counts.documents:,} documents"
        ]
        counted = self.comparisons[0].decisive(self.metric).n_queries
        lines.append(f"{counted:,} of these queries count: versions can differ in them by {self.metric}")
        for comparison in self.comparisons:
            lines += ["", *self._comparison(comparison)]
        lines += ["", *self._guardrails(), ""]
        lines += [f"note: {note}" for note in self.notes]
        changed = "" if self.max_grade is None else f", max grade {self.max_grade}"
        lines.append(f"conventions: {self.convention.name} ({self.convention_sha256[:12]}){changed}")
        lines.append(f"{candidate} {'passed' if self.passed else 'did not pass'}")
        lines += [f"  {reason}" for reason in self.reasons]
        return "\n".join(lines)

    def _comparison(self, comparison: RivalFacts) -> list[str]:
        title = f"against {comparison.words}: {comparison.asked(self.margin, self.limits)} in {self.metric}"
        other = self.baseline.version if self.baseline and comparison.against == BASELINE else comparison.against
        rows = []
        further = [each.metric for each in comparison.also or ()]
        first = {name: place for place, name in enumerate([self.metric, *further])}
        for name in sorted(comparison.metrics, key=lambda metric: (first.get(metric, len(first)), metric)):
            found = comparison.metrics[name]
            if found is None:
                rows.append([name, *[""] * 8, "0"])
                continue
            low, high = found.interval
            rows.append(
                [
                    name,
                    f"{found.candidate:.4f}",
                    f"{found.other:.4f}",
                    f"{found.difference:+.4f}",
                    f"{low:+.4f} to {high:+.4f}",
                    "" if found.effect_size is None else f"{found.effect_size:+.3f}",
                    *(f"{counted:,}" for counted in (found.wins, found.ties, found.losses, found.n_queries)),
                ]
            )
        figures = ["difference", "95 % interval", "effect", "wins", "ties", "losses", "queries"]
        page = min(_PAGE, page_width(_PAGE))
        lines = [
            *textwrap.wrap(title, page),
            text_table(["metric", self.candidate.version, other, *figures], rows),
        ]
        for metric, passed, asked in comparison.verdicts(self)[1:]:
            lines += textwrap.wrap(f"{metric} {asked}: {'passed' if passed else 'FAILED'}", page)
        if worst := comparison.decisive(self.metric).worst[:_WORST]:
            listed = ", ".join(f"{lost.qid} ({lost.difference:+.4f})" for lost in worst)
            lines += textwrap.wrap(f"lost most in {self.metric}: {listed}", page)
        return lines

    def _guardrails(self) -> list[str]:
        rows = self.guardrails
        width = max(len(row.name) for row in rows)
        labels = {"passed": "ok", "failed": "FAILED", "noted": "-"}
        lines = []
        for row in rows:
            bound = f" (limit {row.limit:g})" if isinstance(row.limit, int | float) and row.limit else ""
            label = f"{row.name:<{width}}  {labels[row.verdict]:<6}  "
            words, indent = f"{row.words}{bound}", " " * len(label)
            lines.append(textwrap.fill(words, page_width(_WIDE), initial_indent=label, subsequent_indent=indent))
        return lines


_PAGE, _WORST = 100, 5
_WIDE = 10_000  # columns without a terminal: a guardrail is one line
