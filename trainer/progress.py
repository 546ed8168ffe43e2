"""Progress of trainings and searches: a bar on a terminal; otherwise, or on request, log lines on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from typing import TYPE_CHECKING

from rich.console import Console

from rankmill.foundation.cures import command
from rankmill.foundation.errors import InvalidParameter
from rankmill.foundation.kernels.compiling import compilation_announced
from rankmill.foundation.progress import TerminalBar, stderr_console
from rankmill.foundation.scalars import whole_number
from rankmill.foundation.units import spell
from rankmill.pipeline.read.grades import note_on_gains
from rankmill.trainer.parameters import TrainParameters
from rankmill.trainer.rounds.training_result import RoundRecord, TrainingStage

if TYPE_CHECKING:
    from rankmill.pipeline.dataset.dataset import Dataset

LOG_SECONDS = 10.0


class Ticker:
    """Decides when a log line is due, and writes it.

    Parameters
    ----------
    every
        A line is due after this many steps; 0: never; None: :data:`LOG_SECONDS` after the last one.
    on_message
        Called with each line; by default lines go to stderr.
    clock
        Seconds, from any moment on.
    """

    def __init__(
        self, every: int | None, on_message: Callable[[str], object] | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._every, self._write, self._clock = every, on_message or to_stderr, clock
        self._began = self._last = clock()
        self._first = 0.0  # end of the first step; what came before it, such as compiling, would distort the estimate
        self._steps = 0

    def step(self, number: int, last: int, left: int, line: Callable[[], str]) -> None:
        """Record step ``number`` of ``last``, with ``left`` more of all kinds; ``line`` is written if it is due."""
        now = self._clock()
        self._steps += 1
        if self._steps == 1:
            self._first = self._last = now
        if self._every is None:
            due = now - self._last >= LOG_SECONDS
        else:
            due = self._every > 0 and (number % self._every == 0 or number == last)
        if due:
            self._last = now
            seconds = (now - self._first) / max(self._steps - 1, 1) * left
            rest = f", at most {spell(timedelta(seconds=seconds))} left" if left > 0 and self._steps > 1 else ""
            self._write(f"{line()}; {spell(timedelta(seconds=now - self._began))} so far{rest}")


class TrainingProgress(TerminalBar):
    """Context manager whose ``update`` is called with the record of every round.

    Parameters
    ----------
    n_rounds
        Maximum rounds of a training.
    n_trainings
        Number of trainings, one after another, folds included.
    several_seeds
        Whether lines name the seed; they always name the fold.
    step
        What a round is called.
    log_every, on_message, clock
        As :class:`Ticker` takes them; there is a bar only if ``log_every`` is None and stderr is a terminal.
    bar
        Whether there may be a bar.
    """

    def __init__(
        self,
        n_rounds: int,
        *,
        n_trainings: int = 1,
        several_seeds: bool = False,
        step: str = "round",
        log_every: int | None = None,
        on_message: Callable[[str], object] | None = None,
        bar: bool = True,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        console = console or stderr_console()
        visible = bar and log_every is None and console.is_terminal
        counted = "{task.fields[unit]} {task.completed:.0f}/{task.total:.0f}"
        super().__init__(counted, "{task.description}", console, shown=visible)
        self._task = self._progress.add_task("preparing", total=n_rounds, unit=step)
        self._ticker = Ticker(0 if visible else log_every, on_message, clock)
        self._step = step
        self._n_rounds, self._n_trainings, self._several_seeds = n_rounds, n_trainings, several_seeds
        self._at, self._started = ("", 0, n_rounds), 0

    def update(self, record: RoundRecord) -> None:
        """Record a round; a record that names its stage says how many rounds that has, and not what follows it."""
        number, stage, left = record.round_number, record.stage, 0
        if stage is None:
            stage, left = self._next(record)
        measures = _measures(record)
        shown = "  ".join([*filter(None, [stage.name]), *measures])
        self._progress.update(self._task, completed=number, total=stage.n_rounds, unit=stage.unit, description=shown)
        place = ", ".join([*filter(None, [stage.name]), f"{stage.unit} {number:,} of {stage.n_rounds:,}"])
        self._ticker.step(number, stage.n_rounds, left, lambda: f"{place}: {', '.join(measures)}")

    def _next(self, record: RoundRecord) -> tuple[TrainingStage, int]:
        """Return the stage of a record that does not name it, and the rounds left of all trainings."""
        round_number = record.round_number
        what, number = (
            ("fold", record.fold) if record.fold else ("seed", record.seed) if self._several_seeds else ("", 0)
        )
        if (what, number) != self._at[:2] or round_number <= self._at[2]:
            self._started += 1
        self._at = what, number, round_number
        left = max(self._n_trainings - self._started, 0) * self._n_rounds + self._n_rounds - round_number
        return TrainingStage(f"{what} {number}" if what else "", self._n_rounds, self._step), left


def training_progress(
    parameters: TrainParameters,
    several: int = 1,
    *,
    log_every: int | None = None,
    on_message: Callable[[str], object] | None = None,
) -> TrainingProgress:
    """Return the progress of ``several`` seeds, including cross-validations that choose the number of rounds."""
    folds = parameters.folds if parameters.rounds_by == "cv" else 0
    return TrainingProgress(
        parameters.n_rounds,
        n_trainings=max(several, 1) * (folds + 1),
        several_seeds=several > 1,
        log_every=log_every,
        on_message=on_message,
    )


@contextmanager
def verbosely(
    verbose: int,
    parameters: TrainParameters,
    choices: str = "",
    note: str = "",
    *,
    folds_alone: bool = False,
    step: str = "round",
) -> Iterator[TrainingProgress]:
    """Yield the progress of a training from Python: of the whole training, or only of its folds if ``folds_alone``.

    ``verbose`` 0 or False: no output; 1 or True: ``note``, and a line on stderr about every :data:`LOG_SECONDS`; N
    above 1: ``choices``, those of the preset, and a line after every N rounds.  A compilation of kernels is announced,
    too.  ``step`` is what a round is called.

    Raises
    ------
    InvalidParameter
        ``verbose`` is no whole number of 0 or more.
    """
    every = whole_number("verbose", int(verbose) if isinstance(verbose, bool) else verbose)
    if every < 0:
        raise InvalidParameter(f"verbose must be 0 or more, got {verbose}")
    folds = parameters.folds if folds_alone or parameters.rounds_by == "cv" else 0
    progress = TrainingProgress(
        parameters.n_rounds,
        n_trainings=folds + (not folds_alone),
        step=step,
        log_every=None if every == 1 else every,
        bar=False,
    )
    if first := choices if every > 1 else note * every:
        to_stderr(first)
    with compilation_announced(to_stderr) if every else nullcontext(), progress:
        yield progress


def _measures(record: RoundRecord) -> list[str]:
    return [
        f"{split} {name} {value:.4f}" for split, metrics in record.metrics.items() for name, value in metrics.items()
    ]


def to_stderr(line: str) -> None:
    """Write a line on stderr at once."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


