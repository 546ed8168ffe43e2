"""Files without rows, as programs write them for parts to which no row belongs: they are skipped beside others that have rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
from pyarrow import ipc

from rankmill.foundation.errors import DataRejected, RankmillError
from rankmill.pipeline.arrow import parquet_metadata
from rankmill.pipeline.read.blocks import compression_of, unchecked_blocks
from rankmill.pipeline.read.files import check_file, format_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

_BLOCK_BYTES = 1 << 16
_MOST_ARROW_BYTES = 1 << 20  # an Arrow file without rows has little more than its schema
_WITH_HEADER = frozenset({"csv", "tsv"})


def with_rows(
    files: Sequence[Path],
    form: str = "auto",
    say: Callable[[str], None] | None = None,
    skipped: list[Path] | None = None,
) -> list[Path]:
    """Return ``files`` without those that have no rows; a single file is returned as it is.

    ``say`` reports those without rows, which are added to ``skipped``.

    Raises
    ------
    DataRejected
        There are several, and none has rows.
    """
    if len(files) < 2:
        return [*files]
    are_empty = [_is_empty(path, form) for path in files]
    kept, empty = (
        [path for path, without in zip(files, are_empty, strict=True) if without is which] for which in (False, True)
    )
    if empty and not kept:
        raise DataRejected(
            f"{empty[0]} and {len(empty) - 1:,} more: contain no rows; give at least one file that has some"
        )
    if skipped is not None:
        skipped += empty
    if empty and say is not None:
        say(
            f"skipped {len(empty):,} of {len(files):,} files, which have no rows: {empty[0]}{', ..' * (len(empty) > 1)}"
        )
    return kept


def _is_empty(path: Path, form: str) -> bool:
    """Whether a file has no rows; what cannot be read is left to its reader."""
    check_file(path)
    try:
        chosen = format_of(path, form)
        if not path.stat().st_size:
            return True
        if chosen == "parquet":
            return bool(parquet_metadata(path).num_rows == 0)
        return _arrow_is_empty(path) if chosen == "arrow" else _text_is_empty(path, has_header=chosen in _WITH_HEADER)
    except (RankmillError, OSError, pa.ArrowException):
        return False


def _arrow_is_empty(path: Path) -> bool:
    compression = compression_of(path)
    if path.stat().st_size > _MOST_ARROW_BYTES:
        return False
    with pa.input_stream(str(path), compression=cast("Any", compression)) as stream:
        data = stream.read(_MOST_ARROW_BYTES + 1)
    opened = ipc.open_file(data) if data.startswith(b"ARROW1") else ipc.open_stream(data)
    with opened as reader:
        return len(reader.read_all()) == 0


def _text_is_empty(path: Path, *, has_header: bool) -> bool:
    """Whether text has blank lines and comments alone, and in a table a header."""
    header_seen = not has_header
    for block in unchecked_blocks(path, _BLOCK_BYTES, cr_ends_lines=has_header):
        for line in bytes(block.data[block.start : block.stop]).splitlines():
            if not line.strip() or (not has_header and line.lstrip().startswith(b"#")):
                continue
            if header_seen:
                return False
            header_seen = True
    return True
