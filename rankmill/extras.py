"""What may be given besides features, grades and queries: weights, labels, events, offsets and pairs of documents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any

import numpy as np
import numpy.typing as npt

from rankmill.foundation.errors import InvalidParameter, TrainingDataRejected
from rankmill.trainer.objectives.weights import check_weights
from rankmill.trainer.rows import Preferences
from rankmill.vectors import NUMBERS, vector

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Extras:
    """As users hand them over, unchecked; :meth:`rankmill.ranker.Ranker.fit` says what each is."""

    sample_weight: Any = None
    query_weight: Any = None
    label: Any = None
    event: Any = None
    offset: Any = None
    pairs: Any = None
    pair_weight: Any = None
    pair_probability: Any = None

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Extras:
        """Return them by name, ``init_score`` for ``offset`` among them; InvalidParameter for any other name."""
        known, found = [field.name for field in fields(cls)], dict(given)
        if found.get("init_score") is not None:
            if found.get("offset") is not None:
                raise InvalidParameter("offset and init_score are two names of one thing; give one of them")
            found["offset"] = found["init_score"]
        found.pop("init_score", None)
        for name in found:
            if name not in known:
                near = get_close_matches(str(name), known, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
                raise InvalidParameter(f"unknown column {name!r}; {hint}")
        return cls(**found)

    def weights(self, n_rows: int) -> Floats | None:
        """Return the weights of the documents (n_rows,); None where there are none, or all are alike.

        Raises
        ------
        TrainingDataRejected
            There is another number of them, or one is negative or no number.
        """
        found = _numbers("sample_weight", self.sample_weight, n_rows)
        return None if found is None else _telling(found)

    def labels(self, n_rows: int) -> Floats | None:
        """Return what regression learns (n_rows,), or None; TrainingDataRejected where one is no finite number."""
        found = _numbers("label", self.label, n_rows)
        if found is not None:
            check_finite("label", found)
        return found

    def events(self, n_rows: int) -> npt.NDArray[np.uint8] | None:
        """Return 0 or 1 for each row, or None, also where all are 1; TrainingDataRejected for anything else."""
        found = _numbers("event", self.event, n_rows)
        if found is None:
            return None
        bad = (found != 0.0) & (found != 1.0)
        if bad.any():
            row = int(np.argmax(bad))
            raise TrainingDataRejected(f"row {row}: expected an event, 1 (seen) or 0 (censored), found {found[row]}")
        return None if found.all() else found.astype(np.uint8)

    def offsets(self, n_rows: int) -> Floats | None:
        """Return what scores start from (n_rows,), or None, also where all are 0; errors as :meth:`labels`."""
        found = _numbers("offset", self.offset, n_rows)
        if found is None:
            return None
        check_finite("offset", found)
        return found + 0.0 if found.any() else None

    def query_weights(self, queries: npt.NDArray[Any], number: npt.NDArray[np.int64]) -> Floats | None:
        """Return a weight for each query in the order of ``number``; None where there are none, or all are alike.

        Parameters
        ----------
        queries
            (n,) query of each row as the user wrote it.
        number
            (n,) its place among the sorted queries.

        Raises
        ------
        TrainingDataRejected
            A query has no weight, or two, or one that is negative or no number.
        """
        given, n_queries = self.query_weight, int(number.max(initial=-1)) + 1
        if given is None:
            return None
        first = np.full(n_queries, len(number), dtype=np.int64)
        np.minimum.at(first, number, np.arange(len(number)))
        if isinstance(given, Mapping):
            ids = queries[first].tolist()
            lacking = next((one for one in ids if one not in given), None)
            if lacking is not None:
                raise TrainingDataRejected(f"query_weight has no weight for the query {lacking!r}")
            given = [given[one] for one in ids]
            found = _numbers("query_weight", given, n_queries)
        elif np.shape(vector(given, "query_weight")) == (n_queries,) != (len(number),):
            by_appearance = _numbers("query_weight", given, n_queries)
            assert by_appearance is not None  # noqa: S101 - it was given
            found = np.empty(n_queries)
            found[np.argsort(first)] = by_appearance
        else:
            of_rows = _numbers("query_weight", given, len(number), f", or for each of the {n_queries} queries")
            assert of_rows is not None  # noqa: S101 - it was given
            found = of_rows[first]
            other = of_rows != found[number]
            if other.any():
                row = int(np.argmax(other))
                raise TrainingDataRejected(
                    f"row {row}: its query has the weight {found[number[row]]} in another row, found {of_rows[row]};"
                    " a query has one weight (those of documents go to sample_weight)"
                )
        assert found is not None  # noqa: S101 - it was given
        bad = ~(np.isfinite(found) & (found >= 0.0))
        if bad.any():
            worst = int(np.argmax(bad))
            raise TrainingDataRejected(
                f"query {queries[first[worst]]}: expected a weight of 0 or more, found {found[worst]}"
            )
        return None if found[0] > 0.0 and (found == found[0]).all() else found

    def preferences(
        self, number: npt.NDArray[np.int64], order: npt.NDArray[np.intp], starts: npt.NDArray[np.int64]
    ) -> Preferences | None:
        """Return the pairs as the trainer takes them: by query and row, whatever their order was; or None.

        Parameters
        ----------
        number
            (n,) place of each row's query among the sorted ones, rows as the user has them.
        order
            (n,) rows as the trainer will have them.
        starts
            (n_queries + 1,) of those.

        Raises
        ------
        InvalidParameter
            Weights or probabilities without pairs.
        TrainingDataRejected
            A pair names a row that is not there, one row twice, or rows of two queries; a weight is negative, or a
            probability outside [0, 1].
        """
        if self.pairs is None:
            if self.pair_weight is not None or self.pair_probability is not None:
                raise InvalidParameter("pair_weight and pair_probability belong to pairs; give those too")
            return None
        n_rows, pairs = len(number), vector(self.pairs, "pairs")
        if pairs.size == 0:
            pairs = pairs.reshape(0, 2)
        if pairs.ndim != 2 or pairs.shape[1] != 2 or (pairs.size and pairs.dtype.kind not in NUMBERS):
            raise TrainingDataRejected(
                f"pairs must have shape (p, 2), row numbers better and worse, got {pairs.dtype} of {pairs.shape}"
            )
        with np.errstate(invalid="ignore"):
            rows = pairs.astype(np.int64)
        bad = (rows != pairs).any(axis=1) | (rows < 0).any(axis=1) | (rows >= n_rows).any(axis=1)
        _no_pair(bad, pairs, f"expected two rows, 0 .. {n_rows - 1}")
        _no_pair(rows[:, 0] == rows[:, 1], pairs, "expected two rows, found one twice")
        _no_pair(number[rows[:, 0]] != number[rows[:, 1]], pairs, "expected two rows of one query")
        weight = _numbers("pair_weight", self.pair_weight, len(rows), what="pairs")
        weight = np.ones(len(rows)) if weight is None else weight
        _no_pair(~(np.isfinite(weight) & (weight >= 0.0)), pairs, "expected a weight of 0 or more")
        probability = _numbers("pair_probability", self.pair_probability, len(rows), what="pairs")
        probability = np.ones(len(rows)) if probability is None else probability
        _no_pair(~((probability >= 0.0) & (probability <= 1.0)), pairs, "expected a probability in [0, 1]")
        place = np.empty(n_rows, dtype=np.int32)
        place[order] = np.arange(n_rows, dtype=np.int32)
        better, worse = place[rows[:, 0]], place[rows[:, 1]]
        by = np.lexsort((probability, weight, worse, better))
        return Preferences(
            better=better[by],
            worse=worse[by],
            weight=weight[by],
            probability=probability[by],
            starts=np.searchsorted(better[by], starts).astype(np.int64),
        )


def check_finite(name: str, values: Floats) -> None:
    """Raise TrainingDataRejected, naming the first row, unless all of ``values`` (n,) are finite."""
    bad = ~np.isfinite(values)
    if bad.any():
        row = int(np.argmax(bad))
        raise TrainingDataRejected(f"row {row}: expected a finite {name}, found {values[row]}")


def _telling(weights: Floats) -> Floats | None:
    """Return None where all are alike: only ratios count, and such say nothing."""
    check_weights(weights)  # before rows change their places, so that the message names the user's
    return None if len(weights) and weights[0] > 0.0 and (weights == weights[0]).all() else weights


def _numbers(name: str, given: Any, n: int, also: str = "", what: str = "rows") -> Floats | None:
    if given is None:
        return None
    found = vector(given, name)
    if found.shape != (n,) or (n and found.dtype.kind not in NUMBERS):
        raise TrainingDataRejected(
            f"{name} must hold a number for each of the {n} {what}{also}, got {found.dtype} of shape {found.shape}"
        )
    return found.astype(np.float64)


def _no_pair(bad: npt.NDArray[np.bool_], pairs: npt.NDArray[Any], expected: str) -> None:
    if bad.any():
        at = int(np.argmax(bad))
        raise TrainingDataRejected(f"pair {at}, rows {pairs[at, 0]} and {pairs[at, 1]}: {expected}")
