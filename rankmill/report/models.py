"""What the model looks at, what it makes of it, and the scores it gives; beside the present version's where there is one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rankmill.foundation.errors import InputError
from rankmill.scorer.inspect.dependence import dependence_at, some_steps
from rankmill.scorer.inspect.influence import relative_influence
from rankmill.scorer.inspect.paths import leaf_paths

if TYPE_CHECKING:
    from rankmill.pipeline.binspec import FeatureBins
    from rankmill.report.rankings import Rankings
    from rankmill.report.subject import Subject
    from rankmill.scorer.forest import Forest

TOP_FEATURES, TOP_DEPENDENCES = 20, 6
POINTS = 80  # of a curve
SCORE_BINS = 48
MOST_GRADES = 6  # beyond, the highest go together


def influence_facts(subject: Subject) -> dict[str, Any]:
    """Tell which features the gains of the splits come from, the first 20, and which share they had before."""
    forest, before = subject.forest, subject.present_forest
    shares = relative_influence(forest)
    old = {} if before is None else dict(zip(before.feature_names, relative_influence(before).tolist(), strict=True))
    splits = np.bincount(forest.node_feature[forest.node_feature >= 0], minlength=forest.n_features)
    used = [int(f) for f in np.argsort(-shares, kind="stable") if splits[f]]
    rows: list[dict[str, Any]] = [
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


def dependence_facts(subject: Subject) -> list[dict[str, Any]]:
    """Tell what the score is on average by the values of each of the features of most influence.

    Nothing is told of a forest of several outputs, or one that does not know its training rows.
    """
    shares = relative_influence(subject.forest)
    top = [int(f) for f in np.argsort(-shares, kind="stable")[:TOP_DEPENDENCES] if shares[f] > 0.0]
    names = [subject.forest.feature_names[f] for f in top]
    curves = _curves(subject.forest, names)
    if curves is None:
        return []
    before = subject.present_forest
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


def _curves(forest: Forest, names: list[str]) -> dict[str, dict[str, Any]] | None:
    """Return the curve of each feature: the output at and below each point, down to the one before; and where it is missing."""
    if forest.n_outputs > 1:
        return None
    paths = leaf_paths(forest)
    found = {}
    for name in names:
        slot = paths.slot_of(name)
        try:
            curve = dependence_at(paths, [name], points=[some_steps(paths, slot, POINTS)])
        except InputError:  # it came without the numbers of its training rows
            return None
        points, outputs = curve.points[0].astype(np.float64), curve.outputs[0]
        known = np.isfinite(points)
        found[name] = {
            "points": points[known].tolist(),
            "outputs": outputs[known].tolist(),
            "missing": float(outputs[0]),
            "asked_for": slot is not None,
        }
    return found


def _spread(bins: FeatureBins | None) -> dict[str, Any] | None:
    """Return where the training rows lie: the least, the nine deciles as far as bins tell, the greatest, those missing."""
    if bins is None or bins.minimum is None or bins.maximum is None:
        return None
    ends = [*bins.edges.astype(np.float64).tolist(), float(bins.maximum)]
    summed = np.cumsum(bins.counts[1:])
    n = int(summed[-1])
    if n == 0 or not np.isfinite([bins.minimum, bins.maximum, *ends]).all():
        return None
    deciles = [float(ends[int(np.searchsorted(summed, n * d / 10.0))]) for d in range(1, 10)]
    missing = bins.missing / (n + bins.missing)
    return {"minimum": float(bins.minimum), "maximum": float(bins.maximum), "deciles": deciles, "missing": missing}


def score_facts(rankings: Rankings) -> dict[str, Any] | None:
    """Count the version's scores by grade in bars of equal width; None where no score is a number or all are equal."""
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
