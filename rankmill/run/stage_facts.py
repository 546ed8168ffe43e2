"""What those who watch know of the facts that stages tell: the one place that reads them by name.

A fact that is not there, or not of its kind, is not told; a stage never fails for what it does not say.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rankmill.run.plain_json import plain


@dataclass(frozen=True, slots=True, kw_only=True)
class GateFacts:
    """What the gate found: ``alias``, ``passed``, and by ``metric`` the ``difference`` to ``against`` with ``interval``."""

    alias: str
    passed: bool
    metric: str | None = None
    against: str | None = None
    difference: float | None = None
    interval: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftFacts:
    """What has moved: ``psi_max`` and ``alarms``."""

    psi_max: float
    alarms: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownFacts:
    """What is known of what a stage has made.

    Attributes
    ----------
    rows, queries, features, rejected
        Numbers: ``rows`` (of what is written if that is told, as ``rows_written``), ``queries``, ``features``, ``rejected``.
    metrics
        Means by split and name.  Told as ``split`` and ``metrics``, by name ``{"mean": .., ..}``.
    gate, drift
        See there.  Of the gate ``alias`` and ``passed``, then ``metric``, ``against``, ``difference``, ``interval``; drift under
        ``drift``.
    model
        Name, number and sha256 of what was trained: ``model`` (``NAME@7``) and ``sha256``.
    aliases
        Numbers of versions by alias: ``model`` and ``moved``, whose keys are the aliases that were moved to it.
    """

    rows: int | None = None
    queries: int | None = None
    features: int | None = None
    rejected: int | None = None
    metrics: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    gate: GateFacts | None = None
    drift: DriftFacts | None = None
    model: tuple[str, int, str] | None = None
    aliases: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> KnownFacts:
        """Read what a stage tells.

        >>> KnownFacts.of({"split": "test", "metrics": {"ndcg@10": {"mean": 0.5}}}).metrics
        {'test': {'ndcg@10': 0.5}}
        """
        rows = facts.get("rows_written", facts.get("rows"))
        return cls(
            rows=_count(rows),
            queries=_count(facts.get("queries")),
            features=_count(facts.get("features")),
            rejected=_count(facts.get("rejected")),
            metrics=_metrics(facts),
            gate=_gate(facts),
            drift=_drift(facts.get("drift")),
            model=_model(facts),
            aliases=_aliases(facts),
        )


def _metrics(facts: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    split, found = facts.get("split"), facts.get("metrics")
    if not isinstance(split, str) or not isinstance(found, Mapping):
        return {}
    means = {
        str(name): mean
        for name, each in found.items()
        if (mean := _number(each.get("mean") if isinstance(each, Mapping) else each)) is not None
    }
    return {split: means} if means else {}


def _gate(facts: Mapping[str, Any]) -> GateFacts | None:
    alias, passed = facts.get("alias"), facts.get("passed")
    if not isinstance(alias, str) or not isinstance(passed, bool):
        return None
    ends = facts.get("interval")
    ends = [_number(end) for end in ends] if isinstance(ends, list | tuple) else []
    low, high = ends if len(ends) == 2 else (None, None)
    return GateFacts(
        alias=alias,
        passed=passed,
        metric=_text(facts.get("metric")),
        against=_text(facts.get("against")),
        difference=_number(facts.get("difference")),
        interval=None if low is None or high is None else (low, high),
    )


def _drift(facts: object) -> DriftFacts | None:
    if not isinstance(facts, Mapping):
        return None
    psi, alarms = _number(facts.get("psi_max")), facts.get("alarms")
    if psi is None:
        return None
    return DriftFacts(psi_max=psi, alarms=tuple(map(str, alarms)) if isinstance(alarms, list | tuple) else ())


def _model(facts: Mapping[str, Any]) -> tuple[str, int, str] | None:
    found, digest = _version(facts.get("model")), facts.get("sha256")
    return (*found, digest) if found is not None and isinstance(digest, str) else None


def _aliases(facts: Mapping[str, Any]) -> dict[str, int]:
    found, moved = _version(facts.get("model")), facts.get("moved")
    if found is None or not isinstance(moved, Mapping):
        return {}
    return {str(alias): found[1] for alias in moved}


def _version(reference: object) -> tuple[str, int] | None:
    name, _, number = reference.partition("@") if isinstance(reference, str) else ("", "", "")
    return (name, int(number)) if number.isdecimal() else None


def _count(value: object) -> int | None:
    number = plain(value)
    return number if isinstance(number, int) and not isinstance(number, bool) else None


def _number(value: object) -> float | None:
    number = plain(value)
    return float(number) if isinstance(number, int | float) and not isinstance(number, bool) else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
