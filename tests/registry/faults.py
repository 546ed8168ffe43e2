"""Ways in which one call on the disk, or one request to a bucket, goes wrong."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from rankmill.foundation.storage.bucket import StoreError, StoreRefusal
from tests.registry.interposed import Killed
from tests.registry.model_bucket import URL

ERRORS = ("ENOSPC", "EDQUOT", "EIO", "EROFS", "EACCES", "ESTALE", "EMFILE", "EINTR")
FEW = ("ENOSPC", "EIO", "ESTALE")
"""Those that are met with more than giving up."""
CHANGES = ("put", "put_new", "delete")


@dataclass(frozen=True)
class Fault:
    """What happens at the call: nothing is done, or part of a write, or all of it; then the process dies or gets an
    error."""

    error: str | type[StoreError] | None = None
    """Name of the errno, or the error of a bucket; None kills the process."""
    lasting: bool = False
    """Whether all later calls fail, too.  (Those of the dead always do.)"""
    done: bool = False
    """Whether the whole call is done, and only the answer is lost."""
    written: Callable[[int], int] | None = None
    """How many of ``n`` bytes a write has written before; makes a difference in writes only."""
    late: int = 0
    """Carried out after so many more requests, though the answer was an error; only of changes in a bucket."""
    repeated: bool = False
    """The client has sent a conditional put twice, as the first answer was lost: the second finds the first's object."""

    def exception(self) -> BaseException:
        if self.error is None:
            return Killed()
        if not isinstance(self.error, str):
            return self.error(URL, "a made error", errno.ETIMEDOUT)
        number = getattr(errno, self.error)
        return OSError(number, os.strerror(number))


class Failing:
    """Lets the call of number ``at`` go wrong."""

    def __init__(self, at: int, fault: Fault) -> None:
        self.at, self.fault = at, fault
        self.count, self.failed_in = 0, ""
        self._late: Callable[[], object] | None = None

    def __call__(self, name: str, call: Callable[..., object], *arguments: object, **named: object) -> object:
        self.count += 1
        fault = self.fault
        if self._late is not None and self.count >= self.at + fault.late:
            self.arrive()
        if self.count > self.at and (fault.lasting or fault.error is None):
            raise fault.exception()
        if self.count != self.at:
            return call(*arguments, **named)
        self.failed_in = name
        if fault.repeated:
            answer = call(*arguments, **named)
            return False if name == "put_new" else answer
        if fault.done:
            call(*arguments, **named)
        if fault.written is not None and name == "write":
            descriptor, data = arguments
            call(descriptor, data[: fault.written(len(data))])
        if fault.late and name in CHANGES:
            self._late = partial(call, *arguments, **named)
        raise fault.exception()

    def arrive(self) -> None:
        """Carry out the request that was under way."""
        if self._late is not None:
            late, self._late = self._late, None
            late()


CRASHES = {
    "before": Fault(),
    "after": Fault(done=True),
    "half written": Fault(written=lambda n: n // 2),
    "all but a byte written": Fault(written=lambda n: n - 1),
}
ONCE = {error: Fault(error) for error in ERRORS} | {"half written": Fault("EIO", written=lambda n: n // 2)}
LASTING = {error: Fault(error, lasting=True) for error in ERRORS}
LOST_ANSWERS = {error: Fault(error, done=True) for error in ERRORS}
IN_BUCKET = {
    "killed before": Fault(),
    "killed after": Fault(done=True),
    "failed": Fault(StoreError),
    "refused": Fault(StoreRefusal),
    "failed from then on": Fault(StoreError, lasting=True),
    "refused from then on": Fault(StoreRefusal, lasting=True),
    "answer lost": Fault(StoreError, done=True),
    "all answers lost": Fault(StoreError, done=True, lasting=True),
    "sent again": Fault(StoreError, repeated=True),
    "carried out after the next": Fault(StoreError, late=2),
    "carried out after two more": Fault(StoreError, late=3),
    "carried out at the end": Fault(StoreError, late=10**9),
    "carried out at the end, and the store is down": Fault(StoreError, late=10**9, lasting=True),
    "of a killed process, carried out at the end": Fault(late=10**9),
}
