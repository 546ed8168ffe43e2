"""The sweep over weights of goals in the report: its facts, and a chart of the Pareto front for each goal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rankmill.foundation.training_facts import TrainingFacts
from rankmill.report import Facts
from rankmill.report.formatting import counted, metric_name, number
from rankmill.report.svg import Drawing, Scale, tick_words, widest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from markupsafe import Markup


def goal_facts(manifest: Mapping[str, Any]) -> Facts | None:
    """Return what a sweep over the weights of goals tried; None if there was none.

    ``points`` have ``number`` (from 1), ``weights`` by name (``grade`` first), ``values`` by metric on the valid split, ``dominated_by``
    (the number of another point, or None: on the front), ``meets_floors``, ``chosen``, these three as ``outcome`` in words, ``best_round``
    and ``sha256``.
    """
    training = TrainingFacts.of(manifest)
    sweep = None if training is None else training.goal_sweep
    if sweep is None:
        return None
    return {
        "metrics": list(sweep.metrics),
        "floors": dict(sweep.floors),
        "chosen": sweep.chosen,
        "points": [
            {
                "number": number_of_point,
                "weights": sweep.weights(point),
                "values": dict(zip(sweep.metrics, sweep.values(point), strict=True)),
                "dominated_by": point.dominated_by,
                "meets_floors": point.meets_floors,
                "chosen": number_of_point == sweep.chosen,
                "outcome": sweep.fate(number_of_point),
                "best_round": point.best_round,
                "sha256": point.sha256,
            }
            for number_of_point, point in enumerate(sweep.points, 1)
        ],
    }


def goal_finding(goals: Facts | None) -> str:
    """Return the heading of the section: the weights that were chosen, and why."""
    if goals is None:
        return ""
    points, metrics = goals["points"], goals["metrics"]
    front = sum(point["dominated_by"] is None for point in points)
    chosen = points[goals["chosen"] - 1]
    weights = ", ".join(f"{name} {weight:.3g}" for name, weight in chosen["weights"].items())
    why = f"best {metric_name(metrics[0])} that meets the floors" if goals["floors"] else "best mean over the goals"
    return f"{counted(front, 'model')} of {len(points)} on the Pareto front; the weights {weights} have the {why}"


def front(goals: Facts, metric: str, width: float) -> Markup:
    """Draw the points by ``metric``, that of a goal, and by the metric of the grade; numbers are those of the table.

    The chosen point and the others of the front are filled.  A line joins the front if there is one goal; dashed lines are floors.
    """
    main, points, floors = goals["metrics"][0], goals["points"], goals["floors"]
    across = [point["values"][metric] for point in points]
    up = [point["values"][main] for point in points]
    bottom, height, right = 236.0, 276.0, 24.0
    y = _scale([*up, *([floors[main]] if main in floors else [])], bottom, 12.0)
    marks = y.ticks(5)
    left = widest(tick_words(marks)) + 10
    x = _scale([*across, *([floors[metric]] if metric in floors else [])], left, width - right)
    described = "; ".join(
        f"{point['number']}: {number(a)}, {number(b)}" for point, a, b in zip(points, across, up, strict=True)
    )
    art = Drawing(width, height, f"{metric_name(metric)} and {metric_name(main)} of each model: {described}")
    for value, words in zip(marks, tick_words(marks), strict=True):
        art.line(left, y(value), width - right, y(value), "grid")
        art.text(left - 6, y(value) + 4, words, "tick", anchor="end")
    art.axis(x, max(3, int(width / 140)), bottom + 16)
    art.text((left + width - right) / 2, bottom + 36, metric_name(metric), "axis-word", anchor="middle")
    art.text(left + 4, 10, metric_name(main), "axis-word")
    if metric in floors:
        art.line(x(floors[metric]), 12, x(floors[metric]), bottom, "line train", f"floor {floors[metric]:g}")
    if main in floors:
        art.line(left, y(floors[main]), width - right, y(floors[main]), "line train", f"floor {floors[main]:g}")
    on_front = sorted((a, b) for point, a, b in zip(points, across, up, strict=True) if point["dominated_by"] is None)
    if len(points[0]["weights"]) == 2:
        art.path([(x(a), y(b)) for a, b in on_front], "line other")
    for point, a, b in zip(points, across, up, strict=True):
        weights = ", ".join(f"{name} {weight:.3g}" for name, weight in point["weights"].items())
        title = f"{point['number']}: {weights}; {point['outcome']}"
        css = "dot candidate" if point["chosen"] else "dot even" if point["dominated_by"] is None else "dot rival"
        art.circle(x(a), y(b), 6.0 if point["chosen"] else 4.5, css, title)
        side = -9 if x(a) > width - right - 30 else 9
        anchor = "end" if side < 0 else "start"
        words = "main-word" if point["chosen"] else "soft-word"
        art.text(x(a) + side, y(b) + 4, str(point["number"]), words, anchor=anchor)
    return art.svg()


def _scale(values: Sequence[float], start: float, stop: float) -> Scale:
    """Return a scale with some room around the values."""
    low, high = min(values), max(values)
    room = 0.08 * (high - low) or 0.01
    return Scale(low - room, high + room, start, stop)
