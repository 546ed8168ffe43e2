"""Words for what the log says."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rankmill.registry.history.changes import Gate, Policy
    from rankmill.registry.history.entry import Entry


def entry_json(entry: Entry) -> dict[str, Any]:
    """Give an entry of a log as JSON values, with the digest that names it."""
    return entry.to_json() | {"sha256": entry.digest}


def what_of(entry: Entry) -> str:
    """Say what whoever wrote an entry did: the rest of a sentence that begins with the name."""
    from rankmill.registry.history import changes

    match entry.change:
        case changes.Register() as change:
            return f"registered version {change.version}"
        case changes.Move() as change:
            before = "not set before" if change.previous is None else f"before: {change.previous}"
            gate = "" if change.gate is None else f"; gate: entry {change.gate}"
            if change.op == "rollback":
                return f"rolled {change.alias} back to version {change.version} ({before})"
            if change.op == "promote":
                return f"promoted version {change.version} to {change.alias} ({before}{gate})"
            waived = f", waiving: {change.waived}" if change.waived else ""
            return f"FORCED version {change.version} to {change.alias} ({before}){waived}"
        case changes.Unset() as change:
            return f"took {change.alias} away (before: {change.previous})"
        case changes.Tag() as change:
            if change.value is None:
                return f"took the tag {change.key} from version {change.version}"
            return f"tagged version {change.version}: {change.key}={change.value}"
        case changes.Protect() as change:
            if change.policy is None:
                return f"opened {change.alias}: it moves without a gate"
            return f"protected {change.alias}: {policy_text(change.policy)}"
        case changes.Gate() as change:
            return f"put version {change.version} to the gate for {change.alias}: {verdict_of(change)}"
        case changes.Mark() as change:
            if not change.versions:
                return "took every mark for sweeping away"
            return f"marked to be swept, and nothing else: {_versions(change.versions)}"
        case changes.Sweep() as change:
            return f"swept the bytes of {_versions(change.versions)}"


def stands_out(entry: Entry) -> bool:
    """Whether an entry is one that a reader of the log must not miss: a forced promotion, or a gate that refused."""
    from rankmill.registry.history import changes

    change = entry.change
    return change.op == "force" or (isinstance(change, changes.Gate) and not change.passed)


def verdict_of(gate: Gate) -> str:
    """Say how a version did at the gate, and on what."""
    against = "nothing, a first version" if gate.baseline is None else f"version {gate.baseline}"
    verdict = "PASSED" if gate.passed else "DID NOT PASS"
    on = f"{gate.metric} on {gate.split} of dataset {gate.dataset[:12]}, margin {gate.margin:g}"
    return f"{verdict} against {against} ({on})"


def policy_text(policy: Policy | None) -> str:
    """Say what an alias asks of the gate."""
    if policy is None:
        return "open, it moves without a gate"
    asked = [
        *([] if policy.metric is None else [f"metric {policy.metric}"]),
        *([] if policy.margin is None else [f"a margin of {policy.margin:g} at most"]),
        *([] if policy.convention is None else [f"convention {policy.convention[:12]}"]),
        *([] if policy.dataset is None else [f"dataset {policy.dataset[:12]}"]),
    ]
    return "only a passed gate promotes to it" + (f", with {', '.join(asked)}" if asked else "")


def when_of(entry: Entry) -> str:
    """Say when an entry was written: UTC, to the second."""
    return time_text(entry.time)


def time_text(time: str) -> str:
    """Write the time of an entry to the second."""
    return time[:19].replace("T", " ")


def who_of(entry: Entry) -> str:
    """Say who wrote an entry, and where."""
    return f"{entry.actor} on {entry.host}"


def why_of(entry: Entry) -> str:
    """Say why, as the end of a sentence; nothing where no reason was given."""
    return f": {entry.reason}" if entry.reason else ""


def ranges(numbers: Iterable[int]) -> str:
    """Write whole numbers, runs of them in short.

    >>> ranges([1, 2, 3, 7, 9, 10])
    '1 to 3, 7, 9, 10'
    """
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(
        f"{first} to {last}" if last > first + 1 else ", ".join(map(str, range(first, last + 1)))
        for first, last in runs
    )


def _versions(numbers: tuple[int, ...]) -> str:
    return f"version {numbers[0]}" if len(numbers) == 1 else f"versions {ranges(numbers)}"
