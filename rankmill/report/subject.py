"""The subject of a report: the version, its rival, the queries to compare them on, and the records of the run."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankmill.foundation.errors import InputError, RankmillError
from rankmill.foundation.shown import few
from rankmill.gate.gate_rules import METRIC, SHOWN
from rankmill.gate.rankings import on_scale
from rankmill.gate.recording import stored_result
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.registry.names import PRODUCTION
from rankmill.run import CLICK_MODEL, CLICKS, DESCRIPTION, DRIFT, EVALUATION, REPORT, STAGES, TRAINING
from rankmill.scorer.evaluate.slices import GRADE_MIX, QUERY_SIZE
from rankmill.scorer.metrics import Metric, parse_metric
from rankmill.scorer.metrics.conventions import OURS, Convention, named_convention
from rankmill.scorer.metrics.metric import METRIC_NAMES
from rankmill.scorer.models.model import Model
from rankmill.scorer.models.model_service import model_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rankmill.gate.gate_report import GateReport
    from rankmill.registry import Registry, Version

_FILES = {
    "evaluation": EVALUATION,
    "training": TRAINING,
    "drift": DRIFT,
    "clicks": f"{STAGES}/{CLICKS}.json",
    "described": f"{CLICKS}/{DESCRIPTION}",
    "click_model": f"{CLICKS}/{CLICK_MODEL}",
    "train": f"{STAGES}/train.json",
    "report": f"{STAGES}/{REPORT}.json",
}

Records = Mapping[str, Mapping[str, Any]]
"""The JSON objects that a run has written, by the names above; those of other versions and those that are missing are
empty."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Subject:
    """The version, its rival, and the data.

    Attributes
    ----------
    version, model
        The version of the report.
    present, present_model
        The version that it was to replace; None if there was none, or it was swept.
    alias
        The alias that it was to take over.
    gate
        Its newest gate result for the alias; None if there is none.
    dataset, split
        The data; split None: there are only training queries.
    convention, metrics
        The convention and the metrics, the deciding one first.
    records
        The records of the run; empty without a run.
    date
        The logical date of the run; None if it has none or it is unknown.
    by
        Columns for slices.
    notes
        What could not be read, and why.
    """

    version: Version
    model: Model
    present: Version | None
    present_model: Model | None
    alias: str
    gate: GateReport | None
    dataset: Dataset
    split: str | None
    convention: Convention
    metrics: tuple[Metric, ...]
    records: Records
    date: str | None = None
    by: tuple[str, ...] = ()
    notes: list[str] = field(default_factory=list)

    @property
    def metric(self) -> Metric:
        """The deciding metric."""
        return self.metrics[0]


def subject_of_work(
    work: Path, store: Registry, by: Sequence[str] = (), *, alias: str | None = None, date: str | None = None
) -> Subject:
    """Return the subject of the report of the run in ``work``: the version that it trained, on its dataset.

    Raises
    ------
    InputError
        The folder does not exist, it has no dataset, no record of a trained version, or no column in ``by``.
    RankmillError
        The version is not in the registry, or damaged.
    """
    if not work.is_dir():
        raise InputError(
            f"{work}: no such folder; name the work folder of a run (written by rankmill run), or a model and a "
            "dataset with --on"
        )
    records = {name: _read(work / path) for name, path in _FILES.items()}
    dataset = Dataset.open(work / "dataset")
    trained = _facts(records["train"]).get("model")
    if trained is None:
        raise InputError(f"{work}: no version was trained here yet; start rankmill run first")
    version = store.resolve(trained, bare="latest")
    evaluated = records["evaluation"].get("model") or {}
    for name, of in (("evaluation", evaluated.get("version")), ("training", records["training"].get("model"))):
        if of not in {None, str(version)}:
            records[name] = {}  # of another run
    made = _facts(records["report"])
    if date is None and made.get("model") == str(version):
        date = made.get("date")
    return _subject(store, version, dataset, by, records, alias, date)


def subject_of_version(store: Registry, reference: str, dataset: Dataset, by: Sequence[str] = ()) -> Subject:
    """Return the subject of a report on a version in the registry, compared on ``dataset``.

    Raises the errors of `subject_of_work`.
    """
    return _subject(store, store.resolve(reference), dataset, by, {name: {} for name in _FILES}, None, None)


