"""Convert NumPy, Polars, Arrow and pandas input to NumPy arrays of features, queries and vectors."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rankmill.foundation.errors import InvalidParameter, TrainingDataRejected
from rankmill.foundation.scalars import whole_number
from rankmill.pipeline.read.column_roles import HABITS
from rankmill.pipeline.read.columns import usual_name
from rankmill.pipeline.read.pandas_marks import index_columns
from rankmill.scorer.query_ids import query_ids

NUMBERS = "biuf"  # NumPy's kinds of numeric types


def array(values: Any, name: str) -> npt.NDArray[Any]:
    """Return ``values`` as an array of any type.

    Raises
    ------
    TrainingDataRejected
        Rows have different lengths, a value is masked, or there are no rows yet: see `refuse_container`.
    """
    refuse_container(values, name)
    masked = (
        np.ma.getmaskarray(found).reshape(len(found), -1).any(axis=1) if (found := _masked(values)) is not None else ()
    )
    if np.any(masked):
        raise TrainingDataRejected(
            f"{name}: row {int(np.argmax(masked))} is masked, so its value is missing; leave out such rows "
            "(np.ma.getmaskarray finds them)"
        )
    if library_of(values) == "polars" and is_of_128_bits(values):
        values = values.to_list()  # NumPy has no such type
    try:
        return np.asarray(values)
    except ValueError:  # NumPy's message is about inhomogeneous shapes
        raise TrainingDataRejected(f"{name} is ragged; give rows of equal length") from None


def is_of_128_bits(series: Any) -> bool:
    """Whether a Polars series has whole numbers of 128 bits, which neither NumPy nor Arrow have."""
    return str(getattr(series, "dtype", "")) in {"Int128", "UInt128"}


def without_mask(values: Any) -> Any:
    """Return features ``values`` with missing values, NaN or None, where they are masked."""
    found = _masked(values)
    if found is None:
        return values
    if found.dtype.kind in NUMBERS:
        return np.ma.filled(found.astype(found.dtype if found.dtype.kind == "f" else np.float64), np.nan)
    objects = np.array(found.data, dtype=object)
    objects[np.ma.getmaskarray(found)] = None
    return objects


def _masked(values: Any) -> np.ma.MaskedArray[Any, Any] | None:
    """Return a masked array, or a list of masked rows, as one; None for anything else."""
    rows = isinstance(values, list | tuple) and any(isinstance(row, np.ma.MaskedArray) for row in values)
    try:
        return np.ma.array(values) if rows or isinstance(values, np.ma.MaskedArray) else None
    except ValueError:  # rows of different lengths
        return None


def vector(values: Any, name: str) -> npt.NDArray[Any]:
    """Return numbers as a NumPy array; pandas' extension types and lists with None become objects."""
    found = array(values, name)
    if found.dtype != object:
        return found
    try:
        return found.astype(np.float64)
    except (TypeError, ValueError):
        return found


Matrix = npt.NDArray[np.float32]

_QUERIES = "qid"


def names_of(frame: object) -> tuple[str, ...] | None:
    """Return the column names of a frame or an Arrow table.

    None for an array, and for a pandas frame with numbered columns.

    Raises
    ------
    TrainingDataRejected
        It has no rows yet, or no columns: see `refuse_container`.
    """
    refuse_container(frame, "X")
    if library_of(frame) == "pyarrow":
        return names_in(getattr(getattr(frame, "schema", None), "names", None))
    return names_in(getattr(frame, "columns", None))


def names_in(found: Any) -> tuple[str, ...] | None:
    """Return the columns ``found`` of a frame as names; None if there are none or numbers only."""
    if found is None or (len(found) and list(found) == list(range(len(found)))):
        return None
    return tuple(str(name) for name in found)


