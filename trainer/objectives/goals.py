"""Several goals: one loss for each grade, mixed into the loss of one model.

A goal is a further grade of each document.  Both ways to mix are published:

``sum``
    The weighted sum of the losses, and so of their gradients and hessians (linear scalarisation; for lambdas Svore,
    Volkovs & Burges, WWW 2011, "Learning to rank with multiple objective functions").
``draw``
    Stochastic label aggregation (Carmel, Haramaty, Lazerson & Lewin-Eytan, WWW 2020, "Multi-objective ranking
    optimization for product search using stochastic label aggregation"): the grade that a query learns from is drawn,
    with the weights as probabilities.  The paper draws labels once, before training; here each query draws anew in
    every round, so that the expected gradient is that of ``sum``.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from math import fsum
from typing import Any

import numpy as np
import numpy.typing as npt

from rankmill.foundation.errors import TrainingDataRejected, name_hint
from rankmill.foundation.kernels.randoms import random_keys
from rankmill.foundation.options import spelled
from rankmill.trainer.data.rows import RankedRows, has_two_grades
from rankmill.trainer.goal_options import DRAW
from rankmill.trainer.incompatible import check_loss
from rankmill.trainer.objectives.protocol import Floats, Objective, Splits
from rankmill.trainer.parameters import TrainParameters
from rankmill.trainer.rounds.sampling import GOALS, uniforms_of
from rankmill.trainer.team import Team

_LEAST_ROWS = 65_536  # minimum rows per worker, for passes of about a nanosecond per row


class GoalMix(Objective):
    """The mix of one loss of each grade, with weights that sum to 1.

    The starting score is the weighted mean of those of the losses, and the deviance that of their deviances, also where
    grades are drawn.  What a subclass of :func:`_mix_of` says of itself is what the kind of its losses says.

    Parameters
    ----------
    parts
        The losses, all of the same kind and rows, with their weights above 0: of the grade, then of the goals by name.
    rows
        The rows, for the names of their queries.
    parameters
        ``mix_goals`` and ``seed`` are used.
    """

    def __init__(self, parts: list[tuple[float, Objective]], rows: RankedRows, parameters: TrainParameters) -> None:
        self._parts, self._starts = parts, rows.starts
        self._drawn = parameters.mix_goals == DRAW
        self._seed, self._names = parameters.seed, rows.query_names
        self._until = np.cumsum([weight for weight, _ in parts])[:-1]
        self._g, self._h = np.empty(rows.n_rows), np.empty(rows.n_rows)
        self._part_of = np.zeros(rows.n_rows if self._drawn else 0, dtype=np.uint8)

    def start(self) -> float:
        """Return the weighted mean of the starts."""
        return fsum(weight * part.starting_score for weight, part in self._parts)

    def gradients(self, step: int, scores: Floats, g: Floats, h: Floats, team: Team) -> None:
        """Write g and h, both (n_rows,).

        They are weighted sums, or for each query those of the grade that it draws in this step.
        """
        (weight, first_part), *others = self._parts
        first_part.gradients(step, scores, g, h, team)
        if self._drawn:
            self._part_of[:] = np.repeat(self.drawn(step), np.diff(self._starts))
        else:
            self._each(team, (g, h), weight)
        for number, (weight, part) in enumerate(others, 1):
            part.gradients(step, scores, self._g, self._h, team)
            if self._drawn:
                self._take(team, g, h, number)
            else:
                self._each(team, (self._g, self._h), weight)
                self._add(team, g, h)

    def write_only(self, first_query: int, last_query: int) -> None:
        """Limit the rows whose gradients count to those of these queries."""
        for _, part in self._parts:
            part.write_only(first_query, last_query)

    def drawn(self, step: int) -> npt.NDArray[np.uint8]:
        """Return the number of the part that each query learns from in this step, (n_queries,).

        It depends on the seed, the step and the name of the query alone.
        """
        uniforms = uniforms_of(random_keys(self._seed, GOALS, step, self._names))
        return np.searchsorted(self._until, uniforms, side="right").astype(np.uint8)

    def losses(self, scores: Floats) -> Floats:
        """Return the weighted sums of the parts of the losses, (n_rows,) or (n_queries,)."""
        (weight, first_part), *others = self._parts
        losses = weight * first_part.losses(scores)
        for weight, part in others:
            losses += weight * part.losses(scores)
        return losses

    def deviance(self, scores: Floats) -> float:
        """Return the weighted mean of the deviances."""
        return fsum(weight * part.deviance(scores) for weight, part in self._parts)

    @staticmethod
    def _each(team: Team, arrays: tuple[Floats, Floats], weight: float) -> None:
        def share(first: int, last: int, _: int) -> None:
            for values in arrays:
                values[first:last] *= weight

        team.share(len(arrays[0]), _LEAST_ROWS, share)

    def _add(self, team: Team, g: Floats, h: Floats) -> None:
        def share(first: int, last: int, _: int) -> None:
            g[first:last] += self._g[first:last]
            h[first:last] += self._h[first:last]

        team.share(len(g), _LEAST_ROWS, share)

    def _take(self, team: Team, g: Floats, h: Floats, number: int) -> None:
        def share(first: int, last: int, _: int) -> None:
            drawn = self._part_of[first:last] == number
            np.copyto(g[first:last], self._g[first:last], where=drawn)
            np.copyto(h[first:last], self._h[first:last], where=drawn)

        team.share(len(g), _LEAST_ROWS, share)


@cache
def _mix_of(kind: type[Objective]) -> type[GoalMix]:
    """Return the mix of losses of a kind: it has the name of that kind, and sums over the same."""
    criteria = tuple(name for name in kind.splits.criteria if name != "ole" or kind.splits.additive)
    splits = Splits(criteria, kind.splits.additive)
    said = {"__module__": __name__, "name": kind.name, "sums_over": kind.sums_over, "splits": splits}
    return type("Mix", (GoalMix,), said)


def objective_of_goals(
    kind: type[Objective], rows: RankedRows, parameters: TrainParameters, options: Any, *, learns: bool = True
) -> Objective:
    """Return the mix of a ``kind`` of losses that ``parameters.goals`` describes.

    If one grade has all the weight, return its loss alone.

    ``learns``: whether it is trained on these rows, not only measured.

    Raises
    ------
    InvalidParameter
        Losses of the kind, or other parameters, do not go with goals; or goals have no weights.
    TrainingDataRejected
        The rows lack a goal, have labels or pairs, or no query has two grades of a goal to learn from.
    """
    goals = parameters.goals
    for name, weight in goals.items():
        if name not in rows.goals:
            hint = name_hint(
                name, rows.goals, f"its goals are {', '.join(rows.goals)}" if rows.goals else "it has none"
            )
            raise TrainingDataRejected(f"{spelled('goals')}: the data has no goal {name!r}; {hint}")
        if learns and weight > 0.0 and not has_two_grades(rows.goals[name], rows.starts):
            raise TrainingDataRejected(
                f"goal {name!r}: no query has documents of two different grades of it, so there is nothing to learn; "
                "leave it out"
            )
    if rows.labels is not None:
        raise TrainingDataRejected(
            f"{spelled('goals')}: goals are grades and cannot be mixed with labels; use an objective that learns "
            "grades, such as lambdamart, or make the label a grade"
        )
    if rows.pairs is not None:
        raise TrainingDataRejected(
            f"{spelled('goals')}: goals are grades and cannot be mixed with pairs; set {spelled('learn_from')} to "
            "grades"
        )
    parts = [(parameters.grade_weight, kind(rows, parameters, options))] if parameters.grade_weight > 0.0 else []
    for name, weight in goals.items():
        if weight > 0.0:
            parts.append((weight, _part(kind, rows, parameters, options, name)))
    for _, part in parts:
        check_loss(part, parameters)
    if len(parts) == 1:
        return parts[0][1]
    return _mix_of(kind)(parts, rows, parameters)


def _part(kind: type[Objective], rows: RankedRows, parameters: TrainParameters, options: Any, name: str) -> Objective:
    """Return the loss of a goal."""
    try:
        return kind(replace(rows, grades=rows.goals[name]), parameters, options)
    except TrainingDataRejected as error:
        raise TrainingDataRejected(f"goal {name!r}: {error}") from None
