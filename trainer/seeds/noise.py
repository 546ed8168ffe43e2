"""The noise floor: how much metrics differ between trainings that differ in their seed only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import fsum, sqrt
from typing import Any

from rankmill.trainer.history import TRAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A metric over several seeds."""

    mean: float
    deviation: float
    """Standard deviation, n - 1 below, as that of :class:`rankmill.scorer.comparison.SeedNoise`."""
    least: float
    greatest: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Return the spread of two values or more."""
        mean = fsum(values) / len(values)
        deviation = sqrt(fsum((value - mean) ** 2 for value in values) / (len(values) - 1))
        return cls(mean=mean, deviation=deviation, least=min(values), greatest=max(values))

    def to_dict(self) -> dict[str, float]:
        """Return plain values."""
        return {"mean": self.mean, "deviation": self.deviation, "least": self.least, "greatest": self.greatest}


@dataclass(frozen=True, slots=True)
class NoiseFloor:
    """Of every metric that all seeds have measured, by split; what is learnt from is left out."""

    seeds: tuple[int, ...]
    splits: Mapping[str, Mapping[str, Spread]]

    @classmethod
    def of(cls, seeds: Sequence[int], metrics: Sequence[Mapping[str, Mapping[str, float]]]) -> NoiseFloor:
        """Take the metrics by split of each of the ``seeds``, two or more."""
        splits = {
            split: {
                metric: Spread.of([of_seed[split][metric] for of_seed in metrics])
                for metric in found
                if all(metric in of_seed.get(split, {}) for of_seed in metrics)
            }
            for split, found in metrics[0].items()
            if split != TRAIN
        }
        return cls(tuple(seeds), {split: found for split, found in splits.items() if found})

    def to_dict(self) -> dict[str, Any]:
        """Return plain values by split and metric."""
        return {
            split: {metric: spread.to_dict() for metric, spread in found.items()}
            for split, found in self.splits.items()
        }
