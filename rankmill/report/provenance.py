"""Provenance in the report: the dataset, its drift, the click log, and the origin of the version with its commands."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from rankmill.gate.learnt_from_clicks import clicks_of
from rankmill.pipeline.dataset.manifest import SPLITS
from rankmill.pipeline.statistics.describe_dataset import split_summary
from rankmill.pipeline.statistics.feature_statistics import statistics_of
from rankmill.registry.names import PRODUCTION
from rankmill.report.facts import (
    ClicksReport,
    CommandLine,
    DataReport,
    DriftedColumn,
    DriftReport,
    LineageFacts,
    RankFacts,
    SourceFacts,
)
from rankmill.report.subject import Subject
from rankmill.trainer.training_facts import parameters_in_words

MOST_DRIFTED, MOST_SOURCES, MOST_RANKS = 20, 20, 20
REGISTRY = '"${RANKMILL_REGISTRY:-registry-data}"'


def data_facts(subject: Subject) -> DataReport:
    """Return sizes, grades, rejected rows, missing values, and queries and features without a training signal."""
    dataset, manifest = subject.dataset, subject.dataset.manifest
    remarks = list(statistics_of(dataset).remarks)
    if manifest.categorical:
        remarks.append(f"categorical features, with categories: {dataset.vocabulary.summary(manifest.categorical)}")
    return DataReport(
        digest=dataset.digest,
        documents=manifest.rows,
        queries=manifest.queries,
        features=len(manifest.features),
        max_grade=manifest.max_grade,
        rejected_rows=manifest.rejected_rows,
        unjudged_rows=manifest.unjudged_rows,
        missing_values=manifest.missing_values,
        missing_share=manifest.missing_values / max(1, manifest.rows * len(manifest.features)),
        remarks=tuple(remarks),
        splits=tuple(split_summary(dataset, name) for name in SPLITS if name in manifest.splits),
    )


def drift_facts(drift: Mapping[str, Any]) -> DriftReport | None:
    """Return the drift since the older dataset, the largest first; None if nothing was compared.

    ``drift`` is the result of `rankmill.pipeline.statistics.dataset_drift.DriftComparison.to_json`.
    """
    if not drift.get("grades"):
        return None
    order = sorted(drift["features"], key=lambda each: each["threshold"] - each["psi"])
    shown = [drift["grades"], *order[:MOST_DRIFTED]]
    return DriftReport(
        against=drift["against"],
        split=drift.get("split"),
        n_features=len(order),
        shown=tuple(
            DriftedColumn(**{key: each[key] for key in ("name", "psi", "threshold", "alarm")}) for each in shown
        ),
        **{key: tuple(drift.get(key) or ()) for key in ("alarms", "came", "went")},
    )


def click_facts(subject: Subject) -> ClicksReport | None:
    """Return what the click log of the run supports; None if the version was not learnt from clicks."""
    said, described = clicks_of(subject.version), subject.records["described"]
    found = subject.records["clicks"].get("facts")
    if said is None or found is None or not described:
        return None
    model = subject.records["click_model"] if said.model else {}
    examination, low, high = (model.get(name) or [] for name in ("examination", "low", "high"))
    ranks = []
    for row in described["ranks"][:MOST_RANKS]:
        at, shown = row["rank"] - 1, row["impressions"]
        ranks.append(
            RankFacts(
                rank=row["rank"],
                impressions=shown,
                rate=row["clicks"] / shown if shown else None,
                examination=examination[at] if at < len(examination) else None,
                interval=(low[at], high[at]) if at < len(low) else None,
            )
        )
    names = ("why", "estimate", "judgments", "lists", "queries", "clicks")
    return ClicksReport(model=said.model, naive=said.naive, ranks=tuple(ranks), **{name: found[name] for name in names})


def lineage_facts(subject: Subject) -> LineageFacts:
    """Return digests, parameters, what differs from the current version, and the source files of the data."""
    version, manifest = subject.version, subject.version.manifest
    then = {} if subject.present is None else subject.present.manifest
    here, there = (parameters_in_words(each.get("parameters") or {}) for each in (manifest, then))
    set_ = manifest.get("changed_parameters")
    sources = (manifest.get("dataset") or {}).get("sources") or {}
    digests = {
        "model": version.sha256,
        "dataset": manifest.get("dataset_digest"),
        "bins": manifest.get("binspec_digest"),
        "training code": manifest.get("code_digest"),
        "gate code": None if subject.gate is None else subject.gate.code,
        "manifest": version.manifest_sha256,
        "base model": (manifest.get("base_model") or {}).get("sha256"),
    }
    same = {"data": "dataset_digest", "code": "code_digest", "features": "features"}
    return LineageFacts(
        digests={name: digest for name, digest in digests.items() if digest},
        parameters={
            name: here[name] for name in (here if set_ is None else dict.fromkeys([*set_, "seed"])) if name in here
        },
        changed={
            name: (there.get(name), here.get(name))
            for name in (sorted(here.keys() | there.keys()) if then else ())
            if there.get(name) != here.get(name)
        },
        other=tuple(name for name, key in same.items() if then and then.get(key) != manifest.get(key)),
        source_files=sources.get("files"),
        sources=tuple(
            SourceFacts(**{key: each.get(key) for key in ("name", "size", "sha256", "split")})
            for each in (sources.get("list") or ())[:MOST_SOURCES]
        ),
    )


def commands(subject: Subject) -> tuple[CommandLine, ...]:
    """Return the commands that show and evaluate the version."""
    version, present = str(subject.version), subject.present
    rows = [("show the version, its parameters and its history", f"rankmill models show {version}")]
    if subject.records["train"]:
        rows.insert(0, ("run the pipeline again (only stages with changes)", "rankmill run rankmill.toml"))
    if subject.split is not None and present is not None and subject.present_model is not None:
        on = f"--on DATASET --split {subject.split}"
        rows.append(("compare the two versions", f"rankmill compare {present} {version} {on}"))
    if subject.gate is not None:
        alias = shlex.quote(subject.alias)
        rows.append(("show the gate report", f"rankmill models gate {version} --show --alias {alias}"))
    if present is not None:
        rows.append(("show the differences from the current version", f"rankmill models diff {present} {version}"))
    return tuple(
        CommandLine(what=what, command=command if "toml" in command else f"{command} --registry {REGISTRY}")
        for what, command in rows
    )


def rollback(subject: Subject) -> str | None:
    """Return the command that undoes the promotion; None if the version is not promoted, or was the first."""
    state, alias = subject.version.state, subject.alias
    earlier = state.before(alias) if state.target(alias) == subject.version.number else None
    if earlier is None:
        return None
    at = "" if alias == PRODUCTION else f" --alias {shlex.quote(alias)}"
    return f"rankmill models rollback {shlex.quote(subject.version.name)}{at} --to {earlier} --registry {REGISTRY}"
