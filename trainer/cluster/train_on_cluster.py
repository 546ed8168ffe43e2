"""Train on the workers of a cluster: each holds a part of the queries, and all grow the same trees.

Every worker runs :func:`rankmill.trainer.rounds.boosting.boost` on its shard (:mod:`rankmill.trainer.data.shard`).  If
one is lost, the others stop and keep the trees of whole rounds in memory. They agree on the longest, replay it and
resume, and divide the rows of the lost one among them.  The model has the bytes of a training on one machine.
"""

from __future__ import annotations

import gc
import pickle
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING

import numpy as np

from rankmill.foundation.cluster.workers import Cluster, Member
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.scorer.forest.forest import Forest
from rankmill.trainer.candidates.train_on_dataset import data_of
from rankmill.trainer.cluster.shared_dataset import SharedDataset
from rankmill.trainer.data.shard import RowShard
from rankmill.trainer.incompatible import check_cluster
from rankmill.trainer.parameters import TrainParameters
from rankmill.trainer.presets import shape_of_dataset, with_preset
from rankmill.trainer.rounds.boosting import boost
from rankmill.trainer.rounds.checkpoints import Checkpoint, Checkpoints
from rankmill.trainer.rounds.training_result import RoundRecord, TrainingResult
from rankmill.trainer.training_options import StartingModel, TrainingOptions

if TYPE_CHECKING:
    from rankmill.foundation.cluster.dask_peers import DaskPeers

_WHOLE = "whole"  # the checkpoint of a training of all rows


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    """What every worker is given."""

    dataset: SharedDataset
    parameters: TrainParameters
    options: TrainingOptions
    key: str  # of the training
    start: bytes | None  # a model file of more of its rounds
    every: float  # seconds between checkpoints of the caller


@dataclass(frozen=True, slots=True)
class _Saved:
    """Sent by the first worker: a model file of all rounds so far."""

    rounds: int
    model: bytes


@dataclass(frozen=True, slots=True)
class _Traffic:
    """Sent by the first worker at the end."""

    rounds: int
    exchanges: int
    bytes_sent: int
    seconds: float
    seconds_waited: float
    workers: int

    def render(self) -> str:
        """Return a line for people."""
        each = max(1, self.rounds)
        return (
            f"{self.workers} workers: each sent {self.bytes_sent / each / 1e6:.2f} MB a round in "
            f"{self.exchanges / each:,.0f}"
            f" exchanges, and waited {self.seconds_waited / each:.3f} of {self.seconds / each:.3f} s"
        )


def train_on_cluster(
    dataset: Dataset,
    parameters: TrainParameters,
    options: TrainingOptions,
    checkpoints: Checkpoints | None,
    cluster: Cluster,
    key: str,
) -> TrainingResult:
    """Train on the workers of ``cluster``, with the same bytes as in one process.

    See :func:`rankmill.trainer.candidates.train_on_dataset.train`.

    They must see the dataset under the same path.  ``key`` identifies the training
    (`rankmill.trainer.rounds.checkpoints.training_key`); ``options.n_threads`` is not used: a worker has threads of its
    own.  ``on_round`` cannot end the training.

    Raises
    ------
    InvalidParameter
        The training needs all rows at one place, see :mod:`rankmill.trainer.incompatible`; and as ``train``.
    TrainingDataRejected
        As ``train``.
    rankmill.foundation.errors.InputError, rankmill.foundation.errors.WorkerLost,
    rankmill.foundation.errors.ClusterUnavailable
        As :meth:`rankmill.foundation.cluster.workers.Cluster.together`.
    """
    parameters = with_preset(parameters, shape_of_dataset(dataset), options.resume)
    check_cluster(parameters, options.base_model)
    saved = None if checkpoints is None else checkpoints.of(_WHOLE)
    found = None if saved is None else saved.read()
    task = _Task(
        dataset=SharedDataset.of(dataset),
        parameters=parameters,
        options=for_workers(options),
        key=key,
        start=None if found is None else found.to_bytes(),
        every=inf if checkpoints is None else checkpoints.every,
    )
    listener = _Listener(options, saved)
    result = cluster.together(
        _train_and_free,
        lambda: replace(task, start=listener.model or task.start),
        dataset.path,
        listener.on_message,
        resumes=checkpoints is not None,
    )
    assert result is not None  # noqa: S101 - it is that of the first worker
    return result


