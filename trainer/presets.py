"""Presets: what decides the training options that are left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from rankmill.foundation.options import DEFAULTS, declared_in, option_of, spelled
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.trainer.data.rows import RankedRows, TrainingData, has_two_grades
from rankmill.trainer.data.training_rows import given_pairs
from rankmill.trainer.objectives.registry import objective_class
from rankmill.trainer.objectives.spelling import parse_spelling
from rankmill.trainer.parameters import (
    AUTO,
    BAYESIAN,
    BLENDING,
    FAST,
    GRADES,
    MOST_OBLIVIOUS_DEPTH,
    OF_EVERY_KIND,
    RF,
    UNBIASED,
    USUAL,
    TrainParameters,
    options_for,
)
from rankmill.trainer.rounds.resuming import MAY_DIFFER
from rankmill.trainer.training_options import StartingModel

FEW_QUERIES, FEWEST_QUERIES = 5_000, 300  # of the train split
MOST_RATE, MANY_ROUNDS = 0.2, 1000
MANY_CATEGORIES = 200  # of a feature: fewer have bins of their own, and gain nothing from it
LEAST_BLENDED = 3  # queries: the folds that judge the kinds
MOST_BLENDED = 20_000  # queries of the train split: more were not measured, and a net needs all values in memory
WHERE_BLENDED = "only fit, train and run blend"


@dataclass(frozen=True, slots=True)
class DataShape:
    """What a preset may know of the data."""

    queries: int  # of the train split
    has_valid: bool
    may_refit: bool  # whether the valid split may be learnt from in the end, as other queries judge the model
    pairs_alone: bool = False  # whether there are preference pairs, and grades say nothing

    def in_folds(self) -> DataShape:
        """Return the shape for a cross-validation, where held-out queries choose the rounds."""
        return replace(self, has_valid=True)


def shape_of_rows(data: TrainingData) -> DataShape:
    """Return the shape of data in memory, whose test split only the caller has."""
    rows = data.train
    has_valid, pairs_alone = (
        bool(data.eval_sets),
        given_pairs(rows) > 0 and not has_two_grades(rows.grades, rows.starts),
    )
    return DataShape(rows.n_queries, has_valid, has_valid, pairs_alone)


def shape_of_dataset(dataset: Dataset) -> DataShape:
    """Return the shape of a dataset, from its manifest alone."""
    train, unseen = dataset.manifest.splits.get("train"), set(dataset.manifest.unseen)
    pairs_alone = dataset.manifest.pairs is not None and len(dataset.manifest.grades) < 2
    may_refit = unseen == {"test", "valid"}
    return DataShape(0 if train is None else train.queries, "valid" in unseen, may_refit, pairs_alone)


def with_preset(parameters: TrainParameters, shape: DataShape, resume: StartingModel | None = None) -> TrainParameters:
    """Return ``parameters`` of trees with a value for every option that was left out; those that were given stay.

    The trees of ``auto-2`` are those of ``auto-1``, and say so.  A training that resumes keeps what the preset chose
    for the model, as more rounds could make it choose otherwise.
    """
    if parameters.preset == DEFAULTS:
        return parameters
    parameters = replace(parameters, preset=AUTO, budget=USUAL)
    values = dict(_auto_1(parameters, shape))
    if resume is not None and resume.forest.parameters.get("preset") == AUTO:
        values |= {
            name: value for name, value in options_for(resume.forest.parameters).items() if name not in MAY_DIFFER
        }
    return parameters.completed(values)


def why_trees_alone(given: TrainParameters, rows: RankedRows | None = None) -> str:
    """Return why the preset ``auto-2`` trains trees alone, in words; empty: it blends models of several kinds.

    ``rows`` are those to train on, if they are known; bins are not used.
    """
    usual = TrainParameters()
    if given.budget == FAST:
        return f"{spelled('budget')} is {FAST}"
    for each in declared_in(TrainParameters):
        if each.name not in OF_EVERY_KIND and getattr(given, each.name) != getattr(usual, each.name):
            return f"{spelled(each.name)} is given"
    if rows is None:
        return ""
    if rows.n_queries < LEAST_BLENDED:
        return f"there are fewer than {LEAST_BLENDED} queries"
    if rows.n_queries > MOST_BLENDED:
        return f"there are more than {MOST_BLENDED:,} queries"
    facts = {"labels": rows.labels, "offsets": rows.offsets, "preference pairs": rows.pairs}
    found = [what for what, values in facts.items() if values is not None]
    found += [] if has_two_grades(rows.grades, rows.starts) else ["no query with two grades"]
    return f"the rows have {found[0]}" if found else ""


def blends(given: TrainParameters) -> bool:
    """Return whether ``given`` asks for a blend; what is trained on may still allow trees alone."""
    return given.preset == BLENDING and not why_trees_alone(given)


def choices_line(given: TrainParameters, chosen: TrainParameters, alone: str = WHERE_BLENDED) -> str:
    """Return a line with the values that the preset of ``given`` has ``chosen`` and that are not the usual ones.

    It is empty if the preset had nothing to choose.  ``alone`` says why ``auto-2`` trains trees alone; empty: it does
    not.

    >>> given = TrainParameters(preset="auto-1", n_rounds=80)
    >>> line = choices_line(given, with_preset(given, DataShape(9_000, has_valid=True, may_refit=True)))
    >>> print(line.partition(", grow")[0])
    preset auto-1: objective query_rmse, learning_rate 0.2, stop_window 20
    """
    if all(value is not None for value in given.as_dict().values()):
        return ""
    values = {
        each.name: getattr(chosen, each.name)
        for each in declared_in(TrainParameters)
        if getattr(given, each.name) is None and getattr(chosen, each.name) != option_of(each).by_preset
    }
    words = ", ".join(f"{name} {value}" for name, value in values.items())
    which = (f", trees alone ({alone})" if alone else ", its first trees") * (given.preset == BLENDING)
    return f"preset {given.preset}{which}: {words or 'the values of ' + DEFAULTS}"


def alone_line(given: TrainParameters, alone: str = WHERE_BLENDED) -> str:
    """Return a line on why the preset ``auto-2`` trains trees alone; empty: it blends, or trees alone were asked for.

    >>> alone_line(TrainParameters(), "a cluster trains")
    'preset auto-2, trees alone (a cluster trains)'
    """
    asked = given.preset != BLENDING or given.budget == FAST
    return "" if asked or not alone else f"preset {given.preset}, trees alone ({alone})"


def _auto_1(given: TrainParameters, shape: DataShape) -> Mapping[str, Any]:
    """Shallow trees, a smoothed stop, and for few queries random weights and a refit.

    docs/presets.md has the evidence.
    """
    few, forest = shape.queries <= FEW_QUERIES, given.boosting == RF
    values: dict[str, Any] = {"stop_window": 40 if few else 20}
    if not shape.pairs_alone:
        values["encode_above"] = MANY_CATEGORIES
    if not forest:
        values |= _rounds_and_rate(given, shape)
    if given.learn_from == GRADES or not (given.learn_from or shape.pairs_alone):  # it cannot learn from pairs
        values["objective"] = "query_rmse"
    elif shape.pairs_alone:  # nor can one that needs grades for the weights of pairs
        values["objective"] = "ranknet"
    deep = (given.max_depth or 0) > MOST_OBLIVIOUS_DEPTH
    other_trees = given.max_leaves is not None or given.monotone or given.criterion == "ole" or deep
    other_trees = other_trees or given.feature_fraction_by_node < 1.0
    if given.grow in {None, "oblivious"} and not other_trees and not forest:
        values |= {"grow": "oblivious", "max_depth": 4 if few else 6}
    of_clicks = given.corrects_clicks
    if given.position_bias == UNBIASED or (of_clicks and "trust" not in given.propensities):  # pairs are weighed
        values["objective"] = "lambdamart"
    if few and shape.may_refit and not of_clicks:
        values["refit"] = "all"
    takes_weights = given.criterion != "ole" and given.leaf != "exact"
    if forest and takes_weights and given.bootstrap in {None, BAYESIAN}:
        values |= {"bootstrap": "bayesian", "bootstrap_by": "query"}  # trees of the same data would be the same
    elif few and takes_weights and given.bootstrap in {None, BAYESIAN}:
        values |= {"bootstrap": "bayesian", "bootstrap_by": "document", "leaf_rows": "all"}
        averages = given.objective is None or not objective_class(parse_spelling(given.objective)[0]).limits.averages
        if shape.queries <= FEWEST_QUERIES and averages and not of_clicks and given.rounds_by != "oob":
            values["members"] = 3
    return values


def _rounds_and_rate(given: TrainParameters, shape: DataShape) -> dict[str, Any]:
    """Return ``n_rounds`` and ``learning_rate``.

    There are many rounds if something chooses among them, else as many as are usually best.

    What is usually best is a product of both, so fewer rounds than that learn faster.
    """
    rate, product = (
        (0.05, 7.5) if shape.queries <= 500 else (0.05, 15.0) if shape.queries <= FEW_QUERIES else (0.07, 21.0)
    )
    chosen = given.rounds_by != "valid" or (shape.has_valid and given.keeps_best)
    n_rounds = MANY_ROUNDS if chosen else round(product / rate)
    faster = round(product / (given.n_rounds or n_rounds), 3)
    return {"n_rounds": n_rounds, "learning_rate": min(MOST_RATE, max(rate, faster))}
