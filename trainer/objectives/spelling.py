"""The names of objectives, and the syntax of their options: ``quantile(alpha=0.9)``.

An objective is imported on first use.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cache
from importlib import import_module
from typing import Any, ClassVar, Protocol

from rankmill.foundation.errors import InvalidParameter, name_hint
from rankmill.foundation.options import spelled_for
from rankmill.foundation.scalars import real_number, text, truth, whole_number

OBJECTIVES: Mapping[str, str] = {
    "lambdamart": "rankmill.trainer.objectives.pairwise.lambdamart:LambdaMart",
    "l2": "rankmill.trainer.objectives.pointwise.regression:SquaredError",
    "laplace": "rankmill.trainer.objectives.pointwise.regression:Laplace",
    "quantile": "rankmill.trainer.objectives.pointwise.regression:Quantile",
    "gbrank": "rankmill.trainer.objectives.pairwise.gbrank:GbRank",
    "huber": "rankmill.trainer.objectives.pointwise.regression:Huber",
    "bernoulli": "rankmill.trainer.objectives.pointwise.classification:Bernoulli",
    "adaboost": "rankmill.trainer.objectives.pointwise.classification:AdaBoost",
    "poisson": "rankmill.trainer.objectives.pointwise.regression:Poisson",
    "logistic2": "rankmill.trainer.objectives.pointwise.classification:Logistic2",
    "logistrank": "rankmill.trainer.objectives.pointwise.classification:LogistRank",
    "mcrank": "rankmill.trainer.objectives.pointwise.mcrank:McRank",
    "ordinal": "rankmill.trainer.objectives.pointwise.mcrank:Ordinal",
    "coxph": "rankmill.trainer.objectives.pointwise.coxph:CoxPH",
    "consistent_l2": "rankmill.trainer.objectives.pointwise.consistent:ConsistentL2",
    "consistent_kl": "rankmill.trainer.objectives.pointwise.consistent:ConsistentKL",
    "consistent_cosine": "rankmill.trainer.objectives.pointwise.consistent:ConsistentCosine",
    "listmle": "rankmill.trainer.objectives.listwise.listmle:ListMle",
    "listnet": "rankmill.trainer.objectives.listwise.cross_entropy:ListNet",
    "query_cross_entropy": "rankmill.trainer.objectives.listwise.within_query:QueryCrossEntropy",
    "query_rmse": "rankmill.trainer.objectives.listwise.within_query:QueryRmse",
    "rank_xendcg": "rankmill.trainer.objectives.listwise.cross_entropy:RankXendcg",
    "apxdcg": "rankmill.trainer.objectives.listwise.expected_dcg:ApxDcg",
    "stochasticrank": "rankmill.trainer.objectives.listwise.expected_dcg:StochasticRank",
    "softmax": "rankmill.trainer.objectives.listwise.cross_entropy:Softmax",
    "lambdaloss": "rankmill.trainer.objectives.pairwise.lambdamart:LambdaLoss",
    "rankboost": "rankmill.trainer.objectives.pairwise.ranknet:RankBoost",
    "ranknet": "rankmill.trainer.objectives.pairwise.ranknet:RankNet",
    "user": "rankmill.trainer.objectives.user:UserObjective",
    "yetirank": "rankmill.trainer.objectives.pairwise.yetirank:YetiRank",
}

_NAMED = tuple(name for name in OBJECTIVES if name != "user")  # needs a function instead
_ELSEWHERE = {  # their names in LightGBM, XGBoost, CatBoost, RankLib and gbm, in lower case
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
_FORM = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_]*)\s*(?:\((.*)\))?\s*")
_TRUTHS = {"true": True, "false": False}


class HasOptions(Protocol):
    """What the spelling of an objective needs of its class.

    The rest is :class:`rankmill.trainer.objectives.protocol.Objective`.
    """

    Options: ClassVar[type[Any]]


@cache
def class_named(name: str) -> type[HasOptions]:
    """Return the class of an objective; InvalidParameter, with the nearest name, for an unknown one."""
    if name not in OBJECTIVES:
        ours = _ELSEWHERE.get(name.lower(), name.lower())
        hint = name_hint(ours, _NAMED, f"known: {', '.join(_NAMED)}")
        raise InvalidParameter(f"unknown objective {name!r}; {hint}")
    module, _, attribute = OBJECTIVES[name].partition(":")
    kind: type[HasOptions] = getattr(import_module(module), attribute)
    return kind


def canonical(written: str) -> str:
    """Return the canonical spelling of an objective.

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
    return spelling_of(name, options_of(name, class_named(name).Options, given))


def parse_spelling(written: str) -> tuple[str, dict[str, str]]:
    """Return the name and the options, as text; an option without a name has the name ``""``.

    >>> parse_spelling("quantile(alpha=0.9)")
    ('quantile', {'alpha': '0.9'})
    >>> parse_spelling("quantile(0.9)"), parse_spelling("l2")
    (('quantile', {'': '0.9'}), ('l2', {}))

    Raises
    ------
    InvalidParameter
        The syntax is wrong, or an option is repeated.
    """
    found = _FORM.fullmatch(written)
    if found is None:
        raise InvalidParameter(f"objective: expected a name such as lambdamart or quantile(alpha=0.9), got {written!r}")
    options: dict[str, str] = {}
    for part in (found[2] or "").split(","):
        if not part.strip():
            continue
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals:
            name, value = "", name
        if name in options or not value:
            raise InvalidParameter(f"objective {written!r}: expected each option once as name=value, found {part!r}")
        options[name] = value
    return found[1], options


def options_of(objective: str, kind: type[Any], given: Mapping[str, str]) -> Any:
    """Return ``given`` as the options of an objective; a value without a name is the first of them.

    Raises
    ------
    InvalidParameter
        The objective has no such option, or a value is invalid.
    """
    known = [field.name for field in fields(kind)]
    types = {field.name: str(field.type) for field in fields(kind)}
    values: dict[str, object] = {}
    for name, value in given.items():
        name = name or (known[0] if known else "")  # noqa: PLW2901
        if name not in known or name in values:
            hint = name_hint(name, known, f"it has {', '.join(known) or 'none'}")
            raise InvalidParameter(f"objective {objective}: unknown option {name or value!r}; {hint}")
        values[name] = _READERS[types[name]](f"{objective}({name})", value)
    with spelled_for(objective):
        return kind(**values)


def spelling_of(objective: str, options: Any) -> str:
    """Return the canonical spelling of an objective: with the options that differ from their defaults, in order."""
    changed = [
        f"{field.name}={getattr(options, field.name)}"
        for field in fields(options)
        if getattr(options, field.name) != field.default
    ]
    return f"{objective}({', '.join(changed)})" if changed else objective


def _number(name: str, written: str) -> float:
    try:
        return real_number(name, float(written))
    except ValueError:
        raise InvalidParameter(f"{name} must be a number, got {written!r}") from None


def _whole(name: str, written: str) -> int:
    return whole_number(name, _number(name, written))


def _truth(name: str, written: str) -> bool:
    return truth(name, _TRUTHS.get(written.lower(), written))


_READERS: Mapping[str, Callable[[str, str], Any]] = {"int": _whole, "float": _number, "bool": _truth, "str": text}
