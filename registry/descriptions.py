"""What ``models list``, ``alias`` and ``show`` say of versions and aliases.

The registry requires few facts in a manifest and knows nothing about trees.  Facts that `rankmill train` adds are
formatted if present; unknown facts are shown as they are.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from rankmill.foundation.errors import InputError, RankmillError, UnknownModel
from rankmill.foundation.options import DEFAULTS, with_option_names
from rankmill.foundation.shown import shown_in_line
from rankmill.registry.archive import ORIGIN, Origin
from rankmill.registry.names import check_alias
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
from rankmill.registry.stored_records import AliasPolicy, GateRecord, first_fault

if TYPE_CHECKING:
    from rankmill.registry.model_registry import Registry
    from rankmill.registry.model_state import State
    from rankmill.registry.stored_records import Entry
    from rankmill.registry.version import Version

LATEST_VERSIONS = 20


def chosen(state: State, tags: Mapping[str, str], *, every: bool) -> list[int]:
    """Return the versions to show: the last 20 and those with an alias, or all.

    ``tags`` keeps only those that have these tags.
    """
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


MOVE_FACTS = ("time", "actor", "host", "reason")
ALIASES_HEADER = ["alias", "version", "since (UTC)", "by", "protection", "versions before, oldest first"]


def alias_row(found: dict[str, Any]) -> list[str]:
    """Return a row under `ALIASES_HEADER` for what `alias_histories` returns of an alias."""
    last = found["history"][-1] if found["history"] else None
    before = [_version(move["version"]) for move in found["history"][:-1]]
    return [
        found["alias"],
        _version(found["version"]),
        "" if last is None else time_text(last["time"]),
        "" if last is None else f"{last['actor']} on {last['host']}",
        policy_text(found["policy"]),
        " ".join([*(["..."] if found["moves"] > len(found["history"]) else []), *before]),
    ]


def alias_histories(store: Registry, name: str, alias: str | None = None) -> list[dict[str, Any]]:
    """Return ``alias``, or every alias that was ever set or protected: its version and policy, and its last 20 moves.

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
        history = [
            {"entry": e.number, "version": v, "op": e.change.op} | {key: getattr(e, key) for key in MOVE_FACTS}
            for v, e in last
        ]
        facts = {"alias": each, "version": state.target(each), "protected": policy is not None, "policy": policy}
        found.append(facts | {"moves": len(moves), "history": history})
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


LATEST_MOVES = 20
MOST_NAMES = 8
CIRCUMSTANCES = "circumstances"  # the attachment with facts of a training that do not determine the bytes of the model

Row = list[str]


