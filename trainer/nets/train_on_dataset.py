"""Train a net on a dataset: read the values, keep checkpoints, and collect the facts of the version."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from rankmill.foundation.code_digest import OF_TRAINING, code_digest
from rankmill.foundation.errors import InvalidParameter, RankmillError, TrainingDataRejected
from rankmill.foundation.options import spelled, values_of
from rankmill.foundation.records import canonical_json
from rankmill.foundation.storage.publish import write_atomically
from rankmill.foundation.training_facts import TrainingFacts
from rankmill.pipeline.dataset import Dataset
from rankmill.scorer.metrics import Metric
from rankmill.scorer.nets.net import Net
from rankmill.trainer.early_stopping import measures_of
from rankmill.trainer.multi_seed_training import CandidateRecord, SeedRecord
from rankmill.trainer.nets.options import NetOptions
from rankmill.trainer.nets.training import NetData, NetResult, NetRows, train_net
from rankmill.trainer.parameters import CheckpointOptions, MachineOptions
from rankmill.trainer.rows import RankedRows
from rankmill.trainer.train_on_dataset import facts_of_data
from rankmill.trainer.training_result import Curves, RoundRecord
from rankmill.trainer.training_rows import read_columns
from rankmill.trainer.version_facts import attachments_of, dataset_facts, without_nan
from rankmill.trainer.workers import workers_for

SUFFIX = ".net-checkpoint"
_OF_TREES = ("bin_cache", "histogram_memory", "profile")
_BYTES_A_ROW = 160  # grades, weights, scores, gradients of both orders, places, and what losses hold
OnRound = Callable[[RoundRecord], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class NetPlan:
    """What a training of a net will do, known before it starts."""

    train_rows: int
    train_queries: int
    valid_rows: int
    n_features: int
    options: NetOptions

    @property
    def bytes_needed(self) -> int:
        """About the peak of memory: the values of all rows, as they are and as inputs, and a few columns."""
        rows = self.train_rows + self.valid_rows
        inputs = self.n_features * (2 if self.options.missing_indicators else 1)
        return rows * (4 * (self.n_features + inputs) + _BYTES_A_ROW)

    def render(self) -> str:
        """Return a line for people."""
        widths = " x ".join(map(str, self.options.layers)) or "no hidden layer"
        stop = "" if self.valid_rows else "; no valid split, so the last epoch is kept"
        return (
            f"training a net ({widths}) on {self.train_rows:,} documents of {self.train_queries:,} queries,"
            f" {self.n_features} features; {self.options.objective}; at most {self.options.epochs} epochs;"
            f" about {self.bytes_needed / 1e6:,.0f} MB without the interpreter{stop}"
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NetCandidate:
    """What :func:`train_net_on` returns; register ``net``, ``facts`` and ``attachments``."""

    net: Net
    facts: TrainingFacts
    """The manifest of the version."""
    attachments: Mapping[str, bytes]
    result: NetResult = field(repr=False)
    stop_metric: str
    checkpoint: Path | None
    """Where the training was kept, to be deleted once the net is registered."""

    keys: tuple[str, ...] = ()  # no finished trainings are kept besides

    def record(self) -> CandidateRecord:
        """Return the record of how it was trained."""
        seed = SeedRecord(
            seed=int(str(self.net.parameters["seed"])), sha256=self.net.sha256, best_round=self.result.best_epoch,
            rounds_trained=len(self.result.history), metrics=self.facts.metrics or {}, key="",
            curves=Curves.of(self.result.history),
        )  # fmt: skip
        return CandidateRecord(
            sha256=self.net.sha256, choose="best", chosen=seed.seed, stop_metric=self.stop_metric, seeds=(seed,),
            noise_floor={},
        )  # fmt: skip

    def clear(self) -> None:
        """Delete the checkpoint."""
        if self.checkpoint is not None:
            self.checkpoint.unlink(missing_ok=True)


def plan_net(dataset: Dataset, options: NetOptions, machine: CheckpointOptions) -> NetPlan:
    """Return the size of a training on ``dataset``.

    Raises
    ------
    InvalidParameter
        ``machine`` has an option that only trees have.
    TrainingDataRejected
        The train split is empty.
    """
    usual = values_of(MachineOptions()) | values_of(CheckpointOptions())
    for name in _OF_TREES:
        if getattr(machine, name, usual[name]) != usual[name]:
            raise InvalidParameter(f"{spelled(name)} is an option of trees; leave it out with {spelled('model')} net")
    train, valid = dataset.queries("train"), dataset.queries("valid")
    if train.n_rows == 0:
        raise TrainingDataRejected(f"{dataset.path}: the train split is empty; ingest data for it")
    return NetPlan(
        train_rows=train.n_rows, train_queries=len(train), valid_rows=valid.n_rows,
        n_features=len(dataset.feature_names), options=options,
    )  # fmt: skip


def train_net_on(
    dataset: Dataset,
    options: NetOptions,
    machine: CheckpointOptions,
    *,
    on_round: OnRound | None = None,
    on_message: Callable[[str], object] | None = None,
) -> NetCandidate:
    """Train a net on the train split of ``dataset``; the valid split decides which epoch is kept.

    The net depends only on the rows of the dataset and ``options``.  With ``machine.checkpoint`` a killed training resumes: calling
    again with the same arguments returns the same bytes.

    Errors are those of :func:`rankmill.trainer.nets.training.train_net` and :func:`plan_net`.
    """
    plan_net(dataset, options, machine)
    data = data_of_net(dataset, options, machine)
    path = (
        None if machine.checkpoint is None else Path(machine.checkpoint) / f"{_key(dataset, options, machine)}{SUFFIX}"
    )
    kept, last = _kept(path), time.monotonic()

    def after(record: RoundRecord, checkpoint: Callable[[], bytes]) -> bool:
        nonlocal last
        if path is not None and time.monotonic() - last >= machine.checkpoint_every:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, checkpoint())
            last = time.monotonic()
        if on_round is not None:
            on_round(record)
        return False

    def trained(resume: bytes | None) -> NetResult:
        return train_net(
            data, options, eval_metrics=machine.eval_metrics, n_threads=workers_for(machine.n_threads), on_epoch=after,
            resume=resume,
        )  # fmt: skip

    try:
        result = trained(kept)
    except RankmillError as error:
        if kept is None:
            raise
        if on_message is not None:
            on_message(f"the checkpoint {path} is not used: {error}")
        result = trained(None)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, result.checkpoint)
    measures = measures_of(options.losses(), machine.eval_metrics, graded=data.train.rows.graded)
    found = result.history[result.best_epoch - 1].metrics
    metrics = {split: without_nan(of_split) for split, of_split in found.items()}
    net = result.net
    facts = TrainingFacts(
        features=net.feature_names,
        dataset_digest=dataset.digest,
        dataset=dataset_facts(dataset),
        parameters=net.parameters,
        changed_parameters=tuple(
            name for name, value in asdict(NetOptions()).items() if _plain(getattr(options, name)) != _plain(value)
        ),
        code_digest=code_digest(*OF_TRAINING),
        max_grade=dataset.max_grade,
        metrics={split: of_split for split, of_split in metrics.items() if of_split},
        best_round=result.best_epoch,
        rounds_trained=len(result.history),
    )
    return NetCandidate(
        net=net, facts=facts, attachments=attachments_of(dataset), result=result, stop_metric=str(measures[0]),
        checkpoint=path,
    )  # fmt: skip


def data_of_net(dataset: Dataset, options: NetOptions, machine: MachineOptions) -> NetData:
    """Read the train split and, if there is one, the valid split, with the values of all features."""
    measures = measures_of(options.losses(), machine.eval_metrics)
    goals = {measure.goal for measure in measures if isinstance(measure, Metric) and measure.goal}
    data, valid = split_for_net(dataset, "train", options), split_for_net(dataset, "valid", options).train
    return replace(
        data,
        valid=valid if valid.rows.n_rows else None,
        goals={name: highest for name, highest in data.goals.items() if name in goals},
    )


def split_for_net(dataset: Dataset, split: str, options: NetOptions) -> NetData:
    """Read a split of ``dataset`` to train on, with the values of all features."""
    rows: RankedRows = read_columns(dataset, split, options.losses())
    batches = [np.empty((0, len(dataset.feature_names)), dtype=np.float32), *dataset.feature_batches(split)]
    texts = dataset.vocabulary.texts
    return NetData(
        train=NetRows(np.concatenate(batches), rows),
        feature_names=dataset.feature_names,
        max_grade=dataset.max_grade,
        categories={name: [*texts.get(name, {})] for name in dataset.manifest.categorical},
        goals=dataset.goals,
        info={name: value for name, value in facts_of_data(dataset, "").items() if name != "binspec_digest"},
    )


def _key(dataset: Dataset, options: NetOptions, machine: MachineOptions) -> str:
    facts: dict[str, Any] = {
        "dataset": dataset.digest,
        "options": {name: _plain(value) for name, value in asdict(options).items()},
        "eval_metrics": list(machine.eval_metrics),
        "code": code_digest(*OF_TRAINING),
    }
    return hashlib.sha256(canonical_json(facts)).hexdigest()


def _kept(path: Path | None) -> bytes | None:
    try:
        return None if path is None else path.read_bytes()
    except FileNotFoundError:
        return None


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
