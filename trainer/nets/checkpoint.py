"""Checkpoints of a training of a net: all that its later epochs depend on, as bytes that notice every change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rankmill.foundation.errors import IntegrityError, InvalidParameter, ModelFormatError
from rankmill.foundation.options import spelled
from rankmill.foundation.records import as_json, from_json
from rankmill.scorer.models import model_file
from rankmill.trainer.nets.options import COSINE, NetOptions
from rankmill.trainer.rounds.training_result import Curves

MAGIC = b"RANKMNCP"
MAY_DIFFER = ("epochs", "early_stopping_epochs")
_BEST = "best_net"
ARRAYS: model_file.ArrayTypes = (
    ("weights", np.dtype("<f4")),
    ("moments", np.dtype("<f4")),
    ("powers", np.dtype("<f8")),
    ("running", np.dtype("<f4")),
    (_BEST, np.dtype("u1")),
)
"""Arrays of `rankmill.trainer.nets.passes.Passes.state`, and the file of the best net."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetCheckpoint:
    """The state of a training after some epochs, besides its arrays."""

    key: str  # of the data
    options: Mapping[str, Any]
    rate: float  # learning rate of the next epoch
    steps: int
    best_epoch: int
    best_value: float | None
    last_loss: float | None
    curves: Curves

    def check_resumable(self, key: str, options: NetOptions) -> None:
        """Raise InvalidParameter with the first difference, unless ``options`` and data ``key`` resume it."""
        if self.key != key:
            raise InvalidParameter("resume: the checkpoint is of a training on other data")
        for name, value in options.stored().items():
            before = self.options.get(name)
            if before != value and (name not in MAY_DIFFER or (name == "epochs" and options.schedule == COSINE)):
                raise InvalidParameter(f"resume: {spelled(name)} was {before!r} and is now {value!r}; it must stay")
        done = len(self.curves.history())
        if options.epochs < done:
            raise InvalidParameter(
                f"resume: {spelled('epochs')} counts all epochs and must be at least the {done} of the"
                f" checkpoint, got {options.epochs}"
            )

    def to_bytes(self, arrays: Mapping[str, npt.NDArray[Any]], best_net: bytes) -> bytes:
        """Return the checkpoint as bytes, with the arrays of the passes and the file of the best net."""
        held = {**arrays, _BEST: np.frombuffer(best_net, np.uint8)}
        return model_file.encode(
            model_file.NET, {"state": as_json(self)}, {name: held[name] for name, _ in ARRAYS}, MAGIC
        )

    @classmethod
    def from_bytes(cls, data: bytes, where: str = "checkpoint") -> tuple[NetCheckpoint, model_file.Arrays, bytes]:
        """Return what :meth:`to_bytes` was given; ModelFormatError if it is damaged or of another format."""
        formats = {model_file.NET: ({"state": dict}, ARRAYS)}
        _, header, arrays = model_file.decode(data, where, "a checkpoint of a net", formats, MAGIC)
        try:
            return from_json(cls, header["state"], where), arrays, arrays[_BEST].tobytes()
        except IntegrityError as error:
            raise ModelFormatError(f"{where}: not a checkpoint of a net: {model_file.shortened(error)}") from error
