"""Rules that say which split a query belongs to, where the files do not: by hash, by time, or as one of K folds.

A rule looks at a query alone, so its split does not change as other queries are added (a newer row of its own may change
that of a rule by time).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rankmill.foundation.errors import InputError
from rankmill.pipeline.group.hashing import check_shares, hash_ids, splits_of
from rankmill.pipeline.manifest import SPLITS, FoldChoice
from rankmill.pipeline.sources.times import TIME_RULE, iso, times_of

if TYPE_CHECKING:
    from collections.abc import Mapping

FOLD_SALT = 0x14057B7EF767814F  # another than that of the shares: folds of a part drawn by shares are whole as well
MAX_FOLDS = 1000
_TRAIN, _VALID, _TEST = range(len(SPLITS))


@dataclass(frozen=True, slots=True)
class ByShares:
    """Shares of train, valid and test by hash of the query; they add up to 1."""

    shares: Mapping[str, float]

    def __post_init__(self) -> None:
        check_shares(self.shares)

    def splits(self, qid: pa.Array[Any], latest: npt.NDArray[np.int64] | None) -> npt.NDArray[np.int64]:  # noqa: ARG002
        """Return the split (index into SPLITS) of each of ``qid`` (n,)."""
        return splits_of(qid, self.shares)


@dataclass(frozen=True, slots=True)
class ByTime:
    """By the latest row of the query: train before ``valid``, test from ``test`` on, valid between.

    Attributes
    ----------
    valid, test
        Microseconds since 1970 UTC at which these splits begin; None: there is no such split.
    """

    valid: int | None = None
    test: int | None = None

    def __post_init__(self) -> None:
        if self.valid is None and self.test is None:
            raise InputError("--split-time: say when valid or test begins, like valid=2026-01-01,test=2026-02-01")
        if self.valid is not None and self.test is not None and self.valid >= self.test:
            raise InputError(
                f"--split-time: valid must begin before test, got valid={iso(self.valid)} and test={iso(self.test)}"
            )

    def splits(self, qid: pa.Array[Any], latest: npt.NDArray[np.int64] | None) -> npt.NDArray[np.int64]:  # noqa: ARG002
        """Return the split (index into SPLITS) of each query whose ``latest`` (n,) row has that time."""
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
    """One of K folds, as LETOR has them: K parts by hash of the query, and from part F on K - 2 to train, one valid, one test.

    Attributes
    ----------
    folds
        K, 3 or more.
    fold
        F in 1..K.  Over all F, each part is valid once and test once.
    """

    folds: int
    fold: int

    def __post_init__(self) -> None:
        if not 3 <= self.folds <= MAX_FOLDS:
            raise InputError(
                f"--folds must be in 3..{MAX_FOLDS}, got {self.folds}: train, valid and test need a part each"
            )
        if not 1 <= self.fold <= self.folds:
            raise InputError(f"--fold must be in 1..{self.folds}, got {self.fold}")

    def splits(self, qid: pa.Array[Any], latest: npt.NDArray[np.int64] | None) -> npt.NDArray[np.int64]:  # noqa: ARG002
        """Return the split (index into SPLITS) of each of ``qid`` (n,)."""
        place = (parts_of_folds(qid, self.folds) - (self.fold - 1)) % self.folds
        return np.where(place < self.folds - 2, _TRAIN, np.where(place == self.folds - 2, _VALID, _TEST))


SplitRule = ByShares | ByTime | ByFold


def parts_of_folds(qid: pa.Array[Any], folds: int) -> npt.NDArray[np.int64]:
    """Return which of ``folds`` equal parts each query id falls into, (n,) from 0: by the upper 32 bits of a hash of its own."""
    upper = hash_ids(qid, FOLD_SALT) >> np.uint64(32)
    return ((upper * np.uint64(folds)) >> np.uint64(32)).astype(np.int64)


def rule_of(
    shares: Mapping[str, float] | None, split_time: ByTime | None, folds: FoldChoice | None
) -> SplitRule | None:
    """Return the one rule that is given, None if none is; InputError if several are."""
    given = {"--split": shares, "--split-time": split_time, "--folds": folds}
    named = [name for name, value in given.items() if value is not None]
    if len(named) > 1:
        raise InputError(f"{named[0]} and {named[1]}: the splits can be drawn in one way only")
    if shares is not None:
        return ByShares(shares)
    return split_time if folds is None else ByFold(folds.folds, folds.fold)


def name_of(rule: SplitRule) -> str:
    """Return the option that gives ``rule``."""
    return {ByShares: "--split", ByTime: "--split-time", ByFold: "--folds"}[type(rule)]


def parse_split_time(text: str) -> ByTime:
    """Read ``valid=2026-01-01,test=2026-02-01``, bounds as in a column of times; raises InputError with the cure.

    >>> parse_split_time("valid=1970-01-02,test=172800")
    ByTime(valid=86400000000, test=172800000000)
    """
    bounds: dict[str, int] = {}
    for part in text.split(","):
        name, equals, moment = part.strip().partition("=")
        if not equals:
            raise InputError(
                f"--split-time: expected name=time, found {part.strip()!r}; like valid=2026-01-01,test=2026-02-01"
            )
        if name == "train":
            raise InputError("--split-time: train is what is before valid or test; leave it out")
        if name not in SPLITS:
            raise InputError.unknown("split", name, ("valid", "test"))
        if name in bounds:
            raise InputError(f"--split-time: {name!r} is given twice")
        bounds[name] = _bound(name, moment)
    return ByTime(bounds.get("valid"), bounds.get("test"))


def split_time_of(valid: str | None, test: str | None) -> ByTime:
    """Return the rule with bounds given as text."""
    return ByTime(
        None if valid is None else _bound("valid", valid),
        None if test is None else _bound("test", test),
    )


def fold_choice(folds: int | None, fold: int | None) -> FoldChoice | None:
    """Return the choice of a fold, None if neither number is given; InputError if only one is or they do not fit."""
    if folds is None and fold is None:
        return None
    if folds is None or fold is None:
        raise InputError("--folds and --fold go together: how many parts there are, and which fold of them this is")
    ByFold(folds, fold)
    return FoldChoice(folds=folds, fold=fold)


def _bound(name: str, text: str) -> int:
    time, good = times_of(pa.array([text]))
    if not good[0]:
        raise InputError(f"--split-time: {name}: expected {TIME_RULE}, found {text!r}")
    return int(time[0])
