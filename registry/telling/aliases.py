"""What the aliases of a model mean and meant, and how they are protected."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from rankmill.foundation.errors import InputError, UnknownModel
from rankmill.registry.history.changes import Policy
from rankmill.registry.manifest import first_fault
from rankmill.registry.names import check_alias
from rankmill.registry.telling.sentences import policy_text, time_text

if TYPE_CHECKING:
    from rankmill.registry.registry import Registry

LATEST_MOVES = 20

HEADER = ["alias", "version", "since (UTC)", "by", "protection", "versions before, oldest first"]


def report_of(store: Registry, name: str, alias: str | None = None) -> dict[str, Any]:
    """Return ``alias``, or every one that was ever set or protected, as JSON values; of the moves of each the last 20.

    Raises
    ------
    UnknownModel
        There is no such model, or it has no such alias.
    """
    state = store.state(name)
    known = sorted({*state.moves, *state.policies, *store.protected})
    if alias is not None and check_alias(alias) not in known:
        raise UnknownModel.unknown(f"alias of {name}", alias, known, cure="nothing was promoted yet")
    found = []
    for each in known if alias is None else [alias]:
        policy, moves = store.policy(state, each), state.moves.get(each, [])
        history = []
        for move in moves[-LATEST_MOVES:]:
            entry = store.entry(name, move.entry)
            told = {"entry": entry.number, "version": move.version, "op": entry.change.op}
            history.append(told | {key: getattr(entry, key) for key in ("time", "actor", "host", "reason")})
        found.append(
            {
                "alias": each,
                "version": state.target(each),
                "protected": policy is not None,
                "policy": None if policy is None else policy.model_dump(mode="json"),
                "moves": len(moves),
                "history": history,
            }
        )
    return {"name": name, "aliases": found}


def rows_of(report: Mapping[str, Any]) -> list[list[str]]:
    """Return a row under `HEADER` for each alias of a report."""
    rows = []
    for each in report["aliases"]:
        history = each["history"]
        last = history[-1] if history else None
        before = [_version(move["version"]) for move in history[:-1]]
        more = ["..."] if each["moves"] > len(history) else []
        rows.append(
            [
                each["alias"],
                _version(each["version"]),
                "" if last is None else time_text(last["time"]),
                "" if last is None else f"{last['actor']} on {last['host']}",
                policy_text(None if each["policy"] is None else Policy.model_validate(each["policy"])),
                " ".join([*more, *before]),
            ]
        )
    return rows


def policy_of(terms: Mapping[str, Any]) -> Policy:
    """Return the policy with these terms; InputError if one is no digest."""
    try:
        return Policy(**{name: term for name, term in terms.items() if term is not None})
    except ValidationError as error:
        where, how = error.errors()[0]["loc"], "64 hex digits, such as models gate --json shows"
        if where in {("convention",), ("dataset",)}:
            raise InputError(f"--{where[0]} {terms[str(where[0])]!r}: expected a digest of {how}") from None
        raise InputError(f"--protect: {first_fault(error)}") from None


def _version(number: int | None) -> str:
    return "none" if number is None else str(number)
