"""One observer for several, which stands between them and the run: one that fails is said once, and ends nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress

from rankmill.run.events import Event, Observer
from rankmill.run.telling.words import error_line


class FanOut:
    """Observer that hands every event to each of ``observers`` (by what they are called), in their order.

    What one raises is said by ``complain``, once for each, and it is asked again at the next event: a full disk may have room by
    then.  What ends a process (an interrupt, a request to end) is nobody's failure and goes on its way.
    """

    def __init__(self, observers: Mapping[str, Observer], complain: Callable[[str], None]) -> None:
        self._observers = dict(observers)
        self._complain = complain
        self._said: set[str] = set()

    def __call__(self, event: Event) -> None:
        """Tell all of them."""
        for name, observer in self._observers.items():
            try:
                observer(event)
            except Exception as error:  # whatever it is: the run is worth more than its story
                if name not in self._said:
                    self._said.add(name)
                    with suppress(Exception):
                        self._complain(f"{name}: {error_line(error)}; the run goes on without it")
