"""Decide where an alias moves next.

Pure functions of a state; `rankmill.registry.commit_log.CommitLog.commit` writes the result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import EllipsisType

from rankmill.foundation.errors import ConflictError, InputError, IntegrityError, PromotionRefused, UnknownModel
from rankmill.foundation.shown import shown_in_line
from rankmill.registry.model_state import State
from rankmill.registry.names import PRODUCTION
from rankmill.registry.stored_records import AliasPolicy, Entry, GateRecord, Move, Unset

Expected = int | None | EllipsisType
"""The version that an alias must point to before it moves; None: not set; ``...``: any."""


def check_version(name: str, state: State, version: int) -> None:
    """Raise UnknownModel if the model has no such version."""
    if version not in state.versions:
        last = len(state.versions)
        have = "is version 1" if last == 1 else f"are versions 1 to {last}"
        raise UnknownModel(f"{name} has no version {version}; there {have}")


def check_bytes(name: str, state: State, version: int) -> None:
    """Raise UnknownModel if the version does not exist or was swept."""
    check_version(name, state, version)
    if version in state.swept:
        raise UnknownModel(
            f"{name}@{version} was swept in entry {state.swept[version]} of the log: only its manifest and history are"
            " left; train it again, or import it from a bundle"
        )


def promote(
    name: str,
    state: State,
    alias: str,
    version: int,
    expect: Expected,
    *,
    policy: AliasPolicy | None,
    report_of: Callable[[GateRecord], Mapping[str, object]],
    force: bool,
) -> Move | int:
    """Return the change that points ``alias`` at ``version``, or the number of the current entry if it does already.

    ``policy`` is the policy of a protected alias (None: open), ``report_of`` reads the report of a gate result, which
    must agree with it: logs may come from elsewhere.  ``force`` promotes without a passed gate.  Errors are those of
    `rankmill.registry.model_registry.Registry.promote`.
    """
    check_bytes(name, state, version)
    current = state.target(alias)
    check_expected(name, alias, current, expect)
    if current == version:
        return state.moves[alias][-1].entry
    if policy is None:
        return Move(op="promote", alias=alias, version=version, previous=current)
    entry = state.gates.get(version, {}).get(alias)
    gate = None if entry is None else gate_in(entry)
    fault = _fault(state, alias, version, policy, gate)
    if fault is None and entry is not None and gate is not None:
        fault = lapsed(state, alias, entry) or report_fault(state, gate, report_of)
    if fault is None and entry is not None:
        return Move(op="promote", alias=alias, version=version, previous=current, gate=entry.number)
    if force:
        return Move(op="force", alias=alias, version=version, previous=current, waived=shown_in_line(fault or ""))
    failed = gate is not None and not gate.passed  # repeating the gate would not help
    how = f"{'--show' if failed else '--on DATASET'} --alias {alias}{' says why' if failed else ''}"
    raise PromotionRefused(
        f"{name}@{version} is not promoted: {alias} is protected, and {fault};{'' if failed else ' run'}"
        f" rankmill models gate {name}@{version} {how}; or promote with --force, which the log records"
    )


def gate_in(entry: Entry) -> GateRecord:
    """Return the gate result in ``entry``, which has one."""
    assert isinstance(entry.change, GateRecord)  # noqa: S101 (for the type checker)
    return entry.change


def _fault(state: State, alias: str, version: int, policy: AliasPolicy, gate: GateRecord | None) -> str | None:
    """Return why the gate result does not permit this promotion; None if it does."""
    standing = state.standing(alias)
    if gate is None:
        return f"version {version} has no result of the gate for it"
    if not gate.passed:
        return f"version {version} did not pass the gate"
    if gate.model != state.versions[version].model:
        return "the gate measured other bytes"
    if gate.baseline != standing:
        before = "nothing" if gate.baseline is None else _version_text(gate.baseline)
        now = "is" if state.target(alias) == standing else "last was"
        return (
            f"the gate compared with {before}, while {alias} {now} "
            f"{_version_text(standing)}{' now' if now == 'is' else ''}"
        )
    shortfall = policy.shortfall(gate)
    return None if shortfall is None else f"the gate did not measure what the alias asks for: {shortfall}"


def report_fault(state: State, gate: GateRecord, report_of: Callable[[GateRecord], Mapping[str, object]]) -> str | None:
    """Return in what the report of ``gate``, as far as it says, contradicts the entry of the log; None if in nothing.

    ``state`` knows the versions in both.
    """
    try:
        report = report_of(gate)
    except (OSError, IntegrityError) as error:
        return f"the report of the gate cannot be read: {error}"
    row, before = state.versions[gate.version], None if gate.baseline is None else state.versions[gate.baseline]
    expected: dict[str, object] = {
        "passed": gate.passed, "dataset": gate.dataset, "split": gate.split, "metric": gate.metric,
        "margin": gate.margin,
        "convention_sha256": gate.convention, "worse": gate.worse or None,
        "candidate": {"model": row.model, "manifest": row.manifest},
        "baseline": None if before is None else {"model": before.model, "manifest": before.manifest},
    }  # fmt: skip
    if gate.passed:
        expected["reasons"] = []
    for what, wanted in expected.items():
        found = report.get(what)
        if what not in report and not (what == "worse" and "candidate" in report):  # which only says that it is so
            continue
        if isinstance(wanted, dict) and isinstance(found, dict):
            found = {key: found.get(key) for key in wanted}
        if found != wanted:
            return f"the report of the gate says otherwise of {what}: expected {wanted}, found {found}"
    return None


def lapsed(state: State, alias: str, entry: Entry) -> str | None:
    """Return why the gate result in ``entry`` is outdated; None if it is not.

    A first version passes the gate easily.  So removing a protected alias must not make such an old result valid again.
    """
    moves = state.moves.get(alias)
    if gate_in(entry).baseline is not None or not moves or moves[-1].entry < entry.number:
        return None
    return "the gate compared with nothing, while the alias has meant a version since"


def rollback(name: str, state: State, alias: str, to: int | None, expect: Expected = ...) -> Move | int:
    """Return the change that points ``alias`` at ``to`` again; by default at the version before the current one.

    That is `State.before`.  UnknownModel if the alias was never set, never had another target, or never pointed to
    ``to``. InputError without ``to`` after a rollback, as it is not clear whether that is to be undone or an older
    version is wanted.
    """
    current = state.target(alias)
    check_expected(name, alias, current, expect)
    if alias not in state.moves:
        raise _never_set(name, state, alias)
    been = [move.version for move in state.moves[alias] if move.version is not None]
    if to is None:
        to = _before(name, state, alias)
    if to not in been:
        check_version(name, state, to)
        raise UnknownModel(f"{name}@{alias} has never pointed to version {to}; promote {name}@{to} instead")
    if to == current:
        return state.moves[alias][-1].entry
    check_bytes(name, state, to)
    return Move(op="rollback", alias=alias, version=to, previous=current)


def _before(name: str, state: State, alias: str) -> int:
    """Return the version that a rollback without a target means."""
    moves, current = state.moves[alias], state.target(alias)
    before = state.before(alias)
    cure = f"--to VERSION (rankmill models log {name} lists them)"
    if moves[-1].back:
        older = f"before that it was version {before}" if before else "no earlier version is left"
        raise InputError(
            f"{name}@{alias} was rolled back to version {current} in entry {moves[-1].entry} of the log already; "
            f"{older}; name the version that you want with {cure}"
        )
    if before is None:
        raise UnknownModel(
            f"{name}@{alias} has no earlier version, other than swept ones and those that it was rolled back from; "
            f"name one with {cure}"
        )
    return before


def unset(name: str, state: State, alias: str, expect: Expected = ...) -> Unset | int:
    """Return the change that removes ``alias``, or the number of the current entry if it is removed.

    UnknownModel if it was never set.
    """
    current = state.target(alias)
    check_expected(name, alias, current, expect)
    if alias not in state.moves:
        raise _never_set(name, state, alias)
    if current is None:
        return state.moves[alias][-1].entry
    return Unset(op="unset", alias=alias, previous=current)


def check_expected(name: str, alias: str, current: int | None, expect: Expected) -> None:
    """Raise ConflictError if the alias does not point to the expected version."""
    if expect is not ... and current != expect:
        raise ConflictError(
            f"{name}@{alias} is {_version_text(current)}, expected {_version_text(expect)}; see rankmill models log "
            f"{name}, then decide again"
        )


def _never_set(name: str, state: State, alias: str) -> UnknownModel:
    if alias == PRODUCTION:  # every model may have it, so the name is right
        return UnknownModel(
            f"{name}@{alias} was never set; promote a version first (rankmill models promote {name}@VERSION)"
        )
    return UnknownModel.unknown(f"alias of {name}", alias, state.moves, cure="no version was promoted yet")


def _version_text(version: int | None) -> str:
    return "not set" if version is None else f"version {version}"
