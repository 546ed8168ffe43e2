"""Rows that users give as a Dask DataFrame: checked, and written as Parquet by the workers that have them."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankmill.foundation.cluster.duty import Duty
from rankmill.foundation.errors import InvalidParameter, TrainingDataRejected
from rankmill.pipeline.read.column_roles import PARTS, RESERVED
from rankmill.python.arrays import library_of, made_up_names, name_of_column, names_in, without_index
from rankmill.scorer.query_ids import query_ids

if TYPE_CHECKING:
    from rankmill.foundation.cluster.dask_engine import DaskEngine

_QUERIES, _GRADES = "qid", "grade"
_ROLES = {  # of the arguments of Ranker.fit in a dataset
    "sample_weight": "weight",
    "query_weight": "query_weight",
    "label": "label",
    "event": "event",
    "offset": "offset",
    "position": "position",
}
_TEXTS = "OUS"  # kinds of pandas' types of text and of categories
_GROUP_BYTES = 64 << 20  # of a row group: a worker reads one at once


@dataclass(frozen=True, slots=True, kw_only=True)
class DaskRows:
    """A Dask DataFrame, and what its columns are.

    Attributes
    ----------
    frame
        The DataFrame.
    given_names
        Names of its columns that are features; None: they have none.
    features
        The same, or made-up names.
    columns
        The names of its other columns, or Dask Series, by their roles in a dataset: ``qid``, ``grade``, ``weight`` ..
    goals
        Names of columns with goals.
    categorical
        The features that are categories.
    """

    frame: Any
    given_names: tuple[str, ...] | None
    features: tuple[str, ...]
    columns: Mapping[str, Any]
    goals: tuple[str, ...]
    categorical: tuple[str, ...]

    @classmethod
    def of(
        cls,
        X: Any,  # noqa: N803 - the field's name
        y: Any,
        given: Mapping[str, Any],
        where: str,
        *,
        categorical: Sequence[str | int] = (),
        expected: DaskRows | None = None,
    ) -> DaskRows:
        """Check the named arguments ``given`` to :meth:`rankmill.python.ranker.Ranker.fit` besides X and y.

        ``where`` begins messages.

        ``expected`` are the training rows, if these ones are an eval set.

        Raises
        ------
        InvalidParameter
            ``X`` is no Dask DataFrame, or a column is not one of it and no Dask Series with as many partitions; there
            are no grades or no queries; or there is what cannot be trained with on a cluster.
        """
        if not _is_dask(X, 2):
            raise InvalidParameter(
                f"{where}takes a Dask DataFrame as X on a cluster, got {type(X).__name__}; "
                "dask.dataframe.from_pandas(X, npartitions=8) makes one, or leave out the parameter cluster"
            )
        names, given = names_in(X.columns), {name: value for name, value in given.items() if value is not None}
        goals = _goals(given.pop("goals", ()), expected, where)
        if names is not None and _QUERIES in names and _QUERIES not in given:
            given[_QUERIES] = _QUERIES
        for needed in (_QUERIES, *(() if "label" in given else ("y",))):
            if (given.get(needed) if needed != "y" else y) is None:
                raise InvalidParameter(f"{where}needs {needed}, the name of a column of X or a Dask Series")
        columns: dict[str, Any] = {} if y is None else {_GRADES: _column("y", y, X, names, where)}
        for name, value in given.items():
            role = _QUERIES if name == _QUERIES else _ROLES.get(name)
            if role is None:
                instead = "; give qid" if name == "group" else ""
                raise InvalidParameter(f"{where}takes no {name} on a cluster{instead}")
            columns[role] = _column(name, value, X, names, where)
        no_features = {value for value in columns.values() if isinstance(value, str)} | {*goals}
        given_names = None if names is None else tuple(name for name in names if name not in no_features)
        if expected is None:
            given_names = without_index(X, given_names, categorical)
        features = made_up_names(len(X.columns)) if given_names is None else given_names
        for goal in goals:
            if names is None or goal not in names:
                raise InvalidParameter.unknown(f"column of X, given to {where}in goals,", goal, names or ())
        if expected is None:
            _check_features(features, where)
        else:
            if missing := [name for name in expected.features if name not in features]:
                raise TrainingDataRejected(f"{where}X lacks the feature {missing[0]!r} of the training rows")
            features = expected.features
        return cls(
            frame=X,
            given_names=given_names,
            features=features,
            columns=columns,
            goals=goals,
            categorical=_categorical(X, names, features, categorical) if expected is None else expected.categorical,
        )

    def write(self, engine: DaskEngine, folder: Path) -> list[Path]:
        """Let Dask write each partition that has rows as a Parquet file into ``folder``; return the files.

        All workers see the folder.

        Rows are matched by position within each partition.

        Raises
        ------
        TrainingDataRejected
            A Series has other partitions than the DataFrame, or there are no rows.
        InputError, WorkerLost, ClusterUnavailable
            A worker does not see the folder, and as :meth:`rankmill.foundation.cluster.dask_engine.DaskEngine.compute`.
        """
        names = names_in(self.frame.columns)
        own = names or self.features
        chosen = {name: own.index(name) for name in (*self.features, *self.goals)}
        chosen |= {role: own.index(value) for role, value in self.columns.items() if isinstance(value, str)}
        series = {role: value for role, value in self.columns.items() if not isinstance(value, str)}
        with Duty.shared(folder) as duty:
            values = zip(*(each.to_delayed() for each in (self.frame, *series.values())), strict=True)
            calls = [
                ((duty, folder / f"{number:06d}.parquet", chosen, tuple(series)), parts)
                for number, parts in enumerate(values)
            ]
            written = engine.compute(_write_partition, calls)
        if not any(written):
            raise TrainingDataRejected("X has no rows")
        return [path for ((_, path, *_), _), rows in zip(calls, written, strict=True) if rows]


def _write_partition(duty: Duty, path: Path, chosen: Mapping[str, int], series: Sequence[str], *values: Any) -> int:
    """Write a pandas frame, and Series beside it, as ``path``, unless there are no rows; return their number.

    ``chosen`` has the positions of columns by their names in the file, ``series`` the names of the others.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    duty.check()
    frame, *others = values
    for name, other in zip(series, others, strict=True):
        if len(other) != len(frame):
            raise TrainingDataRejected(
                f"partition {int(path.stem)}: {len(other):,} values of {name} for {len(frame):,} rows of X; rows are "
                "matched by position, so give columns of the same DataFrame"
            )
    if not len(frame):
        return 0
    arrays = {
        name: pa.array(frame.iloc[:, column], from_pandas=True) for name, column in chosen.items() if name != _QUERIES
    }
    arrays |= {
        name: pa.array(other, from_pandas=True) for name, other in zip(series, others, strict=True) if name != _QUERIES
    }
    arrays[_QUERIES] = _ids(frame.iloc[:, chosen[_QUERIES]] if _QUERIES in chosen else others[series.index(_QUERIES)])
    plain = {
        name: array.dictionary_decode() if pa.types.is_dictionary(array.type) else array
        for name, array in arrays.items()
    }
    table = pa.table(plain)
    written = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    pq.write_table(table, written, row_group_size=max(1, _GROUP_BYTES * len(table) // max(1, table.nbytes)))
    written.replace(path)
    return len(frame)


def _ids(column: Any) -> Any:
    """Return query ids as an Arrow array: numbers as their text, which has room for all of them."""
    import pyarrow as pa

    ids = query_ids(column)
    numbers = ids.dtype.kind in "iu" or isinstance(ids[0], int)
    return pa.array([str(one) for one in ids.tolist()] if numbers else ids)


def _is_dask(values: Any, dimensions: int) -> bool:
    """Whether ``values`` are a Dask DataFrame (2 dimensions) or a Dask Series (1)."""
    of_dask = (
        library_of(values) in {"dask", "dask_expr"} and hasattr(values, "to_delayed") and hasattr(values, "columns")
    )
    return of_dask and values.ndim == dimensions


def _column(name: str, value: Any, X: Any, names: Sequence[str] | None, where: str) -> Any:  # noqa: N803
    """Return a name of a column of ``X``, or a Dask Series with as many partitions."""
    if isinstance(value, str):
        if names is None or value not in names:
            raise InvalidParameter.unknown(f"column of X, given to {where}as {name},", value, names or ())
        return value
    if not _is_dask(value, 1):
        raise InvalidParameter(
            f"{where}takes as {name} the name of a column of X, or a Dask Series, got {type(value).__name__}"
        )
    if value.npartitions != X.npartitions:
        raise TrainingDataRejected(
            f"{where}{name} has {value.npartitions} partitions, X has {X.npartitions}; give columns of the same "
            "DataFrame"
        )
    return value


def _goals(goals: Any, expected: DaskRows | None, where: str) -> tuple[str, ...]:
    if not goals and expected is not None:
        return expected.goals
    if isinstance(goals, str | Mapping):
        raise InvalidParameter(f"{where}takes as goals a list of names of columns of X on a cluster")
    return tuple(goals)


def _check_features(features: Sequence[str], where: str) -> None:
    for name in features:
        if name in {*PARTS, *RESERVED}:
            raise InvalidParameter(
                f"{where}found a column {name!r} of X that would be a feature, but a dataset has another use for this "
                "name; rename the column or drop it"
            )


def _categorical(
    X: Any,  # noqa: N803
    names: Sequence[str] | None,
    features: Sequence[str],
    given: Sequence[str | int],
) -> tuple[str, ...]:
    """Return the features that are named as categorical, or are of text or of a type of categories."""
    found = {key if isinstance(key, str) else name_of_column("categorical", key, features) for key in given}
    for name in found:
        if name not in features:
            raise InvalidParameter.unknown("column in categorical", name, features)
    for name, dtype in zip(names or features, X.dtypes, strict=True):
        if dtype.kind in _TEXTS:
            found.add(name)
    return tuple(name for name in features if name in found)
