"""Names of models and aliases, and references to versions.  A valid name is safe as a path component."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rankmill.foundation.errors import InvalidName
from rankmill.foundation.storage.location import Location, location

NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
NAME_RULE = "1 to 64 of a-z 0-9 . _ - that begin with a letter or digit"
LATEST = "latest"  # not an alias: the highest version number
PRODUCTION: Final = "production"
FOLDER_VARIABLE = "RANKMILL_REGISTRY"
DEFAULT_FOLDER = Path("registry-data")
MODEL_SUFFIX = ".rankmill"  # an argument with this suffix is a model file


def default_folder() -> Location:
    """Return the default place of the registry: RANKMILL_REGISTRY, else a folder in the working directory."""
    return location(os.environ.get(FOLDER_VARIABLE) or DEFAULT_FOLDER)


def check_name(name: str) -> str:
    """Return ``name``; InvalidName if it is not a valid name of a model."""
    if not NAME.fullmatch(name):
        raise InvalidName(f"model name {name!r}: expected {NAME_RULE}")
    if name.endswith(MODEL_SUFFIX):
        raise InvalidName(f"model name {name!r}: names that end in {MODEL_SUFFIX} are files; remove the suffix")
    return name


def check_alias(alias: str) -> str:
    """Return ``alias``; InvalidName if it is not a valid alias.  Digits alone would be a version number."""
    if not NAME.fullmatch(alias) or alias.isdigit():
        raise InvalidName(f"alias {alias!r}: expected {NAME_RULE}, not digits alone")
    if alias == LATEST:
        raise InvalidName(f"alias {alias!r} always points to the highest version and cannot be moved")
    return alias


def check_tag(key: str, value: str | None) -> None:
    """Raise InvalidName if the key or value of a tag is invalid; None removes a tag."""
    if not NAME.fullmatch(key):
        raise InvalidName(f"tag {key!r}: expected a key of {NAME_RULE}")
    if value is not None and not (value and value.isprintable()):
        raise InvalidName(f"tag {key}: expected one line of printable text, found {value!r}")


@dataclass(frozen=True, slots=True)
class ModelReference:
    """The name of a model and a version number, an alias or ``latest``; None for a bare name."""

    name: str
    selector: int | str | None = None

    @classmethod
    def parse(cls, text: str) -> ModelReference:
        """Read ``NAME``, ``NAME@7``, ``NAME@production`` or ``NAME@latest``.

        Raises
        ------
        InvalidName
            The text is not a valid reference.

        >>> ModelReference.parse("web@7")
        ModelReference(name='web', selector=7)
        >>> ModelReference.parse("web@production").selector, ModelReference.parse("web").selector
        ('production', None)
        """
        name, at, selector = text.partition("@")
        check_name(name)
        if not at:
            return cls(name)
        if re.fullmatch(r"[1-9][0-9]{0,17}", selector):
            return cls(name, int(selector))
        if selector == LATEST:
            return cls(name, LATEST)
        try:
            return cls(name, check_alias(selector))
        except InvalidName:
            raise InvalidName(
                f"{text!r}: expected a version number from 1, an alias or {LATEST!r} after '@', found {selector!r}"
            ) from None

    def __str__(self) -> str:
        return self.name if self.selector is None else f"{self.name}@{self.selector}"
