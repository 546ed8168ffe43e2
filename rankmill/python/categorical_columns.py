"""Categorical columns of arrays and frames become codes.

The rules are those of ingest (`rankmill.pipeline.bins.categories`).
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain, pairwise
from numbers import Integral
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rankmill.foundation.errors import TrainingDataRejected
from rankmill.pipeline.bins.categories import LARGEST_WHOLE, category_codes
from rankmill.pipeline.bins.spec import BinSpec
from rankmill.pipeline.bins.vocabulary import Vocabulary
from rankmill.pipeline.read.batch import shorten
from rankmill.pipeline.read.role_columns import category_numbers
from rankmill.scorer.forest.forest import Forest
from rankmill.scorer.models.loading import parts_of
from rankmill.scorer.models.model import Model
from rankmill.scorer.nets.net import Net

Codes = npt.NDArray[np.float32]
Texts = Mapping[str, float]
"""The codes of the texts that are not their own codes."""


def codes_of(name: str, column: Any) -> tuple[Codes, Texts]:
    """Return the codes of the categories in ``column`` (n,), NaN where missing, and their texts.

    ``column`` is an Arrow array of text, numbers or a dictionary, or an array of objects.  Objects are texts and
    numbers, among which None, NaN, pandas.NA and the empty text are missing.

    Raises
    ------
    TrainingDataRejected
        An object is neither a text nor a number.
    """
    if isinstance(column, np.ndarray):
        column = pa.array([_text(name, value) for value in column.tolist()], pa.string())
    elif isinstance(column, pa.ChunkedArray):
        column = column.unify_dictionaries().combine_chunks()
    return category_numbers(column.cast(pa.string()) if pa.types.is_null(column.type) else column)


def _text(name: str, value: Any) -> str | None:
    if isinstance(value, str):
        return str.__str__(value)
    if is_missing(value):
        return None
    if isinstance(value, bool | np.bool_ | Integral):
        return str(int(value))
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise TrainingDataRejected(
            f"column {name!r}: expected a text or a number as category, found {shorten(str(value))!r}"
        ) from None
    return str(int(number)) if number.is_integer() else str(number)


def is_missing(value: object) -> bool:
    """Whether ``value`` is None, NaN, pandas.NA or their like."""
    try:
        return value is None or bool(value != value)  # noqa: PLR0124 - NaN and its like are not themselves
    except (TypeError, ValueError):  # pandas.NA has no truth value
        return True


def with_names(spec: BinSpec, texts: Mapping[str, Texts]) -> BinSpec:
    """Return ``spec`` with the names of its categories; ``texts`` has those of the categorical features.

    Warns of texts that have the same code.
    """
    vocabulary = Vocabulary()
    vocabulary.texts.update({name: dict(found) for name, found in texts.items()})
    for name, same in vocabulary.clashes.items():
        more = f" (and {len(same) - 1} more cases)" if len(same) > 1 else ""
        shown = " and ".join(repr(shorten(text)) for text in same[0])
        warnings.warn(
            f"column {name!r}: {shown} have the same code by chance, and count as one category{more}; rename one of "
            "them",
            UserWarning,
            stacklevel=2,
        )
    features = (replace(feature, names=vocabulary.named(feature.name, feature.edges)) for feature in spec.features)
    return replace(spec, features=tuple(features))


def known_texts(model: Model) -> dict[str, Sequence[str]]:
    """Return the categorical features with the texts that ``model`` knows; without any if it knows numbers, too."""
    if isinstance(model, Forest):
        cuts = dict(zip(model.feature_names, np.diff(model.cut_starts).tolist(), strict=True))
        return {name: texts if len(texts) == cuts[name] else () for name, texts in model.categories.items()}
    if isinstance(model, Net):
        codes = [model.inputs.codes[first:last] for first, last in pairwise(model.inputs.code_starts.tolist())]
        names = [model.feature_names[f] for f in model.inputs.categorical.tolist()]
        return {
            name: texts_alone(codes_of(name, np.array(model.categories[name], dtype=object))[1], known)
            for name, known in zip(names, codes, strict=True)
        }
    found: dict[str, list[Sequence[str]]] = {}
    for part in parts_of(model):
        for name, texts in known_texts(part).items():
            found.setdefault(name, []).append(texts)
    return {name: sorted({*chain(*texts)}) if all(texts) else () for name, texts in found.items()}


def texts_alone(texts: Texts, codes: Codes) -> Sequence[str]:
    """Return ``texts`` if all of the ``codes`` (n,) are theirs; else nothing."""
    own = np.array([*texts.values()], dtype=np.float32)
    return [*texts] if np.isin(codes[~np.isnan(codes)], own).all() else ()


def check_numbers(name: str, codes: Codes, known: Sequence[str], *, are_codes: bool) -> None:
    """Refuse a column of numbers for a feature whose ``known`` texts include no number.

    It could have no known category.

    ``are_codes``: numbers other than whole ones stand for texts; a warning says if all of them are unknown.

    Raises
    ------
    TrainingDataRejected
        The feature and the ``codes`` of the column are like that.
    """
    present = codes[~np.isnan(codes)]
    numbers = not are_codes or bool(((np.abs(present) <= LARGEST_WHOLE) & (present == np.trunc(present))).all())
    if len(present) and numbers and known and not any(map(is_number_text, known)):
        raise TrainingDataRejected(
            f"column {name!r} holds numbers, but the ranker knows categories such as {shorten(known[0])!r}; give the "
            "texts that it was fitted on (numbers that are meant: as text)"
        )
    if len(present) and known and not numbers and not np.isin(present, category_codes(known)).any():
        warnings.warn(
            f"column {name!r}: its float32 values are taken for codes of categories, and the ranker knows none of "
            "them; if they are numbers, give them as in fit, as float64 or whole numbers",
            UserWarning,
            stacklevel=2,
        )


def is_number_text(text: str) -> bool:
    """Whether ``text`` is a number.

    >>> is_number_text("1e3"), is_number_text("acme")
    (True, False)
    """
    try:
        float(text)
    except ValueError:
        return False
    return True
