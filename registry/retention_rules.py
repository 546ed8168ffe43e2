"""Decide which versions of a model may be swept: a pure function of the state of its log.

Two phases.  A version that no rule keeps is *marked*; if no rule keeps it a grace period later, it is *swept*.  Both are log
entries, decided on the state before them, so a promotion and a sweep cannot overlook each other: of two writers of the same
number, one decides again.  Promoting or tagging a version meanwhile unmarks it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rankmill.registry.model_state import State

DAY = 24 * 3600.0  # seconds
REACH = 3  # last distinct targets of an alias to keep: the current one, that of a rollback, and one in reserve
KEEP_TAG = "keep"


@dataclass(frozen=True, slots=True)
class RetentionRules:
    """Which unused versions are kept: the latest ones, and those younger than the grace period."""

    keep: int = 10
    """Number of versions."""
    grace: float = 7 * DAY
    """Seconds."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The versions to keep, sweep and mark."""

    kept: dict[int, str]
    """Versions that are kept, with the reason."""
    sweep: tuple[int, ...]
    """Versions to sweep now."""
    mark: tuple[int, ...]
    """All versions to be marked after that, including those marked already."""


def plan(state: State, rules: RetentionRules, written: Callable[[int], float], now: float) -> Plan:
    """Decide on every version that is not swept.

    Parameters
    ----------
    state
        The current state.
    rules
        How many versions to keep, and for how long.
    written
        Returns the time of an entry by its number, in seconds since the epoch.
    now
        The current time by the same clock.
    """

    def is_young(entry: int) -> bool:
        return rules.grace > 0 and now - written(entry) < rules.grace

    kept, sweep, mark = reasons(state, rules.keep), [], []
    for version, row in state.versions.items():
        if version in kept or version in state.swept:
            continue
        if is_young(row.entry):
            kept[version] = "registered recently"
        elif version in state.marked and not is_young(state.marked[version]):
            sweep.append(version)
        else:
            mark.append(version)
    return Plan(dict(sorted(kept.items())), tuple(sweep), tuple(mark))


def reasons(state: State, keep: int) -> dict[int, str]:
    """Return the strongest reason for each version that is kept at any age."""
    kept: dict[int, str] = {}
    for alias in sorted(state.moves):
        if (target := state.target(alias)) is not None:
            kept.setdefault(target, f"{alias} points to it")
    for alias in sorted(state.moves):
        for version in [*targets(state, alias)[:REACH], *state.holders(alias)[:2]]:
            kept.setdefault(version, f"{alias} pointed to it lately")
    for version, tags in state.tags.items():
        if KEEP_TAG in tags:
            kept.setdefault(version, f"tag {KEEP_TAG}={tags[KEEP_TAG]}")
    last = len(state.versions)
    for version in range(max(1, last - keep + 1), last + 1):
        kept.setdefault(version, "the last version" if keep == 1 else f"one of the last {keep}")
    return {version: why for version, why in kept.items() if version not in state.swept}


def targets(state: State, alias: str) -> list[int]:
    """Return the distinct versions that ``alias`` has pointed to, the latest first."""
    return list(dict.fromkeys(move.version for move in reversed(state.moves[alias]) if move.version is not None))