def refuse_container(values: Any, name: str) -> None:
    """Raise TrainingDataRejected, with the way to an array or a frame, for other containers of rows.

    Some have no rows yet, and a second look at them could find others or another order; some have no columns.
    """
    kind, cure, it = "", "", name.rpartition(" ")[2]
    library, own = library_of(values), type(values).__name__
    if isinstance(values, str | os.PathLike):
        kind, cure = "the name of a file", "read it first, such as with polars.read_csv(..)"
    elif library in {"polars", "narwhals"} and hasattr(values, "collect"):
        kind, cure = "a lazy frame", f"give {it}.collect()"
    elif library in {"duckdb", "_duckdb"}:
        kind, cure = (
            "a DuckDB relation",
            f"give {it}.to_arrow_table(); take X, y and qid from one table, as another query may have another order",
        )
    elif library == "dask":
        kind, cure = "of Dask", f"give {it}.compute(), or to fit Ranker(cluster=..)"
    elif library == "pyarrow" and hasattr(values, "to_table"):
        kind, cure = "an Arrow dataset", f"give {it}.to_table()"
    elif library == "pyarrow" and hasattr(values, "read_all"):
        kind, cure = "a reader of batches", f"give {it}.read_all()"
    elif library == "rankmill" and own == "Dataset":
        kind, cure = "a dataset on disk", "give rankmill.BinnedDataset.open(path), or the rows of a split"
    elif hasattr(values, "toarray"):
        kind, cure = "a sparse matrix", f"give {it}.toarray(), a dense array"
    elif isinstance(values, Mapping):
        kind, cure = f"a {own}", "give polars.DataFrame(X)" if it == "X" else "give an array with a value for each row"
    elif isinstance(values, list | tuple) and values and isinstance(values[0], Mapping):
        kind, cure = f"a list of rows by name ({type(values[0]).__name__})", f"give polars.DataFrame({it})"
    elif isinstance(values, Set):
        kind, cure = "a set, which has no order", "give a list or an array"
    elif isinstance(values, Iterator):
        kind, cure = (
            "an iterator, which can be read once",
            f"give list({it}), or rows in pieces to BinnedDataset.from_pieces",
        )
    if kind:
        raise TrainingDataRejected(f"{name} is {kind}; {cure}")


def schema_of_table(values: Any) -> pa.Schema | None:
    """Return the schema of an Arrow table or record batch; None for others."""
    found = getattr(values, "schema", None)
    return found if isinstance(found, pa.Schema) else None


def without_index(
    values: Any, names: tuple[str, ...] | None, categorical: Sequence[str | int]
) -> tuple[str, ...] | None:
    """Return ``names``, columns of ``values``, without those that are the index of a pandas frame.

    A warning names the index columns.

    Those among ``categorical`` are meant.
    """
    index = set(index_columns(names or (), schema_of_table(values))).difference(categorical)
    if names is None or not index:
        return names
    shown = ", ".join(repr(name) for name in names if name in index)
    warnings.warn(
        f"X: {shown} is the index of a pandas frame and no feature; it is left out", UserWarning, stacklevel=4
    )
    return tuple(name for name in names if name not in index)


def are_numbered(names: tuple[str, ...]) -> bool:
    """Return whether ``names`` are just numbers of columns: from f0 (arrays), f1 (LETOR text) or 0."""
    n = len(names)
    return names in {made_up_names(n), made_up_names(n + 1)[1:], tuple(map(str, range(n)))}


def made_up_names(n: int) -> tuple[str, ...]:
    """Return names for ``n`` unnamed columns."""
    return tuple(f"f{i}" for i in range(n))


