"""Provenance in the report: the dataset, the origin of the version, and the commands that reproduce it."""

from __future__ import annotations

import csv
import io
import shlex
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rankmill.foundation.options import values_of
from rankmill.foundation.records import as_json
from rankmill.pipeline.dataset.manifest import SPLITS
from rankmill.pipeline.statistics.describe_dataset import split_summary
from rankmill.pipeline.statistics.feature_statistics import statistics_of
from rankmill.registry.names import PRODUCTION
from rankmill.report import Facts
from rankmill.trainer.parameters import options_for
from rankmill.trainer.training_facts import CIRCUMSTANCES, Circumstances

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rankmill.pipeline.dataset.dataset import Dataset
    from rankmill.registry import Version
    from rankmill.report.subject import Subject

MOST_MISSING, MOST_DRIFTED, MOST_GRADES = 10, 20, 12


def data_facts(subject: Subject) -> Facts:
    """Return sizes, grades, rejected rows, missing values, and queries and features without a training signal.

    Without the dataset only the sizes in the version's manifest are known; the rest is None or empty.
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
            summary = asdict(split_summary(dataset, name))
            summary["grades"] = _grades(summary["grades"])
            splits.append(summary)
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
        "remarks": [*statistics.remarks, *_categories(dataset)],
        "splits": splits,
    }


def _categories(dataset: Dataset) -> list[str]:
    """Return a line about the categorical features and the numbers of their categories, if there are any."""
    names = dataset.manifest.categorical
    return [f"categorical features, with categories: {dataset.vocabulary.summary(names)}"] if names else []


def _from_manifest(subject: Subject) -> Facts:
    manifest = subject.version.manifest
    sizes = manifest.get("dataset") or {}
    splits = sizes.get("splits") or {}
    unknown = ("rejected_rows", "unjudged_rows", "missing_values", "missing_share", "features_with_missing")
    return {
        "digest": manifest.get("dataset_digest"),
        "documents": sizes.get("rows"),
        "queries": sizes.get("queries"),
        "features": subject.model.n_features,
        "max_grade": manifest.get("max_grade") or 1,
        **dict.fromkeys(unknown),
        "most_missing": [],
        "remarks": [],
        "splits": [{"name": name, **splits[name]} for name in SPLITS if name in splits],
    }


def _grades(counts: Mapping[int, int]) -> list[Facts]:
    """Return the documents of each grade; if there are many grades, the highest ones are combined."""
    levels = sorted(counts)
    if len(levels) > MOST_GRADES:
        last = levels[MOST_GRADES - 1]
        rest = sum(counts[grade] for grade in levels[MOST_GRADES - 1 :])
        rows = [{"grade": grade, "documents": counts[grade], "and_above": False} for grade in levels[: MOST_GRADES - 1]]
        return [*rows, {"grade": last, "documents": rest, "and_above": True}]
    return [{"grade": grade, "documents": counts[grade], "and_above": False} for grade in levels]


def drift_facts(drift: Mapping[str, Any] | None) -> Facts | None:
    """Return the drift since the older dataset, the largest first; None if nothing was compared.

    ``drift`` is the result of `rankmill.pipeline.statistics.dataset_drift.DriftComparison.to_json`.
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


MOST_SOURCES = 20
REGISTRY = '"${RANKMILL_REGISTRY:-registry-data}"'
WORK = "WORK"


def lineage_facts(subject: Subject) -> Facts:
    """Return digests, changed parameters, versions of libraries and the source files of the data."""
    version, manifest = subject.version, subject.version.manifest
    parameters = manifest.get("parameters") or {}
    changed = manifest.get("changed_parameters")
    names = list(parameters) if changed is None else [*changed, *(["seed"] if "seed" not in changed else [])]
    dataset = manifest.get("dataset") or {}
    sources = dataset.get("sources") or {}
    listed = sources.get("list") or []
    circumstances = as_json(Circumstances.of(version.attachment(CIRCUMSTANCES)) or {})
    present = None if subject.present is None else subject.present.manifest
    return {
        "version": str(version),
        "model_sha256": version.sha256,
        "model_bytes": version.size,
        "manifest_sha256": version.manifest_sha256,
        "dataset_digest": manifest.get("dataset_digest"),
        "binspec_digest": manifest.get("binspec_digest"),
        "code_digest": manifest.get("code_digest"),
        "preset": parameters.get("preset"),
        "parameters": {name: parameters[name] for name in dict.fromkeys(names) if name in parameters},
        "parameters_in_all": len(parameters) - ("preset" in parameters),
        "differs_from_present": None if present is None else _differences(manifest, present),
        "rounds": subject.model.n_rounds,
        "rounds_trained": manifest.get("rounds_trained"),
        "trees": subject.model.n_trees,
        "objective": subject.model.objective,
        "split_by": dataset.get("split_by"),
        "source_files": sources.get("files"),
        "source_bytes": sources.get("bytes"),
        "sources": [_select(each, "name", "size", "sha256", "split") for each in listed[:MOST_SOURCES]],
        "base_model": _select(manifest["base_model"], "model", "sha256") if manifest.get("base_model") else None,
        "made_with": _select(circumstances, "libraries", "python", "system", "machine") if circumstances else None,
        "gate_code": None if subject.gate is None else subject.gate.code,
    }


