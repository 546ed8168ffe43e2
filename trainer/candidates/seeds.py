"""Training with several seeds: choose or average the forests, and measure the noise floor."""

from __future__ import annotations

from collections.abc import Sequence

from rankmill.foundation.errors import InvalidParameter
from rankmill.foundation.scalars import whole_number
from rankmill.trainer.options import CHOICES, SeedOptions
from rankmill.trainer.rounds.training_result import TRAIN
from rankmill.trainer.training_facts import Metrics, NoiseFloor, Spread

MOST_SEEDS = 100


ONE_SEED = SeedOptions()


def checked_seeds(seeds: Sequence[int], seed: int) -> tuple[int, ...]:
    """Return the seeds in ascending order, so that their given order has no effect.

    It is ``seed`` if there are none.

    >>> checked_seeds([3, 1, 2], 7), checked_seeds([], 7)
    ((1, 2, 3), (7,))

    Raises
    ------
    InvalidParameter
        A seed is invalid or repeated, or there are too many.
    """
    found = [whole_number("seeds", each) for each in seeds]
    for each in found:
        if not 0 <= each <= 2**63 - 1:
            raise InvalidParameter(f"seeds: expected numbers in 0 .. {2**63 - 1}, found {each}")
        if found.count(each) > 1:
            raise InvalidParameter(f"seeds: {each} is given {found.count(each)} times; each seed must be unique")
    if len(found) > MOST_SEEDS:
        raise InvalidParameter(f"seeds: expected at most {MOST_SEEDS}, found {len(found)}")
    return tuple(sorted(found)) or (seed,)


def check_choice(choose: str, seeds: Sequence[int], *, has_valid: bool, link: str) -> None:
    """Raise InvalidParameter if such data does not allow to choose from, or to average, several ``seeds``.

    Parameters
    ----------
    choose
        The requested choice.
    seeds
        The seeds to train; with one there is nothing to choose.
    has_valid
        Whether there is a valid split, whose queries no seed learns from.
    link
        The link of the objective, from sums of trees to a score (:mod:`rankmill.scorer.forest.links`).
    """
    if choose not in CHOICES:
        raise InvalidParameter(f"choose: expected {' or '.join(CHOICES)}, found {choose!r}")
    if len(seeds) < 2:
        return
    if choose == "best" and not has_valid:
        raise InvalidParameter(
            "choose: the best of several seeds is chosen on the valid split, but there is none;"
            " ingest a valid split, or set choose to average"
        )
    if choose == "average" and link != "identity":
        raise InvalidParameter(
            "choose: scores of this objective come from probabilities, which cannot be averaged over"
            " seeds; set choose to best"
        )


def best_of(values: Sequence[float], *, higher_is_better: bool) -> int:
    """Return the index of the best value, the first of equal ones; NaN is never better.

    >>> best_of([0.5, 0.7, 0.7], higher_is_better=True), best_of([float("nan"), 2.0, 1.0], higher_is_better=False)
    (1, 2)
    """
    sign = 1.0 if higher_is_better else -1.0
    return max(range(len(values)), key=lambda i: (values[i] == values[i], sign * values[i], -i))


def noise_floor(metrics: Sequence[Metrics]) -> NoiseFloor:
    """Return how much metrics vary between trainings that differ only in their seed.

    ``metrics`` are by split, for two or more seeds.  The training split and metrics that not all have are left out.
    """
    splits = {
        split: {
            metric: Spread.of([of_seed[split][metric] for of_seed in metrics])
            for metric in found
            if all(metric in of_seed.get(split, {}) for of_seed in metrics)
        }
        for split, found in metrics[0].items()
        if split != TRAIN
    }
    return {split: found for split, found in splits.items() if found}