def with_queries(values: Any, qid: Any, group: Any, where: str = "") -> tuple[tuple[str, ...] | None, Any]:
    """Return the names of the features in ``values``, and the query of each row, if given.

    The names are None if columns have no names.

    A column ``qid`` of a frame is not a feature but has the queries, so that scikit-learn's cross-validation, which
    selects rows of the frame, selects them too.

    Raises
    ------
    InvalidParameter
        There is such a column, and ``qid`` or ``group`` is given too; or ``qid`` is the name of a column.
    TrainingDataRejected
        A column that is called like queries has those that are given, or the column ``qid`` has what is no id.

    Warns
    -----
    UserWarning
        The column ``qid`` holds floats.
    """
    names = names_of(values)
    if isinstance(qid, str):
        cure = f"give qid=X[{qid!r}], and X without this column" if names and qid in names else "give an array of ids"
        raise InvalidParameter(f"{where}takes as qid the query of each row, not the name {qid!r}; {cure}")
    if names is None or _QUERIES not in names:
        if names is not None:
            _refuse_queries_as_feature(values, names, qid, group, where)
        return names, qid
    if qid is not None or group is not None:
        given = "group" if qid is None else "qid"
        raise InvalidParameter(
            f"{where}found query ids twice, in the column {_QUERIES!r} of X and in {given}=; drop the column, or "
            f"leave out {given}="
        )
    column = values.column(_QUERIES) if library_of(values) == "pyarrow" else values[_QUERIES]
    ids = query_ids(column, where)
    if str(getattr(column, "dtype", getattr(column, "type", ""))).lower().startswith(("float", "double", "halffloat")):
        warnings.warn(
            f"{where}found floats in the column {_QUERIES!r} of X, {len(np.unique(ids)):,} different queries; a step "
            f"of a Pipeline that scales or bins columns must leave out {_QUERIES!r}",
            UserWarning,
            stacklevel=4,
        )
    return tuple(name for name in names if name != _QUERIES), ids


def with_goals(
    values: Any, names: tuple[str, ...] | None, goals: Any, where: str = ""
) -> tuple[tuple[str, ...] | None, Any]:
    """Return the names of the features in ``values``, and the grades of goals by name.

    ``goals`` are these grades, None, or a list of columns of the frame ``values``, which are not features then.

    Raises
    ------
    InvalidParameter
        There is no such column.
    """
    if goals is None or isinstance(goals, Mapping):
        return names, goals
    if isinstance(goals, str) or not isinstance(goals, Iterable):
        raise InvalidParameter(
            f"{where}goals must be grades by name, {{'bought': ..}}, or names of columns of X, got {goals!r}"
        )
    found = {}
    for goal in goals:
        if names is None:
            raise InvalidParameter(
                f"{where}goals names the column {goal!r}, but X has no names; give {{{goal!r}: its grades}}"
            )
        if goal not in names:
            raise InvalidParameter.unknown(f"{where}column in goals", str(goal), names)
        found[goal] = values.column(goal) if library_of(values) == "pyarrow" else values[goal]
    return None if names is None else tuple(name for name in names if name not in found), found


def _refuse_queries_as_feature(values: Any, names: Sequence[str], qid: Any, group: Any, where: str) -> None:
    """Raise TrainingDataRejected if a column has the given queries under a usual name, such as query_id."""
    called = [name for name in names if usual_name(name) in HABITS[_QUERIES]]
    if not called:
        return
    cure = f"rename the column to {_QUERIES!r}, or drop it from X and give its values as qid="
    if qid is None and group is None:
        raise InvalidParameter(f"{where}found no queries; if they are in column {called[0]!r}, {cure}")
    given = queries_of(qid, group, len(values), where)
    for name in called:
        column = array(values.column(name) if library_of(values) == "pyarrow" else values[name], name)
        pairs = {*zip(column.tolist(), given.tolist(), strict=False)} if column.shape == given.shape else set()
        if pairs and len(pairs) == len({one for one, _ in pairs}) == len({one for _, one in pairs}):
            raise TrainingDataRejected(
                f"{where}found the query of each row in column {name!r} of X, where it would be a feature; drop the "
                "column"
            )


