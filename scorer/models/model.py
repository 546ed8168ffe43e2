"""What all trained models have in common.

These are features, facts, bytes that are equal for equal models, and how they score.

``rankmill.scorer.models.loading`` reads a model of any kind and says how it scores.
"""

from __future__ import annotations

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

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
    """Raise InvalidParameter if scores bounded by ``bound`` may be above ``most``.

    Every model calls this on creation.
    """
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
    """Raise ``error`` if a feature of a model is a number in the data but categorical in the model, or the reverse.

    ``names`` are the features of the data, ``categorical`` those of them that are; ``model`` and ``where`` are for the
    message. Features that the data lack are no concern of this check.
    """
    for name in (used.feature_names[f] for f in used.used_features):
        if name in names and (name in categorical) != (name in used.categories):
            kinds = ("categorical", "a number") if name in categorical else ("a number", "categorical")
            raise error(f"{where}the feature {name!r} is {kinds[0]} in the data, but {kinds[1]} in {model}")


class Predictor(ABC):
    """A model laid out for prediction; make one and use it for many batches.  Safe to share between threads.

    A score has the same bits for any batch size, order of rows and number of threads.
    """

    model: Model
    features: tuple[int, ...]
    """Positions in ``model.feature_names`` of the used features, ascending."""

    table_bytes: int = 0
    """Bytes of tables that are made for prediction and may be far larger than the file of the model."""

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the features that scores depend on, in the order of ``features``."""
        return tuple(self.model.feature_names[f] for f in self.features)

    @property
    @abstractmethod
    def comparisons(self) -> int:
        """Number of comparisons per document, or of steps with the same cost; it does not depend on its features."""

    @abstractmethod
    def scores(
        self,
        values: npt.NDArray[np.float32],
        *,
        columns: npt.ArrayLike | None = None,
        absent: float = np.nan,
        n_threads: int = 1,
    ) -> npt.NDArray[np.float64]:
        """Score the rows of ``values``.

        Parameters
        ----------
        values
            (n, width) raw features, NaN where missing.  float64 is rounded to float32 first, the precision that the
            model was trained in.
        columns
            (len(``features``),) column of ``values`` that holds each of ``features``; -1: no column, every document
            has the value ``absent``.  None: ``values`` has all features of the model in its order.
        n_threads
            Threads to share the rows among; the scores do not depend on it.

        Returns
        -------
        (n,) float64 scores.

        Raises
        ------
        ValueError
            ``values`` is not a table of floats, or has no such column.
        """

    @property
    @abstractmethod
    def code_bytes(self) -> int:
        """Bytes per row of `codes_buffer`."""

    @abstractmethod
    def codes_buffer(self, n_rows: int) -> Any:
        """Return a buffer for ``n_rows``, to fill by column with `take_column`."""

    @abstractmethod
    def take_column(self, codes: Any, slot: int, first: int, values: npt.NDArray[np.float32]) -> None:
        """Write some values of one feature to ``codes``.

        Parameters
        ----------
        codes
            From `codes_buffer`.
        slot
            Position of the feature in ``features``.
        first
            The row of the first value.
        values
            (m,) as in `scores`.

        Raises
        ------
        ValueError
            The values do not fit.
        """

    @abstractmethod
    def scores_of_codes(self, codes: Any, n_rows: int) -> npt.NDArray[np.float64]:
        """Return the (``n_rows``,) scores, as `scores` does, once ``codes`` has the values of all features."""

    def _table(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return ``values`` if it is a table of floats; else raise ValueError."""
        table = np.asarray(values)
        if table.ndim != 2:
            raise ValueError(f"values has {table.ndim} dimensions, expected 2: (documents, features)")
        if table.dtype not in (np.dtype(np.float32), np.dtype(np.float64)):
            raise ValueError(f"values has the dtype {table.dtype}, expected float32 or float64")
        return table

    def _columns(self, values: npt.NDArray[np.float32], columns: npt.ArrayLike | None) -> npt.NDArray[np.int64]:
        """Return the column of each feature that is used; ValueError if there is no such column."""
        table = self._table(values)
        if columns is None:
            if table.shape[1] != self.model.n_features:
                raise ValueError(f"values has {table.shape[1]} columns, the model has {self.model.n_features} features")
            return np.asarray(self.features, dtype=np.int64)
        where = np.asarray(columns, dtype=np.int64)
        if where.shape != (len(self.features),):
            raise ValueError(f"columns has the shape {where.shape}, expected {(len(self.features),)}")
        if np.any((where < -1) | (where >= table.shape[1])):
            raise ValueError(f"columns asks for column {where.max()} of {table.shape[1]}")
        return where
