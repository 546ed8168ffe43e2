"""Which versions of a model a list shows, and what it says of each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rankmill.foundation.errors import InputError, RankmillError
from rankmill.registry.telling.printing import flat, safe, size_text
from rankmill.registry.telling.sentences import time_text

if TYPE_CHECKING:
    from rankmill.registry.history.state import State
    from rankmill.registry.version import Version

LATEST = 20


def chosen(state: State, tags: Mapping[str, str], *, every: bool) -> list[int]:
    """Return the versions to show: the last 20 and those that have an alias, or every one; of them those with ``tags``."""
    numbers = [n for n in state.versions if tags.items() <= state.tags.get(n, {}).items()]
    if every:
        return numbers
    live = set(state.set_aliases().values())
    first = numbers[-LATEST] if len(numbers) > LATEST else 0
    return [n for n in numbers if n >= first or n in live]


def parse_tags(words: list[str]) -> dict[str, str]:
    """Read ``key=value`` words.

    Raises
    ------
    InputError
        A word is none, or a key is there twice.
    """
    tags: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not (key and equals and value):
            raise InputError(f"tag {word!r}: expected key=value, such as owner=search-team")
        if key in tags:
            raise InputError(f"tag {key!r} is given twice")
        tags[key] = value
    return tags


def row_of(version: Version) -> list[str]:
    """Say one version in a row under `HEADER`."""
    try:
        metrics = ", ".join(f"{path} {text}" for path, text in flat(version.manifest["metrics"])[:3])
    except RankmillError as error:  # the other versions are still worth a look
        metrics = f"DAMAGED: {error}"
    size = size_text(version.size)
    if version.swept_in is not None:
        size += ", swept"
    elif version.marked_in is not None:
        size += ", to be swept"
    tags = ", ".join(f"{key}={value}" for key, value in sorted(version.tags.items()))
    row = [str(version), ", ".join(version.aliases), tags, time_text(version.row.time), metrics, size]
    return [*map(safe, row), version.sha256[:12]]


HEADER = ["version", "aliases", "tags", "registered (UTC)", "metrics", "size", "sha256"]


def json_of(version: Version) -> dict[str, Any]:
    """Say one version as JSON values; a damaged manifest is None, and ``fault`` says what is wrong with it."""
    try:
        return version.to_json()
    except RankmillError as error:
        return {"name": version.name, "version": version.number, "sha256": version.sha256, "manifest": None} | {
            "fault": str(error)
        }
