"""Choose the observers of a run from ``--log`` and ``[tell]``.

Each observer (`rankmill.run.events`) is independent: text or JSON lines on stderr, a log file, metrics for Prometheus, OpenLineage.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rankmill.run.events import Event, Observer
from rankmill.run.json_stderr import speak_json
from rankmill.run.log_lines import JsonLines, LogFile, TextLines, error_line
from rankmill.run.openlineage import LineageFile
from rankmill.run.plain_json import Clock
from rankmill.run.prometheus import PrometheusFile

if TYPE_CHECKING:
    from rankmill.config import Config

Log = Literal["text", "json"]

LOG_NAME, LINEAGE_NAME, METRICS_NAME = "log.jsonl", "lineage.jsonl", "metrics.prom"
METRICS_SUFFIX = ".prom"  # the collector reads only such files


def observer_of(
    log: Log, config: Config, folder: Path, *, work: Path | None = None, files: bool = True, clock: Clock | None = None
) -> FanOut:
    """Return the observer of a run, which writes to stderr and to the files of the configuration.

    Parameters
    ----------
    log
        Text or JSON lines; with the latter, everything written to ``sys.stderr`` from now on becomes JSON.
    config
        The configuration.
    folder
        Base of relative paths in ``config``: the folder of its file.
    work
        The work folder, if it is not the one in ``config``.
    files
        False: only stderr, as for a dry run.
    clock
        The clock of the observers.
    """
    observers: dict[str, Observer] = {"stderr": _on_stderr(log, clock)}
    where = files_of(config, folder, work) if files else Files()
    bound, model = config.tell.keep_bytes, config.name
    if where.log is not None:
        observers[f"log {where.log}"] = LogFile(where.log, clock, bound)
    if where.lineage is not None:
        observers[f"lineage {where.lineage}"] = LineageFile(where.lineage, model, clock, bound=bound)
    if where.prometheus is not None:
        observers[f"metrics {where.prometheus}"] = PrometheusFile(where.prometheus, model, clock)
    return FanOut(observers, write_line)


@dataclass(frozen=True, slots=True)
class Files:
    """The files to which a run writes events; None: disabled."""

    log: Path | None = None
    lineage: Path | None = None
    prometheus: Path | None = None


def files_of(config: Config, folder: Path, work: Path | None = None) -> Files:
    """Return the files of ``[tell]``: by default in the work folder; ``""`` disables one.

    A path of metrics that does not end in ``.prom`` is a folder, such as that of the collector.
    """
    tell, work = config.tell, folder / config.work if work is None else work
    metrics = _file(tell.prometheus, folder, work / METRICS_NAME)
    if metrics is not None and metrics.suffix != METRICS_SUFFIX:
        metrics /= f"rankmill_{config.name}{METRICS_SUFFIX}"
    return Files(
        log=_file(tell.log, folder, work / LOG_NAME),
        lineage=_file(tell.lineage, folder, work / LINEAGE_NAME),
        prometheus=metrics,
    )


def write_line(line: str) -> None:
    """Write ``line`` to stderr, as text or JSON."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def _file(given: str | None, folder: Path, default: Path) -> Path | None:
    return default if given is None else folder / given if given else None


def _on_stderr(log: Log, clock: Clock | None) -> Observer:
    if log == "text":
        return TextLines(write_line, clock)
    stream = speak_json(clock)
    lines = JsonLines(stream.write_object, clock)
    stream.run_id = lambda: lines.run_id
    return lines


class FanOut:
    """Observer that passes every event to all ``observers`` (by name), in order.

    ``complain`` reports the first error of each; the observer is still called for later events, as a full disk may have
    space again.  Interrupts and signals to exit are raised.
    """

    def __init__(self, observers: Mapping[str, Observer], complain: Callable[[str], None]) -> None:
        self._observers = dict(observers)
        self._complain = complain
        self._reported: set[str] = set()

    def __call__(self, event: Event) -> None:
        """Pass ``event`` to all observers."""
        for name, observer in self._observers.items():
            try:
                observer(event)
            except Exception as error:  # any error: a failing observer must not stop the run
                if name not in self._reported:
                    self._reported.add(name)
                    with suppress(Exception):
                        self._complain(f"{name}: {error_line(error)}; the run continues without it")
