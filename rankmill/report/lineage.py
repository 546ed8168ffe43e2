"""What the version was made from, and the commands that make it again, look at it, and take it back."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from rankmill.registry.names import PRODUCTION
from rankmill.trainer.lineage import CIRCUMSTANCES, circumstances_in

if TYPE_CHECKING:
    from rankmill.registry import Version
    from rankmill.report.subject import Subject

MOST_SOURCES = 20
REGISTRY = '"${RANKMILL_REGISTRY:-registry-data}"'
WORK = "WORK"


def lineage_facts(subject: Subject) -> dict[str, Any]:
    """Tell digests, changed parameters, versions of libraries and the files that the data came from."""
    version, manifest = subject.version, subject.version.manifest
    parameters = manifest.get("parameters") or {}
    changed = manifest.get("changed_parameters")
    names = list(parameters) if changed is None else [*changed, *(["seed"] if "seed" not in changed else [])]
    dataset = manifest.get("dataset") or {}
    sources = dataset.get("sources") or {}
    listed = sources.get("list") or []
    circumstances = circumstances_in(version.attachment(CIRCUMSTANCES))
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
        "rounds": subject.forest.n_rounds,
        "rounds_trained": manifest.get("rounds_trained"),
        "trees": subject.forest.n_trees,
        "objective": subject.forest.objective,
        "split_by": dataset.get("split_by"),
        "source_files": sources.get("files"),
        "source_bytes": sources.get("bytes"),
        "sources": [_only(each, "name", "size", "sha256", "split") for each in listed[:MOST_SOURCES]],
        "base_model": _only(manifest["base_model"], "model", "sha256") if manifest.get("base_model") else None,
        "made_with": _only(circumstances, "libraries", "python", "system", "machine") if circumstances else None,
        "gate_code": (subject.gate or {}).get("code"),
    }


def _only(row: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: row.get(name) for name in names}


def _differences(now: dict[str, Any], then: dict[str, Any]) -> dict[str, Any]:
    """Tell in what two manifests differ: parameters by name, and whether data, code and features are the same."""
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
    """Return the commands to look at the version, to make it again and to take it back, each with what it does."""
    version, present = str(subject.version), subject.present
    registry = f"--registry {REGISTRY}"
    told, dataset = [], "DATASET"
    if subject.dataset is not None:
        again = "all of the run again: it does what has changed, and nothing if nothing has"
        told, dataset = [(again, "rankmill run rankmill.toml")], f"{WORK}/dataset"
    train = f"rankmill train {dataset} --name {shlex.quote(subject.name)} {_options(subject.version)}{registry}"
    told.append(("the training alone", train))
    if subject.dataset is None:
        told.append(
            ("its metrics on other queries", f"rankmill evaluate {dataset} --split test --model {version} {registry}")
        )
    if subject.split is not None:
        metrics = " ".join(f"--metric {shlex.quote(str(metric))}" for metric in subject.metrics)
        on = f"--split {subject.split} {metrics}{_conventions(subject)} {registry}"
        told.append(("the means above", f"rankmill evaluate {WORK}/dataset --model {version} {on}"))
        if present is not None and subject.present_forest is not None:
            told.append(
                ("the differences above", f"rankmill compare {present} {version} --on {WORK}/dataset {on}"),
            )
    if subject.gate is not None:
        told.append(
            (
                "what the gate said",
                f"rankmill models gate {version} --show --alias {shlex.quote(subject.alias)} {registry}",
            )
        )
    told.append(("the version's story", f"rankmill models show {version} {registry}"))
    if present is not None:
        told.append(("what differs from the present version", f"rankmill models diff {present} {version} {registry}"))
    return [{"what": what, "command": command} for what, command in told]


def rollback(subject: Subject) -> str | None:
    """Return the command that takes the promotion back; None where the version is not promoted, or was the first."""
    if not subject.promoted:
        return None
    before = [move.version for move in subject.version.state.moves[subject.alias] if move.version is not None]
    earlier = next((number for number in reversed(before) if number != subject.version.number), None)
    if earlier is None:
        return None
    alias = "" if subject.alias == PRODUCTION else f" --alias {shlex.quote(subject.alias)}"
    return f"rankmill models rollback {shlex.quote(subject.name)}{alias} --to {earlier} --registry {REGISTRY}"


def _options(version: Version) -> str:
    """Spell the changed parameters as options of ``rankmill train``."""
    manifest = version.manifest
    parameters = manifest.get("parameters") or {}
    words = []
    for name in manifest.get("changed_parameters") or []:
        value = parameters.get(name)
        option = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            words.append(option if value else f"--no-{name.replace('_', '-')}")
        elif isinstance(value, dict):
            words += [f"{option} {shlex.quote(f'{key}:{each}')}" for key, each in value.items()]
        else:
            words.append(f"{option} {shlex.quote(str(value))}")
    return "".join(f"{word} " for word in words)


def _conventions(subject: Subject) -> str:
    convention = subject.convention
    words = [] if convention.name == "rankmill" else [f"--convention {convention.name}"]
    policy = convention.policy.to_dict()
    words += [f"--{name.replace('_', '-')} {shlex.quote(str(policy[name]))}" for name in convention.changed]
    return "".join(f" {word}" for word in words)
