"""Weigh clicks by how unlikely users were to see the documents: inverse propensities.

With the examination theta_k of rank k (``Propensities``, a file of ``clicks fit``), bounded below by tau:

losses of pairs
    A pair of a clicked document at k and another is weighted by 1 / theta_k (Joachims, Swaminathan & Schnabel, WSDM
    2017; for pairs Hu et al. 2019).  Self-normalised: relative to the mean of the clicked documents of the list, so
    that lists count alike; most lists have one click, so little of the correction is left.  ``lambda_normalisation`` is
    off, since it would do much the same.
``l2`` and ``query_rmse``
    The label of a document is (c - beta_k) / theta_k, whose expectation is its relevance: beta_k is the probability of
    a click without relevance, if the file has it (affine correction of trust bias; Vardasbi, Oosterhuis & de Rijke,
    CIKM 2020).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from rankmill.foundation.errors import InvalidParameter, TrainingDataRejected
from rankmill.foundation.options import spelled
from rankmill.trainer.clicks.propensities_given import EXAMINATION, TRUST
from rankmill.trainer.data.rows import RankedRows
from rankmill.trainer.objectives.pairwise.pair_loss import PairObjective
from rankmill.trainer.objectives.protocol import Objective
from rankmill.trainer.parameters import TrainParameters

WITH_LABELS = ("l2", "query_rmse")  # their minimum is the mean of the labels, which is what the correction keeps


def with_propensities(kind: type[Objective], rows: RankedRows, parameters: TrainParameters) -> RankedRows:
    """Return ``rows`` with the weights or labels that correct a loss of this kind by ``parameters.propensities``.

    Raises
    ------
    InvalidParameter
        The loss cannot be corrected so.
    TrainingDataRejected
        There are no positions, grades other than 0 and 1, or labels.
    """
    name, given = spelled("propensities"), parameters.propensities
    if rows.positions is None:
        raise TrainingDataRejected(
            f"{name}: the position at which each document was shown is needed; add a column 'position' to the data "
            "(in Python: position= of Ranker.fit)"
        )
    if rows.grades.max(initial=0) > 1:
        raise TrainingDataRejected(f"{name}: expected the grades 1 (clicked) and 0, found {int(rows.grades.max())}")
    clicked = rows.grades > 0
    examined = np.maximum(_at(given[EXAMINATION], rows.positions), parameters.propensity_clip)
    if issubclass(kind, PairObjective):
        if TRUST in given:
            raise InvalidParameter(
                f"{name}: {kind.name} weighs pairs, which does not correct trust; use {' or '.join(WITH_LABELS)}, or "
                "a click model without it"
            )
        if rows.pairs is not None:
            raise InvalidParameter(f"{name} weigh the pairs of clicks; set {spelled('learn_from')} to grades")
        weights = np.where(clicked, 1.0 / examined, 1.0)
        if parameters.self_normalise:
            lists = np.repeat(np.arange(rows.n_queries), np.diff(rows.starts))
            totals = np.bincount(lists, np.where(clicked, weights, 0.0), rows.n_queries)
            clicks = np.bincount(lists, clicked, rows.n_queries)
            mean = np.where(clicks > 0, totals, 1.0) / np.maximum(clicks, 1)
            weights = np.where(clicked, weights / mean[lists], 1.0)
        return replace(rows, weights=weights if rows.weights is None else weights * rows.weights)
    if kind.name not in WITH_LABELS:
        raise InvalidParameter(
            f"{name}: {kind.name} has no pairs to weigh, and its minimum is not the mean of its labels; use "
            f"lambdamart, ranknet, {' or '.join(WITH_LABELS)}"
        )
    if parameters.self_normalise:
        raise InvalidParameter(
            f"{spelled('self_normalise')} is for losses of pairs, which {kind.name} is not; leave it out"
        )
    if rows.labels is not None:
        raise TrainingDataRejected(f"{name} make labels of clicks, but the data has labels; leave out one of the two")
    trust = _at(given[TRUST], rows.positions) if TRUST in given else 0.0
    return replace(rows, labels=(clicked - trust) / examined)


def _at(by_rank: list[float], positions: Any) -> Any:
    """Return the value of each position; below the last rank that of the last."""
    return np.array(by_rank)[np.minimum(positions, len(by_rank)) - 1]
