"""What ``models list``, ``alias`` and ``show`` say of versions and aliases: facts as they are in manifests and logs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from rankmill.foundation.errors import InputError, RankmillError, UnknownModel
from rankmill.foundation.options import DEFAULTS, with_option_names
from rankmill.foundation.shown import few, shown_in_line
from rankmill.registry.names import check_alias
from rankmill.registry.promotion import gate_in
from rankmill.registry.rendering import (
    author_text,
    entry_json,
    entry_line,
    flat,
    lines_of,
    policy_text,
    size_text,
    time_text,
    verdict_of,
)
from rankmill.registry.stored_records import AliasPolicy, first_fault

if TYPE_CHECKING:
    from rankmill.registry.model_registry import Registry
    from rankmill.registry.version import Version

VERSIONS_HEADER = ["version", "aliases", "registered (UTC)", "metrics", "size", "sha256"]
ALIASES_HEADER = ["alias", "version", "since (UTC)", "by", "protection"]
LATEST_MOVES = 20
MOST_NAMES = 8
CIRCUMSTANCES = "circumstances"  # the attachment with facts of a training that do not determine the bytes of the model


def version_row(version: Version) -> list[str]:
    """Return a row for `VERSIONS_HEADER`."""
    try:
        metrics = ", ".join(f"{path} {text}" for path, text in flat(version.manifest["metrics"])[:3])
    except RankmillError as error:  # still show the other versions
        metrics = f"DAMAGED: {error}"
    size = size_text(version.size) + ("" if version.swept_in is None else ", swept")
    row = [str(version), ", ".join(version.aliases), time_text(version.row.time), metrics, size]
    return [*map(shown_in_line, row), version.sha256[:12]]


def version_json(version: Version) -> dict[str, object]:
    """Return a version as JSON values; a damaged manifest is None, and ``fault`` is the error."""
    try:
        return version.to_json()
    except RankmillError as error:
        return {"name": version.name, "version": version.number, "sha256": version.sha256, "manifest": None} | {
            "fault": str(error)
        }


def aliases_json(store: Registry, name: str, alias: str | None = None) -> list[dict[str, Any]]:
    """Return ``alias``, or every alias that was ever set or protected: its version, policy and last move.

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
        moved = [entry_json(state.entries[move.entry - 1]) for move in state.moves.get(each, [])[-1:]]
        facts = {"alias": each, "version": state.target(each), "policy": store.policy(state, each)}
        found.append(facts | {"entry": moved[0] if moved else None})
    return found


def alias_row(found: Mapping[str, Any]) -> list[str]:
    """Return a row under `ALIASES_HEADER` for what `aliases_json` returns of an alias."""
    moved = found["entry"]
    version = "none" if found["version"] is None else str(found["version"])
    since = ["", ""] if moved is None else [time_text(moved["time"]), f"{moved['actor']} on {moved['host']}"]
    return [found["alias"], version, *since, policy_text(found["policy"])]


def policy_of(terms: Mapping[str, Any]) -> AliasPolicy:
    """Return the policy with these terms; InputError if a digest is malformed."""
    try:
        return AliasPolicy(**{name: term for name, term in terms.items() if term not in {None, False}})
    except ValidationError as error:
        digests = "digests have 64 hex digits, as in the output of models gate --json"
        raise InputError(f"--protect: {first_fault(error)}; {digests}") from None


def version_details(store: Registry, version: Version) -> dict[str, Any]:
    """Return all that is known of ``version`` as JSON values.

    Raises
    ------
    IntegrityError
        The manifest, an attachment or a gate report is damaged.  Damaged model bytes are reported in ``fault``.
    """
    state, fault = version.state, None
    try:
        if version.swept_in is None:
            version.read()
    except (RankmillError, OSError) as error:
        fault = str(error)
    moves = {
        move.entry
        for trail in state.moves.values()
        for before, move in zip([None, *trail], trail, strict=False)
        if version.number in {move.version, before and before.version}
    }
    attachments = {name: version.attachment(name) or b"" for name in sorted(version.row.attachments)}
    return version.to_json() | {
        "manifest_sha256": version.manifest_sha256,
        "entry": version.row.entry,
        "history": [entry_json(state.entries[number - 1]) for number in sorted(moves)[-LATEST_MOVES:]],
        "policies": {alias: store.policy(state, alias) for alias in version.aliases},
        "gates": [
            {"alias": alias, "entry": entry_json(entry), "report": store.gate_report(version.name, entry.number)}
            for alias, entry in version.gates.items()
        ],
        "attachments": {
            name: {"sha256": version.row.attachments[name], "size": len(data)} for name, data in attachments.items()
        },
        CIRCUMSTANCES: _json_object(attachments.get(CIRCUMSTANCES)),
        "swept_in": version.swept_in,
        "fault": fault,
    }


def detail_rows(version: Version, details: Mapping[str, Any]) -> list[list[str]]:
    """Return rows of a heading and a text for `version_details`: the history in words, other facts as they are."""
    state, facts = version.state, dict(version.manifest)
    health = f"DAMAGED: {details['fault']}" if details["fault"] else "complete and undamaged"
    if version.swept_in is not None:
        health = f"swept in entry {version.swept_in} of the log: the model can no longer be used"
    gates = []
    for gate, (alias, entry) in zip(details["gates"], version.gates.items(), strict=True):
        reasons = gate["report"].get("reasons")
        gates += [f"{alias}, entry {entry.number}: {verdict_of(gate_in(entry))}; by {entry.actor}"]
        gates += [f"  {reason}" for reason in (reasons if isinstance(reasons, list) else [])]
    features = facts.pop("features")
    rows = {
        "registered": author_text(version.registered),
        "aliases": "\n".join(f"{alias}: {policy_text(policy)}" for alias, policy in details["policies"].items()),
        "moves": "\n".join(entry_line(state.entries[entry["number"] - 1]) for entry in details["history"]),
        "gates": "\n".join(map(shown_in_line, gates)),
        "bytes": f"{size_text(version.size)} ({version.size:,} bytes), {health}",
        "sha256": version.sha256,
        "file": str(version.model_path),
        "features": shown_in_line(f"{len(features)}: {few(features, MOST_NAMES)}"),
        "parameters": _parameters(facts.pop("parameters"), facts.get("changed_parameters")),
    }
    others = facts | {name: details[name] for name in ("attachments", CIRCUMSTANCES)}
    rows |= {shown_in_line(name): lines_of(value) for name, value in others.items() if value not in ({}, None)}
    return [[name, text] for name, text in rows.items() if text]


def _parameters(parameters: Mapping[str, Any], changed: object) -> str:
    """Return those that were changed, and the seed; all if it is unknown which were."""
    named = with_option_names(parameters)
    names = [*changed, "seed"] if isinstance(changed, list) else [*named]
    shown = {name: named[name] for name in names if name in named}
    rest = len(named.keys() - shown.keys() - {"preset"})
    more = [f"and {rest} others with their defaults ({named.get('preset', DEFAULTS)})"] if rest else []
    return "\n".join([*([lines_of(shown)] if shown else []), *more]) or "none"


def _json_object(data: bytes | None) -> dict[str, Any] | None:
    """Read an attachment; None if it is missing or something else."""
    with suppress(ValueError):
        found = None if data is None else json.loads(data)
        return found if isinstance(found, dict) else None
    return None
