"""Judge a candidate against the current version, or a first version against simple baselines."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

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
)
from rankmill.gate.gate_rules import MARGIN, NO_OPTION, ConventionFacts, GateRules, convention_digest, option_words
from rankmill.gate.guardrails import Guardrail
from rankmill.gate.rankings import (
    GradedQueries,
    Rival,
    Scores,
    check_features,
    difference,
    on_scale,
    row_order,
    scores_of,
    single_feature,
)
from rankmill.pipeline.arrow import as_array
from rankmill.pipeline.dataset.goals import check_goal
from rankmill.pipeline.group.sketch import QuerySketch, overlap
from rankmill.scorer.evaluate.evaluation import Evaluation
from rankmill.scorer.metrics import Metric
from rankmill.scorer.metrics.per_query import TIED, mean_of
from rankmill.scorer.metrics.significance import FEW_QUERIES, Bootstrap, Paired, queries_for
from rankmill.scorer.models.loading import predictor_of
from rankmill.scorer.models.model import Model

if TYPE_CHECKING:
    import pyarrow as pa

    from rankmill.clicks.off_policy import OffPolicyDifference
    from rankmill.pipeline.dataset.dataset import Dataset

    ByClicks = Callable[[pa.Table, pa.Table], OffPolicyDifference]

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
    n_threads: int = 0,
) -> GateReport:
    """Compare ``candidate`` with ``baseline`` on the queries of a split, check the guardrails, and return the report.

    The same input gives the same report, for any ``n_threads``.

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
    for metric in (rules.metric, *rules.also):
        check_goal(metric, metric.goal, dataset.goals, str(dataset.path))
    convention = on_scale(rules.convention, dataset, [each.model for each in contenders])
    queries = GradedQueries.of(dataset, split, convention, rules.metrics)
    metrics = _metrics(rules, queries)
    recent, remarks = _comparable(queries, rules, earlier)
    judged = contenders if naive is None else [*contenders, naive]
    scored = [*judged, *recent]
    models, names = [each.model for each in scored], [each.name for each in scored]
    scores = scores_of(dataset, split, models, names, n_threads=n_threads or available_cores())
    now = queries.evaluate(scores[0], metrics)
    for metric in (rules.metric, *rules.also):
        _refuse_too_few(queries, now, metric)
    if baseline is None:
        rivals = [row_order(queries), single_feature(queries, rules.metric)]
    else:
        rivals = [Rival(BASELINE, f"{baseline.name}, the current version", scores[1], "not worse")]
        past = dict(zip(names[len(judged) :], scores[len(judged) :], strict=True))
        rivals += _best_recent(queries, rules.metric, scores[1], past)
    if naive is not None:
        words = f"{naive.name}, learnt from the same clicks without correction"
        rivals.append(Rival(NAIVE, words, scores[len(contenders)], "not shown to be worse"))
    compared = [_compared(queries, candidate.name, now, rival, rules) for rival in rivals]
    comparisons = tuple(comparison for comparison, _ in compared)
    rails = _guardrails(contenders, scores, queries, rules)
    if clicks is not None:
        rails += _by_clicks(clicks, queries, names[: len(judged)], scores[: len(judged)])
    reasons = [text for comparison in comparisons for text in comparison.reasons]
    reasons += [each.reason for comparison in comparisons for each in comparison.also or () if each.reason is not None]
    reasons += [rail.reason for rail in rails if rail.verdict == "failed"]
    notes = _notes(contenders, dataset, split, comparisons[0].decisive(str(rules.metric)).n_queries)
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
        queries=GateQueries(digest=queries.digest, queries=len(now.qids), documents=queries.table.num_rows),
        metric=str(rules.metric),
        margin=rules.margin,
        limits=rules.limits,
        convention=ConventionFacts.of(rules.convention),
        convention_sha256=convention_digest(rules.convention),
        max_grade=convention.policy.max_grade,
        bootstrap=Bootstrap(),
        comparisons=comparisons,
        guardrails=tuple(rails),
        code=code_digest("rankmill.gate", "rankmill.scorer"),
        worse=(not reasons and any(each.worse for each in comparisons)) or None,
    )


def _by_clicks(
    clicks: ByClicks, queries: GradedQueries, names: Sequence[str], scores: Sequence[Scores]
) -> Iterator[Guardrail]:
    """Compare the first model with each of the others by clicks."""
    ids = queries.table.select(["qid", "doc_id"])
    if ids.column(1).null_count:
        raise InputError(
            f"{queries.dataset.path}: has rows without a doc_id, which {spelled('log')} needs; leave it out"
        )
    clean = (np.where(np.isnan(each), -np.inf, each) for each in scores)
    candidate, *others = (ids.append_column("score", as_array(each)) for each in clean)
    for name, other in zip(names[1:], others, strict=True):
        yield guardrails.clicks_of_log(name, clicks(candidate, other))


