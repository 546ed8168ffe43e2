"""Choose the versions and aliases for a list, and format their rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from rankmill.foundation.errors import InputError, RankmillError, UnknownModel
from rankmill.foundation.shown import shown_in_line
from rankmill.registry.names import check_alias
from rankmill.registry.rendering import flat, policy_text, size_text, time_text
from rankmill.registry.stored_records import AliasPolicy, first_fault

if TYPE_CHECKING:
    from rankmill.registry.model_registry import Registry
    from rankmill.registry.model_state import State
    from rankmill.registry.version import Version

LATEST_VERSIONS = 20


def chosen(state: State, tags: Mapping[str, str], *, every: bool) -> list[int]:
    """Return the versions to show: the last 20 and those with an alias, or all; with ``tags``, only those that have these tags."""
    numbers = [n for n in state.versions if tags.items() <= state.tags.get(n, {}).items()]
    if every:
        return numbers
    live = set(state.set_aliases().values())
    first = numbers[-LATEST_VERSIONS] if len(numbers) > LATEST_VERSIONS else 0
    return [n for n in numbers if n >= first or n in live]


def parse_tags(words: list[str]) -> dict[str, str]:
    """Read ``key=value`` words.

    Raises
    ------
    InputError
        A word is malformed, or a key occurs twice.
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


def version_row(version: Version) -> list[str]:
    """Return a row for `VERSIONS_HEADER`."""
    try:
        metrics = ", ".join(f"{path} {text}" for path, text in flat(version.manifest["metrics"])[:3])
    except RankmillError as error:  # still show the other versions
        metrics = f"DAMAGED: {error}"
    size = size_text(version.size)
    if version.swept_in is not None:
        size += ", swept"
    elif version.marked_in is not None:
        size += ", to be swept"
    tags = ", ".join(f"{key}={value}" for key, value in sorted(version.tags.items()))
    row = [str(version), ", ".join(version.aliases), tags, time_text(version.row.time), metrics, size]
    return [*map(shown_in_line, row), version.sha256[:12]]


VERSIONS_HEADER = ["version", "aliases", "tags", "registered (UTC)", "metrics", "size", "sha256"]


def version_json(version: Version) -> dict[str, object]:
    """Return a version as JSON values; a damaged manifest is None, and ``fault`` is the error."""
    try:
        return version.to_json()
    except RankmillError as error:
        return {"name": version.name, "version": version.number, "sha256": version.sha256, "manifest": None} | {
            "fault": str(error)
        }


LATEST_MOVES = 20

ALIASES_HEADER = ["alias", "version", "since (UTC)", "by", "protection", "versions before, oldest first"]


@dataclass(frozen=True, slots=True)
class AliasMove:
    """An entry of the log that moved an alias."""

    entry: int
    version: int | None
    op: str
    time: str
    actor: str
    host: str
    reason: str


@dataclass(frozen=True, slots=True)
class AliasHistory:
    """The target of an alias, its protection, its number of moves, and the last moves."""

    alias: str
    version: int | None
    protected: bool
    policy: AliasPolicy | None
    moves: int
    history: tuple[AliasMove, ...]

    def row(self) -> list[str]:
        """Return a row under `ALIASES_HEADER`."""
        last = self.history[-1] if self.history else None
        before = [_version(move.version) for move in self.history[:-1]]
        return [
            self.alias,
            _version(self.version),
            "" if last is None else time_text(last.time),
            "" if last is None else f"{last.actor} on {last.host}",
            policy_text(self.policy),
            " ".join([*(["..."] if self.moves > len(self.history) else []), *before]),
        ]


def alias_histories(store: Registry, name: str, alias: str | None = None) -> list[AliasHistory]:
    """Return ``alias``, or every alias that was ever set or protected, with its last 20 moves.

    Raises
    ------
    UnknownModel
        The model or the alias does not exist.
    """
    state = store.state(name)
    known = sorted({*state.moves, *state.policies, *store.protected})
    if alias is not None and check_alias(alias) not in known:
        raise UnknownModel.unknown(f"alias of {name}", alias, known, cure="no version was promoted yet")
    found = []
    for each in known if alias is None else [alias]:
        policy, moves = store.policy(state, each), state.moves.get(each, [])
        last = [(move.version, store.entry(name, move.entry)) for move in moves[-LATEST_MOVES:]]
        history = tuple(AliasMove(e.number, v, e.change.op, e.time, e.actor, e.host, e.reason) for v, e in last)
        found.append(AliasHistory(each, state.target(each), policy is not None, policy, len(moves), history))
    return found


def policy_of(terms: Mapping[str, Any]) -> AliasPolicy:
    """Return the policy with these terms; InputError if a digest is malformed."""
    try:
        return AliasPolicy(**{name: term for name, term in terms.items() if term not in {None, False}})
    except ValidationError as error:
        where, how = error.errors()[0]["loc"], "64 hex digits, as in the output of models gate --json"
        if where in {("convention",), ("dataset",)}:
            raise InputError(f"--{where[0]} {terms[str(where[0])]!r}: expected a digest of {how}") from None
        raise InputError(f"--protect: {first_fault(error)}") from None


def _version(number: int | None) -> str:
    return "none" if number is None else str(number)
