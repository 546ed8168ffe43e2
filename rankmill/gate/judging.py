"""Judge a candidate against the current version, or a first version against simple baselines."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rankmill.foundation.code_digest import code_digest
from rankmill.foundation.cores import available_cores
from rankmill.foundation.errors import CandidatesRejected, InputError
from rankmill.foundation.options import spelled
from rankmill.gate import guardrails
from rankmill.gate.gate_report import (
    BASELINE,
    RECENT,
    ContenderFacts,
    FurtherVerdict,
    GateQueries,
    GateReport,
    RivalFacts,
    Rule,
)
from rankmill.gate.gate_rules import MARGIN, NO_OPTION, ConventionFacts, GateRules, convention_digest, option_words
from rankmill.gate.graded_queries import GradedQueries, Scores, best_single_feature, check_features, scores_of
from rankmill.gate.guardrails import Guardrail
from rankmill.pipeline.arrow import as_array
from rankmill.pipeline.dataset.goals import check_goal
from rankmill.pipeline.group.sketch import QuerySketch, overlap
from rankmill.scorer.metrics import Metric
from rankmill.scorer.metrics.per_query import TIED, mean_of
from rankmill.scorer.metrics.significance import FEW_QUERIES, Bootstrap, Paired, compare_paired, queries_for
from rankmill.scorer.models.loading import predictor_of
from rankmill.scorer.models.model import Model, Predictor

if TYPE_CHECKING:
    import pyarrow as pa

    from rankmill.clicks.off_policy import OffPolicyDifference
    from rankmill.pipeline.dataset.dataset import Dataset

    ByClicks = Callable[[pa.Table, pa.Table], OffPolicyDifference]

HIGHEST_SCALE = 52  # highest grade that err can use
FEWEST_QUERIES = 2
NAIVE = "naive model"


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A version at the gate.

    Attributes
    ----------
    name
        Its name, such as ``web@7``.
    model
        Its model.
    sha256, manifest_sha256
        Digests of its model and manifest.
    trained_on
        Digests of the known training datasets.
    train_queries
        Sketch of the training queries; None if it was not stored.
    """

    name: str
    model: Model
    sha256: str
    manifest_sha256: str
    trained_on: frozenset[str] = frozenset()
    train_queries: QuerySketch | None = None

    @property
    def facts(self) -> ContenderFacts:
        """The facts that identify the version in the report."""
        return ContenderFacts(version=self.name, model=self.sha256, manifest=self.manifest_sha256)


