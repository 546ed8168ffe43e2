"""Create objectives from their names, and check criterion and leaf options."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

from rankmill.foundation.errors import InvalidParameter
from rankmill.trainer.incompatible import check_loss
from rankmill.trainer.objectives.spelling import class_named, options_of, parse_spelling

if TYPE_CHECKING:
    from rankmill.trainer.data.rows import RankedRows
    from rankmill.trainer.objectives.protocol import Objective
    from rankmill.trainer.parameters import TrainParameters


def objective_class(name: str) -> type[Objective]:
    """Return the class of an objective; InvalidParameter, with the nearest name, for an unknown one."""
    return cast("type[Objective]", class_named(name))


def learns_labels(written: str | None) -> bool:
    """Whether the objective fits labels that need not be grades, which none does that a preset chooses (``None``).

    Errors as :func:`canonical`.
    """
    return written is not None and objective_class(parse_spelling(written)[0]).learns.labels


def stops_by_deviance(written: str) -> bool:
    """Whether scores of the objective may order rows differently from grades; errors as :func:`canonical`."""
    return not objective_class(parse_spelling(written)[0]).learns.order


def objective_of(rows: RankedRows, parameters: TrainParameters, *, learns: bool = True) -> Objective:
    """Return the loss that ``parameters.objective`` names, over these rows; with goals a mix of such losses.

    ``learns``: whether it is trained on these rows, not only measured; only then it corrects clicks.

    Raises
    ------
    InvalidParameter, TrainingDataRejected
        As the objective says.
    """
    name, given = parse_spelling(parameters.objective)
    kind = objective_class(name)
    options = options_of(name, kind.Options, given)
    if learns and (parameters.propensities or parameters.position_bias == "unbiased"):
        # it would undo the weights of lists with one click, which are most
        parameters = replace(parameters, lambda_normalisation=False)
    if learns and parameters.propensities:
        from rankmill.trainer.clicks.inverse_propensity import with_propensities

        rows = with_propensities(kind, rows, parameters)
    if learns:
        check_loss(kind, parameters)
    if parameters.goals:
        from rankmill.trainer.objectives.goals import objective_of_goals

        found = objective_of_goals(kind, rows, parameters, options, learns=learns)
    else:
        found = kind(rows, parameters, options)
    if learns:
        check_loss(found, parameters)
    if learns and parameters.position_bias != "none":
        from rankmill.trainer.clicks.position_bias import with_position_bias

        return with_position_bias(found, rows, parameters)
    return found


def criterion_of(objective: Objective, parameters: TrainParameters) -> str:
    """Return ``se``, ``rwse`` or ``ole`` for this training.

    If a loss is a sum of terms with one score each, its exact second derivative is the sum of its h.  So ``ole`` is
    ``rwse`` there (Xia et al., Theorem 1).

    Raises
    ------
    InvalidParameter
        The objective does not permit it.
    """
    wanted = parameters.criterion or objective.splits.criteria[0]
    if wanted not in objective.splits.criteria:
        raise InvalidParameter(
            f"criterion {wanted!r} does not work with {objective.name}, which supports"
            f" {', '.join(objective.splits.criteria)}; docs/objectives.md says why"
        )
    return objective.splits.criterion(wanted)


def takes_exact_steps(objective: Objective, parameters: TrainParameters) -> bool:
    """Return whether the hessian of a leaf leaves out pairs inside it; by default if splits are chosen that way.

    Raises
    ------
    InvalidParameter
        The objective has no pairs.
    """
    if parameters.leaf == "exact" and "ole" not in objective.splits.criteria:
        raise InvalidParameter(
            f"leaf 'exact' does not work with {objective.name}, which has no hessian of pairs; use newton"
        )
    return objective.splits.exact_leaves(parameters.criterion, parameters.leaf)
