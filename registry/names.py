"""Names of models and aliases, and references to versions.  A valid name is safe as a path component."""

from __future__ import annotations

import os
import re
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


def parse_reference(text: str) -> tuple[str, int | str | None]:
    """Read ``NAME``, ``NAME@7``, ``NAME@production`` or ``NAME@latest`` as the name and what follows, or None.

    Raises
    ------
    InvalidName
        The text is not a valid reference.

    >>> parse_reference("web@7"), parse_reference("web@production"), parse_reference("web")
    (('web', 7), ('web', 'production'), ('web', None))
    """
    name, at, selector = text.partition("@")
    check_name(name)
    if not at:
        return name, None
    if re.fullmatch(r"[1-9][0-9]{0,17}", selector):
        return name, int(selector)
    try:
        return name, selector if selector == LATEST else check_alias(selector)
    except InvalidName:
        raise InvalidName(
            f"{text!r}: expected a version number from 1, an alias or {LATEST!r} after '@', found {selector!r}"
        ) from None