def judge(
    candidate: Contender,
    baseline: Contender | None,
    dataset: Dataset,
    split: str,
    rules: GateRules,
    *,
    naive: Contender | None = None,
    earlier: Sequence[Contender] = (),
    clicks: ByClicks | None = None,
    against: Dataset | None = None,
    n_threads: int = 0,
) -> GateReport:
    """Compare ``candidate`` with ``baseline`` on the queries of a split, check the guardrails, and return the report.

    The same input gives the same report, for any ``n_threads``; only ``max_latency`` adds a measurement.

    Parameters
    ----------
    candidate, baseline
        The models; without a baseline, the candidate is compared with the order of the rows and the best single
        feature.
    dataset, split
        The judged queries to compare on, not used for training any of the models.
    rules
        The rules of the gate.
    naive
        The model that was learnt from the same clicks as the candidate without correction, to be compared with too.
    earlier
        Versions that had the alias before the baseline; the best of them is a rival, if it is better than the baseline
        here.
    clicks
        Compares two rankings (columns qid, doc_id and score) by the clicks of a log.
    against
        A former dataset, for the guardrail about drift.
    n_threads
        Number of threads for scoring; 0: all cores.

    Raises
    ------
    InputError
        A model was trained on this split, or the split is empty.
    CandidatesRejected
        The dataset lacks a feature of a model, or fewer than two queries count.
    """
    contenders = [candidate] if baseline is None else [candidate, baseline]
    _refuse_seen_split(dataset, split, contenders)
    convention = rules.convention
    scale = _max_grade(dataset, contenders)
    if convention.policy.max_grade is None and scale <= HIGHEST_SCALE:
        convention = convention.but(max_grade=scale)
    for metric in (rules.metric, *rules.also):
        check_goal(metric, metric.goal, dataset.goals, str(dataset.path))
    queries = GradedQueries(dataset, split, convention)
    metrics = _metrics(rules, queries)
    recent, remarks = _comparable(dataset, split, queries, rules, earlier)
    judged = contenders if naive is None else [*contenders, naive]
    scored = [*judged, *recent]
    models, names = [each.model for each in scored], [each.name for each in scored]
    stored = scores_of(dataset, split, models, names, n_threads=n_threads or available_cores())
    scores = [queries.in_order(each) for each in stored]
    second = None if baseline is None else scores[1]
    for metric in (rules.metric, *rules.also):
        _refuse_too_few(queries, metric)
    rivals = _rivals(queries, rules.metric, baseline, second)
    if second is not None:
        rivals += _best_recent(
            queries, rules.metric, second, dict(zip(names[len(judged) :], scores[len(judged) :], strict=True))
        )
    if naive is not None:
        words = f"{naive.name}, learnt from the same clicks without correction"
        rivals.append(Rival(NAIVE, words, scores[len(contenders)], "not shown to be worse"))
    compared = [_compared(queries, candidate.name, scores[0], rival, rules, metrics) for rival in rivals]
    comparisons = tuple(comparison for comparison, _ in compared)
    rails = _guardrails(contenders, scores[0], second, queries, rules, against)
    if clicks is not None:
        rails += _by_clicks(clicks, queries, names[: len(judged)], stored[: len(judged)])
    reasons = [text for comparison in comparisons for text in comparison.reasons]
    reasons += [each.reason for comparison in comparisons for each in comparison.also or () if each.reason is not None]
    reasons += [rail.reason for rail in rails if rail.verdict == "failed"]
    notes = _notes(contenders, dataset, split, _decisive(comparisons[0], rules).n_queries)
    notes += [*remarks, *(text for _, qualified in compared for text in qualified)]
    if baseline is None and rules.also:
        notes.append(f"{', '.join(map(str, rules.also))}: not judged, as there is no current version to compare with")
    return GateReport(
        passed=not reasons,
        reasons=tuple(reasons),
        notes=tuple(notes),
        candidate=candidate.facts,
        baseline=None if baseline is None else baseline.facts,
        dataset=dataset.digest,
        split=split,
        queries=GateQueries(digest=queries.digest, queries=len(queries), documents=queries.n_rows),
        metric=str(rules.metric),
        margin=rules.margin,
        limits=rules.limits,
        convention=ConventionFacts.of(rules.convention),
        convention_sha256=convention_digest(rules.convention),
        max_grade=convention.policy.max_grade,
        bootstrap=Bootstrap(),
        comparisons=comparisons,
        guardrails=tuple(rail for rail in rails if rail.name != "latency"),
        code=code_digest("rankmill.gate", "rankmill.scorer"),
        worse=(not reasons and any(each.worse for each in comparisons)) or None,
        measured=tuple(rail for rail in rails if rail.name == "latency") or None,
    )


def _by_clicks(
    clicks: ByClicks, queries: GradedQueries, names: Sequence[str], scores: Sequence[Scores]
) -> Iterator[Guardrail]:
    """Compare the first model with each of the others by clicks; ``scores`` are in the order of the dataset."""
    ids = queries.dataset.rows(queries.split, ("qid", "doc_id"))
    if ids.column(1).null_count:
        raise InputError(
            f"{queries.dataset.path}: has rows without a doc_id, which {spelled('log')} needs; leave it out"
        )
    candidate, *others = (ids.append_column("score", as_array(_without_nan(each))) for each in scores)
    for name, other in zip(names[1:], others, strict=True):
        yield guardrails.clicks_of_log(name, clicks(candidate, other))


