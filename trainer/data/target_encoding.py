"""Ordered target encoding: a column of numbers for a categorical feature of many categories.

The number of a row is the mean target (grade or label) of the rows of its category in *earlier* queries of a random
order.  It is drawn towards the mean of all: ``(sum + smoothing * mean) / (count + smoothing)``.  So no row sees its own
target, or one of its query (ordered target statistics: Prokhorenkova et al., "CatBoost: unbiased boosting with
categorical features", 2018). Rows that are only measured get the mean over all training rows, and so does a document at
prediction.

The column is binned and split like any number, but exists in training only.  In the model a split of it at ``cut`` is a
set of categories of the feature that it comes from::

    value over all training rows:   .1   .2   .4 |cut| .6   .9        prior (missing, unseen): .5
    category:                        a    b    c       d    e         right of the cut: the set is {a, b, c}

A set never holds what is missing or unseen, so where the prior is left of the cut, the set is {d, e} and the children
change places.  ``info[ENCODED]`` of the model has the nodes and bins of these splits, from which a training resumes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import frexp

import numpy as np
import numpy.typing as npt

from rankmill.foundation.errors import TrainingDataRejected
from rankmill.foundation.options import spelled
from rankmill.pipeline.bins.layout import BIN
from rankmill.pipeline.bins.spec import BinSpec, feature_bins
from rankmill.scorer.models.model_file import MAX_CUTS_OF_A_FEATURE
from rankmill.trainer import _kernels
from rankmill.trainer.data.layout import EDGE
from rankmill.trainer.data.rows import RankedRows, TrainingData
from rankmill.trainer.parameters import TrainParameters
from rankmill.trainer.rounds.sampling import order_of_queries

ENCODED = "encoded_splits"  # key of a forest's info: {"nodes": [..], "bins": [..]}
_TARGET_BITS = 62  # of a sum of targets


@dataclass(frozen=True, slots=True)
class EncodedColumn:
    """A column made from categorical feature ``source``, and what each category is worth over all training rows."""

    source: int
    categories: npt.NDArray[np.float32]
    """(k,) codes, ascending."""
    values: npt.NDArray[np.float32]
    """(k,)"""
    prior: np.float32
    edges: npt.NDArray[np.float32]

    def bins_of(self, values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
        """Return the bins (n,) of encoded ``values`` (n,)."""
        return (1 + np.searchsorted(self.edges, values)).astype(BIN)

    def encoded(self, codes: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Return the values (n,) of ``codes`` (n,) over all training rows; the prior where unknown or missing."""
        values: npt.NDArray[np.float32] = np.full(len(codes), self.prior, dtype=EDGE)
        place = np.minimum(np.searchsorted(self.categories, codes), len(self.categories) - 1)
        known = self.categories[place] == codes
        values[known] = self.values[place[known]]
        return values

    def swapped(self, threshold: int) -> bool:
        """Return whether the split after bin ``threshold`` sends the prior left. Then its set holds the right side."""
        return bool(self.prior <= self.edges[threshold - 1])

    def set_of(self, threshold: int) -> npt.NDArray[np.float32]:
        """Return the categories, ascending, on the other side of the split after bin ``threshold`` than the prior."""
        left = self.values <= self.edges[threshold - 1]
        chosen: npt.NDArray[np.float32] = self.categories[~left if self.swapped(threshold) else left]
        return chosen


