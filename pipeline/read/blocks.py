"""Blocks of whole lines from a text file, plain or compressed."""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rankmill.foundation.errors import DataRejected
from rankmill.foundation.options import spelled
from rankmill.pipeline.arrow import strings_from
from rankmill.pipeline.read import _text_kernels as _kernels

if TYPE_CHECKING:
    from collections.abc import Iterator

LINE_LIMIT = 64 << 20  # bytes; with longer lines the file is not text
Compression = Literal["gzip", "bz2", "zstd", "lz4"]
COMPRESSED: dict[str, Compression] = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}
_BOM = b"\xef\xbb\xbf"
_MARKS_OF_OTHERS = (b"\xff\xfe", b"\xfe\xff")  # byte-order marks of UTF-16 and UTF-32
_NEWLINE = 10
_CR = 13
_COUNTED = 1 << 18  # bytes compared at a time, so that the result stays in cache
_LONE_CR = re.compile(rb"\r(?!\n)")


class LineNumbers:
    """Number of the first line of each block, while threads count the lines of blocks in any order."""

    def __init__(self) -> None:
        self._first = [1]  # number of the first line of block k, as far as known
        self._counted: dict[int, int] = {}
        self._changed = threading.Condition()

    def report(self, number: int, lines: int) -> None:
        """Set the number of lines of block ``number``, from 0."""
        with self._changed:
            self._counted[number] = lines
            while len(self._first) - 1 in self._counted:
                self._first.append(self._first[-1] + self._counted.pop(len(self._first) - 1))
            self._changed.notify_all()

    def first_line(self, number: int) -> int:
        """Return the number, from 1, of the first line of block ``number``.

        It waits until all blocks before it are counted.
        """
        with self._changed:
            self._changed.wait_for(lambda: number < len(self._first))
            return self._first[number]


def count_lines(text: npt.NDArray[np.uint8]) -> int:
    """Count the newlines of ``text``; several times faster than ``bytes.count``."""
    return sum(int(np.count_nonzero(text[at : at + _COUNTED] == _NEWLINE)) for at in range(0, len(text), _COUNTED))


