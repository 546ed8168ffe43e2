"""A file of metrics for the textfile collector of Prometheus' node exporter, replaced atomically when a run ends.

Values that a run does not update (of stages skipped or not reached, and the time of the last success if a run fails) are kept from
the previous run.  Every series has the label ``model``, since the collector merges the files of a folder and rejects duplicate
series.  A textfile has no timestamps: times are values.

The format is Prometheus' text format 0.0.4: ``# HELP`` and ``# TYPE`` once before the samples of a name; backslash and line feed are
escaped in help texts, in label values also the double quote.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import rankmill
from rankmill.foundation.exit_codes import DONE
from rankmill.foundation.storage.publish import write_atomically
from rankmill.run.events import Event, Outcome, RunEnded, RunStarted, StageDone, StageStarted
from rankmill.run.log_lines import peak_memory
from rankmill.run.plain_json import Clock, Stopwatch, plain
from rankmill.run.stage_facts import (
    BinFacts,
    ClicksFacts,
    DriftFacts,
    EvaluateFacts,
    Facts,
    GateFacts,
    IngestFacts,
    PromoteFacts,
    RerankFacts,
    TrainFacts,
)

_HELP = {
    "rankmill_last_success_timestamp_seconds": "End time of the last run with exit code 0.",
    "rankmill_last_run_timestamp_seconds": "End time of the last run.",
    "rankmill_last_run_exit_code": "Exit code of the last run.",
    "rankmill_last_run_outcome": "1 for the outcome of the last run, 0 for the others.",
    "rankmill_last_run_duration_seconds": "Duration of the last run.",
    "rankmill_last_run_peak_memory_bytes": "Peak memory of the last run.",
    "rankmill_last_run_stages": "Number of stages that the last run executed.",
    "rankmill_previous_run_died": "1 if the run before the last one ended without a record (killed, out of memory).",
    "rankmill_stage_duration_seconds": "Duration of the last complete execution of the stage.",
    "rankmill_rows": "Documents that the stage wrote or ranked.",
    "rankmill_queries": "Queries that the stage wrote or ranked.",
    "rankmill_rejected_rows": "Malformed rows that the stage quarantined.",
    "rankmill_metric": "Mean of the metric on the split, for the version trained last.",
    "rankmill_gate_passed": "1 if the version trained last passed the gate, else 0.",
    "rankmill_gate_difference": "Mean difference between the candidate and its baseline in the gate.",
    "rankmill_gate_difference_low": "Lower end of the 95 % interval of that difference.",
    "rankmill_gate_difference_high": "Upper end of the 95 % interval of that difference.",
    "rankmill_drift_psi_max": "Largest population stability index of a feature or of the grades.",
    "rankmill_clicks": "Clicks in the log.",
    "rankmill_clicks_corrected": "1 if the log supports a correction for position, otherwise 0.",
    "rankmill_drift_alarms": "Number of features that drifted, appeared or disappeared; the grades count as one.",
    "rankmill_model_version": "Number of the version trained last.",
    "rankmill_model_info": "1, with what identifies the version trained last.",
    "rankmill_alias_version": "Number of the version that the alias points to.",
    "rankmill_build_info": "1, with the version of rankmill.",
}
_COUNTS = ("rankmill_rows", "rankmill_queries", "rankmill_rejected_rows")
_DIFFERENCE = ("rankmill_gate_difference", "rankmill_gate_difference_low", "rankmill_gate_difference_high")
_SEVERAL = dict.fromkeys((*_COUNTS, "rankmill_stage_duration_seconds"), "stage") | {"rankmill_alias_version": "alias"}
"""Metrics with several series that are updated at different times, and the label that distinguishes them."""
_OF_THE_RUN = ("rankmill_last_run", "rankmill_previous_run", "rankmill_build")
_RUN = "run"


class PrometheusFile:
    """Observer that replaces ``path`` when a run ends; ``model`` is a label of all series."""

    def __init__(self, path: Path, model: str, clock: Clock | None = None) -> None:
        self._path = path
        self._model = model
        self._clock = clock or Clock()
        self._watch = Stopwatch(self._clock)
        self._samples: list[Sample] = []
        self._renewed: set[tuple[str, str]] = set()
        self._stages = 0
        self._died = False

    def __call__(self, event: Event) -> None:
        """Collect values; write them at the end."""
        match event:
            case RunStarted():
                self._watch.start(_RUN)
                self._died = event.died is not None
            case StageStarted():
                self._watch.start(event.stage)
                self._stages += 1
            case StageDone():
                self._add(
                    "rankmill_stage_duration_seconds", round(self._watch.lasted(event.stage), 3), stage=event.stage
                )
                self._add_facts(event.stage, event.facts)
            case RunEnded():
                self._end(event)
            case _:
                pass

    def _end(self, event: RunEnded) -> None:
        now = round(self._clock.now().timestamp(), 3)
        self._add("rankmill_build_info", 1, version=rankmill.__version__)
        self._add("rankmill_last_run_timestamp_seconds", now)
        if event.exit_code == DONE:
            self._add("rankmill_last_success_timestamp_seconds", now)
        self._add("rankmill_last_run_exit_code", event.exit_code)
        for outcome in get_args(Outcome):
            self._add("rankmill_last_run_outcome", outcome == event.outcome, outcome=outcome)
        self._add("rankmill_last_run_duration_seconds", round(self._watch.lasted(_RUN), 3))
        self._add("rankmill_last_run_peak_memory_bytes", peak_memory())
        self._add("rankmill_last_run_stages", self._stages)
        self._add("rankmill_previous_run_died", self._died)
        samples = {sample.series: sample for sample in (*self._kept(), *self._samples)}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self._path, exposition(samples.values(), _HELP).encode())

    def _kept(self) -> Iterator[Sample]:
        """Yield the samples of the file that this run has not updated."""
        try:
            text = self._path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            return
        for sample in read_exposition(text):
            labels = dict(sample.labels)
            mine = labels.get("model") == self._model
            if (
                mine
                and not sample.name.startswith(_OF_THE_RUN)
                and _replaced_together(sample.name, labels) not in self._renewed
            ):
                yield sample

    def _add_facts(self, stage: str, facts: Facts) -> None:
        match facts:
            case ClicksFacts():
                self._add_counts(stage, facts.judgments, facts.queries)
                self._add("rankmill_clicks", facts.clicks)
                self._add("rankmill_clicks_corrected", facts.model is not None)
            case IngestFacts():
                self._add_counts(stage, facts.rows, facts.queries, facts.rejected)
            case RerankFacts():
                self._add_counts(stage, facts.rows_written, facts.queries)
            case BinFacts(drift=DriftFacts(psi_max=float() as psi, alarms=alarms)):
                self._add("rankmill_drift_psi_max", psi)
                self._add("rankmill_drift_alarms", len(alarms))
            case TrainFacts():
                number = facts.model.rpartition("@")[2]
                self._add("rankmill_model_version", int(number))
                self._add("rankmill_model_info", 1, version=number, sha256=facts.sha256)
            case EvaluateFacts():
                for metric, each in facts.metrics.items():
                    if each.mean is not None:
                        self._add("rankmill_metric", each.mean, metric=metric, split=facts.split)
            case GateFacts():
                self._add("rankmill_gate_passed", facts.passed, alias=facts.alias)
                labels = {"alias": facts.alias, "metric": facts.metric, "against": facts.against}
                for name, value in zip(_DIFFERENCE, (facts.difference, *facts.interval), strict=True):
                    self._add(name, value, **labels)
            case PromoteFacts():
                for alias in facts.moved:
                    self._add("rankmill_alias_version", int(facts.model.rpartition("@")[2]), alias=alias)
            case _:
                pass

    def _add_counts(self, stage: str, *counts: int) -> None:
        for name, count in zip(_COUNTS, counts, strict=False):
            self._add(name, count, stage=stage)

    def _add(self, name: str, value: float, **labels: str) -> None:
        self._renewed.add(_replaced_together(name, labels))
        self._samples.append(Sample.of(name, value, {"model": self._model} | {k: plain(v) for k, v in labels.items()}))


def _replaced_together(name: str, labels: Mapping[str, str]) -> tuple[str, str]:
    """Return the key of samples that replace each other, so that an old version does not remain beside the current one."""
    return name, labels.get(_SEVERAL.get(name, ""), "")


_LABEL = r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\[\\"n])*)"'
_SAMPLE = re.compile(rf"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{{((?:{_LABEL},?)*)\}})? (\S+)")
_PAIR = re.compile(_LABEL)
_ESCAPES = {"\\": "\\\\", "\n": "\\n", '"': '\\"'}
_UNESCAPED = {escaped: letter for letter, escaped in _ESCAPES.items()}

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Sample:
    """A sample: one number."""

    name: str
    labels: Labels
    value: float

    @classmethod
    def of(cls, name: str, value: float, labels: Mapping[str, str]) -> Sample:
        """Make a sample with labels in the order of ``labels``."""
        return cls(name, tuple(labels.items()), float(value))

    @property
    def series(self) -> tuple[str, frozenset[tuple[str, str]]]:
        """The identity of the series."""
        return self.name, frozenset(self.labels)


def exposition(samples: Iterable[Sample], helps: Mapping[str, str]) -> str:
    r"""Format ``samples``, with names in the order of ``helps``; those without a help text are omitted.

    >>> print(exposition([Sample.of("up", 1, {"of": 'a "b"'})], {"up": "Whether."}), end="")
    # HELP up Whether.
    # TYPE up gauge
    up{of="a \"b\""} 1
    """
    by_name: dict[str, list[Sample]] = {}
    for sample in samples:
        by_name.setdefault(sample.name, []).append(sample)
    lines = []
    for name, text in helps.items():
        if name in by_name:
            lines += [f"# HELP {name} {_escaped(text, 'help')}", f"# TYPE {name} gauge"]
            lines += sorted(_line(sample) for sample in by_name[name])
    return "".join(f"{line}\n" for line in lines)


def read_exposition(text: str) -> list[Sample]:
    """Parse the output of `exposition`; other lines are skipped."""
    found = []
    for line in text.split("\n"):
        match = None if line.startswith("#") else _SAMPLE.fullmatch(line)
        if match is None:
            continue
        labels = tuple((name, _unescaped(value)) for name, value in _PAIR.findall(match[2] or ""))
        try:
            found.append(Sample(match[1], labels, float(match[match.re.groups])))
        except ValueError:
            continue
    return found


def _line(sample: Sample) -> str:
    labels = ",".join(f'{name}="{_escaped(value, "label")}"' for name, value in sample.labels)
    return f"{sample.name}{{{labels}}} {_number(sample.value)}" if labels else f"{sample.name} {_number(sample.value)}"


def _escaped(text: str, where: str) -> str:
    return "".join(_ESCAPES.get(letter, letter) if letter != '"' or where == "label" else letter for letter in text)


def _unescaped(text: str) -> str:
    return re.sub(r"\\.", lambda match: _UNESCAPED[match[0]], text)


def _number(value: float) -> str:
    if math.isfinite(value):
        return str(int(value)) if value == int(value) and abs(value) < 2**53 else repr(value)
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
