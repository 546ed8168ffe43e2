"""What a model read from another tool's file is, and where it came from."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from rankmill.foundation.errors import ModelFormatError
from rankmill.scorer.forest import Forest

CONVERTED_FROM = "converted_from"  # keys of a forest's info
SOURCE_SHA256 = "source_sha256"


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """A forest read from the file of another tool."""

    forest: Forest
    notes: tuple[str, ...] = ()
    """What a user has to know, a line each."""
    best_rounds: int | None = None
    """How many of its rounds early stopping found best, where it has more."""


def provenance(tool: str, data: bytes) -> Mapping[str, str]:
    """Return what the forest's ``info`` says of the file it was read from."""
    return {CONVERTED_FROM: tool, SOURCE_SHA256: hashlib.sha256(data).hexdigest()}


def text_of(data: bytes, where: str, what: str) -> str:
    """Decode ``data``; ModelFormatError where it is no UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ModelFormatError(
            f"{where}: expected {what}, found bytes that are no UTF-8 text at position {error.start}"
        ) from error
