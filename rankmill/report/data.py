"""What is in the dataset of the run, as far as it is known without reading features."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rankmill.pipeline.describe import split_summary
from rankmill.pipeline.manifest import SPLITS
from rankmill.pipeline.statistics.stored import statistics_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rankmill.report.subject import Subject

MOST_MISSING, MOST_DRIFTED, MOST_GRADES = 10, 20, 12


def data_facts(subject: Subject) -> dict[str, Any]:
    """Tell sizes, grades, rejected rows, missing values, and queries and features that teach nothing.

    Without the dataset only the sizes are known, as the version's manifest has them; the rest is None or empty.
    """
    dataset = subject.dataset
    if dataset is None:
        return _from_manifest(subject)
    manifest = dataset.manifest
    statistics = statistics_of(dataset)
    gaps = sorted((each for each in statistics.features if each.missing), key=lambda each: -each.missing)
    splits = []
    for name in SPLITS:
        if name in manifest.splits:
            told = asdict(split_summary(dataset, name))
            told["grades"] = _grades(told["grades"])
            splits.append(told)
    return {
        "digest": dataset.digest,
        "documents": manifest.rows,
        "queries": manifest.queries,
        "features": len(manifest.features),
        "max_grade": manifest.max_grade,
        "rejected_rows": manifest.rejected_rows,
        "unjudged_rows": manifest.unjudged_rows,
        "missing_values": manifest.missing_values,
        "missing_share": manifest.missing_values / max(1, manifest.rows * len(manifest.features)),
        "most_missing": [
            {"feature": each.name, "missing": each.missing, "share": each.missing / max(1, manifest.rows)}
            for each in gaps[:MOST_MISSING]
        ],
        "features_with_missing": len(gaps),
        "remarks": statistics.remarks,
        "splits": splits,
    }


def _from_manifest(subject: Subject) -> dict[str, Any]:
    manifest = subject.version.manifest
    told = manifest.get("dataset") or {}
    splits = told.get("splits") or {}
    unknown = ("rejected_rows", "unjudged_rows", "missing_values", "missing_share", "features_with_missing")
    return {
        "digest": manifest.get("dataset_digest"),
        "documents": told.get("rows"),
        "queries": told.get("queries"),
        "features": subject.forest.n_features,
        "max_grade": manifest.get("max_grade") or 1,
        **dict.fromkeys(unknown),
        "most_missing": [],
        "remarks": [],
        "splits": [{"name": name, **splits[name]} for name in SPLITS if name in splits],
    }


def _grades(counts: Mapping[int, int]) -> list[dict[str, Any]]:
    """Return the documents of each grade; of very many grades the highest go together."""
    levels = sorted(counts)
    if len(levels) > MOST_GRADES:
        last = levels[MOST_GRADES - 1]
        rest = sum(counts[grade] for grade in levels[MOST_GRADES - 1 :])
        told = [{"grade": grade, "documents": counts[grade], "and_above": False} for grade in levels[: MOST_GRADES - 1]]
        return [*told, {"grade": last, "documents": rest, "and_above": True}]
    return [{"grade": grade, "documents": counts[grade], "and_above": False} for grade in levels]


def drift_facts(drift: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Tell what moved since the former dataset, the furthest first; None where nothing was compared.

    ``drift`` is what `rankmill.pipeline.drift.compare.Comparison.to_json` says.
    """
    if drift is None or not drift.get("features") or not drift.get("grades"):
        return None
    order = sorted(drift["features"], key=lambda each: -_ratio(each))
    kept = ("name", "psi", "expected", "threshold", "missing", "beyond", "alarm")
    shown = [{key: each.get(key) for key in kept} for each in (drift["grades"], *order[:MOST_DRIFTED])]
    return {
        "against": drift.get("against"),
        "split": drift.get("split"),
        "documents": drift.get("rows"),
        "queries": drift.get("queries"),
        "alarms": list(drift.get("alarms") or ()),
        "came": list(drift.get("came") or ()),
        "went": list(drift.get("went") or ()),
        "n_features": len(order),
        "shown": shown,
    }


def _ratio(drift: Mapping[str, Any]) -> float:
    threshold = float(drift["threshold"])
    return float(drift["psi"]) / threshold if threshold else float("inf")
