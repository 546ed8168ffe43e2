"""Copy arrays in kernels."""

from __future__ import annotations

from rankmill.foundation.kernels.compiling import kernel


@kernel
def copy_to(target, source):
    """Do ``target[:] = source`` for arrays (n,) that do not overlap, without allocating memory as Numba does."""
    for k in range(target.shape[0]):
        target[k] = source[k]
