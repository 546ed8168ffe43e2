"""Print the result of an SQL query as a table, JSON or CSV."""

from __future__ import annotations

import csv
import json
import math
import shutil
import tempfile
import textwrap
from contextlib import contextmanager
from datetime import UTC, date, datetime, time
from itertools import islice
from typing import TYPE_CHECKING, Any, TextIO

from rankmill.foundation.terminal import printed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rankmill.pipeline.sql import Answer


_COUNTED_ROWS = 100_000
_LEAST_WIDTH = 8  # of a shown column of text, if it is longer
_LEAST_NUMBER = 22  # of a column of numbers, which must not be truncated
_GAP = 2  # between columns, including the padding of the table
_IN_MEMORY = 8 * 2**20  # characters; more are written to a temporary file
_NUMERIC = {
    *("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "FLOAT", "DOUBLE", "DECIMAL"),
    *("UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT", "UHUGEINT"),
}


def json_value(value: Any) -> Any:
    """Return ``value`` as JSON: NaN becomes null; infinite numbers and types that JSON lacks become strings.

    Times are ISO 8601, in UTC if they have a zone.
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None if math.isnan(value) else str(value)
    if isinstance(value, list | tuple):
        return [json_value(part) for part in value]
    if isinstance(value, dict):
        return {str(json_value(key)): json_value(part) for key, part in value.items()}
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC).replace(tzinfo=None).isoformat() + "Z"
    if isinstance(value, date | time):
        return value.isoformat()
    return value.hex() if isinstance(value, bytes) else str(value)


def write_json(answer: Answer, out: TextIO) -> None:
    """Write one JSON object, ``columns`` and ``rows``, to ``out``: all of it or, if a row fails, nothing."""
    with _whole(answer, out) as aside:
        aside.write(f'{{"columns": {json.dumps(answer.columns)}, "rows": [')
        for number, row in enumerate(answer.rows):
            aside.write(", " * bool(number) + json.dumps([json_value(value) for value in row]))
        aside.write("]}\n")


def write_csv(answer: Answer, out: TextIO) -> None:
    """Write a header line and the rows as CSV to ``out``: all of it or, if a row fails, nothing."""
    with _whole(answer, out) as aside:
        writer = csv.writer(aside, lineterminator="\n")
        writer.writerow(answer.columns)
        writer.writerows(map(_plain, row) for row in answer.rows)


@contextmanager
def _whole(answer: Answer, out: TextIO) -> Iterator[TextIO]:
    """Yield a temporary file that is copied to ``out`` if the block succeeds."""
    with tempfile.SpooledTemporaryFile(_IN_MEMORY, "w+", encoding="utf-8", newline="", dir=answer.folder) as aside:
        yield aside  # type: ignore[misc]  # has all of TextIO that is used
        aside.seek(0)
        shutil.copyfileobj(aside, out)


def render_answer(answer: Answer, width: int = 120, shown: int = 40) -> str:
    """Return the first ``shown`` rows as a table ``width`` characters wide, and a line with the number of rows.

    Long text is truncated.  Columns that do not fit, the last ones, are counted in the last line.
    """
    from rich import box
    from rich.cells import cell_len
    from rich.table import Table

    rows = list(islice(answer.rows, shown))
    total = len(rows) + sum(1 for _ in islice(answer.rows, _COUNTED_ROWS))
    numeric = [kind.split("(")[0] in _NUMERIC for kind in answer.types]
    names = [_printable(name) for name in answer.columns]
    cells = [[_cell(value) for value in row] for row in rows]
    needed = [max(map(cell_len, column), default=0) for column in zip(names, *cells, strict=True)]
    widths = _widths(needed, numeric, width - 1)
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name, number, room in zip(names, numeric, widths, strict=False):
        justify = "right" if number else "left"
        table.add_column(name, justify=justify, overflow="ellipsis", no_wrap=True, width=room)  # type: ignore[arg-type]
    for row in cells:
        table.add_row(*row[: len(widths)])
    lines = filter(None, printed(table, width=width))
    more = total >= shown + _COUNTED_ROWS
    summary = f"{'more than ' * more}{total:,} row{'s' * (total != 1)}"
    if total > len(rows):
        summary += f", the first {len(rows)} shown; --json and --csv have all"
    if len(widths) < len(names):
        summary += f"; {len(names) - len(widths)} of {len(names)} columns not shown"
    if any(room < need for room, need in zip(widths, needed, strict=False)):
        summary += "; what ends in … is cut"
    return "\n".join([*lines, *textwrap.wrap(summary, width)])


def _widths(needed: Sequence[int], numeric: Sequence[bool], width: int) -> list[int]:
    """Return the widths of the shown columns: as many as fit with their minimum widths.

    The remaining width is shared equally, up to what each column needs.
    """
    least = [
        max(1, min(need, _LEAST_NUMBER if number else _LEAST_WIDTH, width - _GAP))
        for need, number in zip(needed, numeric, strict=True)
    ]
    fitting, room = 0, width
    while fitting < len(least) and least[fitting] + _GAP <= room:
        room -= least[fitting] + _GAP
        fitting += 1
    widths = least[:fitting]
    while room and (short := [column for column in range(fitting) if widths[column] < needed[column]]):
        narrowest = min(short, key=lambda column: widths[column])
        widths[narrowest] += 1
        room -= 1
    return widths


def _plain(value: Any) -> Any:
    """Format ``value`` as a cell of CSV."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    plain = json_value(value)
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else _printable(str(_plain(value)))


def _printable(text: str) -> str:
    """Return ``text`` on one line, without control codes."""
    return text if text.isprintable() else "".join(sign if sign.isprintable() else " " for sign in text)