def _decisive(comparison: RivalFacts, rules: GateRules) -> Paired:
    """Return the comparison by the deciding metric, which exists because too few queries are an error."""
    found = comparison.metrics[str(rules.metric)]
    assert found is not None  # noqa: S101
    return found


def _rivals(queries: GradedQueries, metric: Metric, baseline: Contender | None, scores: Scores | None) -> list[Rival]:
    """Return the rankings to compare with.

    They are the baseline with its ``scores``, or those that a first version has to beat.
    """
    if baseline is None or scores is None:
        return [row_order(queries), single_feature(queries, metric)]
    return [Rival(BASELINE, f"{baseline.name}, the current version", scores, "not worse")]


def _comparable(
    dataset: Dataset, split: str, queries: GradedQueries, rules: GateRules, earlier: Sequence[Contender]
) -> tuple[list[Contender], list[str]]:
    """Return those of the earlier versions that can be compared on these queries, and why others cannot."""
    found, remarks = [], []
    for each in earlier:
        seen = None if each.train_queries is None else overlap(each.train_queries, queries.qids)
        if split == "train" and dataset.digest in each.trained_on:
            why = "it was trained on this split"
        elif seen is not None and seen.found and not rules.allow_seen_queries:
            why = "it was trained on some of these queries"
        else:
            try:
                check_features(dataset, predictor_of(each.model), each.name)
            except CandidatesRejected as error:
                why = str(error)
            else:
                found.append(each)
                continue
        remarks.append(f"{each.name}, which had the alias before, is not compared: {why}")
    return found, remarks


def _best_recent(queries: GradedQueries, metric: Metric, present: Scores, recent: Mapping[str, Scores]) -> list[Rival]:
    """Return the best of the ``recent`` versions by ``metric`` as a rival, unless the present one is as good."""
    sign, counts = 1.0 if metric.higher_is_better else -1.0, queries.can_differ(metric)

    def worth(scores: Scores) -> float:
        return sign * mean_of(queries.evaluate([metric], _without_nan(scores))[metric][counts])

    found = {name: worth(scores) for name, scores in recent.items()}
    best = max(found, key=lambda name: found[name], default=None)
    if best is None or found[best] <= worth(present) + TIED:
        return []
    words = f"{best}, the best of the last {len(recent) + 1} versions by these queries"
    return [Rival(RECENT, words, recent[best], "not worse")]


def _notes(contenders: Sequence[Contender], dataset: Dataset, split: str, counted: int) -> list[str]:
    """Return reservations about the verdict; ``counted`` queries count."""
    notes = [
        f"the split valid decided when the training of {each.name} stopped"
        for each in contenders
        if split == "valid" and dataset.digest in each.trained_on
    ]
    candidate = contenders[0]
    if candidate.name in {each.name for each in contenders[1:]}:
        notes.append(f"{candidate.name} is the current version: it was compared with itself")
    if counted < FEW_QUERIES:
        notes.append(f"{counted} queries are few: with fewer than {FEW_QUERIES} the interval is too narrow")
    return notes


def _refuse_seen_split(dataset: Dataset, split: str, contenders: Sequence[Contender]) -> None:
    trained = [each.name for each in contenders if dataset.digest in each.trained_on]
    if split == "train" and trained:
        raise InputError(
            f"{spelled('split')} train: {' and '.join(trained)} was trained on these queries of {dataset.path}, so "
            "they prove nothing; "
            f"use {spelled('split')} test, or valid"
        )


def _max_grade(dataset: Dataset, contenders: Sequence[Contender]) -> int:
    """Return the highest grade of the scale, from the data and the models' training data."""
    recorded = [each.model.info.get("max_grade") for each in contenders]
    return max(1, dataset.max_grade, *(grade for grade in recorded if isinstance(grade, int)))