def _comparable(
    queries: GradedQueries, rules: GateRules, earlier: Sequence[Contender]
) -> tuple[list[Contender], list[str]]:
    """Return those of the earlier versions that can be compared on these queries, and why others cannot."""
    found, remarks = [], []
    for each in earlier:
        seen = None if each.train_queries is None else overlap(each.train_queries, queries.main.qids)
        if queries.split == "train" and queries.dataset.digest in each.trained_on:
            why = "it was trained on this split"
        elif seen is not None and seen.found and not rules.allow_seen_queries:
            why = "it was trained on some of these queries"
        else:
            try:
                check_features(queries.dataset, predictor_of(each.model), each.name)
            except CandidatesRejected as error:
                why = str(error)
            else:
                found.append(each)
                continue
        remarks.append(f"{each.name}, which had the alias before, is not compared: {why}")
    return found, remarks


def _best_recent(queries: GradedQueries, metric: Metric, present: Scores, recent: Mapping[str, Scores]) -> list[Rival]:
    """Return the best of the ``recent`` versions by ``metric`` as a rival, unless the present one is as good."""

    def worth(scores: Scores) -> float:
        found = queries.evaluate(scores, [metric])
        mean = mean_of(found.values[metric][found.can_differ[metric]])
        return mean if metric.higher_is_better else -mean

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
            f"they prove nothing; use {spelled('split')} test, or valid"
        )


def _metrics(rules: GateRules, queries: GradedQueries) -> list[Metric]:
    """Return the deciding and the shown metrics; ``err`` is not shown if a grade is beyond its scale."""
    top = queries.convention.policy_for(Metric("err")).max_grade
    beyond = top is None or int(queries.main.grades.max(initial=0)) > top
    judged = {rules.metric, *rules.also}
    return [metric for metric in rules.metrics if metric in judged or not (metric.name == "err" and beyond)]


def _refuse_too_few(queries: GradedQueries, now: Evaluation, metric: Metric) -> None:
    counted = int(np.count_nonzero(now.can_differ[metric]))
    if counted < FEWEST_QUERIES:
        raise CandidatesRejected(
            f"{queries.dataset.path}: {counted} of {len(now.qids):,} queries of the split {queries.split} count for "
            f"{metric}, as two versions can differ only in queries with two documents that it distinguishes by their "
            f"grades; an interval needs at least {FEWEST_QUERIES}, and a useful one hundreds"
        )


def _compared(
    queries: GradedQueries, candidate: str, now: Evaluation, rival: Rival, rules: GateRules
) -> tuple[RivalFacts, list[str]]:
    """Compare the candidate with one rival, by every metric; also return reservations about the verdict."""
    then = queries.evaluate(rival.scores, now.metrics)
    found = {metric: difference(now, then, metric) for metric in now.metrics}
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
        f"{'' if rival.name == NAIVE else 'as the first version '}because it is not significantly worse"
    )
    enough = queries_for(rules.margin, found, 0.0)
    return text if enough is None else f"{text}; about {enough:,} queries like them can if there is no difference"


def _figures(found: Paired) -> str:
    low, high = found.interval
    return f"{found.difference:+.4f} (95 % interval {low:+.4f} to {high:+.4f}, {found.n_queries:,} queries)"


def _guardrails(
    contenders: Sequence[Contender], scores: Sequence[Scores], queries: GradedQueries, rules: GateRules
) -> list[Guardrail]:
    predictors = [predictor_of(each.model) for each in contenders]
    names = [each.model.feature_names for each in contenders]
    first = len(contenders) == 1
    starts = queries.dataset.queries(queries.split).starts
    seen = {
        each.name: None if each.train_queries is None else overlap(each.train_queries, queries.main.qids)
        for each in contenders
    }
    return [
        guardrails.finite_scores(scores[0]),
        guardrails.constant_scores(scores[0], None if first else scores[1], starts, rules.max_constant_rise),
        guardrails.features(names[0], None if first else names[1], allowed=rules.allow_feature_changes),
        guardrails.cost(predictors[0], None if first else predictors[1], rules.max_cost_ratio),
        guardrails.seen_queries(seen, allowed=rules.allow_seen_queries),
    ]