class VersionDetails:
    """The details of ``version``; the constructor reads everything, so that later methods do not fail.

    Raises
    ------
    IntegrityError
        The manifest, an entry or a gate report is damaged.  Damaged model bytes are reported in ``fault``.
    """

    def __init__(self, store: Registry, version: Version) -> None:
        self.version, self.facts = version, version.manifest
        state = version.state
        self.neighbours = {
            "before": [n for n in (version.number - 1,) if n],
            "after": [n for n in (version.number + 1,) if n in state.versions],
            "same_bytes": [
                n for n, row in state.versions.items() if row.model == version.sha256 and n != version.number
            ],
        }
        self.moves = self._moves()
        self.policies = {alias: store.policy(state, alias) for alias in version.aliases}
        self.gates = [
            (alias, entry, store.gate_report(version.name, entry.number)) for alias, entry in version.gates.items()
        ]
        self.fault = self._fault()
        self.attachments = {name: version.attachment(name) or b"" for name in sorted(version.row.attachments)}
        self.circumstances = _json_object(self.attachments.get(CIRCUMSTANCES))
        self.origin = Origin.of(self.attachments.get(ORIGIN))

    def to_json(self) -> dict[str, object]:
        """Return all details as JSON values."""
        version = self.version
        return version.to_json() | {
            "manifest_sha256": version.manifest_sha256,
            "entry": version.row.entry,
            "moves": [entry_json(entry) for entry in version.moves.values()],
            "history": [entry_json(entry) for entry in self.moves],
            "policies": self.policies,
            "gates": [
                {"alias": alias, "entry": entry_json(entry), "report": report} for alias, entry, report in self.gates
            ],
            "versions": self.neighbours,
            "attachments": {
                name: {"sha256": version.row.attachments[name], "size": len(data)}
                for name, data in self.attachments.items()
            },
            "circumstances": self.circumstances,
            "origin": self.origin and self.origin.model_dump(mode="json", exclude_unset=True),
            "bytes": {
                "there": self.fault is None and version.swept_in is None,
                "fault": self.fault,
                "marked_in": version.marked_in,
                "swept_in": version.swept_in,
            },
        }

    def rows(self) -> list[Row]:
        """Return table rows of a heading and a text: known things first, then all other facts as they are."""
        version, near = self.version, self.neighbours
        beside = [f"after {n}" for n in near["before"]] + [f"before {n}" for n in near["after"]] or ["the only one"]
        beside += [f"the same model as {', '.join(map(str, near['same_bytes']))}"] if near["same_bytes"] else []
        sizes = [f"{name}: {size_text(len(data))}" for name, data in self.attachments.items()]
        names = self.facts["features"]
        few = names if len(names) <= MOST_NAMES else [*names[: MOST_NAMES - 2], "...", names[-1]]
        lines = {
            "registered": [author_text(version.registered)],
            "imported from": [] if self.origin is None else self.origin.lines(),
            "versions": [", ".join(beside)],
            **{alias: [self._since(alias, move)] for alias, move in version.moves.items()},
            "moves": [entry_line(entry) for entry in self.moves],
            "gate": [line for gate in self.gates for line in _gate_lines(*gate)],
            "tags": [lines_of(version.tags)] if version.tags else [],
            "bytes": [self._bytes()],
            "sha256": [version.sha256],
            "file": [str(version.model_path)],
            "features": [shown_in_line(f"{len(names)}: {', '.join(few)}")],
            "parameters": self._parameter_lines(),
            "attachments": [", ".join(sizes)] if sizes else [],
            CIRCUMSTANCES: [lines_of(self.circumstances)] if self.circumstances else [],
        }
        rows = [[name, "\n".join(text)] for name, text in lines.items() if text]
        return rows + [[shown_in_line(key), lines_of(value)] for key, value in self.facts.items() if key not in lines]

    def _since(self, alias: str, move: Entry) -> str:
        policy = self.policies[alias]
        return f"since {author_text(move)}" + ("" if policy is None else f" (protected: {policy_text(policy)})")

    def _moves(self) -> list[Entry]:
        """Read the newest entries that moved an alias to or from this version; oldest first."""
        numbers = set()
        for moves in self.version.state.moves.values():
            for i, move in enumerate(moves):
                if self.version.number in {move.version, moves[i - 1].version if i else None}:
                    numbers.add(move.entry)
        return [self.version.log.read(number) for number in sorted(numbers)[-LATEST_MOVES:]]

    def _fault(self) -> str | None:
        try:
            if self.version.swept_in is None:
                self.version.read()
        except (RankmillError, OSError) as error:
            return str(error)
        return None

    def _bytes(self) -> str:
        version = self.version
        size = f"{size_text(version.size)} ({version.size:,} bytes)"
        if version.swept_in is not None:
            return f"{size}, swept in entry {version.swept_in} of the log: the model can no longer be used"
        marked = "" if version.marked_in is None else f", to be swept (marked in entry {version.marked_in} of the log)"
        return size + (", complete and undamaged" if self.fault is None else f", DAMAGED: {self.fault}") + marked

    def _parameter_lines(self) -> list[str]:
        """Return those that were changed, and the seed; all if it is unknown which were."""
        parameters, changed = with_option_names(self.facts["parameters"]), self.facts.get("changed_parameters")
        shown = parameters
        if isinstance(changed, list):
            shown = {name: parameters[name] for name in dict.fromkeys([*changed, "seed"]) if name in parameters}
        rest = len(parameters.keys() - shown.keys() - {"preset"})
        more = [f"and {rest} others with their defaults ({parameters.get('preset', DEFAULTS)})"] if rest else []
        return [*([lines_of(shown)] if shown else []), *more] or ["none"]


def _json_object(data: bytes | None) -> dict[str, Any] | None:
    """Read an attachment; None if it is missing or something else."""
    with suppress(ValueError):
        found = None if data is None else json.loads(data)
        return found if isinstance(found, dict) else None
    return None


def _gate_lines(alias: str, entry: Entry, report: Mapping[str, Any]) -> Iterator[str]:
    """Describe a gate result, with the reasons of a refusal."""
    assert isinstance(entry.change, GateRecord)  # noqa: S101 (for the type checker)
    yield shown_in_line(f"{alias}, entry {entry.number}: {verdict_of(entry.change)}; by {entry.actor}")
    reasons = report.get("reasons")
    yield from (f"  {shown_in_line(str(reason))}" for reason in (reasons if isinstance(reasons, list) else []))
