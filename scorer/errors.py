"""What can go wrong while scoring and evaluating.  The front door maps these classes to exit codes."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_NAMED = 20  # choices in a message


class ScorerError(Exception):
    """Base of everything this package raises on purpose."""


class InputError(ScorerError):
    """The caller asked for something that is not there: an unknown metric or policy, a missing file."""

    @classmethod
    def unknown(cls, what: str, name: str, known: Iterable[str]) -> InputError:
        """Build the error for ``name`` that is none of ``known``, with the nearest spelling as a hint."""
        choices = list(known)
        near = [choice for choice in choices if choice.lower() == name.lower()] or get_close_matches(name, choices, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {_some(choices)}"
        return cls(f"unknown {what} {name!r}; {hint}")


class CandidatesRejected(ScorerError):
    """The candidates or scores cannot be used: features that the model needs are lacking, a score is not a number."""


class ConflictError(ScorerError):
    """Somebody else has written, in the meantime, what was to be written."""


class ModelFormatError(ScorerError):
    """Model bytes are of another format number, incomplete or damaged."""


class ConversionRefused(ScorerError):
    """A model cannot be said in the format of another tool, or a model of another tool cannot be said in ours."""


def _some(choices: list[str]) -> str:
    """Name all choices, or the first of very many."""
    more = len(choices) - _NAMED
    return ", ".join(choices) if more <= 0 else f"{', '.join(choices[:_NAMED])} and {more:,} more"
