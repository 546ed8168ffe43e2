"""What a training needs besides its data and its parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rankmill.foundation.training_facts import OtherModel
from rankmill.trainer.growing.histogram import DEFAULT_POOL_BYTES
from rankmill.trainer.history import RoundRecord

if TYPE_CHECKING:
    from rankmill.pipeline.group.sketch import QuerySketch
    from rankmill.scorer.forest import Forest
    from rankmill.scorer.model_service import ModelIdentity

CHECKPOINT_SECONDS = 300.0  # what a kill costs at most, but for a last round

OnRound = Callable[[RoundRecord], bool | None]


@dataclass(frozen=True, slots=True)
class StartingModel:
    """A model that a training starts from: the one to resume, or the base model to correct."""

    forest: Forest
    identity: ModelIdentity | None = None  # None: a forest in memory
    queries: QuerySketch | None = None  # that it was trained on, where that is known

    @property
    def sha256(self) -> str:
        """The digest of the model file."""
        return self.forest.sha256 if self.identity is None else self.identity.sha256

    def facts(self) -> OtherModel:
        """Return its digest and, where it came from a registry, which version it is."""
        named = self.identity is not None and self.identity.name is not None
        return OtherModel(sha256=self.sha256, model=str(self.identity) if named else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOptions:
    """Options of a training that are no parameters of the model: only ``resume`` and ``base_model`` decide what it becomes.

    Attributes
    ----------
    eval_metrics
        Measured after every round besides the stop metric.
    resume
        Continue this model, trained on the same data with the same parameters: the result has the same bytes as training
        ``n_rounds`` rounds, all of them, in one go.
    base_model
        Correct this model: losses and metrics see its scores plus those of the new trees, and so does the result, which
        holds both (:mod:`rankmill.trainer.combined_forests`).
    n_threads
        Threads to work with; 0: the cores this process may use.
    bin_cache
        A folder, made if need be, in which the bins of the train split are kept in the trainer's own layout: built once per
        dataset and binning, and from then on mapped instead of held in memory.  None: held in memory.
    histogram_memory
        Bound of the memory for histograms in bytes; with less, training takes longer.
    checkpoint
        A folder in which finished trainings and checkpoints are kept, so that a killed command resumes.  None: nowhere.
    checkpoint_every
        Seconds between two checkpoints; 0: after every round.
    profile
        Time the phases of every round.
    on_round
        Called after every round, those of folds and replayed ones included (see ``fold`` and ``seed`` of the record), in the
        caller's thread.  A training on all rows ends after this round if it returns true; what it raises is raised there.
    on_message
        Called with one line where something is worth saying, such as a damaged cache.
    """

    eval_metrics: Sequence[str] = ()
    resume: StartingModel | None = None
    base_model: StartingModel | None = None
    n_threads: int = 0
    bin_cache: Path | None = None
    histogram_memory: int = DEFAULT_POOL_BYTES
    checkpoint: Path | None = None
    checkpoint_every: float = CHECKPOINT_SECONDS
    profile: bool = False
    on_round: OnRound | None = None
    on_message: Callable[[str], object] | None = None


DEFAULT_OPTIONS = TrainingOptions()
