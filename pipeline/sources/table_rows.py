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
    """What is wrong with a row of a batch, counted from 0."""

    row: int
    part: str
    """What the bad cell or word is for; empty: the line has too many or too few."""
    found: str
    """As a message shows it; text is quoted from the file instead."""
    expected: str
    cure: str = ""


class Problems:
    """The first problem of each row of a batch that has one."""

    def __init__(self, rows: int) -> None:
        self.keep: Mask = np.ones(rows, dtype=np.bool_)
        self._found: list[Problem] = []

    def new(self, bad: Mask) -> Iterable[int]:
        """Return the ``bad`` (n,) rows that had no problem so far; they have one now."""
        rows: list[int] = np.flatnonzero(bad & self.keep).tolist()
        self.keep &= ~bad
        return rows

    def add(self, row: int, part: str, found: str, expected: str, cure: str = "") -> None:
        """Say what the problem of a new one is."""
        self._found.append(Problem(row, part, found, expected, cure))

    def refuse(self, bad: Mask, part: str, expected: str, cure: str = "", *, found: str = "nothing") -> None:
        """Give all ``bad`` (n,) rows without a problem the same one."""
        for row in self.new(bad):
            self.add(row, part, found, expected, cure)

    def sorted(self) -> list[Problem]:
        """Return all of them in the order of the rows."""
        return sorted(self._found)


@dataclass(frozen=True, slots=True)
class TableRows:
    """Some rows of a table, or lines of words, in the order of the file."""

    columns: Mapping[str, pa.Array[Any]]
    """(n,) cells, by the part that the column plays."""
    place: npt.NDArray[np.int64]
    """(n,) ascending: which row or line of the file each is."""
    problems: Problems
    """What is wrong with them so far."""
    put_aside: Callable[[Problems], None]
    """Puts the rows with problems aside."""
