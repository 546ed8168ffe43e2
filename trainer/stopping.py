"""When to stop: the best round so far, and how long ago it was."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class EarlyStopping:
    """Watch one metric of the valid split; equal values do not count as better, so the earliest best round wins."""

    patience: int  # rounds without a better value before stopping; 0: never stop
    higher_is_better: bool = True
    best_round: int = 0
    best_value: float = float("nan")

    def update(self, round_number: int, value: float) -> bool:
        """Take the value after round 1, 2, ..; return whether to stop.  NaN is never better."""
        better = value > self.best_value if self.higher_is_better else value < self.best_value
        if better or (self.best_round == 0 and value == value):  # noqa: PLR0124 - false for NaN only
            self.best_round, self.best_value = round_number, value
        return self.patience > 0 and round_number - self.best_round >= self.patience
