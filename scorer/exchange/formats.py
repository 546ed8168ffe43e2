"""The formats for writing and reading models, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from rankmill.foundation.errors import ConversionRefused, InputError
from rankmill.foundation.options import spelled
from rankmill.scorer.exchange import lightgbm, onnx, solr, xgboost
from rankmill.scorer.exchange.conversion import ConvertedModel, ForeignForest, missing_as_zero
from rankmill.scorer.forest.forest import Forest
from rankmill.scorer.models.loading import kind_of, trees_instead
from rankmill.scorer.models.model import Model

WRITERS: Mapping[str, Callable[[Forest, str], ConvertedModel]] = {
    "lightgbm": lightgbm.write,
    "xgboost": xgboost.write,
    "solr": solr.write,
    "onnx": onnx.write,
}
READERS: Mapping[str, Callable[[bytes, str], ForeignForest]] = {"lightgbm": lightgbm.read, "xgboost": xgboost.read}
MISSING = ("keep", "zero")
ABSENT = ("zero", "missing")


def write_as(
    target: str,
    model: Model,
    *,
    name: str = "model",
    features: Sequence[str] | None = None,
    missing: str = "keep",
    nearest_thresholds: bool = False,
) -> ConvertedModel:
    """Return ``model`` in the format ``target``, one of ``WRITERS``.

    Parameters
    ----------
    name
        Name of the model, in formats that have one.
    features
        Feature names to write, in the model's order; None: those of the model.
    missing
        ``keep`` the direction of missing values, or send them where ``zero`` goes.
    nearest_thresholds
        Use the nearest possible threshold if Solr cannot have the exact one.

    Raises
    ------
    InputError
        The format or the treatment of missing values is unknown, or the names do not fit the model.
    ConversionRefused
        The format cannot express this model; the message has the reason and a cure.
    """
    if target not in WRITERS:
        raise InputError.unknown("format", target, WRITERS)
    if missing not in MISSING:
        raise InputError.unknown("way with missing values", missing, MISSING)
    if nearest_thresholds and target != "solr":
        raise InputError(f"nearest thresholds are only for solr; {target} has exact thresholds")
    if not isinstance(model, Forest):
        raise ConversionRefused(
            f"{target} has only trees, and this is {kind_of(model)}"
            + (trees_instead(model) or "; convert a model of trees (of several, rankmill models merge makes one)")
        )
    forest = model
    if features is not None:
        forest = renamed(forest, features)
    if missing == "zero":
        forest = missing_as_zero(forest)
    if nearest_thresholds:
        return solr.write(forest, name, nearest=True)
    return WRITERS[target](forest, name)


def read_from(
    source: str,
    data: bytes,
    where: str,
    *,
    features: Sequence[str] | None = None,
    n_rounds: int | None = None,
    absent: str | None = None,
) -> ForeignForest:
    """Read ``data``, a model in the format ``source``, one of ``READERS``; ``where`` names it in messages.

    ``features`` are other names for its features, ``n_rounds`` the rounds to keep (None: all).  ``absent`` says what
    features left out of LETOR text were in its training, ``zero`` or ``missing``: text is read in the same way for it.

    Raises
    ------
    InputError
        The format or ``absent`` is unknown, the names do not fit the model, or it has fewer rounds.
    ModelFormatError
        The data are damaged, truncated or of another format.
    ConversionRefused
        A forest cannot express the model; the message has the reason and a cure.
    """
    if source not in READERS:
        raise InputError(f"cannot read models of {source!r}, only those of {' and '.join(READERS)}")
    if absent is not None and absent not in ABSENT:
        raise InputError.unknown("meaning of what is absent", absent, ABSENT)
    found = READERS[source](data, where)
    forest, notes = found.forest, list(found.notes)
    if n_rounds is not None:
        forest = forest.truncated(n_rounds)
    elif found.best_rounds is not None:
        best = found.best_rounds
        notes.insert(
            0,
            f"early stopping found {best} of {forest.n_rounds} rounds best: {spelled('n_rounds')} {best} keeps only "
            "these",
        )
    if absent is not None:
        forest = replace(forest, info={**forest.info, "absent": absent})
    elif source == "xgboost":
        notes.append(
            f"what sparse rows and LETOR text leave out is missing to XGBoost, and zero here: {spelled('absent')} "
            "missing if it read such"
        )
    if features is None:
        notes += _names_of_columns(forest)
    else:
        forest = renamed(forest, features)
    return replace(found, forest=forest, notes=tuple(notes))


def _names_of_columns(forest: Forest) -> Iterator[str]:
    """Yield the names in LETOR text of the features of a model that numbers its columns from 0."""
    names, n = forest.feature_names, forest.n_features
    for prefix in ("f", "Column_"):
        if n and all(name == f"{prefix}{column}" for column, name in enumerate(names)):
            others = f"{spelled('features')} f1..f{n} names them so"
            if 0 in forest.used_features:
                yield (
                    f"its features are columns, the first one {prefix}0; features of LETOR text are f1, f2, ..: "
                    f"{others}"
                )
            elif prefix == "f":
                yield (
                    "no tree asks for f0: if XGBoost has read LETOR text itself, f1, f2, .. are its features here, "
                    f"too; if f0 was the first feature, {others}"
                )
            else:
                yield (
                    f"no tree asks for Column_0: if LightGBM has read LETOR text itself, {spelled('features')} "
                    f"f0..f{n - 1} gives its features their names here; if Column_0 was the first feature, {others}"
                )


def renamed(forest: Forest, names: Sequence[str]) -> Forest:
    """Return the forest with other names for its features; InputError if they do not fit."""
    if len(names) != forest.n_features:
        raise InputError(
            f"{spelled('features')} has {len(names)} name{'s' * (len(names) != 1)}, the model has {forest.n_features} "
            "features; name each of them, in the order of the model"
        )
    seen: set[str] = set()
    for position, name in enumerate(names):
        if not name:
            raise InputError(f"the name of feature {position + 1} is empty")
        if name in seen:
            raise InputError(f"two features have the name {name!r}")
        seen.add(name)
    new = dict(zip(forest.feature_names, names, strict=True))
    categories = {new[name]: texts for name, texts in forest.categories.items()}
    return replace(forest, feature_names=tuple(names), categories=categories)
