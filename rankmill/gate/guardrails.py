"""Guardrails: checks of a candidate besides its metric, each with a value, a limit and a verdict."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from rankmill.foundation.shown import few
from rankmill.gate.gate_rules import NO_OPTION, option_words
from rankmill.scorer.models.model import Predictor

if TYPE_CHECKING:
    from rankmill.clicks.off_policy import OffPolicyDifference
    from rankmill.pipeline.group.sketch import Overlap

Verdict = Literal["passed", "failed", "noted"]
"""``noted``: there is no limit or nothing to compare with; the value is only reported."""

FEW_CLICKS = 100  # effective ones

Scores = npt.NDArray[np.float64]
Offsets = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Guardrail:
    """A guardrail.  ``value`` and ``limit`` are JSON values; ``words`` is a description.

    ``option`` is the key of ``[gate]`` for the limit; None: it is fixed.
    """

    name: str
    verdict: Verdict
    value: Any
    limit: Any
    words: str
    option: str | None = None

    @property
    def reason(self) -> str:
        """Describe on one line what failed, and the option that changes the limit."""
        bound = f", limit {self.limit:g}" if isinstance(self.limit, float) else ""
        cure = NO_OPTION
        if self.option is not None:
            verb = "allows this" if self.option.startswith("allow_") else "sets the limit"
            cure = f"{option_words(self.option)} {verb}"
        return f"{self.name}: {self.words}{bound}; {cure}"


def finite_scores(scores: Scores) -> Guardrail:
    """Check that no score in ``scores`` (n,) is infinite or NaN."""
    bad = int(np.count_nonzero(~np.isfinite(scores)))
    words = f"{bad:,} of {len(scores):,} scores are not finite" if bad else f"all {len(scores):,} scores are finite"
    return Guardrail("finite scores", _verdict(bad == 0), bad, 0, words)


def constant_scores(scores: Scores, baseline: Scores | None, starts: Offsets, rise: float) -> Guardrail:
    """Limit the share of queries with 2 or more documents whose scores are all equal.

    It may exceed that of the ``baseline`` by at most ``rise``; a candidate with constant scores in all queries always
    fails.
    """
    n = int(np.count_nonzero(np.diff(starts) > 1))
    if n == 0:
        return Guardrail("constant scores", "noted", None, None, "no query has two or more documents")
    share = _n_constant(scores, starts) / n
    if baseline is None:
        words = f"{share:.1%} of {n:,} queries with 2 or more documents have equal scores"
        return Guardrail("constant scores", _verdict(share < 1.0), share, "below 1", words)
    before = _n_constant(baseline, starts) / n
    words = f"{share:.1%} of {n:,} queries with 2 or more documents have equal scores; current version {before:.1%}"
    good, option = share < 1.0 and share <= before + rise, "max_constant_rise" if share < 1.0 else None
    return Guardrail("constant scores", _verdict(good), share, before + rise, words, option)


def _n_constant(scores: Scores, starts: Offsets) -> int:
    """Count the queries with 2 or more documents whose scores are all equal; NaN equals NaN here."""
    if len(scores) == 0:
        return 0
    same = (scores[1:] == scores[:-1]) | (np.isnan(scores[1:]) & np.isnan(scores[:-1]))
    changes = np.concatenate([np.zeros(1, np.int64), np.cumsum(~same, dtype=np.int64)])
    first, last = starts[:-1], starts[1:] - 1
    several = np.flatnonzero(last > first)
    return int(np.count_nonzero(changes[first[several]] == changes[last[several]]))


def features(candidate: Sequence[str], baseline: Sequence[str] | None, *, allowed: bool) -> Guardrail:
    """Compare the training features of the models: added, removed, or in another order."""
    if baseline is None:
        return Guardrail("features", "noted", None, None, f"{len(candidate):,} features; nothing to compare them with")
    before, now = set(baseline), set(candidate)
    came = [name for name in candidate if name not in before]
    went = [name for name in baseline if name not in now]
    moved = [name for name in candidate if name in before] != [name for name in baseline if name in now]
    value = {"added": came, "removed": went, "reordered": moved}
    parts = [f"{len(names):,} {what} ({few(names)})" for names, what in ((came, "added"), (went, "removed")) if names]
    parts += ["the common ones reordered"] * moved
    if not parts:
        return Guardrail("features", "passed", value, None, f"the same {len(candidate):,} features")
    words = ", ".join(parts) + ("; allowed" if allowed else "")
    return Guardrail("features", _verdict(allowed), value, None, words, "allow_feature_changes")


def cost(candidate: Predictor, baseline: Predictor | None, limit: float) -> Guardrail:
    """Limit the comparisons per document as a ratio to the baseline's.

    `rankmill.scorer.models.model.Predictor.comparisons` counts them.

    This depends only on the models, not on the machine.  Time grows with it, but not in proportion: comparisons take
    longer in a forest that exceeds the cache.
    """
    now = candidate.comparisons
    if baseline is None:
        return Guardrail("cost", "noted", {"candidate": now}, None, f"{now:,} comparisons per document")
    before = baseline.comparisons
    ratio = now / before if before else (1.0 if now == 0 else math.inf)
    value = {"candidate": now, "baseline": before, "ratio": ratio if math.isfinite(ratio) else None}
    words = f"{now:,} comparisons per document, {ratio:.2f} times the {before:,} of the current version"
    return Guardrail("cost", _verdict(ratio <= limit), value, limit, words, "max_cost_ratio")


def seen_queries(overlaps: Mapping[str, Overlap | None], *, allowed: bool) -> Guardrail:
    """Check that no evaluation query is a known training query of a model.

    ``overlaps`` has, by name of each model, the queries found in its sketch; None: the model has no sketch.
    """
    known = {name: found for name, found in overlaps.items() if found is not None}
    value = {name: dict(sorted(asdict(found).items())) for name, found in known.items()}
    parts = [
        f"{name} was trained on {'' if found.exact else 'about '}{round(found.estimate):,} of {found.queries:,}"
        for name, found in known.items()
        if found.found
    ]
    unknown = [name for name in overlaps if name not in known]
    lacking = f"{' and '.join(unknown)} has no sketch of its training queries"
    if not known:
        return Guardrail("seen queries", "noted", None, None, lacking)
    words = "; ".join(parts) + ("; allowed" if parts and allowed else "")
    if not parts:
        words = "none that " + " or ".join(known) + " was trained on"
        partly = [
            f"of {found.queries:,} the sketch of {name} covers {found.looked_at:,}"
            for name, found in known.items()
            if not found.exact
        ]
        words = "; ".join([words, *partly])
    if unknown:
        words += f"; {lacking}"
    limit = None if allowed else 0
    if not any(found.looked_at for found in known.values()):  # few queries, and a model trained on millions
        return Guardrail("seen queries", "noted", value, limit, words)
    return Guardrail("seen queries", _verdict(allowed or not parts), value, limit, words, "allow_seen_queries")


def clicks_of_log(other: str, found: OffPolicyDifference) -> Guardrail:
    """Check that the ranking is not worth significantly less than that of ``other`` by the clicks of a log.

    What the log does not support is only reported: rankings that it has hardly shown, and fewer than 100 effective
    clicks.
    """
    name, difference = f"clicks, against {other}", found.difference
    if difference is None or difference.interval is None or found.candidate is None:
        return Guardrail(name, "noted", None, None, f"the log does not say: {found.reason or 'too few sessions'}")
    (low, high), effective = difference.interval, found.candidate.effective_clicks
    words = (
        f"{difference.value:+.4f} expected clicks a list (95 % interval {low:+.4f} to {high:+.4f}; dr,"
        f" {effective:,.0f} effective clicks)"
    )
    value = {"difference": difference.value, "interval": [low, high], "effective_clicks": effective}
    if effective < FEW_CLICKS:
        return Guardrail(name, "noted", value, None, f"{words}; too few clicks to judge by")
    return Guardrail(name, _verdict(high >= 0.0), value, "upper end of 0 or more", words)


def _verdict(good: bool) -> Verdict:  # noqa: FBT001
    return "passed" if good else "failed"
