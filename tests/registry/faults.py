"""Ways in which one call on the disk goes wrong."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass

from tests.registry.interposed import Killed

ERRORS = ("ENOSPC", "EDQUOT", "EIO", "EROFS", "EACCES", "ESTALE", "EMFILE", "EINTR")
FEW = ("ENOSPC", "EIO", "ESTALE")
"""Those that are met with more than giving up."""


@dataclass(frozen=True)
class Fault:
    """What happens at the call: nothing is done, or part of a write, or all of it; then the process dies or gets an error."""

    error: str | None = None
    """Name of the errno; None kills the process."""
    lasting: bool = False
    """Whether all later calls fail, too.  (Those of the dead always do.)"""
    done: bool = False
    """Whether the whole call is done, and only the answer is lost."""
    written: Callable[[int], int] | None = None
    """How many of ``n`` bytes a write has written before; makes a difference in writes only."""

    def exception(self) -> BaseException:
        if self.error is None:
            return Killed()
        number = getattr(errno, self.error)
        return OSError(number, os.strerror(number))


class Failing:
    """Lets the call of number ``at`` go wrong."""

    def __init__(self, at: int, fault: Fault) -> None:
        self.at, self.fault = at, fault
        self.count, self.failed_in = 0, ""

    def __call__(self, name: str, call: Callable[..., object], *arguments: object) -> object:
        self.count += 1
        if self.count < self.at:
            return call(*arguments)
        if self.count > self.at:
            if self.fault.lasting or self.fault.error is None:
                raise self.fault.exception()
            return call(*arguments)
        self.failed_in = name
        if self.fault.done:
            call(*arguments)
        if self.fault.written is not None and name == "write":
            descriptor, data = arguments
            call(descriptor, data[: self.fault.written(len(data))])
        raise self.fault.exception()


CRASHES = {
    "before": Fault(),
    "after": Fault(done=True),
    "half written": Fault(written=lambda n: n // 2),
    "all but a byte written": Fault(written=lambda n: n - 1),
}
ONCE = {error: Fault(error) for error in ERRORS} | {"half written": Fault("EIO", written=lambda n: n // 2)}
LASTING = {error: Fault(error, lasting=True) for error in ERRORS}
LOST_ANSWERS = {error: Fault(error, done=True) for error in ERRORS}
