"""The boosting loop: gradients, a tree, new scores, metrics, until early stopping or the last round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from math import fsum
from typing import Any

import numpy as np
import numpy.typing as npt

from rankmill.foundation.errors import InvalidParameter, TrainingDataRejected, name_hint
from rankmill.foundation.options import spelled
from rankmill.foundation.scalars import whole_number
from rankmill.pipeline.options import MAX_BIN
from rankmill.scorer.forest.forest import Forest
from rankmill.trainer.data.rows import TrainingData
from rankmill.trainer.data.shard import span_of
from rankmill.trainer.data.target_encoding import EncodedColumn, with_encoded_columns
from rankmill.trainer.data.training_rows import learnt_from_facts, resolved, rows_learnt_from
from rankmill.trainer.growing.controls import Controls
from rankmill.trainer.growing.grower import Grower
from rankmill.trainer.growing.tree import Tree
from rankmill.trainer.incompatible import CLUSTER, Fact, check_loss
from rankmill.trainer.objectives.protocol import Objective
from rankmill.trainer.objectives.registry import criterion_of, objective_of, takes_exact_steps
from rankmill.trainer.parameters import MVS, NONE, RF, TrainParameters
from rankmill.trainer.rounds.assembly import forest_of, trees_a_round
from rankmill.trainer.rounds.checkpoints import Checkpoint
from rankmill.trainer.rounds.early_stopping import DEVIANCE, EarlyStopping, measures_of
from rankmill.trainer.rounds.members import Members, Prepared
from rankmill.trainer.rounds.resuming import check_resumable, trees_of
from rankmill.trainer.rounds.round_metrics import RoundMetrics
from rankmill.trainer.rounds.sampling import OutOfBag, OutOfBagMean, Sampler
from rankmill.trainer.rounds.training_result import (
    TRAIN,
    RoundRecord,
    TrainingResult,
)
from rankmill.trainer.team import Team, with_team, workers_for_rows
from rankmill.trainer.training_options import DEFAULT_OPTIONS, TrainingOptions


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
        ``eval_metrics``, ``n_threads``, ``histogram_memory``, ``on_round`` are used, and ``resume``: the records of
        its rounds are made again, and eval sets and ``max_grade`` may be others than before.
    checkpoint
        Write all trees there now and then, at the end, and when the training is interrupted; and resume what is there
        if it has more rounds than ``options.resume``.
    rounds
        Number of rounds to train and keep, without regard to eval sets.
    fold
        Of a cross-validation: 1, 2, ..; ``on_round`` then ends nothing.

    Raises
    ------
    InvalidParameter
        ``n_threads`` is negative, the metric cannot be optimised or evaluated, a constraint names a feature that is not
        there or the score is computed from probabilities, or ``resume`` was trained in another way.
    TrainingDataRejected
        No rows, no query with two grades, bad weights, edges or names that are none, an eval set with the bins of other
        rows or features, or a first one of which all rankings are as good.
    """
    n_rows = data.train.n_rows + sum(rows.n_rows for _, rows in data.eval_sets)
    n_threads = workers_for_rows(options.n_threads, n_rows, len(data.feature_names))
    prepared = prepare(data, parameters, options, checkpoint)
    asked, by_metric = prepared.asked, rounds is None and prepared.asked.rounds_by != "oob"
    metrics = RoundMetrics(
        prepared.data, prepared.objective, prepared.parameters, options.eval_metrics, in_fold=fold > 0,
        shard=options.shard,
        decides=by_metric and (asked.keeps_best or asked.early_stopping_rounds > 0),
    )  # fmt: skip

    def train(team: Team) -> tuple[list[Tree], list[RoundRecord], int]:
        trees: list[Tree] = []
        try:
            history, best_round = _do_rounds(prepared, metrics, team, trees, checkpoint, rounds, fold)
        finally:  # also where it was interrupted: rounds that are whole are worth keeping
            if trees:
                _write(checkpoint, prepared, trees)
        return trees, history, best_round

    trees, history, best_round = with_team(n_threads, train)
    return finish(prepared, metrics, trees, history, best_round)


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
    """Raise TrainingDataRejected unless feature names differ, and edges ascend and fit into a byte."""
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
                f"feature {name!r}: expected at most {MAX_BIN - 1} ascending edges, found "
                f"{len(cuts)}{'' if len(cuts) >= MAX_BIN else ' that do not ascend'}; bin the data again"
            )


