"""What a training whose rows are divided among processes cannot do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rankmill.foundation.errors import InvalidParameter
from rankmill.foundation.options import spelled
from rankmill.trainer.objectives.protocol import Objective
from rankmill.trainer.parameters import BAYESIAN, NONE, TrainParameters
from rankmill.trainer.rounds.early_stopping import DEVIANCE, Measure

if TYPE_CHECKING:
    from rankmill.trainer.training_options import TrainingOptions


def check_divided_loss(
    objective: Objective,
    criterion: str,
    measures: Sequence[Measure],
    *,
    exact_leaves: bool,
    encoded: bool,
) -> None:
    """Raise InvalidParameter if the loss or a metric needs rows of several processes at one place, and say why."""
    name = f"{spelled('objective')} {objective.name}"
    if objective.limits.cluster:
        _refuse(name, objective.limits.cluster)
    if type(objective).leaf_steps is not Objective.leaf_steps:
        _refuse(name, "the value of a leaf needs all of its documents")
    if criterion == "ole" or exact_leaves:
        _refuse(
            f"{spelled('criterion')} ole, or {spelled('leaf')} exact,", "it lists pairs in the order of all documents"
        )
    if encoded:
        _refuse(spelled("encode_above"), "codes of categories depend on all documents")
    if DEVIANCE in measures:
        _refuse("the metric deviance", "it needs the loss of all documents, so stop by another metric")


def check_divided(parameters: TrainParameters, options: TrainingOptions) -> None:
    """Raise InvalidParameter if a training needs rows of several processes at one place, whatever its loss is, and say why."""
    p = parameters
    if p.bootstrap not in {NONE, BAYESIAN}:
        _refuse(f"{spelled('bootstrap')} {p.bootstrap}", "it draws by the gradients of all documents")
    if p.rounds_by != "valid":
        _refuse(f"{spelled('rounds_by')} {p.rounds_by}", "only the valid split can choose the rounds there")
    if p.refit != NONE:
        none = f"set {spelled('refit')} to none, since few queries have it by default"
        _refuse(f"{spelled('refit')} {p.refit}", "each worker has a part of each split", none)
    if p.step_search == "line":
        _refuse(f"{spelled('step_search')} line", "it needs the loss of all documents")
    if options.base_model is not None:
        _refuse(spelled("base_model"), "its scores are needed for all documents")


def _refuse(what: str, why: str, cure: str = "train on one machine") -> None:
    raise InvalidParameter(f"{what} does not work on a cluster: {why}; {cure}")
