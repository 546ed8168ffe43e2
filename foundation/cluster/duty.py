"""What a worker of a cluster checks before a task and during it, and how a task ends."""

from __future__ import annotations

import platform
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

from rankmill.foundation.code_digest import OF_TRAINING, code_digest
from rankmill.foundation.errors import InputError

Item = TypeVar("Item")
Result = TypeVar("Result")

_DECIDE_BYTES = ("rankmill", "numpy", "numba", "pyarrow", "polars", "duckdb")  # libraries that results depend on

_unwanted: ContextVar[Callable[[], bool] | None] = ContextVar("_unwanted", default=None)


class Unwanted(BaseException):
    """The result of this task is no longer needed."""


@dataclass(frozen=True, slots=True)
class Duty:
    """What every worker must have: code and libraries of the caller, and the shared folder with the file ``proof``."""

    code: str
    libraries: tuple[tuple[str, str], ...]
    proof: Path
    token: str

    @classmethod
    @contextmanager
    def shared(cls, folder: Path) -> Iterator[Duty]:
        """Yield the duty of this process's workers, with a file in ``folder`` as proof that they see the same one."""
        token = secrets.token_hex(16)
        proof = folder.absolute() / f".{token}.cluster"
        proof.write_text(token)
        try:
            yield cls(code=code_digest(*OF_TRAINING), libraries=_libraries(), proof=proof, token=token)
        finally:
            proof.unlink(missing_ok=True)

    def check(self) -> None:
        """Check this process; InputError if it has other code or libraries, or does not see the folder."""
        here = f"the worker on {platform.node()}"
        if code_digest(*OF_TRAINING) != self.code:
            raise InputError(
                f"{here} has another rankmill ({dict(_libraries())['rankmill']}, here "
                f"{dict(self.libraries)['rankmill']}, with other code); install the same one on all machines"
            )
        for (name, theirs), (_, ours) in zip(_libraries(), self.libraries, strict=True):
            if theirs != ours:
                raise InputError(f"{here} has {name} {theirs}, here it is {ours}; install the same on all machines")
        try:
            seen = self.proof.read_text() == self.token
        except OSError:
            seen = False
        if not seen:
            raise InputError(
                f"{here} does not see {self.proof.parent} as it is here; input and output must be in folders that all "
                "machines share under the same path"
            )


@dataclass(frozen=True, slots=True)
class Ended:
    """A call that has ended: its number, and its result or its error.  ``lost``: neither, as its worker was lost."""

    call: int
    result: Any = None
    error: BaseException | None = None
    lost: bool = False


@cache
def _libraries() -> tuple[tuple[str, str], ...]:
    def version_of(name: str) -> str:
        try:
            return version(name)
        except PackageNotFoundError:
            return "of an unknown version"

    return tuple((name, version_of(name)) for name in _DECIDE_BYTES)


@contextmanager
def stopped_when(unwanted: Callable[[], bool]) -> Iterator[None]:
    """Let what :func:`stopper` returns raise within the context once ``unwanted()`` is true."""
    before = _unwanted.set(unwanted)
    try:
        yield
    finally:
        _unwanted.reset(before)


def folder_of_call(staging: Path, stage: str, number: int) -> Path:
    """Make a new folder in ``staging`` for the output of task ``number`` of a stage.

    A call may be made twice, even at the same time.
    """
    folder = staging / stage / f"{number:05d}-{secrets.token_hex(6)}"
    folder.mkdir(parents=True)
    return folder


def stopper() -> Callable[[], None]:
    """Return a function that raises Unwanted if the caller has given up this task.

    It is called from time to time, in any thread.

    Outside of tasks it does nothing.
    """
    unwanted = _unwanted.get()

    def stop_if_unwanted() -> None:
        if unwanted is not None and unwanted():
            raise Unwanted

    return stop_if_unwanted
