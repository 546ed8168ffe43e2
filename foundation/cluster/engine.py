"""The protocol of an engine: what a library for clusters must be able to do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from rankmill.foundation.cluster.duty import Duty
from rankmill.foundation.cluster.peers import Peers

Join = Callable[[str, int, Sequence[str]], AbstractContextManager[Peers]]
"""Called in a worker with the name of a group, its number there and all workers of the group."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A call that has ended: its number, and its result or its error.  ``lost``: neither, as its worker was lost."""

    call: int
    result: Any = None
    error: BaseException | None = None
    lost: bool = False


class Engine(Protocol):
    """Workers that run calls.  A worker gets one call at a time."""

    def workers(self) -> Mapping[str, int]:
        """Return the threads of each worker that is there now, by its name; ClusterUnavailable if nobody can tell."""
        ...

    def start(self, call: int, worker: str, duty: Duty, function: Callable[[Any, int], Any], item: Any) -> None:
        """Let ``worker`` check ``duty`` and call ``function(item, threads)``; all of them can be pickled."""
        ...

    def ended(self, seconds: float) -> Sequence[Ended]:
        """Return the calls that have ended since; wait so many ``seconds`` for one at most.  A call of a lost worker may never end."""
        ...

    def forget(self, call: int) -> None:
        """Give up a call: its end is not reported, and a running one is asked to stop."""
        ...

    def join(self) -> Join:
        """Return the function by which workers join a group; it can be pickled."""
        ...

    def words(self, group: str) -> Sequence[bytes]:
        """Return the messages of peers of ``group`` since the last call; the first call begins to listen."""
        ...

    def close(self) -> None:
        """End the workers that this engine has started."""
        ...
