"""Compare rankings of the same queries, from models or scored lists: differences, intervals and significance."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Unpack

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rankmill.foundation.errors import CandidatesRejected, InputError
from rankmill.foundation.options import spelled, takes_options_of
from rankmill.foundation.records import fields_in
from rankmill.pipeline.group.sketch import QuerySketch
from rankmill.scorer.arguments import JudgedArguments
from rankmill.scorer.evaluate.comparison import Comparison, MetricDifference, SeedNoise
from rankmill.scorer.evaluate.evaluate import EvaluationOptions, evaluate_as
from rankmill.scorer.evaluate.evaluation import Evaluation
from rankmill.scorer.evaluate.train_test_overlap import ALL, TrainedModel, chosen_queries, scope_of_candidates
from rankmill.scorer.metrics import Metric, Policy
from rankmill.scorer.metrics.per_query import mean_of
from rankmill.scorer.metrics.significance import (
    FEW_QUERIES,
    FLIPS,
    MOST_SHOWN,
    Paired,
    compare_paired,
    holm,
    sign_flip_p,
)
from rankmill.scorer.models.model import Model
from rankmill.scorer.options import JudgedOptions
from rankmill.scorer.rerank.candidate_sources import PathLike, paths_of

_NAMED = 3  # queries in a message


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """A ranking that takes part in a comparison.

    Attributes
    ----------
    name
        Its name in the report.
    source
        A model, which ranks the candidates; or a scored list: a path or table, as
        `rankmill.scorer.evaluate.evaluate.evaluate` takes it.
    seeds
        Other versions of the model that differ only in their seed, by name.  They show how much the metrics vary by
        chance in training.
    train_queries
        The queries that the model was trained on, if the registry has them.
    """

    name: str
    source: Model | PathLike | pa.Table
    seeds: Mapping[str, Model] = field(default_factory=dict)
    train_queries: QuerySketch | None = None

    @property
    def trained(self) -> TrainedModel | None:
        """What is known about the training data; None for a list."""
        return TrainedModel.of(self.source, self.name, self.train_queries) if isinstance(self.source, Model) else None


@takes_options_of(JudgedOptions, Policy)
def compare(
    rankings: Sequence[Ranking],
    *,
    on: PathLike | Sequence[PathLike] | None = None,
    baseline: int = 0,
    worst: int = MOST_SHOWN,
    flips: int = FLIPS,
    **options: Unpack[JudgedArguments],
) -> Comparison:
    """Compare rankings of the same queries with one of them, query by query.

    Parameters
    ----------
    rankings
        Two or more.
    on
        Candidates, or the folder of one dataset, that models rank; scored lists bring their own.  By default, of a
        dataset that a model was trained on: a split that no model has seen.
    baseline
        The ranking that the others are compared with, from 0.
    worst
        Maximum number of queries to list, with the largest loss in the first metric.
    flips
        Number of random sign flips if there are too many to enumerate (`rankmill.scorer.metrics.significance`).
    **options
        Other options of `rankmill.scorer.evaluate.evaluate.evaluate`: ``metrics``, ``split``, ``qrels``, ``convention``
        and so on.

    Notes
    -----
    Memory holds the narrow columns of one ranking, and the values per query of all.  The report has the same bytes for
    any order of rows and number of threads.

    Raises
    ------
    InputError
        There are fewer than two rankings, the baseline does not exist, a model has no candidates, or the models have
        seen all queries.
    CandidatesRejected
        The rankings have different queries, or a query counts in only one of them.
    """
    resolved = EvaluationOptions.of(options)
    if resolved.judged.cluster is not None:
        raise InputError(
            f"{spelled('cluster')} is an option of evaluate; compare evaluates on this machine: leave it out"
        )
    _check(rankings, on, resolved, baseline)
    models = [ranking.trained for ranking in rankings if ranking.trained is not None]
    dataset, scope = (None, None) if on is None else chosen_queries(paths_of(on), resolved.judged.split, models)
    on_split = resolved.on_split(None if dataset is None or scope is None else scope.split or ALL)
    evaluations, on_scale = _on_one_scale([ranking.source for ranking in rankings], on, on_split)
    first = evaluations[baseline]
    for ranking, evaluation in zip(rankings, evaluations, strict=True):
        _check_same_queries(evaluation, ranking.name, first, rankings[baseline].name)
    others = [i for i in range(len(rankings)) if i != baseline]
    groups = _seed_groups(rankings, evaluations, on, on_scale)
    differences = _differences(evaluations, baseline, others, groups, worst, flips)
    return Comparison(
        names=tuple(ranking.name for ranking in rankings),
        baseline=baseline,
        evaluations=tuple(evaluations),
        differences=differences,
        flips=flips,
        notes=tuple(_notes(rankings, evaluations, baseline, differences)),
        scope=scope or scope_of_candidates(models, first.qids),
    )


Source = Model | PathLike | pa.Table


def _evaluate(source: Source, on: PathLike | Sequence[PathLike] | None, options: EvaluationOptions) -> Evaluation:
    """Evaluate a list, or the candidates ``on`` as the model ``source`` ranks them."""
    if not isinstance(source, Model):
        return evaluate_as(options.on_split(None), source)
    if on is None:
        raise InputError(f"no candidates given for the model; name them with {spelled('on')}")
    return evaluate_as(options, on, model=source)


def _on_one_scale(
    sources: Sequence[Source], on: PathLike | Sequence[PathLike] | None, options: EvaluationOptions
) -> tuple[list[Evaluation], EvaluationOptions]:
    """Evaluate all; those with a lower highest grade are evaluated again with the highest one.

    Also return the options with that one.
    """
    evaluations = [_evaluate(source, on, options) for source in sources]
    scales = [_scales(evaluation, options) for evaluation in evaluations]
    highest = {goal: max(scale[goal] for scale in scales) for goal in scales[0]}
    of_goals = {goal: top for goal, top in highest.items() if goal}
    options = replace(options, convention=options.convention.but(max_grade=highest.get("")), goal_scales=of_goals)
    return [
        evaluation if scale == highest else _evaluate(source, on, options)
        for source, evaluation, scale in zip(sources, evaluations, scales, strict=True)
    ], options


def _scales(evaluation: Evaluation, options: EvaluationOptions) -> dict[str, int]:
    """Return the highest grades by which ERR was computed, by goal.

    The main grade has an empty name; it is left out if its scale was given.
    """
    scales = dict(evaluation.goal_scales)
    if options.convention.policy.max_grade is None and any(
        metric.name == "err" and not metric.goal for metric in options.metrics
    ):
        scales[""] = evaluation.policy.max_grade or 1
    return scales


def _seed_groups(
    rankings: Sequence[Ranking],
    evaluations: Sequence[Evaluation],
    on: PathLike | Sequence[PathLike] | None,
    options: EvaluationOptions,
) -> dict[int, dict[str, dict[Metric, float]]]:
    """Return the means of each model that has other seeds, and of these, by name; each model is evaluated once."""
    means: dict[str, dict[Metric, float]] = {}
    for ranking, evaluation in zip(rankings, evaluations, strict=True):
        if isinstance(ranking.source, Model):
            means[ranking.source.sha256] = _means(evaluation)
    groups: dict[int, dict[str, dict[Metric, float]]] = {}
    for i, ranking in enumerate(rankings):
        for name, model in {ranking.name: ranking.source, **ranking.seeds}.items() if ranking.seeds else ():
            if isinstance(model, Model):
                if model.sha256 not in means:
                    means[model.sha256] = _means(_evaluate(model, on, options))
                groups.setdefault(i, {})[name] = means[model.sha256]
    return groups


def _means(evaluation: Evaluation) -> dict[Metric, float]:
    return {metric: mean_of(values[evaluation.can_differ[metric]]) for metric, values in evaluation.values.items()}


def _differences(
    evaluations: Sequence[Evaluation],
    baseline: int,
    others: Sequence[int],
    groups: Mapping[int, Mapping[str, Mapping[Metric, float]]],
    worst: int,
    flips: int,
) -> dict[int, dict[Metric, MetricDifference | None]]:
    first = evaluations[baseline]
    qids = pa.array(first.qids, pa.string())
    pairs: dict[tuple[int, Metric], Paired] = {}
    rows: list[npt.NDArray[np.float64]] = []
    for i in others:
        for metric in first.metrics:
            now, then = evaluations[i].values[metric], first.values[metric]
            paired = compare_paired(
                now,
                then,
                qids,
                can_differ=evaluations[i].can_differ[metric] | first.can_differ[metric],
                weights=first.weights[metric],
                higher_is_better=metric.higher_is_better,
                most_shown=worst,
            )
            if paired is not None:
                pairs[i, metric] = paired
                rows.append(now - then)
    p = dict(zip(pairs, sign_flip_p(np.stack(rows), flips=flips).tolist() if rows else [], strict=True))
    adjusted: dict[tuple[int, Metric], float] = {}
    for metric in first.metrics:
        family = [(i, metric) for i in others if (i, metric) in p]
        adjusted |= dict(zip(family, holm([p[key] for key in family]), strict=True))
    return {
        i: {
            metric: MetricDifference(
                **fields_in(pairs[i, metric]),
                p=p[i, metric],
                p_holm=adjusted[i, metric],
                seed_noise=_seed_noise(metric, pairs[i, metric], [groups[j] for j in (baseline, i) if j in groups]),
            )
            if (i, metric) in pairs
            else None
            for metric in first.metrics
        }
        for i in others
    }


def _seed_noise(
    metric: Metric, paired: Paired, groups: Sequence[Mapping[str, Mapping[Metric, float]]]
) -> SeedNoise | None:
    """Pool the standard deviations within the groups; None if no group has two members."""
    squares, freedom = 0.0, 0
    versions: dict[str, None] = {}
    for n, group in enumerate(groups):
        values = [means[metric] for means in group.values()]
        if len(values) < 2 or any(math.isnan(value) for value in values):
            continue
        if any(set(group) == set(other) for other in groups[:n]):  # the two models differ in their seed only
            continue
        mean = math.fsum(values) / len(values)
        squares += math.fsum((value - mean) ** 2 for value in sorted(values))
        freedom += len(values) - 1
        versions |= dict.fromkeys(group)
    if not freedom:
        return None
    deviation = math.sqrt(squares / freedom)
    exceeded = abs(paired.difference) > 2.0 * deviation
    return SeedNoise(deviation=deviation, versions=tuple(versions), exceeded_twice=exceeded)


def _notes(
    rankings: Sequence[Ranking],
    evaluations: Sequence[Evaluation],
    baseline: int,
    differences: Mapping[int, Mapping[Metric, MetricDifference | None]],
) -> list[str]:
    notes = []
    first, name = evaluations[baseline], rankings[baseline].name
    for i, by_metric in differences.items():
        unlike = np.flatnonzero(evaluations[i].facts.ideal != first.facts.ideal)
        if len(unlike):
            notes.append(
                f"{len(unlike):,} queries, such as {first.qids[int(unlike[0])]!r}, have other grades in "
                f"{rankings[i].name} than in {name}, so that their ideal lists differ; judgments given with "
                f"{spelled('qrels')} would be the same for both"
            )
        alike = {
            metric: first.n_counted(metric) - (0 if paired is None else paired.n_queries)
            for metric, paired in by_metric.items()
        }
        if any(alike.values()):
            counts = ", ".join(f"{count:,} by {metric}" for metric, count in alike.items() if count)
            notes.append(
                f"left out, as {rankings[i].name} and {name} cannot differ in them: {counts} (queries without two "
                "documents that the metric distinguishes)"
            )
        if rankings[i].name in rankings[baseline].seeds:
            notes.append(f"{rankings[i].name} and {name} differ in their seed only: what they differ by is chance")
    counted = max(
        (paired.n_queries for each in differences.values() for paired in each.values() if paired is not None), default=0
    )
    if first.note_on_gains:
        notes.append(first.note_on_gains)
    if counted < FEW_QUERIES:
        notes.append(
            f"{counted} queries are few: an interval of fewer than {FEW_QUERIES} is narrower than it should be"
        )
    return notes


def _check(
    rankings: Sequence[Ranking], on: PathLike | Sequence[PathLike] | None, options: EvaluationOptions, baseline: int
) -> None:
    if len(rankings) < 2:
        raise InputError(f"expected two or more rankings to compare, got {len(rankings)}")
    if not 0 <= baseline < len(rankings):
        raise InputError(f"{spelled('baseline')} counts the {len(rankings)} rankings from 1, got {baseline + 1}")
    models = [ranking.name for ranking in rankings if isinstance(ranking.source, Model)]
    if on is None and models:
        raise InputError(f"{models[0]} is a model; name the candidates or the dataset to rank with {spelled('on')}")
    if not models and (on is not None or options.judged.split is not None):
        raise InputError(
            f"{spelled('on')} and {spelled('split')} are for models, but all rankings here are scored lists; leave "
            "these options out"
        )
    if not options.metrics:
        raise InputError("no metric given; name one, for example ndcg@10")


def _check_same_queries(evaluation: Evaluation, name: str, first: Evaluation, other: str) -> None:
    if evaluation.qids != first.qids:
        here, there = set(evaluation.qids), set(first.qids)
        parts = [
            f"{len(only):,} of {whose} are not in {whose_not} ({', '.join(map(repr, sorted(only)[:_NAMED]))}"
            f"{', ..' if len(only) > _NAMED else ''})"
            for only, whose, whose_not in ((there - here, other, name), (here - there, name, other))
            if only
        ]
        raise CandidatesRejected(
            f"{name}: expected the same queries as in {other}, found that {' and '.join(parts)}; rank all queries "
            "with both"
            + (f", or count queries missing from a run with {spelled('complete')}" if first.ideal == "qrels" else "")
        )
    for metric in first.metrics:
        unlike = np.flatnonzero(np.isnan(evaluation.values[metric]) != np.isnan(first.values[metric]))
        if len(unlike):
            where = name if math.isnan(evaluation.values[metric][unlike[0]]) else other
            raise CandidatesRejected(
                f"{name}: query {evaluation.qids[int(unlike[0])]!r} has nothing relevant for {metric} in {where}, and "
                f"something in the other ranking ({len(unlike):,} such queries); give the judgments of both with "
                f"{spelled('qrels')}, or count these queries as 0 with {spelled('nothing_relevant')} zero"
            )