def _subject(
    store: Registry,
    version: Version,
    dataset: Dataset,
    by: Sequence[str],
    records: Records,
    alias: str | None,
    date: str | None,
) -> Subject:
    known = (QUERY_SIZE, GRADE_MIX, "qid", "doc_id", "grade", *dataset.optional_columns, *dataset.feature_names)
    for name in by:
        if name not in known:
            raise InputError.unknown("column", name, known)
    alias = alias or (PRODUCTION if PRODUCTION in version.gates else next(iter(version.gates), PRODUCTION))
    notes: list[str] = []
    gate: GateReport | None = None
    if alias in version.gates:
        try:
            gate = stored_result(store, str(version), alias).report
        except RankmillError as error:
            notes.append(f"the result of the gate cannot be read: {error}")
    evaluation = records["evaluation"]
    wanted = (None if gate is None else gate.split, evaluation.get("split"), *dataset.manifest.unseen)
    filled = {name for name, count in dataset.manifest.splits.items() if count.rows}
    model = model_of(version)
    present, present_model = _current_version(store, version, gate, alias), None
    if present is not None:
        present_model, fault = _model_of(present, dataset)
        notes += [] if fault is None else [fault]
    models = [model, *([] if present_model is None else [present_model])]
    convention = on_scale(_convention(evaluation, gate), dataset, models)
    return Subject(
        version=version,
        model=model,
        present=present,
        present_model=present_model,
        alias=alias,
        gate=gate,
        dataset=dataset,
        split=next((split for split in wanted if split in filled), None),
        convention=convention,
        metrics=_metrics(evaluation, gate, model, convention, dataset),
        records=records,
        date=date,
        by=tuple(by),
        notes=notes,
    )


def _read(path: Path) -> Mapping[str, Any]:
    """Return the JSON object in ``path``; an empty one if there is none."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _facts(stage: Mapping[str, Any]) -> Mapping[str, Any]:
    return stage.get("facts") or {}


def _current_version(store: Registry, version: Version, gate: GateReport | None, alias: str) -> Version | None:
    """Return the version to be replaced.

    It is that of the gate, else the target of the alias, or its target before this version.
    """
    number: int | None
    if gate is not None:
        number = None if gate.baseline is None else int(gate.baseline.version.rpartition("@")[2])
    else:
        moves = [move.version for move in version.state.moves.get(alias, [])]
        if version.number in moves:
            moves = moves[: moves.index(version.number)]
        number = next((each for each in reversed(moves) if each is not None), None)
    if number is None or number == version.number:
        return None
    return store.resolve(f"{version.name}@{number}", bare="latest")


def _model_of(present: Version, dataset: Dataset) -> tuple[Model | None, str | None]:
    """Return the model of ``present``, or why it is not available."""
    try:
        model = model_of(present)
    except RankmillError as error:
        return None, f"{present} cannot be compared with: {error}"
    used = [model.feature_names[f] for f in model.used_features]
    if lacking := [name for name in used if name not in set(dataset.feature_names)]:
        return (
            None,
            f"{present} cannot be compared with: it uses features that the dataset does not have: {few(lacking)}",
        )
    return model, None


def _convention(evaluation: Mapping[str, Any], gate: GateReport | None) -> Convention:
    """Return the convention of the run's evaluation, else of the gate, else our own."""
    if evaluation:
        policy, recorded = evaluation["policy"], evaluation["convention"]
        changed = {*recorded["changed"], "max_grade"}
        return named_convention(recorded["name"]).but(**{name: policy[name] for name in sorted(changed)})
    return named_convention(OURS if gate is None else gate.convention.name)


def _metrics(
    evaluation: Mapping[str, Any], gate: GateReport | None, model: Model, convention: Convention, dataset: Dataset
) -> tuple[Metric, ...]:
    """Return the metrics: that of the gate or else of the training first, then the others.

    Metrics of goals that the dataset lacks are left out.
    """
    deciding = gate.metric if gate is not None else str(model.parameters.get("metric") or METRIC)
    measured = [deciding, *(evaluation.get("metrics") or SHOWN)]
    if gate is not None:
        measured += [each.metric for rival in gate.comparisons for each in rival.also or ()]
    found = dict.fromkeys(metric for metric in map(parse_metric, measured) if metric.goal in {"", *dataset.goals})
    kept = [metric for metric in found if metric.name != "err" or convention.policy.max_grade is not None]
    first, *others = kept or [parse_metric(name) for name in SHOWN if not name.startswith("err")]
    return first, *sorted(others, key=_place)


def _place(metric: Metric) -> tuple[int, float, float, str]:
    return METRIC_NAMES.index(metric.name), metric.k or math.inf, metric.parameter or 0.0, metric.goal