def _metrics(rules: GateRules, queries: GradedQueries) -> list[Metric]:
    """Return the deciding and the shown metrics; ``err`` is not shown if a grade is beyond its scale."""
    top = queries.convention.policy_for(Metric("err")).max_grade
    beyond = top is None or int(queries.grades.max(initial=0)) > top
    judged = {rules.metric, *rules.also}
    return [metric for metric in rules.metrics if metric in judged or not (metric.name == "err" and beyond)]


def _refuse_too_few(queries: GradedQueries, metric: Metric) -> None:
    counted = int(np.count_nonzero(queries.can_differ(metric)))
    if counted < FEWEST_QUERIES:
        raise CandidatesRejected(
            f"{queries.dataset.path}: {counted} of {len(queries):,} queries of the split {queries.split} count for "
            f"{metric}, as "
            "two versions can differ only in queries with two documents that it tells apart by their grades; an "
            "interval needs "
            f"at least {FEWEST_QUERIES}, and a useful one hundreds"
        )


def _without_nan(scores: Scores) -> Scores:
    """Return ``scores`` (n,) with NaN ranked last; a guardrail reports them."""
    bad = np.isnan(scores)
    return np.where(bad, -np.inf, scores) if bad.any() else scores


def _compared(
    queries: GradedQueries, candidate: str, scores: Scores, rival: Rival, rules: GateRules, metrics: Sequence[Metric]
) -> tuple[RivalFacts, list[str]]:
    """Compare the candidate with one rival, by every metric; also return reservations about the verdict."""
    now = queries.evaluate(metrics, _without_nan(scores))
    then = queries.evaluate(metrics, _without_nan(rival.scores))
    found = {
        metric: compare_paired(
            now[metric],
            then[metric],
            queries.qids,
            can_differ=queries.can_differ(metric),
            weights=queries.weights(metric),
            higher_is_better=metric.higher_is_better,
        )
        for metric in metrics
    }
    decisive = found[rules.metric]
    assert decisive is not None  # noqa: S101 (too few queries are an error)
    threshold = 0.0 if rival.rule == "better" else -rules.margin + 0.0
    worse_allowed = rules.allow_significantly_worse
    passed, shown = rival.passed(decisive, rules.margin, worse_allowed), decisive.interval[0] > threshold
    worse = _worse(rules, rival, found) if worse_allowed else None
    facts = RivalFacts(
        against=rival.name,
        words=rival.words,
        rule=rival.rule,
        must_be_beaten=rival.rule == "better",
        above=threshold,
        passed=passed,
        reasons=() if passed else (_shortfall(rules, rules.metric, rival, decisive, threshold),),
        metrics={str(metric): each for metric, each in found.items()},
        worse=None if worse is None else True,
        also=_further(rules, rival, found) if rival.rule == "not worse" and rules.also else None,
    )
    notes = [_not_shown(rules, rival, decisive, candidate)] if passed and not shown else []
    if worse is not None:
        allowed = f"{option_words('allow_significantly_worse')} allows that"
        notes.append(f"{candidate} is SIGNIFICANTLY WORSE than {rival.words}: {worse}; {allowed}")
    return facts, notes


def _further(rules: GateRules, rival: Rival, found: Mapping[Metric, Paired | None]) -> tuple[FurtherVerdict, ...]:
    """Return the verdicts by the further metrics."""
    verdicts = []
    for metric, margin in rules.also.items():
        paired = found[metric]
        assert paired is not None  # noqa: S101 (too few queries are an error)
        passed = rival.passed(paired, margin, rules.allow_significantly_worse)
        reason = None if passed else _shortfall(rules, metric, rival, paired, -margin + 0.0)
        verdicts.append(FurtherVerdict(metric=str(metric), margin=margin, passed=passed, reason=reason))
    return tuple(verdicts)


