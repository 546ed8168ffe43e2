"""Objectives by their names: one line each.  Nothing is imported before it is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

from rankmill.foundation.errors import InvalidParameter
from rankmill.trainer.objectives.spelling import options_of, parse_spelling, spelling_of

if TYPE_CHECKING:
    from rankmill.trainer.objectives.protocol import Objective
    from rankmill.trainer.parameters import TrainParameters
    from rankmill.trainer.rows import RankedRows

OBJECTIVES: Mapping[str, str] = {
    "lambdamart": "rankmill.trainer.objectives.pairwise.lambdamart:LambdaMart",
    "l2": "rankmill.trainer.objectives.pointwise.l2:SquaredError",
    "laplace": "rankmill.trainer.objectives.pointwise.quantile:Laplace",
    "quantile": "rankmill.trainer.objectives.pointwise.quantile:Quantile",
    "gbrank": "rankmill.trainer.objectives.pairwise.gbrank:GbRank",
    "huber": "rankmill.trainer.objectives.pointwise.huber:Huber",
    "bernoulli": "rankmill.trainer.objectives.pointwise.bernoulli:Bernoulli",
    "adaboost": "rankmill.trainer.objectives.pointwise.adaboost:AdaBoost",
    "poisson": "rankmill.trainer.objectives.pointwise.poisson:Poisson",
    "logistic2": "rankmill.trainer.objectives.pointwise.bernoulli:Logistic2",
    "logistrank": "rankmill.trainer.objectives.pointwise.logistrank:LogistRank",
    "mcrank": "rankmill.trainer.objectives.pointwise.mcrank:McRank",
    "ordinal": "rankmill.trainer.objectives.pointwise.mcrank:Ordinal",
    "coxph": "rankmill.trainer.objectives.pointwise.coxph:CoxPH",
    "consistent_l2": "rankmill.trainer.objectives.pointwise.consistent:ConsistentL2",
    "consistent_kl": "rankmill.trainer.objectives.pointwise.consistent:ConsistentKL",
    "consistent_cosine": "rankmill.trainer.objectives.pointwise.consistent:ConsistentCosine",
    "listmle": "rankmill.trainer.objectives.listwise.listmle:ListMle",
    "listnet": "rankmill.trainer.objectives.listwise.listnet:ListNet",
    "query_cross_entropy": "rankmill.trainer.objectives.listwise.query_cross_entropy:QueryCrossEntropy",
    "query_rmse": "rankmill.trainer.objectives.listwise.query_rmse:QueryRmse",
    "rank_xendcg": "rankmill.trainer.objectives.listwise.rank_xendcg:RankXendcg",
    "apxdcg": "rankmill.trainer.objectives.listwise.apxdcg:ApxDcg",
    "stochasticrank": "rankmill.trainer.objectives.listwise.stochasticrank:StochasticRank",
    "softmax": "rankmill.trainer.objectives.listwise.listnet:Softmax",
    "lambdaloss": "rankmill.trainer.objectives.pairwise.lambdaloss:LambdaLoss",
    "rankboost": "rankmill.trainer.objectives.pairwise.rankboost:RankBoost",
    "ranknet": "rankmill.trainer.objectives.pairwise.ranknet:RankNet",
    "user": "rankmill.trainer.objectives.user:UserObjective",
    "yetirank": "rankmill.trainer.objectives.pairwise.yetirank:YetiRank",
}

_NAMED = tuple(name for name in OBJECTIVES if name != "user")  # a function has to be handed over instead
_ELSEWHERE = {  # as LightGBM, XGBoost, CatBoost, RankLib and gbm call them, in small letters
    "lambdarank": "lambdamart",
    "rank": "lambdamart",
    "mart": "l2",
    "regression": "l2",
    "regression_l1": "laplace",
    "gaussian": "l2",
    "rmse": "l2",
    "mse": "l2",
    "mae": "laplace",
    "binary": "bernoulli",
    "logloss": "bernoulli",
    "logistic": "bernoulli",
    "multiclass": "mcrank",
    "pairwise": "ranknet",
    "pairlogit": "ranknet",
    "yetirankpairwise": "yetirank",
    "queryrmse": "query_rmse",
    "querysoftmax": "softmax",
    "querycrossentropy": "query_cross_entropy",
    "xendcg": "rank_xendcg",
}


@cache
def objective_class(name: str) -> type[Objective]:
    """Return the class of an objective; InvalidParameter, with the nearest name, for an unknown one."""
    if name not in OBJECTIVES:
        near = _ELSEWHERE.get(name.lower()) or next(iter(get_close_matches(name.lower(), _NAMED, n=1)), None)
        hint = f"did you mean {near!r}?" if near else f"known: {', '.join(_NAMED)}"
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


def stops_by_deviance(written: str) -> bool:
    """Whether scores of the objective order rows otherwise than grades do; errors as :func:`canonical`."""
    return objective_class(parse_spelling(written)[0]).stops_by_deviance


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
