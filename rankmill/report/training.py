"""Facts about the training and the model for the report: learning curves, the spread over seeds, and features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rankmill.report.facts import FeatureShare, InfluenceFacts, LearningFacts, NoiseFacts, SeedCurves
from rankmill.report.subject import Subject
from rankmill.scorer.models.loading import importance_of, splits_of

MOST_POINTS = 400  # of a curve; longer ones are thinned, but keep their ends and best rounds
TOP_FEATURES = 20
_DECIDING = ("valid", "holdout", "cv", "test")  # sets that decide the number of rounds, in order of preference


def learning_facts(subject: Subject) -> LearningFacts | None:
    """Return the curves in ``WORK/model/training.json``; None if it has none.

    ``seeds`` are objects with ``seed``, ``best_round`` and ``curves``
    (`rankmill.trainer.rounds.training_result.Curves`).  The chosen seed is named.  If the deciding metric was not
    measured, the first one is shown.
    """
    training = subject.records["training"]
    runs = [run for run in training.get("seeds") or () if _metrics_of(run)]
    if not runs:
        return None
    sets = list(_metrics_of(runs[0]))
    deciding = next((name for name in _DECIDING if name in sets), None)
    measured = list(_metrics_of(runs[0])[deciding or sets[0]])
    wanted = [str(subject.metric), training.get("stop_metric"), training.get("metric"), *measured]
    metric = next(name for name in wanted if name in measured)
    averaged = len(runs) > 1 and training.get("choose") == "average"
    chosen = {run.get("seed") for run in runs} if averaged or len(runs) == 1 else {training.get("chosen")}
    return LearningFacts(
        metric=metric,
        deciding=deciding,
        averaged=averaged,
        refit="refit" in subject.version.manifest,
        seeds=tuple(_seed(run, sets, metric, chosen=run.get("seed") in chosen) for run in runs),
    )


def _metrics_of(run: Mapping[str, Any]) -> Mapping[str, Mapping[str, Sequence[float | None]]]:
    found: Mapping[str, Mapping[str, Sequence[float | None]]] = (run.get("curves") or {}).get("metrics") or {}
    return found


def _seed(run: Mapping[str, Any], sets: Sequence[str], metric: str, *, chosen: bool) -> SeedCurves:
    metrics, best = _metrics_of(run), run.get("best_round")
    values = {name: metrics[name][metric] for name in sets if metrics.get(name, {}).get(metric)}
    rounds = max(map(len, values.values()), default=0)
    values = {name: row for name, row in values.items() if len(row) == rounds}
    kept = {*range(1, rounds + 1, max(1, -(-rounds // MOST_POINTS))), rounds, best or rounds} & {*range(1, rounds + 1)}
    return SeedCurves(
        seed=run.get("seed"),
        chosen=chosen,
        best_round=best,
        rounds_trained=rounds,
        rounds=tuple(sorted(kept)),
        curves={name: tuple(row[n - 1] for n in sorted(kept)) for name, row in values.items()},
        at_best={name: row[best - 1] for name, row in values.items() if best is not None and 0 < best <= rounds},
    )


def noise_facts(subject: Subject) -> NoiseFacts | None:
    """Return the spread of the deciding metric over the seeds, from the version's manifest; None for one seed."""
    seeds, metric = subject.version.manifest.get("seeds") or subject.records["training"], str(subject.metric)
    for split in ("test", *_DECIDING):
        spread = ((seeds.get("noise_floor") or {}).get(split) or {}).get(metric)
        if spread is not None:
            return NoiseFacts(
                split=split,
                metric=metric,
                seeds=tuple(run["seed"] for run in seeds.get("seeds") or seeds.get("trained") or ()),
                **{name: spread[name] for name in ("deviation", "least", "greatest")},
            )
    return None


def influence_facts(subject: Subject) -> InfluenceFacts:
    """Return the 20 most important features with their share of the gains, now and in the current version.

    Those of the default blend are the mean of its trees.  Another model without trees has no gains, so none are shown.
    """
    model, before = subject.model, subject.present_model
    shares, old = importance_of(model), None
    if shares is None:
        return InfluenceFacts(
            features=(), n_used=len(model.used_features), n_features=model.n_features, shown_share=0.0
        )
    if before is not None and (shares_before := importance_of(before)) is not None:
        old = dict(zip(before.feature_names, shares_before.tolist(), strict=True))
    splits = splits_of(model)
    used = [int(f) for f in np.argsort(-shares, kind="stable") if splits[f]]
    rows = tuple(
        FeatureShare(
            feature=model.feature_names[f],
            influence=float(shares[f]),
            before=None if old is None else old.get(model.feature_names[f]),
            splits=int(splits[f]),
        )
        for f in used[:TOP_FEATURES]
    )
    return InfluenceFacts(
        features=rows,
        n_used=len(used),
        n_features=model.n_features,
        shown_share=float(sum(row.influence for row in rows)),
    )