def check(
    data: TrainingData,
    parameters: TrainParameters,
    options: TrainingOptions,
    objective: Objective,
    encoded: Sequence[EncodedColumn],
) -> None:
    """Raise InvalidParameter for parameters that do not work with this loss and these data."""
    p = parameters
    facts: dict[str, object] = {}
    categorical = [name for name in data.feature_names if name in data.categories]
    if categorical:
        facts["categories"] = Fact(f"the categorical feature {categorical[0]!r}")
        for name in p.monotone:
            if name in data.categories:
                raise InvalidParameter(f"monotone: the feature {name!r} is categorical, and categories have no order")
    if any(rows.offsets is not None for rows in (data.train, *(rows for _, rows in data.eval_sets))):
        facts["offsets"] = Fact("offsets")
    if options.shard is not None:
        deviance = DEVIANCE in measures_of(p, options.eval_metrics, graded=data.train.graded)
        facts["cluster"] = CLUSTER
        facts["deviance"] = Fact("the metric deviance") if deviance else None
        facts["encoded"] = Fact(spelled("encode_above")) if encoded else None
    if facts:
        check_loss(objective, p, **facts)
    of_features = min(p.feature_fraction, p.feature_fraction_by_level, p.feature_fraction_by_node)
    fraction = min(p.query_fraction, p.row_fraction, of_features)
    weighted = p.bootstrap != NONE and not (p.bootstrap == MVS and min(p.query_fraction, p.row_fraction) == 1.0)
    if p.boosting == RF and fraction == 1.0 and not weighted and p.random_strength == 0.0 and not p.extra_trees:
        raise InvalidParameter(
            "boosting rf: all trees would be the same; set query_fraction, row_fraction or feature_fraction below 1, or"
            " bootstrap to bayesian"
        )


def prepare(
    data: TrainingData, parameters: TrainParameters, options: TrainingOptions, checkpoint: Checkpoint | None
) -> Prepared:
    """Return what the rounds of a training work with; arguments and errors are those of :func:`boost`."""
    whole_number("max_grade", data.max_grade)
    if data.train.n_rows == 0:
        raise TrainingDataRejected("the train split has no rows")
    _check_features(data.feature_names, data.edges)
    monotone = directions_of(parameters.monotone, data.feature_names)
    own = resolved(data.train, parameters)
    info = {**data.info, **learnt_from_facts(data.train, own)}
    objective = objective_of(rows_learnt_from(data.train, own), own)
    criterion = criterion_of(objective, own)
    encoded_data, encoded = with_encoded_columns(data, own)
    check(data, own, options, objective, encoded)
    controls = Controls.of(parameters, data.feature_names, [column.source for column in encoded])
    replayed = _trained_before(data, parameters, options, checkpoint, objective, info, encoded)
    data, train = encoded_data, encoded_data.train
    span = span_of(train.starts, options.shard)
    if options.shard is not None:
        objective.write_only(span.first_query, span.last_query)
    bins = train.blocked(data.n_bins)
    sampler = Sampler(train.starts, len(data.feature_names), own)
    out_of_bag: OutOfBag | None = None
    if parameters.rounds_by == "oob":
        of_mean = parameters.boosting == RF
        out_of_bag = (
            OutOfBagMean(objective, sampler, own, train.starts)
            if of_mean
            else OutOfBag(objective, sampler, own, train.offsets)
        )
    return Prepared(
        data=data, asked=parameters, parameters=own, options=options, info=info, objective=objective,
        criterion=criterion, exact_leaves=takes_exact_steps(objective, own), encoded=encoded,
        monotone=monotone, categorical=np.isin(data.feature_names, list(data.categories)), controls=controls, span=span,
        bins=bins, sampler=sampler, out_of_bag=out_of_bag, replayed=replayed,
    )  # fmt: skip


def _trained_before(
    data: TrainingData,
    parameters: TrainParameters,
    options: TrainingOptions,
    checkpoint: Checkpoint | None,
    objective: Objective,
    info: Mapping[str, Any],
    encoded: Sequence[EncodedColumn],
) -> list[Tree]:
    """Return the trees of the model to resume, or those of the checkpoint if it has more."""

    def taken(forest: Forest) -> list[Tree]:
        check_resumable(forest, parameters, data.feature_names, info, objective)
        return trees_of(forest, data.edges, encoded)

    trees = [] if options.resume is None else taken(options.resume.forest)
    found = None if checkpoint is None else checkpoint.read()
    if found is not None and found.n_trees > len(trees):
        with suppress(InvalidParameter):  # else it is not ours, and will be replaced
            return taken(found)
    return trees


