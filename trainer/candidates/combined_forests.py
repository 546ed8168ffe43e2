"""Combine forests: new trees on top of a base model, the average of several forests, and weighted sums of any models.

**Base model.**  Its scores are the offsets of the training. The result holds its trees, followed by the new ones.  This
is model adaptation (Burges 2010): a model of one market, or of much data, is corrected by trees for another.  The base
model is not changed, so the data must have every feature that it uses.

**Average.**  With k forests ``score(x) = mean of the k scores``: base scores and tree weights are divided by k, and the
trees of all forests are joined.  Each tree's term is rounded once more, and terms are added in one chain instead of k
chains.  So the score and the mean differ by at most ``(T + k + 3) * 2^-52 * (sum of |terms|) / k``, T trees in all;
some 1e-13 in practice.

**Merged.**  ``score(x) = w_1 score_1(x) + w_2 score_2(x) + ..``, of models that may differ in features, objective and
data (CatBoost's ``sum_models``).  The error is bounded in the same way.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from math import fsum, gcd
from typing import Any

import numpy as np
import numpy.typing as npt

from rankmill.foundation.errors import InvalidParameter
from rankmill.foundation.records import JSON
from rankmill.scorer.forest.forest import COVER, Forest, NodeSets, compact_splits, used_names
from rankmill.scorer.forest.predict import ForestPredictor
from rankmill.scorer.models.model import DATASETS_OF_BASE, Model, check_bound, check_kinds
from rankmill.scorer.models.model_file import MAX_SCORE
from rankmill.trainer.data.layout import EDGE
from rankmill.trainer.data.target_encoding import ENCODED
from rankmill.trainer.rounds.resuming import MERGED, check_whole

SHA256, TREES, START, TREES_A_ROUND = "base_model", "base_trees", "start_after_base", "trees_a_round_after_base"
_OF_BASE = (SHA256, TREES, START, TREES_A_ROUND)
_OF_NODES = ("node_missing_left", "node_left", "node_right", "node_value", "node_gain", "node_rows")


class BaseModel:
    """A forest to start from.

    Parameters
    ----------
    forest
        Of one output, with any objective and number of rounds.
    feature_names
        Features of the data, in their order.
    monotone
        Direction by feature name that the sum of both models must keep: 1: scores never fall, -1: they never rise.
    categorical
        The categorical features of the data.

    Raises
    ------
    InvalidParameter
        The data lack a feature of the forest, or only one of the two has it as categorical; the forest has several
        outputs, or one of its trees violates ``monotone``.
    """

    def __init__(
        self,
        forest: Forest,
        feature_names: Sequence[str],
        monotone: Mapping[str, int] | None = None,
        categorical: Collection[str] = (),
    ) -> None:
        if forest.link != "identity" or forest.n_outputs != 1:
            raise InvalidParameter(
                f"the base model has {forest.n_outputs} outputs; only a model with one output can be a base model"
            )
        self.forest, self.feature_names = forest, tuple(feature_names)
        self._predictor = ForestPredictor(forest)
        asked = self._predictor.feature_names
        lacking = [name for name in asked if name not in self.feature_names]
        if lacking:
            raise InvalidParameter(
                f"the base model asks for the feature {lacking[0]!r}, which the data lack; add the feature, or pass "
                "the scores of the base model as offsets (they are then not part of the new model)"
            )
        check_kinds(forest, self.feature_names, categorical, InvalidParameter, model="the base model")
        against = [name for name, direction in (monotone or {}).items() if _moves_against(forest, name, direction)]
        if against:
            raise InvalidParameter(
                f"monotone: the base model violates the constraint on {against[0]!r}, and new trees cannot correct "
                "that; train the base model with the same constraint, or remove the feature from monotone"
            )
        self.needed = asked or self.feature_names[:1]  # rows without a column would have no number

    def scores(self, batches: Iterable[npt.NDArray[np.float32]], n_threads: int = 1) -> npt.NDArray[np.float64]:
        """Return the scores (n,) of ``batches`` (m, len(``needed``)), whose columns are the features ``needed``."""
        columns = np.arange(len(self._predictor.features))
        found = [self._predictor.scores(batch, columns=columns, n_threads=n_threads) for batch in batches]
        return np.concatenate([np.empty(0), *found])

    def offsets(
        self,
        given: npt.NDArray[np.float64] | None,
        batches: Iterable[npt.NDArray[np.float32]],
        n_threads: int = 1,
    ) -> npt.NDArray[np.float64]:
        """Return the scores of the base model plus the ``given`` offsets."""
        scores = self.scores(batches, n_threads)
        return scores if given is None else scores + given

    def joined(self, after: Forest) -> Forest:
        """Return one forest whose scores are those of the base model plus those of ``after``.

        ``after`` is a forest over the data's features.
        """
        base = self.forest
        place = np.array([self._place(name) for name in base.feature_names] + [-1], dtype=np.int32)  # -1 stays -1
        return replace(
            after,
            tree_weights=np.concatenate([base.tree_weights, after.tree_weights]),
            base_score=base.base_score + after.base_score,
            info={
                **after.info,
                **({COVER: base.info[COVER]} if COVER in base.info else {}),
                **({DATASETS_OF_BASE: datasets} if (datasets := datasets_of(base)) else {}),
                SHA256: base.sha256,
                TREES: base.n_trees,
                START: after.base_score,
                TREES_A_ROUND: after.trees_a_round,
            },
            **_one_after_another([base, after], [place[base.node_feature], after.node_feature], after.feature_names),
        )

    def _place(self, name: str) -> int:
        return self.feature_names.index(name) if name in self.feature_names else -1


def datasets_of(base: Model) -> list[str]:
    """Return the digests of the datasets that a model and its base models were trained on."""
    own = base.info.get("dataset_digest")
    below = base.info.get(DATASETS_OF_BASE, [])
    return [str(digest) for digest in ([own] if own else []) + (below if isinstance(below, list) else [])]


def _moves_against(forest: Forest, name: str, direction: int) -> bool:
    """Return whether a split on the feature has a leaf on one side that is in the wrong order with a leaf on the other.

    If no split has, the sum of the trees is monotone.  Two documents that differ only in this feature separate at one
    split of each tree at most, and reach leaves in the right order.
    """
    if name not in forest.feature_names or (feature := forest.feature_names.index(name)) not in forest.used_features:
        return False
    low, high = forest.node_value.astype(np.float64), forest.node_value.astype(np.float64)
    for tree, start in enumerate(forest.tree_starts[:-1].tolist()):
        sign = direction * forest.tree_weights[tree]
        for node in range(int(forest.tree_starts[tree + 1]) - 1, start - 1, -1):  # children come after their parents
            split_on = forest.node_feature[node]
            if split_on >= 0:
                left, right = start + forest.node_left[node], start + forest.node_right[node]
                low[node], high[node] = min(low[left], low[right]), max(high[left], high[right])
                if split_on == feature and (
                    (sign > 0 and high[left] > low[right]) or (sign < 0 and low[left] < high[right])
                ):
                    return True
    return False


def after_base(forest: Forest, base: BaseModel | None) -> Forest:
    """Return the trees that were trained on top of ``base``, to resume them: the reverse of :meth:`BaseModel.joined`.

    Raises
    ------
    InvalidParameter
        ``forest`` was trained on top of another base model than ``base``, or only one of the two has a base model.
    """
    check_whole(forest)
    own, wanted = forest.info.get(SHA256), None if base is None else base.forest.sha256
    if own != wanted:
        was, now = (str(digest)[:12] if digest else "none" for digest in (own, wanted))
        raise InvalidParameter(f"resume: the model was trained on top of the base model {was}, now it is {now}")
    if base is None:
        return forest
    first = int(str(forest.info[TREES]))
    node = int(forest.tree_starts[first])
    feature = forest.node_feature[node:]
    splits = compact_splits(feature, forest.thresholds[node:], forest.n_features, forest.node_sets.from_node(node))
    own_facts = {
        name: value
        for name, value in forest.info.items()
        if name not in {TREES, START, TREES_A_ROUND, COVER, DATASETS_OF_BASE}
    }
    return replace(
        forest,
        tree_starts=forest.tree_starts[first:] - node,
        node_feature=feature,
        categories=used_names(forest.categories, forest.feature_names, splits),
        tree_weights=forest.tree_weights[first:],
        base_score=float(str(forest.info[START])),
        trees_a_round=int(str(forest.info[TREES_A_ROUND])),
        info=own_facts,
        **splits,
        **{name: getattr(forest, name)[node:] for name in _OF_NODES},
    )


OF_ONE = ("best_round", "rounds_trained", "train", "valid", "refit")  # facts of a single training


def average(forests: Sequence[Forest], info: Mapping[str, JSON] | None = None) -> Forest:
    """Return the forest whose scores are the means of those of ``forests``.

    Parameters
    ----------
    forests
        Of one output each, over the same features; parameters and objective are taken from the first.
    info
        Facts to add to those that all forests share.

    Raises
    ------
    InvalidParameter
        There is no forest, one has a link (a mean of the inputs of a link is meaningless), or features differ.
    """
    if not forests:
        raise InvalidParameter("an average needs at least one forest")
    first, k = forests[0], len(forests)
    for forest in forests:
        if forest.link != "identity" or forest.n_outputs != 1:
            raise InvalidParameter(f"only models with link identity can be averaged; one model has link {forest.link}")
        if forest.feature_names != first.feature_names:
            raise InvalidParameter("forests of different features cannot be averaged")
    alike = {
        name: value
        for name, value in first.info.items()
        if name not in OF_ONE and all(forest.info.get(name) == value for forest in forests)
    }
    return replace(
        first,
        tree_weights=np.concatenate([forest.tree_weights for forest in forests]) / k,
        base_score=fsum(forest.base_score for forest in forests) / k,
        info={**alike, **(info or {})},
        **_one_after_another(forests, [forest.node_feature for forest in forests], first.feature_names),
    )


def merged(forests: Sequence[Forest], weights: Sequence[float] | None = None, *, mean: bool = True) -> Forest:
    """Return the forest whose scores are the weighted mean, or sum, of those of ``forests``.

    Parameters
    ----------
    forests
        Two or more, of one output and without a link.  The features of the result are those of all, in the order in
        which they come.
    weights
        A finite number other than 0 for each; None: all 1.
    mean
        Divide by the sum of the weights, which must then be above 0.

    Raises
    ------
    InvalidParameter
        Fewer than two forests, another number of weights, a forest with a link, or forests that read data differently:
        values that are absent, numbers of features, or a feature that is categorical in one and a number in another.
    """
    factors = _factors(len(forests), weights, mean=mean)
    bounds = [max(forest.score_bound, float(np.abs(forest.tree_weights).max(initial=0.0))) for forest in forests]
    check_bound(sum(abs(w) * bound for w, bound in zip(factors, bounds, strict=True)))
    first = forests[0]
    for number, forest in enumerate(forests, 1):
        if forest.link != "identity" or forest.n_outputs != 1:
            raise InvalidParameter(
                f"only models with link identity can be merged; model {number} has link {forest.link}, "
                f"{forest.n_outputs} outputs"
            )
    check_read_alike(forests)
    names = tuple(dict.fromkeys(name for forest in forests for name in forest.feature_names))
    place = {name: i for i, name in enumerate(names)}
    numbers = [np.array([place[name] for name in forest.feature_names] + [-1], dtype=np.int32) for forest in forests]
    parts = [
        replace(forest, **_over(forest, number[forest.node_feature], names))
        for forest, number in zip(forests, numbers, strict=True)
    ]
    datasets = list(dict.fromkeys(digest for forest in forests for digest in datasets_of(forest)))
    covers = [forest.info[COVER] for forest in forests if COVER in forest.info]
    same = all(forest.parameters == first.parameters for forest in forests)
    return replace(
        first,
        feature_names=names,
        tree_weights=np.concatenate([w * forest.tree_weights for w, forest in zip(factors, forests, strict=True)]),
        base_score=fsum(w * forest.base_score for w, forest in zip(factors, forests, strict=True)),
        objective=first.objective if all(forest.objective == first.objective for forest in forests) else MERGED,
        parameters=first.parameters if same else {},
        info={
            **facts_alike(forests),
            **({COVER: covers[0]} if covers else {}),
            **({DATASETS_OF_BASE: datasets} if datasets else {}),
            MERGED: [{"model": forest.sha256, "weight": w} for w, forest in zip(factors, forests, strict=True)],
        },
        **_one_after_another(parts, [part.node_feature for part in parts], names),
    )


def check_read_alike(models: Sequence[Model]) -> None:
    """Raise InvalidParameter if a model treats absent values or feature numbers differently from the first."""
    for number, model in enumerate(models, 1):
        for name in ("absent", "index_base"):
            values = [each.info[name] for each in (models[0], model) if name in each.info]
            if values[1:] and values[0] != values[1]:
                raise InvalidParameter(
                    f"the models read data differently: {name} is {values[0]!r} in model 1 and {values[1]!r} in model "
                    f"{number}"
                )


def facts_alike(models: Sequence[Model]) -> dict[str, JSON]:
    """Return the facts of training that all ``models`` share, without those that are about one training."""
    own = {*OF_ONE, *_OF_BASE, DATASETS_OF_BASE, ENCODED, "seeds", "best_rounds"}
    shared = [(name, value) for name, value in models[0].info.items() if name not in own]
    return {name: value for name, value in shared if all(model.info.get(name) == value for model in models)}


def _factors(n: int, weights: Sequence[float] | None, *, mean: bool) -> list[float]:
    """Return what the scores of each of ``n`` models are multiplied by; InvalidParameter if that is not possible."""
    if n < 2:
        raise InvalidParameter(f"expected two models or more to merge, found {n}")
    found = [1.0] * n if weights is None else [float(weight) for weight in weights]
    if len(found) != n:
        raise InvalidParameter(f"weights: expected {n}, one for each model, found {len(found)}")
    if not all(0.0 < abs(weight) <= MAX_SCORE for weight in found):
        raise InvalidParameter(
            f"weights must be numbers other than 0, at most {MAX_SCORE:g}, got {', '.join(f'{w:g}' for w in found)}"
        )
    total = fsum(found) if mean else 1.0
    if total <= 0.0:
        raise InvalidParameter(f"weights of a mean must have a sum above 0, got {total:g}")
    return [weight / total for weight in found]


def _over(forest: Forest, feature: npt.NDArray[np.int32], names: Sequence[str]) -> dict[str, Any]:
    """Return the fields of ``forest`` over the features ``names``. ``feature`` has the feature numbers of its nodes."""
    splits = compact_splits(feature, forest.thresholds, len(names), forest.node_sets)
    return {"feature_names": tuple(names), "node_feature": feature, "categories": forest.categories, **splits}


def _one_after_another(
    forests: Sequence[Forest], features: Sequence[npt.NDArray[np.int32]], feature_names: Sequence[str]
) -> dict[str, Any]:
    """Return the fields of one forest with the trees of all, over ``feature_names``.

    ``features`` are their renumbered ``node_feature``.

    Raises
    ------
    InvalidParameter
        A feature is categorical in one of the forests, but splits at thresholds in another.
    """
    feature = np.concatenate(features)
    categories: dict[str, list[str]] = {}
    for forest in forests:
        for name, texts in forest.categories.items():
            categories[name] = [*categories.get(name, []), *texts]
    for forest in forests:
        for f in forest.used_features:
            name = forest.feature_names[f]
            if name in categories and name not in forest.categories:
                raise InvalidParameter(
                    f"the feature {name!r} is categorical in one of the models, and a number in another"
                )
    thresholds = np.concatenate([forest.thresholds for forest in forests]).astype(EDGE)
    sets = NodeSets.joined([forest.node_sets for forest in forests])
    splits = compact_splits(feature, thresholds, len(feature_names), sets)
    sizes = np.concatenate([np.diff(forest.tree_starts) for forest in forests])
    return {
        **splits,
        "categories": used_names(categories, feature_names, splits),
        "tree_starts": np.concatenate(([0], np.cumsum(sizes))).astype(np.int32),
        "node_feature": feature,
        "trees_a_round": gcd(*(forest.trees_a_round for forest in forests)),
        **{name: np.concatenate([getattr(forest, name) for forest in forests]) for name in _OF_NODES},
    }
