"""The features in NumPy, Polars, Arrow and pandas input as one float32 matrix: numbers, and codes of categories."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rankmill.foundation.errors import InvalidParameter, TrainingDataRejected
from rankmill.pipeline.bins.spec import BinSpec, matrix_bins
from rankmill.pipeline.read.batch import shorten
from rankmill.pipeline.read.column_roles import HABITS
from rankmill.pipeline.read.pandas_marks import with_categories
from rankmill.pipeline.read.role_columns import are_categories
from rankmill.pipeline.read.times import are_dates
from rankmill.python.arrays import (
    NUMBERS,
    Matrix,
    are_numbered,
    array,
    is_of_128_bits,
    library_of,
    made_up_names,
    name_of_column,
    names_of,
    schema_of_table,
    without_mask,
)
from rankmill.python.categorical_columns import Texts, check_numbers, codes_of, is_number_text, known_texts, with_names
from rankmill.python.spilled_values import SpilledValues
from rankmill.scorer.models.model import Model

_CURE = "leave out such columns, or convert them to numbers"
_DAYS = {
    "pandas": "(pd.to_datetime({column}, utc=True, format='ISO8601') - pd.Timestamp(0, tz='UTC')) / "
    "pd.Timedelta(days=1)",
    "polars": "{column}.dt.epoch('us') / 86_400_000_000",
    "pyarrow": "pc.divide({column}.cast(pa.timestamp('us')).cast(pa.int64()).cast(pa.float64()), 86_400_000_000.0)",
    "numpy": "({column}.astype('datetime64[us]') - np.datetime64(0, 'us')) / np.timedelta64(1, 'D')",
}
"""How a column of dates and times becomes days since 1970-01-01, NaN or null where it is missing, in each library."""
_LENGTHS = {
    "pandas": "{column} / pd.Timedelta(days=1)",
    "polars": "{column}.dt.total_microseconds() / 86_400_000_000",
    "numpy": "{column}.astype('timedelta64[us]') / np.timedelta64(1, 'D')",
}
"""The same for lengths of time."""
_TIMES = "mM"  # NumPy's kinds of lengths of time, and of dates
_LEAST_TEXTS = 20  # of a column, to say that most of them are there once


@dataclass(frozen=True, slots=True)
class FeatureTable:
    """The features of some rows."""

    names: tuple[str, ...]
    values: Matrix | SpilledValues
    """(n, n_features) row-major; NaN where missing; of categorical columns, the codes."""
    texts: Mapping[str, Texts]
    """The categorical columns, with the codes of the texts that are not numbers."""

    def bins(self, max_bin: int, max_bin_of: Mapping[str, int] | None = None, n_threads: int = 1) -> BinSpec:
        """Return the bins of the features, with the names of categories; the options are those of `matrix_bins`."""
        compute = (
            self.values.bins if isinstance(self.values, SpilledValues) else partial(matrix_bins, values=self.values)
        )
        found = compute(self.names, max_bin=max_bin, n_threads=n_threads, categorical=self.texts, max_bin_of=max_bin_of)
        return with_names(found, self.texts)


def matrix_for(model: Model, values: Any) -> Matrix:
    """Return the features of ``model`` in ``values``, (n, n_features) float32: see `table_of`."""
    if hasattr(values, "binned"):
        raise InvalidParameter(
            "a BinnedDataset has the bins of a training, and scores need the values of the features; give X itself"
        )
    found = table_of(values, model.feature_names, known_texts(model)).values
    assert isinstance(found, np.ndarray)  # noqa: S101 - given at once
    return found


def table_of(
    values: Any,
    names: tuple[str, ...] | None = None,
    known: Mapping[str, Sequence[str]] | None = None,
    named: Sequence[str | int] = (),
) -> FeatureTable:
    """Return the features in ``values``.

    Parameters
    ----------
    values
        Numbers, booleans and categories: an array, a list of rows, a frame, an Arrow table or record batch.
    names
        The expected features; columns of a frame are found by name, an array must have the same number.
    known
        The features that are categorical, with the texts that are known of them.  None: those whose columns have text
        or a type of categories, and those ``named`` by name or column number.

    Raises
    ------
    TrainingDataRejected
        Columns are missing, or neither numbers nor categories; or the shape is wrong.
    InvalidParameter
        ``named`` has an unknown column.

    Warns
    -----
    UserWarning
        The columns have no names, but the expected features do.
    """
    own = names_of(values)
    if own is not None:
        if len(set(own)) < len(own):
            repeated = next(name for i, name in enumerate(own) if name in own[:i])
            raise TrainingDataRejected(f"X has two columns {repeated!r}; give every feature a unique name")
        names = own if names is None else names
        if known is None and (schema := schema_of_table(values)) is not None:
            marked = {each.name for each in with_categories(schema) if isinstance(each.type, pa.DictionaryType)}
            named = (*named, *(name for name in names if name in marked))
        columns = _Columns.of(names, known, named)
        return FeatureTable(names, _from_frame(values, own, names, columns), columns.texts)
    framed = library_of(values) == "pandas" and hasattr(values, "columns")
    shape = values.shape if framed else (values := _plain(values)).shape
    if len(shape) != 2 or shape[1] == 0:
        raise TrainingDataRejected(f"X must have shape (n, n_features) with at least one feature, got {shape}")
    if names is not None and shape[1] != len(names):
        raise TrainingDataRejected(f"X has {shape[1]} features, the ranker was fitted on {len(names)}")
    if names is not None and not are_numbered(names):
        warnings.warn(unnamed_columns(names), UserWarning, stacklevel=4)
    names = made_up_names(shape[1]) if names is None else names
    columns = _Columns.of(names, known, named)
    matrix = _from_frame(values, names, names, columns) if framed else _from_array(values, names, columns)
    return FeatureTable(names, np.ascontiguousarray(matrix), columns.texts)


def unnamed_columns(names: tuple[str, ...]) -> str:
    """Return the warning that the columns of X, which have no names, are used as the features ``names``."""
    shown = ", ".join(names[:4]) + (", .." if len(names) > 4 else "")
    return f"X has no column names; its {len(names)} columns are used as the features of the ranker, in order: {shown}"


@dataclass(frozen=True, slots=True)
class _Origin:
    """Where users have a column: the library, and how they write it."""

    library: str
    column: str

    def cure(self, column: Any, kind: str) -> str:
        """Return how the ``column`` of the type ``kind`` becomes numbers, by code that keeps missing values."""
        lasting = not isinstance(column, np.ndarray) and pa.types.is_duration(column.type)
        form = (_LENGTHS if lasting else _DAYS).get(self.library, "")
        written = f"{self.column}.dt.to_timestamp()" if kind.startswith("period") else self.column
        if form and (lasting or kind.startswith("period") or _are_dates(column)):
            parse = ".str.to_datetime()" if self.library == "polars" and _is_text(column) else ""
            return f"days{'' if lasting else ' since 1970-01-01'}: {form.format(column=written + parse)}"
        return "with pd.to_numeric(.., errors='coerce')" if self.library == "pandas" else "with a cast"


@dataclass(slots=True)
class _Columns:
    """Converts columns one by one, and collects the texts of the categorical ones."""

    known: Mapping[str, Sequence[str]] | None
    named: frozenset[str]
    texts: dict[str, Texts] = field(default_factory=dict)

    @classmethod
    def of(
        cls, names: Sequence[str], known: Mapping[str, Sequence[str]] | None, named: Sequence[str | int]
    ) -> _Columns:
        """Make one for the features ``names``; other arguments as of `table_of`."""
        found = [key if isinstance(key, str) else name_of_column("categorical", key, names) for key in named]
        for name in found:
            if name not in names:
                raise InvalidParameter.unknown("feature in categorical", name, names)
        return cls(known, frozenset(found))

    def is_categorical(self, name: str) -> bool:
        """Whether the feature is categorical whatever its column holds."""
        return name in (self.named if self.known is None else self.known)

    def converted(self, name: str, column: Any, kind: str, origin: _Origin, *, numbers: bool = True) -> Matrix:
        """Return (n,) float32 of an Arrow ``column`` or an array of objects.

        ``kind`` is its type in words, ``origin`` where users have it; ``numbers`` is false if numbers in it are
        refused.
        """
        is_text, is_number = _is_text(column), _is_numeric(column)
        if not self.is_categorical(name):
            if is_number and (numbers or _is_all_missing(column)):
                return _plain_numbers(column)
            if self.known is not None and _is_all_missing(column):
                return np.full(len(column), np.nan, dtype=np.float32)
            if self.known is not None or not is_text or _looks_wrong(name, column):
                convert = origin.cure(column, kind)
                cures = [f"make it numbers, as the ranker was fitted on, for example {convert}"]
                if self.known is None:
                    meant = ["name it in categorical if it holds categories"] if is_text else []
                    own = is_text and not _are_dates(column) and _are_mostly_single(column)
                    cures = ["leave it out", *([] if own else [f"make it numbers, for example {convert}"]), *meant]
                raise TrainingDataRejected(_no_numbers(name, kind, _items_of(column), cures))
        if not isinstance(column, np.ndarray) and not (is_number or are_categories(column.type)):
            raise TrainingDataRejected(f"column {name!r} holds {kind}; make it text or whole numbers, or leave it out")
        codes, self.texts[name] = codes_of(name, column)
        if is_number:
            are_codes = pa.types.is_float32(column.type)
            check_numbers(name, codes, (self.known or {}).get(name, ()), are_codes=are_codes)
        return codes


def _from_frame(frame: Any, own: tuple[str, ...], names: tuple[str, ...], columns: _Columns) -> Matrix:
    library, place = library_of(frame), {name: i for i, name in enumerate(own)}
    lacking = [name for name in names if name not in place]
    if lacking and names == made_up_names(len(names)):
        raise TrainingDataRejected(
            f"X is a frame without the column {lacking[0]!r}, and the ranker was fitted on columns without names; give "
            "X.to_numpy(), columns in the order of fit, or fit on a frame"
        )
    if lacking:
        raise TrainingDataRejected(f"X has no column {lacking[0]!r}, a feature that the ranker was fitted on")
    if not names:
        raise TrainingDataRejected("X must have shape (n, n_features) with at least one feature, got no columns")
    out = np.empty((len(frame), len(names)), dtype=np.float32)
    for i, name in enumerate(names):
        if library == "pandas":
            out[:, i] = _pandas_column(name, frame.iloc[:, place[name]], columns)
        else:
            if library == "polars":
                column = _of_polars(frame.to_series(place[name]), as_text=columns.is_categorical(name))
            else:
                column = frame.column(place[name])
            out[:, i] = columns.converted(name, column, str(column.type), _Origin(library, f"X[{name!r}]"))
    return out


def _of_polars(series: Any, *, as_text: bool) -> Any:
    """Return a Polars series as Arrow, which has no whole numbers of 128 bits: they become floats, or text."""
    if is_of_128_bits(series):
        import polars as pl

        series = series.cast(pl.String if as_text else pl.Float64)
    return series.to_arrow()


def _pandas_column(name: str, column: Any, columns: _Columns) -> Matrix:
    numbers = getattr(column.dtype, "kind", "O") in NUMBERS and str(column.dtype) != "category"
    if numbers and not columns.is_categorical(name):
        with np.errstate(over="ignore"):
            found: Matrix = column.to_numpy(dtype=np.float32, na_value=np.nan)
        return found
    origin = _Origin("pandas", f"X[{column.name!r}]")
    return columns.converted(name, _arrow_of(column), str(column.dtype), origin, numbers=numbers)


def _arrow_of(column: Any) -> Any:
    """Return a pandas or NumPy column as Arrow; as an array of objects if these have several types."""
    try:
        return pa.array(column, from_pandas=True)
    except (pa.ArrowException, OverflowError):
        return np.asarray(column, dtype=object)


def _is_numeric(column: Any) -> bool:
    known = pa.types
    number = (known.is_integer, known.is_floating, known.is_boolean, known.is_decimal, known.is_null)
    return not isinstance(column, np.ndarray) and any(is_of(column.type) for is_of in number)


def _is_text(column: Any) -> bool:
    """Whether a column has text or a type of categories."""
    if isinstance(column, np.ndarray):
        return any(isinstance(value, str) for value in column.tolist())
    known = pa.types
    text = (known.is_string, known.is_large_string, known.is_string_view, known.is_dictionary)
    return any(is_of(column.type) for is_of in text)


def _is_all_missing(column: Any) -> bool:
    return not isinstance(column, np.ndarray) and column.null_count == len(column)


def _origin_of(column: int) -> _Origin:
    return _Origin("numpy", f"X[:, {column}]")


def _are_dates(column: Any) -> bool:
    """Whether a column holds dates or times, or text most of which are such in ISO form."""
    if isinstance(column, np.ndarray):
        column = pa.array([value if isinstance(value, str) else None for value in column.tolist()], pa.string())
    if pa.types.is_date(column.type) or pa.types.is_timestamp(column.type):
        return True
    if not _is_text(column) or pa.types.is_dictionary(column.type):
        return False
    texts = column.unique().drop_null()
    texts = texts.combine_chunks() if isinstance(texts, pa.ChunkedArray) else texts
    return bool(2 * are_dates(texts).sum() > len(texts))


def _are_mostly_single(column: Any) -> bool:
    """Whether most texts of a column are in one row alone, so that its texts are no categories."""
    items = [value for value in _items_of(column) if isinstance(value, str) and value]
    return len(items) >= _LEAST_TEXTS and 2 * len({*items}) > len(items)


def _looks_wrong(name: str, column: Any) -> bool:
    """Whether plain text is probably no category.

    Its column has a usual name of ids, most of its texts are numbers or dates, or the column has more than half as many
    texts as rows.
    """
    if not isinstance(column, np.ndarray) and pa.types.is_dictionary(column.type):
        return False
    usual = name.lower().replace("_", "").replace(" ", "")
    values = _items_of(column if isinstance(column, np.ndarray) else column.unique())
    texts = {value for value in values if isinstance(value, str) and value}
    numbers = 2 * sum(map(is_number_text, texts)) > len(texts)
    return usual in (*HABITS["qid"], *HABITS["doc_id"]) or numbers or _are_dates(column) or _are_mostly_single(column)


def _items_of(column: Any) -> list[Any]:
    items: list[Any] = column.tolist() if isinstance(column, np.ndarray) else column.to_pylist()
    return items


def _plain_numbers(column: Any) -> Matrix:
    through = column.cast(pa.float64(), safe=False) if pa.types.is_decimal(column.type) else column
    chunks = through.cast(pa.float32(), safe=False)
    whole = chunks.combine_chunks() if isinstance(chunks, pa.ChunkedArray) else chunks
    found: Matrix = whole.to_numpy(zero_copy_only=False)
    return found


def _no_numbers(name: str, kind: str, values: Iterable[object], cures: Iterable[str]) -> str:
    """Say that the column ``name`` of type ``kind`` holds no numbers, with the first of its ``values`` that is none."""
    if name in HABITS["qid"]:
        return f"column {name!r} holds {kind}; if it is the query, give qid=X[{name!r}] and leave it out of X"
    odd = next(
        ((row, value) for row, value in enumerate(values) if isinstance(value, str) and not is_number_text(value)), None
    )
    what = kind if odd is None else f"text, for example {shorten(odd[1])!r} in row {odd[0]}"
    return f"column {name!r} holds {what}; {', or '.join(cures)}"


def _plain(values: Any) -> npt.NDArray[Any]:
    """Return ``values``, which are no frame, as an array of numbers, text or objects."""
    values = without_mask(values)
    found = array(values, "X")
    if found.dtype.kind in _TIMES:
        cure = (_DAYS if found.dtype.kind == "M" else _LENGTHS)["numpy"].format(column="X")
        raise TrainingDataRejected(f"X holds times ({found.dtype}); leave out such columns, or make them days: {cure}")
    if found.dtype.kind == "U" and found.ndim == 2 and isinstance(values, list | tuple):
        found = np.array(values, dtype=object)  # NumPy has made the numbers beside text into text
    if found.dtype.kind not in NUMBERS + "OU":
        raise TrainingDataRejected(
            f"X holds {'text' if found.dtype.kind == 'S' else 'values'} ({found.dtype}); {_CURE}"
        )
    if found.dtype.kind == "O" and found.ndim != 2:
        odd = shorten(str(found.flat[0])) if found.size else "nothing"
        raise TrainingDataRejected(f"X holds a value that is not a number ({odd}); {_CURE}")
    return found


def _from_array(values: npt.NDArray[Any], names: Sequence[str], columns: _Columns) -> Matrix:
    """Return float32 of numbers, text or objects (n, n_features)."""
    kind, categorical = values.dtype.kind, [name for name in names if columns.is_categorical(name)]
    if kind == "U" and columns.known is not None and len(categorical) < len(names):
        raise TrainingDataRejected(f"X holds text ({values.dtype}); {_CURE}")
    if kind in NUMBERS or (kind == "O" and not categorical):
        try:
            with np.errstate(over="ignore"):  # values beyond float32 become infinite
                matrix = values.astype(np.float32)
        except (TypeError, ValueError) as error:
            if columns.known is not None:
                raise TrainingDataRejected(f"X holds a value that is not a number ({error}); {_CURE}") from None
        else:
            for i, name in enumerate(names):
                if name in categorical:
                    matrix[:, i] = columns.converted(
                        name, pa.array(values[:, i], from_pandas=True), str(values.dtype), _origin_of(i)
                    )
            return matrix
    matrix = np.empty(values.shape, dtype=np.float32)
    for i, name in enumerate(names):
        column = values[:, i]
        if kind == "O" and name not in categorical:
            try:
                with np.errstate(over="ignore"):
                    matrix[:, i] = column.astype(np.float32)
                continue
            except (TypeError, ValueError):
                pass
        matrix[:, i] = columns.converted(name, _arrow_of(column), str(values.dtype), _origin_of(i), numbers=False)
    return matrix
