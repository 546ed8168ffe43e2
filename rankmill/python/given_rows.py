"""Rows as users give them, at once or in pieces: the features converted, everything else collected for `rows_of`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import IO, Any, TypeAlias, TypedDict

import numpy as np
import numpy.typing as npt

from rankmill.foundation.errors import InvalidParameter, TrainingDataRejected
from rankmill.python.array_rows import ArrayRows, rows_of
from rankmill.python.arrays import check_same_rows, queries_of, vector, with_goals, with_queries, without_index
from rankmill.python.feature_table import FeatureTable, table_of
from rankmill.python.other_libraries import unknown_name
from rankmill.python.spilled_values import SpilledValues
from rankmill.scorer.query_ids import query_ids

RowsAtOnce: TypeAlias = (
    "tuple[npt.ArrayLike, npt.ArrayLike] | tuple[npt.ArrayLike, npt.ArrayLike, npt.ArrayLike | Mapping[str, Any]]"
    # X, y, optionally qid or a mapping of arguments
)
Expected = tuple[tuple[str, ...], Mapping[str, Sequence[str]]]
"""Names of features, and of the categorical ones among them the known texts."""
_GOAL = "goals "  # begins the names of columns of goals
Pieces: TypeAlias = "Iterable[RowsAtOnce] | Callable[[], Iterable[RowsAtOnce]]"


class FitColumns(TypedDict, total=False):
    """Arguments of :meth:`rankmill.python.ranker.Ranker.fit` that eval sets and binned datasets take as well."""

    sample_weight: npt.ArrayLike | None
    query_weight: npt.ArrayLike | Mapping[Any, float] | None
    label: npt.ArrayLike | None
    event: npt.ArrayLike | None
    offset: npt.ArrayLike | None
    position: npt.ArrayLike | None
    pairs: npt.ArrayLike | None
    pair_weight: npt.ArrayLike | None
    pair_probability: npt.ArrayLike | None
    goals: Mapping[str, npt.ArrayLike] | Sequence[str] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenRows:
    """Features, and the other arguments of :meth:`rankmill.python.ranker.Ranker.fit`, unchecked."""

    given_names: tuple[str, ...] | None  # None: the columns have none
    table: FeatureTable
    columns: Mapping[str, Any]  # y, qid, group and those of `FitColumns`, as far as they are given

    @classmethod
    def of_arrays(
        cls,
        X: Any,  # noqa: N803 - the field's name
        y: Any,
        qid: Any = None,
        group: Any = None,
        columns: Mapping[str, Any] | None = None,
        *,
        where: str = "",
        expected: Expected | None = None,
        categorical: Sequence[str | int] | None = None,
    ) -> GivenRows:
        """Convert the features of rows that are given at once; ``where`` begins messages about their queries.

        Without ``expected`` features all columns are taken; ``categorical`` ones are named besides those of text.
        """
        columns = dict(columns or {})
        for name in columns:
            if name not in FitColumns.__annotations__:
                raise InvalidParameter(unknown_name("column", str(name), FitColumns.__annotations__))
        given_names, qid = with_queries(X, qid, group, where)
        given_names, goals = with_goals(X, given_names, columns.pop("goals", None), where)
        aligned = {name: column for name, column in columns.items() if "pair" not in name}
        check_same_rows({"X": X, "y": y, "qid": qid, **aligned, **(goals or {})})
        columns |= {"y": y, "qid": qid, "group": group, "goals": goals}
        if expected is None:
            given_names = without_index(X, given_names, categorical or ())
        names, known = expected or (given_names, None)
        table = table_of(X, names, known, categorical or ())
        given = {name: column for name, column in columns.items() if column is not None}
        return cls(given_names=given_names, table=table, columns=given)

    @classmethod
    def of_pieces(
        cls,
        pieces: Pieces,
        file: IO[bytes],
        *,
        expected: Expected | None = None,
        categorical: Sequence[str | int] | None = None,
    ) -> GivenRows:
        """Read every piece once; their features go to ``file``, an open and empty one.

        Without ``expected`` the first piece decides which features there are, and which of them are categorical.
        """
        joined: _Joined | None = None
        for number, piece in enumerate(pieces() if callable(pieces) else pieces):
            try:
                one = cls.of_arrays(*unpacked(piece), expected=expected, categorical=categorical)
                if joined is None:
                    joined = _Joined(one, file)
                    expected = expected or (one.table.names, dict.fromkeys(one.table.texts, ()))
                    categorical = None
                joined.add(one)
            except (InvalidParameter, TrainingDataRejected) as error:
                raise type(error)(f"piece {number}: {error}") from None
        if joined is None:
            raise TrainingDataRejected("there are no pieces; give at least one")
        return joined.given()

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the features, in order."""
        return self.table.names

    def rows(self, *, regression: bool, where: str = "") -> ArrayRows:
        """Check everything and group the rows by query; see `rows_of`."""
        values, columns = self.table.values, dict(self.columns)
        y, qid, group = (columns.pop(name, None) for name in ("y", "qid", "group"))
        return rows_of(values, y, queries_of(qid, group, len(values), where), columns, regression=regression)


