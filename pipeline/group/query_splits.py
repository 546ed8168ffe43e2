"""Assign queries to buckets by hash, and to splits by shares, folds or time.

Stored datasets depend on the hash, so it is defined here.
``h = 0xcbf29ce484222325; for each byte b: h = (h ^ b) * 0x100000001b3 mod 2^64`` is FNV-1a.  It is xored with a salt
and run through the finaliser of splitmix64:
``z ^= z >> 30; z *= 0xbf58476d1ce4e5b9; z ^= z >> 27; z *= 0x94d049bb133111eb; z ^= z >> 31``.  The bucket is the
remainder by the number of buckets, with salt 0.  Splits by shares and by fold use other salts and the upper bits as a
fraction, so they are independent.

A rule depends only on the query, so adding other queries does not change its split (with a rule by time, a newer row of
the query itself may).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rankmill.foundation.errors import InputError
from rankmill.foundation.options import spelled
from rankmill.pipeline.arrow import parts_of
from rankmill.pipeline.dataset.manifest import SPLITS
from rankmill.pipeline.group import _kernels
from rankmill.pipeline.read.times import TIME_RULE, iso, times_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


SPLIT_SALT = 0x5851F42D4C957F2D

T = TypeVar("T")


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


def digest_of_rows(values: npt.NDArray[np.float32], grade: npt.NDArray[np.int32]) -> npt.NDArray[np.uint64]:
    """Return a 128-bit digest of each row, (n, 2) uint64.

    It covers its ``values`` (n, F) and ``grade`` (n,); all NaN are equal.
    """
    values = np.where(np.isnan(values), np.float32(np.nan), values)
    out = np.empty((len(values), 2), dtype=np.uint64)
    _kernels.digest_rows(np.ascontiguousarray(values).view(np.uint32), grade, out)
    return out


FOLD_SALT = 0x14057B7EF767814F  # not that of shares, so that folds of a split by shares have equal sizes too
MAX_FOLDS = 1000
_TRAIN, _VALID, _TEST = range(len(SPLITS))
_SHARES, _TIMES = "train=0.8,valid=0.1,test=0.1", "valid=2026-01-01,test=2026-02-01"  # examples


def parts_of_folds(qid: pa.Array[Any], folds: int) -> npt.NDArray[np.int64]:
    """Return the part of each query id, (n,) from 0 to ``folds`` - 1, by the upper 32 bits of a separate hash."""
    upper = hash_ids(qid, FOLD_SALT) >> np.uint64(32)
    return ((upper * np.uint64(folds)) >> np.uint64(32)).astype(np.int64)


@dataclass(frozen=True, slots=True)
class QuerySplits:
    """How queries are assigned to splits: in one of three ways.

    Attributes
    ----------
    shares
        By hash of the query into shares of train, valid and test, which add up to 1.
    times
        By the latest time of the query: train before ``valid``, test from ``test`` on, valid between; one of both may
        be missing. In microseconds since 1970 UTC.
    folds
        (K, F): one of K folds as in LETOR: K parts by hash of the query; from part F on, K - 2 are train, the next
        valid, the last test.  Over all F in 1..K, each part is valid once and test once.
    prefix
        Ids that agree up to the last of this character are in one split, by shares or folds; empty: only equal ids.
    """

    shares: Mapping[str, float] | None = None
    times: Mapping[str, int] | None = None
    folds: tuple[int, int] | None = None
    prefix: str = ""

    @property
    def option(self) -> str:
        """The name of the option that gives the rule."""
        return spelled("split" if self.shares is not None else "split_time" if self.times is not None else "folds")

    def splits(self, qid: pa.Array[Any], latest: npt.NDArray[np.int64] | None) -> npt.NDArray[np.int64]:
        """Return the split (index into SPLITS) of each of ``qid`` (n,).

        ``latest`` (n,) are the times of their latest rows.
        """
        if self.times is not None:
            if latest is None:
                raise ValueError("a split by time needs times")
            split = np.full(len(latest), _TRAIN, dtype=np.int64)
            for code, name in ((_VALID, "valid"), (_TEST, "test")):
                if name in self.times:
                    split[latest >= self.times[name]] = code
            return split
        ids = prefixes_of(qid, self.prefix)
        if self.shares is not None:
            return splits_of(ids, self.shares)
        folds, fold = self.folds or (0, 0)
        place = (parts_of_folds(ids, folds) - (fold - 1)) % folds
        return np.where(place < folds - 2, _TRAIN, np.where(place == folds - 2, _VALID, _TEST))


def rule_of(
    shares: Mapping[str, float] | None = None,
    times: Mapping[str, str] | None = None,
    folds: int | None = None,
    fold: int | None = None,
    prefix: str = "",
) -> QuerySplits | None:
    """Return the rule that is given, or None.

    InputError if there are several, or if values are invalid or incompatible.
    """
    given = {"split": shares, "split_time": times, "folds": folds if fold is None else fold}
    named = [spelled(name) for name, value in given.items() if value is not None]
    if (folds is None) != (fold is None):
        raise InputError(
            f"{spelled('folds')} and {spelled('fold')} are needed together: the number of folds, and the fold to build"
        )
    if folds is not None and fold is not None:
        if not 3 <= folds <= MAX_FOLDS:
            raise InputError(
                f"{spelled('folds')} must be in 3..{MAX_FOLDS}, got {folds}: train, valid and test need one part each"
            )
        if not 1 <= fold <= folds:
            raise InputError(f"{spelled('fold')} must be in 1..{folds}, got {fold}")
    if len(named) > 1:
        raise InputError(f"{named[0]} and {named[1]}: splits can be assigned in one way only; use one of them")
    if prefix and shares is None and folds is None:
        raise InputError(
            f"{spelled('split_prefix')} goes with {spelled('split')} or {spelled('folds')}; give one of them, or "
            "leave it out"
        )
    if not named:
        return None
    if shares is not None:
        _check_shares(shares)
    of_folds = None if folds is None or fold is None else (folds, fold)
    return QuerySplits(shares, None if times is None else _bounds(times), of_folds, prefix)


def parse_shares(text: str) -> dict[str, float]:
    """Read ``train=0.8,valid=0.1,test=0.1``; raises InputError with the cure.

    >>> parse_shares("train=0.75,test=0.25")
    {'train': 0.75, 'test': 0.25}
    """
    shares = _pairs("split", text, "share", _SHARES, float)
    _check_shares(shares)
    return shares


def parse_split_time(text: str) -> dict[str, str]:
    """Read ``valid=2026-01-01,test=2026-02-01``, with times as in a column of times; raises InputError with the cure.

    >>> parse_split_time("valid=1970-01-02,test=172800")
    {'valid': '1970-01-02', 'test': '1970-01-03'}
    """
    return checked_split_time(_pairs("split_time", text, "time", _TIMES, str))


def checked_split_time(given: Mapping[str, str]) -> dict[str, str]:
    """Return the starts of valid and test, given as texts, in one spelling; raises InputError with the cure."""
    return {name: iso(bound) for name, bound in _bounds(given).items()}


def _pairs(option: str, text: str, what: str, example: str, read: Callable[[str], T]) -> dict[str, T]:
    found: dict[str, T] = {}
    for part in map(str.strip, text.split(",")):
        name, equals, value = part.partition("=")
        try:
            read_value = read(value)
        except ValueError:
            equals = ""
        if not equals:
            raise InputError(f"{spelled(option)}: expected name={what}, found {part!r}; write for example {example}")
        if name in found:
            raise InputError(f"{spelled(option)}: {name!r} is given twice")
        found[name] = read_value
    return found


def _check_shares(shares: Mapping[str, float]) -> None:
    """Raise InputError unless ``shares`` are for known splits, in [0, 1] and add up to 1."""
    for name, share in shares.items():
        if name not in SPLITS:
            raise InputError.unknown("split", name, SPLITS)
        if not 0.0 <= share <= 1.0:
            raise InputError(f"{spelled('split')}: the share of {name} must be in 0..1, got {share}")
    total = sum(shares.values())
    if abs(total - 1.0) > 1e-9:
        raise InputError(f"{spelled('split')}: the shares must add up to 1, got {total:g}")


def _bounds(given: Mapping[str, str]) -> dict[str, int]:
    """Return the starts of valid and test in microseconds since 1970 UTC."""
    option = spelled("split_time")
    bounds: dict[str, int] = {}
    for name, text in given.items():
        if name == "train":
            raise InputError(f"{option}: train is everything before valid or test; leave it out")
        if name not in SPLITS:
            raise InputError.unknown("split", name, ("valid", "test"))
        time, good = times_of(pa.array([text]))
        if not good[0]:
            raise InputError(f"{option}: {name}: expected {TIME_RULE}, found {text!r}")
        bounds[name] = int(time[0])
    if not bounds:
        raise InputError(f"{option}: give the time when valid or test begins, for example {_TIMES}")
    if len(bounds) == 2 and bounds["valid"] >= bounds["test"]:
        valid, test = iso(bounds["valid"]), iso(bounds["test"])
        raise InputError(f"{option}: valid must begin before test, got valid={valid} and test={test}")
    return bounds
