"""Query sizes from a separate file for text without ``qid:``, as in LightGBM and XGBoost.

Each line has the number of rows of the next query, in the order of the rows.  Blank lines are skipped.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rankmill.foundation.errors import DataRejected, InputError
from rankmill.pipeline.arrow import as_array
from rankmill.pipeline.read.batch import Quarantine
from rankmill.pipeline.read.blocks import COMPRESSED
from rankmill.pipeline.read.files import COMPANIONS, uncompressed
from rankmill.pipeline.read.words import SIZES, word_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


_BLOCK_BYTES = 1 << 20
_SIZE = "^[0-9]{1,12}$"  # with more digits, the sum of a block might overflow

Numbers = npt.NDArray[np.int64]


def find_sizes(path: Path) -> Path | None:
    """Return the companion file of ``path`` with sizes.

    Its name, with or without the compression suffix, is followed by ``.query`` or ``.group``.

    Raises
    ------
    InputError
        There are several such files.
    """
    names = dict.fromkeys(
        f"{base}{companion}{compression}"
        for base in (path.name, uncompressed(path).name)
        for companion in COMPANIONS
        for compression in ("", *COMPRESSED)
    )
    found = [beside for name in names if (beside := path.with_name(name)).is_file()]
    if len(found) > 1:
        raise InputError(f"{found[0]}: {path.name} also has {found[1].name}; keep only one of them")
    return found[0] if found else None


class QuerySizes:
    """Reads the sizes of the queries of one file, in the order of its rows. Memory: one block of sizes."""

    def __init__(self, path: Path, rows_path: Path) -> None:
        self.path = path
        self.rows_path = rows_path
        name = os.fsencode(uncompressed(rows_path).name).decode("utf-8", "replace")
        self._prefix: Any = pa.scalar(f"{name}:", pa.string())
        self._nothing: Any = pa.scalar("", pa.string())
        self._chunks = self._read()
        self._row = 0
        self._before = 0  # queries before the chunk
        self._ends: Numbers = np.zeros(0, dtype=np.int64)  # first row after each query of the chunk
        self._lines: Numbers = np.zeros(0, dtype=np.int64)

    def take(self, rows: int, line_of: Callable[[int], int]) -> Numbers:
        """Return the query numbers, from 1, of the next ``rows`` rows (rows,).

        ``line_of`` returns the line of the k-th of them, for error messages.

        Raises
        ------
        DataRejected
            There are more rows than the sum of sizes, or a size is malformed.
        """
        numbers = np.empty(rows, dtype=np.int64)
        done = 0
        while done < rows:
            if not len(self._ends) or self._row == self._ends[-1]:
                self._before += len(self._ends)
                chunk = next(self._chunks, None)
                if chunk is None:
                    raise DataRejected(
                        f"{self.rows_path}:{line_of(done)}: more rows than query sizes: the sizes in"
                        f" {self.path} add up to {self._row:,}, and this is the next row"
                    )
                self._ends, self._lines = chunk
            step = min(rows - done, int(self._ends[-1]) - self._row)
            places = np.arange(self._row, self._row + step)
            numbers[done : done + step] = self._before + 1 + np.searchsorted(self._ends, places, side="right")
            self._row += step
            done += step
        return numbers

    def ids(self, numbers: Numbers) -> pa.StringArray:
        """Return the ids of the queries with ``numbers`` (n,): name of the file of rows, colon, number."""
        words: Any = as_array(numbers).cast(pa.string())
        return cast("pa.StringArray", pc.binary_join_element_wise(self._prefix, words, self._nothing))

    def close(self) -> None:
        """Check the total, after all rows were read.

        Raises
        ------
        DataRejected
            The sum of sizes is larger.
        """
        while len(self._ends) == 0 or self._ends[-1] == self._row:
            chunk = next(self._chunks, None)
            if chunk is None:
                return
            self._ends, self._lines = chunk
        query = int(np.searchsorted(self._ends, self._row, side="right"))
        raise DataRejected(
            f"{self.path}:{self._lines[query]}: query sizes exceed the rows: {self.rows_path} has"
            f" {self._row:,} rows, but this query ends at row {self._ends[query]:,}"
        )

    def _read(self) -> Iterator[tuple[Numbers, Numbers]]:
        """Yield (rows up to the end of each query, line of its size) for each block of sizes."""
        before = 0
        for rows, _ in word_lines(self.path, SIZES, Quarantine(), _BLOCK_BYTES):
            words = rows.columns["size"]
            good = pc.match_substring_regex(words, _SIZE)
            sizes: Numbers = pc.if_else(good, words, pa.scalar("0")).cast(pa.int64()).to_numpy()
            rows.problems.refuse(sizes < 1, "size", SIZES.expected)
            rows.reject(rows.problems)
            if len(sizes):
                yield np.cumsum(sizes) + before, rows.place
                before += int(sizes.sum())
