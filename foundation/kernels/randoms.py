"""Random bits that depend on their arguments alone, so that draws are the same for any threads, chunks and machines.

They are part of datasets, samples and models: what they return must never change (tests pin it).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rankmill.foundation.kernels.compiling import kernel

GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio, odd: SplitMix64 steps by it
MIX_1, MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_S12, _S27, _S30, _S31 = np.uint64(12), np.uint64(27), np.uint64(30), np.uint64(31)


@kernel
def mix(z):
    """Finaliser of SplitMix64 (Steele, Lea & Flood 2014): 64 bits, each of which depends on every bit of ``z``."""
    z = (z ^ (z >> _S30)) * MIX_1
    z = (z ^ (z >> _S27)) * MIX_2
    return z ^ (z >> _S31)


@kernel
def random_bits(seed, number):
    """Return element ``number`` (1, 2, ..) of the SplitMix64 sequence of ``seed``, uint64.

    Any whole number is allowed.
    """
    return mix(seed + np.uint64(number) * GOLDEN)


@kernel
def uniform(bits):
    """Return a number in the open interval (0, 1) from 64 random bits; exact."""
    return (np.float64(np.int64(bits >> _S12)) + 0.5) * 2.220446049250313e-16


@kernel
def all_random_bits(seed, numbers, out):
    """out[i] = random_bits(seed, numbers[i])."""
    for i in range(numbers.shape[0]):
        out[i] = random_bits(seed, numbers[i])


def random_bits_of(
    seeds: npt.NDArray[np.uint64], numbers: npt.NDArray[np.uint64] | np.uint64
) -> npt.NDArray[np.uint64]:
    """Return ``random_bits`` of arrays, (n,), without a compiler."""
    return getattr(mix, "py_func", mix)(seeds + numbers * GOLDEN)


def random_keys(
    seed: int, stream: int, round_number: int, items: npt.NDArray[np.signedinteger]
) -> npt.NDArray[np.uint64]:
    """Return 64 random bits per item, which depend only on the four arguments."""
    key = np.uint64(seed)
    for part in (stream, round_number):
        key = np.uint64(random_bits(key, part))
    keys = np.empty(len(items), dtype=np.uint64)
    all_random_bits(key, items.astype(np.int64, copy=False), keys)
    return keys
