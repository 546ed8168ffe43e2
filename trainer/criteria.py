"""By which criterion splits are chosen: what the objective permits, and what the user asked for."""

from __future__ import annotations

from rankmill.foundation.errors import InvalidParameter
from rankmill.trainer.objectives.protocol import Objective
from rankmill.trainer.parameters import TrainParameters


def criterion_of(objective: Objective, parameters: TrainParameters) -> str:
    """Return ``se``, ``rwse`` or ``ole`` for this training.

    The exact second derivative of a loss that is a sum of terms with one score each is the sum of its h, so ``ole`` is
    ``rwse`` there (Xia et al., Theorem 1).

    Raises
    ------
    InvalidParameter
        The objective does not permit it.
    """
    wanted = parameters.criterion or objective.criteria[0]
    if wanted not in objective.criteria:
        raise InvalidParameter(
            f"criterion {wanted!r} is not for {objective.name}, which permits {', '.join(objective.criteria)}"
            "; docs/objectives.md says why"
        )
    if wanted == "ole" and objective.additive:
        return "rwse"
    if wanted == "ole" and parameters.grow == "oblivious":
        raise InvalidParameter("criterion 'ole' is for trees that split leaf by leaf; grow is 'oblivious'")
    return wanted


def takes_exact_steps(objective: Objective, criterion: str, parameters: TrainParameters) -> bool:
    """Tell whether pairs inside a leaf are left out of its curvature; by default where splits are chosen in that way.

    Raises
    ------
    InvalidParameter
        The objective has no pairs.
    """
    if parameters.leaf == "exact" and "ole" not in objective.criteria:
        raise InvalidParameter(f"leaf 'exact' is not for {objective.name}, which has no pair curvatures; use newton")
    return not objective.additive and (parameters.leaf or ("exact" if criterion == "ole" else "newton")) == "exact"
