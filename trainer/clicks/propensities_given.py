"""Examination probabilities as the option ``propensities`` takes them: a file of ``clicks fit``, or its numbers."""

from __future__ import annotations

import os
from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from typing import Any

from rankmill.foundation.errors import InvalidParameter
from rankmill.foundation.options import spelled
from rankmill.foundation.scalars import real_number

EXAMINATION, TRUST = "examination", "trust"


def as_propensities(given: Any) -> dict[str, list[float]]:
    """Return examination by rank, and trust if there is some, of a file, of a ``Propensities`` or of a mapping.

    >>> as_propensities({"examination": [1, 0.5]})
    {'examination': [1.0, 0.5]}

    Raises
    ------
    InvalidParameter
        It is none of these, or a number is out of bounds.
    rankmill.foundation.errors.InputError, rankmill.foundation.errors.IntegrityError
        There is no such file, or it is not one of ``clicks fit``.
    """
    if not isinstance(given, Mapping):
        from rankmill.pipeline.judgments.propensities import (
            Propensities,
            read_propensities,
        )  # NumPy, which --help does not need

        if isinstance(given, str | os.PathLike):
            given = read_propensities(Path(given))
        if isinstance(given, Propensities):
            trust = {} if given.trust is None else {TRUST: list(given.trust)}
            given = {EXAMINATION: list(given.examination), **trust}
    name = spelled("propensities")
    if not isinstance(given, Mapping) or not set(given) <= {EXAMINATION, TRUST}:
        raise InvalidParameter(f"{name} must be a file of clicks fit, or {{'examination': [1.0, ..]}}, got {given!r}")
    if not given:
        return {}
    found = {key: [real_number(f"{name}: {key}", value) for value in given[key]] for key in given}
    examination, trust_of = found.get(EXAMINATION, []), found.get(TRUST, [])
    if not examination or not all(isfinite(value) and value > 0.0 for value in examination):
        raise InvalidParameter(f"{name}: expected an examination over 0 of each rank, found {examination}")
    if trust_of and (len(trust_of) != len(examination) or not all(0.0 <= value < 1.0 for value in trust_of)):
        raise InvalidParameter(f"{name}: expected a trust from 0 to 1 of each of the ranks, found {trust_of}")
    return found if any(trust_of) else {EXAMINATION: examination}
