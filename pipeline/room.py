"""Memory that is used again: the system takes as long to hand over a fresh page as we to fill it with parsed numbers."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


class Room:
    """Room for one array of float32 at a time, as large as the largest so far."""

    def __init__(self) -> None:
        self._cells = np.empty(0, dtype=np.float32)

    def array(self, rows: int, columns: int) -> npt.NDArray[np.float32]:
        """Return an array (rows, columns) with anything in it; it takes the place of the one returned before."""
        if rows * columns > len(self._cells):
            self._cells = np.empty(0, dtype=np.float32)  # first, so that not both are there
            self._cells = np.empty(rows * columns, dtype=np.float32)
        return self._cells[: rows * columns].reshape(rows, columns)
