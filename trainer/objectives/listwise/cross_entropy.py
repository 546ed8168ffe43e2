"""Cross entropy between two distributions over a list: ListNet (Cao et al. 2007) and XE-NDCG (Bruch 2020)."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from rankmill.foundation.errors import TrainingDataRejected
from rankmill.foundation.options import option, options
from rankmill.trainer.data.rows import RankedRows
from rankmill.trainer.objectives.listwise import _kernels
from rankmill.trainer.objectives.listwise.list_loss import DRAWS, ListLoss, gains_of, key_of, mixed_lists
from rankmill.trainer.objectives.protocol import OF_GRADIENTS, Floats, PairHessians, Splits
from rankmill.trainer.objectives.query_shares import QueryShares, Workspaces
from rankmill.trainer.objectives.weights import list_weights, shares_of_lists
from rankmill.trainer.parameters import TrainParameters
from rankmill.trainer.team import Team

_LEAST_WORK = 20_000  # minimum documents per worker: some 300 us


@options
class ListNetOptions:
    """Options of ``listnet`` and ``softmax``."""

    target: str = option(
        default="gain",
        choices=("gain", "exp_grade"),
        help="Target of a document: its share of the gains of its list, or of exp(grade) as in the ListNet paper.",
    )


class ListNet(ListLoss):
    """Minimise the sum over lists of ``-w sum t_i log p_i``, p the softmax of the scores (Cao et al. 2007).

    g = w (p - t), h = w p (1 - p), pair hessians w p_i p_j: all exact.  Targets t sum to 1 over a list; a list without
    any gain has none and does not count.  Uses ``gain`` and, for samples of pairs, ``seed`` of the parameters.

    Raises
    ------
    TrainingDataRejected
        Bad weights, or no query that counts holds two grades.
    """

    name: ClassVar[str] = "listnet"
    Options: ClassVar[type[ListNetOptions]] = ListNetOptions

    def __init__(self, rows: RankedRows, parameters: TrainParameters, options: ListNetOptions) -> None:
        self._starts, self._seed = rows.starts, parameters.seed
        mixed_lists(rows)
        if options.target == "gain":
            values = gains_of(rows, parameters)
        else:
            values = np.empty(rows.n_rows)
            _kernels.exponentials_of_lists(rows.grades.astype(np.float64), rows.starts, values)
        self._targets, sums = shares_of_lists(values, rows.starts)
        self.weights = np.where(sums > 0.0, list_weights(rows), 0.0)
        if not self.weights.any():
            raise TrainingDataRejected(
                "no query with a weight above 0 has a relevant document, so there is"
                " nothing to learn; check the grades and weights"
            )
        self._shares = QueryShares(np.diff(rows.starts), _LEAST_WORK)

    def gradients(self, step: int, scores: Floats, g: Floats, h: Floats, team: Team) -> None:
        """Write g and h, both (n_rows,)."""
        self._each(team, _kernels.softmax_gradients, scores, self._targets, self.weights, g, h)

    def losses(self, scores: Floats) -> Floats:
        """Return the cross entropy of every list times its weight, (n_queries,)."""
        return self._of_lists(_kernels.softmax_losses, scores, self._targets, self.weights)

    def pair_hessians(self, step: int, scores: Floats, least: float, team: Team) -> PairHessians:
        """Return w p_i p_j of all pairs of a list."""
        masses, spare = np.empty(len(scores)), np.empty(len(scores))
        self._each(team, _kernels.softmax_masses, scores, self.weights, spare, masses)
        return self._product_pairs(step, masses, self.weights, least, team)


class Softmax(ListNet):
    """:class:`ListNet` under its name in other libraries."""

    name: ClassVar[str] = "softmax"


_LEAST_DRAWN_WORK = 10_000  # minimum documents per worker: some 300 us


@options
class XendcgOptions:
    """Options of ``rank_xendcg``."""

    terms: int = option(
        default=3,
        least=1,
        most=10,
        help="Number of terms of the series for g. LightGBM uses 3; 1 is the exact gradient.",
    )


class RankXendcg(ListLoss):
    r"""Minimise the sum over lists of ``-w sum t_i log p_i``.

    t_i = (2^y_i - u_i) / (the sum of these over the list).

    The softmax of the scores is p.  The draws u are uniform in (0, 1), drawn for each step and keyed by (seed, step,
    query, place in the list); they depend on the order of rows.  With linear gain 2^y is y + 1.  h = w p (1 - p) is
    exact; **g is the gradient only for terms = 1**.  Otherwise it is the gradient times ``diag(H) H^-1``, by ``terms``
    terms of Neumann's series, which is how LightGBM minimises (Bruch 2020, appendix).  So steps -g / h account for the
    other documents; it sums to 0 all the same.  Since g is no derivative, ``ole`` has no meaning here.

    ``losses`` use the draws of the last step; the deviance uses u = 1/2.  Uses ``gain`` and ``seed``.

    Raises
    ------
    TrainingDataRejected
        Bad weights, or no query holds two grades.
    """

    name: ClassVar[str] = "rank_xendcg"
    splits: ClassVar[Splits] = OF_GRADIENTS
    Options: ClassVar[type[XendcgOptions]] = XendcgOptions

    def __init__(self, rows: RankedRows, parameters: TrainParameters, options: XendcgOptions) -> None:
        self._starts, self._seed, self._terms = rows.starts, parameters.seed, options.terms
        mixed_lists(rows)
        self.weights = list_weights(rows)
        self._gains = gains_of(rows, parameters)
        self._at_rest, _ = shares_of_lists(self._gains + 0.5, rows.starts)
        self._targets = self._at_rest.copy()
        sizes = np.diff(rows.starts)
        self._shares = QueryShares(sizes, _LEAST_DRAWN_WORK)
        self._work = Workspaces(((3 * int(sizes.max(initial=0)),), np.float64))

    def gradients(self, step: int, scores: Floats, g: Floats, h: Floats, team: Team) -> None:
        """Write g and h, both (n_rows,), for the draws of this step."""
        key = key_of(self._seed, step, DRAWS)

        def share(first: int, last: int, worker: int) -> None:
            _kernels.draw_targets(self._gains, self._starts, first, last, key, self._targets)
            _kernels.preconditioned_gradients(
                scores, self._starts, first, last, self._targets, self.weights, self._terms, self._work.of(worker)[0],
                g, h
            )  # fmt: skip

        self._shares.each(team, share)

    def losses(self, scores: Floats) -> Floats:
        """Return the cross entropy of every list times its weight, (n_queries,), with the targets of the last step."""
        return self._of_lists(_kernels.softmax_losses, scores, self._targets, self.weights)

    def losses_at_rest(self, scores: Floats) -> Floats:
        """Return the same with every u = 1/2."""
        return self._of_lists(_kernels.softmax_losses, scores, self._at_rest, self.weights)
