r"""SHAP values of each document, weighted by the training rows at each node (TreeSHAP).

The value of a coalition S of features at a document is the expected output of the trees if only the features in S are
known.  A split on a feature in S sends the document to one child, any other split to both, weighted by the training
rows that reached them (*path-dependent* TreeSHAP: Lundberg, Erion & Lee 2018, arXiv:1802.03888, algorithm 1; cover =
``node_rows``, or for a model read from XGBoost its sums of hessians, as in its own ``pred_contribs``).  The Shapley
value of feature j is its mean contribution over all orders in which features become known,

.. math:: \phi_j = \sum_{S \subseteq N \setminus j} \frac{|S|! (|N| - |S| - 1)!}{|N|!} (v(S \cup j) - v(S)).

The values of a document add up to its output minus the expected output v({}).  Here a sum over paths with exact
quadrature replaces the paper's algorithm 2 (see ``_kernels.find_contributions``).  The values are the same, and nothing
is divided by a share, so shares of 0 are allowed and nothing cancels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Context, Decimal, localcontext
from functools import lru_cache
from math import cos, pi

import numpy as np
import numpy.typing as npt

from rankmill.foundation.errors import InputError, InvalidParameter
from rankmill.foundation.options import spelled
from rankmill.scorer.forest.forest import Forest
from rankmill.scorer.inspect import _kernels
from rankmill.scorer.inspect.paths import Codes, Paths, in_spans, leaf_paths, require_rows
from rankmill.scorer.query_ids import query_ids

MOST_ON_A_PATH = 512  # features; more would take minutes for the rules alone
DIGITS = 50  # of a point of a quadrature rule, before it is rounded to a double
_STEPS = 100  # Newton's method takes about six


@dataclass(frozen=True, slots=True)
class ShapValues:
    """Contributions of features to each output of a forest.

    The sums of ``values`` over features, plus ``base``, are the outputs.

    For a forest with one output and no link, the output is the score.
    """

    values: npt.NDArray[np.float64]
    """(n, n_outputs, n_features) contributions, or (n, n_outputs, n_features, n_features) interactions."""
    base: npt.NDArray[np.float64]
    """(n, n_outputs) base to which they are added: the expected output, or the mean output of the document's query."""


