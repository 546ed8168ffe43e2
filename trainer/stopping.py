"""When to stop: the best round so far, and how long ago it was."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class EarlyStopping:
    """Watch one value, a metric of the valid split for one; equal values do not count as better: the earliest wins."""

    patience: int  # rounds without a better value before stopping; 0: never stop
    higher_is_better: bool = True
    best_round: int = 0
    best_value: float = float("nan")
    min_improvement: float = 0.0  # a value is better only if it is so by more than this

    def update(self, round_number: int, value: float) -> bool:
        """Take the value after round 1, 2, ..; return whether to stop.  NaN is never better."""
        gained = value - self.best_value if self.higher_is_better else self.best_value - value
        better = gained > self.min_improvement
        if better or (self.best_round == 0 and value == value):  # noqa: PLR0124 - false for NaN only
            self.best_round, self.best_value = round_number, value
        return self.patience > 0 and round_number - self.best_round >= self.patience
