"""Where a query goes: a hash of the bytes of its id, written out here because stored datasets depend on it.

``h = 0xcbf29ce484222325; for each byte b: h = (h ^ b) * 0x100000001b3 mod 2^64`` is FNV-1a.  It is xored with a salt and
run through the finaliser of splitmix64: ``z ^= z >> 30; z *= 0xbf58476d1ce4e5b9; z ^= z >> 27; z *= 0x94d049bb133111eb;
z ^= z >> 31``.  The bucket takes salt 0 and the remainder by the number of buckets; the split takes another salt and the
upper 53 bits as a fraction, so one says nothing about the other.  Neither changes as data grow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rankmill.foundation.errors import InputError
from rankmill.pipeline.arrow import parts_of
from rankmill.pipeline.group import _kernels
from rankmill.pipeline.manifest import SPLITS

if TYPE_CHECKING:
    from collections.abc import Mapping

SPLIT_SALT = 0x5851F42D4C957F2D


def hash_ids(ids: pa.Array[Any], salt: int = 0) -> npt.NDArray[np.uint64]:
    """Hash ``ids`` (n,), none of them null; returns (n,) uint64."""
    out = np.empty(len(ids), dtype=np.uint64)
    if len(ids):
        offsets, data = parts_of(ids)
        _kernels.hash_strings(data, offsets, np.uint64(salt), out)
    return out


def buckets_of(qid: pa.Array[Any], buckets: int) -> npt.NDArray[np.int64]:
    """Return the hash bucket of each query id, (n,) in 0..buckets - 1."""
    return (hash_ids(qid) % np.uint64(buckets)).astype(np.int64)


def splits_of(qid: pa.Array[Any], shares: Mapping[str, float]) -> npt.NDArray[np.int64]:
    """Return which of train, valid, test (as 0, 1, 2) each query id falls into; ``shares`` add up to 1."""
    fraction = (hash_ids(qid, SPLIT_SALT) >> np.uint64(11)).astype(np.float64) * 2.0**-53
    bounds = np.cumsum([shares.get(name, 0.0) for name in SPLITS])[:-1]
    return np.searchsorted(bounds, fraction, side="right")


def parse_shares(text: str) -> dict[str, float]:
    """Read ``train=0.8,valid=0.1,test=0.1``; raises InputError with the cure.

    >>> parse_shares("train=0.75,test=0.25")
    {'train': 0.75, 'test': 0.25}
    """
    shares: dict[str, float] = {}
    for part in text.split(","):
        name, equals, number = part.strip().partition("=")
        try:
            share = float(number)
        except ValueError:
            equals = ""
        if not equals:
            raise InputError(f"--split: expected name=share, found {part.strip()!r}; like train=0.8,valid=0.1,test=0.1")
        if name in shares:
            raise InputError(f"--split: {name!r} is given twice")
        shares[name] = share
    check_shares(shares)
    return shares


def check_shares(shares: Mapping[str, float]) -> None:
    """Raise InputError unless ``shares`` name known splits, lie in [0, 1] and add up to 1."""
    for name, share in shares.items():
        if name not in SPLITS:
            raise InputError.unknown("split", name, SPLITS)
        if not 0.0 <= share <= 1.0:
            raise InputError(f"--split: the share of {name} must be in 0..1, got {share}")
    total = sum(shares.values())
    if abs(total - 1.0) > 1e-9:
        raise InputError(f"--split: the shares must add up to 1, got {total:g}")


def digest_of_rows(values: npt.NDArray[np.float32], grade: npt.NDArray[np.int32]) -> npt.NDArray[np.uint64]:
    """Return a 128-bit digest of each row, (n, 2) uint64: of its ``values`` (n, F), any NaN being the same, and ``grade`` (n,)."""
    values = np.where(np.isnan(values), np.float32(np.nan), values)
    out = np.empty((len(values), 2), dtype=np.uint64)
    _kernels.digest_rows(np.ascontiguousarray(values).view(np.uint32), grade, out)
    return out
