"""The formats that models are written in and read from, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from scorer.errors import InputError
from scorer.exchange import c, lightgbm, onnx, ranklib, solr, xgboost
from scorer.exchange.plain import missing_as_zero
from scorer.exchange.source import Imported
from scorer.exchange.written import Written
from scorer.forest import Forest

WRITERS: Mapping[str, Callable[[Forest, str], Written]] = {
    "lightgbm": lightgbm.write,
    "xgboost": xgboost.write,
    "ranklib": ranklib.write,
    "solr": solr.write,
    "onnx": onnx.write,
    "c": c.write,
}
READERS: Mapping[str, Callable[[bytes, str], Imported]] = {"lightgbm": lightgbm.read, "xgboost": xgboost.read}
MISSING = ("keep", "zero")


def write_as(
    target: str,
    forest: Forest,
    *,
    name: str = "model",
    features: Sequence[str] | None = None,
    missing: str = "keep",
    nearest_thresholds: bool = False,
) -> Written:
    """Return ``forest`` in the format ``target``, one of ``WRITERS``.

    Parameters
    ----------
    name
        What the model is called, in formats that have names.
    features
        Names of the features there, in the model's order; None: those of the model.
    missing
        ``keep``: missing values go where they go here; ``zero``: where 0 goes.
    nearest_thresholds
        Take the nearest where Solr cannot have a threshold.

    Raises
    ------
    InputError
        There is no such format or no such way with missing values, or the names do not fit the model.
    ConversionRefused
        The format cannot say this model; the message has the reason and a cure.
    """
    if target not in WRITERS:
        raise InputError.unknown("format", target, WRITERS)
    if missing not in MISSING:
        raise InputError.unknown("way with missing values", missing, MISSING)
    if nearest_thresholds and target != "solr":
        raise InputError(f"nearest thresholds are for solr: {target} has all thresholds to the bit")
    if features is not None:
        forest = renamed(forest, features)
    if missing == "zero":
        forest = missing_as_zero(forest)
    if nearest_thresholds:
        return solr.write(forest, name, nearest=True)
    return WRITERS[target](forest, name)


def read_from(source: str, data: bytes, where: str, *, features: Sequence[str] | None = None) -> Imported:
    """Return the model of the format ``source``, one of ``READERS``, that ``data`` holds; ``where`` names it in messages.

    ``features`` are other names for its features.

    Raises
    ------
    InputError
        There is no such format, or the names do not fit the model.
    ModelFormatError
        The data are damaged, cut short or of another format.
    ConversionRefused
        The model cannot be said here; the message has the reason and a cure.
    """
    if source not in READERS:
        raise InputError(f"cannot read models of {source!r}, only those of {' and '.join(READERS)}")
    found = READERS[source](data, where)
    return found if features is None else replace(found, forest=renamed(found.forest, features))


def renamed(forest: Forest, names: Sequence[str]) -> Forest:
    """Return the forest with other names for its features; InputError where they do not fit."""
    if len(names) != forest.n_features:
        raise InputError(
            f"{len(names)} names of features, expected {forest.n_features}: one for each feature of the model"
        )
    for position, name in enumerate(names):
        if not name:
            raise InputError(f"the name of feature {position + 1} is empty")
        if name in names[:position]:
            raise InputError(f"two features have the name {name!r}")
    return replace(forest, feature_names=tuple(names))
