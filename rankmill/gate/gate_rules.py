"""The rules of a gate.  Imports no numeric library: the command line and the configuration use this module."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankmill.foundation.errors import InputError, InvalidParameter
from rankmill.foundation.options import defaults_of, group, option, options, spelled, values_of
from rankmill.foundation.records import as_json, canonical_json
from rankmill.foundation.scalars import real_number
from rankmill.registry.names import PRODUCTION
from rankmill.scorer.metrics import Metric, parse_metric
from rankmill.scorer.metrics.conventions import CONVENTIONS, OURS, Convention, named_convention

if TYPE_CHECKING:
    from rankmill.registry.stored_records import AliasPolicy

METRIC = "ndcg@10"
MARGIN = 0.002
SPLIT = "test"
NO_OPTION = "no option changes this"
SHOWN = ("ndcg@10", "err@10", "map")  # in addition to the deciding metric


def parse_margins(texts: Iterable[str]) -> dict[str, float]:
    """Read texts such as ``ndcg@10:bought=0.005,map=0.01``.

    >>> parse_margins(["ndcg@10:bought=0.005, map=0.01"])
    {'ndcg@10:bought': 0.005, 'map': 0.01}

    Raises
    ------
    InvalidParameter
        A text is malformed, or names a metric twice.
    """
    found: dict[str, float] = {}
    for piece in (piece.strip() for text in texts for piece in text.split(",")):
        metric, _, written = (word.strip() for word in piece.rpartition("="))  # rbp(p=0.8)=0.01
        try:
            margin = float(written)
        except ValueError:
            metric = ""
        if not metric:
            raise InvalidParameter(
                f"{spelled('also')}: expected metrics and margins such as ndcg@10:bought=0.005,map=0.01, found "
                f"{piece!r}"
            )
        if metric in found:
            raise InvalidParameter(f"{spelled('also')} names {metric!r} twice")
        found[metric] = margin
    return found


def _margins(given: Mapping[str, float]) -> dict[str, float]:
    """Return margins by the spelling of the metric, in that order."""
    found: dict[str, float] = {}
    for text, margin in given.items():
        try:
            metric = str(parse_metric(text))
        except InputError as error:
            raise InvalidParameter(f"{spelled('also')}: {error}") from None
        if metric in found:
            raise InvalidParameter(f"{spelled('also')} names {metric!r} twice")
        found[metric] = real_number(f"{spelled('also')} {metric}", margin)
        if not (math.isfinite(found[metric]) and found[metric] >= 0.0):
            raise InvalidParameter(
                f"{spelled('also')}: the margin of {metric} must be a number of 0 or more, got {margin}"
            )
    return dict(sorted(found.items()))


@options
class GateLimits:
    """Limits of the guardrails and of the comparison, and permitted changes."""

    max_cost_ratio: float = option(
        default=2.0,
        help="Maximum cost of scoring: comparisons per document, as a multiple of the current version's.",
        least=0,
    )
    max_constant_rise: float = option(
        default=0.05,
        help="Queries whose documents all get one score: how much larger their share may be than with the current "
        "version.",
        least=0,
    )
    allow_feature_changes: bool = option(
        default=False, help="Accept a candidate with added, removed or reordered features."
    )
    allow_seen_queries: bool = option(default=False, help="Accept queries that a model was trained on.")
    allow_significantly_worse: bool = option(
        default=False,
        help="Accept a candidate that is significantly worse than the current version, but within the margin.",
    )
    best_of_last: int = option(
        default=5,
        help="Compare also with the best of this many versions that had the alias last, as far as they can score the "
        "queries; 1: only with the current one.",
        least=1,
    )


LIMITS = tuple(defaults_of(GateLimits))


@options
class GateOptions(GateLimits):
    """Options of a gate: the alias, the metric that decides, the margin, and the limits."""

    alias: str = option(
        default=PRODUCTION, help="Alias to gate for.  The candidate is compared with the version that it points to."
    )
    metric: str | None = option(
        default=None, help=f"Metric that decides.  Default: as the alias' policy says, else {METRIC}."
    )
    margin: float | None = option(
        default=None,
        help="How much worse than the current version the candidate may be.  Default: as the alias' policy says, "
        f"else {MARGIN}.",
        least=0,
    )
    also: Mapping[str, float] = option(
        default_factory=dict,
        help="Further metrics, each with how much worse the candidate may be: ndcg@10:bought=0.005,map=0.01; repeat "
        "for more.",
        metavar="METRIC=MARGIN,..",
        read=parse_margins,
        repeat=True,
        convert=_margins,
    )


@options
class GateRequest:
    """The queries to judge a candidate on, and the rules."""

    on: Path | None = option(
        default=None, help="Dataset with judged queries that neither model was trained on.", metavar="DATASET"
    )
    split: str = option(
        default=SPLIT,
        help="Split of the dataset: test or valid; train only if neither model was trained on this dataset.",
    )
    rules: GateOptions = group(default_factory=GateOptions)
    log: tuple[Path, ...] = option(
        default=(),
        help="Files of a click log: fail if its clicks show that the ranking is worth less; repeat for several.",
        metavar="LOG",
        read=lambda paths: tuple(map(Path, paths)),
        repeat=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GateRules(GateLimits):
    """The metric that decides, the margin, and the limits of the guardrails.

    Attributes
    ----------
    metric
        The metric that decides.
    margin
        How much worse than the current version, and than the best of the last ones, the candidate may be, 0 or more.
        It passes if the lower end of the confidence interval of the difference is above ``-margin``, and the upper end
        is not below 0.
    also
        Further metrics with their margins; the candidate must pass each of them in the same way.
    convention
        How metrics are computed.

    Raises
    ------
    InvalidParameter
        A limit is not a number of its range.
    """

    metric: Metric = field(default_factory=lambda: parse_metric(METRIC))
    margin: float = MARGIN
    also: Mapping[Metric, float] = field(default_factory=dict)
    convention: Convention = field(default_factory=lambda: named_convention(OURS))

    def check_together(self) -> None:
        """Raise InvalidParameter unless the margin is a number of 0 or more."""
        if not (math.isfinite(self.margin) and self.margin >= 0.0):
            raise InvalidParameter(f"{spelled('margin')} must be a number of 0 or more, got {self.margin}")
        if self.metric in self.also:
            raise InvalidParameter(
                f"{spelled('also')} names {self.metric}, which decides; set its margin with {spelled('margin')}, and "
                "leave it out"
            )

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """The deciding metric, the further ones, then those shown with them."""
        return tuple(dict.fromkeys([self.metric, *self.also, *map(parse_metric, SHOWN)]))

    @property
    def limits(self) -> GateLimits:
        """Only the limits of the guardrails and the permitted changes."""
        return GateLimits(**{name: getattr(self, name) for name in LIMITS})


def option_words(key: str) -> str:
    """Return the option of the command line and the key of the configuration, for messages.

    >>> option_words("max_cost_ratio")
    '--max-cost-ratio (max_cost_ratio in [gate])'
    """
    return f"--{key.replace('_', '-')} ({key} in [gate])"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConventionFacts:
    """The content of a convention that its digest covers: everything except remarks."""

    name: str
    policy: Mapping[str, Any]
    exceptions: Mapping[str, Mapping[str, Any]]

    @classmethod
    def of(cls, convention: Convention) -> ConventionFacts:
        """Return the facts of ``convention``."""
        return cls(name=convention.name, policy=values_of(convention.policy), exceptions=convention.exceptions)


def convention_digest(convention: Convention) -> str:
    """Return the sha256 of the canonical JSON of `ConventionFacts`: equal if the metrics are computed alike.

    It covers the convention as requested: a ``max_grade`` that comes from the data is not part of it.
    """
    return hashlib.sha256(canonical_json(as_json(ConventionFacts.of(convention)))).hexdigest()


def rules_under(policy: AliasPolicy | None, asked: GateOptions, convention: Convention | None = None) -> GateRules:
    """Make rules from the given options.

    Others come from the ``policy`` of the alias or are the defaults of `GateRules`.

    Raises
    ------
    InputError
        The metric is unknown, or no named convention has the policy's digest.
    """
    metric, margin = asked.metric, asked.margin
    if policy is not None:
        if metric is None and policy.metric is not None:
            metric = policy.metric
            try:
                parse_metric(metric)
            except InputError as error:
                cure = "choose another: rankmill models alias NAME ALIAS --protect --metric METRIC"
                raise InputError(f"the policy of the alias requires the metric {metric}: {error}; {cure}") from None
        margin = policy.margin if margin is None else margin
        if convention is None and policy.convention is not None:
            convention = _convention_of(policy.convention)
    return GateRules(
        metric=parse_metric(METRIC if metric is None else metric),
        margin=MARGIN if margin is None else margin,
        also={parse_metric(name): bound for name, bound in asked.also.items()},
        convention=named_convention(OURS) if convention is None else convention,
        **{name: getattr(asked, name) for name in LIMITS},
    )


def _convention_of(digest: str) -> Convention:
    for convention in CONVENTIONS.values():
        if convention_digest(convention) == digest:
            return convention
    raise InputError(
        f"the policy of the alias requires the metric convention {digest[:12]}, which has no name; set it with "
        f"{spelled('convention')} and the options for single rules"
    )