def unpacked(rows: object) -> tuple[Any, Any, Any, Any, Mapping[str, Any]]:
    """Return X, y, qid, group and the other arguments of `RowsAtOnce`; InvalidParameter for anything else."""
    if not isinstance(rows, tuple) or len(rows) not in {2, 3}:
        raise InvalidParameter("expected (X, y, qid) or (X, y, {'qid': .., 'offset': ..})")
    by_name = len(rows) == 3 and isinstance(rows[2], Mapping)
    more: MutableMapping[str, Any] = dict(rows[2]) if by_name else {"qid": rows[2]} if len(rows) == 3 else {}
    return rows[0], rows[1], more.pop("qid", None), more.pop("group", None), more


class _Joined:
    """Pieces one after another, like ``first``: the features in a temporary file, the other columns in memory."""

    def __init__(self, first: GivenRows, file: IO[bytes]) -> None:
        self._first = first
        self._texts: dict[str, dict[str, float]] = {name: {} for name in first.table.texts}
        self._columns: dict[str, list[npt.NDArray[Any]]] = {name: [] for name in _columns_of(first)}
        self._values = SpilledValues(len(first.table.names), file)

    def add(self, piece: GivenRows) -> None:
        """Append a piece."""
        n_rows, columns = len(piece.table.values), _columns_of(piece)
        if columns.keys() != self._columns.keys():
            raise InvalidParameter(
                f"expected {', '.join(self._columns)} as in the first piece, found {', '.join(columns)}"
            )
        for name, given in columns.items():
            column = query_ids(given) if name == "qid" else vector(given, name)
            if name in {"pairs", "pair_weight", "pair_probability"}:
                raise InvalidParameter(f"{name} cannot be given in pieces, since pairs are numbers of rows")
            if column.ndim != 1 or (name != "group" and len(column) != n_rows):
                raise TrainingDataRejected(f"{name} must have shape ({n_rows},), got {column.shape}")
            self._columns[name].append(column)
        for name, texts in piece.table.texts.items():
            self._texts[name] |= texts
        assert isinstance(piece.table.values, np.ndarray)  # noqa: S101 - given at once
        self._values.add(piece.table.values)

    def given(self) -> GivenRows:
        """Return the rows of all pieces."""
        self._values.flush()
        columns: dict[str, Any] = {name: _concatenated(parts) for name, parts in self._columns.items()}
        goals = {name.removeprefix(_GOAL): columns.pop(name) for name in [*columns] if name.startswith(_GOAL)}
        table = FeatureTable(self._first.table.names, self._values, self._texts)
        columns |= {"goals": goals} if goals else {}
        return GivenRows(given_names=self._first.given_names, table=table, columns=columns)


def _columns_of(given: GivenRows) -> dict[str, Any]:
    """Return the columns by name, those of goals by ``goals NAME``."""
    columns = dict(given.columns)
    goals = columns.pop("goals", {})
    return columns | {f"{_GOAL}{name}": column for name, column in goals.items()}


def _concatenated(parts: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Return all parts; as objects if their types differ, of which NumPy would make floats or text."""
    kinds = {part.dtype.kind for part in parts}
    return np.concatenate([part.astype(object) for part in parts] if len(kinds) > 1 else parts)
