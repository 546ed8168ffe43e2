"""Facts about the model for the report: learning curves, features and scores, also of the current version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rankmill.foundation.errors import InputError
from rankmill.report import Facts
from rankmill.scorer.forest.forest import Forest, feature_importance
from rankmill.scorer.inspect.dependence import partial_dependence, some_steps
from rankmill.scorer.inspect.paths import OTHER, leaf_paths

if TYPE_CHECKING:
    from rankmill.pipeline.bins.spec import FeatureBins
    from rankmill.report.rankings import Rankings
    from rankmill.report.subject import Subject

MOST_POINTS = 400  # of a curve; longer ones are thinned, but keep their ends and best rounds
_DECIDING = ("valid", "holdout", "cv", "test")  # sets that decide the number of rounds, in order of preference


def learning_facts(
    training: Mapping[str, Any] | None, metric: str | None = None, *, refit: bool = False
) -> Facts | None:
    """Return the curves of ``training``, the content of ``WORK/model/training.json``; None if it has none.

    ``seeds`` are objects with ``seed``, ``best_round`` and ``curves``
    (`rankmill.trainer.rounds.training_result.Curves`).  The chosen seed is marked there with ``chosen``, or named in
    the object itself.  If ``metric`` was not measured, the first one is shown.
    ``refit``: the model was trained again with the valid split, after these curves.
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
    seeds = [_run(run, sets, shown) for run in runs]
    named = training.get("chosen")
    averaged = len(seeds) > 1 and training.get("choose") == "average"
    for run in seeds:
        run["chosen"] = (
            averaged or len(seeds) == 1 or bool(run["chosen"]) or (named is not None and run["seed"] == named)
        )
    return {
        "metric": shown,
        "deciding": deciding,
        "averaged": averaged,
        "refit": refit,
        "seeds": seeds,
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
    """Return the rounds to show: all, or about `MOST_POINTS` evenly spaced ones with the last and the best."""
    step = max(1, -(-rounds // MOST_POINTS))
    kept = {*range(1, rounds + 1, step), *([rounds] if rounds else [])}
    if isinstance(best, int) and 0 < best <= rounds:
        kept.add(best)
    return sorted(kept)


def noise_facts(training: Mapping[str, Any] | None, manifest: Mapping[str, Any], metric: str) -> Facts | None:
    """Return the noise floor of ``metric`` on held-out queries; None if only one seed was trained.

    It is read from the training, else from the version's manifest, whose ``seeds`` have no curves.
    """
    kept = manifest.get("seeds")
    for source in (training, kept if isinstance(kept, Mapping) else None):
        found = (source or {}).get("noise_floor")
        if source is None or not isinstance(found, Mapping):
            continue
        seeds = [run.get("seed") for run in _rows(source.get("seeds") or source.get("trained"))]
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


TOP_FEATURES, TOP_DEPENDENCES = 20, 6
POINTS = 80  # of a curve
SCORE_BINS = 48
MOST_GRADES = 6  # if there are more, the highest are combined


def influence_facts(subject: Subject) -> Facts:
    """Return the 20 most important features with their share of the gains, now and in the current version.

    A model without trees has no gains, so none are shown.
    """
    forest, before = _forests(subject)
    if forest is None:
        return {"features": [], "n_used": len(subject.model.used_features), "n_features": subject.model.n_features,
                "shown_share": 0.0, "before": None}  # fmt: skip
    shares = feature_importance(forest)
    old = {} if before is None else dict(zip(before.feature_names, feature_importance(before).tolist(), strict=True))
    splits = np.bincount(forest.node_feature[forest.node_feature >= 0], minlength=forest.n_features)
    used = [int(f) for f in np.argsort(-shares, kind="stable") if splits[f]]
    rows: list[Facts] = [
        {
            "feature": forest.feature_names[f],
            "influence": float(shares[f]),
            "before": None if before is None else old.get(forest.feature_names[f]),
            "splits": int(splits[f]),
        }
        for f in used[:TOP_FEATURES]
    ]
    return {
        "features": rows,
        "n_used": len(used),
        "n_features": forest.n_features,
        "shown_share": float(sum(row["influence"] for row in rows)),
        "before": None if before is None else str(subject.present),
    }


def dependence_facts(subject: Subject) -> list[Facts]:
    """Return the partial dependence of the score on each of the most important features.

    It is empty for a forest with several outputs or without counts of training rows, and for other models.
    """
    forest, before = _forests(subject)
    if forest is None:
        return []
    shares = feature_importance(forest)
    top = [int(f) for f in np.argsort(-shares, kind="stable")[:TOP_DEPENDENCES] if shares[f] > 0.0]
    names = [forest.feature_names[f] for f in top]
    curves = _curves(forest, names)
    if curves is None:
        return []
    old = {} if before is None else _curves(before, [name for name in names if name in before.feature_names]) or {}
    bins: dict[str, FeatureBins] = {}
    if subject.dataset is not None and subject.dataset.manifest.bins:
        bins = {each.name: each for each in subject.dataset.binspec().features}
    return [
        {
            "feature": name,
            "influence": float(shares[f]),
            "candidate": curves[name],
            "before": old.get(name),
            "values": _spread(bins.get(name)),
        }
        for f, name in zip(top, names, strict=True)
    ]


def _forests(subject: Subject) -> tuple[Forest | None, Forest | None]:
    """Return the version's model and the current one, each only if it is a forest."""
    models = subject.model, subject.present_model
    candidate, present = (model if isinstance(model, Forest) else None for model in models)
    return candidate, present


def _curves(forest: Forest, names: list[str]) -> dict[str, Facts] | None:
    """Return the curve of each feature: the output from the previous point up to each point, and for missing values.

    A categorical feature has an output for each category instead, and for all others.
    """
    if forest.n_outputs > 1:
        return None
    try:
        paths = leaf_paths(forest)
        slots = [paths.slot_of(name) for name in names]
        shown = [0 if name in forest.categories else POINTS for name in names]
        curves = [
            partial_dependence(paths, [name], points=[some_steps(paths, slot, n)])
            for name, slot, n in zip(names, slots, shown, strict=True)
        ]
    except InputError:  # it has no counts of training rows, or too many paths
        return None
    found = {}
    for name, slot, curve in zip(names, slots, curves, strict=True):
        categorical = name in forest.categories
        points, outputs = curve.points[0].astype(np.float64), curve.outputs[0]
        known = ~np.isnan(points) if categorical else np.isfinite(points)
        texts = (curve.categories or {}).get(name, ["missing", OTHER])
        found[name] = {
            **({"categories": list(texts[1:])} if categorical else {"points": points[known].tolist()}),
            "outputs": outputs[known].tolist(),
            "missing": float(outputs[0]),
            "asked_for": slot is not None,
        }
    return found


def _spread(bins: FeatureBins | None) -> Facts | None:
    """Return the distribution of the training rows: minimum, nine deciles (from bins), maximum, and missing share."""
    if bins is None or bins.minimum is None or bins.maximum is None or bins.categorical:
        return None
    ends = [*bins.edges.astype(np.float64).tolist(), float(bins.maximum)]
    summed = np.cumsum(bins.counts[1:])
    n = int(summed[-1])
    if n == 0 or not np.isfinite([bins.minimum, bins.maximum, *ends]).all():
        return None
    deciles = [float(ends[int(np.searchsorted(summed, n * d / 10.0))]) for d in range(1, 10)]
    missing = bins.missing / (n + bins.missing)
    return {"minimum": float(bins.minimum), "maximum": float(bins.maximum), "deciles": deciles, "missing": missing}


def score_facts(rankings: Rankings) -> Facts | None:
    """Count the version's scores by grade in bars of equal width; None if no score is finite or all are equal."""
    scores = rankings.candidate.scores
    grades = rankings.rows.column("grade").to_numpy()
    finite = np.isfinite(scores)
    if not finite.any() or scores[finite].min() == scores[finite].max():
        return None
    low, high = float(scores[finite].min()), float(scores[finite].max())
    edges = np.linspace(low, high, SCORE_BINS + 1)
    place = np.clip(np.searchsorted(edges, scores[finite], side="right") - 1, 0, SCORE_BINS - 1)
    levels = np.unique(grades)
    rows = []
    for i, grade in enumerate(levels[:MOST_GRADES].tolist()):
        last = i == MOST_GRADES - 1 and len(levels) > MOST_GRADES
        chosen = (grades >= grade) if last else (grades == grade)
        own = scores[finite & chosen]
        counts = np.bincount(place[chosen[finite]], minlength=SCORE_BINS)
        median = float(np.sort(own)[(len(own) - 1) // 2]) if len(own) else None
        rows.append(
            {
                "grade": f"{grade} and more" if last else str(grade),
                "documents": int(np.count_nonzero(chosen)),
                "median": median,
                "counts": counts.tolist(),
            }
        )
    return {"edges": edges.tolist(), "grades": rows, "not_finite": int(np.count_nonzero(~finite))}
