"""Powers of two out of numbers whose squares or sums might overflow."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def without_exponent(values: npt.NDArray[np.float64]) -> tuple[npt.NDArray[np.float64], int]:
    """Return the finite ``values`` times 2^-e, the greatest of them below 1, and e.

    The result is exact, except for values below 2^-1000 of the greatest.

    >>> without_exponent(np.array([3.0, -0.5]))
    (array([ 0.75 , -0.125]), 2)
    """
    exponent = int(np.frexp(np.abs(values).max(initial=0.0))[1])
    return np.ldexp(values, -exponent), exponent
