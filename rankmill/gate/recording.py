"""The gate of a registry: which versions meet, by whose rules, and where the report is kept."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rankmill.foundation.errors import IntegrityError, PromotionRefused, UnknownModel
from rankmill.foundation.terminal import page_width, text_table
from rankmill.gate.gate_rules import GateOptions, rules_under
from rankmill.gate.judging import FORMAT, Contender, judge
from rankmill.pipeline.group.sketch import TRAIN_QUERIES, QuerySketch
from rankmill.registry.names import PRODUCTION, check_alias
from rankmill.registry.stored_records import Gate, GateOutcome
from rankmill.scorer.forest import Forest

if TYPE_CHECKING:
    from rankmill.pipeline.dataset import Dataset
    from rankmill.registry import Registry, Version
    from rankmill.registry.stored_records import Entry
    from rankmill.scorer.metrics.conventions import Convention


@dataclass(frozen=True, slots=True, kw_only=True)
class GateResult:
    """A version's result of the gate before an alias, as it stands in the log.

    Attributes
    ----------
    name, version, alias
        What was at which gate.
    entry
        The entry of the log that keeps it.
    new
        Whether this call has written it.
    report
        See `rankmill.gate.judging.judge`.
    shortfall
        In which way the result does not satisfy the alias' policy, though it may have passed; None if it does.
    """

    name: str
    version: int
    alias: str
    entry: Entry
    new: bool
    report: dict[str, Any]
    shortfall: str | None = None

    @property
    def passed(self) -> bool:
        """Whether the version may take the place."""
        return gate_in(self.entry).passed

    @property
    def carries(self) -> bool:
        """Whether a promotion can rest on it: it has passed, and measured what the alias asks for."""
        return self.passed and self.shortfall is None

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        change = gate_in(self.entry)
        return {
            "name": self.name,
            "version": self.version,
            "alias": self.alias,
            "passed": self.passed,
            "baseline": change.baseline,
            "entry": self.entry.number,
            "new": self.new,
            "shortfall": self.shortfall,
            "report_sha256": change.report,
            "report": self.report,
        }

    def render(self) -> str:
        """Return it for a person."""
        kept = "recorded in" if self.new else "stands in"
        lines = [render(self.report), f"{kept} entry {self.entry.number} of the log, for {self.alias}"]
        if self.shortfall is not None:
            lines.append(f"it will not carry a promotion: {self.shortfall}")
        return "\n".join(lines)

    def require(self) -> None:
        """Raise PromotionRefused, with the reasons in one line, unless the version has passed."""
        if not self.passed:
            reasons = "; ".join(self.report["reasons"])
            raise PromotionRefused(f"{self.name}@{self.version} did not pass the gate for {self.alias}: {reasons}")

    def require_carrying(self) -> None:
        """Raise PromotionRefused unless a promotion can rest on this result."""
        self.require()
        if self.shortfall is not None:
            raise PromotionRefused(
                f"{self.name}@{self.version} passed the gate, which did not measure what {self.alias} asks for:"
                f" {self.shortfall}"
            )


DEFAULT_GATE = GateOptions()


def gate(
    store: Registry,
    reference: str,
    dataset: Dataset,
    split: str,
    *,
    asked: GateOptions = DEFAULT_GATE,
    convention: Convention | None = None,
    against: Dataset | None = None,
    n_threads: int = 0,
    reason: str = "",
) -> GateResult:
    """Judge a version against what ``alias`` means now, and record the report, whether it has passed or not.

    Parameters
    ----------
    store, reference
        The version: ``NAME`` (its latest), ``NAME@7``, ``NAME@alias``.
    dataset, split
        Where they are compared; see `rankmill.gate.judging.judge`.
    against
        A former dataset, for the guardrail about drift.
    reason
        One line for the log.
    asked
        The alias, whose place it is to take, and the rules.  If the alias means nothing yet, the bars for a first version stand.
        What is left out is as the alias' policy says, else ndcg@10 and 0.002.
    convention
        How metrics are computed; None: as the policy says, else our own.

    Raises
    ------
    InputError, CandidatesRejected
        See `rankmill.gate.judging.judge` and `rankmill.gate.gate_rules.rules_under`.
    UnknownModel
        There is no such version.
    """
    alias = asked.alias
    check_alias(alias)
    candidate = store.resolve(reference, bare="latest")
    state = candidate.state
    policy, present = store.policy(state, alias), state.standing(alias)
    baseline = None if present is None else store.resolve(f"{candidate.name}@{present}", bare="latest")
    rules = rules_under(policy, asked, convention)
    report = judge(
        contender_of(candidate),
        None if baseline is None else contender_of(baseline),
        dataset,
        split,
        rules,
        against=against,
        n_threads=n_threads,
    )
    outcome = GateOutcome(
        version=candidate.number,
        alias=alias,
        passed=report["passed"],
        baseline=present,
        dataset=dataset.digest,
        split=split,
        metric=report["metric"],
        convention=report["convention_sha256"],
        margin=rules.margin,
    )
    entry = store.record_gate(candidate.name, outcome, report, reason=reason)
    return GateResult(
        name=candidate.name,
        version=candidate.number,
        alias=alias,
        entry=entry,
        new=entry.number > state.head,
        report=report,
        shortfall=None if policy is None else policy.shortfall(gate_in(entry)),
    )


def stored_result(store: Registry, reference: str, alias: str = PRODUCTION) -> GateResult:
    """Read the newest result of a version at the gate before ``alias``.

    Raises
    ------
    UnknownModel
        There is no such version, or it was never at this gate.
    IntegrityError
        The report is damaged, or was not written by a gate that this version knows.
    """
    version = store.resolve(reference, bare="latest")
    entry = version.gates.get(alias)
    if entry is None:
        others = f" (it was for {', '.join(sorted(version.gates))})" if version.gates else ""
        cure = f"rankmill models gate {version} --on DATASET --alias {alias}"
        raise UnknownModel(f"{version} was not put to the gate for {alias}{others}; {cure}")
    report = store.gate_report(version.name, entry.number)
    if report.get("format") != FORMAT:
        found = f"its report has format {report.get('format')!r}, this version of rankmill shows format {FORMAT}"
        raise IntegrityError(
            f"{version}: the gate is entry {entry.number} of the log, but {found}; use a later version"
        )
    policy = store.policy(version.state, alias)
    return GateResult(
        name=version.name,
        version=version.number,
        alias=alias,
        entry=entry,
        new=False,
        report=report,
        shortfall=None if policy is None else policy.shortfall(gate_in(entry)),
    )


def contender_of(version: Version) -> Contender:
    """Read the model of ``version``, and what is known of its training data."""
    forest = Forest.from_bytes(version.read(), str(version))
    digests = {forest.info.get("dataset_digest"), version.manifest.get("dataset_digest")}
    sketch = version.attachment(TRAIN_QUERIES)
    return Contender(
        name=str(version),
        forest=forest,
        sha256=version.sha256,
        manifest_sha256=version.manifest_sha256,
        trained_on=frozenset(digest for digest in digests if isinstance(digest, str)),
        train_queries=None if sketch is None else QuerySketch.from_bytes(sketch, f"{version}, {TRAIN_QUERIES}"),
    )


def gate_in(entry: Entry) -> Gate:
    """Return what ``entry``, which is a result of the gate, says."""
    assert isinstance(entry.change, Gate)  # noqa: S101 (whoever hands it over has looked for a gate's entry)
    return entry.change


_PAGE, _WORST = 100, 5
_WIDE = 10_000  # where there is no terminal, a guardrail is one line


def render(report: dict[str, Any]) -> str:
    """Return ``report`` (`rankmill.gate.judging.judge`) for a person."""
    candidate = report["candidate"]["version"]
    counts = report["queries"]
    lines = [
        f"{candidate} on the split {report['split']} of dataset {report['dataset'][:12]}: {counts['queries']:,} queries, "
        f"{counts['documents']:,} documents"
    ]
    for comparison in report["comparisons"]:
        lines += ["", *_comparison(report, comparison, candidate)]
    lines += ["", *_guardrails(report), ""]
    lines += [f"note: {note}" for note in report["notes"]]
    convention, changed = report["convention"], ""
    if report["max_grade"] is not None:
        changed = f", max grade {report['max_grade']}"
    lines.append(f"conventions: {convention['name']} ({report['convention_sha256'][:12]}){changed}")
    verdict = "passed" if report["passed"] else "did not pass"
    lines.append(f"{candidate} {verdict}")
    lines += [f"  {reason}" for reason in report["reasons"]]
    return "\n".join(lines)


def asked(comparison: Mapping[str, Any], margin: float) -> str:
    """Return what a comparison asks of the candidate; reports of before have no ``rule``."""
    rule = comparison.get("rule") or ("better" if comparison["must_be_beaten"] else "not worse")
    words = {"better": "must be better", "not shown to be worse": "must not be significantly worse"}
    return words.get(rule, f"must not be worse by more than {margin:g}")


def _comparison(report: dict[str, Any], comparison: dict[str, Any], candidate: str) -> list[str]:
    title = f"against {comparison['words']}: {asked(comparison, report['margin'])} in {report['metric']}"
    other = report["baseline"]["version"] if report["baseline"] else comparison["against"]
    rows = []
    for name in sorted(comparison["metrics"], key=lambda metric: (metric != report["metric"], metric)):
        found = comparison["metrics"][name]
        if found is None:
            rows.append([name, *[""] * 8, "0"])
            continue
        low, high = found["interval"]
        effect = "" if found["effect_size"] is None else f"{found['effect_size']:+.3f}"
        rows.append(
            [
                name,
                f"{found['candidate']:.4f}",
                f"{found['other']:.4f}",
                f"{found['difference']:+.4f}",
                f"{low:+.4f} to {high:+.4f}",
                effect,
                *(f"{found[part]:,}" for part in ("wins", "ties", "losses", "n_queries")),
            ]
        )
    header = ["metric", candidate, other, "difference", "95 % interval", "effect", "wins", "ties", "losses", "queries"]
    page = min(_PAGE, page_width(_PAGE))
    lines = [*textwrap.wrap(title, page), text_table(header, rows)]
    worst = (comparison["metrics"][report["metric"]] or {"worst": []})["worst"][:_WORST]
    if worst:
        listed = ", ".join(f"{row['qid']} ({row['difference']:+.4f})" for row in worst)
        lines += textwrap.wrap(f"lost most in {report['metric']}: {listed}", page)
    return lines


def _guardrails(report: dict[str, Any]) -> list[str]:
    rows = [*report["guardrails"], *report.get("measured", [])]
    width = max(len(row["name"]) for row in rows)
    said = {"passed": "ok", "failed": "FAILED", "told": "-"}
    lines = []
    for row in rows:
        limit = row["limit"]
        bound = f" (limit {limit:g})" if isinstance(limit, int | float) and limit else ""
        label = f"{row['name']:<{width}}  {said[row['verdict']]:<6}  "
        words, indent = f"{row['words']}{bound}", " " * len(label)
        lines.append(textwrap.fill(words, page_width(_WIDE), initial_indent=label, subsequent_indent=indent))
    return lines
