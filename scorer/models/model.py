"""What all trained models have in common: features, facts, and bytes that are the same for equal models.

``rankmill.scorer.models.loading`` reads a model of any kind and says how it scores.
"""

from __future__ import annotations

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from rankmill.foundation.errors import InputError, InvalidParameter, RankmillError
from rankmill.foundation.records import JSON
from rankmill.foundation.storage.publish import write_atomically
from rankmill.scorer.models.model_file import MAX_SCORE

DATASETS_OF_BASE = "base_dataset_digests"  # key of a model's info: what its base model, or its parts, were trained on


class Model(ABC):
    """A trained model, immutable.  Two models are equal if their bytes are."""

    __slots__ = ()

    feature_names: tuple[str, ...]  # all features of the data that it was trained on, in order
    categories: Mapping[
        str, Sequence[str]
    ]  # the categorical features, with the texts of the categories that are not numbers
    objective: str
    parameters: Mapping[str, JSON]
    info: Mapping[str, JSON]  # facts about the training; no times, no paths

    @property
    @abstractmethod
    def score_bound(self) -> float:
        """Upper bound of the absolute score of any document, and of any sum on the way to it."""

    @property
    @abstractmethod
    def used_features(self) -> tuple[int, ...]:
        """Positions in ``feature_names`` of the features that scores depend on, ascending."""

    @abstractmethod
    def to_bytes(self) -> bytes:
        """Return the bytes of the model file: the same for equal models, on every machine."""

    @classmethod
    @abstractmethod
    def from_bytes(cls, data: bytes, where: str = "model") -> Self:
        """Read a model of this kind from ``data``; ``where`` names the source in messages.

        Raises
        ------
        ModelFormatError
            Another kind of model, another format number, damaged bytes, or an index or value that no sound model has.
        """

    @property
    def n_features(self) -> int:
        """Features of the data that it was trained on, used or not."""
        return len(self.feature_names)

    @property
    def n_trees(self) -> int:
        """Trees in the model, if it is made of trees."""
        return 0

    @property
    def n_rounds(self) -> int:
        """Rounds of boosting, if the model was made by boosting."""
        return 0

    @property
    def sha256(self) -> str:
        """Digest of the model's bytes, the name under which it is known everywhere."""
        return hashlib.sha256(self.to_bytes()).hexdigest()

    def __eq__(self, other: object) -> bool:
        return self.to_bytes() == other.to_bytes() if isinstance(other, Model) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.to_bytes())

    def __reduce__(self) -> tuple[Any, tuple[bytes, str]]:
        return type(self).from_bytes, (self.to_bytes(), "pickled model")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to ``path`` in one atomic step: a reader sees the old file or the new one, never a part."""
        target = Path(path)
        if target.is_dir() or not target.name:
            raise InputError(
                f"{path}: expected the name of a file to write, found a folder; add a name such as model.rankmill"
            )
        if not target.parent.is_dir():
            raise InputError(f"{path}: there is no folder {target.parent}; make it first")
        write_atomically(target, self.to_bytes())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read the model file ``path``.

        Raises
        ------
        InputError
            There is no such file.
        ModelFormatError
            It is not a sound model of this kind.
        """
        return cls.from_bytes(bytes_of_model(path), str(path))


def check_bound(bound: float, most: float = MAX_SCORE) -> None:
    """Raise InvalidParameter if scores bounded by ``bound`` may be above ``most``; every model calls this when it is made."""
    if not bound <= most:
        raise InvalidParameter(
            f"a score can reach {bound:g}, at most {most:g} is allowed; use smaller weights or leaf values"
        )


def bytes_of_model(path: str | os.PathLike[str]) -> bytes:
    """Return the bytes of the model file ``path``; InputError if there is none."""
    try:
        return Path(path).read_bytes()
    except IsADirectoryError as error:
        raise InputError(f"{path}: expected a model file, found a folder") from error
    except (FileNotFoundError, NotADirectoryError) as error:
        raise InputError(
            f"{path}: no such model file; a model of a registry is named such as web, web@7 or web@latest"
        ) from error


def check_kinds(
    used: Model,
    names: Sequence[str],
    categorical: Container[str],
    error: type[RankmillError],
    *,
    model: str = "the model",
    where: str = "",
) -> None:
    """Raise ``error`` if a feature that a model uses is a number in the data, but categorical in the model, or the reverse.

    ``names`` are the features of the data, ``categorical`` those of them that are; ``model`` and ``where`` are for the message.
    Features that the data lack are no concern of this check.
    """
    for name in (used.feature_names[f] for f in used.used_features):
        if name in names and (name in categorical) != (name in used.categories):
            kinds = ("categorical", "a number") if name in categorical else ("a number", "categorical")
            raise error(f"{where}the feature {name!r} is {kinds[0]} in the data, but {kinds[1]} in {model}")
