"""Refit the leaves of a model on new data: its trees keep their structure, and leaf values become ``decay * old + (1 - decay) * new``.

The new values are those that training would compute if it grew the same trees on the new rows: rounds are done one after another, and each
takes its gradients from the scores of the refitted trees before it (LightGBM's ``refit``, XGBoost's ``process_type=update``).  All rows count,
without samples and weights of bootstrap.  A leaf that no row reaches keeps its value.  With a decay of 1 nothing changes; with 0, on the rows
that the model was trained on without samples, nothing does either, except that values may change where categories are encoded or monotone constraints hold.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from rankmill.foundation.errors import InvalidParameter, TrainingDataRejected
from rankmill.foundation.records import JSON
from rankmill.foundation.training_facts import OtherModel, TrainingFacts
from rankmill.pipeline.binspec import BinSpec, FeatureBins, apply_bins
from rankmill.pipeline.dataset import Dataset
from rankmill.pipeline.options import MAX_BIN
from rankmill.scorer.exchange.conversion import CONVERTED_FROM
from rankmill.scorer.forest import FIRST_ROUND, Forest
from rankmill.scorer.model import DATASETS_OF_BASE, check_kinds
from rankmill.trainer.boosting import boost
from rankmill.trainer.combined_forests import SHA256, datasets_of
from rankmill.trainer.growing import _state_kernels as table
from rankmill.trainer.growing.grower import Grower, LeafRules
from rankmill.trainer.growing.histogram import scales_of
from rankmill.trainer.growing.tree import Tree, add_tree
from rankmill.trainer.layout import BIN, EDGE, ROW
from rankmill.trainer.options import RefitLeavesOptions
from rankmill.trainer.parameters import NONE, TrainParameters, all_parameters
from rankmill.trainer.resuming import LEAVES_REFITTED, MERGED, trees_of
from rankmill.trainer.rows import RankedRows, TrainingData
from rankmill.trainer.target_encoding import ENCODED
from rankmill.trainer.train_on_dataset import facts_of_data
from rankmill.trainer.training_options import DEFAULT_OPTIONS, StartingModel, TrainingOptions
from rankmill.trainer.training_result import TrainingResult
from rankmill.trainer.training_rows import LEARNT_FROM, read_columns
from rankmill.trainer.tree_weights import weights_of_boosting
from rankmill.trainer.version_facts import attachments_of, facts_of

_WHOLE: Mapping[str, Any] = {
    "query_fraction": 1.0, "row_fraction": 1.0, "bootstrap": NONE, "leaf_rows": "sample", "encode_above": 0, "rounds_by": "valid", "early_stopping_rounds": 0, "keep_rounds": "all", "refit": NONE,
    "forced_splits": {},  # as the trees have them
    "feature_fraction": 0.5,  # of splits, which are known; a random forest asks for something random
}  # fmt: skip


class LeafRefitter(Grower):
    """In the place of a grower: takes the next of the known trees, and computes its leaf values."""

    def __init__(self, *given: Any, trees: Iterator[Tree], decay: float, **named: Any) -> None:
        super().__init__(*given, **named)
        self._trees, self._decay = trees, decay

    def grow(
        self,
        gradients: npt.NDArray[np.float64],
        hessians: npt.NDArray[np.float64],
        scores: npt.NDArray[np.float64],
        *,
        leaves: LeafRules = LeafRules(),  # noqa: B008 - frozen
        **_ignored: Any,
    ) -> Tree:
        """Return the next tree with new values, and add it to ``scores``; what chooses splits and samples is ignored."""
        old = next(self._trees)
        self._take(old)
        self._lambdas = 0.0, self._scaled(self._parameters.lambda_l2, hessians)
        _, scale = scales_of(gradients, hessians, self._team)
        fresh = self._finish(
            gradients, hessians, scale, self._bins.n_rows, None, np.zeros(len(gradients)), leaves, by_h=False
        )
        decay = self._decay
        mixed = np.where(
            (fresh.rows == 0) & ~self._oblivious, old.value, decay * old.value + (1.0 - decay) * fresh.value
        )
        tree = replace(old, value=mixed + 0.0, rows=fresh.rows)
        add_tree(tree, self._bins, np.arange(self._bins.n_rows, dtype=ROW), scores, self._team)
        return tree

    def _take(self, tree: Tree) -> None:
        """Make ``tree`` the one that has been grown, with the rows in the order of its leaves."""
        n, n_rows = len(tree.feature), self._bins.n_rows
        places = np.zeros(n, dtype=np.float64)
        leaves = _leaves_from_the_left(tree)
        places[leaves] = np.arange(len(leaves))
        reached = np.zeros(n_rows, dtype=np.float64)
        add_tree(replace(tree, value=places), self._bins, np.arange(n_rows, dtype=ROW), reached, self._team)
        leaf_of_row = reached.astype(np.uint16)
        self._rows.rows[:n_rows] = np.argsort(leaf_of_row, kind="stable").astype(ROW)
        ends = np.cumsum(np.bincount(leaf_of_row, minlength=len(leaves)))
        nodes = self._nodes.table
        nodes[:n] = 0
        nodes[:n, table.LEFT] = np.minimum(tree.left, tree.right)  # splits of encoded categories may have them swapped
        nodes[:n, table.FEATURE], nodes[:n, table.THRESHOLD] = tree.feature, tree.threshold
        nodes[:n, table.MISSING_LEFT] = tree.missing_left
        nodes[:n, table.SET :] = tree.sets.view(np.int64)
        nodes[leaves, table.LAST] = ends
        nodes[leaves, table.FIRST] = np.concatenate(([0], ends[:-1]))
        for node in np.flatnonzero(tree.feature >= 0)[::-1].tolist():  # children come after their parent
            nodes[node, table.FIRST] = nodes[tree.left[node], table.FIRST]
            nodes[node, table.LAST] = nodes[tree.right[node], table.LAST]
        nodes[:n, table.ROWS] = nodes[:n, table.LAST] - nodes[:n, table.FIRST]
        self._nodes.state[table.N_NODES] = n
        self._nodes.gains[:n] = tree.gain


def _leaves_from_the_left(tree: Tree) -> npt.NDArray[np.int64]:
    """Return the leaves in the order in which growing leaves their rows: the left side first."""
    found, waiting = [], [0]
    while waiting:
        node = waiting.pop()
        if tree.feature[node] < 0:
            found.append(node)
        else:
            waiting += [int(tree.right[node]), int(tree.left[node])]
    return np.array(found, dtype=np.int64)


def refit_leaves_on_rows(
    forest: Forest, data: TrainingData, decay: float, options: TrainingOptions = DEFAULT_OPTIONS
) -> TrainingResult:
    """Return ``forest`` with leaves refitted on ``data.train``, whose bins are those of :func:`bins_of_cuts`; eval sets are measured.

    Raises
    ------
    InvalidParameter
        ``decay`` is not in 0 .. 1, or the model is none whose training is known and whose trees stand alone.
    TrainingDataRejected
        The objective cannot learn from the rows.
    """
    decay = RefitLeavesOptions(decay=decay).decay
    parameters = check_refittable(forest)
    plain = {name: value for name, value in forest.info.items() if name != ENCODED}  # their splits are sets like others
    trees = trees_of(replace(forest, info=plain), data.edges)
    result = boost(
        data,
        replace(parameters, **_WHOLE, learn_from=str(forest.info.get(LEARNT_FROM, parameters.learn_from))),
        replace(options, resume=None, base_model=None),
        rounds=forest.n_rounds,
        make_grower=partial(LeafRefitter, trees=iter(trees), decay=decay),
        start=lambda fresh: decay * forest.base_score + (1.0 - decay) * fresh,
    )
    facts: dict[str, JSON] = {
        **{name: value for name, value in result.forest.info.items() if name != LEARNT_FROM},
        **({LEARNT_FROM: forest.info[LEARNT_FROM]} if LEARNT_FROM in forest.info else {}),
        DATASETS_OF_BASE: datasets_of(forest),
        LEAVES_REFITTED: {"model": forest.sha256, "decay": decay},
    }
    return replace(result, forest=replace(result.forest, parameters=forest.parameters, info=facts))


def check_refittable(forest: Forest) -> TrainParameters:
    """Return the parameters of the training of ``forest``; InvalidParameter if its leaves cannot be refitted."""
    reason = ""
    if CONVERTED_FROM in forest.info:
        reason = f"it was trained by {forest.info[CONVERTED_FROM]}, so its loss is unknown"
    elif SHA256 in forest.info:
        reason = "it was trained on top of a base model; refit a model that was trained at once"
    elif "seeds" in forest.info or MERGED in forest.info:
        reason = "it holds several models; refit one of them"
    elif FIRST_ROUND in forest.info:
        reason = f"it is a part of another model, without its first {forest.info[FIRST_ROUND]} rounds"
    elif not forest.parameters:
        reason = "it does not say how it was trained"
    if not reason:
        parameters = TrainParameters(**all_parameters(forest.parameters))
        if parameters.step_search != NONE:
            reason = "its leaves were scaled by step_search"
        elif parameters.objective == "gbrank":
            reason = "gbrank replaces scores instead of adding to them"
        weights = weights_of_boosting(parameters, forest.n_rounds, forest.trees_a_round)
        if weights is not None and not np.array_equal(weights, forest.tree_weights):
            reason = (
                f"its trees have other weights than after a training of {forest.n_rounds} rounds of"
                f" {parameters.boosting}, as if it was cut after training; refit the whole model"
            )
    if reason:
        raise InvalidParameter(f"the leaves of the model cannot be refitted: {reason}")
    return parameters


def bins_of_cuts(forest: Forest) -> BinSpec:
    """Return bins whose edges are the cuts of ``forest``; a feature that it does not use has no edge."""
    found = []
    for f, name in enumerate(forest.feature_names):
        cuts = forest.cuts[forest.cut_starts[f] : forest.cut_starts[f + 1]]
        cuts = cuts[np.isfinite(cuts)].astype(EDGE)
        if len(cuts) >= MAX_BIN:
            raise InvalidParameter(
                f"the leaves of the model cannot be refitted: its trees split {name!r} at {len(cuts)} values or"
                f" categories, the maximum is {MAX_BIN - 1}"
            )
        counts, names = np.zeros(len(cuts) + 2, dtype=np.int64), forest.categories.get(name)
        found.append(FeatureBins(name, cuts, counts, None, None, names is not None, tuple(names or ())))
    return BinSpec(tuple(found))


@dataclass(frozen=True, slots=True, kw_only=True)
class RefittedLeaves:
    """What :func:`refit_leaves` returns; register ``result.forest``, ``facts`` and ``attachments``."""

    result: TrainingResult
    facts: TrainingFacts
    attachments: Mapping[str, bytes]


def refit_leaves(
    dataset: Dataset, model: StartingModel, decay: float, options: TrainingOptions = DEFAULT_OPTIONS
) -> RefittedLeaves:
    """Refit the leaves of ``model`` on the train split of a binned dataset, and measure its valid split if it has one.

    The dataset needs the features that the model uses, of the same kind (numbers or categories); its bins are not used.  Errors are those of :func:`refit_leaves_on_rows`.
    """
    forest, parameters = model.forest, check_refittable(model.forest)
    spec = bins_of_cuts(forest)
    used = [forest.feature_names[f] for f in forest.used_features]
    lacking = [name for name in used if name not in dataset.feature_names]
    if lacking:
        raise InvalidParameter(
            f"{dataset.path}: the model asks for the feature {lacking[0]!r}, which the dataset lacks"
        )
    categorical = dataset.manifest.categorical
    check_kinds(forest, dataset.feature_names, categorical, InvalidParameter, where=f"{dataset.path}: ")
    train, valid = (_rows(dataset, split, parameters, forest, spec) for split in ("train", "valid"))
    if not train.n_rows:
        raise TrainingDataRejected(f"{dataset.path}: the train split is empty; ingest data for it")
    data = TrainingData(
        train=train,
        eval_sets=[("valid", valid)] if valid.n_rows else [],
        edges=[feature.edges for feature in spec.features],
        categories=spec.categories,
        feature_names=forest.feature_names,
        max_grade=dataset.max_grade,
        goal_max_grades=dataset.goals,
        info=facts_of_data(dataset, dataset.binspec().digest),
    )
    result = refit_leaves_on_rows(forest, data, decay, options)
    origin = OtherModel(sha256=model.sha256, model=model.facts().model)
    facts = replace(facts_of(dataset, result), leaves_refitted_from=origin, leaf_decay=decay)
    return RefittedLeaves(result=result, facts=facts, attachments=attachments_of(dataset, None, model))


def _rows(dataset: Dataset, split: str, parameters: TrainParameters, forest: Forest, spec: BinSpec) -> RankedRows:
    return replace(read_columns(dataset, split, parameters), bins=_bin_batches(dataset, split, forest, spec))


def _bin_batches(dataset: Dataset, split: str, forest: Forest, spec: BinSpec) -> Iterator[npt.NDArray[np.uint8]]:
    """Yield the bins of all features of ``forest``; those that it does not use are missing."""
    used: Sequence[int] = forest.used_features
    of_used = BinSpec(tuple(spec.features[f] for f in used))
    names = [forest.feature_names[f] for f in used]
    for values in dataset.feature_batches(split, names or list(dataset.feature_names[:1])):
        bins = np.zeros((len(values), forest.n_features), dtype=BIN)
        if names:
            bins[:, list(used)] = apply_bins(values, of_used)
        yield bins
