"""Links: functions from the outputs of a forest to one score per document.

``identity`` takes the only output.  The others turn the K outputs ``f_0 .. f_{K-1}`` of a document into probabilities p
of its grades.  The score is the expected grade (``_grade``) or the expected gain (``_gain``): ``sum_k k p_k`` or
``sum_k (2^k - 1) p_k``, summed from the lowest grade to the highest.

``softmax_*``: K grades 0 .. K - 1, ``p_k = exp(f_k) / sum_j exp(f_j)`` (McRank: Li, Burges & Wu, NIPS 2007).
``ordinal_*``: K + 1 grades 0 .. K, f_k is the logit of P(y <= k) (McCullagh 1980; ibid.); grade k has probability
``P(y <= k) - P(y <= k - 1)``, or 0 if that is negative (outputs are learnt separately and may cross); the probabilities
are then divided by their sum.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from rankmill.scorer import _kernels

Link: TypeAlias = Literal["identity", "softmax_grade", "softmax_gain", "ordinal_grade", "ordinal_gain"]
LINKS: tuple[Link, ...] = get_args(Link)

MAX_GRADE = 1023  # for `_grade` links: longer than any real scale, and a forged header cannot exhaust memory
MAX_GAINED_GRADE = 52  # for `_gain` links: the maximum of the metrics; its gain is exact in a float64


def link_fault(link: str, n_outputs: int) -> str | None:
    """Return in one line why ``n_outputs`` outputs cannot go through ``link``, or None if they can."""
    if link not in LINKS:
        return f"unknown link {link!r}, known: {', '.join(LINKS)}"
    if link == "identity":
        return None if n_outputs == 1 else f"{n_outputs} outputs, the link identity has exactly 1"
    least = 2 if link.startswith("softmax") else 1
    most = (MAX_GAINED_GRADE if link.endswith("gain") else MAX_GRADE) - 1 + least
    if not least <= n_outputs <= most:
        return f"{n_outputs} outputs, the link {link} has {least} to {most}"
    return None


def class_values(link: str, n_outputs: int) -> npt.NDArray[np.float64]:
    """Return the value of each grade from 0 on under ``link``: (n_outputs,), one more for ``ordinal_*``.

    >>> class_values("softmax_gain", 4).tolist(), class_values("ordinal_grade", 2).tolist()
    ([0.0, 1.0, 3.0, 7.0], [0.0, 1.0, 2.0])
    """
    grades = np.arange(n_outputs + link.startswith("ordinal"))
    return np.ldexp(1.0, grades) - 1.0 if link.endswith("gain") else grades.astype(np.float64)


def apply_link(
    link: str,
    outputs: npt.NDArray[np.float64],
    out: npt.NDArray[np.float64] | None = None,
    *,
    first: int = 0,
    last: int | None = None,
) -> npt.NDArray[np.float64]:
    """Turn ``outputs`` into scores; the bits of a document's score depend on its own outputs alone.

    Parameters
    ----------
    link
        One of ``LINKS``.
    outputs
        (K, n) float64 with contiguous rows, one for each output.
    out
        (n,) float64 to write the scores to; None: a new array.  It must not overlap ``outputs``.
    first, last
        Write the scores of the documents ``first`` .. ``last`` - 1 only (None: up to n), so that threads can share the
        work.  The kernel releases the GIL.

    Returns
    -------
    ``out``.  A score is NaN if an output is, and for ``softmax_*`` if the greatest output is infinite.

    Raises
    ------
    ValueError
        ``link`` is unknown, K does not fit it, or an array has another shape or dtype than stated.
    """
    if outputs.ndim != 2 or outputs.dtype != np.float64:
        raise ValueError(f"outputs is a {outputs.dtype} array of shape {outputs.shape}, expected (outputs, n) float64")
    if not outputs.flags.c_contiguous:
        raise ValueError("outputs has rows that are not contiguous, or not one after the other")
    n_outputs, n_rows = outputs.shape
    fault = link_fault(link, n_outputs)
    if fault is not None:
        raise ValueError(fault)
    scores = np.empty(n_rows, dtype=np.float64) if out is None else out
    if scores.shape != (n_rows,) or scores.dtype != np.float64:
        raise ValueError(f"out is a {scores.dtype} array of shape {scores.shape}, expected ({n_rows},) float64")
    stop = n_rows if last is None else last
    if not 0 <= first <= stop <= n_rows:
        raise ValueError(f"documents {first} to {stop} of {n_rows}")
    if link == "identity":
        scores[first:stop] = outputs[0, first:stop]
    else:
        _kernels.apply_link(link.startswith("ordinal"), class_values(link, n_outputs), outputs, first, stop, scores)
    return scores
