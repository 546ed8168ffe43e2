r"""Shapley values of the features of each document, by the rows of training that went each way.

The value of a coalition S of features at a document is what the trees expect of it where only the features in S are known:
a node that asks for one of S sends the document its way, any other node both ways, weighted by the training rows that
reached its children (*path-dependent* TreeSHAP: Lundberg, Erion & Lee 2018, arXiv:1802.03888, algorithm 1; cover =
``node_rows``, and of a model read from XGBoost the sums of curvatures that are its cover, as in its own ``pred_contribs``).  The Shapley value of feature j is its mean contribution over all orders in which features become known,

.. math:: \phi_j = \sum_{S \subseteq N \setminus j} \frac{|S|! (|N| - |S| - 1)!}{|N|!} (v(S \cup j) - v(S)).

The values of a document add up to its output less the expected output v({}).  Here a sum over paths with exact quadrature
takes the place of the paper's algorithm 2 (see ``_kernels.find_contributions``): same values, nothing is divided by a share,
so shares of 0 are allowed and nothing cancels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rankmill.scorer.forest import Forest
from rankmill.scorer.inspect import _kernels
from rankmill.scorer.inspect.paths import Codes, Paths, in_spans, leaf_paths, require_rows
from rankmill.scorer.inspect.quadrature import rules_up_to


@dataclass(frozen=True, slots=True)
class ShapValues:
    """Contributions of features to each output of a forest; ``values.sum(axis=2) + base`` are the outputs.

    Of a forest of one output without a link, the output is the score.
    """

    values: npt.NDArray[np.float64]
    """(n, n_outputs, n_features) contributions."""
    base: npt.NDArray[np.float64]
    """(n, n_outputs) what they are added to: the expected output, or the mean output of the document's query."""


class Explainer:
    """A forest laid out to be explained; make one and use it for many batches.  Safe to share between threads.

    Parameters
    ----------
    forest
        The trained model.
    n_rounds
        Explain the first ``n_rounds`` rounds only; None: all.

    Raises
    ------
    InputError
        ``n_rounds`` is more than the forest has, or the forest does not know its training rows.
    """

    def __init__(self, forest: Forest, *, n_rounds: int | None = None) -> None:
        self.paths: Paths = leaf_paths(forest, n_rounds=n_rounds)
        require_rows(self.paths, "use a model that was trained here, or convert it anew", or_cover=True)
        widest = int(np.diff(self.paths.starts).max(initial=0))
        self._points, self._weights = rules_up_to((widest + 1) // 2)
        self.expected = expected_outputs(self.paths)
        """(n_outputs,) the output of a document of which nothing is known."""

    def contributions(self, codes: Codes, *, n_threads: int = 1) -> npt.NDArray[np.float64]:
        """Return (n, n_outputs, n_slots) contributions of the features asked for, at ``codes`` as `Paths.codes` finds them.

        The same bits for any batch size and ``n_threads``.
        """
        paths = self.paths
        out = np.zeros((len(codes), paths.forest.n_outputs, len(paths.features)), dtype=np.float64)

        def work(_thread: int, first: int, last: int) -> None:
            _kernels.find_contributions(
                codes, first, last, paths.starts, paths.slot, paths.low, paths.high, paths.missing, paths.share,
                paths.value, paths.output, self._points, self._weights, out,
            )  # fmt: skip

        if paths.features:
            in_spans(len(codes), n_threads, work)
        return out


def expected_outputs(paths: Paths) -> npt.NDArray[np.float64]:
    """Return (n_outputs,) the outputs where nothing is known: base score plus each leaf times the share that reaches it."""
    out = np.full(paths.forest.n_outputs, paths.forest.base_score, dtype=np.float64)
    np.add.at(out, paths.output, paths.value * paths.reach())
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
        (n,) query of each row, in any order.  Given, the mean of its query is taken off every contribution: what all
        documents of a query have alike ranks nothing.  The rest adds up to the output less the query's mean output.
    n_rounds
        Explain the first so many rounds; None: all.
    n_threads
        Threads to share the rows among; the result does not depend on it.

    Raises
    ------
    InputError
        ``n_rounds`` is more than the model has, or the model does not know its training rows.
    ValueError
        ``values`` or ``qid`` has another shape.

    Notes
    -----
    Takes n * n_outputs * n_features * 8 bytes; for many documents make an `Explainer` and hand it batches.
    """
    explainer = Explainer(forest, n_rounds=n_rounds)
    codes = explainer.paths.codes(values)
    found = explainer.contributions(codes, n_threads=n_threads)
    base = np.repeat(explainer.expected[np.newaxis], len(found), axis=0)
    if qid is not None:
        found, base = without_query_mean(found, base, _query_numbers(qid, len(found)))
    out = np.zeros((len(found), forest.n_outputs, forest.n_features), dtype=np.float64)
    out[:, :, list(explainer.paths.features)] = found
    return ShapValues(values=out, base=base)


def without_query_mean(
    contributions: npt.NDArray[np.float64], base: npt.NDArray[np.float64], query: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Move the mean of each query from the contributions to the base.

    Parameters
    ----------
    contributions
        (n, n_outputs, m).
    base
        (n, n_outputs), the same for all documents of a query.
    query
        (n,) number of each row's query, from 0.

    Returns
    -------
    Both anew: contributions less their query's mean, and the base plus the sum of these means.
    """
    sizes = np.bincount(query)
    sums = np.zeros((len(sizes), *contributions.shape[1:]))
    np.add.at(sums, query, contributions)
    means = sums / np.maximum(sizes, 1)[:, np.newaxis, np.newaxis]
    return contributions - means[query], base + means.sum(axis=2)[query]


def _query_numbers(qid: npt.ArrayLike, n: int) -> npt.NDArray[np.int64]:
    column = np.asarray(qid)
    if column.shape != (n,):
        raise ValueError(f"qid has the shape {column.shape}, expected ({n},)")
    return np.unique(column, return_inverse=True)[1].astype(np.int64)
