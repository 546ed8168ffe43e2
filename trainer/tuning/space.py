"""The search space of a hyperparameter search.

``a..b`` is a range, both ends included, drawn uniformly or with ``:log`` so that every ratio is as likely as any other;
values with commas are choices.  The draw of a parameter is a pure function of (seed, trial, its name): one more trial,
or one more parameter in the space, changes nothing that was drawn before.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from math import exp, floor, log
from pathlib import Path
from typing import Any

from rankmill.foundation.errors import InvalidParameter, name_hint
from rankmill.foundation.records import JSON, as_json
from rankmill.foundation.scalars import real_number, text, truth, whole_number
from rankmill.trainer.nets.options import NET, PAIRS, TREES, NetOptions, as_layers, parse_layers
from rankmill.trainer.parameters import TrainParameters
from rankmill.trainer.toml_files import read_toml

DIGITS = 4  # significant digits of a sampled number, for readers

SMALL_TREES: Mapping[str, str] = {
    "objective": "query_rmse,l2,rank_xendcg,lambdamart",
    "learning_rate": "0.03..0.1:log",
    "max_depth": "3..6",
    "min_rows_in_leaf": "2..60:log",
    "lambda_l2": "0.1..10:log",
    "l2_scale": "mean_hessian",  # a unit for all objectives
    "random_strength": "0..1",
    "bagging_temperature": "0.5..2",
    "feature_fraction": "0.4..1",
}
"""The default search space around small oblivious trees of randomly weighted documents, which presets choose for few
queries."""

ANY_TREES: Mapping[str, str] = {
    "objective": "lambdamart,rank_xendcg,query_rmse,l2",
    "grow": "best_first,oblivious",
    "learning_rate": "0.02..0.3:log",
    "max_depth": "5..8",
    "max_leaves": "8..128:log",
    "min_rows_in_leaf": "5..200:log",
    "lambda_l2": "0.01..100:log",
    "feature_fraction": "0.3..1",
    "row_fraction": "0.5..1",
}
"""The default search space otherwise.

