"""What scoring needs of a trained model: which features it uses, and the scores of many documents.

Each kind of model has its own: trees in ``predict.py``, nets in ``nets/predict.py``, blends in ``models.py``.  `rankmill.scorer.models.loading.predictor_of` makes one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import numpy.typing as npt

from rankmill.scorer.models.model import Model


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
        """Number of comparisons per document, or of steps that cost as much, whatever its features."""

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
