"""What can go wrong in the registry.  The front door maps these classes to exit codes."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Self


class RegistryError(Exception):
    """Base of everything this package raises on purpose."""


class InputError(RegistryError):
    """The caller asked for something that is not there, or handed over something that cannot be registered."""

    @classmethod
    def unknown(cls, what: str, name: str, known: Iterable[str], cure: str = "none is there yet") -> Self:
        """Build the error for ``name`` that is none of ``known``: the nearest spelling, all of them, or the cure."""
        choices = list(known)
        near = get_close_matches(name, choices, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(choices)}" if choices else cure
        return cls(f"unknown {what} {name!r}; {hint}")


class InvalidName(InputError):
    """A name of a model or alias, or a reference built of them, breaks the rules of ``rankmill.registry.names``."""


class UnknownModel(InputError):
    """There is no such model, or it has no such version or alias."""


class PromotionRefused(RegistryError):
    """A gate did not pass: the version stays registered and the alias stays where it was."""


class ConflictError(RegistryError):
    """Another writer was faster: nothing was written; look again and decide anew."""


class IntegrityError(RegistryError):
    """What lies on disk is damaged, incomplete or of another format number."""


class LaterEntry(IntegrityError):
    """An entry of a log is as it was written, and says what this version of rankmill does not know."""
