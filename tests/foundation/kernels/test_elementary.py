"""What every dataset, sample and model rests on must not change by a bit."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from rankmill.foundation.kernels import elementary, randoms

X = -np.arange(8001) / 11.0
Y = np.ldexp(1.0 + np.arange(4000) / 4000.0, np.arange(-2000, 2000) // 2)
BITS = np.arange(1, 4001, dtype=np.uint64) * randoms.GOLDEN


def digest(values: list[float]) -> str:
    return hashlib.sha256(np.array(values, dtype=np.float64).tobytes()).hexdigest()[:16]


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("exp_negative", X, "34cec103eb75b8ef"),
        ("exp_precise", X, "5f3450d8e697e5a3"),
        ("log2_positive", Y, "8e63fe1e0209bfb0"),
    ],
)
def test_elementary_functions_return_the_bits_they_always_did(name, arguments, expected):
    function = getattr(elementary, name)
    assert digest([function(x) for x in arguments.tolist()]) == expected


def test_random_numbers_are_those_they_always_were():
    keys = [int(randoms.random_bits(np.uint64(seed), number)) for seed in (0, 1, 2**63) for number in (-1, 0, 1, 2**40)]
    assert hashlib.sha256(np.array(keys, dtype=np.uint64).tobytes()).hexdigest()[:16] == "9b7a682a4a258c9b"
    assert int(randoms.random_bits(np.uint64(0), 1)) == 0xE220A8397B1DCDAF  # the first of SplitMix64 seeded with 0
    assert digest([randoms.uniform(bits) for bits in BITS]) == "105466121013da73"
    out, many = np.empty(len(BITS), dtype=np.uint64), np.arange(len(BITS))
    randoms.all_random_bits(np.uint64(7), many, out)
    assert np.array_equal(out, randoms.random_bits_of(np.full(len(BITS), 7, np.uint64), many.astype(np.uint64)))
