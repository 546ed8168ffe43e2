"""Run the gate for a version in a registry: choose the versions and rules, and store the report."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rankmill.foundation.errors import IntegrityError, PromotionRefused, UnknownModel
from rankmill.foundation.records import as_json, from_json, other_format
from rankmill.gate.gate_report import FORMAT, GateReport
from rankmill.gate.gate_rules import GateOptions, rules_under
from rankmill.gate.judging import Contender, judge
from rankmill.gate.learnt_from_clicks import ClickEvidence, clicks_of
from rankmill.pipeline.group.sketch import TRAIN_QUERIES, QuerySketch
from rankmill.registry.names import PRODUCTION, check_alias
from rankmill.registry.stored_records import GateRecord
from rankmill.scorer.models.model_service import model_of

if TYPE_CHECKING:
    from rankmill.pipeline.dataset.dataset import Dataset
    from rankmill.registry import Registry, Version
    from rankmill.registry.stored_records import AliasPolicy, Entry
    from rankmill.scorer.metrics.conventions import Convention


@dataclass(frozen=True, slots=True, kw_only=True)
class GateResult:
    """The gate result of a version for an alias, from the log."""

    name: str
    version: int
    alias: str
    passed: bool
    """Whether the version passed."""
    baseline: int | None
    entry: int
    """The log entry of the result."""
    new: bool
    """Whether this call wrote it."""
    shortfall: str | None
    """How the result violates the policy of the alias, even if it passed; None if it satisfies it."""
    report_sha256: str
    report: GateReport

    @classmethod
    def of(
        cls, version: Version, alias: str, entry: Entry, report: GateReport, policy: AliasPolicy | None
    ) -> GateResult:
        """Return the result for ``version`` in log entry ``entry``.

        The state of ``version`` is from before the entry.
        """
        found = gate_in(entry)
        return cls(
            name=version.name,
            version=version.number,
            alias=alias,
            passed=found.passed,
            baseline=found.baseline,
            entry=entry.number,
            new=entry.number > version.state.head,
            shortfall=None if policy is None else policy.shortfall(found),
            report_sha256=found.report,
            report=report,
        )

    @property
    def carries(self) -> bool:
        """Whether it permits a promotion: it passed, and satisfies the policy of the alias."""
        return self.passed and self.shortfall is None

    def render(self) -> str:
        """Return the result as text."""
        kept = "recorded in" if self.new else "stands in"
        lines = [self.report.render(), f"{kept} entry {self.entry} of the log, for {self.alias}"]
        if self.shortfall is not None:
            lines.append(f"it does not allow a promotion: {self.shortfall}")
        return "\n".join(lines)

    def require(self) -> None:
        """Raise PromotionRefused, with the reasons on one line, unless the version passed."""
        if not self.passed:
            reasons = "; ".join(self.report.reasons)
            raise PromotionRefused(f"{self.name}@{self.version} did not pass the gate for {self.alias}: {reasons}")

    def require_carrying(self) -> None:
        """Raise PromotionRefused unless this result permits a promotion."""
        self.require()
        if self.shortfall is not None:
            raise PromotionRefused(
                f"{self.name}@{self.version} passed the gate, but the gate did not measure what {self.alias} requires:"
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
    clicks: ClickEvidence | None = None,
    n_threads: int = 0,
    reason: str = "",
) -> GateResult:
    """Judge a version against the current version of ``alias``, and record the report, whether it passed or not.

    Parameters
    ----------
    store, reference
        The version: ``NAME`` (its latest), ``NAME@7``, ``NAME@alias``.
    dataset, split
        The data for the comparison; see `rankmill.gate.judging.judge`.
    clicks
        A log whose clicks say what rankings of these queries are worth.
    reason
        One line for the log.
    asked
        The alias and the rules.  If the alias is not set, the rules for a first version apply.  Omitted rules are taken
        from the policy of the alias, otherwise ndcg@10 and 0.002.  The best of the last ``best_of_last`` versions of
        the alias is a rival too.
    convention
        How metrics are computed; None: as in the policy, otherwise our own.

    Raises
    ------
    InputError, CandidatesRejected
        See `rankmill.gate.judging.judge` and `rankmill.gate.gate_rules.rules_under`.
    UnknownModel
        The version does not exist.
    """
    alias = asked.alias
    check_alias(alias)
    candidate = store.resolve(reference, bare="latest")
    state = candidate.state
    policy, present = store.policy(state, alias), state.standing(alias)
    baseline = None if present is None else store.resolve(f"{candidate.name}@{present}", bare="latest")
    rules = rules_under(policy, asked, convention)
    contender = contender_of(candidate)
    earlier = earlier_holders(store, candidate, asked)
    naive, remarks = naive_beside(store, candidate, dataset.digest in contender.trained_on, split)
    with nullcontext() if clicks is None else clicks.compared() as by_clicks:
        report = judge(
            contender,
            None if baseline is None else contender_of(baseline),
            dataset,
            split,
            rules,
            naive=None if naive is None else contender_of(naive),
            earlier=[contender_of(each) for each in earlier],
            clicks=by_clicks,
            n_threads=n_threads,
        )
    report = replace(report, notes=(*remarks, *report.notes))
    outcome = {"version": candidate.number, "alias": alias, "passed": report.passed, "baseline": present}
    outcome |= {"dataset": dataset.digest, "split": split, "metric": report.metric, "margin": rules.margin}
    outcome |= {"convention": report.convention_sha256} | ({"worse": True} if report.worse else {})
    entry = store.record_gate(candidate.name, outcome, as_json(report), reason=reason)
    return GateResult.of(candidate, alias, entry, report, policy)


def earlier_holders(store: Registry, candidate: Version, asked: GateOptions) -> list[Version]:
    """Return the versions that had the alias last, newest first.

    The current one, the candidate and those rolled back from are left out.
    """
    state = candidate.state
    left = [number for number in state.holders(asked.alias) if number not in {candidate.number, *state.swept}]
    present = state.standing(asked.alias)
    numbers = [number for number in left if number != present][: asked.best_of_last - 1]
    return [store.resolve(f"{candidate.name}@{number}", bare="latest") for number in numbers]


def naive_beside(store: Registry, candidate: Version, own: bool, split: str) -> tuple[Version | None, list[str]]:  # noqa: FBT001
    """Return the version learnt from the same clicks as ``candidate`` without correction, and remarks.

    The version is None if it cannot be compared.

    ``own``: the dataset is that from which the candidate was learnt, so that queries of its splits may have labels from
    clicks.
    """
    clicks = clicks_of(candidate)
    if clicks is None:
        return None, []
    if own and split not in clicks.judged:
        without = "" if clicks.naive is None else f", and {candidate} is not compared with {clicks.naive}"
        return None, [
            f"the labels of the split {split} are from clicks, so that it proves little about relevance{without}"
        ]
    if clicks.naive is None:
        return None, [f"{candidate} was learnt from clicks without correction, as the log supported none"]
    try:
        naive = store.resolve(clicks.naive, bare="latest")
    except UnknownModel:
        naive = None
    if naive is None or naive.swept_in is not None:
        return None, [
            f"{clicks.naive}, learnt from the same clicks without correction, was removed and is not compared"
        ]
    return naive, []


def stored_result(store: Registry, reference: str, alias: str = PRODUCTION) -> GateResult:
    """Read the newest gate result of a version for ``alias``.

    Raises
    ------
    UnknownModel
        The version does not exist, or has no result of this gate.
    IntegrityError
        The report is damaged, or in an unknown format.
    """
    version = store.resolve(reference, bare="latest")
    entry = version.gates.get(alias)
    if entry is None:
        others = f" (only for {', '.join(sorted(version.gates))})" if version.gates else ""
        cure = f"rankmill models gate {version} --on DATASET --alias {alias}"
        raise UnknownModel(f"{version} has no gate result for {alias}{others}; {cure}")
    kept = store.gate_report(version.name, entry.number)
    if kept.get("format") != FORMAT:
        what, cure = f"{version}: gate report of entry {entry.number}", "gate the version again"
        raise IntegrityError(other_format(what, kept.get("format"), FORMAT, cure))
    report = from_json(GateReport, kept, f"{version}: the report of entry {entry.number}")
    return GateResult.of(version, alias, entry, report, store.policy(version.state, alias))


def contender_of(version: Version) -> Contender:
    """Read the model of ``version``, and the facts about its training data."""
    model = model_of(version)
    digests = {model.info.get("dataset_digest"), version.manifest.get("dataset_digest")}
    sketch = version.attachment(TRAIN_QUERIES)
    return Contender(
        name=str(version),
        model=model,
        sha256=version.sha256,
        manifest_sha256=version.manifest_sha256,
        trained_on=frozenset(digest for digest in digests if isinstance(digest, str)),
        train_queries=None if sketch is None else QuerySketch.from_bytes(sketch, f"{version}, {TRAIN_QUERIES}"),
    )


def gate_in(entry: Entry) -> GateRecord:
    """Return the gate result in ``entry``."""
    assert isinstance(entry.change, GateRecord)  # noqa: S101 (callers pass only entries of gates)
    return entry.change
