"""Blocks of whole lines from a text file, plain or compressed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.arrow import strings_from
from pipeline.errors import DataRejected
from pipeline.sources import _kernels

if TYPE_CHECKING:
    from collections.abc import Iterator

LINE_LIMIT = 64 << 20  # no line of judgments is longer; a file without newlines is no text
Compression = Literal["gzip", "bz2", "zstd", "lz4"]
COMPRESSED: dict[str, Compression] = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}
_BOM = b"\xef\xbb\xbf"
_MARKS_OF_OTHERS = (b"\xff\xfe", b"\xfe\xff")  # of UTF-16 and UTF-32
_LONE_CR = re.compile(rb"\r(?!\n)")


@dataclass(frozen=True, slots=True)
class Block:
    """Whole lines: ``data[start:stop]`` ends with a newline and is valid UTF-8 without NUL bytes."""

    data: bytes
    start: int
    stop: int
    first_line: int  # number of its first line in the file, from 1
    position: int  # bytes of the file used up after it; 0 if it is compressed

    @property
    def bytes_view(self) -> npt.NDArray[np.uint8]:
        """The bytes as numbers, (len(data),), not copied."""
        return np.frombuffer(self.data, dtype=np.uint8)

    def line_number(self, at: int) -> int:
        """Return the number in the file of the line that has byte ``at``."""
        return self.first_line + self.data.count(b"\n", self.start, at)

    def text(self, start: int, stop: int) -> str:
        """Return some of the text."""
        return self.data[start:stop].decode("utf-8", "replace")


def copy_tokens(
    text: npt.NDArray[np.uint8], start: npt.NDArray[np.int64], stop: npt.NDArray[np.int64]
) -> pa.StringArray:
    """Copy tokens of valid UTF-8 ``text`` to an Arrow array; a token that starts at -1 (and stops there) is null."""
    offsets = np.zeros(len(start) + 1, dtype=np.int32)
    np.cumsum(stop - start, out=offsets[1:])
    data = np.empty(int(offsets[-1]), dtype=np.uint8)
    _kernels.copy_tokens(text, start, stop, offsets, data)
    return strings_from(offsets, data, start >= 0)


def compression_of(path: Path) -> Compression | None:
    """Return the name of the compression that the suffix of ``path`` stands for."""
    return COMPRESSED.get(path.suffix.lower())


def read_blocks(path: Path, block_bytes: int) -> Iterator[Block]:
    """Yield ``path`` as blocks of whole lines of about ``block_bytes``; a byte-order mark is skipped.

    Memory: two blocks, or the longest line if that is more.

    Raises
    ------
    DataRejected
        The file is not UTF-8 text, its lines end with CR alone, or its compression is damaged.
    """
    compression = compression_of(path)
    with pa.input_stream(str(path), compression=cast("Any", compression)) as stream:
        carried = b""
        line, position, start = 1, 0, None
        while True:
            data = carried + _read(stream, block_bytes, path, compression)
            ended = len(data) == len(carried)
            if start is None and data.startswith(_MARKS_OF_OTHERS):
                raise DataRejected(f"{path}: is text in UTF-16 or UTF-32; convert the file to UTF-8")
            _check_bytes(data, len(carried), line, path)
            if start is None:
                if not ended and len(data) < len(_BOM):
                    carried = data
                    continue
                start = len(_BOM) if data.startswith(_BOM) else 0
            if ended and len(data) > start:
                data += b"\n"
            stop = data.rfind(b"\n") + 1
            if stop > start:
                _check_encoding(data, stop, line, path)
                _check_line_ends(data, stop, line, path)
                position += 0 if compression else stop
                block = Block(data, start, stop, line, position)
                yield block
                line += data.count(b"\n", start, stop)
                start = 0
                carried = data[stop:]
            elif len(data) > LINE_LIMIT:
                _check_line_ends(data, len(data) - 1, line, path)
                raise DataRejected(f"{path}:{line}: not a text file: this line is longer than {LINE_LIMIT >> 20} MiB")
            else:
                carried = data
                block_bytes = max(block_bytes, len(data))  # a long line: read twice as much next time
            if ended:
                return


def _read(stream: pa.NativeFile, size: int, path: Path, compression: str | None) -> bytes:
    try:
        return stream.read(size)
    except (OSError, pa.ArrowInvalid) as error:
        if compression is None:
            raise
        reason = str(error).split("\n", 1)[0]
        raise DataRejected(f"{path}: the {compression} data are damaged or cut off: {reason}") from None


def _check_bytes(data: bytes, new_from: int, line: int, path: Path) -> None:
    at = data.find(b"\0", new_from)
    if at >= 0:
        number = line + data.count(b"\n", 0, at)
        raise DataRejected(f"{path}:{number}: not a text file: it has a NUL byte; give --format if it is a table")


def _check_line_ends(data: bytes, stop: int, line: int, path: Path) -> None:
    """Refuse a CR that does not end a line: what follows it would be read as part of an id or of a comment."""
    if data.count(b"\r", 0, stop) == data.count(b"\r\n", 0, stop):
        return
    lone = _LONE_CR.search(data, 0, stop)
    if lone is not None:
        number = line + data.count(b"\n", 0, lone.start())
        column = len(data[data.rfind(b"\n", 0, lone.start()) + 1 : lone.start()].decode("utf-8", "replace")) + 1
        raise DataRejected(
            f"{path}:{number}:{column}: expected lines that end with LF or CR LF, found a CR alone; "
            "convert the ends of the lines"
        )


def _check_encoding(data: bytes, stop: int, line: int, path: Path) -> None:
    if data.isascii():
        return
    try:
        str(memoryview(data)[:stop], "utf-8")
    except UnicodeDecodeError as error:
        number = line + data.count(b"\n", 0, error.start)
        found = f"byte 0x{data[error.start]:02X}"
        raise DataRejected(
            f"{path}:{number}: not a text file: {found} is not UTF-8; convert the file to UTF-8"
        ) from None