def with_encoded_columns(
    data: TrainingData, parameters: TrainParameters
) -> tuple[TrainingData, tuple[EncodedColumn, ...]]:
    """Return ``data`` with a column after the features for each of those to encode, and these columns.

    Encoded are the categorical features with more than ``encode_above`` categories whose codes the rows have.

    Raises
    ------
    TrainingDataRejected
        One of them has more categories than a model can hold.
    """
    found = _features_of_many(data, parameters.encode_above) if parameters.encode_above else {}
    if not found:
        return data, ()
    names, columns, of_train = list(found), [], []
    order, smoothing = order_of_queries(data.train.n_queries, parameters.seed), parameters.encoding_smoothing
    for name, (categories, index) in found.items():
        source = list(data.feature_names).index(name)
        column, bins = _encode(source, categories, index, data.train.targets, data.train.starts, order, smoothing)
        columns.append(column)
        of_train.append(bins)

    def measured(rows: RankedRows) -> RankedRows:
        return rows.with_columns(
            [column.bins_of(column.encoded(rows.codes[name])) for name, column in zip(names, columns, strict=True)]
        )

    return replace(
        data,
        train=data.train.with_columns(of_train),
        eval_sets=[(name, measured(rows)) for name, rows in data.eval_sets],
        edges=[*data.edges, *(column.edges for column in columns)],
    ), tuple(columns)


def _features_of_many(
    data: TrainingData, encode_above: int
) -> dict[str, tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]]:
    """Return the categories of each feature to encode, and which of them each row has.

    Categories (k,) are those of the training rows, ascending.

    -1 stands for none.
    """
    found = {}
    for name in data.feature_names:
        codes = data.train.codes.get(name) if name in data.categories else None
        if codes is None:
            continue
        present = np.isfinite(codes)
        categories, inverse = np.unique(codes[present], return_inverse=True)
        if len(categories) > MAX_CUTS_OF_A_FEATURE:
            raise TrainingDataRejected(
                f"feature {name!r} has {len(categories):,} categories, and a model can hold "
                f"{MAX_CUTS_OF_A_FEATURE:,}; make fewer of them, or set {spelled('encode_above')} to 0"
            )
        if len(categories) > encode_above:
            index = np.full(len(codes), -1, dtype=np.int64)
            index[present] = inverse
            found[name] = categories, index
    return found


def features_to_encode(binspec: BinSpec, encode_above: int | None) -> list[str]:
    """Return the categorical features that may have more than ``encode_above`` categories; 0 and None: none."""
    if not encode_above:
        return []
    return [
        feature.name
        for feature in binspec.features
        if feature.categorical and (len(feature.edges) > encode_above or feature.counts[-1] > 0)
    ]


def _encode(
    source: int,
    categories: npt.NDArray[np.float32],
    index: npt.NDArray[np.int64],
    targets: npt.NDArray[np.float64],
    starts: npt.NDArray[np.int64],
    order: npt.NDArray[np.int64],
    smoothing: float,
) -> tuple[EncodedColumn, npt.NDArray[np.uint8]]:
    """Return a column, and the bins of the training rows in it."""
    # targets in whole steps: sums that do not depend on the order of rows
    scale = _scale(targets)
    steps = np.rint(targets * scale).astype(np.int64)
    prior = float(steps.sum()) / scale / len(steps)
    values = np.empty(len(index), dtype=np.float64)
    sums, counts = np.zeros(len(categories), dtype=np.int64), np.zeros(len(categories), dtype=np.int64)
    _kernels.encode_in_order(index, steps, starts, order, scale, prior, smoothing, sums, counts, values)
    whole = ((sums / scale + smoothing * prior) / (counts + smoothing)).astype(EDGE)
    edges = feature_bins("", values.astype(EDGE)).edges
    # a cut has categories on both sides
    edges = edges[(edges >= whole.min(initial=np.inf)) & (edges < whole.max(initial=-np.inf))]
    column = EncodedColumn(source, categories, whole, EDGE(prior), edges)
    return column, column.bins_of(values.astype(EDGE))


def _scale(targets: npt.NDArray[np.float64]) -> float:
    """Return steps per unit, a power of two: no sum of targets in steps overflows."""
    total = float(np.abs(targets).sum())
    return 1.0 if total == 0.0 else float(2.0 ** max(min(frexp((2.0**_TARGET_BITS) / total)[1] - 2, 1000), -1000))
