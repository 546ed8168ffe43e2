"""What a gate asks of a candidate.  Knows no numeric library: the command line and the configuration are read with it."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankmill.foundation.errors import InputError, InvalidParameter
from rankmill.foundation.options import defaults_of, group, option, options, spelled, values_of
from rankmill.foundation.records import as_json, canonical_json
from rankmill.registry.names import PRODUCTION
from rankmill.scorer.metrics import Metric, parse_metric
from rankmill.scorer.metrics.conventions import CONVENTIONS, OURS, Convention, named_convention

if TYPE_CHECKING:
    from rankmill.registry.stored_records import AliasPolicy

METRIC = "ndcg@10"
MARGIN = 0.002
SPLIT = "test"
NO_OPTION = "no option changes this"
SHOWN = ("ndcg@10", "err@10", "map")  # beside the one that decides


@options
class GateLimits:
    """The limits of the guardrails, and what is allowed."""

    max_cost_ratio: float = option(
        default=2.0, help="Comparisons a document, as a multiple of the present version's.", least=0
    )
    max_constant_rise: float = option(
        default=0.05,
        help="By how much the share of queries with one score for all documents may rise above that of the present version.",
        least=0,
    )
    max_latency: float | None = option(
        default=None,
        help="Milliseconds for 1,000 documents on one thread, measured now; left out: not measured.",
        least=0,
        metavar="MS",
    )
    allow_feature_changes: bool = option(default=False, help="Features may come, go or change places.")
    allow_seen_queries: bool = option(default=False, help="Queries may be among those that a model was trained on.")


LIMITS = tuple(defaults_of(GateLimits))


@options
class GateOptions(GateLimits):
    """What a gate asks for: whose place the candidate takes, what decides, and the limits."""

    alias: str = option(default=PRODUCTION, help="Whose place the candidate is to take.")
    metric: str | None = option(default=None, help=f"What decides; by default as the alias asks for, else {METRIC}.")
    margin: float | None = option(
        default=None,
        help=f"How much worse it may be at most; by default as the alias asks for, else {MARGIN}.",
        least=0,
    )


@options
class GateRequest:
    """What a candidate is judged on, and by which rules."""

    on: Path | None = option(default=None, help="Judged queries that no model was trained on.", metavar="DATASET")
    split: str = option(default=SPLIT, help="Split of the dataset: test, or valid.")
    rules: GateOptions = group(default_factory=GateOptions)
    against: Path | None = option(
        default=None, help="Fail if features or grades drifted from this one.", metavar="OLD_DATASET"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GateRules(GateLimits):
    """The metric that decides, the margin, and the limits of the guardrails.

    Attributes
    ----------
    metric
        What decides.
    margin
        How much worse than the present version the candidate may turn out to be, 0 or more: it passes if the lower end
        of the interval of the difference is above ``-margin``.
    convention
        How metrics are computed.

    Raises
    ------
    InvalidParameter
        A limit is not a number of its range.
    """

    metric: Metric = field(default_factory=lambda: parse_metric(METRIC))
    margin: float = MARGIN
    convention: Convention = field(default_factory=lambda: named_convention(OURS))

    def check_together(self) -> None:
        """Raise InvalidParameter if the margin is no number of 0 or more."""
        if not (math.isfinite(self.margin) and self.margin >= 0.0):
            raise InvalidParameter(f"{spelled('margin')} must be a number of 0 or more, got {self.margin}")

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """The metric that decides, then those that are shown beside it."""
        return tuple(dict.fromkeys([self.metric, *map(parse_metric, SHOWN)]))

    @property
    def limits(self) -> GateLimits:
        """The limits of the guardrails, and what is allowed, alone."""
        return GateLimits(**{name: getattr(self, name) for name in LIMITS})


def option_words(key: str) -> str:
    """Name the option of the command line and the key of the configuration.

    >>> option_words("max_cost_ratio")
    '--max-cost-ratio (max_cost_ratio in [gate])'
    """
    return f"--{key.replace('_', '-')} ({key} in [gate])"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConventionFacts:
    """What a convention does: what its digest is about, so without remarks."""

    name: str
    policy: Mapping[str, Any]
    exceptions: Mapping[str, Mapping[str, Any]]

    @classmethod
    def of(cls, convention: Convention) -> ConventionFacts:
        """Return the facts of ``convention``."""
        return cls(name=convention.name, policy=values_of(convention.policy), exceptions=convention.exceptions)


def convention_digest(convention: Convention) -> str:
    """Return the sha256 of the canonical JSON of `ConventionFacts`: equal if the metrics are computed alike.

    It is that of the convention as it was asked for: a ``max_grade`` that the data decide is not in it.
    """
    return hashlib.sha256(canonical_json(as_json(ConventionFacts.of(convention)))).hexdigest()


def rules_under(policy: AliasPolicy | None, asked: GateOptions, convention: Convention | None = None) -> GateRules:
    """Make rules of what was asked for; what was not is as the alias' ``policy`` says, else as `GateRules` has it.

    Raises
    ------
    InputError
        The metric is unknown, or the policy's convention is none that has a name.
    """
    metric, margin = asked.metric, asked.margin
    if policy is not None:
        if metric is None and policy.metric is not None:
            metric = policy.metric
            try:
                parse_metric(metric)
            except InputError as error:
                cure = "ask for another: rankmill models alias NAME ALIAS --protect --metric METRIC"
                raise InputError(f"the alias asks for the metric {metric}: {error}; {cure}") from None
        margin = policy.margin if margin is None else margin
        if convention is None and policy.convention is not None:
            convention = _convention_of(policy.convention)
    return GateRules(
        metric=parse_metric(METRIC if metric is None else metric),
        margin=MARGIN if margin is None else margin,
        convention=named_convention(OURS) if convention is None else convention,
        **{name: getattr(asked, name) for name in LIMITS},
    )


def _convention_of(digest: str) -> Convention:
    for convention in CONVENTIONS.values():
        if convention_digest(convention) == digest:
            return convention
    raise InputError(
        f"the alias asks for the metric convention {digest[:12]}, which is none that has a name; say with {spelled('convention')} and "
        "the options after it which one it is"
    )