class TrialsProgress(TerminalBar):
    """Context manager that counts trials and shows the best score so far.

    Arguments are those of `rankmill.trainer.progress.TrainingProgress`.

    ``n_trials`` None: the time limits them.
    """

    def __init__(
        self,
        n_trials: int | None,
        *,
        log_every: int | None = None,
        on_message: Callable[[str], object] | None = None,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        console = console or stderr_console()
        visible = log_every is None and console.is_terminal
        counted = "trial {task.completed:.0f}" + ("" if n_trials is None else "/{task.total:.0f}")
        super().__init__(counted, "{task.description}", console, shown=visible)
        self._task = self._progress.add_task("", total=n_trials)
        self._ticker = Ticker(0 if visible else log_every, on_message, clock)
        self._n_trials, self._done = n_trials, 0
        self._best: tuple[float, int] | None = None

    def update(self, trial: int, score: float | None, measure: str, *, higher_is_better: bool) -> None:
        """Record that ``trial`` is done; ``score`` is None if it failed."""
        self._done += 1
        if score is not None:
            signed = score if higher_is_better else -score
            if self._best is None or signed > self._best[0]:
                self._best = signed, trial
        best = "" if self._best is None else f"{measure} {abs(self._best[0]):.4f} by trial {self._best[1]}"
        self._progress.update(self._task, advance=1, description=best)
        this = "failed" if score is None else f"{score:.4f}"
        last = self._n_trials or 0
        counted = f"{self._done} of {last}" if last else f"{self._done} done"
        self._ticker.step(
            self._done,
            last,
            last - self._done,
            lambda: f"trial {trial}, {counted}: {this}" + (f"; best {best}" if best else ""),
        )


def say_of_gains(dataset: Dataset, gain: str, say: Callable[[str], object] | None = None) -> None:
    """Say, by default on stderr, if with this ``gain`` some grades of ``dataset`` count next to nothing."""
    if note := note_on_gains((count.grade for count in dataset.manifest.grades), gain):
        (say or to_stderr)(f"note: {note}")


def note_few_queries(dataset: Dataset, decided: str) -> None:
    """Say on stderr if the valid split, which decides ``decided``, has few queries."""
    import numpy as np

    from rankmill.scorer.metrics.arrangement import queries_that_differ
    from rankmill.scorer.metrics.significance import FEW_QUERIES

    grades = dataset.rows("valid", ("grade",)).column(0).to_numpy().astype(np.int32)
    differ = queries_that_differ(grades, dataset.queries("valid").starts)
    counting = int(np.count_nonzero(differ)) if grades.any() else len(differ)  # labels and pairs have no grades
    if 0 < counting < FEW_QUERIES:
        of = f" of {len(differ):,}" * (counting < len(differ))
        what = f"{counting}{of} quer{'y' if counting == len(differ) == 1 else 'ies'}"
        to_stderr(
            f"note: the valid split has only {what}{' with documents of different grades' if of else ''}: {decided} "
            f"is uncertain; all queries of the train split are measured by {command('cv', dataset.path)}"
        )
