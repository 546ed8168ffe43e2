"""Results of a search: trials sorted by score, their spread over seeds, and the best one as a section of rankmill.toml."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import fsum
from typing import Any

from rankmill.foundation.records import JSON, as_json, to_line
from rankmill.foundation.terminal import text_table
from rankmill.foundation.training_facts import STORED_DEFAULTS, Spread
from rankmill.trainer.parameters import OLDEST, TrainParameters, options_for
from rankmill.trainer.tuning.trials import Outcome

_SHOWN_ERRORS = 100


@dataclass(frozen=True, slots=True)
class Row:
    """A trial: its sampled values, its outcome and, if requested, its outcomes with other seeds."""

    trial: int
    values: Mapping[str, Any]
    outcome: Outcome
    repeats: Mapping[int, Outcome]

    @property
    def scores(self) -> list[float]:
        """Its scores over seeds, its own first; failures are left out."""
        outcomes = [self.outcome, *self.repeats.values()]
        return [each.score for each in outcomes if each.score is not None]

    @property
    def mean(self) -> float:
        """The mean over seeds."""
        return fsum(self.scores) / len(self.scores)

    @property
    def over_seeds(self) -> Spread | None:
        """The spread over seeds, if it has two scores or more."""
        return Spread.of(self.scores) if len(self.scores) > 1 else None

    def to_dict(self) -> dict[str, JSON]:
        """Return plain values."""
        repeated = {"repeats": as_json(self.repeats)} if self.repeats else {}
        if self.over_seeds is not None:
            repeated["over_seeds"] = as_json(self.over_seeds)
        return {"trial": self.trial, "parameters": dict(self.values), **as_json(self.outcome), **repeated}


@dataclass(frozen=True, kw_only=True)
class Table:
    """All trials: by rung reached, then by score, then by number; failures last."""

    rows: Sequence[Row]
    parameters: TrainParameters
    measure: str
    higher_is_better: bool
    by_folds: bool
    search: str
    dataset_digest: str

    @cached_property
    def winner(self) -> Row:
        """The best mean over seeds among repeated trials; without repeats, the best score."""
        best = [row for row in self.rows if row.repeats] or self.rows[:1]
        return max(best, key=lambda row: (row.mean if self.higher_is_better else -row.mean, -row.trial))

    def to_dict(self) -> dict[str, JSON]:
        """Return everything as plain values; the preset only if it is not the default, as older tables have none."""
        stored = self.parameters.stored()
        return {
            "dataset_digest": self.dataset_digest,
            "search": self.search,
            "measure": self.measure,
            "on": "folds" if self.by_folds else "valid",
            "parameters": {
                name: stored[name] for name in stored if (name, stored[name]) != ("preset", STORED_DEFAULTS)
            },
            "trials": [row.to_dict() for row in self.rows],
            "winner": self.winner.trial,
            "train": self.section(),
        }

    def to_json(self) -> str:
        """Return one JSON object in one line."""
        return to_line(self.to_dict())

    def section(self) -> dict[str, JSON]:
        """Return the winner's parameters as ``[train]`` takes them: those that it would not have without being given.

        If folds chose the number of rounds, and there is no valid split to do so again, that number is included.
        """
        parameters = {**self.parameters.as_dict(), **self.winner.values}
        if self.by_folds:
            parameters["n_rounds"] = self.winner.outcome.best_round
        if parameters["stop_metric"] == parameters["metric"]:
            parameters["stop_metric"] = OLDEST.stop_metric
        needed = options_for(parameters).keys() | {"metric"}
        return {name: value for name, value in parameters.items() if name in needed}

    def winner_toml(self) -> str:
        """Return the section as text, ready to be pasted into ``rankmill.toml`` beside the name of the model."""
        lines = [f"{name} = {_toml(value)}" for name, value in self.section().items()]
        return "\n".join(["[train]", *lines]) + "\n"

    def render(self, most: int = 20) -> str:
        """Return the table, its first ``most`` rows and those that failed, and the winner."""
        varied = list(dict.fromkeys(name for row in self.rows for name in row.values))
        head = ["trial", self.measure, "rounds", "over seeds", *varied]
        rows, failed = [], []
        for row in self.rows:
            outcome = row.outcome
            if outcome.score is None:
                failed.append(f"trial {row.trial} failed: {(outcome.error or '')[:_SHOWN_ERRORS]}")
                continue
            spread = row.over_seeds
            rows.append(
                [
                    f"{row.trial}{' *' if row is self.winner else ''}",
                    f"{outcome.score:.4f}",
                    f"{outcome.best_round:,}/{outcome.trained:,}",
                    "" if spread is None else f"{spread.mean:.4f} +- {spread.deviation:.4f} ({len(row.scores)})",
                    *(_shown(row.values.get(name, getattr(self.parameters, name))) for name in varied),
                ]
            )
        lines = [text_table(head, rows[:most])]
        if len(rows) > most:
            lines.append(f"and {len(rows) - most:,} more")
        lines += failed[:most]
        return "\n".join([*lines, "", f"the winner, trial {self.winner.trial}, for rankmill.toml:", self.winner_toml()])


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _toml(value: Any) -> str:
    """Return a value of a parameter in TOML."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return (
            "{"
            + ", ".join(f"{json.dumps(key, ensure_ascii=False)} = {_toml(each)}" for key, each in value.items())
            + "}"
        )
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)
