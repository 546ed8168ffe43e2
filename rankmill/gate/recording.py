"""The gate of a registry: which versions meet, by whose rules, and where the report is kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rankmill.foundation.errors import IntegrityError, PromotionRefused, UnknownModel
from rankmill.gate.judging import FORMAT, Contender, judge
from rankmill.gate.report import render
from rankmill.gate.rules import rules_under
from rankmill.pipeline.group.sketch import TRAIN_QUERIES, QuerySketch
from rankmill.registry.history.changes import Gate
from rankmill.registry.names import PRODUCTION, check_alias
from rankmill.scorer.forest import Forest

if TYPE_CHECKING:
    from rankmill.pipeline.dataset import Dataset
    from rankmill.registry import Registry, Version
    from rankmill.registry.history.entry import Entry
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


def gate(
    store: Registry,
    reference: str,
    dataset: Dataset,
    split: str,
    *,
    alias: str = PRODUCTION,
    metric: str | None = None,
    margin: float | None = None,
    convention: Convention | None = None,
    against: Dataset | None = None,
    n_threads: int = 0,
    reason: str = "",
    **limits: Any,
) -> GateResult:
    """Judge a version against what ``alias`` means now, and record the report, whether it has passed or not.

    Parameters
    ----------
    store, reference
        The version: ``NAME`` (its latest), ``NAME@7``, ``NAME@alias``.
    dataset, split
        Where they are compared; see `rankmill.gate.judging.judge`.
    alias
        Whose place it is to take.  If that means nothing yet, the bars for a first version stand.
    metric, margin, convention
        By default what the alias' policy says, else ndcg@10, 0.002 and our own.
    against
        A former dataset, for the guardrail about drift.
    reason
        One line for the log.
    limits
        What else `rankmill.gate.rules.Rules` has.

    Raises
    ------
    InputError, CandidatesRejected
        See `rankmill.gate.judging.judge` and `rankmill.gate.rules.rules_under`.
    UnknownModel
        There is no such version.
    """
    check_alias(alias)
    candidate = store.resolve(reference, bare="latest")
    state = candidate.state
    policy, present = store.policy(state, alias), state.standing(alias)
    baseline = None if present is None else store.resolve(f"{candidate.name}@{present}", bare="latest")
    rules = rules_under(policy, metric=metric, margin=margin, convention=convention, **limits)
    report = judge(
        contender_of(candidate),
        None if baseline is None else contender_of(baseline),
        dataset,
        split,
        rules,
        against=against,
        n_threads=n_threads,
    )
    entry = store.record_gate(
        candidate.name,
        candidate.number,
        alias=alias,
        passed=report["passed"],
        baseline=present,
        report=report,
        dataset=dataset.digest,
        split=split,
        metric=report["metric"],
        convention=report["convention_sha256"],
        margin=rules.margin,
        reason=reason,
    )
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
