"""Say so when kernels are compiled: the first training on a machine waits for it, later ones load them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from numba.core import event

MESSAGE = "compiling the kernels for this machine, once; this takes some 20 seconds"


class _First(event.Listener):
    """Calls ``say`` at the first compilation; loading from the cache is none."""

    def __init__(self, say: Callable[[str], object]) -> None:
        self._say: Callable[[str], object] | None = say

    def on_start(self, _: event.Event) -> None:
        say, self._say = self._say, None
        if say is not None:
            say(MESSAGE)

    def on_end(self, _: event.Event) -> None:
        """Nothing to say."""


@contextmanager
def compilation_announced(say: Callable[[str], object]) -> Iterator[None]:
    """Call ``say`` with one line as soon as a kernel has to be compiled in this context, and not again."""
    with event.install_listener("numba:compile", _First(say)):
        yield