def _worse(rules: GateRules, rival: Rival, found: Mapping[Metric, Paired | None]) -> str | None:
    """Return by which metrics the candidate is significantly worse than the version ``rival``; None if by none."""
    judged = {metric: found[metric] for metric in (rules.metric, *rules.also)}
    worse = [
        f"{metric} {_figures(each)}" for metric, each in judged.items() if each is not None and each.interval[1] < 0.0
    ]
    return ", ".join(worse) if worse and rival.rule == "not worse" else None


def _shortfall(rules: GateRules, metric: Metric, rival: Rival, found: Paired, threshold: float) -> str:
    """Describe why ``found`` violates the rule of ``rival``, what changes that, and how many queries would suffice."""
    text = f"{metric} against {rival.words}: {_figures(found)}, "
    if rival.rule == "better":
        return f"{text}its lower end must be above 0; {NO_OPTION}{_more_queries(found, 0.0)}"
    sets = f"{option_words('margin' if metric == rules.metric else 'also')} sets the margin"
    least = f"the smallest margin that would pass is {_smallest_margin(found):g}"
    if rival.rule == "not worse" and found.interval[1] < 0.0 and not rules.allow_significantly_worse:
        allowed = f"{option_words('allow_significantly_worse')} accepts that within the margin"
        return f"{text}significantly worse; {allowed}; with it {least}, now it is {0.0 - threshold:g}; {sets}"
    if rival.rule == "not shown to be worse":
        text += f"significantly worse, and the loss may exceed {rules.margin:g}"
    else:
        text += f"its lower end must be above {threshold:g}"
    text += f"; {sets}; {least}{_more_queries(found, threshold)}"
    if (default := queries_for(MARGIN, found)) is not None and threshold != -MARGIN:
        text += f"; the default margin of {MARGIN:g} needs about {default:,} such queries"
    return text


def _smallest_margin(found: Paired) -> float:
    """Return the smallest margin of four digits that the lower end of the interval allows."""
    return (math.floor(-found.interval[0] * 1e4) + 1) / 1e4


def _more_queries(found: Paired, threshold: float) -> str:
    """Say how many queries would suffice, if more would help."""
    so, none = (queries_for(-threshold, found, difference) for difference in (found.difference, 0.0))
    if found.difference <= threshold or so is None:
        return (
            ""
            if none is None
            else f"; about {none:,} such queries would do four times in five if there is no difference"
        )
    text = (
        f"; too few queries: with about {so:,} such queries the gate would pass four times in five if this is the "
        "true difference"
    )
    return text if none is None else f"{text}, {none:,} if there is none"


def _not_shown(rules: GateRules, rival: Rival, found: Paired, candidate: str) -> str:
    """Return what the gate has not shown about a version that passes."""
    text = (
        f"{found.n_queries:,} queries cannot show that {candidate} is not worse than the {rival.name} by more than "
        f"{rules.margin:g}: {_figures(found)}; it passes "
        f"{'' if rival.name == NAIVE else 'as the first version '}because it is not"
        " significantly worse"
    )
    enough = queries_for(rules.margin, found, 0.0)
    return text if enough is None else f"{text}; about {enough:,} queries like them can if there is no difference"


def _figures(found: Paired) -> str:
    low, high = found.interval
    return f"{found.difference:+.4f} (95 % interval {low:+.4f} to {high:+.4f}, {found.n_queries:,} queries)"