@dataclass(frozen=True, slots=True)
class Block:
    """Whole lines: ``data[start:stop]`` ends with a newline.

    After :meth:`check` it is valid UTF-8 without NUL bytes.
    """

    path: Path
    data: bytearray  # undefined after ``stop``
    start: int
    stop: int
    position: int  # bytes of the file read up to its end; 0 if compressed
    number: int  # of the block in the file, from 0
    numbers: LineNumbers
    lines_before: int = 0  # lines before it in the block that it is a piece of

    @property
    def bytes_view(self) -> npt.NDArray[np.uint8]:
        """The bytes as numbers, (len(data),), not copied."""
        view = np.frombuffer(self.data, dtype=np.uint8)
        view.flags.writeable = False
        return view

    @property
    def first_line(self) -> int:
        """Number of its first line in the file, from 1."""
        return self.numbers.first_line(self.number) + self.lines_before

    def pieces(self, lines: int, most: int) -> Iterator[tuple[Block, int]]:
        """Yield pieces of at most ``most`` lines with their number of lines; the block has ``lines``."""
        if lines <= most:
            yield self, lines
            return
        end = self.data.find(b"\n", (self.start + self.stop) // 2, self.stop) + 1
        if end == self.stop:  # the last line is longer than half
            end = self.data.rfind(b"\n", self.start, self.stop - 1) + 1
        above = count_lines(self.bytes_view[self.start : end])
        yield from replace(self, stop=end).pieces(above, most)
        yield from replace(self, start=end, lines_before=self.lines_before + above).pieces(lines - above, most)

    @property
    def lines(self) -> int:
        """Number of lines, known after :meth:`check`."""
        return self.numbers.first_line(self.number + 1) - self.first_line

    def check(self) -> int:
        """Check that the lines are text, and return their number.  Must be called for every block.

        Raises
        ------
        DataRejected
            There is a NUL byte, invalid UTF-8, or a CR that does not end a line.
        """
        lines = 0
        try:
            lines = count_lines(self.bytes_view[self.start : self.stop])
        finally:  # otherwise threads with later blocks would wait forever
            self.numbers.report(self.number, lines)
        at = self.data.find(b"\0", self.start, self.stop)
        if at >= 0:
            raise _nul_byte(self.path, self.line_number(at))
        if not self.data.isascii():
            try:
                str(memoryview(self.data)[: self.stop], "utf-8")
            except UnicodeDecodeError as error:
                found = f"byte 0x{self.data[error.start]:02X}"
                raise DataRejected(
                    f"{self.path}:{self.line_number(error.start)}: not a text file: {found} is not UTF-8;"
                    " convert the file to UTF-8, for example with: iconv -f cp1252 -t utf-8"
                ) from None
        if self.data.find(b"\r", self.start, self.stop) >= 0:
            lone = _LONE_CR.search(self.data, self.start, self.stop)
            if lone is not None:
                raise _lone_cr(self.path, self.line_number(lone.start()), self.data, lone.start())
        return lines

    def line_number(self, at: int) -> int:
        """Return the line number in the file of byte ``at``."""
        return self.first_line + self.data.count(b"\n", self.start, at)

    def text(self, start: int, stop: int) -> str:
        """Return some of the text."""
        return self.data[start:stop].decode("utf-8", "replace")

    def line_at(self, at: int) -> tuple[str, int]:
        """Return the line of byte ``at``, without its end, and the position in characters, from 1."""
        start = max(self.start, self.data.rfind(b"\n", self.start, at) + 1)
        line = self.text(start, self.data.index(b"\n", at)).removesuffix("\r")
        return line, len(self.text(start, at)) + 1


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
    """Return the compression of ``path``, by its suffix."""
    return COMPRESSED.get(path.suffix.lower())


_MARKS = {
    b"\x1f\x8b": ("gzip", ".gz"),
    b"BZh": ("bz2", ".bz2"),
    b"\x28\xb5\x2f\xfd": ("zstd", ".zst"),
    b"\x04\x22\x4d\x18": ("lz4", ".lz4"),
    b"\xfd7zXZ\0": ("xz", ""),
    b"PK\x03\x04": ("zip", ""),
    b"7z\xbc\xaf\x27\x1c": ("7z", ""),
    b"ORC": ("ORC", ""),
    b"Obj\x01": ("Avro", ""),
}
"""First bytes of files that are not read as they are, what they are, and the suffix with which they are."""


def foreign_content(path: Path) -> str:
    """Return the format of ``path`` by its first bytes, and a cure, if its name says something else.

    Both are empty if the format is not known.
    """
    with path.open("rb", buffering=0) as file:
        begin = file.read(8) or b""
    for mark, (kind, suffix) in _MARKS.items():
        if begin.startswith(mark) and kind != compression_of(path):
            if kind in {"ORC", "Avro"}:
                return f"is {kind}, which is not read; write it as Parquet, with pyarrow, Polars or Spark"
            if suffix and not path.name.lower().endswith((".parquet", ".pq", suffix)):
                return f"is compressed by {kind}; let its name end in {suffix}, or decompress it"
            archive = kind in {"zip", "7z"}
            return f"is an archive of {kind}; unpack it" if archive else f"is compressed by {kind}; decompress it"
    return ""


def refuse_foreign_content(path: Path) -> None:
    """Raise DataRejected if the first bytes of the text ``path`` contradict its name.

    They may show another compression or format.
    """
    if what := foreign_content(path):
        raise DataRejected(f"{path}: {what}")


def read_blocks(path: Path, block_bytes: int) -> Iterator[Block]:
    """Yield ``path`` as blocks of whole lines of about ``block_bytes``, checked; see :func:`unchecked_blocks`."""
    for block in unchecked_blocks(path, block_bytes):
        block.check()
        yield block


def unchecked_blocks(
    path: Path, block_bytes: int, spare: list[bytearray] | None = None, *, cr_ends_lines: bool = False
) -> Iterator[Block]:
    """Yield ``path`` as blocks of whole lines of about ``block_bytes``; a byte-order mark is skipped.

    The caller does the slow part, :meth:`Block.check` and parsing, possibly for several blocks in parallel, and may put
    the buffers of finished blocks into ``spare`` for reuse.  With ``cr_ends_lines`` a CR alone ends a line, too, and
    becomes a LF. Memory: one block more than the caller holds, or the longest line.

    Raises
    ------
    DataRejected
        A line is too long, the text is UTF-16, or the compression is damaged.
    """
    refuse_foreign_content(path)
    compression = compression_of(path)
    if compression is None:  # no buffer larger than a small file; what is no file has no size
        block_bytes = min(block_bytes, path.stat().st_size or block_bytes)
    numbers = LineNumbers()
    with pa.input_stream(str(path), compression=cast("Any", compression)) as stream:
        carried = bytearray()
        number, position, start = 0, 0, None
        step = block_bytes
        while True:
            size = len(carried) + step + 1  # one byte for a final newline
            data = spare.pop() if spare else bytearray(size)
            if not size <= len(data) <= 2 * size:  # do not keep a buffer grown for a long line
                data = bytearray(size)
            data[: len(carried)] = carried
            filled = _fill(data, len(carried), size - 1, stream, path, compression)
            ended = filled == len(carried)
            if cr_ends_lines:
                _end_lines(data, max(0, len(carried) - 1), filled, ended=ended)
            if start is None and data.startswith(_MARKS_OF_OTHERS):
                raise DataRejected(f"{path}: is text in UTF-16 or UTF-32; convert the file to UTF-8")
            if start is None:
                if not ended and filled < len(_BOM):
                    carried = data[:filled]
                    continue
                start = len(_BOM) if data.startswith(_BOM) else 0
            if ended and filled > start and data[filled - 1] != _NEWLINE:
                data[filled] = _NEWLINE
                filled += 1
            stop = data.rfind(b"\n", 0, filled) + 1
            if stop > start:
                position += 0 if compression else stop
                yield Block(path, data, start, stop, position, number, numbers)
                number += 1
                start, step = 0, block_bytes
                carried = data[stop:filled]
            elif filled > LINE_LIMIT:
                line = numbers.first_line(number)
                if data.find(b"\0", 0, filled) >= 0:
                    raise _nul_byte(path, line)
                lone = _LONE_CR.search(data, 0, filled)
                if lone is not None:
                    raise _lone_cr(path, line, data, lone.start())
                raise DataRejected(f"{path}:{line}: not a text file: this line is longer than {LINE_LIMIT >> 20} MiB")
            else:
                carried = data[:filled]
                step = max(step, filled)  # a long line: read twice as much next time
            if ended:
                return


def _fill(data: bytearray, start: int, stop: int, stream: pa.NativeFile, path: Path, compression: str | None) -> int:
    """Read ``data[start:stop]`` from ``stream``; return the end. It is below ``stop`` only at the end of the file."""
    try:
        with memoryview(data) as room:
            while start < stop and (count := stream.readinto(cast("Any", room[start:stop]))):
                start += count
    except (OSError, pa.ArrowInvalid) as error:
        if compression is None or getattr(error, "errno", None):
            raise
        raise damaged(path, error) from None
    return start


def _end_lines(data: bytearray, start: int, stop: int, *, ended: bool) -> None:
    """Turn each CR of ``data[start:stop]`` that no LF follows into a LF.

    What follows the last byte is known only if the file ``ended``.
    """
    if data.find(b"\r", start, stop) >= 0:
        text = np.frombuffer(data, dtype=np.uint8)[start:stop]
        text[:-1][(text[:-1] == _CR) & (text[1:] != _NEWLINE)] = _NEWLINE
        if ended and text[-1] == _CR:
            text[-1] = _NEWLINE


def damaged(path: Path, error: Exception) -> DataRejected:
    """Return the error for a compressed file that failed with ``error``."""
    reason = str(error).split("\n", 1)[0]
    return DataRejected(f"{path}: the {compression_of(path)} data are damaged or truncated: {reason}")


def _nul_byte(path: Path, line: int) -> DataRejected:
    return DataRejected(f"{path}:{line}: not a text file: it has a NUL byte; give {spelled('format')} if it is a table")


def _lone_cr(path: Path, line: int, data: bytearray, at: int) -> DataRejected:
    """Raise an error for a CR that does not end a line: the text after it would become part of an id or a comment."""
    column = len(data[data.rfind(b"\n", 0, at) + 1 : at].decode("utf-8", "replace")) + 1
    return DataRejected(
        f"{path}:{line}:{column}: expected lines that end with LF or CR LF, found a CR alone; convert the line endings"
    )
