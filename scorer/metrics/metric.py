"""The names of metrics: parse, print and compare them.  Other modules compute them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from rankmill.foundation.errors import InputError
from rankmill.pipeline.dataset.goals import is_goal_name


@dataclass(frozen=True, slots=True)
class Measure:
    """How a metric is computed: the one declaration of it, beside its loop in ``_kernels.py``.

    Attributes
    ----------
    loop
        The name of the kernel's constant: which sum over the ranks.
    counts
        What a query must have to count: a document with a ``gain``, a ``relevant`` one, one of a grade above 0
        (``positive``), two different grades (``pairs``), or, all queries together, relevant documents and others
        (``both``).
    divisor
        What the sum is divided by: 1 (``one``), the sum of the ``ideal`` order, ``R`` relevant documents, the cutoff
        ``k``, what the policy says of ``map``, the ``pairs`` of the query, or the ``mean pairs`` of all.
    values
        What a document contributes to a ``SHARE``: its ``gain``, whether it has the ``best`` grade, whether it is
        ``relevant``.
    cutoff
        Whether it may have one (``any``), must (``needed``) or cannot (``none``).
    parameter, default
        The name of the number in brackets, and its default; None: there is none, or it must be given.
    pooled
        Whether it is over all queries together: a query's value is its share, times the number of queries that count.
    of_top
        Whether documents below those that are kept do not matter, though it has no cutoff.
    """

    loop: str
    counts: str = "positive"
    divisor: str = "one"
    values: str = "gain"
    cutoff: str = "any"
    parameter: str | None = None
    default: float | None = None
    pooled: bool = False
    of_top: bool = False
    higher_is_better: bool = True


MEASURES: Mapping[str, Measure] = {
    "ndcg": Measure("SHARE", "gain", "ideal"),
    "dcg": Measure("SUM", "gain"),
    "err": Measure("ERR"),
    "map": Measure("PRECISIONS", "relevant", "map"),
    "mrr": Measure("FIRST", "relevant"),
    "precision": Measure("HITS", "relevant", "k", cutoff="needed"),
    "recall": Measure("HITS", "relevant", "R", cutoff="needed"),
    "wta": Measure("SHARE", values="best", cutoff="none", of_top=True),
    "rbp": Measure("SHARE", "relevant", values="relevant", parameter="p"),
    "concordance": Measure("PAIRS", "pairs", "pairs", cutoff="none"),
    "concordance_micro": Measure("PAIRS", "pairs", "mean pairs", cutoff="none", pooled=True),
    "balanced_error": Measure(
        "ERRORS", "both", cutoff="none", parameter="threshold", default=0.0, pooled=True, of_top=True,
        higher_is_better=False
    ),
}  # fmt: skip
METRIC_NAMES = tuple(MEASURES)
DEFAULT_METRICS = ("ndcg@1", "ndcg@5", "ndcg@10", "err@10", "map", "mrr", "precision@10")
_LARGEST_CUTOFF = 2**31 - 1


@dataclass(frozen=True, slots=True, order=True)
class Metric:
    """One ranking metric.  ``str()`` returns its spelling.

    Attributes
    ----------
    name
        ``ndcg``, ``dcg``, ``err``, ``map``, ``mrr``, ``precision``, ``recall``; ``wta``: whether the document on top
        has the best grade of its list; ``rbp``: rank-biased precision; ``concordance``: the share of a query's pairs of
        different grade that are in the right order, ``concordance_micro``: that of the pairs of all queries together;
        ``balanced_error``: the error rate of "relevant if the score is above a threshold", where both classes weigh
        the same (see `rankmill.scorer.metrics.per_query.PreparedQueries` for all of these).
    k
        The cutoff, or None for the whole list.
    parameter
        The persistence p of ``rbp``, between 0 and 1; the threshold of ``balanced_error``, 0 by default; else None.
    goal
        The goal whose grades are measured by; empty: the main grade.

    Raises
    ------
    InputError
        The name is unknown; the cutoff is not a whole number of at least 1, or is missing or not allowed for this
        metric; the same for the parameter; or the goal is no name.
    """

    name: str
    k: int | None = None
    parameter: float | None = None
    goal: str = ""

    def __post_init__(self) -> None:
        if self.name not in METRIC_NAMES:
            raise InputError.unknown("metric", self.name, METRIC_NAMES)
        self._check_parameter()
        if self.k is None:
            if self.measure.cutoff == "needed":
                raise InputError(f"metric {self.name!r} needs a cutoff, for example {self.name}@10")
        elif self.measure.cutoff == "none":
            raise InputError(f"metric {self!s}: {self.name} has no cutoff; leave out '@{self.k}'")
        elif not 1 <= self.k <= _LARGEST_CUTOFF:
            raise InputError(f"metric {self!s}: the cutoff must be at least 1 and below 2**31")
        if self.goal and not is_goal_name(self.goal):
            raise InputError(f"metric {self!s}: expected the name of a goal after ':', found {self.goal!r}")

    def _check_parameter(self) -> None:
        if self.parameter is None:
            if self.name == "rbp":
                raise InputError("metric 'rbp' needs its persistence p, for example rbp(0.8)")
            object.__setattr__(self, "parameter", self.measure.default)
            return
        if self.measure.parameter is None:
            raise InputError(f"metric {self.name}: it takes nothing in brackets, found {_number(self.parameter)}")
        object.__setattr__(self, "parameter", float(self.parameter) + 0.0)  # -0.0 is 0.0
        if not math.isfinite(self.parameter):
            raise InputError(f"metric {self!s}: expected a finite number in the brackets")
        if self.name == "rbp" and not 0.0 < self.parameter < 1.0:
            raise InputError(f"metric {self!s}: the persistence p must be between 0 and 1, both excluded")

    def __str__(self) -> str:
        shown = self.parameter is not None and self.parameter != self.measure.default
        brackets = f"({_number(self.parameter)})" if shown and self.parameter is not None else ""
        cutoff = "" if self.k is None else f"@{self.k}"
        return self.name + brackets + cutoff + (f":{self.goal}" if self.goal else "")

    @property
    def higher_is_better(self) -> bool:
        """Whether a larger value means a better ranking: false for the error rate only."""
        return self.measure.higher_is_better

    @property
    def measure(self) -> Measure:
        """How it is computed."""
        return MEASURES[self.name]


def parse_metric(text: str) -> Metric:
    """Parse ``name``, ``name@k``, ``name(number)``, ``name(parameter=number)`` or ``name(number)@k``.

    Each may end with ``:goal``.

    >>> parse_metric("ndcg@10")
    Metric(name='ndcg', k=10, parameter=None, goal='')
    >>> str(parse_metric("rbp(p=0.80)@20"))
    'rbp(0.8)@20'
    >>> parse_metric("ndcg@10:bought").goal
    'bought'
    >>> parse_metric("ncdg@10")
    Traceback (most recent call last):
    rankmill.foundation.errors.InputError: unknown metric 'ncdg'; did you mean 'ndcg'?

    Raises
    ------
    InputError
        See `Metric`; also if the cutoff is not written as a plain whole number, or the parameter not as a number.
    """
    measured, colon, goal = text.strip().partition(":")
    if colon and not goal:
        raise InputError(f"metric {text!r}: expected the name of a goal after ':', for example {measured}:bought")
    head, at, cutoff = measured.partition("@")
    name, bracket, inside = head.partition("(")
    if name not in METRIC_NAMES:
        raise InputError.unknown("metric", name, METRIC_NAMES)
    parameter = _parameter(text, name, inside) if bracket else None
    if not at:
        return Metric(name, None, parameter, goal)
    if not re.fullmatch(r"[0-9]{1,10}", cutoff):
        example = name if parameter is None else head
        raise InputError(
            f"metric {text!r}: expected a whole number after '@', for example {example}@10, found {cutoff!r}"
        )
    return Metric(name, int(cutoff), parameter, goal)


def _parameter(text: str, name: str, inside: str) -> float:
    known = MEASURES[name].parameter
    if known is None:
        raise InputError(f"metric {text!r}: {name} takes nothing in brackets")
    found = re.fullmatch(rf"\s*(?:{known}\s*=)?\s*([^\s=]+)\s*\)", inside)
    try:
        return float(found[1] if found else "")
    except ValueError:
        expected = f"{name}(0.8) or {name}({known}=0.8)"
        raise InputError(f"metric {text!r}: expected a number in brackets, {expected}, found '({inside}'") from None


def _number(value: float) -> str:
    return repr(float(value)).removesuffix(".0")
