"""What a process leaves with: the contract with schedulers, and which errors mean which code.

0 done, 1 a bug of ours, 2 usage, 10 data rejected, 11 gate not passed, 12 drift, 13 integrity or format, 74 input/output,
75 conflict (try again), 130 and 143 signals, 141 the reader of our output went away.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable

import pipeline.errors
import rankmill.errors
import registry.errors
import scorer.errors
import trainer.errors

DONE = 0
BUG = 1
USAGE = 2
DATA_REJECTED = 10
GATE_NOT_PASSED = 11
DRIFT = 12
INTEGRITY = 13
INPUT_OUTPUT = 74
TRY_AGAIN = 75
READER_GONE = 128 + signal.SIGPIPE

EXIT_CODES: dict[type[Exception], int] = {
    pipeline.errors.DatasetFormatError: INTEGRITY,
    scorer.errors.ModelFormatError: INTEGRITY,
    registry.errors.IntegrityError: INTEGRITY,
    pipeline.errors.DataRejected: DATA_REJECTED,
    trainer.errors.TrainingDataRejected: DATA_REJECTED,
    scorer.errors.CandidatesRejected: DATA_REJECTED,
    scorer.errors.ConversionRefused: DATA_REJECTED,
    pipeline.errors.DriftAlarm: DRIFT,
    registry.errors.PromotionRefused: GATE_NOT_PASSED,
    registry.errors.ConflictError: TRY_AGAIN,
    pipeline.errors.DatasetConflict: TRY_AGAIN,
    rankmill.errors.RunUnderWay: TRY_AGAIN,
    rankmill.errors.Unhealthy: TRY_AGAIN,
    pipeline.errors.InputError: USAGE,
    trainer.errors.InvalidParameter: USAGE,
    scorer.errors.InputError: USAGE,
    registry.errors.InputError: USAGE,
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
        return 128 + signal.SIGINT
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
    return " ".join(text.split("\n"))
