"""How the training went: the metric after every round, of each seed, and how much chance there is between seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

TRAIN = "train"
MOST_POINTS = 400  # of a curve; longer ones are thinned, their ends and best rounds kept
_DECIDING = ("valid", "holdout", "cv", "test")  # sets that say how many rounds are kept, in order of preference

Facts = dict[str, Any]


def learning_facts(training: Mapping[str, Any] | None, metric: str | None = None) -> Facts | None:
    """Tell the curves of ``training``, what ``WORK/model/training.json`` holds; None where it has none.

    ``seeds`` are objects with ``seed``, ``best_round`` and ``curves`` (`rankmill.trainer.history.TrainingResult.curves`); one of them may
    be ``chosen``, or the object itself names it.  ``metric`` is shown where it was measured, else the first one that was.
    """
    if training is None:
        return None
    runs = [run for run in _rows(training.get("seeds")) if _metrics_of(run)]
    if not runs:
        return None
    sets = list(_metrics_of(runs[0]))
    deciding = next((name for name in _DECIDING if name in sets), None)
    measured = list(_metrics_of(runs[0])[deciding or sets[0]])
    wanted = [metric, training.get("stop_metric"), training.get("metric"), *measured]
    shown = next(name for name in wanted if name in measured)
    told = [_run(run, sets, shown) for run in runs]
    named = training.get("chosen")
    averaged = len(told) > 1 and training.get("choose") == "average"
    for run in told:
        run["chosen"] = (
            averaged or len(told) == 1 or bool(run["chosen"]) or (named is not None and run["seed"] == named)
        )
    return {
        "metric": shown,
        "deciding": deciding,
        "averaged": averaged,
        "seeds": told,
    }


def _rows(value: object) -> list[Mapping[str, Any]]:
    if isinstance(value, Mapping):  # by seed
        return [{"seed": int(seed), **row} for seed, row in value.items() if isinstance(row, Mapping)]
    return [row for row in value if isinstance(row, Mapping)] if isinstance(value, Sequence) else []


def _metrics_of(run: Mapping[str, Any]) -> Mapping[str, Mapping[str, Sequence[float | None]]]:
    curves = run.get("curves") or run.get("history") or {}
    found = curves.get("metrics") if isinstance(curves, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _run(run: Mapping[str, Any], sets: Sequence[str], metric: str) -> Facts:
    metrics, best = _metrics_of(run), run.get("best_round")
    rounds = max((len(metrics[name].get(metric, ())) for name in sets if name in metrics), default=0)
    kept = _thinned(rounds, best)
    curves = {
        name: [metrics[name][metric][n - 1] for n in kept]
        for name in sets
        if len(metrics.get(name, {}).get(metric, ())) == rounds
    }
    at_best = {name: metrics[name][metric][best - 1] for name in curves if isinstance(best, int) and 0 < best <= rounds}
    return {
        "seed": run.get("seed"),
        "chosen": bool(run.get("chosen")),
        "best_round": best,
        "rounds_trained": rounds,
        "rounds": kept,
        "curves": curves,
        "at_best": at_best,
    }


def _thinned(rounds: int, best: object) -> list[int]:
    """Return the rounds to show: all of them, or about `MOST_POINTS` at even distances, the last and the best among them."""
    step = max(1, -(-rounds // MOST_POINTS))
    kept = {*range(1, rounds + 1, step), *([rounds] if rounds else [])}
    if isinstance(best, int) and 0 < best <= rounds:
        kept.add(best)
    return sorted(kept)


def noise_facts(training: Mapping[str, Any] | None, manifest: Mapping[str, Any], metric: str) -> Facts | None:
    """Tell the spread of ``metric`` over seeds on queries that nobody learnt from; None where one seed was trained.

    It is that of the training, else that of the version's manifest, whose ``seeds`` say the same without curves.
    """
    kept = manifest.get("seeds")
    for told in (training, kept if isinstance(kept, Mapping) else None):
        found = (told or {}).get("noise_floor")
        if told is None or not isinstance(found, Mapping):
            continue
        seeds = [run.get("seed") for run in _rows(told.get("seeds") or told.get("trained"))]
        for name in ("test", *_DECIDING):
            of_split = found.get(name)
            spread = of_split.get(metric) if isinstance(of_split, Mapping) else None
            if isinstance(spread, Mapping) and {"deviation", "least", "greatest"} <= spread.keys():
                return {
                    "split": name,
                    "metric": metric,
                    "seeds": seeds,
                    **{key: spread.get(key) for key in ("mean", "deviation", "least", "greatest")},
                }
    return None