def _do_rounds(
    prepared: Prepared,
    metrics: RoundMetrics,
    team: Team,
    trees: list[Tree],
    checkpoint: Checkpoint | None,
    rounds: int | None,
    fold: int,
) -> tuple[list[RoundRecord], int]:
    """Add the trees of whole rounds to ``trees``; return what they measured, and the best round."""
    p, options = prepared.parameters, prepared.options
    whole_steps = replace(p, learning_rate=1.0) if p.boosting == RF else p
    grower = Grower(
        prepared.bins, whole_steps, team, monotone=prepared.monotone, categorical=prepared.categorical,
        controls=prepared.controls, pool_bytes=options.histogram_memory, span=prepared.span,
    )  # fmt: skip
    members = Members(prepared, grower, team)
    higher_is_better = prepared.out_of_bag is not None or metrics.stop_metric.higher_is_better
    stopping = EarlyStopping.of(p, higher_is_better=higher_is_better)
    many = trees_a_round(prepared.objective, p)
    history: list[RoundRecord] = []
    for round_number in range(1, (rounds or p.n_rounds) + 1):
        known = prepared.replayed[(round_number - 1) * many : round_number * many]
        trees += members.replay(round_number, known) if known else members.grow(round_number)
        if metrics.first is not None:
            metrics.add(members.change(), team)
        means = metrics.means(members.mean_scores(), team)
        record = RoundRecord(round_number, means, members.oob_improvement, fold, p.seed)
        history.append(record)
        ended = options.on_round is not None and bool(options.on_round(record)) and not fold
        if rounds is None and (value := _stop_value(prepared, metrics, history)) is not None:
            ended |= stopping.update(round_number, value)
        if not p.keeps_best or stopping.best_round in {0, round_number}:
            metrics.keep()
        if not known and checkpoint is not None and checkpoint.is_due():
            _write(checkpoint, prepared, trees)
        if ended:
            break
    return history, (p.keeps_best and stopping.best_round) or len(history)


def _stop_value(prepared: Prepared, metrics: RoundMetrics, history: Sequence[RoundRecord]) -> float | None:
    """Return the value by which early stopping compares the last round with those before; None without one."""
    if prepared.out_of_bag is not None:
        return fsum(record.oob_improvement or 0.0 for record in history)
    return history[-1].metrics[metrics.first][str(metrics.stop_metric)] if metrics.first else None


def _write(checkpoint: Checkpoint | None, prepared: Prepared, trees: Sequence[Tree]) -> None:
    if checkpoint is not None:
        rounds = len(trees) // trees_a_round(prepared.objective, prepared.parameters)
        checkpoint.write(rounds, lambda: _forest(prepared, trees, prepared.info).to_bytes())


def finish(
    prepared: Prepared,
    metrics: RoundMetrics,
    trees: Sequence[Tree],
    history: Sequence[RoundRecord],
    best_round: int,
) -> TrainingResult:
    """Return the forest up to the best round, and what was measured."""

    def stop_value(of_set: Mapping[str, float]) -> dict[str, float]:
        """Return the stop metric alone; nothing where it is NaN.

        Metrics that are only printed must not change the model.
        """
        name = str(metrics.stop_metric)
        return {name: of_set[name]} if of_set[name] == of_set[name] else {}

    best = history[best_round - 1].metrics
    facts = {
        **prepared.info,
        "max_grade": whole_number("max_grade", prepared.data.max_grade),
        "best_round": best_round,
        "rounds_trained": len(history),
        "train": stop_value(best[TRAIN]),
        "valid": stop_value(best[metrics.first]) if metrics.first else {},
        **prepared.objective.learnt(best_round),
    }
    kept = trees[: best_round * trees_a_round(prepared.objective, prepared.parameters)]
    return TrainingResult(
        forest=_forest(prepared, kept, facts),
        best_round=best_round,
        history=tuple(history),
        by_query=metrics.by_query(),
    )


def _forest(prepared: Prepared, trees: Sequence[Tree], info: Mapping[str, Any]) -> Forest:
    data, objective = prepared.data, prepared.objective
    n_rounds = len(trees) // trees_a_round(objective, prepared.parameters)
    return forest_of(
        trees, data.edges, data.feature_names, data.categories, objective, n_rounds, prepared.asked, info,
        prepared.encoded
    )  # fmt: skip
