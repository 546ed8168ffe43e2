"""Parse the optional column of times to microseconds since 1970, UTC.

A time is ISO 8601 text, a timestamp or date of Arrow, or a whole number of seconds since 1970-01-01.  Text is a date,
or a date and a time of day; it is UTC unless it has a zone.  Only the years 1 to 9999 are valid, as in ISO text, so
that milliseconds are rejected instead of read as a far future.  Fractions of a microsecond are cut off.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from rankmill.foundation.cures import spelled_with
from rankmill.pipeline.arrow import as_array

if TYPE_CHECKING:
    from pathlib import Path

TIME = "time"
"""Name of the column in ``RowBatch.extras``: int64 microseconds."""
TIME_RULE = "a time such as 2026-01-31, 2026-01-31T08:30:00Z or whole seconds since 1970"
NO_TIME = "remove rows without it"

_DUCKDB = {
    ".csv": ("read_csv('{}', all_varchar = true)", ""),
    ".tsv": ("read_csv('{}', all_varchar = true)", " (DELIMITER '\\t')"),
    **dict.fromkeys((".parquet", ".pq"), ("read_parquet('{}')", "")),
    **dict.fromkeys(
        (".jsonl", ".ndjson", ".json"), ("read_json('{}', format = 'newline_delimited')", " (FORMAT json)")
    ),
}
_SECOND = 10**6
_EPOCH = datetime(1970, 1, 1)
_LOWEST = (datetime.min - _EPOCH) // timedelta(microseconds=1)
_HIGHEST = (datetime.max - _EPOCH) // timedelta(microseconds=1)
_DATE = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
_PLAIN = rf"^{_DATE}([T ][0-9]{{2}}:[0-9]{{2}}(:[0-9]{{2}}(\.[0-9]+)?)?)?$"
_ZONED = rf"^{_DATE}[T ][0-9]{{2}}:[0-9]{{2}}(:[0-9]{{2}}(\.[0-9]+)?)?(Z|[+-][0-9]{{2}}(:?[0-9]{{2}})?)$"
_SECONDS = r"^[+-]?[0-9]{1,12}(\.0*)?$"

Times = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


def is_timelike(kind: pa.DataType) -> bool:
    """Whether a column of type ``kind`` can hold times: text, timestamps, dates or whole numbers."""
    kind = kind.value_type if isinstance(kind, pa.DictionaryType) else kind
    text = kinds.is_string(kind) or kinds.is_large_string(kind) or kinds.is_string_view(kind)
    return text or kinds.is_timestamp(kind) or kinds.is_date(kind) or kinds.is_integer(kind)


def are_dates(column: pa.Array[Any]) -> Mask:
    """Return which cells (n,) of a column of text are dates, or dates with a time of day, in ISO form.

    >>> are_dates(pa.array(["2026-01-31", "2026-01-31 08:30:00Z", "17", None])).tolist()
    [True, True, False, False]
    """
    texts: Any = column.cast(pa.string())
    trimmed = pc.utf8_trim(texts.fill_null(""), characters=" \t")
    found: Mask = pc.match_substring_regex(trimmed, f"{_PLAIN}|{_ZONED}").to_numpy(zero_copy_only=False)
    return found


def cure_of_dates(path: Path, name: str, *, of_judgments: bool) -> str:
    """Return how to use dates of the table ``path``.

    In judgments they are the time of the row, else a feature in which missing dates stay missing.
    """
    text, column = str(path).replace("'", "''"), '"' + name.replace('"', '""') + '"'
    days = f"epoch(CAST({column} AS TIMESTAMPTZ)) / 86400"
    suffix = next((suffix for suffix in path.suffixes if suffix in _DUCKDB), "")
    where = f"{days} in UTC"
    if suffix:
        source, how = _DUCKDB[suffix]
        where = (
            f"SET TimeZone = 'UTC'; COPY (SELECT * REPLACE ({days} AS {column}) FROM {source.format(text)})"  # noqa: S608  for users
            f" TO 'days{suffix}'{how}"
        )
    time = f"{spelled_with('time_column', name)} reads it as the time of the row; " * of_judgments
    return f"{time}a feature is its number of days since 1970-01-01, for example by DuckDB: {where}"


def times_of(column: pa.Array[Any]) -> tuple[Times, Mask]:
    """Read a column of any type that `is_timelike` allows.

    Returns
    -------
    times
        (n,) int64 microseconds since 1970, UTC; 0 if invalid.
    good
        (n,) whether the cell is a valid time.

    Examples
    --------
    >>> times, good = times_of(pa.array(["1970-01-02", " 1970-01-01T02:00+02:00", "-5", "1970-02-30", "1700000000000"]))
    >>> times.tolist(), good.tolist()
    ([86400000000, 0, -5000000, 0, 0], [True, True, True, False, False])
    """
    if isinstance(column.type, pa.DictionaryType):
        column = column.cast(column.type.value_type)
    kind = column.type
    good = column.is_valid().to_numpy(zero_copy_only=False)
    if kinds.is_timestamp(kind) or kinds.is_date(kind):
        days = kinds.is_date32(kind)
        unit = "s" if days else "ms" if kinds.is_date(kind) else kind.unit
        counts = column.cast(pa.int32()).cast(pa.int64()) if days else column.cast(pa.int64())
        found = counts.fill_null(0).to_numpy() * (86400 if days else 1)
        return _scaled(found, {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit], good)
    if kinds.is_integer(kind):
        if kinds.is_uint64(kind):
            column = pc.min_element_wise(column, pa.scalar(_HIGHEST, kind))  # also invalid as seconds
        return _scaled(column.cast(pa.int64()).fill_null(0).to_numpy(), 1, good)
    return _read(column.cast(pa.string()).fill_null(""))


def iso(time: int) -> str:
    """Format a time as ISO 8601, as short as possible without loss.

    >>> iso(0), iso(1_500_000)
    ('1970-01-01', '1970-01-01T00:00:01.500000Z')
    """
    moment = _EPOCH.replace(tzinfo=UTC) + timedelta(microseconds=time)
    if time % (86400 * _SECOND) == 0:
        return moment.date().isoformat()
    return moment.replace(tzinfo=None).isoformat() + "Z"


def _scaled(counts: Times, units_a_second: int, good: Mask) -> tuple[Times, Mask]:
    """Convert ``counts`` of some unit to microseconds.

    Also return which are ``good`` and within the years 1 to 9999.
    """
    lowest, highest = -(-_LOWEST * units_a_second // _SECOND), _HIGHEST * units_a_second // _SECOND
    whole = np.iinfo(np.int64)
    good = good & (counts >= max(lowest, whole.min)) & (counts <= min(highest, whole.max))
    counts = np.where(good, counts, 0)
    times = counts * (_SECOND // units_a_second) if units_a_second <= _SECOND else counts // (units_a_second // _SECOND)
    return times, good


def _read(tokens: pa.Array[Any]) -> tuple[Times, Mask]:
    trimmed = pc.utf8_trim(tokens, characters=" \t")
    trimmed = pc.replace_substring_regex(trimmed, pattern=r"(\.[0-9]{6})[0-9]+", replacement=r"\1")
    times, good = np.zeros(len(tokens), dtype=np.int64), np.zeros(len(tokens), dtype=np.bool_)
    for pattern, kind in (
        (_PLAIN, pa.timestamp("us")),
        (_ZONED, pa.timestamp("us", "UTC")),
        (_SECONDS, pa.int64()),
    ):
        here = np.flatnonzero(pc.match_substring_regex(trimmed, pattern).to_numpy(zero_copy_only=False))
        if not len(here):
            continue
        chosen = trimmed.take(as_array(here))
        if pattern == _SECONDS:
            whole = pc.replace_substring_regex(chosen, pattern=r"^\+|\.0*$", replacement="")
            times[here], good[here] = _scaled(whole.cast(kind).to_numpy(), 1, np.ones(len(here), dtype=np.bool_))
        else:
            times[here], good[here] = _dated(chosen, kind)
    return times, good


def _dated(tokens: pa.Array[Any], kind: pa.DataType) -> tuple[Times, Mask]:
    """Parse well-formed ISO text; tokens are tried one by one only if a date does not exist in the calendar."""
    try:
        found = tokens.cast(kind).cast(pa.int64()).to_numpy()
    except pa.ArrowInvalid:
        if len(tokens) == 1:
            return np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.bool_)
        half = len(tokens) // 2
        parts = [_dated(tokens[:half], kind), _dated(tokens[half:], kind)]
        return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])
    return _scaled(found, _SECOND, np.ones(len(tokens), dtype=np.bool_))
