"""What an alias should mean next.  Pure decisions on a state: `registry.log.Log.commit` asks them and writes."""

from __future__ import annotations

from types import EllipsisType

from registry.errors import ConflictError, UnknownModel
from registry.log import Entry, Move, State

Expected = int | None | EllipsisType
"""What an alias must mean before it moves: a version, None for nothing yet, ``...`` for anything."""


def check_version(name: str, state: State, version: int) -> None:
    """Raise UnknownModel if the model has no such version."""
    if version not in state.versions:
        last = len(state.versions)
        have = "is version 1" if last == 1 else f"are versions 1 to {last}"
        raise UnknownModel(f"{name} has no version {version}; there {have}")


def promote(name: str, state: State, alias: str, version: int, expect: Expected = ...) -> Move | Entry:
    """Let ``alias`` mean ``version``; the entry that stands already if it does.

    Raises
    ------
    UnknownModel
        There is no such version.
    ConflictError
        ``alias`` does not mean what was expected.
    """
    check_version(name, state, version)
    current = state.target(alias)
    check_expected(name, alias, current, expect)
    if current == version:
        return state.moves[alias][-1]
    return Move(op="promote", alias=alias, version=version, previous=current)


def rollback(name: str, state: State, alias: str, to: int | None, expect: Expected = ...) -> Move | Entry:
    """Let ``alias`` mean ``to`` again; by default the last version it meant that differs from the present one.

    After a promotion this undoes it; a second one comes back, since the last different version is then the one left.

    Raises
    ------
    UnknownModel
        The alias was never set, never meant anything else, or never meant ``to``.
    ConflictError
        ``alias`` does not mean what was expected.
    """
    current = state.target(alias)
    check_expected(name, alias, current, expect)
    if current is None:
        raise UnknownModel.unknown(f"alias of {name}", alias, state.moves, cure="nothing was promoted yet")
    been = [move.change.version for move in state.moves[alias]]
    earlier = [version for version in been if version != current]
    if to is None and not earlier:
        raise UnknownModel(f"{name}@{alias} has only ever meant version {current}; there is nothing to go back to")
    if to is not None and to not in been:
        check_version(name, state, to)
        raise UnknownModel(f"{name}@{alias} has never meant version {to}; promote {name}@{to} instead")
    if to == current:
        return state.moves[alias][-1]
    return Move(op="rollback", alias=alias, version=earlier[-1] if to is None else to, previous=current)


def check_expected(name: str, alias: str, current: int | None, expect: Expected) -> None:
    """Raise ConflictError if the alias does not mean what the caller believes."""
    if expect is not ... and current != expect:
        raise ConflictError(
            f"{name}@{alias} is {_said(current)}, expected {_said(expect)}; look at the log and decide anew"
        )


def _said(version: int | None) -> str:
    return "not set" if version is None else f"version {version}"
