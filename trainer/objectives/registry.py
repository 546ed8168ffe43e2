"""Objectives by their names: one line each.  Nothing is imported before it is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

from trainer.errors import InvalidParameter
from trainer.objectives.spelling import options_of, parse_spelling, spelling_of

if TYPE_CHECKING:
    from trainer.objectives.protocol import Objective
    from trainer.parameters import TrainParameters
    from trainer.rows import RankedRows

OBJECTIVES: Mapping[str, str] = {
    "lambdamart": "trainer.objectives.lambdamart:LambdaMart",
    "l2": "trainer.objectives.l2:SquaredError",
    "laplace": "trainer.objectives.quantile:Laplace",
    "quantile": "trainer.objectives.quantile:Quantile",
    "gbrank": "trainer.objectives.gbrank:GbRank",
    "huber": "trainer.objectives.huber:Huber",
    "bernoulli": "trainer.objectives.bernoulli:Bernoulli",
    "adaboost": "trainer.objectives.adaboost:AdaBoost",
    "poisson": "trainer.objectives.poisson:Poisson",
    "logistic2": "trainer.objectives.bernoulli:Logistic2",
    "logistrank": "trainer.objectives.logistrank:LogistRank",
    "mcrank": "trainer.objectives.mcrank:McRank",
    "ordinal": "trainer.objectives.mcrank:Ordinal",
    "coxph": "trainer.objectives.coxph:CoxPH",
    "consistent_l2": "trainer.objectives.consistent:ConsistentL2",
    "consistent_kl": "trainer.objectives.consistent:ConsistentKL",
    "consistent_cosine": "trainer.objectives.consistent:ConsistentCosine",
    "listmle": "trainer.objectives.listmle:ListMle",
    "listnet": "trainer.objectives.listnet:ListNet",
    "query_cross_entropy": "trainer.objectives.query_cross_entropy:QueryCrossEntropy",
    "query_rmse": "trainer.objectives.query_rmse:QueryRmse",
    "rank_xendcg": "trainer.objectives.rank_xendcg:RankXendcg",
    "apxdcg": "trainer.objectives.apxdcg:ApxDcg",
    "stochasticrank": "trainer.objectives.stochasticrank:StochasticRank",
    "softmax": "trainer.objectives.listnet:Softmax",
    "lambdaloss": "trainer.objectives.lambdaloss:LambdaLoss",
    "rankboost": "trainer.objectives.rankboost:RankBoost",
    "ranknet": "trainer.objectives.ranknet:RankNet",
    "user": "trainer.objectives.user:UserObjective",
    "yetirank": "trainer.objectives.yetirank:YetiRank",
}


@cache
def objective_class(name: str) -> type[Objective]:
    """Return the class of an objective; InvalidParameter, with the nearest name, for an unknown one."""
    if name not in OBJECTIVES:
        near = get_close_matches(name, OBJECTIVES, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(OBJECTIVES)}"
        raise InvalidParameter(f"unknown objective {name!r}; {hint}")
    module, _, attribute = OBJECTIVES[name].partition(":")
    found: type[Objective] = getattr(import_module(module), attribute)
    return found


def canonical(written: str) -> str:
    """Return the one way to write an objective.

    >>> canonical(" l2 ()")
    'l2'

    Raises
    ------
    InvalidParameter
        There is no such objective, or it has no such options.
    """
    name, given = parse_spelling(written)
    if name in OBJECTIVES and not given:
        return name
    return spelling_of(name, options_of(name, objective_class(name).Options, given))


def learns_labels(written: str) -> bool:
    """Whether the objective fits labels that need not be grades; errors as :func:`canonical`."""
    return objective_class(parse_spelling(written)[0]).learns_labels


def objective_of(rows: RankedRows, parameters: TrainParameters) -> Objective:
    """Return the loss that ``parameters.objective`` names, over these rows.

    Raises
    ------
    InvalidParameter, TrainingDataRejected
        As the objective says.
    """
    name, given = parse_spelling(parameters.objective)
    kind = objective_class(name)
    return kind(rows, parameters, options_of(name, kind.Options, given))
