"""What a process leaves with: the contract with schedulers.  `rankmill.foundation.errors` says which error means which code."""

from __future__ import annotations

import signal
from collections.abc import Iterable

DONE = 0
BUG = 1
USAGE = 2
DATA_REJECTED = 10
GATE_NOT_PASSED = 11
DRIFT = 12
INTEGRITY = 13
INPUT_OUTPUT = 74
TRY_AGAIN = 75
INTERRUPTED = 128 + signal.SIGINT
READER_GONE = 128 + signal.SIGPIPE
TERMINATED = 128 + signal.SIGTERM

MEANINGS: dict[int, str] = {
    DONE: "done, or nothing to do",
    BUG: "a bug of rankmill",
    USAGE: "usage, unknown names and missing files",
    DATA_REJECTED: "data rejected",
    GATE_NOT_PASSED: "gate not passed: registered, not promoted",
    DRIFT: "drift alarm",
    INTEGRITY: "integrity or format",
    INPUT_OUTPUT: "input or output",
    TRY_AGAIN: "lock or conflict: try again",
    INTERRUPTED: "interrupted",
    READER_GONE: "the reader of the output went away",
    TERMINATED: "told to end",
}
"""All codes there are."""


def ruling(codes: Iterable[int]) -> int:
    """Return the one of ``codes`` that rules where several apply: 13, then 10, 12, 11; any other before these; 0 for none.

    >>> ruling([GATE_NOT_PASSED, DRIFT])
    12
    """
    weight = {DONE: 0, GATE_NOT_PASSED: 1, DRIFT: 2, DATA_REJECTED: 3, INTEGRITY: 4}
    return max(codes, key=lambda code: weight.get(code, len(weight)), default=DONE)
