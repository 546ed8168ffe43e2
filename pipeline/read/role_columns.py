"""Parse the columns other than features. The same rules for cell values apply to all file formats.

Judgments, candidates, qrels, preference pairs and ranked lists are tables of such columns; cells are text or typed.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from rankmill.foundation.cures import spelled_with
from rankmill.pipeline.arrow import as_array, parts_of
from rankmill.pipeline.bins.categories import LARGEST_WHOLE, category_code, category_text, is_number
from rankmill.pipeline.read._number_kernels import FEATURE_WORDS, TRUTH
from rankmill.pipeline.read.column_roles import IDS, NUMBERS, OF_DOCUMENTS, OptionalColumn
from rankmill.pipeline.read.grades import UNKNOWN_GRADE, GradeRules
from rankmill.pipeline.read.made_ids import EXPECTED, are_made
from rankmill.pipeline.read.times import NO_TIME, TIME, TIME_RULE, times_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from rankmill.pipeline.read.batch import Mask, Problems

_NUMBER = re.compile(
    r"[+-]?(?:(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:e[+-]?[0-9]+)?|inf|infinity|nan)", re.ASCII | re.IGNORECASE
)
_NOTHING = re.compile(r"(?:[+-]?null)?", re.IGNORECASE)


def read_floats(cells: pa.Array[Any]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
    """Parse strings like Python's ``float()``; surrounding blanks are allowed.

    Returns
    -------
    numbers : (n,) float64
        Correctly rounded; NaN if a cell is empty, ``nan``, ``null`` or not a number.
    bad : (n,) bool
        Which cells are not numbers.

    Examples
    --------
    >>> numbers, bad = read_floats(pa.array(["1.5", " -2e3 ", "", "x", "-inf", "1_0"]))
    >>> numbers.tolist(), bad.tolist()
    ([1.5, -2000.0, nan, nan, -inf, nan], [False, False, False, True, False, True])
    """
    try:
        numbers = cells.cast(pa.float64()).to_numpy(zero_copy_only=False)
    except pa.ArrowInvalid:  # it stops at the first bad cell; Polars continues
        import polars as pl  # imported only if needed: takes 0.2 s and 34 MB

        numbers = pl.Series(cells, dtype=pl.String).cast(pl.Float64, strict=False).to_numpy()
    bad = np.zeros(len(numbers), dtype=np.bool_)
    odd = np.flatnonzero(np.isnan(numbers))
    if len(odd):  # missing, with surrounding blanks, or not a number
        words = cells.take(as_array(odd)).fill_null("").dictionary_encode()
        read = [_read(word) for word in cast("list[str]", words.dictionary.to_pylist())]
        code = words.indices.to_numpy()
        numbers = numbers.copy()
        numbers[odd] = np.array([np.nan if number is None else number for number in read])[code]
        bad[odd] = np.array([number is None for number in read])[code]
    return numbers, bad


def read_finite(cells: pa.Array[Any]) -> npt.NDArray[np.float64]:
    """Parse strings (n,) as numbers; NaN if not a finite number.

    >>> read_finite(pa.array(["1.5", " -2e3 ", "", "x", "nan", "inf"])).tolist()
    [1.5, -2000.0, nan, nan, nan, nan]
    """
    numbers, _ = read_floats(cells)
    return np.where(np.isfinite(numbers), numbers, np.nan)


def _read(word: str) -> float | None:
    """Parse ``word``: NaN if it means missing, None if it is not a number."""
    word = word.strip(" \t")
    if _NUMBER.fullmatch(word):
        number = float(word)
        return np.nan if number != number else number  # noqa: PLR0124  one bit pattern for all NaN
    return np.nan if _NOTHING.fullmatch(word) else None


_GRADES = GradeRules()


def read_parts(
    columns: Mapping[str, pa.Array[Any]],
    problems: Problems,
    *,
    needed: Collection[str] = (),
    rules: GradeRules = _GRADES,
    cure_of_grade: str | None = None,
    goals: Collection[str] = (),
    numbers: Mapping[str, OptionalColumn] = NUMBERS,
) -> dict[str, Any]:
    """Parse the columns of some rows, and find the rows with invalid cells.

    Parameters
    ----------
    columns
        (n,) each, by role: ids (:data:`~rankmill.pipeline.read.column_roles.IDS`), ``grade``, numbers
        (:data:`~rankmill.pipeline.read.column_roles.NUMBERS`) and ``time``, and goals.
    problems
        Receives the invalid rows.
    needed
        The required ids.
    rules, cure_of_grade
        How to read grades, and how to fix an invalid grade if the rules do not say.
    goals
        The roles that are goals.  A row with a grade needs all of them.
    numbers
        The roles with numbers, and their rules.

    Returns
    -------
    dict
        By role: ids as an array of strings, ``grade`` and goals (n,) int32, numbers (n,) float64, ``time`` (n,) int64
        microseconds. Cells of invalid rows are undefined.
    """
    found: dict[str, Any] = {}
    for part in (part for part in (*IDS, "grade", *numbers, TIME) if part in columns):
        column = columns[part]
        if part in IDS:
            found[part], inexact = ids_of(column)
            for row in problems.new(inexact):
                problems.add(
                    row, part, f"{column[row].as_py()} ({column.type})", EXACT_ID, "write ids as text or whole numbers"
                )
            if part in needed:
                offsets, _ = parts_of(found[part])
                good = found[part].is_valid().to_numpy(zero_copy_only=False) & (np.diff(offsets) > 0)
                problems.refuse(~good, part, IDS[part])
            if part in OF_DOCUMENTS:
                for row in problems.new(are_made(found[part]).to_numpy(zero_copy_only=False)):
                    problems.add(row, part, repr(found[part][row].as_py()), EXPECTED)
        elif part == "grade":
            found[part] = _grades(column, problems, part, rules, cure_of_grade)
        elif part == TIME:
            found[part], good = times_of(column)
            for row in problems.new(~good):
                what, cure = ("nothing", NO_TIME) if _is_blank(cell := column[row].as_py()) else (str(cell), "")
                problems.add(row, TIME, what, TIME_RULE, cure)
        else:
            found[part] = _numbers(column, part, problems, numbers[part])
    if goals:
        everywhere = np.ones(len(problems.keep), dtype=np.bool_)
        needed_in = found["grade"] != UNKNOWN_GRADE if "grade" in found else everywhere
        for goal in goals:
            found[goal] = _grades(columns[goal], problems, goal, rules.for_goals, None, needed_in)
    return found


def feature_numbers(column: pa.Array[Any]) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]]:
    """Parse a column of strings as a feature (n,).

    Return the values, NaN if missing, and which cells are not numbers.
    """
    numbers, bad = _with_words(column, FEATURE_WORDS)
    with np.errstate(over="ignore"):
        return numbers.astype(np.float32), bad


def _with_words(
    column: pa.Array[Any], words: Mapping[str, float]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
    """Parse a column of strings as numbers (n,), in which ``words`` of any case are allowed; as :func:`read_floats`."""
    numbers, bad = read_floats(column)
    if bad.any():
        rows = np.flatnonzero(bad)
        cells = pc.ascii_lower(pc.utf8_trim(column.take(as_array(rows)), characters=" \t"))
        known = pc.index_in(cells, value_set=pa.array(list(words))).fill_null(-1).to_numpy()
        rows, known = rows[known >= 0], known[known >= 0]
        if not numbers.flags.writeable:
            numbers = numbers.copy()
        numbers[rows] = np.array(list(words.values()))[known]
        bad[rows] = False
    return numbers, bad


def category_numbers(column: pa.Array[Any]) -> tuple[npt.NDArray[np.float32], dict[str, float]]:
    """Parse a column of categories (n,), text or numbers; each distinct one is coded once.

    Values of float32 are codes already, as datasets store them.

    Returns
    -------
    values : (n,) float32
        The codes (see :mod:`rankmill.pipeline.bins.categories`); NaN for null, an empty text and NaN.
    names : dict
        The codes of the texts that are not their own codes.

    Examples
    --------
    >>> values, names = category_numbers(pa.array(["17", "", "acme", "17.0", None]))
    >>> values[[0, 1, 3, 4]].tolist(), values[2] == np.float32(names["acme"])
    ([17.0, nan, 17.0, nan], np.True_)
    """
    if kinds.is_integer(column.type) or kinds.is_floating(column.type) or kinds.is_boolean(column.type):
        numbers = as_floats(column)
        if kinds.is_float32(column.type):
            return numbers + np.float32(0), {}
        with np.errstate(invalid="ignore"):
            small = (np.abs(numbers) <= LARGEST_WHOLE) & (numbers == np.floor(numbers))
        if (small | np.isnan(numbers)).all():
            return numbers.astype(np.float32) + np.float32(0), {}
    if isinstance(column, pa.DictionaryArray) and len(column.dictionary) > len(column):  # most are not used here
        column = column.cast(column.type.value_type)
    encoded: Any = column if isinstance(column, pa.DictionaryArray) else column.dictionary_encode()
    found = [_category(text) if text else _MISSING for text in _texts(encoded.dictionary)]
    codes = np.array([*(code for _, code in found), np.nan], dtype=np.float32)
    place = encoded.indices.cast(pa.int64()).fill_null(len(found)).to_numpy(zero_copy_only=False)
    used = np.zeros(len(codes), dtype=np.bool_)
    used[place] = True  # a dictionary may have more texts than its rows
    return codes[place], {text: code for (text, code), here in zip(found, used.tolist(), strict=False) if text and here}


_MISSING = ("", float("nan"))


@lru_cache(maxsize=1 << 17)  # for the next batches: hashing a text takes 5 microseconds
def _category(text: str) -> tuple[str, float]:
    """Return the category and its code; it is empty if the category is its own code."""
    code = category_code(text)
    return "" if is_number(text) else category_text(text), code


def _texts(values: pa.Array[Any]) -> list[str | None]:
    """Return categories of any type as texts, those of numbers in decimal; None for null and NaN."""
    if kinds.is_boolean(values.type):
        values = values.cast(pa.int8())  # 1 and 0, as in other features
    if kinds.is_floating(values.type):  # as NumPy writes them: 0.1 in float32, too
        numbers = values.to_numpy(zero_copy_only=False)
        whole = np.isfinite(numbers) & (numbers == np.floor(numbers))
        texts = [f"{x:.0f}" if exact else str(x) for x, exact in zip(numbers, whole.tolist(), strict=True)]
        return [None if np.isnan(x) else text for x, text in zip(numbers, texts, strict=True)]
    return [None if value is None else str(value) for value in values.to_pylist()]


def _grades(
    column: pa.Array[Any],
    problems: Problems,
    part: str,
    rules: GradeRules,
    cure_of_grade: str | None,
    needed_in: Mask | None = None,
) -> npt.NDArray[np.int32]:
    """Return a column (n,) of grades; unknown ones are invalid in the rows ``needed_in`` (n,)."""
    cells: Any
    if are_numbers(column.type) and not kinds.is_boolean(column.type):
        cells = as_floats(column).astype(np.float64)
        grades, bad = rules.resolve_numbers(cells)
    else:
        words = as_strings(column)
        grades, bad = rules.read_words(words)
        cells = words
    if needed_in is not None:
        bad |= needed_in & (grades == UNKNOWN_GRADE)
    if bad.any() and isinstance(cells, pa.Array):
        cells = cells.to_pylist()
    for row in problems.new(bad):
        cell = cells[row]
        nothing = cell is None or cell == "" or cell != cell  # noqa: PLR0124  NaN
        found = "nothing" if nothing else repr(cell) if isinstance(cell, str) else _shown(cell)
        expected, cure = rules.expected(cell)
        problems.add(row, part, found, expected, cure if cure_of_grade is None else cure_of_grade)
    return grades


def _numbers(column: pa.Array[Any], part: str, problems: Problems, rule: OptionalColumn) -> npt.NDArray[np.float64]:
    """Return a column (n,) of numbers."""
    if kinds.is_string(column.type):
        numbers, _ = _with_words(column, TRUTH) if rule.words else read_floats(column)
    else:
        numbers = as_floats(column).astype(np.float64)
    good = rule.fits(numbers)
    for row in problems.new(~good):
        cell = column[row].as_py()
        blank = _is_blank(cell) or (np.isnan(numbers[row]) and not isinstance(cell, str))
        found, cure = (
            ("nothing", rule.if_empty.format(ignored=spelled_with("ignore", [part])))
            if blank
            else (f"{numbers[row]:g}", "")
        )
        problems.add(row, part, found, rule.expected, cure)
    return numbers


def _is_blank(cell: object) -> bool:
    return cell is None or (isinstance(cell, str) and not cell.strip())


def _shown(number: float) -> str:
    """Format ``number`` for a message; whole numbers with all digits."""
    return f"{number:.0f}" if number == np.floor(number) and abs(number) < 1e15 else f"{number:g}"


def are_ids(kind: pa.DataType) -> bool:
    """Whether a column of type ``kind`` can hold ids: strings, or numbers, which must be whole."""
    kind = kind.value_type if isinstance(kind, pa.DictionaryType) else kind
    strings = kinds.is_string(kind) or kinds.is_large_string(kind) or kinds.is_string_view(kind)
    return kinds.is_integer(kind) or kinds.is_decimal(kind) or kinds.is_floating(kind) or strings


def are_numbers(kind: pa.DataType) -> bool:
    """Whether a column of type ``kind`` can hold numbers, or only nulls."""
    exact = kinds.is_integer(kind) or kinds.is_boolean(kind) or kinds.is_decimal(kind)
    return exact or kinds.is_floating(kind) or kinds.is_null(kind)


def are_categories(kind: pa.DataType) -> bool:
    """Whether a column of type ``kind`` can hold categories: strings, numbers but decimals, booleans, or only nulls."""
    kind = kind.value_type if isinstance(kind, pa.DictionaryType) else kind
    return (are_ids(kind) or are_numbers(kind)) and not kinds.is_decimal(kind)


def as_floats(column: pa.Array[Any]) -> npt.NDArray[Any]:
    """Return ``column`` as floats, NaN for null."""
    if not kinds.is_floating(column.type):
        column = column.cast(pa.float64(), safe=False)
    found: npt.NDArray[Any] = column.to_numpy(zero_copy_only=False)
    return found


def as_strings(column: pa.Array[Any]) -> pa.Array[Any]:
    """Return ``column`` of words as strings, without dictionary encoding."""
    if isinstance(column.type, pa.DictionaryType):
        column = column.cast(column.type.value_type)
    return column.cast(pa.string())


EXACT_ID = "a whole number as id, in a float below 2^53 (float32: 2^24)"
_BITS = {16: 11, 32: 24, 64: 53}  # of the significand, by the bits of a float


def ids_of(column: pa.Array[Any]) -> tuple[pa.Array[Any], Mask]:
    """Return ``column`` of ids as strings, and which (n,) may be wrong.

    These are fractions, and numbers that other ids may have been rounded to.

    >>> ids, bad = ids_of(pa.array([1.0, 2.5, None, 2.0**53]))
    >>> ids.to_pylist()[:1], bad.tolist()
    (['1'], [False, True, False, True])
    """
    if isinstance(column.type, pa.DictionaryType):
        column = column.cast(column.type.value_type)
    if kinds.is_floating(column.type):
        numbers = as_floats(column)
        missing = np.isnan(numbers)
        bad: Mask = ~missing & ~(
            (np.abs(numbers) < 2.0 ** _BITS[column.type.bit_width]) & (numbers == np.floor(numbers))
        )
        return pa.array(np.where(bad | missing, 0, numbers).astype(np.int64), mask=missing).cast(pa.string()), bad
    if kinds.is_decimal(column.type):
        texts = pc.replace_substring_regex(column.cast(pa.string()), pattern=r"\.0+$", replacement="")
        whole = pc.match_substring_regex(texts, r"^-?\d+$").fill_null(True)  # noqa: FBT003  Arrow's argument
        return texts, ~whole.to_numpy(zero_copy_only=False)
    return column.cast(pa.string()), np.zeros(len(column), dtype=np.bool_)
