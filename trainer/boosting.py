"""The boosting loop: gradients, a tree, new scores, metrics, until early stopping or the last round."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from math import fsum
from typing import Any, Required, TypedDict

import numpy as np
import numpy.typing as npt

from rankmill.foundation.errors import InvalidParameter, TrainingDataRejected
from rankmill.foundation.scalars import whole_number
from rankmill.pipeline.quantiles import MAX_BIN
from rankmill.scorer.forest import Forest
from rankmill.trainer import _kernels as row_kernels
from rankmill.trainer.assembly import forest_of, trees_a_round
from rankmill.trainer.checkpoints import Checkpoint, Checkpoints
from rankmill.trainer.criteria import criterion_of, takes_exact_steps
from rankmill.trainer.dtypes import ROW
from rankmill.trainer.early_stopping import EarlyStopping
from rankmill.trainer.growing.grower import Grower
from rankmill.trainer.growing.histogram import DEFAULT_POOL_BYTES
from rankmill.trainer.growing.packing import total_of
from rankmill.trainer.growing.tree import Tree
from rankmill.trainer.growing.walking import add_tree
from rankmill.trainer.history import GRADIENTS, METRICS, TRAIN, WALKING, RoundRecord, Stopwatch, TrainingResult
from rankmill.trainer.layout import BlockedBins
from rankmill.trainer.line_search import best_step
from rankmill.trainer.monotone import directions_of
from rankmill.trainer.objectives.protocol import QUERIES, Objective, PairCurvatures
from rankmill.trainer.objectives.registry import objective_of
from rankmill.trainer.objectives.weights import document_weights
from rankmill.trainer.parameters import TrainParameters
from rankmill.trainer.resuming import check_resumable, trees_of
from rankmill.trainer.round_metrics import Watch, starting_scores
from rankmill.trainer.rows import RankedRows
from rankmill.trainer.sampling import OutOfBag, Sample, Sampler
from rankmill.trainer.training_rows import learnt_from_facts, rows_learnt_from, settled
from rankmill.trainer.workers import Team, with_team, workers_for

__all__ = ["OnRound", "RankedRows", "RoundRecord", "TrainingResult", "boost"]

FEWEST_DRAWN_PAIRS = 65_536  # few enough to cost nothing, and more than small data have: there all pairs count

OnRound = Callable[[RoundRecord], bool | None]  # true: this was the last round


class BoostOptions(TypedDict, total=False):
    """The options of :func:`boost` that those who call it for others hand on."""

    max_grade: Required[int]
    eval_metrics: Sequence[str]
    info: Mapping[str, Any] | None
    resume: Forest | None
    n_threads: int
    pool_bytes: int
    profile: bool
    on_round: OnRound | None
    on_fold: Callable[[int, RoundRecord], object] | None
    checkpoints: Checkpoints | None


def boost(
    train: RankedRows,
    eval_sets: Sequence[tuple[str, RankedRows]] | None,
    edges: Sequence[npt.NDArray[np.float32]],
    feature_names: Sequence[str],
    parameters: TrainParameters,
    *,
    max_grade: int,
    eval_metrics: Sequence[str] = (),
    info: Mapping[str, Any] | None = None,
    resume: Forest | None = None,
    n_threads: int = 0,
    pool_bytes: int = DEFAULT_POOL_BYTES,
    profile: bool = False,
    on_round: OnRound | None = None,
    checkpoint: Checkpoint | None = None,
    rounds: int | None = None,
) -> TrainingResult:
    """Train a forest; the same bytes for every ``n_threads`` (0: the cores this process may use).

    Parameters
    ----------
    train
        What is learnt from.
    eval_sets
        (name, rows) of what is only watched.  The first decides which round is the best one, by the stop metric, unless
        ``rounds_by`` is ``oob``; trees after it are left out if ``parameters.keeps_best``.  Without any all rounds are kept.
    edges
        One ascending float32 array a feature, of 254 edges at most; bin b >= 1 holds ``edges[b - 2] < x <= edges[b - 1]``, bin 0 the missing.
    feature_names
        As many as ``edges``; written into the model.
    parameters
        See :class:`TrainParameters`.
    max_grade
        Highest grade of the scale, for ERR; written into the model.
    eval_metrics
        Measured on all sets after every round besides the stop metric; they change nothing else.
    info
        Facts to keep in the model file (dataset digest ..); no times, no paths.
    resume
        Go on from this forest: the result has the same bytes as training ``n_rounds`` rounds in one go.  The records
        of its rounds are made again, ``on_round`` included, and eval sets and ``max_grade`` may be others than before.
    pool_bytes
        Bound of the memory for histograms; never changes the model.
    profile
        Time the phases of every round.
    on_round
        Called after every round, in the caller's thread; training ends after this round if it returns true.  What it
        raises is raised here.
    checkpoint
        Write all trees there now and then, at the end, and when the run is interrupted; and go on from what is there, as
        with ``resume``, if it has more rounds.
    rounds
        Do and keep so many of the ``n_rounds``, whatever eval sets say.

    Raises
    ------
    InvalidParameter
        ``n_threads`` is negative, the metric cannot be optimised or evaluated, ``monotone`` names a feature that is not
        there or the score is made of probabilities, sets share a name, or ``resume`` was trained in another way.
    TrainingDataRejected
        No rows, no query with two grades, bad weights, edges or names that are none, an eval set with the bins of other
        rows or features, or a first one in which nothing is relevant.
    """
    n_threads, max_grade = workers_for(n_threads), whole_number("max_grade", max_grade)
    if train.n_rows == 0:
        raise TrainingDataRejected("the train split holds no rows")
    _check_features(feature_names, edges)
    monotone = directions_of(parameters.monotone, feature_names)
    asked, parameters = parameters, settled(train, parameters)
    info = {**(info or {}), **learnt_from_facts(train, parameters)}
    objective = objective_of(rows_learnt_from(train, parameters), parameters)
    criterion = criterion_of(objective, parameters)
    if monotone.any() and objective.link != "identity":
        raise InvalidParameter(
            f"monotone constraints are for one score a document; {objective.name} makes its score of probabilities"
        )
    sets = [train, *(rows for _, rows in eval_sets or ())]
    if objective.link != "identity" and any(rows.offsets is not None for rows in sets):
        raise InvalidParameter(
            f"offsets are for one score a document; {objective.name} makes its score of probabilities"
        )
    replayed: list[Tree] = []
    if resume is not None:
        check_resumable(resume, asked, feature_names, info, objective)
        replayed = trees_of(resume, edges)
    if checkpoint is not None and (found := checkpoint.read()) is not None and found.n_trees > len(replayed):
        with suppress(InvalidParameter):  # else it is not ours, and will be replaced
            check_resumable(found, asked, feature_names, info, objective)
            replayed = trees_of(found, edges)
    n_bins = np.array([len(cuts) + 2 for cuts in edges], dtype=np.int32)
    bins = train.blocked(n_bins)
    watch = Watch(
        train,
        eval_sets or (),
        objective,
        parameters,
        eval_metrics,
        max_grade=max_grade,
        n_bins=n_bins,
        decides=rounds is None
        and parameters.rounds_by != "oob"
        and (parameters.keeps_best or parameters.early_stopping_rounds > 0),
    )
    if parameters.step_search == "line" and objective.steps_a_round > 1:
        raise InvalidParameter(f"step_search: the rounds of {objective.name} have several steps; leave it at none")
    sampler = Sampler(train.starts, len(feature_names), parameters)
    many = trees_a_round(objective)

    def assembled(trees: Sequence[Tree], facts: Mapping[str, Any]) -> Forest:
        return forest_of(trees, edges, feature_names, objective, len(trees) // many, asked, facts)

    run = _Run(
        parameters=parameters,
        objective=objective,
        rows=train,
        criterion=criterion,
        exact_leaves=takes_exact_steps(objective, criterion, parameters),
        bins=bins,
        monotone=monotone,
        sampler=sampler,
        out_of_bag=OutOfBag(objective, sampler, parameters, train.offsets) if parameters.rounds_by == "oob" else None,
        watch=watch,
        replayed=replayed,
        pool_bytes=pool_bytes,
        stopwatch=Stopwatch(on=profile),
        on_round=on_round,
        keep=None if checkpoint is None else _Keeper(checkpoint, many, lambda trees: assembled(trees, info)),
        rounds=rounds,
    )
    trees, history, best_round = with_team(n_threads, run)
    best = history[best_round - 1].metrics
    facts = {
        **info,
        "max_grade": max_grade,
        "best_round": best_round,
        "rounds_trained": len(history),
        "train": _stop_value(best[TRAIN], watch),
        "valid": _stop_value(best[watch.first], watch) if watch.first else {},
    }
    return TrainingResult(
        forest=assembled(trees[: best_round * many], facts),
        best_round=best_round,
        history=tuple(history),
        profile=run.stopwatch.profile(),
        by_query=watch.kept(),
    )


def _check_features(names: Sequence[str], edges: Sequence[npt.NDArray[np.float32]]) -> None:
    """Raise TrainingDataRejected unless every feature has a name of its own, and ascending edges that fit into a byte."""
    if len(names) == 0 or len(edges) != len(names):
        raise TrainingDataRejected(f"expected edges for each of a feature or more, found {len(edges)} for {len(names)}")
    seen: set[str] = set()
    for i, (name, cuts) in enumerate(zip(names, edges, strict=True)):
        if not isinstance(name, str) or not name or name in seen:
            raise TrainingDataRejected(
                f"feature {i} needs a name of its own, found {name!r}{' again' if name in seen else ''}"
            )
        seen.add(name)
        if len(cuts) >= MAX_BIN or np.isnan(cuts).any() or not np.all(cuts[1:] > cuts[:-1]):
            raise TrainingDataRejected(
                f"feature {name!r}: expected at most {MAX_BIN - 1} ascending edges, found {len(cuts)}"
                f"{'' if len(cuts) >= MAX_BIN else ' that do not ascend'}; bin the data anew"
            )


def _stop_value(metrics: Mapping[str, float], watch: Watch) -> dict[str, float]:
    """Return the stop metric alone, since what is only printed must not change the model; nothing where it is NaN."""
    name = str(watch.stop_metric)
    return {name: metrics[name]} if metrics[name] == metrics[name] else {}


@dataclass(frozen=True, slots=True)
class _Keeper:
    """Writes the trees of whole rounds to a checkpoint."""

    checkpoint: Checkpoint
    trees_a_round: int
    forest: Callable[[Sequence[Tree]], Forest]

    def now_and_then(self, trees: Sequence[Tree]) -> None:
        """Write them if it is time."""
        if self.checkpoint.is_due():
            self.now(trees)

    def now(self, trees: Sequence[Tree]) -> None:
        """Write them if there are more than are written already."""
        self.checkpoint.write(len(trees) // self.trees_a_round, lambda: self.forest(trees))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """All rounds of one training, called with the team that works on them."""

    parameters: TrainParameters
    objective: Objective
    rows: RankedRows
    criterion: str
    exact_leaves: bool
    bins: BlockedBins
    monotone: npt.NDArray[np.int8]
    sampler: Sampler
    out_of_bag: OutOfBag | None
    watch: Watch
    replayed: Sequence[Tree]  # of the first rounds, if they have been trained before
    pool_bytes: int
    stopwatch: Stopwatch
    on_round: OnRound | None
    keep: _Keeper | None
    rounds: int | None

    def __call__(self, team: Team) -> tuple[list[Tree], list[RoundRecord], int]:
        trees: list[Tree] = []
        try:
            return self._all_rounds(team, trees)
        finally:  # also where it was interrupted: rounds that are whole are worth keeping
            if self.keep is not None and trees:
                self.keep.now(trees)

    def _all_rounds(self, team: Team, trees: list[Tree]) -> tuple[list[Tree], list[RoundRecord], int]:
        """Add the trees of whole rounds to ``trees``; return them, the history, and the best round."""
        p, watch, stopwatch = self.parameters, self.watch, self.stopwatch
        grower = Grower(self.bins, p, team, monotone=self.monotone, pool_bytes=self.pool_bytes, timed=stopwatch.on)
        stepper = _Stepper(self, grower, team)
        stopping = self._stopping()
        many = trees_a_round(self.objective)
        history: list[RoundRecord] = []
        for round_number in range(1, (self.rounds or p.n_rounds) + 1):
            stopwatch.start_round()
            known = self.replayed[(round_number - 1) * many : round_number * many]
            grown = stepper.replay(round_number, known) if known else stepper.grow(round_number)
            trees += grown
            with stopwatch.phase(WALKING):
                watch.add(grown, team)
            with stopwatch.phase(METRICS):
                record = RoundRecord(round_number, watch.means(stepper.scores, team), stepper.oob_improvement)
            history.append(record)
            leave = self.on_round is not None and bool(self.on_round(record))
            if (value := self._value(history)) is not None:
                leave |= stopping.update(round_number, value)
            if not p.keeps_best or stopping.best_round in {0, round_number}:
                watch.keep()
            if not known:
                stopwatch.end_round()
                if self.keep is not None:
                    self.keep.now_and_then(trees)
            if leave:
                break
        return trees, history, (p.keeps_best and stopping.best_round) or len(history)

    def _stopping(self) -> EarlyStopping:
        p = self.parameters
        higher_is_better = self.out_of_bag is not None or self.watch.stop_metric.higher_is_better
        return EarlyStopping(p.early_stopping_rounds, higher_is_better, min_improvement=p.min_improvement)

    def _value(self, history: Sequence[RoundRecord]) -> float | None:
        """Return what tells whether the last round was better than those before; None where nothing does."""
        if self.rounds is not None:
            return None
        if self.out_of_bag is not None:
            return fsum(record.oob_improvement or 0.0 for record in history)
        return history[-1].metrics[self.watch.first][str(self.watch.stop_metric)] if self.watch.first else None


class _Stepper:
    """The scores of the rows that are learnt from, and the trees of a round that move them."""

    def __init__(self, run: _Run, grower: Grower, team: Team) -> None:
        self._run, self._grower, self._team = run, grower, team
        n, n_outputs = run.bins.n_rows, run.objective.n_outputs
        shape = (n,) if n_outputs == 1 else (n_outputs, n)
        self.scores = starting_scores(run.rows, run.objective)
        self._g, self._h = np.empty(shape, dtype=np.float64), np.empty(shape, dtype=np.float64)
        self._searched = run.parameters.step_search == "line"
        self._every_row = np.arange(n if run.replayed or self._searched else 0, dtype=ROW)
        self.oob_improvement: float | None = None  # of the last round
        self._weights: npt.NDArray[np.float64] | None = None
        if run.criterion == "se":
            self._weights = document_weights(run.rows)
            if not len(self._weights):
                self._weights = np.ones(n, dtype=np.float64)

    def replay(self, round_number: int, trees: Sequence[Tree]) -> list[Tree]:
        """Add trees that have been grown before."""
        run, objective, before = self._run, self._run.objective, self._before()
        for i, tree in enumerate(trees):
            if run.out_of_bag is not None and i % objective.n_outputs == 0:  # some losses go by the draws of a step
                step = (round_number - 1) * objective.steps_a_round + i // objective.n_outputs + 1
                objective.gradients(step, self.scores, self._g, self._h, self._team)
            add_tree(tree, run.bins, self._every_row, self._of(self.scores, i), self._team)
        self._estimate(round_number, before)
        return list(trees)

    def grow(self, round_number: int) -> list[Tree]:
        """Return the trees of a round, added to the scores: those of the outputs, step after step."""
        run, team, objective = self._run, self._team, self._run.objective
        sample = run.sampler.draw(round_number)
        before = self._before()
        grown: list[Tree] = []
        for of_round in range(objective.steps_a_round):
            step = (round_number - 1) * objective.steps_a_round + of_round + 1
            with run.stopwatch.phase(GRADIENTS):
                objective.gradients(step, self.scores, self._g, self._h, team)
            with run.stopwatch.growing(self._grower):
                grown += [self._tree(step, output, sample) for output in range(objective.n_outputs)]
        if self._searched:
            grown = self._scaled(grown, sample, before)
        self._estimate(round_number, before)
        return grown

    def _before(self) -> npt.NDArray[np.float64]:
        """Return a copy of the scores if it is needed when the round is done."""
        needed = self._searched or self._run.out_of_bag is not None
        return self.scores.copy() if needed else self.scores

    def _estimate(self, round_number: int, before: npt.NDArray[np.float64]) -> None:
        if self._run.out_of_bag is not None:
            self.oob_improvement = self._run.out_of_bag.improvement(round_number, before, self.scores)

    def _scaled(self, trees: list[Tree], sample: Sample, before: npt.NDArray[np.float64]) -> list[Tree]:
        """Return the trees of a round times the step that lowers the loss of the sample most, and add those instead."""
        objective, shrinkage = self._run.objective, self._run.parameters.learning_rate
        counted = ~self._run.sampler.left_out(sample, objective.sums_over == QUERIES)
        way = (self.scores - before) / shrinkage  # Friedman (2001): the step is searched first, and shrunk then
        step = best_step(lambda step: float(row_kernels.total_of(objective.losses(before + step * way), counted)))
        scaled = [replace(tree, value=step * tree.value + 0.0) for tree in trees]
        self.scores[...] = before
        for output, tree in enumerate(scaled):  # as replaying them will: the same bits
            add_tree(tree, self._run.bins, self._every_row, self._of(self.scores, output), self._team)
        return scaled

    def _pairs(self, step: int, whole: float) -> PairCurvatures | None:
        """Return the pairs by which splits are chosen, ``whole`` their curvature in all; None where none are asked for."""
        run = self._run
        if run.criterion != "ole":
            return None
        per_row = run.parameters.ole_pairs
        least = whole / max(per_row * self._run.bins.n_rows, FEWEST_DRAWN_PAIRS) if per_row else 0.0
        return run.objective.pair_curvatures(step, self.scores, least, self._team)

    def _tree(self, step: int, output: int, sample: Sample) -> Tree:
        run, objective = self._run, self._run.objective
        paired = run.criterion == "ole" or run.exact_leaves
        # every pair adds its curvature to the h of both rows
        whole = 0.5 * total_of(self._h, self._team) if paired else 0.0

        def inside(leaf_of_row: npt.NDArray[np.int32], n_leaves: int) -> npt.NDArray[np.float64]:
            return objective.curvature_inside(step, self.scores, leaf_of_row, n_leaves, whole, self._team)

        return self._grower.grow(
            self._of(self._g, output),
            self._of(self._h, output),
            self._of(self.scores, output),
            rows=sample.rows,
            features=sample.features,
            weights=self._weights,
            pairs=self._pairs(step, whole),
            inside_leaves=inside if run.exact_leaves else None,
            leaf_steps=partial(objective.leaf_steps, output, self.scores),
        )

    def _of(self, values: npt.NDArray[np.float64], number: int) -> npt.NDArray[np.float64]:
        """Return the part of ``values`` that belongs to tree ``number`` of a round."""
        n_outputs = self._run.objective.n_outputs
        return values if n_outputs == 1 else values[number % n_outputs]
