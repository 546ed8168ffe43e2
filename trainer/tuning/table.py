"""Results of a search.

These are trials sorted by score, the gain of the best one, and its parameters for rankmill.toml.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import fsum
from typing import Any

import numpy as np

from rankmill.foundation.records import JSON, as_json, to_line
from rankmill.foundation.terminal import text_table
from rankmill.trainer.training_facts import Spread
from rankmill.trainer.tuning.gain import Gain, gain_of
from rankmill.trainer.tuning.searched import Searched
from rankmill.trainer.tuning.trials import DECIMALS, Outcome

_SHOWN_ERRORS = 100


@dataclass(frozen=True, slots=True)
class Row:
    """A trial: its sampled values, its outcome and, if requested, its outcomes with other seeds."""

    trial: int
    values: Mapping[str, Any]
    outcome: Outcome
    repeats: Mapping[int, Outcome]

    @property
    def sound(self) -> list[Outcome]:
        """Its outcomes over seeds, its own first; failures are left out."""
        return [each for each in (self.outcome, *self.repeats.values()) if each.score is not None]

    @property
    def scores(self) -> list[float]:
        """Its scores over seeds."""
        return [each.score for each in self.sound if each.score is not None]

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
        repeats = {seed: _short(outcome) for seed, outcome in self.repeats.items()}
        repeated = {"repeats": as_json(repeats)} if repeats else {}
        if self.over_seeds is not None:
            repeated["over_seeds"] = as_json(self.over_seeds)
        return {"trial": self.trial, "parameters": as_json(self.values), **as_json(_short(self.outcome)), **repeated}


@dataclass(frozen=True, kw_only=True)
class Table:
    """All trials: by score, then by number; failures last."""

    rows: Sequence[Row]
    base: Searched  # the options of trial 0
    measure: str
    higher_is_better: bool
    by_folds: bool
    with_valid: bool  # whether the valid split was in the folds
    dataset_digest: str

    @cached_property
    def best(self) -> Row:
        """The best mean over seeds among repeated trials; without repeats, the best score."""
        best = [row for row in self.rows if row.repeats] or self.rows[:1]
        return max(best, key=lambda row: (row.mean if self.higher_is_better else -row.mean, -row.trial))

    @cached_property
    def winner(self) -> Row:
        """The best trial, or trial 0 if the best one's gain is only luck.

        The luck of the choice is subtracted first.
        """
        if self.gain is None or self.gain.corrected > 0.0:
            return self.best
        return next(row for row in self.rows if row.trial == 0)

    @cached_property
    def gain(self) -> Gain | None:
        """What the best trial gains over trial 0; None if trial 0 failed, or the measure has no values of queries."""
        rows = sorted((row for row in self.rows if row.sound), key=lambda row: row.trial)
        found = [[each.by_query for each in row.sound if each.by_query is not None] for row in rows]
        if rows[0].trial or any(len(of_row) < len(row.sound) for of_row, row in zip(found, rows, strict=True)):
            return None
        values = np.array([np.mean(np.array(of_row, dtype=np.float64), axis=0) for of_row in found])  # None is NaN
        sign = 1.0 if self.higher_is_better else -1.0
        whole = np.rint(sign * 10**DECIMALS * values[:, ~np.isnan(values).any(axis=0)]).astype(np.int64)
        return gain_of(whole, [row.trial for row in rows].index(self.best.trial), 10.0**-DECIMALS)

    def to_dict(self) -> dict[str, JSON]:
        """Return everything as plain values, but for the values of queries."""
        return {
            "dataset_digest": self.dataset_digest,
            "measure": self.measure,
            "on": ("folds of train and valid" if self.with_valid else "folds") if self.by_folds else "valid",
            "parameters": self.base.stored(),
            "trials": [row.to_dict() for row in self.rows],
            "best": self.best.trial,
            "gain": as_json(self.gain),
            "winner": self.winner.trial,
            "train": self.section(),
        }

    def to_json(self) -> str:
        """Return one JSON object in one line."""
        return to_line(self.to_dict())

    def section(self) -> dict[str, JSON]:
        """Return the winner's parameters as ``[train]`` takes them: those that it would not have without being given.

        Folds choose the number of rounds: the mean over seeds; the valid split then ends no training.
        """
        rounds = [each.best_round or 1 for each in self.winner.sound]
        mean = round(fsum(rounds) / len(rounds)) if self.by_folds else None
        return self.base.section(self.winner.values, mean)

    def winner_toml(self) -> str:
        """Return the section as text, ready to be pasted into ``rankmill.toml`` beside the name of the model."""
        lines = [f"{name} = {_toml(value)}" for name, value in self.section().items()]
        return "\n".join(["[train]", *lines]) + "\n"

    def render(self, most: int = 20) -> str:
        """Return the table, its first ``most`` rows and those that failed, and the winner."""
        varied = list(dict.fromkeys(name for row in self.rows for name in row.values))
        head = ["trial", self.measure, f"{self.base.unit}s", "over seeds", *varied]
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
                    *(_shown(row.values.get(name, getattr(self.base.options, name))) for name in varied),
                ]
            )
        lines = [text_table(head, rows[:most])]
        if len(rows) > most:
            lines.append(f"and {len(rows) - most:,} more")
        lines += failed[:most]
        if self.gain is not None:
            lines += ["", self.gain.render(self.measure, self.best.trial)]
        if self.winner.outcome.note is not None:
            lines += ["", f"note: {self.winner.outcome.note}"]
        return "\n".join([*lines, "", f"the winner, trial {self.winner.trial}, for rankmill.toml:", self.winner_toml()])


def _short(outcome: Outcome) -> Outcome:
    """Return the outcome without the values of queries, which stay in the trial's file."""
    return replace(outcome, by_query=None)


def _shown(value: Any) -> str:
    if isinstance(value, tuple):  # as on the command line
        return f"({','.join(map(str, value))})"
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
