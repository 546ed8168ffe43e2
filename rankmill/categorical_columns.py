"""Categorical columns of arrays and frames: texts, dictionaries and whole numbers become codes (`rankmill.pipeline.categories`).

A category is known by its text: a text is itself, a whole number its decimal digits, True 1 and False 0.  None, NaN, pandas.NA
and the empty text are missing.  A column of float32 keeps its values: they are codes, as datasets store them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from numbers import Integral, Real
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rankmill.foundation.errors import TrainingDataRejected
from rankmill.pipeline.binspec import BinSpec
from rankmill.pipeline.categories import CODE, LARGEST_WHOLE, category_code, category_codes, code_name, is_number
from rankmill.pipeline.sources.batch import shorten
from rankmill.scorer.forest import Forest

Codes = npt.NDArray[np.float32]
Coded = tuple[Codes, frozenset[str]]
"""The codes of a column, (n,), NaN where missing, and the texts of its categories that are not numbers."""


def codes_of_texts(name: str, column: Any) -> Coded:
    """Return the codes of ``column``: an Arrow array or dictionary, or objects of several types, (n,).

    Raises
    ------
    TrainingDataRejected
        A value is neither a text nor a number.
    """
    if isinstance(column, np.ndarray):
        texts = [category_text(name, value) for value in column.tolist()]
        return category_codes(texts), _words(texts)
    whole = _encoded(column)
    texts = [category_text(name, value) for value in whole.dictionary.to_pylist()]
    codes = np.append(category_codes(texts), CODE(np.nan))
    return codes[whole.indices.cast(pa.int64()).fill_null(len(texts)).to_numpy()], _words(texts)


def codes_of_numbers(name: str, column: Any) -> Coded:
    """Return the codes of ``column``, numbers or truth values in an Arrow array (n,).

    Raises
    ------
    TrainingDataRejected
        A number is not whole, and its type is not that of codes, float32.
    """
    if pa.types.is_float16(column.type) or pa.types.is_float32(column.type) or pa.types.is_null(column.type):
        chunks = column.cast(pa.float32())
        codes: Codes = chunks.to_numpy(**({} if isinstance(chunks, pa.ChunkedArray) else {"zero_copy_only": False}))
        return codes + CODE(0.0), frozenset()  # 0.0 instead of -0.0
    whole = _encoded(column)
    for value in whole.dictionary.to_pylist():
        if isinstance(value, float | Decimal) and value == value and value % 1 != 0:  # noqa: PLR0124 - NaN is missing
            raise TrainingDataRejected(
                f"column {name!r}: expected whole numbers as categories, found {value}; give them as text, or as float32 if"
                " they are codes of a dataset"
            )
    return codes_of_texts(name, whole)


def _encoded(column: Any) -> Any:
    """Return an Arrow column as one dictionary array."""
    if isinstance(column, pa.ChunkedArray):
        column = column.unify_dictionaries().combine_chunks()
    return column.dictionary_encode()


def category_text(name: str, value: object) -> str | None:
    """Return the text of the category ``value`` of the column ``name``; None if it is missing.

    >>> [category_text("brand", value) for value in ("acme", 17, 17.0, True, 2.5, "", None, float("nan"))]
    ['acme', '17', '17', '1', '2.5', None, None, None]
    """
    if isinstance(value, str):
        return str.__str__(value) or None
    if is_missing(value):
        return None
    if isinstance(value, bool | np.bool_ | Integral):
        return str(int(value))
    if isinstance(value, Real | Decimal):
        plain = Decimal(repr(float(value)) if isinstance(value, Real) else value)
        return str(int(plain)) if plain.is_finite() and plain == plain.to_integral_value() else str(plain.normalize())
    raise TrainingDataRejected(
        f"column {name!r}: expected a text or a number as category, found {shorten(str(value))!r}"
    )


def is_missing(value: object) -> bool:
    """Whether ``value`` is None, NaN, pandas.NA or their like."""
    try:
        return value is None or bool(value != value)  # noqa: PLR0124 - NaN and its like are not themselves
    except (TypeError, ValueError):  # pandas.NA has no truth value
        return True


def _words(texts: Iterable[str | None]) -> frozenset[str]:
    return frozenset(text for text in texts if text is not None and not is_number(text))


def with_names(spec: BinSpec, texts: Mapping[str, Collection[str]]) -> BinSpec:
    """Return ``spec`` with the names of its categories; ``texts`` has those of the categorical features that are not numbers."""
    features = []
    for feature in spec.features:
        words = {category_code(text): text for text in sorted(texts.get(feature.name, ()), reverse=True)}
        codes = feature.edges.tolist()
        names = tuple(code_name(code, words) for code in codes) if words.keys() & set(codes) else ()
        features.append(replace(feature, names=names))
    return replace(spec, features=tuple(features))


def known_texts(forest: Forest) -> dict[str, Sequence[str]]:
    """Return the categorical features with the texts that ``forest`` knows; without any if it knows numbers, too."""
    cuts = dict(zip(forest.feature_names, np.diff(forest.cut_starts).tolist(), strict=True))
    return {name: texts if len(texts) == cuts[name] else () for name, texts in forest.categories.items()}


def check_numbers(name: str, codes: Codes, known: Sequence[str]) -> None:
    """Refuse whole numbers for a feature with only ``known`` texts: none of them could ever be a known category.

    Raises
    ------
    TrainingDataRejected
        There are such numbers and no others.
    """
    present = codes[~np.isnan(codes)]
    whole = (np.abs(present) <= LARGEST_WHOLE) & (present == np.trunc(present))
    if len(present) and whole.all() and known and not any(text.lstrip("-").isdecimal() for text in known):
        raise TrainingDataRejected(
            f"column {name!r} holds numbers such as {code_name(float(present[0]))}, but the ranker knows categories such as"
            f" {shorten(known[0])!r}; give the texts that it was fitted on (numbers that are meant: as text)"
        )
