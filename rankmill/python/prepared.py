"""What a ranker keeps of its model between calls, so that scoring one query costs little more than its trees."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import numpy.typing as npt

from rankmill.python.arrays import NUMBERS, are_numbered, library_of
from rankmill.python.feature_table import unnamed_columns
from rankmill.scorer.models.loading import predictor_of
from rankmill.scorer.models.model import Model, Predictor

_FLOATS = (np.dtype(np.float32), np.dtype(np.float64))
_WHOLE = frozenset({"Int8", "Int16", "Int32", "UInt8", "UInt16", "UInt32"})  # float64 holds them all
_LONG = frozenset({"Int64", "UInt64"})
_NUMERIC = _WHOLE | _LONG | {"Float32", "Float64"}
_EXACT = 2.0**53  # float64 holds all smaller whole numbers


class PreparedModel:
    """A model, the predictor that was used last, and what is needed to find its features.

    Safe to share between threads.

    A pickle or a copy has the model alone.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self._last: tuple[tuple[int | None, int], Predictor] | None = None
        self._names = list(model.feature_names)
        self._numbered = are_numbered(model.feature_names)
        self._numbers_alone = not model.categories

    def __reduce__(self) -> tuple[type[PreparedModel], tuple[Model]]:
        return type(self), (self.model,)

    def predictor(self, n_rounds: int | None = None, start_round: int = 0) -> Predictor:
        """Return the predictor of `rankmill.scorer.models.loading.predictor_of`.

        It is laid out again only if the rounds have changed.
        """
        last, rounds = self._last, (n_rounds, start_round)
        if last is None or last[0] != rounds:
            self._last = last = rounds, predictor_of(self.model, n_rounds=n_rounds, start_round=start_round)
        return last[1]

    def numbers(self, values: Any) -> npt.NDArray[Any] | None:
        """Return the features of the model in ``values`` if columns need no check.

        The shape is (n, n_features), float32 or float64.

        It does if ``values`` are an array of numbers, or a frame of numbers whose columns are the model's features.
        None if not, or if anything may be wrong: `rankmill.python.feature_table.matrix_for` then finds out.  The caller
        must not write to the result.

        Warns
        -----
        UserWarning
            As `rankmill.python.feature_table.table_of`; on behalf of the caller's caller.
        """
        if not self._numbers_alone:
            return None
        found = self._whole(values)
        if found is None or found.ndim != 2 or found.shape[1] != len(self._names) or found.dtype not in _FLOATS:
            return None
        if found is values and not self._numbered:
            warnings.warn(unnamed_columns(self.model.feature_names), UserWarning, stacklevel=3)
        return found

    def _whole(self, values: Any) -> npt.NDArray[Any] | None:
        library = library_of(values)
        if library == "polars":
            return self._from_polars(values)
        if library == "pandas":
            return self._from_pandas(values)
        if library == "pyarrow":
            return self._from_arrow(values)
        return values if type(values) is np.ndarray else None

    def _from_polars(self, frame: Any) -> npt.NDArray[Any] | None:
        if not hasattr(frame, "to_numpy") or not hasattr(frame, "dtypes"):  # a lazy frame, or a series
            return None
        own = frame.columns
        if own != self._names:
            if not set(own).issuperset(self._names):
                return None
            frame = frame[self._names]
        types = {type(each).__name__ for each in frame.dtypes}
        if not types <= _NUMERIC:
            return None
        return _floats(frame.to_numpy(order="c"), long=not types.isdisjoint(_LONG))

    def _from_pandas(self, frame: Any) -> npt.NDArray[Any] | None:
        columns = getattr(frame, "columns", None)
        if columns is None or columns.tolist() != self._names:
            return None
        if not all(isinstance(each, np.dtype) and each.kind in NUMBERS for each in frame.dtypes.tolist()):
            return None
        with np.errstate(over="ignore"):
            found: npt.NDArray[Any] = frame.to_numpy(dtype=np.float32)
        return found

    def _from_arrow(self, table: Any) -> npt.NDArray[Any] | None:
        schema = getattr(table, "schema", None)
        if schema is None or schema.names != self._names or not hasattr(table, "num_rows"):  # a reader has no rows yet
            return None
        types = {str(each) for each in set(schema.types)}
        if not types <= {"float", "double"}:
            return None
        batches = table.to_batches() if hasattr(table, "to_batches") else [table]
        if len(batches) != 1:
            return None
        found: npt.NDArray[Any] = batches[0].to_tensor(null_to_nan=True).to_numpy()
        return found


def _floats(found: npt.NDArray[Any], *, long: bool) -> npt.NDArray[Any] | None:
    """Return ``found`` as floats; None if 64-bit integers, ``long``, may have been rounded to float64."""
    if found.dtype.kind in "iu":
        return found.astype(np.float32)
    if long and (found.dtype != np.float64 or (np.abs(found) >= _EXACT).any()):
        return None
    return found
