"""Options of a training other than its data and parameters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rankmill.trainer.options import CheckpointOptions
from rankmill.trainer.rounds.training_result import RoundRecord
from rankmill.trainer.training_facts import OtherModel

if TYPE_CHECKING:
    from rankmill.foundation.cluster.workers import Cluster
    from rankmill.pipeline.group.sketch import QuerySketch
    from rankmill.scorer.forest.forest import Forest
    from rankmill.scorer.models.identity import ModelIdentity
    from rankmill.trainer.data.shard import RowShard

OnRound = Callable[[RoundRecord], bool | None]


@dataclass(frozen=True, slots=True)
class StartingModel:
    """A model that a training starts from: the one to resume, or the base model to correct."""

    forest: Forest
    identity: ModelIdentity | None = None  # None: a forest in memory
    queries: QuerySketch | None = None  # of its training, if known

    @property
    def sha256(self) -> str:
        """The digest of the model file."""
        return self.forest.sha256 if self.identity is None else self.identity.sha256

    def facts(self) -> OtherModel:
        """Return its digest and, if it came from a registry, its version."""
        named = self.identity is not None and self.identity.name is not None
        return OtherModel(sha256=self.sha256, model=str(self.identity) if named else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOptions(CheckpointOptions):
    """Options of a training that are not parameters of the model; only ``resume`` and ``base_model`` affect the result.

    Attributes
    ----------
    resume
        Continue this model, trained on the same data with the same parameters: the result has the same bytes as
        training ``n_rounds`` rounds, all of them, in one go.
    base_model
        Correct this model: losses and metrics see its scores plus those of the new trees, and so does the result, which
        holds both (:mod:`rankmill.trainer.candidates.combined_forests`).
    on_round
        Called after every round, those of folds (once each) and replayed ones included (see ``fold`` and ``seed`` of
        the record), in the caller's thread.  A training on all rows ends after this round if it returns true; its
        exceptions propagate.
    on_message
        Called with one-line messages, such as about a damaged cache.
    shard
        What this process holds of every set of rows; None: all rows.  All processes of a training return the same.
    cluster
        Train on its workers; None: in this process.
    """

    resume: StartingModel | None = None
    base_model: StartingModel | None = None
    on_round: OnRound | None = None
    on_message: Callable[[str], object] | None = None
    shard: RowShard | None = None
    cluster: Cluster | None = None


DEFAULT_OPTIONS = TrainingOptions()
