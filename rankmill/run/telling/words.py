"""Events in the words of a person; the text on the terminal and the messages of the log are the same."""

from __future__ import annotations

import os

from rankmill.foundation.errors import one_line as said_by
from rankmill.run.events import (
    Event,
    RunEnded,
    RunStarted,
    StageDone,
    StageFailed,
    StageSaid,
    StageSkipped,
    StageStarted,
)
from rankmill.run.telling.facts import GateFacts, KnownFacts
from rankmill.run.telling.plain import whole_text


def message(event: Event) -> str:
    """Return ``event`` in one line, without the name of its stage.

    >>> message(StageDone(stage="ingest", facts={"rows": 12345, "queries": 678, "rejected": 0}))
    'done: 12,345 documents, 678 queries'
    """
    match event:
        case RunStarted():
            on = "" if event.logical_date is None else f" of {event.logical_date.isoformat()}"
            return f"run{on}: {one_line(os.fspath(event.config))} into {one_line(os.fspath(event.work))}"
        case StageSkipped():
            return one_line(event.why)
        case StageStarted():
            return one_line(f"{event.doing} ({event.why})" if event.why else event.doing)
        case StageSaid():
            return one_line(event.line)
        case StageDone():
            found = ", ".join(_found(KnownFacts.of(event.facts)))
            return f"done: {found}" if found else "done"
        case StageFailed():
            return "stopped; the next run goes on from here" if event.stopped else f"failed: {error_line(event.error)}"
        case RunEnded():
            return event.outcome if event.exit_code == 0 else f"{event.outcome}, exit code {event.exit_code}"


def error_line(error: BaseException) -> str:
    """Return what ``error`` says in one line; the class of one that says nothing."""
    return one_line(said_by(error)) or type(error).__name__


def one_line(text: str) -> str:
    """Return ``text`` without line breaks, and without characters that move a terminal's cursor."""
    return printable(text).strip()


def printable(text: str) -> str:
    """Return ``text`` with a space for each character that is not to be seen, and none at its end."""
    return "".join(letter if letter.isprintable() else " " for letter in whole_text(text)).rstrip()


def lasting(seconds: float) -> str:
    """Return how long that is.

    >>> [lasting(seconds) for seconds in (0.04, 3.21, 75, 7384)]
    ['0.04 s', '3.2 s', '1 min 15 s', '2 h 3 min']
    """
    if seconds < 59.95:
        return f"{seconds:.2f} s" if seconds < 1 else f"{seconds:.1f} s"
    minutes, left = divmod(round(seconds), 60)
    return f"{minutes} min {left} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def _found(known: KnownFacts) -> list[str]:
    counts = ((known.rows, "documents"), (known.queries, "queries"), (known.features, "features"))
    parts = [f"{number:,} {words}" for number, words in counts if number is not None]
    if known.rejected:
        parts.append(f"{known.rejected:,} rejected rows")
    if known.model is not None:
        parts.append(f"{known.model[0]}@{known.model[1]}")
    for split, means in known.metrics.items():
        parts.append(f"{split} " + ", ".join(f"{name} {mean:.4f}" for name, mean in means.items()))
    if known.gate is not None:
        parts.append(_gate(known.gate))
    if known.drift is not None:
        alarms = known.drift.alarms
        parts.append(f"largest PSI {known.drift.psi_max:.3f}, {f'{len(alarms):,} drifted' if alarms else 'no drift'}")
    parts += [f"{alias} is version {number}" for alias, number in known.aliases.items()]
    return [one_line(part) for part in parts]


def _gate(found: GateFacts) -> str:
    verdict = "passed" if found.passed else "not passed"
    if found.difference is None or found.interval is None:
        return verdict
    low, high = found.interval
    return f"{verdict}, {found.metric or 'the metric'} {found.difference:+.4f} ({low:+.4f} to {high:+.4f})"
