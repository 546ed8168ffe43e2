"""Ranges of the input that workers of a cluster read: some whole files, or some row groups of one Parquet file."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rankmill.foundation.errors import InputError
from rankmill.pipeline.read.batch import Source
from rankmill.pipeline.read.parquet import ParquetSource

RANGE_BYTES = 256 << 20
"""Bytes of the input that a range has at most, if files and row groups allow it."""
LEAST_BYTES = 8 << 20
"""Minimum bytes of a range, if the file has that many."""
USUAL_RANGES = 64
"""Number of ranges if they fit between the two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRange:
    """Consecutive rows of the input.

    Attributes
    ----------
    first
        The number of its first file.
    paths, sizes
        Its files, absolute, and their bytes.
    groups
        First and last row group, exclusive, of its one Parquet file; None: whole files.
    n_bytes
        Its share of the bytes of the input.
    """

    first: int
    paths: tuple[Path, ...]
    sizes: tuple[int, ...]
    groups: tuple[int, int] | None
    n_bytes: int

    def check_files(self) -> None:
        """Raise InputError if a file has another size here than where the ranges were made."""
        for path, size in zip(self.paths, self.sizes, strict=True):
            if path.stat().st_size != size:
                raise InputError(
                    f"{path}: is another file for the worker on {platform.node()}, or has changed meanwhile"
                )

    def narrow(self, sources: Sequence[Source]) -> int:
        """Let ``sources``, opened from the paths, read only this range.

        Return the number of rows before it in its file.
        """
        if self.groups is None:
            return 0
        (source,) = sources
        assert isinstance(source, ParquetSource)  # noqa: S101 - only these have row groups
        return source.keep_row_groups(*self.groups)


def ranges_of(sources: Sequence[Source]) -> list[FileRange]:
    """Divide the input into ranges, in order; they depend on the files alone."""
    sizes = [source.path.stat().st_size for source in sources]
    wanted = min(max(sum(sizes) // USUAL_RANGES, LEAST_BYTES), RANGE_BYTES)
    found: list[FileRange] = []
    held: list[int] = []

    def add(indices: Sequence[int], n_bytes: int, groups: tuple[int, int] | None = None) -> None:
        paths = tuple(sources[index].path.absolute() for index in indices)
        of_files = tuple(sizes[index] for index in indices)
        found.append(FileRange(first=indices[0], paths=paths, sizes=of_files, groups=groups, n_bytes=n_bytes))

    def add_held() -> None:
        if held:
            add(held, sum(sizes[index] for index in held))
            held.clear()

    for index, source in enumerate(sources):
        if held and sum(sizes[other] for other in held) + sizes[index] > wanted:
            add_held()
        if sizes[index] > wanted and isinstance(source, ParquetSource):
            add_held()
            sized = source.row_groups()
            shrunk = sizes[index] / max(1, sum(n_bytes for _, n_bytes in sized))  # compressed
            first, n_bytes = 0, 0.0
            for number, (_, of_group) in enumerate(sized):
                if number > first and n_bytes + of_group * shrunk > wanted:
                    add([index], int(n_bytes), (first, number))
                    first, n_bytes = number, 0.0
                n_bytes += of_group * shrunk
            add([index], int(n_bytes), (first, len(sized)))
        else:
            held.append(index)
    add_held()
    return found
