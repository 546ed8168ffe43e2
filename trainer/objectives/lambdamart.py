"""LambdaMART (Burges 2010): pairs of documents, each weighted by what swapping the two would do to the metric."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import numpy.typing as npt

from scorer.metrics.discount import discounts, gains
from scorer.metrics.metric import parse_metric
from scorer.metrics.policy import Gain, Policy
from scorer.metrics.queries import PreparedQueries
from trainer.errors import InvalidParameter, TrainingDataRejected
from trainer.objectives import _kernels
from trainer.objectives.protocol import QUERIES, NoOptions, Objective
from trainer.objectives.weights import document_weights
from trainer.parameters import TrainParameters
from trainer.rows import RankedRows
from trainer.workers import Team

_LEAST_WORK = 60_000  # pairs a worker: some 200 us


class LambdaMart(Objective):
    r"""Minimise the sum of ``|dZ_ij| log(1 + exp(-sigma (s_i - s_j)))`` over pairs with y_i > y_j (METHODS 3.15).

    dZ_ij is the change of ``ndcg@k`` when i and j swap ranks and nothing else moves; discounts beyond k are kept, and
    the ideal is that of k.  Only pairs with at least one document among the first ``truncation`` by score count.
    Documents of equal score are ranked by a jitter keyed by (seed, round, row), never by the order of rows: in round
    1 all scores are equal.  dZ and the order are frozen within a round, so h is the derivative of g at fixed dZ.

    Uses of the rows the grades and the weights: a pair counts with the product of those of its documents, so that
    gradients still sum to 0 in every query; they are taken relative to their mean, so that scaling all of them changes
    nothing.  Uses of the parameters ``metric``, ``gain``, ``sigma``, ``truncation``, ``lambda_normalisation`` and
    ``seed``.

    Raises
    ------
    InvalidParameter
        The metric has no swap deltas here.
    TrainingDataRejected
        No query holds two grades, so there is nothing to learn.
    """

    name: ClassVar[str] = "lambdamart"
    sums_over: ClassVar[str] = QUERIES
    criteria: ClassVar[tuple[str, ...]] = ("rwse", "se")

    def __init__(self, rows: RankedRows, parameters: TrainParameters, options: NoOptions) -> None:  # noqa: ARG002
        grades, starts = rows.grades, rows.starts
        metric = parse_metric(parameters.metric)
        if metric.name != "ndcg":
            raise InvalidParameter(
                f"metric {parameters.metric!r} cannot be optimised by lambdamart; expected ndcg or ndcg@k (any metric may be the stop metric)"
            )
        self._starts, self._parameters = starts, parameters
        gain: Gain = "exp" if parameters.gain == "exp" else "linear"
        sizes = np.diff(starts)
        longest = int(sizes.max(initial=0))
        self._gains = gains(grades, gain)
        self._weights = document_weights(rows)
        self._discounts = discounts(longest + _kernels.LANES)
        ideal = PreparedQueries(grades, starts, Policy(gain=gain)).divisor(metric)
        mixed = np.empty(len(sizes), dtype=np.bool_)
        _kernels.holds_two_grades(grades, starts, mixed)
        if not mixed.any():
            raise TrainingDataRejected(
                "the train split has no query with documents of two different grades, so there is nothing to learn;"
                " check the grades, or the query ids if every query has one document"
            )
        # a query of one grade has no pairs: inverse 0 lets the kernel pass over it without sorting
        self._inverse_ideal = np.where(mixed & (ideal > 0.0), 1.0 / np.where(ideal > 0.0, ideal, 1.0), 0.0)
        self._longest = longest
        work = np.where(mixed, sizes * np.minimum(sizes, parameters.truncation) + 8 * sizes, sizes)
        self._work = np.concatenate(([0], np.cumsum(work)))
        self._order = np.arange(
            len(grades), dtype=np.uint32
        )  # kept from round to round: it is nearly right the next time
        self._workspaces: dict[int, tuple[npt.NDArray[np.uint32], npt.NDArray[np.float64]]] = {}

    def start(self) -> float:
        """Return 0: only differences of scores matter to this loss."""
        return 0.0

    def gradients(
        self,
        step: int,
        scores: npt.NDArray[np.float64],
        g: npt.NDArray[np.float64],
        h: npt.NDArray[np.float64],
        team: Team,
    ) -> None:
        """Write g and h, both (n_rows,); queries are shared out so that every worker has about as many pairs."""
        p = self._parameters
        key = np.uint64(_kernels.jitter(np.uint64(p.seed), step))
        workers = team.size if self._work[-1] >= _LEAST_WORK * team.size else 1
        cuts = np.searchsorted(self._work, self._work[-1] * np.arange(workers + 1) / workers)
        cuts[0], cuts[-1] = 0, len(self._starts) - 1

        def share(worker: int) -> None:
            spare, work = self._workspace(worker)
            _kernels.lambdas(
                scores, self._starts, cuts[worker], cuts[worker + 1], self._gains, self._weights,
                self._discounts, self._inverse_ideal, p.sigma, p.truncation, p.lambda_normalisation, key,
                self._order, spare, work, g, h,
            )  # fmt: skip

        if workers == 1:
            share(0)
        else:
            team.each(share)

    def losses(self, scores: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Not yet."""
        raise NotImplementedError

    def _workspace(self, worker: int) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.float64]]:
        if worker not in self._workspaces:
            self._workspaces[worker] = (
                np.empty(self._longest, np.uint32),
                np.zeros((6, self._longest + _kernels.LANES)),
            )
        return self._workspaces[worker]