It has objectives of each kind, since the best one differs between data: on some a loss of documents or of queries beats
those of pairs.  It also has the parameters that affect the quality of boosted trees most.
"""

NETS: Mapping[str, str] = {
    "objective": "lambdamart,softmax,ranknet,query_rmse",
    "layers": "(),(64),(128,64),(256,128)",
    "dropout": "0..0.5",
    "learning_rate": "0.0005..0.01:log",
    "weight_decay": "0.001..0.1:log",
}
"""The default search space of nets: small ones, a linear score among them, which is best where there are few
queries."""

FIXED: Mapping[str, str] = {
    "model": "a search is for trees or for nets; give it as an option",
    "seed": "the search would only select a lucky seed; repeat the best trials with other seeds",
    "stop_metric": "trials are compared by it",
    "gain": "it decides what the metric means",
    "rounds_by": "the valid split, or without one the folds, choose the number of rounds",
    "keep_rounds": "trials are compared by the rounds that they keep",
    "refit": "trials are compared on the valid split, which must not be learnt from",
    "stop_window": "trials are compared by what it smooths",
    "holdout_fraction": "no queries of the train split are held out",
    "folds": "trials are compared on them",
    "goals": "they say what you want of a model; give them as an option, and train a model for each of some weights",
    "monotone": "monotone constraints are not searched; give them as an option",
    "feature_weights": "they say what you want of features; give them as an option",
    "interaction_constraints": "interaction constraints are not searched; give them as an option",
}
_VALUES = {
    "int": "whole numbers such as 15,31",
    "float": "numbers such as 0.05,0.1",
    "tuple[int,": "widths in brackets such as (64),(256,128),()",
}
_KINDS = {
    model: {field.name: str(field.type) for field in fields(kind)}
    for model, kind in ((TREES, TrainParameters), (NET, NetOptions))
}
_OTHER = {TREES: _KINDS[NET], NET: _KINDS[TREES]}


@dataclass(frozen=True, slots=True)
class Choices:
    """Some values, equally likely."""

    values: tuple[Any, ...]

    def at(self, share: float) -> Any:
        """Return the value at the quantile ``share``, in [0, 1)."""
        return self.values[floor(share * len(self.values))]

    def ends(self) -> tuple[Any, ...]:
        """Return the values to check against the bounds."""
        return self.values


@dataclass(frozen=True, slots=True)
class Range:
    """Numbers from ``low`` to ``high``, both included; integers if ``whole``, else with ``DIGITS`` digits."""

    low: float
    high: float
    logarithmic: bool = False
    whole: bool = False

    def at(self, share: float) -> Any:
        """Return the number at the quantile ``share``, in [0, 1)."""
        high = self.high + 1 if self.whole else self.high
        if self.logarithmic:
            number = exp(log(self.low) + share * (log(high) - log(self.low)))
        else:
            number = self.low + share * (high - self.low)
        number = floor(number) if self.whole else float(f"{number:.{DIGITS}g}")
        return min(max(number, self.low), self.high)  # rounding must not leave the range

    def ends(self) -> tuple[Any, ...]:
        """Return the values to check against the bounds."""
        return self.low, self.high


@dataclass(frozen=True, slots=True)
class Space:
    """The searched parameters, by name."""

    parts: Mapping[str, Choices | Range]

    def draw(self, seed: int, trial: int) -> dict[str, Any]:
        """Return the parameters of a trial."""
        return {name: part.at(share_of(seed, trial, name)) for name, part in self.parts.items()}

    def but(self, other: Space) -> Space:
        """Return this space updated with the parts of ``other``."""
        return Space(dict(sorted({**self.parts, **other.parts}.items())))

    def check(self, base: TrainParameters | NetOptions) -> None:
        """Raise InvalidParameter if a part exceeds the bounds of its parameter."""
        for name, part in self.parts.items():
            for value in part.ends():
                replace(base, **{name: value})

    def to_dict(self) -> dict[str, JSON]:
        """Return plain values: a list of choices, or the ends of a range."""
        return {
            name: as_json(part.values)
            if isinstance(part, Choices)
            else {"low": part.low, "high": part.high, "log": part.logarithmic}
            for name, part in self.parts.items()
        }


def share_of(seed: int, trial: int, name: str) -> float:
    """Return a number in [0, 1), uniform over trials: 53 bits of the sha256 of the three."""
    digest = hashlib.sha256(json.dumps([seed, trial, name]).encode()).digest()
    return (int.from_bytes(digest[:8], "big") >> 11) * 2.0**-53


def default_space(*, small_trees: bool, without: Sequence[str] = ()) -> Space:
    """Return the default space around ``small_trees`` of few queries or any trees. Fixed parameters are left out."""
    usual = SMALL_TREES if small_trees else ANY_TREES
    if "lambda_l2" in without:
        without = [*without, "l2_scale"]  # its unit
    return space_of({name: values for name, values in usual.items() if name not in without}, "the default space")


def default_space_of_nets(options: NetOptions, without: Sequence[str] = ()) -> Space:
    """Return the default space around these options of a net.

    The names that are fixed and those that they exclude are left out.
    """
    without = [*without, *(["dropout"] if options.activation == "tanh" else [])]
    if options.updates == PAIRS:
        without = [*without, "objective", "layers", "dropout", "weight_decay"]
    usual = {name: values for name, values in NETS.items() if name not in without}
    return space_of(usual, "the default space", NET)


def read_space(path: Path, model: str = TREES) -> Space:
    """Read a file of TOML: a line for each parameter, ``learning_rate = "0.02..0.3:log"`` or a list of choices.

    Raises
    ------
    InvalidParameter
        There is no such file, it is not valid TOML, or names a parameter that cannot be searched.
    """
    return space_of(read_toml(path, "the search space"), str(path), model)


def parse_vary(lines: Sequence[str]) -> dict[str, str]:
    """Read ``NAME=VALUES`` as a command line gives them; the last of a name counts.

    >>> parse_vary(["learning_rate=0.02..0.3:log"])
    {'learning_rate': '0.02..0.3:log'}
    """
    found = {}
    for line in lines:
        name, equals, values = line.partition("=")
        if not equals or not name.strip() or not values.strip():
            raise InvalidParameter(f"--vary: expected NAME=LOW..HIGH, NAME=LOW..HIGH:log or NAME=A,B,C, found {line!r}")
        found[name.strip()] = values.strip()
    return found


def space_of(given: Mapping[str, Any], where: str, model: str = TREES) -> Space:
    """Return the space of values by name, of trees or a net.

    A value is text as on a command line, a list of choices, or one value.

    Raises
    ------
    InvalidParameter
        A parameter is unknown or not for searching, or its values are invalid; the message begins with ``where``.
    """
    if not given:
        raise InvalidParameter(f"{where}: expected at least one parameter to vary, found none")
    kinds = _KINDS[model]
    parts: dict[str, Choices | Range] = {}
    for name in sorted(given):  # in an order that does not depend on ``given``
        if name in FIXED:
            raise InvalidParameter(f"{where}: {name} cannot be varied: {FIXED[name]}")
        if name not in kinds and name in _OTHER[model]:
            of = "nets; set model to net" if model == TREES else "trees, and trials train nets"
            raise InvalidParameter(f"{where}: {name} cannot be varied: it is an option of {of}")
        if name not in kinds:
            hint = name_hint(name, kinds, "see rankmill train --help")
            raise InvalidParameter(f"{where}: unknown parameter {name!r}; {hint}")
        try:
            parts[name] = _part(kinds[name], given[name])
        except (KeyError, ValueError):
            raise InvalidParameter(
                f"{where}: {name}: expected LOW..HIGH, LOW..HIGH:log or {_VALUES.get(kinds[name].split()[0], 'words')}"
                f", found {given[name]!r}"
            ) from None
    return Space(parts)


def _part(kind: str, given: Any) -> Choices | Range:
    if isinstance(given, list):
        if not given:
            raise ValueError
        return Choices(tuple(_value(kind, each) for each in given))
    if isinstance(given, str) and ".." in given and kind in {"int", "float"}:
        ends, _, scale = given.partition(":")
        low, high = (_value(kind, end) for end in ends.split(".."))
        if low > high or scale.strip() not in {"", "log"} or (scale and low <= 0):
            raise ValueError
        return Range(low, high, logarithmic=bool(scale), whole=kind == "int")
    if isinstance(given, str):
        return Choices(tuple(_value(kind, part) for part in _parts_of(given)))
    return Choices((_value(kind, given),))


def _parts_of(text: str) -> list[str]:
    """Split at the commas outside of brackets: objectives have options."""
    return re.split(r",\s*(?![^()]*\))", text)


def _value(kind: str, given: Any) -> Any:
    """Return a value of a parameter; ValueError if it is invalid."""
    if kind.startswith("tuple"):
        return (
            parse_layers(given.strip().removeprefix("(").removesuffix(")"))
            if isinstance(given, str)
            else as_layers(given)
        )
    if kind == "str":
        return text("value", given).strip()
    if kind == "bool":
        return (
            {"true": True, "false": False}[given.strip().lower()] if isinstance(given, str) else truth("value", given)
        )
    if isinstance(given, str):
        return int(given) if kind == "int" else float(given)
    return whole_number("value", given) if kind == "int" else real_number("value", given)
