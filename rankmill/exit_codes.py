"""What a process leaves with: the contract with schedulers, and which errors mean which code."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable

import rankmill.errors
import rankmill.pipeline.errors
import rankmill.registry.errors
import rankmill.scorer.errors
import rankmill.trainer.errors

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

EXIT_CODES: dict[type[Exception], int] = {
    rankmill.pipeline.errors.DatasetFormatError: INTEGRITY,
    rankmill.scorer.errors.ModelFormatError: INTEGRITY,
    rankmill.registry.errors.IntegrityError: INTEGRITY,
    rankmill.pipeline.errors.DataRejected: DATA_REJECTED,
    rankmill.trainer.errors.TrainingDataRejected: DATA_REJECTED,
    rankmill.scorer.errors.CandidatesRejected: DATA_REJECTED,
    rankmill.scorer.errors.ConversionRefused: DATA_REJECTED,
    rankmill.pipeline.errors.DriftAlarm: DRIFT,
    rankmill.registry.errors.PromotionRefused: GATE_NOT_PASSED,
    rankmill.registry.errors.ConflictError: TRY_AGAIN,
    rankmill.pipeline.errors.DatasetConflict: TRY_AGAIN,
    rankmill.scorer.errors.ConflictError: TRY_AGAIN,
    rankmill.trainer.errors.WorkerLost: TRY_AGAIN,
    rankmill.errors.RunUnderWay: TRY_AGAIN,
    rankmill.errors.Unhealthy: TRY_AGAIN,
    rankmill.pipeline.errors.InputError: USAGE,
    rankmill.trainer.errors.InvalidParameter: USAGE,
    rankmill.scorer.errors.InputError: USAGE,
    rankmill.registry.errors.InputError: USAGE,
    rankmill.errors.InputError: USAGE,
    rankmill.errors.ConfigError: USAGE,
    OSError: INPUT_OUTPUT,
}


def known_code_of(error: BaseException) -> int | None:
    """Return what a process leaves with after ``error``; None for one that is a bug of ours."""
    return next((code for kind, code in EXIT_CODES.items() if isinstance(error, kind)), None)


def code_of(error: BaseException) -> int:
    """Return the same, and for a bug its code; for a signal that of the signal."""
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    if isinstance(error, BrokenPipeError):
        return READER_GONE
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    known = known_code_of(error)
    return BUG if known is None else known


def ruling(codes: Iterable[int]) -> int:
    """Return the one of ``codes`` that rules where several apply: 13, then 10, 12, 11; any other before these; 0 for none.

    >>> ruling([GATE_NOT_PASSED, DRIFT])
    12
    """
    weight = {DONE: 0, GATE_NOT_PASSED: 1, DRIFT: 2, DATA_REJECTED: 3, INTEGRITY: 4}
    return max(codes, key=lambda code: weight.get(code, len(weight)), default=DONE)


def one_line(error: BaseException) -> str:
    """Return what ``error`` says, as one line."""
    text = str(error)
    if isinstance(error, OSError) and error.strerror:
        names = " -> ".join(os.fsdecode(name) for name in (error.filename, error.filename2) if name is not None)
        text = f"{names}: {error.strerror}" if names else error.strerror
    return " ".join("; ".join([text, *getattr(error, "__notes__", ())]).split("\n"))
