"""What the figures of a report mean, in sentences: its title, its verdict and some headings."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from rankmill.foundation.shown import few
from rankmill.report.formatting import decimals, interval, metric_name, number, percent, signed

if TYPE_CHECKING:
    from rankmill.report.facts import Report

_DIGITS = 3  # in headings


def title(report: Report) -> str:
    """Return the finding of the report on one line."""
    version, found = report.model.version, report.difference
    if report.metrics is None:
        return f"{version} was trained; there are no held-out queries to evaluate it"
    if found is None:
        return f"{version} was trained; fewer than two held-out queries count, too few for an evaluation"
    other, metric = rival(report), metric_name(report.metrics.primary)
    gap, (low, high), margin = found.difference, found.interval, report.margin
    digits = decimals([gap, low, high], _DIGITS, (0.0,) if margin is None else (0.0, -margin))
    if low > 0.0:
        return f"{version} beats {other} by {number(gap, digits)} {metric} ({interval((low, high), digits)})"
    if high < 0.0:
        text = f"{version} is worse than {other} by {number(-gap, digits)} {metric} ({interval((-high, -low), digits)})"
        return text if margin is None or low <= -margin else f"{text}, within the margin of {margin:g}"
    if found.wins + found.losses == 0:
        return f"{version} ranks every query as well as {other} does"
    limits = f"({interval((low, high), digits, sign=True)})"
    if margin is not None:
        verb = "is not" if low > -margin else "may be"
        return f"{version} {verb} worse than {other} by more than {margin:g} {metric}: {signed(gap, digits)} {limits}"
    order = next((each for each in report.metrics.rankings if each.kind == "row order"), None)
    beaten = None if order is None else order.candidate_less_this[report.metrics.primary]
    if report.metrics.against.kind != "present" and beaten is not None and beaten.interval[0] > 0.0:
        digits = decimals(beaten.interval, _DIGITS)
        return (
            f"{version} beats the order of the rows by {number(beaten.difference, digits)} {metric} "
            f"({interval(beaten.interval, digits)}); no significant difference from {other}"
        )
    return f"No significant difference between {version} and {other}: {signed(gap, digits)} {metric} {limits}"


def rival(report: Report) -> str:
    """Return the ranking that the version is compared with, in a sentence."""
    if report.metrics is None:
        return "nothing"
    against = report.metrics.against
    if against.kind == "present":
        return f"{'the former ' if report.outcome in {'promoted', 'replaced'} else ''}{report.alias}"
    return {"row order": "the order of the rows", "best single feature": "the best single feature"}[against.kind]


class Verdict(NamedTuple):
    """The verdict in one or two words and as a sentence, and its style."""

    word: str
    sentence: str
    look: str


def verdict(report: Report) -> Verdict:
    """Return whether the version was promoted; the style is good only if it is significantly better."""
    version, alias = report.model.version, report.alias
    present = None if report.present is None else report.present.version
    if report.outcome == "promoted":
        sentence = f"{version} is {alias}" + (f", in place of {present}." if present else ", the first.")
        if report.gate is not None and not report.gate.passed:
            return Verdict("promoted by force", sentence, "bad")
        word, look = _promoted(report)
        return Verdict(word, sentence, look)
    texts = {
        "not promoted": ("not promoted", f"{present} stays {alias}." if present else f"{alias} is not set.", "bad"),
        "passed": ("passed, not promoted", f"The version passed the gate, but {alias} does not point to it.", "plain"),
        "replaced": ("was promoted", f"It was {alias} before; {alias} points to another version now.", "plain"),
        "registered": ("registered", f"It has no gate result, and it is not {alias}.", "plain"),
    }
    return Verdict(*texts[report.outcome])


def _promoted(report: Report) -> tuple[str, str]:
    """Return the word and the style of a promotion."""
    found, margin = report.difference, report.margin
    if found is None:
        return "promoted", "plain"
    low = found.interval[0]
    if low > 0.0:
        return "promoted", "good"
    if report.present is None:
        return "promoted as the first version", "even"
    return ("promoted" if margin is None or low <= -margin else f"promoted: not worse by more than {margin:g}"), "even"


def metrics_heading(report: Report) -> str:
    """Return by which metrics the version differs significantly from its rival."""
    assert report.metrics is not None  # noqa: S101 (the section has metrics)
    other = rival(report)
    found = {name: each for name, each in report.metrics.against.candidate_less_this.items() if each is not None}
    better = [metric_name(name) for name, each in found.items() if each.interval[0] > 0.0]
    worse = [metric_name(name) for name, each in found.items() if each.interval[1] < 0.0]
    if not better and not worse:
        return f"No metric differs significantly from {other}"
    for names, word in ((better, "Better"), (worse, "Worse")):
        if len(names) == len(found):
            return f"{word} than {other} by {'every metric' if len(found) > 1 else names[0]}"
    parts = [f"{word} by {few(names, 3)}" for names, word in ((better, "better"), (worse, "worse")) if names]
    rest = ", no significant difference in the rest" if len(better) + len(worse) < len(found) else ""
    return f"Against {other}: {', '.join(parts)}{rest}"


def queries_heading(report: Report) -> str:
    """Return the shares of queries that are better, worse and the same."""
    found = report.difference
    if found is None:
        return "Queries"
    won, lost, tied = (percent(n / found.n_queries, 0) for n in (found.wins, found.losses, found.ties))
    if report.present is None:
        return f"{won} of the queries are ranked better than by {rival(report)}, {lost} worse, {tied} equally well"
    return f"{won} of the queries improve, {lost} get worse, {tied} are unchanged"


def gate_heading(report: Report) -> str:
    """Return what failed at the gate."""
    gate = report.gate
    assert gate is not None  # noqa: S101 (the section has a gate)
    if failed := [rail.name for rail in gate.guardrails if rail.verdict == "failed"]:
        return f"Failed checks of the gate: {few(failed)}"
    judged = [each for comparison in gate.comparisons for each in comparison.verdicts(gate)]
    worse = list(dict.fromkeys(metric_name(metric) for metric, passed, _ in judged if not passed))
    return f"All guardrails passed, but {few(worse, 3)} did not" if worse else "The gate and all guardrails passed"


def noise(report: Report) -> str:
    """Compare the difference with the spread over seeds; empty if only one seed was trained."""
    spread, found = report.noise, report.difference
    if spread is None:
        return ""
    text = (
        f"Seeds alone move {metric_name(spread.metric)} by {number(spread.deviation)} (standard deviation of "
        f"{len(spread.seeds)} trainings on the {spread.split} split, from {number(spread.least)} to "
        f"{number(spread.greatest)})"
    )
    if found is None or report.present is None:
        return f"{text}."
    more = "more" if abs(found.difference) > 2.0 * spread.deviation else "not more"
    return f"{text}; the difference is {more} than twice that."
