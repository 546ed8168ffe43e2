"""Assign queries to buckets by hash, and to splits by shares, folds or time.

Stored datasets depend on the hash, so it is defined here.
``h = 0xcbf29ce484222325; for each byte b: h = (h ^ b) * 0x100000001b3 mod 2^64`` is FNV-1a.  It is xored with a salt and
run through the finaliser of splitmix64: ``z ^= z >> 30; z *= 0xbf58476d1ce4e5b9; z ^= z >> 27; z *= 0x94d049bb133111eb;
z ^= z >> 31``.  The bucket is the remainder by the number of buckets, with salt 0; splits by shares and by fold use other salts and the
upper bits as a fraction, so they are independent.

A rule depends only on the query, so adding other queries does not change its split (with a rule by time, a newer row of the query
itself may).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rankmill.foundation.errors import InputError
from rankmill.foundation.options import spelled
from rankmill.pipeline.arrow import parts_of
from rankmill.pipeline.dataset.manifest import SPLITS, FoldChoice
from rankmill.pipeline.group import _kernels
from rankmill.pipeline.read.times import TIME_RULE, iso, times_of

if TYPE_CHECKING:
    from collections.abc import Mapping


SPLIT_SALT = 0x5851F42D4C957F2D


def hash_ids(ids: pa.Array[Any], salt: int = 0) -> npt.NDArray[np.uint64]:
    """Hash ``ids`` (n,) without nulls; return (n,) uint64."""
    out = np.empty(len(ids), dtype=np.uint64)
    if len(ids):
        offsets, data = parts_of(ids)
        _kernels.hash_strings(data, offsets, np.uint64(salt), out)
    return out


def buckets_of(qid: pa.Array[Any], buckets: int) -> npt.NDArray[np.int64]:
    """Return the hash bucket of each query id, (n,) in 0..buckets - 1."""
    return (hash_ids(qid) % np.uint64(buckets)).astype(np.int64)


def splits_of(qid: pa.Array[Any], shares: Mapping[str, float]) -> npt.NDArray[np.int64]:
    """Return the split (0 train, 1 valid, 2 test) of each query id; ``shares`` add up to 1."""
    fraction = (hash_ids(qid, SPLIT_SALT) >> np.uint64(11)).astype(np.float64) * 2.0**-53
    bounds = np.cumsum([shares.get(name, 0.0) for name in SPLITS])[:-1]
    return np.searchsorted(bounds, fraction, side="right")


def prefixes_of(qid: pa.Array[Any], mark: str) -> pa.Array[Any]:
    """Return each of ``qid`` (n,) up to its last ``mark``, a character; all of it without one.

    >>> prefixes_of(pa.array(["a/b/1", "a"]), "/").to_pylist()
    ['a/b', 'a']
    """
    if not mark:
        return qid
    mark = re.escape(mark)
    return pc.replace_substring_regex(qid, f"(?s)^(.*){mark}.*?$", r"\1")


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
            raise InputError(
                f"{spelled('split')}: expected name=share, found {part.strip()!r}; write for example"
                " train=0.8,valid=0.1,test=0.1"
            )
        if name in shares:
            raise InputError(f"{spelled('split')}: {name!r} is given twice")
        shares[name] = share
    check_shares(shares)
    return shares


def check_shares(shares: Mapping[str, float]) -> None:
    """Raise InputError unless ``shares`` are for known splits, in [0, 1] and add up to 1."""
    for name, share in shares.items():
        if name not in SPLITS:
            raise InputError.unknown("split", name, SPLITS)
        if not 0.0 <= share <= 1.0:
            raise InputError(f"{spelled('split')}: the share of {name} must be in 0..1, got {share}")
    total = sum(shares.values())
    if abs(total - 1.0) > 1e-9:
        raise InputError(f"{spelled('split')}: the shares must add up to 1, got {total:g}")


def digest_of_rows(values: npt.NDArray[np.float32], grade: npt.NDArray[np.int32]) -> npt.NDArray[np.uint64]:
    """Return a 128-bit digest of each row, (n, 2) uint64: of its ``values`` (n, F) and ``grade`` (n,); all NaN are equal."""
    values = np.where(np.isnan(values), np.float32(np.nan), values)
    out = np.empty((len(values), 2), dtype=np.uint64)
    _kernels.digest_rows(np.ascontiguousarray(values).view(np.uint32), grade, out)
    return out


FOLD_SALT = (
    0x14057B7EF767814F  # differs from the salt of shares, so that folds of a split by shares have equal sizes too
)
MAX_FOLDS = 1000
_TRAIN, _VALID, _TEST = range(len(SPLITS))


@dataclass(frozen=True, slots=True)
class ByShares:
    """Split by hash of the query into shares of train, valid and test, which add up to 1."""

    shares: Mapping[str, float]
    prefix: str = ""
    """Ids that agree up to the last of this character are in one split; empty: only equal ids."""

    def __post_init__(self) -> None:
        check_shares(self.shares)

    def splits(self, qid: pa.Array[Any], latest: npt.NDArray[np.int64] | None) -> npt.NDArray[np.int64]:  # noqa: ARG002
        """Return the split (index into SPLITS) of each of ``qid`` (n,)."""
        return splits_of(prefixes_of(qid, self.prefix), self.shares)


@dataclass(frozen=True, slots=True)
class ByTime:
    """Split by the latest time of the query: train before ``valid``, test from ``test`` on, valid between.

    Attributes
    ----------
    valid, test
        Start of these splits in microseconds since 1970 UTC; None: no such split.
    """

    valid: int | None = None
    test: int | None = None

    def __post_init__(self) -> None:
        if self.valid is None and self.test is None:
            raise InputError(
                f"{spelled('split_time')}: give the time when valid or test begins, for example"
                " valid=2026-01-01,test=2026-02-01"
            )
        if self.valid is not None and self.test is not None and self.valid >= self.test:
            raise InputError(
                f"{spelled('split_time')}: valid must begin before test, got valid={iso(self.valid)} and test={iso(self.test)}"
            )

    def splits(self, qid: pa.Array[Any], latest: npt.NDArray[np.int64] | None) -> npt.NDArray[np.int64]:  # noqa: ARG002
        """Return the split (index into SPLITS) of each query with the time ``latest`` (n,) of its latest row."""
        if latest is None:
            raise ValueError("a split by time needs times")
        split = np.full(len(latest), _TRAIN, dtype=np.int64)
        if self.valid is not None:
            split[latest >= self.valid] = _VALID
        if self.test is not None:
            split[latest >= self.test] = _TEST
        return split

    def bounds(self) -> dict[str, str]:
        """Return the bounds as text, by split."""
        given = {"valid": self.valid, "test": self.test}
        return {name: iso(bound) for name, bound in given.items() if bound is not None}


@dataclass(frozen=True, slots=True)
class ByFold:
    """One of K folds as in LETOR: K parts by hash of the query; from part F on, K - 2 are train, the next valid, the last test.

    Attributes
    ----------
    folds
        K, 3 or more.
    fold
        F in 1..K.  Over all F, each part is valid once and test once.
    prefix
        As of :class:`ByShares`.
    """

    folds: int
    fold: int
    prefix: str = ""

    def __post_init__(self) -> None:
        if not 3 <= self.folds <= MAX_FOLDS:
            raise InputError(
                f"{spelled('folds')} must be in 3..{MAX_FOLDS}, got {self.folds}: train, valid and"
                " test need one part each"
            )
        if not 1 <= self.fold <= self.folds:
            raise InputError(f"{spelled('fold')} must be in 1..{self.folds}, got {self.fold}")

    def splits(self, qid: pa.Array[Any], latest: npt.NDArray[np.int64] | None) -> npt.NDArray[np.int64]:  # noqa: ARG002
        """Return the split (index into SPLITS) of each of ``qid`` (n,)."""
        place = (parts_of_folds(prefixes_of(qid, self.prefix), self.folds) - (self.fold - 1)) % self.folds
        return np.where(place < self.folds - 2, _TRAIN, np.where(place == self.folds - 2, _VALID, _TEST))


SplitRule = ByShares | ByTime | ByFold


def parts_of_folds(qid: pa.Array[Any], folds: int) -> npt.NDArray[np.int64]:
    """Return the part of each query id, (n,) from 0 to ``folds`` - 1, by the upper 32 bits of a separate hash."""
    upper = hash_ids(qid, FOLD_SALT) >> np.uint64(32)
    return ((upper * np.uint64(folds)) >> np.uint64(32)).astype(np.int64)


def rule_of(
    shares: Mapping[str, float] | None, split_time: ByTime | None, folds: FoldChoice | None, prefix: str = ""
) -> SplitRule | None:
    """Return the rule that is given, or None; InputError if there are several, or ``prefix`` does not apply to it."""
    given = {spelled("split"): shares, spelled("split_time"): split_time, spelled("folds"): folds}
    named = [name for name, value in given.items() if value is not None]
    if len(named) > 1:
        raise InputError(f"{named[0]} and {named[1]}: splits can be assigned in one way only; use one of them")
    if prefix and shares is None and folds is None:
        raise InputError(
            f"{spelled('split_prefix')} goes with {spelled('split')} or {spelled('folds')}; give one of them, or leave it out"
        )
    if shares is not None:
        return ByShares(shares, prefix)
    return split_time if folds is None else ByFold(folds.folds, folds.fold, prefix)


def name_of(rule: SplitRule) -> str:
    """Return the option that gives ``rule``."""
    return {ByShares: spelled("split"), ByTime: spelled("split_time"), ByFold: spelled("folds")}[type(rule)]


def parse_split_time(text: str) -> ByTime:
    """Parse ``valid=2026-01-01,test=2026-02-01``, with times as in a column of times; raises InputError with the cure.

    >>> parse_split_time("valid=1970-01-02,test=172800")
    ByTime(valid=86400000000, test=172800000000)
    """
    bounds: dict[str, int] = {}
    for part in text.split(","):
        name, equals, moment = part.strip().partition("=")
        if not equals:
            raise InputError(
                f"{spelled('split_time')}: expected name=time, found {part.strip()!r}; write for"
                " example valid=2026-01-01,test=2026-02-01"
            )
        if name == "train":
            raise InputError(f"{spelled('split_time')}: train is everything before valid or test; leave it out")
        if name not in SPLITS:
            raise InputError.unknown("split", name, ("valid", "test"))
        if name in bounds:
            raise InputError(f"{spelled('split_time')}: {name!r} is given twice")
        bounds[name] = _bound(name, moment)
    return ByTime(bounds.get("valid"), bounds.get("test"))


def split_time_of(valid: str | None, test: str | None) -> ByTime:
    """Return the rule with bounds given as text."""
    return ByTime(
        None if valid is None else _bound("valid", valid),
        None if test is None else _bound("test", test),
    )


def fold_choice(folds: int | None, fold: int | None) -> FoldChoice | None:
    """Return the chosen fold, None if neither number is given; InputError if only one is given or they are invalid."""
    if folds is None and fold is None:
        return None
    if folds is None or fold is None:
        raise InputError(
            f"{spelled('folds')} and {spelled('fold')} are needed together: the number of folds, and the fold to build"
        )
    ByFold(folds, fold)
    return FoldChoice(folds=folds, fold=fold)


def _bound(name: str, text: str) -> int:
    time, good = times_of(pa.array([text]))
    if not good[0]:
        raise InputError(f"{spelled('split_time')}: {name}: expected {TIME_RULE}, found {text!r}")
    return int(time[0])