def _select(row: Facts, *names: str) -> Facts:
    return {name: row.get(name) for name in names}


def _differences(now: Facts, then: Facts) -> Facts:
    """Return the differences of two manifests: parameters by name, and whether data, code and features are the same."""
    here, there = now.get("parameters") or {}, then.get("parameters") or {}
    return {
        "parameters": {
            name: {"before": there.get(name), "now": here.get(name)}
            for name in sorted(here.keys() | there.keys())
            if here.get(name) != there.get(name)
        },
        "same_data": now.get("dataset_digest") == then.get("dataset_digest"),
        "same_code": now.get("code_digest") == then.get("code_digest"),
        "same_features": now.get("features") == then.get("features"),
    }


def commands(subject: Subject) -> list[dict[str, str]]:
    """Return the commands that show, reproduce and roll back the version, with descriptions."""
    version, present = str(subject.version), subject.present
    registry = f"--registry {REGISTRY}"
    rows, dataset = [], "DATASET"
    if subject.dataset is not None:
        again = "run the pipeline again (only stages with changes)"
        rows, dataset = [(again, "rankmill run rankmill.toml")], f"{WORK}/dataset"
    train = f"rankmill train {dataset} --name {shlex.quote(subject.name)} {_options(subject.version)}{registry}"
    rows.append(("train again", train))
    if subject.dataset is None:
        rows.append(
            ("evaluate on other queries", f"rankmill evaluate {dataset} --split test --model {version} {registry}")
        )
    if subject.split is not None:
        metrics = " ".join(f"--metric {shlex.quote(str(metric))}" for metric in subject.metrics)
        on = f"--split {subject.split} {metrics}{_conventions(subject)} {registry}"
        rows.append(("compute the means above", f"rankmill evaluate {WORK}/dataset --model {version} {on}"))
        if present is not None and subject.present_model is not None:
            rows.append(
                ("compute the differences above", f"rankmill compare {present} {version} --on {WORK}/dataset {on}"),
            )
    if subject.gate is not None:
        rows.append(
            (
                "show the gate report",
                f"rankmill models gate {version} --show --alias {shlex.quote(subject.alias)} {registry}",
            )
        )
    rows.append(("show the version and its history", f"rankmill models show {version} {registry}"))
    if present is not None:
        rows.append(
            ("show the differences from the current version", f"rankmill models diff {present} {version} {registry}")
        )
    return [{"what": what, "command": command} for what, command in rows]


def rollback(subject: Subject) -> str | None:
    """Return the command that undoes the promotion; None if the version is not promoted, or was the first."""
    if not subject.promoted:
        return None
    earlier = subject.version.state.before(subject.alias)
    if earlier is None:
        return None
    alias = "" if subject.alias == PRODUCTION else f" --alias {shlex.quote(subject.alias)}"
    return f"rankmill models rollback {shlex.quote(subject.name)}{alias} --to {earlier} --registry {REGISTRY}"


def _options(version: Version) -> str:
    """Format the parameters as options of ``rankmill train``."""
    parameters = version.manifest.get("parameters")
    words = []
    for name, value in (options_for(parameters) if parameters else {}).items():
        option = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            words.append(option if value else f"--no-{name.replace('_', '-')}")
        elif name == "interaction_constraints":
            words += [f"{option} {shlex.quote(_as_csv(group))}" for group in value]
        elif isinstance(value, dict):
            words += [f"{option} {shlex.quote(f'{key}:{each}')}" for key, each in value.items()]
        else:
            words.append(f"{option} {shlex.quote(str(value))}")
    return "".join(f"{word} " for word in words)


def _as_csv(names: list[str]) -> str:
    """Return names separated by commas, in quotes where they need them."""
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(names)
    return line.getvalue()


def _conventions(subject: Subject) -> str:
    convention = subject.convention
    words = [] if convention.name == "rankmill" else [f"--convention {convention.name}"]
    policy = values_of(convention.policy)
    words += [f"--{name.replace('_', '-')} {shlex.quote(str(policy[name]))}" for name in convention.changed]
    return "".join(f" {word}" for word in words)
