"""Where the time of a round goes: a stopwatch that is asked for, and the table that it fills."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from rankmill.trainer.growing.grower import PHASES as GROWING
from rankmill.trainer.growing.grower import Grower

GRADIENTS, UPDATE, WALKING, METRICS, REST = "gradients", "leaves and update", "valid splits", "metrics", "rest"
PHASES = (GRADIENTS, *GROWING, UPDATE, WALKING, METRICS, REST)


@dataclass(frozen=True, slots=True)
class Profile:
    """Mean seconds that a round spent in each phase, in the order of ``PHASES``.

    Phases inside a tree are timed by the first worker, its waiting for the others included.  The first round is left
    out where there are others: it also loads the kernels, or compiles them.
    """

    n_rounds: int  # rounds that were timed
    seconds: Mapping[str, float]

    @classmethod
    def of(cls, rounds: Sequence[Mapping[str, float]]) -> Profile:
        """Return the mean of ``rounds``, seconds by phase."""
        timed = rounds[1:] or rounds
        return cls(len(timed), {phase: sum(r[phase] for r in timed) / max(1, len(timed)) for phase in PHASES})

    @property
    def total(self) -> float:
        """Seconds a round."""
        return sum(self.seconds.values())

    def to_dict(self) -> dict[str, Any]:
        """Return plain values: the rounds, and milliseconds a round by phase."""
        return {
            "rounds": self.n_rounds,
            "ms_a_round": {phase: round(1e3 * seconds, 4) for phase, seconds in self.seconds.items()},
        }

    def render(self) -> str:
        """Return a table for people."""
        if not self.n_rounds:
            return "no round was timed: all of them were taken from the model that was resumed"
        rows = [*self.seconds.items(), ("a round", self.total)]
        lines = [f"{'phase':<18} {'ms a round':>10} {'share':>7}"]
        lines += [f"{name:<18} {1e3 * s:>10.3f} {s / (self.total or 1.0):>7.1%}" for name, s in rows]
        return "\n".join([*lines, f"mean of {self.n_rounds:,} rounds"])


class Stopwatch:
    """Adds up seconds by phase, round by round; switched off it does nothing."""

    def __init__(self, *, on: bool) -> None:
        self.on = on
        self._rounds: list[Mapping[str, float]] = []
        self.start_round()

    def start_round(self) -> None:
        """Forget what has been timed since the last whole round."""
        self._seconds = dict.fromkeys(PHASES, 0.0)
        self._started = time.perf_counter()

    def end_round(self) -> None:
        """Keep what has been timed since the round started."""
        if self.on:
            self._seconds[REST] = time.perf_counter() - self._started - sum(self._seconds.values())
            self._rounds.append(self._seconds)

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Return a context whose time counts for the phase ``name``."""
        return self._timed(name) if self.on else nullcontext()

    def growing(self, grower: Grower) -> AbstractContextManager[None]:
        """Return a context in which ``grower``, itself timed, grows a tree."""
        return self._grown(grower) if self.on else nullcontext()

    def profile(self) -> Profile | None:
        """Return the mean of the rounds; None if the stopwatch was off."""
        return Profile.of(self._rounds) if self.on else None

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        before = time.perf_counter()
        yield
        self._seconds[name] += time.perf_counter() - before

    @contextmanager
    def _grown(self, grower: Grower) -> Iterator[None]:
        before, ticks = time.perf_counter(), grower.ticks.copy()
        yield
        inside = 0.0
        for name, nanoseconds in zip(GROWING, (grower.ticks - ticks).tolist(), strict=True):
            self._seconds[name] += 1e-9 * nanoseconds
            inside += 1e-9 * nanoseconds
        self._seconds[UPDATE] += time.perf_counter() - before - inside
