"""What a training says about itself: the metrics of every round, and what came out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from scorer.forest import Forest
from trainer.profile import Profile

TRAIN = "train"  # the name under which the rows that are learnt from stand in a record


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """Mean metrics after one round: ``metrics[set][metric]``, the train split first, then the eval sets as given."""

    round_number: int  # 1, 2, ..
    metrics: Mapping[str, Mapping[str, float]]

    @property
    def train(self) -> Mapping[str, float]:
        """The metrics of the rows that are learnt from."""
        return self.metrics[TRAIN]


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """The forest up to its best round, and how it got there."""

    forest: Forest
    best_round: int
    history: tuple[RoundRecord, ...] = field(repr=False)
    profile: Profile | None = field(default=None, repr=False)  # where the time went, if that was asked for
