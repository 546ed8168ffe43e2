"""What is fixed before the first round of a training, and the members that grow the trees of each round."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from rankmill.trainer.data.layout import ROW, BlockedBins
from rankmill.trainer.data.rows import TrainingData
from rankmill.trainer.data.shard import Span
from rankmill.trainer.data.target_encoding import EncodedColumn
from rankmill.trainer.growing.controls import Controls
from rankmill.trainer.growing.grower import Grower
from rankmill.trainer.growing.histogram import total_of
from rankmill.trainer.growing.leaves import LeafRules
from rankmill.trainer.growing.tree import Tree, add_tree
from rankmill.trainer.objectives.protocol import QUERIES, Objective, PairHessians
from rankmill.trainer.objectives.weights import document_weights
from rankmill.trainer.parameters import ALL, DART, GBDT, RF, TrainParameters
from rankmill.trainer.rounds.line_search import best_step
from rankmill.trainer.rounds.round_metrics import starting_scores
from rankmill.trainer.rounds.sampling import BootstrapWeights, OutOfBag, RoundSample, Sampler, noise_of, sum_in_order
from rankmill.trainer.rounds.tree_weights import Change, Dropout
from rankmill.trainer.team import Team
from rankmill.trainer.training_options import TrainingOptions

FEWEST_DRAWN_PAIRS = 65_536  # few enough to cost nothing, and more than small data have: there all pairs count

_AddTrees = Callable[[npt.NDArray[np.float64]], list[Tree]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prepared:
    """All that the rounds of a training work with."""

    data: TrainingData  # with the columns of encoded categories
    asked: TrainParameters  # complete
    parameters: TrainParameters  # also with what is learnt from
    options: TrainingOptions
    info: Mapping[str, Any]  # facts of the model that are known by now
    objective: Objective
    criterion: str
    exact_leaves: bool
    encoded: Sequence[EncodedColumn]
    monotone: npt.NDArray[np.int8]  # (n_features,)
    categorical: npt.NDArray[np.bool_]  # (n_features,)
    controls: Controls
    span: Span
    bins: BlockedBins
    sampler: Sampler
    out_of_bag: OutOfBag | None
    replayed: Sequence[Tree]  # the first trees, which have been grown before

    def columns_of(self, features: npt.NDArray[np.uint8] | None) -> npt.NDArray[np.uint8] | None:
        """Return ``features`` (n_features,) followed by the same for the encoded columns, which come from them."""
        if features is None or not self.encoded:
            return features
        return np.concatenate([features, features[[column.source for column in self.encoded]]])


class Members:
    """The models that are boosted side by side.

    These are their scores of the train rows, and the trees of a round, member by member.

    Members share the rows and their bins.  Each has its own scores, and its own turns of all random draws: member 1 of
    3 takes turns 1, 4, 7, ..
    """

    def __init__(self, training: Prepared, grower: Grower, team: Team) -> None:
        self._training, self._grower, self._team = training, grower, team
        n, n_outputs = training.bins.n_rows, training.objective.n_outputs
        shape = (n,) if n_outputs == 1 else (n_outputs, n)
        span = training.span
        start = starting_scores(training.data.train, training.objective, span)
        self._members = [start, *(start.copy() for _ in range(1, training.parameters.members))]
        # zeros, not garbage, in the rows of other processes, which are multiplied now and then
        self._g, self._h = np.zeros(shape, dtype=np.float64), np.zeros(shape, dtype=np.float64)
        self._earlier: list[list[list[Tree]]] = [[] for _ in self._members]  # trees by member and round, for dart
        self._changes: list[Change] = []  # of the last round, by member
        boosting = training.parameters.boosting
        self._dropouts = [
            Dropout(training.parameters, member)
            for member in range(training.parameters.members if boosting == DART else 0)
        ]
        self._start = start.copy() if boosting == RF else None
        self._searched = training.parameters.step_search == "line"
        walks = bool(training.replayed) or self._searched or boosting != GBDT
        self._every_row = np.arange(span.first, span.last if walks else span.first, dtype=ROW)
        self.oob_improvement: float | None = None  # of the last round
        self._weights: npt.NDArray[np.float64] | None = None
        if training.criterion == "se":
            self._weights = document_weights(training.data.train)
            if not len(self._weights):
                self._weights = np.ones(n, dtype=np.float64)
        self._bootstrap = BootstrapWeights(training.data.train.starts, training.parameters, team)

    def mean_scores(self) -> npt.NDArray[np.float64]:
        """Return the scores of the forest so far: the mean of its members."""
        first, *others = self._members
        return sum(others, first) / len(self._members) if others else first

    def change(self) -> Change:
        """Return what the last round did to the mean of the members."""
        if len(self._members) == 1:
            return self._changes[0]
        share = 1.0 / len(self._members)
        return Change([tree.times(share) for change in self._changes for tree in change.trees])

    def replay(self, round_number: int, trees: Sequence[Tree]) -> list[Tree]:
        """Add the trees of a round that is already trained."""
        many, self._changes = len(trees) // len(self._members), []
        for member in range(len(self._members)):
            own = list(trees[member * many : (member + 1) * many])
            turn = (round_number - 1) * len(self._members) + member + 1
            self._add_round(round_number, member, partial(self._known, turn, own), own)
        return list(trees)

    def grow(self, round_number: int) -> list[Tree]:
        """Grow the trees of a round and add them to the scores.

        The order is member by member, step by step, output by output.
        """
        grown: list[Tree] = []
        self._changes = []
        for member in range(len(self._members)):
            turn = (round_number - 1) * len(self._members) + member + 1
            grown += self._add_round(round_number, member, partial(self._grown, round_number, turn))
        return grown

    def _add_round(
        self, round_number: int, member: int, add: _AddTrees, known: Sequence[Tree] | None = None
    ) -> list[Tree]:
        """Change the scores of a member by a round, and return its trees as they are without weights.

        ``add`` adds them to the scores that gradients are to see, and returns them; ``known``: the trees, if they are
        already trained.
        """
        scores, p = self._members[member], self._training.parameters
        if p.boosting == DART:
            return self._with_dropped(member, add, known)
        before = self._start if self._start is not None else self._copy(scores, self._training.out_of_bag is not None)
        seen = scores if self._start is None else self._start.copy()
        trees = add(seen)
        self._changes.append(Change(trees))
        if self._start is not None:
            self._changes[-1] = Change([tree.times(1.0 / round_number) for tree in trees], 1.0 - 1.0 / round_number)
            scores[...] = self._start + (scores - self._start) * self._changes[-1].factor
            self._add_trees(self._changes[-1].trees, scores)
        if self._training.out_of_bag is not None:
            self.oob_improvement = self._training.out_of_bag.improvement(round_number, before, seen)
        return trees

    def _with_dropped(self, member: int, add: _AddTrees, known: Sequence[Tree] | None) -> list[Tree]:
        """Add a round whose gradients do not see what it drops."""
        scores, earlier, dropped = self._members[member], self._earlier[member], self._dropouts[member].next()
        changed = [earlier[number] for number in dropped.rounds.tolist()]
        if known is None or self._training.objective.limits.replays:
            seen = scores.copy()
            for trees, weight in zip(changed, dropped.before.tolist(), strict=True):
                self._add_trees([tree.times(-weight) for tree in trees], seen)
            known = add(seen)
        earlier.append(list(known))
        steps = (dropped.after - dropped.before).tolist()
        change = [tree.times(step) for trees, step in zip(changed, steps, strict=True) for tree in trees]
        self._changes.append(Change([*change, *(tree.times(dropped.own) for tree in known)]))
        self._add_trees(self._changes[-1].trees, scores)
        return list(known)

    def _known(self, turn: int, trees: list[Tree], scores: npt.NDArray[np.float64]) -> list[Tree]:
        """Add trees that are already trained, in that ``turn`` of random draws, to ``scores``."""
        training, objective = self._training, self._training.objective
        for i in range(0, len(trees), objective.n_outputs):
            # some losses depend on the draws of a step, or on all steps before
            if training.out_of_bag is not None or objective.limits.replays:
                step = (turn - 1) * objective.steps_a_round + i // objective.n_outputs + 1
                objective.gradients(step, scores, self._g, self._h, self._team)
            self._add_trees(trees[i : i + objective.n_outputs], scores)
        return trees

    def _add_trees(self, trees: Sequence[Tree], scores: npt.NDArray[np.float64]) -> None:
        """Add trees, output by output, to ``scores``: the same operation as in a replay, for the same bits."""
        for output, tree in enumerate(trees):
            add_tree(tree, self._training.bins, self._every_row, self._of(scores, output), self._team)

    def _grown(self, round_number: int, turn: int, scores: npt.NDArray[np.float64]) -> list[Tree]:
        """Grow the trees of a member, whose ``turn`` of random draws it is, and add them to its ``scores``."""
        training, team, objective = self._training, self._team, self._training.objective
        sample = training.sampler.draw(turn)
        before = self._copy(scores, self._searched)
        grown: list[Tree] = []
        for of_round in range(objective.steps_a_round):
            step = (turn - 1) * objective.steps_a_round + of_round + 1
            objective.gradients(step, scores, self._g, self._h, team)
            drawn = self._bootstrap.drawn(sample, step, self._g, self._h)
            grown += [self._tree(round_number, step, output, drawn, scores) for output in range(objective.n_outputs)]
        if self._searched:
            grown = self._scaled(grown, drawn, before, scores)
        return grown

    @staticmethod
    def _copy(scores: npt.NDArray[np.float64], needed: bool) -> npt.NDArray[np.float64]:  # noqa: FBT001 - a private helper
        """Return a copy of ``scores`` if the end of the round needs it."""
        return scores.copy() if needed else scores

    def _scaled(
        self, trees: list[Tree], sample: RoundSample, before: npt.NDArray[np.float64], scores: npt.NDArray[np.float64]
    ) -> list[Tree]:
        """Multiply the trees of a round by a step, and add the result instead.

        The step minimises the loss of the sample.
        """
        objective, shrinkage = self._training.objective, self._training.parameters.learning_rate
        counted = ~self._training.sampler.left_out(sample, objective.sums_over == QUERIES)
        way = (scores - before) / shrinkage  # Friedman (2001): search the step, then shrink it
        step = best_step(lambda step: sum_in_order(objective.losses(before + step * way)[counted]))
        scaled = [tree.times(step) for tree in trees]
        scores[...] = before
        self._add_trees(scaled, scores)
        return scaled

    def _pairs(self, step: int, whole: float, scores: npt.NDArray[np.float64]) -> PairHessians | None:
        """Return the pairs of criterion ole, ``whole`` is the sum of their hessians; None for another criterion."""
        training = self._training
        if training.criterion != "ole":
            return None
        per_row = training.parameters.ole_pairs
        least = whole / max(per_row * self._training.bins.n_rows, FEWEST_DRAWN_PAIRS) if per_row else 0.0
        return training.objective.pair_hessians(step, scores, least, self._team)

    def _tree(
        self, round_number: int, step: int, output: int, sample: RoundSample, scores: npt.NDArray[np.float64]
    ) -> Tree:
        training, objective, p = self._training, self._training.objective, self._training.parameters
        paired = training.criterion == "ole" or training.exact_leaves
        # each pair adds its hessian to h of both rows
        whole = 0.5 * total_of(self._h, self._team) if paired else 0.0

        def inside(leaf_of_row: npt.NDArray[np.int32], n_leaves: int) -> npt.NDArray[np.float64]:
            return objective.hessian_inside(step, scores, leaf_of_row, n_leaves, whole, self._team)

        g, h = self._of(self._g, output), self._of(self._h, output)
        sampled = sample.rows is not None or sample.weights is not None
        return self._grower.grow(
            self._weighted(g, sample.weights),
            self._weighted(h, sample.weights),
            self._of(scores, output),
            rows=sample.rows,
            features=self._training.columns_of(sample.features),
            weights=None if self._weights is None else self._weighted(self._weights, sample.weights),
            pairs=self._pairs(step, whole, scores),
            leaves=LeafRules(
                inside=inside if training.exact_leaves else None,
                steps=partial(objective.leaf_steps, output, scores),
                of_all=(g, h) if p.leaf_rows == ALL and sampled else None,
            ),
            noise=noise_of(
                p, 1 if p.boosting == RF else round_number, (step - 1) * objective.n_outputs + output + 1, len(g)
            ),
        )

    def _of(self, values: npt.NDArray[np.float64], number: int) -> npt.NDArray[np.float64]:
        """Return the part of ``values`` for tree ``number`` of a round."""
        n_outputs = self._training.objective.n_outputs
        return values if n_outputs == 1 else values[number % n_outputs]

    def _weighted(
        self, values: npt.NDArray[np.float64], weights: npt.NDArray[np.float64] | None
    ) -> npt.NDArray[np.float64]:
        if weights is None:
            return values
        if self._training.span.peers is None:
            return values * weights
        own, product = slice(self._training.span.first, self._training.span.last), np.zeros(len(values))
        np.multiply(values[own], weights[own], out=product[own])
        return product