class Explainer:
    """A forest prepared for explanation; make one and use it for many batches.  Safe to share between threads.

    Parameters
    ----------
    forest
        The trained model, or its paths.
    n_rounds
        Explain the first ``n_rounds`` rounds only; None: all.

    Raises
    ------
    InputError
        ``n_rounds`` is more than the forest has, it has no counts of training rows, or a path asks for too many
        features.
    """

    def __init__(self, forest: Forest | Paths, *, n_rounds: int | None = None) -> None:
        self.paths: Paths = leaf_paths(forest, n_rounds=n_rounds)
        require_rows(self.paths, "use a model that was trained here, or convert it again", or_cover=True)
        widest = int(np.diff(self.paths.conditions.starts).max(initial=0))
        if widest > MOST_ON_A_PATH:
            raise InputError(
                f"a path of this model asks for {widest:,} features, and at most {MOST_ON_A_PATH} are divided fairly; "
                f"use fewer rounds ({spelled('n_rounds')}), or train with {spelled('max_depth')}"
            )
        self._points, self._weights = rules_up_to((widest + 1) // 2)
        self.expected = np.full(self.paths.forest.n_outputs, self.paths.forest.base_score)
        """(n_outputs,) the expected output if no feature is known."""
        np.add.at(self.expected, self.paths.output, self.paths.value * self.paths.reach())

    def contributions(self, codes: Codes, *, n_threads: int = 1) -> npt.NDArray[np.float64]:
        """Return (n, n_outputs, n_slots) contributions of the used features, for ``codes`` from `Paths.codes`.

        The same bits for any batch size and ``n_threads``.
        """
        return self._explained(_kernels.find_contributions, codes, (len(self.paths.features),), n_threads)

    def interactions(self, codes: Codes, *, n_threads: int = 1) -> npt.NDArray[np.float64]:
        """Return SHAP interaction values of the used features, for ``codes`` from `Paths.codes`.

        The shape is (n, n_outputs, n_slots, n_slots).

        Rows and columns of a document sum to its `contributions`.  The same bits for any batch size and ``n_threads``.
        """
        n_slots = len(self.paths.features)
        return self._explained(_kernels.find_interactions, codes, (n_slots, n_slots), n_threads)

    def _explained(
        self, kernel: Callable[..., None], codes: Codes, of_output: tuple[int, ...], n_threads: int
    ) -> npt.NDArray[np.float64]:
        """Return (n, n_outputs, *``of_output``) what ``kernel`` adds up for ``codes``."""
        paths = self.paths
        out = np.zeros((len(codes), paths.forest.n_outputs, *of_output), dtype=np.float64)

        def work(_thread: int, first: int, last: int) -> None:
            kernel(
                codes, first, last, paths.conditions, paths.share, paths.value, paths.output, self._points,
                self._weights, out
            )  # fmt: skip

        if paths.features:
            in_spans(len(codes), n_threads, work)
        return out


def shap_values(
    forest: Forest,
    values: npt.NDArray[np.float32],
    *,
    qid: npt.ArrayLike | None = None,
    n_rounds: int | None = None,
    n_threads: int = 1,
) -> ShapValues:
    """Explain the outputs of ``forest`` at the rows of ``values``.

    Parameters
    ----------
    forest
        The trained model.
    values
        (n, n_features) features, NaN where missing; float64 is rounded to float32.
    qid
        (n,) query of each row, in any order.  If given, the mean of its query is subtracted from every contribution,
        since what all documents of a query share does not rank them.  The rest adds up to the output minus the query's
        mean output.
    n_rounds
        Explain the first ``n_rounds`` rounds; None: all.
    n_threads
        Threads to share the rows among; the result does not depend on it.

    Raises
    ------
    InputError
        ``n_rounds`` is more than the model has, or the model has no counts of training rows.
    TrainingDataRejected
        An id is missing or ambiguous; see `rankmill.scorer.query_ids.query_ids`.
    ValueError
        ``values`` or ``qid`` has another shape.

    Notes
    -----
    Takes n * n_outputs * n_features * 8 bytes; for many documents make an `Explainer` and hand it batches.
    """
    return _shap(forest, values, qid, n_rounds, n_threads, pairs=False)


def shap_interactions(
    forest: Forest,
    values: npt.NDArray[np.float32],
    *,
    qid: npt.ArrayLike | None = None,
    n_rounds: int | None = None,
    n_threads: int = 1,
) -> ShapValues:
    r"""Explain the outputs of ``forest`` at the rows of ``values`` by features and pairs of features.

    The interaction of the features i and j (Lundberg et al. 2020, doi:10.1038/s42256-019-0138-9) is divided equally,

    .. math:: \Phi_{ij} = \Phi_{ji} = \sum_{S \subseteq N \setminus \{i, j\}} \frac{|S|! (|N| - |S| - 2)!}{2 (|N| - 1)!}
        (v(S \cup ij) - v(S \cup i) - v(S \cup j) + v(S)), \quad \Phi_{ii} = \phi_i - \sum_{j \neq i} \Phi_{ij}.

    Parameters and errors are those of `shap_values`.

    Returns
    -------
    ShapValues with ``values`` (n, n_outputs, n_features, n_features), which are symmetric; rows sum to those of
    `shap_values`.
    """
    return _shap(forest, values, qid, n_rounds, n_threads, pairs=True)


def _shap(
    forest: Forest,
    values: npt.NDArray[np.float32],
    qid: npt.ArrayLike | None,
    n_rounds: int | None,
    n_threads: int,
    *,
    pairs: bool,
) -> ShapValues:
    explainer = Explainer(forest, n_rounds=n_rounds)
    codes, n = explainer.paths.codes(values), forest.n_features
    values_of = explainer.interactions if pairs else explainer.contributions
    found, base = centred(values_of(codes, n_threads=n_threads), explainer.expected, numbered_queries(qid, len(codes)))
    out = np.zeros((len(codes), forest.n_outputs, *((n, n) if pairs else (n,))), dtype=np.float64)
    used = np.array(explainer.paths.features, dtype=np.int64)
    out[(..., used[:, np.newaxis], used) if pairs else (..., used)] = found
    return ShapValues(values=out, base=base)


def centred(
    values: npt.NDArray[np.float64], expected: npt.NDArray[np.float64], query: npt.NDArray[np.int64] | None
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return ``values`` (n, n_outputs, ..) less their means by ``query`` (n,), and the base.

    The base (n, n_outputs) is ``expected`` plus these means.
    """
    base = np.repeat(expected[np.newaxis], len(values), axis=0)
    if query is None:
        return values, base
    sizes = np.bincount(query)
    sums = np.zeros((len(sizes), *values.shape[1:]))
    np.add.at(sums, query, values)
    means = sums / np.maximum(sizes, 1).reshape(-1, *[1] * (values.ndim - 1))
    return values - means[query], base + means.sum(axis=tuple(range(2, values.ndim)))[query]


def numbered_queries(qid: npt.ArrayLike | None, n: int) -> npt.NDArray[np.int64] | None:
    """Return the number of each row's query from 0, (n,); None without queries."""
    if qid is None:
        return None
    column = query_ids(qid)
    if column.shape != (n,):
        raise InvalidParameter(f"qid has the shape {column.shape}, expected ({n},)")
    return np.unique(column, return_inverse=True)[1].astype(np.int64)


@lru_cache(maxsize=8)
def rules_up_to(n: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return the points and weights of the rules of 1, 2, .. ``n`` points, one rule after the other.

    Both have shape (n (n + 1) / 2,).  The rule of m points is exact for polynomials of degree up to 2 m - 1.  Points
    are roots of Legendre's polynomial by Newton's method in ``DIGITS`` decimal digits.  So each is the double nearest
    to the true one.

    >>> points, weights = rules_up_to(2)
    >>> points.round(4).tolist(), weights.tolist()
    ([0.5, 0.2113, 0.7887], [1.0, 0.5, 0.5])
    """
    points, weights = [], []
    for m in range(1, n + 1):
        rule = [_point(m, i) for i in range(m)]
        points += [float(x) for x, _ in rule]
        weights += [float(w) for _, w in rule]
    return np.array(points, dtype=np.float64), np.array(weights, dtype=np.float64)


def _point(m: int, i: int) -> tuple[Decimal, Decimal]:
    """Point ``i`` from the least, and its weight, of the rule of ``m`` points on [0, 1]."""
    with localcontext(Context(prec=DIGITS)):
        x = Decimal(-cos(pi * (i + 0.75) / (m + 0.5)))  # an approximation; the refined value does not depend on it
        for _ in range(_STEPS):
            value, slope = _legendre(m, x)
            step = value / slope
            x -= step
            if abs(step) < Decimal(10) ** (8 - DIGITS):
                break
        _, slope = _legendre(m, x)
        return (1 + x) / 2, 1 / ((1 - x * x) * slope * slope)


def _legendre(m: int, x: Decimal) -> tuple[Decimal, Decimal]:
    """Legendre's polynomial of degree ``m`` at ``x``, and its derivative."""
    before, value = Decimal(1), x
    for k in range(2, m + 1):
        before, value = value, ((2 * k - 1) * x * value - (k - 1) * before) / k
    return value, m * (before - x * value) / (1 - x * x)
