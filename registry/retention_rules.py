"""Decide which versions of a model may be swept: a pure function of the state of its log.

Two phases.  What nothing keeps is *marked*; what is still marked and still kept by nothing a time of grace later is
*swept*.  Both are entries of the log, decided on the state before them, so a promotion and a sweep cannot pass each
other: of two that write the same number one is decided anew.  Whoever promotes, tags or leases a version meanwhile
takes it off the list.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass

from rankmill.registry.model_state import State

DAY = 24 * 3600.0  # seconds
REACH = 3  # distinct targets of an alias that are kept: a rollback comes back to the last but one, and one for luck
KEEP_TAG = "keep"


@dataclass(frozen=True, slots=True)
class RetentionRules:
    """What is kept besides what somebody names: the last versions, and whatever is younger than the grace."""

    keep: int = 10
    """Versions."""
    grace: float = 7 * DAY
    """Seconds."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What the next entries of a log should say."""

    kept: dict[int, str]
    """Why each version stays."""
    sweep: tuple[int, ...]
    """Versions whose time has come."""
    mark: tuple[int, ...]
    """All that are to be marked after that, those among them that are marked already included."""


def plan(state: State, rules: RetentionRules, leased: Set[str], written: Callable[[int], float], now: float) -> Plan:
    """Decide on every version that was not swept yet.

    Parameters
    ----------
    state
        The log as it stands.
    rules
        How many versions, and how long.
    leased
        Digests of blobs that somebody holds a lease on.
    written
        Tells when an entry was written, by its number, in seconds since the epoch.
    now
        By the same clock.
    """

    def is_young(entry: int) -> bool:
        return rules.grace > 0 and now - written(entry) < rules.grace

    kept, sweep, mark = reasons(state, rules.keep, leased), [], []
    for version, row in enumerate(state.versions.values(), start=1):
        if version in kept or version in state.swept:
            continue
        if is_young(row.entry):
            kept[version] = "registered recently"
        elif version in state.marked and not is_young(state.marked[version]):
            sweep.append(version)
        else:
            mark.append(version)
    return Plan(dict(sorted(kept.items())), tuple(sweep), tuple(mark))


def reasons(state: State, keep: int, leased: Set[str]) -> dict[int, str]:
    """Say of each version that is kept whatever its age why that is: the strongest reason."""
    kept: dict[int, str] = {}
    for alias in sorted(state.moves):
        if (target := state.target(alias)) is not None:
            kept.setdefault(target, f"{alias} points to it")
    for alias in sorted(state.moves):
        for version in targets(state, alias)[:REACH]:
            kept.setdefault(version, f"{alias} pointed to it lately")
    for version, tags in state.tags.items():
        if KEEP_TAG in tags:
            kept.setdefault(version, f"tag {KEEP_TAG}={tags[KEEP_TAG]}")
    last = len(state.versions)
    for version in range(max(1, last - keep + 1), last + 1):
        kept.setdefault(version, "the last version" if keep == 1 else f"one of the last {keep}")
    for version, row in enumerate(state.versions.values(), start=1):
        if row.model in leased:
            kept.setdefault(version, "in use: leased")
    return {version: why for version, why in kept.items() if version not in state.swept}


def targets(state: State, alias: str) -> list[int]:
    """Give the versions that ``alias`` has meant, each once, the latest first."""
    return list(dict.fromkeys(move.version for move in reversed(state.moves[alias]) if move.version is not None))
