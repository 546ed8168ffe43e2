"""The boosting loop: gradients, a tree, new scores, metrics, until early stopping or the last round."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from math import fsum
from typing import Any

import numpy as np
import numpy.typing as npt

from rankmill.foundation.errors import InvalidParameter, TrainingDataRejected, name_hint
from rankmill.foundation.options import spelled
from rankmill.foundation.scalars import whole_number
from rankmill.pipeline.options import MAX_BIN
from rankmill.scorer.forest.forest import Forest
from rankmill.trainer import _kernels as row_kernels
from rankmill.trainer.data.layout import ROW
from rankmill.trainer.data.rows import TrainingData
from rankmill.trainer.data.shard import span_of
from rankmill.trainer.data.target_encoding import with_encoded_columns
from rankmill.trainer.data.training_rows import learnt_from_facts, resolved, rows_learnt_from
from rankmill.trainer.growing.controls import Controls
from rankmill.trainer.growing.grower import Grower, LeafRules
from rankmill.trainer.growing.histogram import total_of
from rankmill.trainer.growing.tree import Tree, add_tree
from rankmill.trainer.incompatible import CLUSTER, Fact, check_loss
from rankmill.trainer.objectives.protocol import QUERIES, PairHessians
from rankmill.trainer.objectives.registry import criterion_of, objective_of, takes_exact_steps
from rankmill.trainer.objectives.weights import document_weights
from rankmill.trainer.parameters import ALL, DART, GBDT, MVS, NONE, RF, TrainParameters
from rankmill.trainer.rounds.assembly import forest_of, trees_a_round
from rankmill.trainer.rounds.checkpoints import Checkpoint
from rankmill.trainer.rounds.early_stopping import DEVIANCE, EarlyStopping, measures_of
from rankmill.trainer.rounds.line_search import best_step
from rankmill.trainer.rounds.resuming import check_resumable, trees_of
from rankmill.trainer.rounds.round_metrics import RoundMetrics, starting_scores
from rankmill.trainer.rounds.sampling import BootstrapWeights, OutOfBag, OutOfBagMean, RoundSample, Sampler, noise_of
from rankmill.trainer.rounds.training_result import (
    GRADIENTS,
    METRICS,
    TRAIN,
    VALID_SPLITS,
    PhaseTimer,
    RoundRecord,
    TrainingResult,
)
from rankmill.trainer.rounds.tree_weights import Change, Dropout
from rankmill.trainer.training_options import DEFAULT_OPTIONS, TrainingOptions
from rankmill.trainer.workers import Team, with_team, workers_for

FEWEST_DRAWN_PAIRS = 65_536  # few enough to cost nothing, and more than small data have: there all pairs count


_AddTrees = Callable[[npt.NDArray[np.float64]], list[Tree]]


def boost(
    data: TrainingData,
    parameters: TrainParameters,
    options: TrainingOptions = DEFAULT_OPTIONS,
    *,
    checkpoint: Checkpoint | None = None,
    rounds: int | None = None,
    fold: int = 0,
) -> TrainingResult:
    """Train a forest; the same bytes for every ``options.n_threads``.

    Trees after the best round are left out if ``parameters.keeps_best``.

    Parameters
    ----------
    data
        What is learnt from and what is measured.
    parameters
        Complete ones: what is left out has been chosen by :func:`rankmill.trainer.presets.with_preset`.
    options
        ``eval_metrics``, ``n_threads``, ``histogram_memory``, ``profile``, ``on_round`` are used, and ``resume``: the records of
        its rounds are made again, and eval sets and ``max_grade`` may be others than before.
    checkpoint
        Write all trees there now and then, at the end, and when the training is interrupted; and resume what is there if it has
        more rounds than ``options.resume``.
    rounds
        Do and keep so many of the ``n_rounds``, whatever eval sets say.
    fold
        Of a cross-validation: 1, 2, ..; ``on_round`` then ends nothing.

    Raises
    ------
    InvalidParameter
        ``n_threads`` is negative, the metric cannot be optimised or evaluated, a constraint names a feature that is not
        there or the score is made of probabilities, sets share a name, or ``resume`` was trained in another way.
    TrainingDataRejected
        No rows, no query with two grades, bad weights, edges or names that are none, an eval set with the bins of other
        rows or features, or a first one of which all rankings are as good.
    """
    n_threads = workers_for(options.n_threads)
    training = _Training(data, parameters, options, checkpoint, rounds, fold)
    return training.result(*with_team(n_threads, training.train))


def directions_of(monotone: Mapping[str, int], feature_names: Sequence[str]) -> npt.NDArray[np.int8]:
    """Return the direction of every feature, (n_features,): 1, -1 or 0; InvalidParameter for an unknown name."""
    directions = np.zeros(len(feature_names), dtype=np.int8)
    for name, direction in monotone.items():
        if name not in feature_names:
            hint = name_hint(name, feature_names)
            raise InvalidParameter(f"monotone: unknown feature {name!r}; {hint}")
        directions[list(feature_names).index(name)] = direction
    return directions


def _check_features(names: Sequence[str], edges: Sequence[npt.NDArray[np.float32]]) -> None:
    """Raise TrainingDataRejected unless every feature has a name of its own, and ascending edges that fit into a byte."""
    if len(names) == 0 or len(edges) != len(names):
        raise TrainingDataRejected(f"expected edges for each of a feature or more, found {len(edges)} for {len(names)}")
    seen: set[str] = set()
    for i, (name, cuts) in enumerate(zip(names, edges, strict=True)):
        if not isinstance(name, str) or not name or name in seen:
            raise TrainingDataRejected(
                f"feature {i} needs a unique name, found {name!r}{' again' if name in seen else ''}"
            )
        seen.add(name)
        if len(cuts) >= MAX_BIN or np.isnan(cuts).any() or not np.all(cuts[1:] > cuts[:-1]):
            raise TrainingDataRejected(
                f"feature {name!r}: expected at most {MAX_BIN - 1} ascending edges, found"
                f" {len(cuts)}{'' if len(cuts) >= MAX_BIN else ' that do not ascend'}; bin the data"
                " again"
            )


class _Training:
    """All rounds of one training: what is fixed before the first, the loop, and what comes out."""

    def __init__(
        self,
        data: TrainingData,
        parameters: TrainParameters,
        options: TrainingOptions,
        checkpoint: Checkpoint | None,
        rounds: int | None,
        fold: int,
    ) -> None:
        train = data.train
        self.data, self.rows, self.options = data, train, options
        self.checkpoint, self.rounds, self.fold = checkpoint, rounds, fold
        self.max_grade = whole_number("max_grade", data.max_grade)
        if train.n_rows == 0:
            raise TrainingDataRejected("the train split has no rows")
        _check_features(data.feature_names, data.edges)
        self.monotone = directions_of(parameters.monotone, data.feature_names)
        self.asked, self.parameters = parameters, resolved(train, parameters)
        self.info = {**data.info, **learnt_from_facts(train, self.parameters)}
        self.objective = objective_of(rows_learnt_from(train, self.parameters), self.parameters)
        self.trees_a_round = trees_a_round(self.objective, self.parameters)
        self.criterion = criterion_of(self.objective, self.parameters)
        self.categorical = np.isin(data.feature_names, list(data.categories))
        self.data, self.encoded = with_encoded_columns(data, self.parameters)
        self._check()
        self.controls = Controls.of(parameters, data.feature_names, [column.source for column in self.encoded])
        data, train = self.data, self.data.train
        self.rows = train
        self.replayed = self._trained_before()  # trees of the first rounds
        self.span = span_of(train.starts, options.shard)
        if options.shard is not None:
            self.objective.write_only(self.span.first_query, self.span.last_query)
        self.bins = train.blocked(data.n_bins)
        self.metrics = RoundMetrics(
            data,
            self.objective,
            self.parameters,
            options.eval_metrics,
            decides=rounds is None
            and parameters.rounds_by != "oob"
            and (parameters.keeps_best or parameters.early_stopping_rounds > 0),
            in_fold=fold > 0,
            shard=options.shard,
        )
        self.sampler = Sampler(train.starts, len(data.feature_names), self.parameters)
        self.exact_leaves = takes_exact_steps(self.objective, self.criterion, self.parameters)
        self.out_of_bag = self._out_of_bag() if parameters.rounds_by == "oob" else None
        self.stopwatch = PhaseTimer(on=options.profile)

    def _check(self) -> None:
        """Refuse what does not work with this loss and these data."""
        p, data = self.parameters, self.data
        facts: dict[str, object] = {}
        if self.categorical.any():
            facts["categories"] = Fact(
                f"the categorical feature {data.feature_names[int(np.argmax(self.categorical))]!r}"
            )
            for name in p.monotone:
                if name in data.categories:
                    raise InvalidParameter(
                        f"monotone: the feature {name!r} is categorical, and categories have no order"
                    )
        if any(rows.offsets is not None for rows in (data.train, *(rows for _, rows in data.eval_sets))):
            facts["offsets"] = Fact("offsets")
        if self.options.shard is not None:
            deviance = DEVIANCE in measures_of(p, self.options.eval_metrics, graded=data.train.graded)
            facts["cluster"] = CLUSTER
            facts["deviance"] = Fact("the metric deviance") if deviance else None
            facts["encoded"] = Fact(spelled("encode_above")) if self.encoded else None
        if facts:
            check_loss(self.objective, p, **facts)
        of_features = min(p.feature_fraction, p.feature_fraction_by_level, p.feature_fraction_by_node)
        fraction = min(p.query_fraction, p.row_fraction, of_features)
        weighted = p.bootstrap != NONE and not (p.bootstrap == MVS and min(p.query_fraction, p.row_fraction) == 1.0)
        if p.boosting == RF and fraction == 1.0 and not weighted and p.random_strength == 0.0 and not p.extra_trees:
            raise InvalidParameter(
                "boosting rf: all trees would be the same; set query_fraction, row_fraction or feature_fraction below 1, or"
                " bootstrap to bayesian"
            )

    def columns_of(self, features: npt.NDArray[np.uint8] | None) -> npt.NDArray[np.uint8] | None:
        """Return ``features`` (n_features,) followed by the same for the encoded columns, which come from them."""
        if features is None or not self.encoded:
            return features
        return np.concatenate([features, features[[column.source for column in self.encoded]]])

    def _out_of_bag(self) -> OutOfBag:
        if self.parameters.boosting == RF:
            return OutOfBagMean(self.objective, self.sampler, self.parameters, self.rows.starts)
        return OutOfBag(self.objective, self.sampler, self.parameters, self.rows.offsets)

    def _trained_before(self) -> list[Tree]:
        """Return the trees of the model to resume, or those of the checkpoint if it has more."""
        trees: list[Tree] = []

        def take(forest: Forest) -> None:
            check_resumable(forest, self.asked, self.data.feature_names, self.info, self.objective)
            trees[:] = trees_of(forest, self.data.edges, self.encoded)

        if self.options.resume is not None:
            take(self.options.resume.forest)
        found = None if self.checkpoint is None else self.checkpoint.read()
        if found is not None and found.n_trees > len(trees):
            with suppress(InvalidParameter):  # else it is not ours, and will be replaced
                take(found)
        return trees

    def train(self, team: Team) -> tuple[list[Tree], list[RoundRecord], int]:
        """Do all rounds; return their trees, what each measured, and the best round."""
        trees: list[Tree] = []
        try:
            history, best_round = self._all_rounds(team, trees)
        finally:  # also where it was interrupted: rounds that are whole are worth keeping
            if trees:
                self._write_checkpoint(trees)
        return trees, history, best_round

    def result(self, trees: Sequence[Tree], history: Sequence[RoundRecord], best_round: int) -> TrainingResult:
        """Return what :meth:`train` has come to."""
        metrics, best = self.metrics, history[best_round - 1].metrics
        facts = {
            **self.info,
            "max_grade": self.max_grade,
            "best_round": best_round,
            "rounds_trained": len(history),
            "train": self._stop_value(best[TRAIN]),
            "valid": self._stop_value(best[metrics.first]) if metrics.first else {},
            **self.objective.learnt(best_round),
        }
        return TrainingResult(
            forest=self._forest(trees[: best_round * self.trees_a_round], facts),
            best_round=best_round,
            history=tuple(history),
            profile=self.stopwatch.profile(),
            by_query=metrics.by_query(),
        )

    def _stop_value(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """Return the stop metric alone, since what is only printed must not change the model; nothing where it is NaN."""
        name = str(self.metrics.stop_metric)
        return {name: metrics[name]} if metrics[name] == metrics[name] else {}

    def _forest(self, trees: Sequence[Tree], info: Mapping[str, Any]) -> Forest:
        data, n_rounds = self.data, len(trees) // self.trees_a_round
        return forest_of(
            trees,
            data.edges,
            data.feature_names,
            data.categories,
            self.objective,
            n_rounds,
            self.asked,
            info,
            self.encoded,
        )

    def _write_checkpoint(self, trees: Sequence[Tree]) -> None:
        if self.checkpoint is not None:
            self.checkpoint.write(len(trees) // self.trees_a_round, lambda: self._forest(trees, self.info))

    def _all_rounds(self, team: Team, trees: list[Tree]) -> tuple[list[RoundRecord], int]:
        """Add the trees of whole rounds to ``trees``; return what they measured, and the best round."""
        p, metrics, stopwatch, options = self.parameters, self.metrics, self.stopwatch, self.options
        whole_steps = replace(p, learning_rate=1.0) if p.boosting == RF else p
        grower = Grower(
            self.bins, whole_steps, team, monotone=self.monotone, categorical=self.categorical, controls=self.controls,
            pool_bytes=options.histogram_memory, timed=stopwatch.on, span=self.span,
        )  # fmt: skip
        round_grower = _RoundGrower(self, grower, team)
        stopping = self._stopping()
        many = self.trees_a_round
        history: list[RoundRecord] = []
        for round_number in range(1, (self.rounds or p.n_rounds) + 1):
            stopwatch.start_round()
            known = self.replayed[(round_number - 1) * many : round_number * many]
            grown = round_grower.replay(round_number, known) if known else round_grower.grow(round_number)
            trees += grown
            with stopwatch.phase(VALID_SPLITS):
                metrics.add(round_grower.change(), team)
            with stopwatch.phase(METRICS):
                means = metrics.means(round_grower.mean_scores(), team)
            record = RoundRecord(round_number, means, round_grower.oob_improvement, self.fold, p.seed)
            history.append(record)
            ended = options.on_round is not None and bool(options.on_round(record)) and not self.fold
            if (value := self._value(history)) is not None:
                ended |= stopping.update(round_number, value)
            if not p.keeps_best or stopping.best_round in {0, round_number}:
                metrics.keep()
            if not known:
                stopwatch.end_round()
                if self.checkpoint is not None and self.checkpoint.is_due():
                    self._write_checkpoint(trees)
            if ended:
                break
        return history, (p.keeps_best and stopping.best_round) or len(history)

    def _stopping(self) -> EarlyStopping:
        higher_is_better = self.out_of_bag is not None or self.metrics.stop_metric.higher_is_better
        return EarlyStopping.of(self.parameters, higher_is_better=higher_is_better)

    def _value(self, history: Sequence[RoundRecord]) -> float | None:
        """Return what tells whether the last round was better than those before; None where nothing does."""
        if self.rounds is not None:
            return None
        if self.out_of_bag is not None:
            return fsum(record.oob_improvement or 0.0 for record in history)
        return history[-1].metrics[self.metrics.first][str(self.metrics.stop_metric)] if self.metrics.first else None


class _RoundGrower:
    """Holds the scores of the train rows, and grows the trees of a round: those of the first member, of the second, ..

    Members share the rows and their bins.  Each has its own scores, and its own turn of all random draws: member 1 of 3 takes
    turns 1, 4, 7, .., so that a model of one member draws as it always did.
    """

    def __init__(self, training: _Training, grower: Grower, team: Team) -> None:
        self._training, self._grower, self._team = training, grower, team
        n, n_outputs = training.bins.n_rows, training.objective.n_outputs
        shape = (n,) if n_outputs == 1 else (n_outputs, n)
        span = training.span
        start = starting_scores(training.rows, training.objective, span)
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
            self._weights = document_weights(training.rows)
            if not len(self._weights):
                self._weights = np.ones(n, dtype=np.float64)
        self._bootstrap = BootstrapWeights(training.rows.starts, training.parameters, team)

    def mean_scores(self) -> npt.NDArray[np.float64]:
        """Return the scores of the forest so far: the mean of its members."""
        first, *others = self._members
        return np.mean(self._members, axis=0) if others else first

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
        """Grow the trees of a round, member by member, step by step and output by output, and add them to the scores."""
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

        ``add`` adds them to the scores that gradients are to see, and returns them; ``known``: the trees, if they are already trained.
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
            with training.stopwatch.phase(GRADIENTS):
                objective.gradients(step, scores, self._g, self._h, team)
            with training.stopwatch.growing(self._grower):
                drawn = self._bootstrap.drawn(sample, step, self._g, self._h)
                grown += [
                    self._tree(round_number, step, output, drawn, scores) for output in range(objective.n_outputs)
                ]
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
        """Multiply the trees of a round by the step that minimises the loss of the sample, and add the result instead."""
        objective, shrinkage = self._training.objective, self._training.parameters.learning_rate
        counted = ~self._training.sampler.left_out(sample, objective.sums_over == QUERIES)
        way = (scores - before) / shrinkage  # Friedman (2001): search the step, then shrink it
        step = best_step(lambda step: float(row_kernels.total_of(objective.losses(before + step * way), counted)))
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
        own, product = slice(self._training.span.first, self._training.span.last), np.zeros(len(values))
        np.multiply(values[own], weights[own], out=product[own])
        return product
