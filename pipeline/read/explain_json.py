"""Read unusual lines with Python's JSON parser, and explain what is wrong with a line: its position, or a value."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from rankmill.pipeline.read.batch import shorten
from rankmill.pipeline.read.column_roles import IDS, KEPT, TRUTHS
from rankmill.pipeline.read.json_keys import DEEPEST, FEATURES
from rankmill.pipeline.read.times import TIME

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rankmill.pipeline.read.columns import TableColumns
    from rankmill.pipeline.read.json_keys import Keys

_EXPECTED = {
    "Extra data": "one object a line",
    "Expecting value": "a value",
    "Expecting ',' delimiter": "a comma or a bracket",
    "Expecting ':' delimiter": "a colon",
    "Expecting property name enclosed in double quotes": "a key in double quotes",
    "Illegal trailing comma before end of object": "no comma before the bracket",
    "Illegal trailing comma before end of array": "no comma before the bracket",
    "Unterminated string starting at": "a string that ends on its line",
    "Invalid control character at": "an escape in place of a control character",
}

EXACT = 2**53  # a larger float may stand for another whole number
_MOST_DIGITS = 4000  # Python converts few more; in floating point such a number is infinite
_NOT_DEEPER = f"at most {DEEPEST} brackets in one another"


class LineExplanation(NamedTuple):
    """The problem of a line and its position, counted from 1."""

    column: int
    found: str
    expected: str
    cure: str = ""


class _Pairs(list[tuple[str, Any]]):
    """The keys and values of an object in order, including duplicate keys."""


class Values(NamedTuple):
    """The values of a line, by key."""

    top: Mapping[str, Any]
    features: Mapping[str, Any]
    """Of the object or array ``features``; if the file has none, the same as ``top``."""


def read_line(text: str, columns: TableColumns, keys: Keys) -> Values | LineExplanation:
    """Read the line ``text``, whatever its form, or explain its problem."""
    found = _parsed(text)
    if isinstance(found, LineExplanation):
        return found
    for explanation in _problems(text, found, columns, keys):
        return explanation
    top = dict(found)
    if keys.form == "flat":
        return Values(top, top)
    return Values(top, dict(top[FEATURES] if keys.form == "object" else zip(keys.features, top[FEATURES], strict=True)))


def explain(text: str, columns: TableColumns, keys: Keys) -> LineExplanation:
    """Explain the problem of the line ``text``, which is not one object; what Python can read is nested too deeply."""
    found = read_line(text, columns, keys)
    return found if isinstance(found, LineExplanation) else LineExplanation(1, _word(text), _NOT_DEEPER)


def _parsed(text: str) -> _Pairs | LineExplanation:
    if not text.startswith("{"):
        cure = "write one object a line instead of an array" if text.startswith("[") else ""
        return LineExplanation(1, _word(text), "an object: {..}", cure)
    try:
        found: _Pairs = json.loads(text, object_pairs_hook=_Pairs, parse_int=_whole)
    except json.JSONDecodeError as error:
        expected = _EXPECTED.get(error.msg, f"JSON ({error.msg})")
        cure = "" if text[error.pos :].strip() else "an object must end on its line"
        return LineExplanation(error.pos + 1, _word(text[error.pos :]), expected, cure)
    except RecursionError:
        return LineExplanation(1, _word(text), _NOT_DEEPER)
    except ValueError as error:
        return LineExplanation(1, _word(text), f"JSON ({error})")
    return found


def _whole(digits: str) -> float:
    return -0.0 if digits == "-0" else int(digits) if len(digits) <= _MOST_DIGITS else float(digits)


def place_of(text: str, key: str, start: int = 0) -> int:
    """Return the character position, from 1, of ``key`` in ``text`` after ``start``; 1 if it is not found literally."""
    match = re.compile(re.escape(json.dumps(key, ensure_ascii=False)) + r"\s*:").search(text, start)
    return match.start() + 1 if match else 1


def _problems(text: str, pairs: _Pairs, columns: TableColumns, keys: Keys) -> Iterator[LineExplanation]:
    parts = {key: part for part, key in columns.column_of.items()}
    features = frozenset(columns.features)
    seen: set[str] = set()
    for key, value in pairs:
        nested = keys.form != "flat" and key == FEATURES
        if not nested and key not in parts and (keys.form != "flat" or key not in features):
            continue
        at = place_of(text, key)
        if key in seen:
            yield LineExplanation(place_of(text, key, at), key, "each key once")
        seen.add(key)
        if nested:
            yield from _nested_problems(text, value, columns, keys, at)
        else:
            yield from _value_problems(parts.get(key, ""), key, value, columns, at)
    if keys.form != "flat" and FEATURES not in seen:
        yield LineExplanation(
            1, "", f"{_form_of(keys)} at {FEATURES!r}", "every row must have its features in this key"
        )


def _nested_problems(text: str, value: Any, columns: TableColumns, keys: Keys, at: int) -> Iterator[LineExplanation]:
    expected = f"{_form_of(keys)} at {FEATURES!r}"
    if keys.form == "object" and isinstance(value, _Pairs):
        seen: set[str] = set()
        for key, number in value:
            if key in columns.features:
                place = place_of(text, key, at)
                if key in seen:
                    yield LineExplanation(place_of(text, key, place), key, "each key once")
                seen.add(key)
                yield from _value_problems("", key, number, columns, place)
    elif keys.form == "array" and isinstance(value, list) and not isinstance(value, _Pairs):
        if len(value) != len(keys.features):
            yield LineExplanation(at, f"{len(value)} values", expected, "the first row says how many there are")
        numbers = replace(columns, categorical=frozenset())  # text has no place in an array of numbers
        for name, number in zip(keys.features, value, strict=False):
            yield from _value_problems("", name, number, numbers, at)
    else:
        yield LineExplanation(at, "" if value is None else shown(value), expected)


def _value_problems(part: str, key: str, value: Any, columns: TableColumns, at: int) -> Iterator[LineExplanation]:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    whole = number and (isinstance(value, int) or (value.is_integer() and abs(value) < EXACT))
    text = isinstance(value, str)
    if value is None:
        return
    if part in IDS:
        good, expected = text or whole, "text or a whole number"
    elif part.startswith(KEPT):
        good, expected = text or number or isinstance(value, bool), "text or a number"
    elif part in columns.graded:
        good, expected = text or number or isinstance(value, bool), "a number or a word"
    elif part == TIME:
        good, expected = text or whole, "a time: ISO text or whole seconds since 1970"
    elif not part and key in columns.categorical:
        good, expected = text or number or isinstance(value, bool), "a category: text or a number"
    else:
        truth = isinstance(value, bool) and (not part or part in TRUTHS)
        good, expected = number or truth, "a number"
    exact = part in {*IDS, TIME} or (not part and key in columns.categorical)
    if good and whole and not -(2**63) <= value < 2**64 and exact:
        good, expected = False, f"{expected} below 2^64 (longer ones as text)"
    if good and text and not _is_unicode(value):
        good, expected = False, "text without half a surrogate pair"
    if not good:
        cure = "" if part else columns.cure_of_cell(key, "make it null", text=text)
        yield LineExplanation(at, shown(value), f"{expected} as {key!r}", cure)


def _form_of(keys: Keys) -> str:
    return "an object of numbers" if keys.form == "object" else f"an array of {len(keys.features)} numbers"


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def shown(value: Any) -> str:
    """Format a value for an error message."""
    if isinstance(value, (_Pairs, dict)):
        return "an object"
    if isinstance(value, list):
        return "an array"
    return shorten(json.dumps(value))


def _word(text: str) -> str:
    words = text.split(maxsplit=1)
    return shorten(words[0]) if words else ""
