"""Checkpoints of a training of a net: all that its later epochs depend on, as bytes that notice every change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from math import inf, isnan, nan
from typing import Any

import numpy as np
import numpy.typing as npt

from rankmill.foundation.errors import InvalidParameter, ModelFormatError
from rankmill.foundation.options import spelled
from rankmill.scorer.models import model_file
from rankmill.trainer.nets.options import COSINE, NetOptions
from rankmill.trainer.rounds.training_result import RoundRecord

MAGIC = b"RANKMNCP"
MAY_DIFFER = ("epochs", "early_stopping_epochs")
_BEST = "best_net"
OF_PASSES: model_file.ArrayTypes = (
    ("weights", np.dtype("<f4")),
    ("moments", np.dtype("<f4")),
    ("powers", np.dtype("<f8")),
    ("running", np.dtype("<f4")),
)
"""Arrays of `rankmill.trainer.nets.passes.Passes.state`."""
ARRAYS: model_file.ArrayTypes = (*OF_PASSES, (_BEST, np.dtype("u1")))

HEADER: model_file.Header = {
    "best_epoch": int,
    "best_value": list,  # empty: none
    "history": list,
    "key": str,
    "last_loss": list,
    "options": dict,
    "rate": float,
    "steps": int,
}


@dataclass(slots=True, kw_only=True)
class NetCheckpoint:
    """The state of a training after some epochs."""

    key: str  # of the data
    options: Mapping[str, Any]
    rate: float  # learning rate of the next epoch
    steps: int = 0
    best_epoch: int = 0
    best_value: float = nan
    last_loss: float = inf
    history: tuple[RoundRecord, ...] = ()
    arrays: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    best_net: bytes = b""

    def check_resumable(self, key: str, options: NetOptions) -> None:
        """Raise InvalidParameter, naming the first difference, unless training with ``options`` on data ``key`` resumes it."""
        if self.key != key:
            raise InvalidParameter("resume: the checkpoint is of a training on other data")
        for name, value in _plain(asdict(options)).items():
            before = self.options.get(name)
            if before != value and (name not in MAY_DIFFER or (name == "epochs" and options.schedule == COSINE)):
                raise InvalidParameter(f"resume: {spelled(name)} was {before!r} and is now {value!r}; it must stay")
        if options.epochs < len(self.history):
            raise InvalidParameter(
                f"resume: {spelled('epochs')} counts all epochs and must be at least the {len(self.history)} of the"
                f" checkpoint, got {options.epochs}"
            )

    def to_bytes(self) -> bytes:
        """Return the checkpoint as bytes."""
        header = {
            "key": self.key,
            "options": _plain(self.options),
            "rate": self.rate,
            "steps": self.steps,
            "best_epoch": self.best_epoch,
            "best_value": [] if isnan(self.best_value) else [self.best_value],
            "last_loss": [] if self.last_loss == inf else [self.last_loss],
            "history": [
                {
                    name: {measure: None if isnan(value) else value for measure, value in of_set.items()}
                    for name, of_set in record.metrics.items()
                }
                for record in self.history
            ],
        }
        arrays = {name: self.arrays[name] for name, _ in OF_PASSES} | {_BEST: np.frombuffer(self.best_net, np.uint8)}
        return model_file.encode(model_file.NET, header, arrays, MAGIC)

    @classmethod
    def from_bytes(cls, data: bytes, where: str = "checkpoint") -> NetCheckpoint:
        """Read a checkpoint; ModelFormatError if it is damaged or of another format."""
        try:
            _, header, arrays = model_file.decode(
                data, where, "a checkpoint of a net", {model_file.NET: (HEADER, ARRAYS)}, MAGIC
            )
            history = tuple(
                RoundRecord(
                    n,
                    {name: {m: nan if v is None else v for m, v in of_set.items()} for name, of_set in metrics.items()},
                )
                for n, metrics in enumerate(header["history"], start=1)
            )
            return cls(
                key=header["key"],
                options=header["options"],
                rate=header["rate"],
                steps=header["steps"],
                best_epoch=header["best_epoch"],
                best_value=header["best_value"][0] if header["best_value"] else nan,
                last_loss=header["last_loss"][0] if header["last_loss"] else inf,
                history=history,
                arrays=arrays,
                best_net=arrays[_BEST].tobytes(),
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ModelFormatError(f"{where}: not a checkpoint of a net: {model_file.shortened(error)}") from error


def _plain(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in options.items()}
