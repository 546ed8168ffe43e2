"""What a gate asks of a candidate.  Knows no numeric library: the command line and the configuration are read with it."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from rankmill.foundation.errors import InputError
from rankmill.scorer.metrics import Metric, parse_metric
from rankmill.scorer.metrics.conventions import CONVENTIONS, OURS, Convention, named_convention

if TYPE_CHECKING:
    from rankmill.registry.stored_records import Policy

METRIC = "ndcg@10"
MARGIN = 0.002
SPLIT = "test"
NO_OPTION = "no option changes this"
SHOWN = ("ndcg@10", "err@10", "map")  # beside the one that decides

MAX_COST_RATIO = 2.0
MAX_CONSTANT_RISE = 0.05


class Limits(TypedDict, total=False):
    """The limits of the guardrails, and what is allowed: see `Rules`."""

    max_cost_ratio: float
    max_constant_rise: float
    max_latency: float | None
    allow_feature_changes: bool
    allow_seen_queries: bool


LIMITS = tuple(Limits.__annotations__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
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
    max_cost_ratio
        How many times the comparisons a document of the present version the candidate may make.
    max_constant_rise
        By how much the share of queries whose documents all have one score may be above that of the present version.
    max_latency
        Milliseconds that 1,000 documents may take on one thread, measured; None: not measured.
    allow_feature_changes
        Features may come, go or change places.
    allow_seen_queries
        Queries that a model was trained on may be among those evaluated.

    Raises
    ------
    InputError
        A limit is not a number of its range.
    """

    metric: Metric = field(default_factory=lambda: parse_metric(METRIC))
    margin: float = MARGIN
    convention: Convention = field(default_factory=lambda: named_convention(OURS))
    max_cost_ratio: float = MAX_COST_RATIO
    max_constant_rise: float = MAX_CONSTANT_RISE
    max_latency: float | None = None
    allow_feature_changes: bool = False
    allow_seen_queries: bool = False

    def __post_init__(self) -> None:
        for name in ("margin", "max_cost_ratio", "max_constant_rise", "max_latency"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value >= 0.0):
                raise InputError(f"{name}: expected a number, 0 or more, found {value}")

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """The metric that decides, then those that are shown beside it."""
        return tuple(dict.fromkeys([self.metric, *map(parse_metric, SHOWN)]))

    @property
    def limits(self) -> dict[str, Any]:
        """The limits of the guardrails, and what is allowed, by name."""
        return {name: getattr(self, name) for name in LIMITS}


def option_words(key: str) -> str:
    """Name the option of the command line and the key of the configuration.

    >>> option_words("max_cost_ratio")
    '--max-cost-ratio (max_cost_ratio in [gate])'
    """
    return f"--{key.replace('_', '-')} ({key} in [gate])"


def convention_facts(convention: Convention) -> dict[str, Any]:
    """Return what a convention does, as plain values: what its digest is about, so without remarks."""
    return {
        "name": convention.name,
        "policy": convention.policy.to_dict(),
        "exceptions": {metric: dict(own) for metric, own in convention.exceptions},
    }


def convention_digest(convention: Convention) -> str:
    """Return the sha256 of the canonical JSON of `convention_facts`: equal if the metrics are computed alike.

    It is that of the convention as it was asked for: a ``max_grade`` that the data decide is not in it.
    """
    from rankmill.foundation.records import canonical_json

    return hashlib.sha256(canonical_json(convention_facts(convention))).hexdigest()


class AskedRules(Limits, total=False):
    """The fields of `Rules` that somebody asked for; None or absent: as the alias' policy says, else by default."""

    metric: str | None
    margin: float | None
    convention: Convention | None


def rules_under(
    policy: Policy | None,
    *,
    metric: str | None = None,
    margin: float | None = None,
    convention: Convention | None = None,
    **limits: Unpack[Limits],
) -> Rules:
    """Make rules of what was asked for; what was not is as the alias' ``policy`` says, else as `Rules` has it.

    Raises
    ------
    InputError
        The metric is unknown, a limit is out of its range, or the policy's convention is none that has a name.
    """
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
    return Rules(
        metric=parse_metric(METRIC if metric is None else metric),
        margin=MARGIN if margin is None else margin,
        convention=named_convention(OURS) if convention is None else convention,
        **limits,
    )


def _convention_of(digest: str) -> Convention:
    for convention in CONVENTIONS.values():
        if convention_digest(convention) == digest:
            return convention
    raise InputError(
        f"the alias asks for the metric convention {digest[:12]}, which is none that has a name; say with --convention and "
        "the options after it which one it is"
    )
