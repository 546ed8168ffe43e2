"""Train a net on a dataset: read the values, keep checkpoints, and collect the facts of the version."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from rankmill.foundation.code_digest import OF_TRAINING, code_digest
from rankmill.foundation.errors import RankmillError
from rankmill.foundation.records import canonical_json
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.scorer.metrics import Metric
from rankmill.scorer.nets.net import Net
from rankmill.trainer.candidates.multi_seed_training import CandidateRecord, SeedRecord
from rankmill.trainer.candidates.train_on_dataset import facts_of_data
from rankmill.trainer.candidates.version_facts import attachments_of, dataset_facts, without_nan
from rankmill.trainer.data.rows import RankedRows
from rankmill.trainer.data.training_rows import read_columns
from rankmill.trainer.nets.options import NetOptions
from rankmill.trainer.nets.plan import plan_net
from rankmill.trainer.nets.training import NetData, NetResult, NetRows, train_net
from rankmill.trainer.options import CheckpointOptions, MachineOptions
from rankmill.trainer.rounds.checkpoints import Checkpoint, Checkpoints
from rankmill.trainer.rounds.early_stopping import measures_of
from rankmill.trainer.rounds.training_result import Curves, RoundRecord
from rankmill.trainer.team import workers_for
from rankmill.trainer.training_facts import TrainingFacts

OnRound = Callable[[RoundRecord], object]


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


def train_net_on(
    dataset: Dataset,
    options: NetOptions,
    machine: CheckpointOptions,
    *,
    on_round: OnRound | None = None,
    on_message: Callable[[str], object] | None = None,
) -> NetCandidate:
    """Train a net on the train split of ``dataset``; the valid split decides which epoch is kept.

    The net depends only on the rows of the dataset and ``options``.  With ``machine.checkpoint`` a killed training
    resumes: calling again with the same arguments returns the same bytes.

    Errors are those of :func:`rankmill.trainer.nets.training.train_net` and :func:`plan_net`.
    """
    plan_net(dataset, options, machine)
    checkpoint = None
    if machine.checkpoint is not None:
        checkpoint = Checkpoints(
            Path(machine.checkpoint), _key(dataset, options, machine), machine.checkpoint_every, on_message
        ).of("net")
    result = train_and_keep(
        lambda: data_of_net(dataset, options, machine), options, checkpoint, eval_metrics=machine.eval_metrics,
        n_threads=workers_for(machine.n_threads), on_round=on_round, on_message=on_message,
    )  # fmt: skip
    found = result.history[result.best_epoch - 1].metrics
    metrics = {split: without_nan(of_split) for split, of_split in found.items()}
    net = result.net
    facts = TrainingFacts(
        features=net.feature_names,
        dataset_digest=dataset.digest,
        dataset=dataset_facts(dataset),
        parameters=net.parameters,
        changed_parameters=tuple(
            name for name, value in asdict(NetOptions()).items() if getattr(options, name) != value
        ),
        code_digest=code_digest(*OF_TRAINING),
        max_grade=dataset.max_grade,
        metrics={split: of_split for split, of_split in metrics.items() if of_split},
        best_round=result.best_epoch,
        rounds_trained=len(result.history),
    )
    return NetCandidate(
        net=net, facts=facts, attachments=attachments_of(dataset), result=result, stop_metric=result.stop_metric,
        checkpoint=None if checkpoint is None else checkpoint.path,
    )  # fmt: skip


def train_and_keep(
    data: NetData | Callable[[], NetData],
    options: NetOptions,
    checkpoint: Checkpoint | None,
    *,
    eval_metrics: Sequence[str] = (),
    n_threads: int = 1,
    on_round: OnRound | None = None,
    on_message: Callable[[str], object] | None = None,
) -> NetResult:
    """Train a net with a ``checkpoint``, from which a killed training resumes.

    Other arguments and errors are those of :func:`rankmill.trainer.nets.training.train_net`.
    """
    kept = checkpoint.path.read_bytes() if checkpoint is not None and checkpoint.path.exists() else None

    def after(record: RoundRecord, state: Callable[[], bytes]) -> None:
        if checkpoint is not None and checkpoint.is_due():
            checkpoint.write(record.round_number, state)
        if on_round is not None:
            on_round(record)

    def trained(resume: bytes | None) -> NetResult:
        return train_net(data, options, eval_metrics=eval_metrics, n_threads=n_threads, on_epoch=after, resume=resume)

    try:
        result = trained(kept)
    except RankmillError as error:
        if kept is None or checkpoint is None:
            raise
        if on_message is not None:
            on_message(f"the checkpoint {checkpoint.path} is not used: {error}")
        result = trained(None)
    if checkpoint is not None:
        checkpoint.write(len(result.history), lambda: result.checkpoint)
    return result


def data_of_net(dataset: Dataset, options: NetOptions, machine: MachineOptions, *, with_valid: bool = True) -> NetData:
    """Read the train split and, if there is one, the valid split, with the values of all features."""
    measures = measures_of(options.losses(), machine.eval_metrics)
    goals = {measure.goal for measure in measures if isinstance(measure, Metric) and measure.goal}
    data = split_for_net(dataset, "train", options)
    valid = split_for_net(dataset, "valid", options).train if with_valid else None
    return replace(
        data,
        valid=valid if valid is not None and valid.rows.n_rows else None,
        goals={name: highest for name, highest in data.goals.items() if name in goals},
    )


def split_for_net(dataset: Dataset, split: str, options: NetOptions) -> NetData:
    """Read a split of ``dataset`` to train on, with the values of all features."""
    rows: RankedRows = read_columns(dataset, split, options.losses())
    values, first = np.empty((rows.n_rows, len(dataset.feature_names)), dtype=np.float32), 0
    for batch in dataset.feature_batches(split):
        values[first : first + len(batch)] = batch
        first += len(batch)
    texts = dataset.vocabulary.texts
    return NetData(
        train=NetRows(values, rows),
        feature_names=dataset.feature_names,
        max_grade=dataset.max_grade,
        categories={name: [*texts.get(name, {})] for name in dataset.manifest.categorical},
        goals=dataset.goals,
        info={name: value for name, value in facts_of_data(dataset, "").items() if name != "binspec_digest"},
    )


def _key(dataset: Dataset, options: NetOptions, machine: MachineOptions) -> str:
    facts: dict[str, Any] = {
        "dataset": dataset.digest,
        "options": options.stored(),
        "eval_metrics": list(machine.eval_metrics),
        "code": code_digest(*OF_TRAINING),
    }
    return hashlib.sha256(canonical_json(facts)).hexdigest()
