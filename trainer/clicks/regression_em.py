"""Regression EM on a click log (Wang et al., WSDM 2018): examination by position, relevance by trees over the features of documents.

It also fits logs in which no document changes its rank, as long as documents of different ranks have features alike.  The features must
not tell the rank by themselves: what the logging ranker sorts by can take the place of position bias, so leave such scores out.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from rankmill.foundation.errors import DataRejected, InputError, TrainingDataRejected
from rankmill.pipeline.clicks.models.counts import ClickCounts, count_clicks, deepest_rank, summed
from rankmill.pipeline.clicks.models.options import DEEPEST
from rankmill.pipeline.clicks.propensities import Propensities
from rankmill.pipeline.clicks.result_lists import ClickLog
from rankmill.pipeline.dataset import Dataset
from rankmill.trainer.boosting import boost
from rankmill.trainer.clicks.position_bias import POSITION_BIAS
from rankmill.trainer.layout import BlockedBins
from rankmill.trainer.parameters import TrainParameters
from rankmill.trainer.rows import RankedRows, TrainingData
from rankmill.trainer.training_options import DEFAULT_OPTIONS, TrainingOptions

MODEL = "regression-em"  # its name in files
FIT = TrainParameters(
    preset="defaults-1", objective="position_based", n_rounds=200, max_leaves=16, min_rows_in_leaf=50, early_stopping_rounds=0
)  # fmt: skip


def fit_regression_em(
    log: ClickLog,
    dataset: Dataset,
    ranks: int | None = None,
    parameters: TrainParameters = FIT,
    options: TrainingOptions = DEFAULT_OPTIONS,
) -> Propensities:
    """Return the examination probabilities of ``log`` down to rank ``ranks``, by default the deepest, with features from ``dataset``.

    Documents that the dataset lacks are left out.  Memory: the bins of the dataset, and its ids; and for each document and rank at which
    it was shown its bins and about 100 bytes.

    Raises
    ------
    InputError
        The log is empty, or the dataset has no bins.
    DataRejected
        No document of the log is in the dataset.
    TrainingDataRejected
        The first rank has no click.
    """
    ranks = min(ranks or DEEPEST, deepest_rank(log))
    if ranks == 0:
        raise InputError("the log has no result list")
    (counts,) = count_clicks(log, ranks)
    spec = dataset.binspec()
    bins = BlockedBins.from_batches(dataset.bin_batches(None, spec.digest), dataset.manifest.rows, spec.n_bins)
    edges = [feature.edges for feature in spec.features]
    categories = {name: list(dataset.vocabulary.texts.get(name, {})) for name in spec.categories}
    return regression_em(
        counts, rows_in(dataset, log), bins, edges, dataset.feature_names, parameters, options, categories=categories
    )


def regression_em(
    counts: ClickCounts,
    row_of: npt.NDArray[np.int64],
    bins: BlockedBins,
    edges: list[npt.NDArray[np.float32]],
    feature_names: tuple[str, ...],
    parameters: TrainParameters = FIT,
    options: TrainingOptions = DEFAULT_OPTIONS,
    *,
    categories: dict[str, list[str]] | None = None,
) -> Propensities:
    """Return the examination probabilities of ``counts``.

    Parameters
    ----------
    counts
        Impressions and clicks by document and rank.
    row_of
        (documents,) the row of ``bins`` of each document of ``counts``; -1: it has none, and is left out.
    bins, edges, feature_names, categories
        The features: as in :class:`TrainingData`.
    parameters, options
        Of the training, whose objective is ``position_based``.

    Raises
    ------
    DataRejected, TrainingDataRejected
        As :func:`fit_regression_em`.
    """
    used = (row_of[counts.document] >= 0) & (counts.shown > 0.0)
    if not used.any():
        raise DataRejected(
            "no document of the log is in the dataset; check that both have the same ids of queries and documents"
        )
    key = counts.document[used] * (counts.ranks + 1) + counts.rank[used]
    cell, place = np.unique(key, return_inverse=True)
    shown, clicked = (summed(place, values[used], len(cell)) for values in (counts.shown, counts.clicked))
    document, rank = cell // (counts.ranks + 1), (cell % (counts.ranks + 1)).astype(np.int32)
    if int(rank.min()) != 1:
        raise TrainingDataRejected(
            "regression EM: no document of the dataset was shown at rank 1, which others are compared with"
        )
    rows = RankedRows(
        grades=np.zeros(len(cell), dtype=np.int32),
        starts=np.concatenate(([0], np.flatnonzero(np.diff(document)) + 1, [len(cell)])).astype(np.int64),
        bins=bins.of_rows(row_of[document]),
        weights=shown,
        labels=clicked / shown,
        positions=rank,
    )
    data = TrainingData(train=rows, edges=edges, feature_names=feature_names, max_grade=1, categories=categories or {})
    learnt: Any = boost(data, parameters, options).forest.info[POSITION_BIAS]
    theta = np.full(counts.ranks, np.nan)
    theta[np.array(learnt["position"]) - 1] = learnt["examination"]
    known = np.flatnonzero(~np.isnan(theta))
    theta = np.interp(np.arange(counts.ranks), known, theta[known])  # of ranks at which nothing was shown
    return Propensities(model=MODEL, examination=tuple(theta.tolist()))


def rows_in(dataset: Dataset, log: ClickLog) -> npt.NDArray[np.int64]:
    """Return the row in ``dataset`` (all splits, canonical order) of each document of ``log``, (documents,); -1: there is none."""
    import polars as pl

    ids = pl.from_arrow(dataset.rows(None, ["qid", "doc_id"]))
    assert isinstance(ids, pl.DataFrame)  # noqa: S101 - of a table
    ids = ids.with_row_index("row")
    found = [np.empty(0, dtype=np.int64)]
    for block in log.blocks():
        sizes = np.diff(block.document_start)
        queries = pl.Series("qid", block.queries).cast(pl.String)
        wanted = pl.DataFrame(
            {
                "qid": queries.gather(np.repeat(np.arange(len(sizes)), sizes)),
                "doc_id": pl.Series(block.documents).cast(pl.String),
            }
        )
        joined = wanted.join(ids, on=["qid", "doc_id"], how="left", maintain_order="left")
        found.append(joined["row"].cast(pl.Int64).fill_null(-1).to_numpy())
    return np.concatenate(found)
