"""A batch of rows as columns, with the first problem of each malformed row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    import pyarrow as pa

Mask = npt.NDArray[np.bool_]


class Problem(NamedTuple):
    """A problem of a row of a batch, counted from 0."""

    row: int
    part: str
    """The role of the bad cell or word; empty: the line has too many or too few words."""
    found: str
    """The value as shown in a message; for text, the message quotes the file instead."""
    expected: str
    cure: str = ""


class Problems:
    """The first problem of each bad row of a batch."""

    def __init__(self, rows: int) -> None:
        self.keep: Mask = np.ones(rows, dtype=np.bool_)
        self._found: list[Problem] = []

    def new(self, bad: Mask) -> Iterable[int]:
        """Mark the ``bad`` (n,) rows and return those without an earlier problem."""
        rows: list[int] = np.flatnonzero(bad & self.keep).tolist()
        self.keep &= ~bad
        return rows

    def add(self, row: int, part: str, found: str, expected: str, cure: str = "") -> None:
        """Add the problem of a row that `new` returned."""
        self._found.append(Problem(row, part, found, expected, cure))

    def refuse(self, bad: Mask, part: str, expected: str, cure: str = "", *, found: str = "nothing") -> None:
        """Add the same problem for all ``bad`` (n,) rows without an earlier one."""
        for row in self.new(bad):
            self.add(row, part, found, expected, cure)

    def sorted(self) -> list[Problem]:
        """Return all problems in the order of the rows."""
        return sorted(self._found)


@dataclass(frozen=True, slots=True)
class TableRows:
    """Some rows of a table, or lines of words, in the order of the file."""

    columns: Mapping[str, pa.Array[Any]]
    """(n,) cells, by the role of the column."""
    place: npt.NDArray[np.int64]
    """(n,) ascending: row or line number in the file."""
    problems: Problems
    """Problems found so far."""
    put_aside: Callable[[Problems], None]
    """Quarantines the rows with problems."""
