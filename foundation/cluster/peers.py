"""The protocol between the processes of one computation: what each must have of the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt


class Peers(Protocol):
    """The processes of one computation, as one of them sees them.

    All of them make the same calls in the same order.  A call returns when each has made it.
    """

    @property
    def number(self) -> int:
        """Number of this process: 0 .. ``size`` - 1."""
        ...

    @property
    def size(self) -> int:
        """How many processes there are."""
        ...

    @property
    def exchanges(self) -> int:
        """How often values were exchanged so far."""
        ...

    @property
    def bytes_sent(self) -> int:
        """How much this process has sent so far."""
        ...

    @property
    def seconds_waited(self) -> float:
        """How long it has spent on exchanges so far."""
        ...

    def gather(self, values: npt.NDArray[Any]) -> Sequence[npt.NDArray[Any]]:
        """Return the ``values`` (m,) of every process, by its number; m may differ, the dtype not."""
        ...

    def tell(self, word: bytes) -> None:
        """Send ``word`` to the caller of the computation."""
        ...

    def add_up(self, values: npt.NDArray[np.int64]) -> None:
        """Replace ``values`` (m,) by the sums over all processes; m is the same in each."""
        ...
