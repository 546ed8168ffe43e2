"""How an objective and its options are written: ``quantile(alpha=0.9)``."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from difflib import get_close_matches
from typing import Any

from rankmill.foundation.errors import InvalidParameter
from rankmill.foundation.scalars import real_number, text, truth, whole_number

_FORM = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_]*)\s*(?:\((.*)\))?\s*")
_TRUTHS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def parse_spelling(written: str) -> tuple[str, dict[str, str]]:
    """Return the name and the options, each still as it is written; one without a name has the name ``""``.

    >>> parse_spelling("quantile(alpha=0.9)")
    ('quantile', {'alpha': '0.9'})
    >>> parse_spelling("quantile(0.9)"), parse_spelling("l2")
    (('quantile', {'': '0.9'}), ('l2', {}))

    Raises
    ------
    InvalidParameter
        It is written in another form, or an option comes twice.
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
        The objective has no such option, or a value is none that it can take.
    """
    known = [field.name for field in fields(kind)]
    types = {field.name: str(field.type) for field in fields(kind)}
    values: dict[str, Any] = {}
    for name, value in given.items():
        name = name or (known[0] if known else "")  # noqa: PLW2901
        if name not in known or name in values:
            near = get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(known) or 'none'}"
            raise InvalidParameter(f"objective {objective}: unknown option {name or value!r}; {hint}")
        values[name] = _READERS[types[name]](f"{objective}({name})", value)
    try:
        return kind(**values)
    except InvalidParameter as error:
        told = str(error)
        raise InvalidParameter(told if told.startswith(objective) else f"{objective}: {told}") from None


def spelling_of(objective: str, options: Any) -> str:
    """Return the one way to write an objective: its options that differ from their defaults, in their order."""
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
