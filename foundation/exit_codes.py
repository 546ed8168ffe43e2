"""The exit codes of commands.  `rankmill.foundation.errors` assigns a code to each error."""

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
    DONE: "success, or nothing to do",
    BUG: "internal error: a bug in rankmill",
    USAGE: "wrong usage, unknown name or missing file",
    DATA_REJECTED: "the input data were rejected",
    GATE_NOT_PASSED: "gate not passed: registered, not promoted",
    DRIFT: "drift alarm",
    INTEGRITY: "a damaged file, or an unknown format",
    INPUT_OUTPUT: "an input or output error of the system",
    TRY_AGAIN: "locked or in conflict: try again",
    INTERRUPTED: "interrupted by Ctrl-C",
    READER_GONE: "the reader of the output closed the pipe",
    TERMINATED: "terminated by a signal",
}
"""All exit codes."""


def ruling(codes: Iterable[int]) -> int:
    """Return the one of ``codes`` that takes precedence: any code not named here, then 13, 10, 12, 11; 0 for none.

    >>> ruling([GATE_NOT_PASSED, DRIFT])
    12
    """
    weight = {DONE: 0, GATE_NOT_PASSED: 1, DRIFT: 2, DATA_REJECTED: 3, INTEGRITY: 4}
    return max(codes, key=lambda code: weight.get(code, len(weight)), default=DONE)
