"""Intrinsics return what plain loops do."""

import numpy as np
import pytest
from numba import njit

from rankmill.foundation.kernels.instructions import running_sums


@njit
def summed(array, blocks, out):
    running_sums(array, blocks, out)


@pytest.mark.parametrize("blocks", [0, 1, 2, 32])
def test_running_sums_begin_after_the_first_number(blocks):
    rng = np.random.default_rng(blocks)
    array, out = rng.integers(-(2**62), 2**62, size=256), np.full(256, 7)
    summed(array, blocks, out)
    n = 8 * blocks
    assert np.array_equal(out[:n], np.cumsum(array[:n]) - array[:1].repeat(n))  # both wrap around
    assert (out[n:] == 7).all()
