"""How likely users are to examine each rank, and to click there without reason: the file that `clicks fit` writes."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rankmill.foundation.errors import InputError, IntegrityError
from rankmill.foundation.records import as_json, canonical_json, from_json, left_out, other_format
from rankmill.foundation.storage.publish import explain_errors, write_atomically

FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutClicks:
    """How well a click model predicts the sessions it was not fitted to.

    Each click is predicted from the clicks above it in its list.
    """

    impressions: int
    log_likelihood: float
    """Mean natural logarithm of the predicted probability of what happened, an impression."""
    perplexity: tuple[float, ...]
    """(ranks,) ``2 ** -mean log2 probability``: 1 is perfect, 2 is guessing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Propensities:
    """Examination probabilities by rank, fitted to a log: ``P(click at k) = examination[k] * relevance + trust[k]``.

    Only ratios of examination are identified, so that the first rank has 1.  Ranks beyond the last have the last one's
    values.

    Parameters
    ----------
    model
        Name of the click model, such as ``pbm``.
    examination
        (ranks,) over 0; of rank 1 first.
    low, high
        (ranks,) ends of the 95 % intervals, if they were computed.
    trust
        (ranks,) the probability of a click on an irrelevant document at that rank, if the model has it (Vardasbi et al.
        2020: beta).
    continuation
        (ranks,) the probability that users continue after a click at that rank, of the dependent click model.
    by_last_click
        (ranks, rank) examination by rank and rank of the last click above (0: none), of the user browsing model; rank k
        has k values.
    held_out
        Figures on sessions that were held out.
    """

    model: str
    examination: tuple[float, ...]
    low: tuple[float, ...] | None = left_out()
    high: tuple[float, ...] | None = left_out()
    trust: tuple[float, ...] | None = left_out()
    continuation: tuple[float, ...] | None = left_out()
    by_last_click: tuple[tuple[float, ...], ...] | None = left_out()
    held_out: HeldOutClicks | None = left_out()
    format: int = FORMAT

    def at(self, rank: npt.NDArray[np.int32]) -> npt.NDArray[np.float64]:
        """Return the examination probability of each ``rank`` (n,), from 1.

        >>> Propensities(model="pbm", examination=(1.0, 0.5)).at(np.array([1, 2, 9], dtype=np.int32)).tolist()
        [1.0, 0.5, 0.5]
        """
        return _at(self.examination, rank)

    def trust_at(self, rank: npt.NDArray[np.int32]) -> npt.NDArray[np.float64]:
        """Return the probability of a click without relevance at each ``rank`` (n,), from 1.

        It is 0 if the model has none.
        """
        return np.zeros(len(rank)) if self.trust is None else _at(self.trust, rank)


def _at(by_rank: tuple[float, ...], rank: npt.NDArray[np.int32]) -> npt.NDArray[np.float64]:
    values: npt.NDArray[np.float64] = np.array(by_rank, dtype=np.float64)[np.minimum(rank, len(by_rank)) - 1]
    return values


def write_propensities(path: Path, propensities: Propensities) -> None:
    """Write the file; the same values give the same bytes."""
    with explain_errors(path):
        write_atomically(path, canonical_json(as_json(propensities)) + b"\n")


def read_propensities(path: Path) -> Propensities:
    """Read the file.

    Raises
    ------
    InputError
        There is none.
    IntegrityError
        It is not what `clicks fit` writes.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    found = from_json(Propensities, data, str(path))
    if found.format != FORMAT:
        raise IntegrityError(other_format(f"{path}: propensities", found.format, FORMAT, "run clicks fit again"))
    ranks = len(found.examination)
    if not ranks or not all(0.0 < value < inf for value in found.examination):
        raise IntegrityError(
            f"{path}: expected examination probabilities over 0, one for each position; write it again with clicks fit"
        )
    for name in ("low", "high", "trust", "continuation", "by_last_click"):
        values = getattr(found, name)
        if values is not None and len(values) != ranks:
            raise IntegrityError(
                f"{path}: expected {ranks} values of {name}, found {len(values)}; write it again with clicks fit"
            )
    return found
