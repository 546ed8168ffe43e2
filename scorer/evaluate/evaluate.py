"""Evaluate a ranked list on disk, a TREC run with judgments, or candidates with a model."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Self, Unpack

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from rankmill.foundation.cures import command, spelled_with
from rankmill.foundation.errors import InputError
from rankmill.foundation.kernels.randoms import random_bits_of
from rankmill.foundation.options import made_from, spelled, spelled_in, takes_options_of
from rankmill.foundation.storage.publish import write_atomically
from rankmill.foundation.storage.url_arguments import takes_urls
from rankmill.pipeline.dataset.digests import FileState, refuse_changed, states_of
from rankmill.pipeline.dataset.goals import ALL_GOALS, check_goal
from rankmill.pipeline.options import ReadOptions
from rankmill.pipeline.read.batch import Source
from rankmill.pipeline.read.columns import check_somewhere
from rankmill.pipeline.read.files import refuse_copies
from rankmill.scorer.arguments import JudgedArguments
from rankmill.scorer.evaluate.evaluation import Evaluation, EvaluationCounts, JudgedQueries
from rankmill.scorer.evaluate.query_columns import column_of_candidates, column_of_dataset, column_of_scored
from rankmill.scorer.evaluate.scored_file import QrelsFile, as_scored
from rankmill.scorer.evaluate.scored_lists import (
    ScoredLists,
    highest_grade,
    known_scale,
    prepared,
    read_lists,
    recorded_facts,
    refuse_repeated,
    with_scale,
)
from rankmill.scorer.evaluate.slices import slices_of
from rankmill.scorer.evaluate.train_test_overlap import Scope, TrainedModel, chosen_queries, scope_of_candidates
from rankmill.scorer.metrics import Metric, Policy, parse_metric
from rankmill.scorer.metrics._kernels import count_tied
from rankmill.scorer.metrics.arrangement import queries_that_differ
from rankmill.scorer.metrics.conventions import Convention, as_convention, named_convention
from rankmill.scorer.metrics.significance import BOOTSTRAP_SEED, REPLICATES, percentile_interval
from rankmill.scorer.models.loading import load_model_file, predictor_of
from rankmill.scorer.models.model import Model
from rankmill.scorer.options import JudgedOptions
from rankmill.scorer.rerank.candidate_sources import (
    DatasetSource,
    PathLike,
    files_of,
    open_sources,
    paths_of,
    read_options,
)
from rankmill.scorer.rerank.score import scored_rows

_NO_SCALES: Mapping[str, int] = MappingProxyType({})
_POLICY = frozenset(each.name for each in fields(Policy))


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationOptions:
    """The options ``judged``, with the metrics and the convention that they name."""

    judged: JudgedOptions
    metrics: tuple[Metric, ...]
    convention: Convention
    goal_scales: Mapping[str, int] = field(default_factory=dict)  # highest grades for ERR, if not those of the subject
    qrels: QrelsFile | None = None  # those of ``judged``, which all evaluations with these options share

    @property
    def goals(self) -> tuple[str, ...]:
        """The goals that metrics name."""
        return tuple(sorted({metric.goal for metric in self.metrics} - {""}))

    @classmethod
    def of(cls, given: JudgedArguments) -> Self:
        """Look up metrics and the convention by name; fields of `Policy` in ``given`` override the convention.

        Raises
        ------
        InputError
            A metric, convention or value is unknown.
        """
        policy = {name: value for name, value in given.items() if name in _POLICY}
        judged = made_from(JudgedOptions, {name: value for name, value in given.items() if name not in _POLICY})
        metrics = [metric if isinstance(metric, Metric) else parse_metric(metric) for metric in judged.metrics]
        for metric in metrics:
            if metric.goal == ALL_GOALS:
                check_goal(metric, ALL_GOALS, (), "")
        rules = named_convention(judged.convention).but(**policy)
        unique = tuple(dict.fromkeys(metrics))
        reading = ReadOptions(columns=judged.columns or {}, delimiter=judged.delimiter)
        qrels = None if judged.qrels is None else QrelsFile(Path(judged.qrels), reading)
        return cls(judged=judged, metrics=unique, convention=rules, qrels=qrels)

    def on_split(self, split: str | None) -> Self:
        """Return the same for another split."""
        return replace(self, judged=replace(self.judged, split=split))


@takes_urls
@takes_options_of(JudgedOptions, Policy)
def evaluate(
    subject: PathLike | Sequence[PathLike] | pa.Table,
    *,
    model: Model | PathLike | None = None,
    trained: TrainedModel | None = None,
    **options: Unpack[JudgedArguments],
) -> Evaluation:
    """Compute ranking metrics per query and on average.

    Parameters
    ----------
    subject
        Without ``model``: a scored list, as `rerank` writes it (a folder, .parquet, .tsv), a TREC run, or a table with
        the columns qid, score, and doc_id and grade where known.  Lists that `rerank` cut to the top k are evaluated
        with the grade counts of the whole lists.  With ``model``: files of candidates and folders of them, or the
        folder of one dataset.
    model
        The model, or path of a model file, that scores the candidates.
    trained
        The training data of the model, if more is known than the model records; see
        `rankmill.scorer.evaluate.train_test_overlap`.
    **options
        ``metrics``, such as ``["ndcg@10", "map"]`` (see `rankmill.scorer.metrics.parse_metric`); ``convention``,
        "rankmill" or the name of a tool (see `rankmill.scorer.metrics.conventions`); the fields of
        `rankmill.scorer.metrics.Policy`, which override the convention; all else of
        `rankmill.scorer.options.JudgedOptions`.  The default of ``max_grade`` is that of the training data of the
        model, else the highest grade in the input.

    Raises
    ------
    InputError
        A file or name is unknown, or the model has seen all queries and no split is given.
    CandidatesRejected
        The scored list or the candidates cannot be used.
    """
    return evaluate_as(EvaluationOptions.of(options), subject, model=model, trained=trained)


def evaluate_as(
    options: EvaluationOptions,
    subject: PathLike | Sequence[PathLike] | pa.Table,
    *,
    model: Model | PathLike | None = None,
    trained: TrainedModel | None = None,
) -> Evaluation:
    """Evaluate like `evaluate`, with options that were checked before."""
    judged = options.judged
    if judged.complete and judged.qrels is None:
        raise InputError(
            f"{spelled('complete')} counts judged queries missing from a run; give the judgments with "
            f"{spelled('qrels')} FILE"
        )
    if model is None:
        opened = _open_list(subject, judged)
    else:
        model = model if isinstance(model, Model) else load_model_file(model)
        trained = trained or TrainedModel.of(model)
        opened = _score_candidates(subject, model, trained, options)
    rules, qrels = options.convention, options.qrels
    by_goal, table = _read_by_goal(
        opened.scored, options.metrics, qrels, opened.counts, complete=judged.complete, where=opened.where
    )
    if any(metric.name == "err" and not metric.goal for metric in options.metrics):
        rules = with_scale(rules, table, qrels, opened.known_grade, opened.counts)
    scales = _goal_scales(by_goal, options.metrics, {**opened.goal_scales, **options.goal_scales})
    evaluation = evaluate_lists(by_goal, options.metrics, rules, scales, same_documents=model is not None)
    scope = opened.scope
    if scope is None and trained is not None:
        scope = scope_of_candidates([trained], evaluation.qids)
    slices = tuple(part for name in judged.by for part in slices_of(evaluation, name, opened.column))
    return replace(evaluation, scope=scope, slices=slices)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Opened:
    """A subject with its scores.

    ``counts`` is the file of grade counts of the whole lists, ``known_grade`` the highest grade of the scale; each is
    None if not recorded. ``goal_scales`` has the highest grades of goals. ``column`` reads a column of the subject by
    its name, and ``where`` names a table in messages.
    """

    scored: Path | pa.Table
    column: Callable[[str], pl.DataFrame]
    counts: Path | None = None
    known_grade: int | None = None
    goal_scales: Mapping[str, int] = field(default_factory=dict)
    scope: Scope | None = None
    where: str = ""


def _open_list(subject: PathLike | Sequence[PathLike] | pa.Table, options: JudgedOptions) -> _Opened:
    if options.cluster is not None:
        raise InputError(f"{spelled('cluster')} is for scoring; leave it out, or add {spelled('model')} MODEL")
    if options.split is not None:
        raise InputError(
            f"{spelled('split')} chooses a part of a dataset, which must be scored by a model; add {spelled('model')} "
            "MODEL"
        )
    if isinstance(subject, pa.Table):
        refuse_repeated(as_scored(subject, "scored table"), "scored table")
        return _Opened(scored=subject, column=partial(column_of_scored, subject))
    paths = paths_of(subject)
    if len(paths) == 2 and paths[0].exists() and not paths[1].exists():
        again = command("evaluate", paths[0], "--model", str(paths[1]))
        cure = again if spelled_in() == "command line" else spelled_with("model", str(paths[1]))
        raise InputError(f"{paths[1]}: no such file; if it is a model: {cure}")
    if len(paths) != 1:
        raise InputError(f"expected one scored list, got {len(paths)}; candidates need {spelled('model')} MODEL")
    counts, known_grade = recorded_facts(paths[0], with_counts=options.qrels is None)
    column = partial(column_of_scored, paths[0])
    return _Opened(scored=paths[0], column=column, counts=counts, known_grade=known_grade)


def _score_candidates(
    subject: PathLike | Sequence[PathLike] | pa.Table,
    model: Model,
    trained: TrainedModel,
    evaluated: EvaluationOptions,
) -> _Opened:
    options = evaluated.judged
    if isinstance(subject, pa.Table):
        raise InputError("a table of scores needs no model; leave out the model, or give files of candidates")
    reading, paths = read_options(options, model), paths_of(subject)
    dataset, scope = chosen_queries(paths, options.split, [trained])
    predictor = predictor_of(model, n_rounds=options.n_rounds, start_round=options.start_round)
    states: Mapping[Path, FileState] = {}
    sources: list[Source]
    column: Callable[[str], pl.DataFrame]
    if dataset is None or scope is None:
        elsewhere = evaluated.qrels is not None and evaluated.qrels.roles is not None
        reading = replace(reading, columns_elsewhere=elsewhere)
        graded = replace(reading, goals=evaluated.goals)
        files = files_of(paths, options.format, announce=options.announce)
        states = states_of(files)
        sources = open_sources(files, options.format, graded, announce=options.announce)
        refuse_copies(files)
        if evaluated.qrels is not None:
            tables = [*(source.table for source in sources), evaluated.qrels.roles]
            check_somewhere(reading.columns, tables, evaluated.qrels.path)
        column = partial(column_of_candidates, files, options.format, reading)
    else:
        for metric in evaluated.metrics:
            check_goal(metric, metric.goal, dataset.goals, str(dataset.path))
        sources = [DatasetSource(dataset, scope.split, predictor, evaluated.goals)]
        column = partial(column_of_dataset, dataset, scope.split)
    reading = replace(reading, goals=evaluated.goals)
    if options.cluster is None:
        scored = scored_rows(sources, predictor, reading, options.threads)
    else:
        from rankmill.scorer.rerank.on_cluster import rows_scored_on_cluster

        split = None if scope is None else scope.split
        scored = rows_scored_on_cluster(sources, predictor, reading, options, dataset, split)
    refuse_changed(states)
    return _Opened(
        scored=scored,
        column=column,
        known_grade=known_scale(model.info.get("max_grade")),
        goal_scales={} if dataset is None else dataset.goals,
        scope=scope,
        where=f"{paths[0]}{f' and {len(paths) - 1:,} more' * (len(paths) > 1)}",
    )


def evaluate_scored(
    scored: Path | str | pa.Table,
    metrics: Sequence[Metric],
    policy: Policy | Convention,
    *,
    qrels: Path | str | QrelsFile | None = None,
    grade_counts: Path | str | pa.Table | None = None,
    complete: bool = False,
    goal_scales: Mapping[str, int] = _NO_SCALES,
    replicates: int = REPLICATES,
) -> Evaluation:
    """Evaluate scored lists; the rows of a query may be anywhere in the file, queries are reported by ascending qid.

    Parameters
    ----------
    scored
        A table with the columns of `rankmill.scorer.evaluate.scored_file.read_scored`, or a path that it can read.  A
        rank written there is ignored: documents are ranked by score, ties by the policy.
    metrics, policy
        The metrics, and one policy for all or the convention of a tool.
    qrels
        Judgments in TREC format.  They replace grades of the file; unjudged documents have grade 0; the ideal list is
        that of all judged documents, retrieved or not.  Queries without judgments are skipped and counted.
    grade_counts
        Columns qid, grade, count: how often each grade occurs in the whole list of a query, if ``scored`` has only
        the top k.  It determines the ideal list and the number of relevant documents, unless there are qrels.
    complete
        With qrels: judged queries that are missing from the run count as empty (``-c`` of trec_eval).  Otherwise
        they are skipped and counted.
    goal_scales
        The highest grade of each goal, for ERR; default: the highest in the lists.
    replicates
        For the bootstrap intervals; 0: no intervals.

    Raises
    ------
    InputError
        A file is missing, there are neither grades nor qrels, or the policy needs data that is missing.
    CandidatesRejected
        A score is not a number, a column is missing, a line is malformed, or a document occurs twice in a query.
    """
    metrics = tuple(dict.fromkeys(metrics))
    by_goal, _ = _read_by_goal(scored, metrics, QrelsFile.of(qrels), grade_counts, complete=complete)
    scales = _goal_scales(by_goal, metrics, goal_scales)
    return evaluate_lists(by_goal, metrics, as_convention(policy), scales, replicates)


def _read_by_goal(
    scored: Path | str | pa.Table,
    metrics: Sequence[Metric],
    qrels: QrelsFile | None,
    grade_counts: Path | str | pa.Table | None,
    *,
    complete: bool,
    where: str = "",
) -> tuple[dict[str, ScoredLists], pa.Table]:
    """Read lists with the grades of each goal that ``metrics`` name, and the table of the first of them.

    Goals are in ascending order.
    """
    if not metrics:
        raise InputError("no metric given; name one, for example ndcg@10")
    found = {
        goal: read_lists(scored, qrels=qrels, grade_counts=grade_counts, complete=complete, goal=goal, where=where)
        for goal in sorted({metric.goal for metric in metrics})
    }
    return {goal: lists for goal, (lists, _) in found.items()}, next(iter(found.values()))[1]


def _goal_scales(
    by_goal: Mapping[str, ScoredLists], metrics: Sequence[Metric], known: Mapping[str, int]
) -> dict[str, int]:
    """Return the highest grade of each goal by which ERR is computed: the ``known`` one, else that of the lists."""
    goals = [metric.goal for metric in metrics if metric.name == "err" and metric.goal]
    return {goal: known.get(goal) or highest_grade(by_goal[goal]) for goal in goals}


def evaluate_lists(
    by_goal: Mapping[str, ScoredLists],
    metrics: tuple[Metric, ...],
    convention: Convention,
    goal_scales: Mapping[str, int],
    replicates: int = REPLICATES,
    *,
    same_documents: bool = False,
) -> Evaluation:
    """Evaluate lists, each metric under the policy that the convention has for it.

    ``by_goal`` has the same lists with the grades of each goal in ascending order, the main ones with an empty name;
    the first of them are counted.  ``same_documents``: other rankings, with which this one may be compared, have the
    same documents, as those of two models do.
    """
    by_policy: dict[tuple[str, Policy], list[Metric]] = {}
    for metric in metrics:
        rules = convention.but(max_grade=goal_scales.get(metric.goal))
        by_policy.setdefault((metric.goal, rules.policy_for(metric)), []).append(metric)
    values: dict[Metric, npt.NDArray[np.float64]] = {}
    weights: dict[Metric, npt.NDArray[np.float64] | None] = {}
    can_differ: dict[Metric, npt.NDArray[np.bool_]] = {}
    for (goal, policy), some in by_policy.items():
        lists = by_goal[goal]
        queries = prepared(lists, policy)
        values |= queries.evaluate(some, lists.scores)
        weights |= {metric: queries.weights(metric) for metric in some}
        known = lists if same_documents else lists.with_all_known()
        can_differ |= (queries if known is lists else prepared(known, policy)).can_differ(some)
    lists = next(iter(by_goal.values()))
    facts = _facts(lists, convention.policy)
    return Evaluation(
        metrics=metrics,
        convention=convention,
        ideal=lists.ideal,
        qids=tuple(lists.qids),
        values=values,
        weights=weights,
        can_differ=can_differ,
        facts=facts,
        intervals={
            metric: percentile_interval(of_metric, weights=weights[metric], replicates=replicates, seed=BOOTSTRAP_SEED)
            if replicates
            else None
            for metric, of_metric in values.items()
        },
        counts=_counts(lists, facts, convention.policy),
        goal_scales=goal_scales,
    )


def _counts(lists: ScoredLists, facts: JudgedQueries, policy: Policy) -> EvaluationCounts:
    queries, sizes = prepared(lists, policy), np.diff(lists.starts)
    n_documents, n_tied = int(sizes.sum()), int(count_tied(lists.scores, lists.starts))
    cut = facts.n_documents > sizes
    return EvaluationCounts(
        n_queries=len(lists.qids),
        n_documents=n_documents,
        n_nothing_relevant=int(queries.nothing_relevant(Metric("err")).sum()),
        n_below_relevant_from=int(queries.nothing_relevant(Metric("map")).sum()),
        n_single_document=int(np.count_nonzero(sizes == 1)),
        n_one_grade=int(np.count_nonzero((sizes > 1) & ~queries_that_differ(lists.grades, lists.starts))),
        n_tied_documents=n_tied,
        tied_share=n_tied / n_documents if n_documents else 0.0,
        n_unjudged_documents=lists.n_unjudged_documents,
        n_unjudged_queries=lists.n_unjudged_queries,
        n_missing_queries=lists.n_missing_queries,
        n_cut_queries=int(np.count_nonzero(cut)),
        fewest_kept=int(sizes[cut].min()) if cut.any() else None,
    )


def _facts(lists: ScoredLists, policy: Policy) -> JudgedQueries:
    """Summarise the documents of each query that determine its ideal order."""
    sizes = np.diff(lists.starts)
    grades, starts = lists.grades, lists.starts
    if lists.ideal_grades is not None and lists.ideal_starts is not None:
        grades, starts = lists.ideal_grades, lists.ideal_starts
    n_known = np.diff(starts)
    ideal = np.zeros(len(sizes), dtype=np.uint64)
    query = np.repeat(np.arange(len(sizes)), n_known)
    positive = grades > 0
    # a random number per grade, so that equal sums mean equal lists of grades
    marks = random_bits_of(np.zeros(len(grades), dtype=np.uint64), grades.astype(np.uint64))
    np.add.at(ideal, query[positive], marks[positive])
    relevant = np.bincount(query[grades >= policy.relevant_from], minlength=len(sizes))
    whole = np.maximum(sizes, n_known) if lists.ideal == "grade counts" else sizes
    return JudgedQueries(n_documents=whole, n_known=n_known, n_relevant=relevant, ideal=ideal, grades=np.unique(grades))


def write_per_query(evaluation: Evaluation, path: Path) -> None:
    """Write one row per query to .tsv, .csv or .parquet.

    Columns are qid and one per metric, which is empty for skipped queries.

    Raises
    ------
    InputError
        ``path`` has another suffix.
    """
    checked_per_query(path)
    values = [evaluation.values[metric] for metric in evaluation.metrics]
    names = [str(metric) for metric in evaluation.metrics]
    if path.suffix.lower() == ".parquet":
        columns = [pa.array(evaluation.qids, pa.string()), *(pa.array(v, from_pandas=True) for v in values)]
        sink = io.BytesIO()
        pq.write_table(pa.table(dict(zip(["qid", *names], columns, strict=True))), sink)
        data = sink.getvalue()
    else:
        page = io.StringIO()
        writer = csv.writer(page, delimiter="\t" if path.suffix.lower() == ".tsv" else ",", lineterminator="\n")
        writer.writerow(["qid", *names])
        for qid, *cells in zip(evaluation.qids, *(v.tolist() for v in values), strict=True):
            writer.writerow([qid, *("" if math.isnan(cell) else repr(cell) for cell in cells)])
        data = page.getvalue().encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, data)


def checked_per_query(path: Path) -> None:
    """Raise InputError unless ``path`` names a format that `write_per_query` knows."""
    if path.suffix.lower() not in {".tsv", ".csv", ".parquet"}:
        raise InputError(
            f"{path}: expected a file name that ends in .tsv, .csv or .parquet for the metrics of each query"
        )