def check_same_rows(given: Mapping[str, Any]) -> None:
    """Raise TrainingDataRejected if two of the pandas objects ``given`` have the same length but different indexes.

    Rows are matched by position, so different indexes suggest that they do not belong together.
    """
    indexed = {name: v.index for name, v in given.items() if library_of(v) == "pandas" and hasattr(v, "index")}
    for name, index in indexed.items():
        first = next(iter(indexed))
        if len(index) == len(indexed[first]) and not index.equals(indexed[first]):
            raise TrainingDataRejected(
                f"{first} and {name} have different pandas indexes, but rows are matched by position; give "
                f"{name}.loc[{first}.index] to match by index, or {name}.to_numpy() to match by position"
            )


def queries_of(qid: Any, group: Any, n_rows: int, where: str = "") -> npt.NDArray[Any]:
    """Return the query of each row (n_rows,), from ids or from sizes of groups.

    Raises
    ------
    InvalidParameter
        Both or neither are given; the message begins with ``where``.
    TrainingDataRejected
        The sizes do not add up to the number of rows; for ids as `rankmill.scorer.query_ids.query_ids`.
    """
    if (qid is None) == (group is None):
        cure = (
            "; in scikit-learn's searches give them as a column 'qid' of a frame X, or by metadata routing"
            if where
            else ""
        )
        raise InvalidParameter(
            f"{where}needs either qid, the query of each row, or group, the sizes of the queries{cure}"
        )
    if qid is None:
        sizes = array(group, f"{where}group")
        if sizes.ndim != 1 or sizes.dtype.kind not in ("iu" if sizes.size else "iuf") or np.any(sizes < 0):
            raise TrainingDataRejected(f"{where}group must hold the sizes of the queries, whole numbers of 0 or more")
        if sizes.sum() != n_rows:
            raise TrainingDataRejected(
                f"{where}group must hold the sizes of the queries: they sum to {sizes.sum()} for {n_rows} rows"
                " (query ids go to qid)"
            )
        return np.repeat(np.arange(len(sizes)), sizes.astype(np.int64))
    refuse_container(qid, f"{where}qid")
    return query_ids(qid, where)


def directions_by_name(monotone: Any, names: Sequence[str]) -> dict[str, int]:
    """Return directions by feature name; they may be given by name, by column number, or as a list for all columns.

    >>> directions_by_name({1: -1}, ["a", "b"]), directions_by_name([1, 0], ["a", "b"])
    ({'b': -1}, {'a': 1, 'b': 0})

    Raises
    ------
    InvalidParameter
        A column is unknown, the list has the wrong length, or a direction is not a whole number.
    """
    if monotone is None:
        return {}
    if isinstance(monotone, Mapping):
        given = [
            (key if isinstance(key, str) else name_of_column("monotone", key, names), way)
            for key, way in monotone.items()
        ]
    else:
        ways = _items(monotone)
        if len(ways) != len(names):
            raise InvalidParameter(f"monotone has {len(ways)} directions for {len(names)} features")
        given = list(zip(names, ways, strict=True))
    found: dict[str, int] = {}
    for name, direction in given:
        if name in found:
            raise InvalidParameter(f"monotone: the feature {name!r} is given twice")
        found[name] = whole_number(f"monotone[{name!r}]", direction)
    return found


def _items(monotone: Any) -> list[Any]:
    try:
        if not isinstance(monotone, str):  # a string is a sequence too
            return list(monotone)
    except TypeError:
        pass
    raise InvalidParameter(
        f"monotone must be a mapping such as {{'bm25': 1}}, or a number for every column, got {monotone!r}"
    )


def name_of_column(option: str, key: object, names: Sequence[str]) -> str:
    """Return the name of the column number ``key`` among ``names``.

    InvalidParameter, naming ``option``, if there is none.
    """
    column = whole_number(f"{option}: a column", key)
    if not 0 <= column < len(names):
        raise InvalidParameter(f"{option}: there is no column {column}, only 0 .. {len(names) - 1}")
    return names[column]


def library_of(values: object) -> str:
    """Return the name of the package that ``values`` come from."""
    return type(values).__module__.partition(".")[0]
