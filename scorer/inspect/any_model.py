r"""Inspect a model of any kind by its scores alone.

Results are permutation importance, dependence, and why one document is above another.

For models of trees `contributions`, `dependence` and the importance by gains say it exactly, and without documents.

**Permutation** (Breiman 2001, section 10): how much worse a metric gets where the values of a feature are exchanged
among the documents of each query.  It is within queries, since a ranking compares the documents of a query.

**Dependence** (Friedman 2001, section 8.2): the mean score of the documents, each with the feature replaced.

**Why** document A scores more than B: the Shapley values (Shapley 1953) of the game :math:`v(S) = F(A_S, B_{N \setminus
S})`.  That is the score of a document with the values of A in the features S, and those of B in the others.  They add
up to F(A) - F(B).  Only the features in which A and B differ can matter; if they are few, all sets S are tried, else
random orders of features (Castro, Gómez & Tejada 2009).

**Contributions** of a net are these values for a B without any feature (all missing), those of a blend the weighted
sum over its parts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from rankmill.foundation.errors import InputError
from rankmill.foundation.kernels.randoms import random_keys
from rankmill.pipeline.bins.categories import category_code, code_name
from rankmill.scorer.forest.forest import Forest
from rankmill.scorer.inspect.contributions import FeatureDifference, Why
from rankmill.scorer.inspect.dependence import Dependence
from rankmill.scorer.inspect.paths import OTHER
from rankmill.scorer.inspect.shap import ShapValues, centred, numbered_queries, shap_values
from rankmill.scorer.metrics import Metric
from rankmill.scorer.metrics.per_query import PreparedQueries
from rankmill.scorer.models.loading import Blend, parts_of, predictor_of
from rankmill.scorer.models.model import Model, Predictor

ALL_SETS = 10  # features: up to so many, all their sets are tried
ORDERS = 400  # of features, half of them the reverse of the others
ORDERS_OF_A_PART = 64  # where every document is explained
_BATCH = 1 << 22  # values of documents that are scored at once

Values = npt.NDArray[np.float32]
_ScoresOf = Callable[[npt.NDArray[np.bool_]], npt.NDArray[np.float64]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PermutationLoss:
    """How much worse the metric gets when a feature is permuted.

    These are the mean over ``repeats``, and their standard deviation.
    """

    feature: str
    loss: float
    deviation: float


def scores_of_documents(predictor: Predictor, values: Values, n_threads: int = 1) -> npt.NDArray[np.float64]:
    """Return the scores (n,) of documents with the features that the model uses, (n, n_used)."""
    return predictor.scores(values, columns=np.arange(len(predictor.features)), n_threads=n_threads)


def permutation_losses(
    predictor: Predictor,
    values: Values,
    queries: PreparedQueries,
    metric: Metric,
    *,
    repeats: int = 5,
    seed: int = 0,
    n_threads: int = 1,
) -> tuple[float, list[PermutationLoss]]:
    """Return the metric, and its loss by feature, the largest first.

    Parameters
    ----------
    predictor
        The model.
    values
        (n, n_used) the features that it uses, NaN if missing.
    queries, metric
        The grades of these documents, and what to measure.
    repeats
        Permutations of each feature; they depend on ``seed``, the name of the feature and the rows.
    """
    sizes = np.diff(queries.starts)
    of_query = np.repeat(np.arange(len(sizes)), sizes)
    sign = 1.0 if metric.higher_is_better else -1.0

    def measured(table: Values) -> float:
        return queries.means([metric], scores_of_documents(predictor, table, n_threads))[metric]

    base, moved, found = measured(values), values.copy(), []
    for slot, name in enumerate(predictor.feature_names):
        losses = []
        for repeat in range(repeats):
            keys = random_keys(seed, _number_of(name), repeat, np.arange(len(values)))
            moved[:, slot] = values[np.lexsort((keys, of_query)), slot]
            losses.append(sign * (base - measured(moved)))
        moved[:, slot] = values[:, slot]
        found.append(PermutationLoss(feature=name, loss=float(np.mean(losses)), deviation=float(np.std(losses))))
    return base, sorted(found, key=lambda each: -each.loss)


def dependence_on(
    predictor: Predictor, values: Values, features: Sequence[str], most: int, n_threads: int = 1
) -> Dependence:
    """Return the mean score of documents, each with one feature or two replaced by each of ``most`` values at most.

    These are quantiles of the documents, the frequent categories of a categorical feature, and missing, always the
    first.

    Raises
    ------
    InputError
        A feature is unknown or not used, or there are none or more than two or one twice.
    """
    if not 1 <= len(set(features)) == len(features) <= 2:
        raise InputError(f"expected one feature or two different ones, got {', '.join(features) or 'none'}")
    names, model = predictor.feature_names, predictor.model
    for name in features:
        if name not in model.feature_names:
            raise InputError.unknown("feature", name, model.feature_names)
        if name not in names:
            raise InputError(f"the model does not use the feature {name!r}")
    slots = [names.index(name) for name in features]
    axes = [_points(values[:, slot], most, categorical=names[slot] in model.categories) for slot in slots]
    moved, means = values.copy(), []
    grid = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, len(axes))
    for point in grid:
        moved[:, slots] = point
        means.append(float(scores_of_documents(predictor, moved, n_threads).mean()))
    return Dependence(
        features=tuple(features),
        over="documents",
        n_documents=len(values),
        points=tuple(axes),
        outputs=np.array(means).reshape(1, *map(len, axes)),
        categories={
            name: tuple(names_of(model, name, axis))
            for name, axis in zip(features, axes, strict=True)
            if name in model.categories
        }
        or None,
    )


def _points(values: Values, most: int, *, categorical: bool) -> Values:
    """Return missing, then at most ``most`` values of a feature (0: all), ascending."""
    known, counts = np.unique(values[~np.isnan(values)], return_counts=True)
    if most and len(known) > most and categorical:
        known = np.sort(known[np.argsort(-counts, kind="stable")[:most]])
    elif most and len(known) > most:
        ranks = np.linspace(0, counts.sum() - 1, most)
        known = np.unique(known[np.searchsorted(np.cumsum(counts), ranks, side="right")])
    return np.concatenate([[np.nan], known]).astype(np.float32)


def names_of(model: Model, feature: str, codes: Values) -> list[str]:
    """Return the text of each of ``codes`` of a categorical feature.

    It is "missing", a category, or "other" for an unknown one.
    """
    texts = {category_code(text): text for text in model.categories[feature]}
    return ["missing" if math.isnan(code) else code_name(code, texts) or OTHER for code in codes.tolist()]


def why_by_score(predictor: Predictor, above: Values, below: Values, seed: int = 0) -> Why:
    """Explain why the document ``above`` has another score than ``below`` by Shapley values of their difference.

    ``above`` and ``below`` (n_used,) are the features that the model uses.
    """
    differ, shapley = np.flatnonzero(~((above == below) | (np.isnan(above) & np.isnan(below)))), np.zeros(len(above))
    shapley[differ] = _shapley(predictor, above[np.newaxis], below, differ, seed, ORDERS)[0]
    scores = scores_of_documents(predictor, np.stack([above, below])).tolist()
    names, model = predictor.feature_names, predictor.model
    return Why(
        scores=(scores[0], scores[1]),
        output=0,
        outputs=(scores[0], scores[1]),
        differences=tuple(
            FeatureDifference(
                feature=names[slot],
                values=(float(above[slot]), float(below[slot])),
                difference=float(shapley[slot]),
                categories=_two(names_of(model, names[slot], np.array([above[slot], below[slot]])))
                if names[slot] in model.categories
                else None,
            )
            for slot in np.argsort(-np.abs(shapley), kind="stable").tolist()
        ),
    )


def contributions_of(
    model: Model, values: Values, *, qid: npt.ArrayLike | None = None, n_rounds: int | None = None, n_threads: int = 1
) -> ShapValues:
    """Return what each feature adds to the scores of ``model``.

    These are SHAP values of trees, Shapley values over missing features of nets, and their weighted sums of blends.
    The values of a document and its base add up to its score.

    Parameters
    ----------
    model, values, qid, n_rounds, n_threads
        As `rankmill.scorer.inspect.shap.shap_values`; ``values`` are (n, n_features of the model).

    Raises
    ------
    InputError
        As `shap_values`; or the model is no forest and ``n_rounds`` is given, or a part of a blend has several outputs.
    """
    if isinstance(model, Forest):
        return shap_values(model, values, qid=qid, n_rounds=n_rounds, n_threads=n_threads)
    if n_rounds is not None:
        predictor_of(model, n_rounds=n_rounds)  # refuses it
    weights = model.weights.tolist() if isinstance(model, Blend) else [1.0]
    total = np.zeros((len(values), model.n_features))
    expected = model.base_score if isinstance(model, Blend) else 0.0
    for part, weight in zip(parts_of(model), weights, strict=True):
        own = [model.feature_names.index(name) for name in part.feature_names]
        found, base = _of_part(part, values[:, own], n_threads)
        total[:, own] += weight * found
        expected += weight * base
    queries = numbered_queries(qid, len(values))
    return ShapValues(*centred(total[:, np.newaxis], np.array([expected]), queries))


def _of_part(part: Model, values: Values, n_threads: int) -> tuple[npt.NDArray[np.float64], float]:
    """Return the contributions (n, n_features) to the scores of a part of a model, and their base."""
    if isinstance(part, Forest):
        if part.link != "identity" or part.n_outputs > 1:
            raise InputError("contributions: a part of this blend has several outputs, from which its score is made")
        found = shap_values(part, values, n_threads=n_threads)
        return found.values[:, 0], float(found.base[0, 0]) if len(values) else 0.0
    predictor = predictor_of(part)
    used, total = list(predictor.features), np.zeros(values.shape)
    nothing = np.full(len(used), np.nan, dtype=np.float32)
    every, own = np.arange(len(used)), np.asarray(values[:, used], dtype=np.float32)
    total[:, used] = _shapley(predictor, own, nothing, every, 0, ORDERS_OF_A_PART, n_threads)
    return total, float(scores_of_documents(predictor, nothing[np.newaxis])[0])


def _two(texts: list[str]) -> tuple[str, str]:
    return texts[0], texts[1]


def _shapley(
    predictor: Predictor,
    above: Values,
    below: Values,
    exchanged: npt.NDArray[np.intp],
    seed: int,
    n_orders: int,
    n_threads: int = 1,
) -> npt.NDArray[np.float64]:
    """Return what each of the d features ``exchanged`` adds to the scores (n, d) when ``below`` becomes ``above``.

    ``above`` (n, n_used) and ``below`` (n_used,) have the same values of the other features.  The result of a document
    does not depend on the others.  Of few features all sets are tried, of more ``n_orders`` orders.
    """
    d, width = len(exchanged), len(below)
    n_sets = 1 << d if d <= ALL_SETS else min(n_orders, max(1, _BATCH // ((d + 1) * width))) * (d + 1)
    at_once, found = max(1, _BATCH // (n_sets * max(width, 1))), np.empty((len(above), d))
    for first in range(0, len(above), at_once):
        some = above[first : first + at_once]

        def scores_of(sets: npt.NDArray[np.bool_], some: Values = some) -> npt.NDArray[np.float64]:
            """Return the scores (n, n_sets) of documents that have the values of ``some`` in ``sets`` (n_sets, d)."""
            values = np.tile(below, (len(some), len(sets), 1))
            values[:, :, exchanged] = np.where(sets, some[:, np.newaxis, exchanged], below[exchanged])
            return scores_of_documents(predictor, values.reshape(-1, width), n_threads).reshape(len(some), len(sets))

        of_some = _of_all_sets(scores_of, d) if d <= ALL_SETS else _of_orders(scores_of, d, n_sets, seed, n_orders)
        found[first : first + at_once] = of_some
    return found


def _of_all_sets(scores_of: _ScoresOf, d: int) -> npt.NDArray[np.float64]:
    """Return the Shapley values by their definition: a weighted mean of what a feature adds to each set of others."""
    sets = np.arange(1 << d)
    member = (sets[:, np.newaxis] >> np.arange(d) & 1).astype(np.bool_)
    scores, sizes = scores_of(member), member.sum(axis=1)
    weight = np.array([1.0 / (d * math.comb(d - 1, size)) for size in range(d)])
    found = np.empty((len(scores), d))
    for i in range(d):
        without = sets[~member[:, i]]
        added = scores.take(without | 1 << i, axis=1) - scores.take(without, axis=1)
        found[:, i] = (added * weight[sizes[without]]).sum(axis=1)
    return found


def _of_orders(scores_of: _ScoresOf, d: int, n_sets: int, seed: int, n_orders: int) -> npt.NDArray[np.float64]:
    """Return the mean of what each feature adds when features are exchanged one after the other.

    The mean is over ``n_orders`` orders, of which about ``n_sets`` sets are scored at once.
    """
    half = [np.argsort(random_keys(seed, number, 0, np.arange(d)), kind="stable") for number in range(n_orders // 2)]
    places = np.argsort([*half, *(order[::-1] for order in half)], axis=1)  # (orders, d): the step of each feature
    many, total = n_sets // (d + 1), np.zeros(())
    for first in range(0, len(places), many):
        some = places[first : first + many]
        sets = some[:, np.newaxis] < np.arange(d + 1)[:, np.newaxis]  # (orders, steps, d)
        steps = np.diff(scores_of(sets.reshape(-1, d)).reshape(-1, len(some), d + 1))
        total = total + np.take_along_axis(steps, some[np.newaxis], axis=2).sum(axis=1)
    return total / len(places)


def _number_of(name: str) -> int:
    """Return a number of 63 bits that stands for the name of a feature in random draws."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little") >> 1