def for_workers(options: TrainingOptions) -> TrainingOptions:
    """Return the options for workers. Callbacks stay with the caller; of a model to resume only the forest is kept."""
    resume = None if options.resume is None else StartingModel(options.resume.forest)
    return replace(options, resume=resume, on_round=None, on_message=None, cluster=None)


class _Listener:
    """Takes the messages of the workers."""

    def __init__(self, options: TrainingOptions, saved: Checkpoint | None) -> None:
        self._options, self._saved = options, saved
        self._rounds = 0  # reported before; after a loss workers send them again
        self.model: bytes | None = None  # the last one that was saved

    def on_message(self, word: bytes) -> bool:
        """Pass a word on; return whether it is a round that was not reported before."""
        found = pickle.loads(word)  # noqa: S301 - from our own workers
        if isinstance(found, RoundRecord):
            news = found.round_number > self._rounds
            if news and self._options.on_round is not None:
                self._options.on_round(found)
            self._rounds = max(self._rounds, found.round_number)
            return news
        if isinstance(found, _Saved):
            self.model = found.model
            if self._saved is not None:
                self._saved.write(found.rounds, lambda: found.model)
        elif self._options.on_message is not None:
            self._options.on_message(found.render() if isinstance(found, _Traffic) else str(found))
        return False


_kept: dict[str, tuple[int, bytes]] = {}
"""Of trainings that were interrupted in this process: rounds and a model file, by key."""


class _Keeper(Checkpoint):
    """The checkpoint of one worker: in memory, and sent by the first worker now and then."""

    def __init__(self, task: _Task, peers: DaskPeers) -> None:
        super().__init__(task.dataset.path, task.every if peers.number == 0 else inf)
        self._task, self._peers = task, peers

    def read(self) -> Forest | None:
        """Return the most rounds that a worker has kept, or the caller; all workers get the same."""
        start = self._task.start
        rounds, model = _kept.get(self._task.key, (0, b""))
        if start is not None and (of_caller := Forest.from_bytes(start, "the checkpoint")).n_rounds > rounds:
            rounds, model = of_caller.n_rounds, start
        all_rounds = [int(each[0]) for each in self._peers.gather(np.array([rounds]))]
        best = int(np.argmax(all_rounds))
        mine = np.frombuffer(model if self._peers.number == best else b"", dtype=np.uint8)
        found = self._peers.gather(mine)[best].tobytes()
        self._rounds = all_rounds[best]
        if found:
            _kept[self._task.key] = self._rounds, found  # all workers have it then
        return Forest.from_bytes(found, "the checkpoint of a worker") if found else None

    def write(self, rounds: int, data: Callable[[], bytes]) -> None:
        """Keep a model of this number of rounds."""
        if rounds > self._rounds:
            model = data()
            self._rounds = rounds
            _kept[self._task.key] = rounds, model
            if self._peers.number == 0 and self._task.every < inf:
                self._peers.notify(pickle.dumps(_Saved(rounds, model)))
        self._last = time.monotonic()

    def forget(self) -> None:
        """Free what is kept: the training is done."""
        _kept.pop(self._task.key, None)


def _train_part(member: Member[_Task], threads: int) -> TrainingResult | None:
    """Train as one worker of several; the first returns the result."""
    task, began = member.item, time.perf_counter()
    dataset = task.dataset.opened()
    for key in [key for key in _kept if key != task.key]:
        _kept.pop(key, None)
    with member.peers() as peers:

        def report(record: RoundRecord) -> None:
            peers.notify(pickle.dumps(record))

        on_round = report if peers.number == 0 else None
        options = replace(task.options, n_threads=threads, on_round=on_round, shard=RowShard.even(peers))
        keeper = _Keeper(task, peers)
        data = data_of(dataset, task.parameters, options)
        result = boost(data, task.parameters, options, checkpoint=keeper)
        if peers.number == 0:
            rounds, seconds = len(result.history), time.perf_counter() - began
            traffic = _Traffic(rounds, peers.exchanges, peers.bytes_sent, seconds, peers.seconds_waited, peers.size)
            peers.notify(pickle.dumps(traffic))
    keeper.forget()
    return result if member.number == 0 else None


def _train_and_free(member: Member[_Task], threads: int) -> TrainingResult | None:
    """Train as one worker, then free the buffers before others are allocated.

    The callback of kernels keeps them in a cycle.
    """
    try:
        return _train_part(member, threads)
    finally:
        gc.collect()