def _guardrails(
    contenders: Sequence[Contender],
    scores: Scores,
    baseline: Scores | None,
    queries: GradedQueries,
    rules: GateRules,
    against: Dataset | None,
) -> list[Guardrail]:
    predictors = [predictor_of(each.model) for each in contenders]
    names = [each.model.feature_names for each in contenders]
    before, before_names = (predictors[1], names[1]) if len(contenders) > 1 else (None, None)
    sketches: Mapping[str, QuerySketch | None] = {each.name: each.train_queries for each in contenders}
    rails = [
        guardrails.finite_scores(scores),
        guardrails.constant_scores(scores, baseline, queries.starts, rules.max_constant_rise),
        guardrails.features(names[0], before_names, allowed=rules.allow_feature_changes),
        guardrails.cost(predictors[0], before, rules.max_cost_ratio),
        guardrails.seen_queries(
            {name: None if sketch is None else overlap(sketch, queries.qids) for name, sketch in sketches.items()},
            allowed=rules.allow_seen_queries,
        ),
    ]
    if rules.max_latency is not None:
        rails.append(guardrails.latency(predictors[0], _sample(queries, predictors[0]), rules.max_latency))
    if against is None:
        rails.append(guardrails.drift(None))
    else:
        from rankmill.pipeline.statistics.dataset_drift import compare as drifted

        rails.append(guardrails.drift(drifted(queries.dataset, against)))
    return [*rails, guardrails.top_overlap(scores, baseline, queries.starts)]


def _sample(queries: GradedQueries, predictor: Predictor) -> Any:
    names = list(predictor.feature_names) or [queries.dataset.feature_names[0]]
    return next(iter(queries.dataset.feature_batches(queries.split, names, guardrails.LATENCY_DOCUMENTS)))


@dataclass(frozen=True, slots=True)
class Rival:
    """A ranking to compare with: a description and its scores (n,) in the order of the queries."""

    name: str
    words: str
    scores: Scores
    rule: Rule
    """The condition on the interval of the difference; see `Rival.passed`."""

    def passed(self, found: Paired, margin: float, worse_allowed: bool = False) -> bool:  # noqa: FBT001, FBT002
        """Return whether the 95 % interval (low, high) of the difference, candidate minus rival, satisfies the rule.

        ``better``: low > 0.  ``not worse``: low > -margin and high >= 0; if ``worse_allowed`` low > -margin, as
        otherwise many small losses add up.  ``not shown to be worse``: low > -margin or high >= 0, so a candidate is
        refused only if it is significantly worse and not shown to be within the margin.
        """
        low, high = found.interval
        if self.rule == "better":
            return low > 0.0
        if self.rule == "not worse" and high < 0.0 and not worse_allowed:
            return False
        return low > -margin or (self.rule == "not shown to be worse" and high >= 0.0)


def row_order(queries: GradedQueries) -> Rival:
    """Rank the documents by the column ``position`` if the dataset has it, otherwise in stored order.

    Documents with the same position tie.  Rows of a query are stored by document id, so without positions this is no
    better than chance unless the ids are informative.
    """
    if "position" in queries.dataset.optional_columns:
        positions = queries.dataset.rows(queries.split, ("position",)).column(0).to_numpy().astype(np.float64)
        words = "the order of the column position"
        return Rival("row order", words, -queries.in_order(positions), "better")
    words = "the row order as stored, by document id (the dataset has no column 'position')"
    return Rival("row order", words, -np.arange(queries.n_rows, dtype=np.float64), "better")


def single_feature(queries: GradedQueries, metric: Metric) -> Rival:
    """Rank by the single feature, ascending or descending, with the best ``metric`` on these queries.

    Missing values are last.

    The feature is chosen on the queries that judge it, so its figure may be too high: the candidate need not beat it.

    Raises
    ------
    ValueError
        No query counts.
    """
    prepared = queries.prepared(metric)
    found = best_single_feature(
        queries.dataset, queries.split, metric, prepared.policy, queries=prepared, in_order=queries.in_order
    )
    scores = found.scores(queries.in_order(queries.dataset.feature_column(found.name, queries.split)))
    words = (
        f"the best single feature ({found.name}, {'highest' if found.descending else 'lowest'} first; chosen on these "
        "same"
        " queries, so its figure may be too high)"
    )
    return Rival("best single feature", words, scores, "not shown to be worse")
