"""The subject of a report: the version, its rival, and the records of the run in the work folder."""

from __future__ import annotations

import json
import math
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankmill.foundation.errors import InputError, IntegrityError, RankmillError
from rankmill.foundation.records import from_json
from rankmill.foundation.shown import few
from rankmill.gate.gate_report import GateReport
from rankmill.registry.names import PRODUCTION
from rankmill.report import Facts
from rankmill.report.click_section import CLICK_FILES, click_facts
from rankmill.run import DRIFT, EVALUATION, GATE, REPORT, STAGES, TRAINING
from rankmill.scorer.evaluate.slices import GRADE_MIX, QUERY_SIZE
from rankmill.scorer.metrics import Metric, parse_metric
from rankmill.scorer.metrics.conventions import OURS, Convention, named_convention
from rankmill.scorer.metrics.metric import METRIC_NAMES
from rankmill.scorer.models.model import Model
from rankmill.scorer.models.model_service import model_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from rankmill.pipeline.dataset.dataset import Dataset
    from rankmill.registry import Registry, Version

METRICS = ("ndcg@10", "err@10", "map")
_HIGHEST_SCALE = 52  # highest grade that err can use
_JSON = (
    ("evaluation", EVALUATION),
    ("training", TRAINING),
    ("drift", DRIFT),
    *CLICK_FILES,
    ("train_stage", f"{STAGES}/train.json"),
    ("report_stage", f"{STAGES}/{REPORT}.json"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """Facts that the caller has already; None is looked up in the work folder and the registry, if it exists.

    Attributes
    ----------
    version
        The version of the report, ``NAME@7``.
    alias
        The alias that it was to take over.
    split
        The split to report on.
    metrics, conventions
        Names of metrics, and conventions as arguments of `rankmill.scorer.evaluate.evaluate.evaluate` (``convention``,
        ``gain``, ..).
    gate, training, drift
        The report of the gate, the record of the training, and the drift report, as in the files of the work folder.
    clicks
        See `rankmill.report.click_section.click_facts`.
    date
        The logical date of the run.
    """

    version: str | None = None
    alias: str | None = None
    split: str | None = None
    metrics: Sequence[str] | None = None
    conventions: Mapping[str, Any] | None = None
    gate: GateReport | None = None
    training: Mapping[str, Any] | None = None
    drift: Mapping[str, Any] | None = None
    clicks: Mapping[str, Any] | None = None
    date: str | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Subject:
    """The version, its rival, the data, and the records of the run.

    Attributes
    ----------
    version, model
        The version of the report.
    present, present_model
        The version that it was to replace; None if there was none, or it was swept.
    alias
        The alias that it was to take over.
    dataset, split
        The data.  Split None: there are only training queries.  Dataset None: facts come only from the registry.
    convention, metrics
        The convention and the metrics, the deciding one first.
    gate, training, drift, clicks
        JSON objects, or None.
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
    dataset: Dataset | None
    split: str | None
    convention: Convention
    metrics: tuple[Metric, ...]
    gate: GateReport | None
    training: Mapping[str, Any] | None
    drift: Mapping[str, Any] | None
    clicks: Mapping[str, Any] | None = None
    date: str | None = None
    by: tuple[str, ...] = ()
    notes: list[str] = field(default_factory=list)

    @cached_property
    def name(self) -> str:
        """Name of the model."""
        return self.version.name

    @property
    def metric(self) -> Metric:
        """The deciding metric."""
        return self.metrics[0]

    @property
    def promoted(self) -> bool:
        """Whether the alias points to the version."""
        return self.version.state.target(self.alias) == self.version.number


def subject_of(work: Path, store: Registry, known: Known, by: Sequence[str] = ()) -> Subject:
    """Determine the subject of the report of ``work``.

    Raises
    ------
    InputError
        The folder does not exist, or it has no record of a trained version.
    rankmill.foundation.errors.InputError
        It has no dataset, or no column in ``by``.
    rankmill.foundation.errors.RankmillError
        The version is not in the registry, or damaged.
    """
    from rankmill.pipeline.dataset.dataset import Dataset

    if not work.is_dir():
        raise InputError(
            f"{work}: no such folder, and no such model in the registry; name the work folder of a run (written by "
            "rankmill run)"
        )
    found = {name: _read(work / path) for name, path in _JSON}
    dataset = Dataset.open(work / "dataset")
    _check_columns(dataset, by)
    gate, evaluation, training = known.gate, found["evaluation"], found["training"]
    if gate is None:
        with suppress(OSError, IntegrityError):  # there is none, or its format is unknown
            gate = from_json(GateReport, (work / GATE).read_bytes(), str(work / GATE))
    version = store.resolve(_version(work, known, gate, found), bare="latest")
    if gate is not None and gate.candidate.version != str(version):
        gate = None  # of another run
    if evaluation is not None and (evaluation.get("model") or {}).get("version") not in {None, str(version)}:
        evaluation = None  # of another run
    if training is not None and training.get("model") not in {None, str(version)}:
        training = None  # of another run
    split = known.split or (gate.split if gate is not None else None) or (evaluation or {}).get("split")
    filled = {name for name, count in dataset.manifest.splits.items() if count.rows}
    if split not in filled:
        split = next(iter(dataset.manifest.unseen), None)
    notes: list[str] = []
    if gate is not None and split is not None and gate.split != split:
        notes.append(f"the gate used the split {gate.split}, this report uses {split}")
    known = replace(
        known,
        alias=known.alias or _alias(version),
        split=split,
        gate=gate,
        training=known.training or training,
        drift=known.drift or found["drift"],
        clicks=click_facts(found, version),
        date=known.date or _date(found["report_stage"], version),
    )
    return _subject(store, version, known, notes, dataset, evaluation, by)


def subject_of_version(store: Registry, reference: str) -> Subject:
    """Return the subject of a report on a version in the registry.

    Raises
    ------
    rankmill.foundation.errors.RankmillError
        There is no such version, or it is damaged.
    """
    from rankmill.gate.recording import stored_result

    version = store.resolve(reference)
    alias = _alias(version)
    notes = [
        "this report is made from the registry, which has no queries: lists, slices, scores and learning curves are "
        "not available"
    ]
    gate: GateReport | None = None
    if alias in version.gates:
        try:
            gate = stored_result(store, str(version), alias).report
        except RankmillError as error:
            notes.append(f"the result of the gate cannot be read: {error}")
    return _subject(store, version, Known(alias=alias, gate=gate), notes)


def _subject(
    store: Registry,
    version: Version,
    known: Known,
    notes: list[str],
    dataset: Dataset | None = None,
    evaluation: Mapping[str, Any] | None = None,
    by: Sequence[str] = (),
) -> Subject:
    """Read the models, and return the subject with the records ``known``."""
    alias = known.alias or PRODUCTION
    model = model_of(version)
    present, present_model = _current_version(store, version, known.gate, alias), None
    if present is not None:
        present_model, fault = _model_of(present, dataset)
        notes += [] if fault is None else [fault]
    if dataset is None:
        grades = [version.manifest.get("max_grade"), model.info.get("max_grade")]
    else:
        models = [model, *([] if present_model is None else [present_model])]
        grades = [dataset.max_grade, *(each.info.get("max_grade") for each in models)]
    convention = _convention(known, evaluation, grades)
    return Subject(
        version=version,
        model=model,
        present=present,
        present_model=present_model,
        alias=alias,
        dataset=dataset,
        split=known.split,
        convention=convention,
        metrics=_metrics(known, evaluation, model, convention, {} if dataset is None else dataset.goals),
        gate=known.gate,
        training=known.training,
        drift=known.drift,
        clicks=known.clicks,
        date=known.date,
        by=tuple(by),
        notes=notes,
    )


def _check_columns(dataset: Dataset, by: Iterable[str]) -> None:
    """Raise rankmill.foundation.errors.InputError for an unknown column now, not after scoring."""
    known = (QUERY_SIZE, GRADE_MIX, "qid", "doc_id", "grade", *dataset.optional_columns, *dataset.feature_names)
    for name in by:
        if name not in known:
            raise InputError.unknown("column", name, known)


def _read(path: Path) -> Facts | None:
    """Return the JSON object in ``path``; None if there is none."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def _date(stage: Facts | None, version: Version) -> str | None:
    """Return the recorded logical date of the run that reported on ``version``."""
    facts = (stage or {}).get("facts") or {}
    return facts.get("date") if facts.get("model") == str(version) else None


def _version(work: Path, known: Known, gate: GateReport | None, found: Mapping[str, Facts | None]) -> str:
    """Return the version trained in this run, from the most reliable record."""
    if known.version is not None:
        return known.version
    stage, evaluation = found["train_stage"] or {}, found["evaluation"] or {}
    candidates = (
        (stage.get("facts") or {}).get("model"),
        (evaluation.get("model") or {}).get("version"),
        None if gate is None else gate.candidate.version,
    )
    version = next((text for text in candidates if isinstance(text, str)), None)
    if version is None:
        raise InputError(f"{work}: no version was trained here yet; start rankmill run first")
    return version


def _alias(version: Version) -> str:
    return next(iter(version.gates), PRODUCTION) if PRODUCTION not in version.gates else PRODUCTION


def _current_version(store: Registry, version: Version, gate: GateReport | None, alias: str) -> Version | None:
    """Return the version to be replaced.

    It is that of the gate, else the target of the alias, or its target before this version.
    """
    number: int | None
    if gate is not None and gate.candidate.version == str(version):
        number = None if gate.baseline is None else int(gate.baseline.version.rpartition("@")[2])
    else:
        moves = [move.version for move in version.state.moves.get(alias, [])]
        if version.number in moves:
            moves = moves[: moves.index(version.number)]
        number = next((each for each in reversed(moves) if each is not None), None)
    if number is None or number == version.number:
        return None
    return store.resolve(f"{version.name}@{number}", bare="latest")


def _model_of(present: Version, dataset: Dataset | None) -> tuple[Model | None, str | None]:
    """Return the model of ``present``, or why it is not available."""
    try:
        model = model_of(present)
    except RankmillError as error:
        return None, f"{present} cannot be compared with: {error}"
    has = set(model.feature_names if dataset is None else dataset.feature_names)
    lacking = [model.feature_names[f] for f in model.used_features if model.feature_names[f] not in has]
    if lacking:
        return (
            None,
            f"{present} cannot be compared with: it uses features that the dataset does not have: {few(lacking)}",
        )
    return model, None


def _convention(known: Known, evaluation: Mapping[str, Any] | None, grades: Sequence[object]) -> Convention:
    """Return the convention of the caller, else of the run's evaluation, else of its gate.

    It is on the scale of the known ``grades``.
    """
    if known.conventions is not None:
        given = dict(known.conventions)
        found = named_convention(given.pop("convention", None) or OURS).but(**given)
    elif evaluation is not None:
        policy, recorded = evaluation["policy"], evaluation["convention"]
        changed = {*recorded["changed"], "max_grade"}
        found = named_convention(recorded["name"]).but(**{name: policy[name] for name in sorted(changed)})
    else:
        found = named_convention(OURS if known.gate is None else known.gate.convention.name)
    if found.policy.max_grade is None:
        scale = max([1, *(grade for grade in grades if isinstance(grade, int))])
        found = found.but(max_grade=scale) if scale <= _HIGHEST_SCALE else found
    return found


def _metrics(
    known: Known,
    evaluation: Mapping[str, Any] | None,
    model: Model,
    convention: Convention,
    goals: Collection[str],
) -> tuple[Metric, ...]:
    """Return the metrics: the deciding one first (that of the gate, else of the objective), then the others in order.

    Those of other ``goals`` than the dataset has are left out.
    """
    names = list(known.metrics or (evaluation or {}).get("metrics") or METRICS)
    judged = None if known.gate is None else known.gate.metric
    first = judged or model.parameters.get("metric")
    if first and (known.metrics is None or judged):
        names = [str(first), *names]
    if known.gate is not None:
        names += [each.metric for rival in known.gate.comparisons for each in rival.also or ()]
    found = dict.fromkeys(metric for metric in map(parse_metric, names) if metric.goal in {"", *goals})
    scale = convention.policy.max_grade
    kept = [metric for metric in found if metric.name != "err" or scale is not None]
    if not kept:
        kept = [parse_metric(name) for name in METRICS if not name.startswith("err")]
    return kept[0], *sorted(kept[1:], key=_place)


def _place(metric: Metric) -> tuple[int, float, float, str]:
    return METRIC_NAMES.index(metric.name), metric.k or math.inf, metric.parameter or 0.0, metric.goal
