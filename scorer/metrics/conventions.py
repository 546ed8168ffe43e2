"""The metric conventions of other tools by name, each a `Policy` with exceptions for single metrics.

Mistakes of a tool are not copied: the convention's remarks state them.  Sources are the tools themselves, run on small
lists and read, and Chapelle & Chang 2011 for the Yahoo challenge.  The tools are trec_eval 9, gdeval.pl 1.3, LightGBM
4.7, XGBoost 3.2, CatBoost 1.2, RankLib 2.18, scikit-learn 1.9, Eval-Score-4.0.pl and eval-score-mslr.pl.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType

from rankmill.foundation.errors import InputError
from rankmill.foundation.options import values_of
from rankmill.foundation.records import not_in_json
from rankmill.scorer.metrics.metric import METRIC_NAMES, Metric
from rankmill.scorer.metrics.metric_options import Policy

Exceptions = Mapping[str, Mapping[str, str | int]]
OURS = "rankmill"


@dataclass(frozen=True, slots=True, kw_only=True)
class Convention:
    """How one tool computes its metrics; reports state its `policy` beside it.

    Attributes
    ----------
    name
        Its name in ``--convention``.
    policy
        The policy of every metric but for the exceptions.
    exceptions
        By the name of a metric: the fields of its policy that differ.
    metrics
        Names of the metrics that the tool has; others are computed under its policy all the same.
    remarks
        Undocumented behaviour of the tool, and its mistakes, which are not copied.
    changed
        Fields of the policy that were set separately and override the convention.
    """

    name: str
    changed: tuple[str, ...] = ()
    exceptions: Exceptions = field(default_factory=dict, hash=False)
    remarks: tuple[str, ...] = ()
    policy: Policy = not_in_json()
    metrics: tuple[str, ...] = not_in_json(default=METRIC_NAMES)

    def policy_for(self, metric: Metric) -> Policy:
        """Return the policy under which ``metric`` is computed."""
        return replace(self.policy, **self.exceptions.get(metric.name, {}))  # type: ignore[arg-type]  # Policy checks them

    def but(self, **options: object) -> Convention:
        """Return this convention with the policy's fields in ``options``, for every metric; None: unchanged.

        Raises
        ------
        InputError
            `Policy` does not know a value.
        """
        given = {name: value for name, value in options.items() if value is not None}
        single = {name for own in self.exceptions.values() for name in own}
        other = {name for name, value in given.items() if value != getattr(self.policy, name) or name in single}
        if self.policy.max_grade is None:
            other.discard("max_grade")  # the data's scale, which the convention leaves open
        kept = {
            metric: {name: value for name, value in own.items() if name not in given}
            for metric, own in self.exceptions.items()
        }
        return replace(
            self,
            policy=replace(self.policy, **given),  # type: ignore[arg-type]  # Policy checks them
            exceptions={metric: own for metric, own in kept.items() if own},
            changed=tuple(each.name for each in fields(Policy) if each.name in {*self.changed, *other}),
        )

    def describe(self) -> str:
        """One line for reports.

        >>> print(named_convention("catboost").but(ties="doc_id").describe()[:75])
        catboost with another ties: gain linear (grade), discount 1/log2(rank + 1),
        """
        parts = [f"{self._title()}: {self.policy.describe()}"]
        for metric, own in self.exceptions.items():
            words = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in own.items())
            parts.append(f"{metric}: {words}")
        return "; ".join(parts)

    def describe_for(self, metric: Metric) -> str:
        """One line about the policy under which ``metric`` is computed."""
        return f"{self._title()}: {self.policy_for(metric).describe()}"

    def _title(self) -> str:
        return f"{self.name} with another {', '.join(self.changed)}" if self.changed else self.name


def as_convention(policy: Policy | Convention) -> Convention:
    """Return a convention unchanged, and a policy as our convention with its changes."""
    if isinstance(policy, Convention):
        return policy
    return CONVENTIONS[OURS].but(**values_of(policy))


def named_convention(name: str) -> Convention:
    """Return the convention called ``name``; InputError if there is none, with the nearest spelling."""
    if name not in CONVENTIONS:
        raise InputError.unknown("convention", name, CONVENTIONS)
    return CONVENTIONS[name]


_ZERO = {"nothing_relevant": "zero"}
_ALL = (
    Convention(name=OURS, policy=Policy()),
    Convention(
        name="trec",
        policy=Policy(gain="linear", ties="doc_id_descending", nothing_relevant="zero"),
        metrics=("ndcg", "map", "mrr", "precision", "recall"),
        remarks=(
            "trec_eval rounds scores to float32 before it looks for ties; here they keep double precision",
            "a query that the run lacks is left out, as without -c; --complete counts it",
        ),
    ),
    Convention(
        name="gdeval",
        policy=Policy(ties="doc_id_descending", max_grade=4),
        metrics=("ndcg", "err"),
        remarks=(
            "gdeval.pl dies on a grade above 4; here only err does",
            "with --complete a judged query that the run lacks counts 0; one with no judgment above 0 never counts",
        ),
    ),
    Convention(
        name="lightgbm",
        policy=Policy(ties="row_order", nothing_relevant="one", map_normalisation="min(R,k)"),
        metrics=("ndcg", "map"),
        remarks=(
            "with query weights LightGBM counts a query with nothing relevant 1 whatever its weight; not copied",
            "ties by row reward a file that is sorted by grade",
        ),
    ),
    Convention(
        name="xgboost",
        policy=Policy(
            ties="row_order",
            nothing_relevant="one",
            map_normalisation="min(R,k)",
            precision_normalisation="min(k,n)",
        ),
        exceptions={"precision": _ZERO},
        metrics=("ndcg", "map", "precision"),
        remarks=(
            "XGBoost's ndcg@k- and map@k- are these with nothing relevant zero; ndcg_exp_gain=0 is gain linear",
            "its map and pre refuse labels other than 0 and 1; here relevant_from decides",
            "ties by row reward a file that is sorted by grade",
        ),
    ),
    Convention(
        name="catboost",
        policy=Policy(
            gain="linear",
            ties="pessimistic",
            nothing_relevant="one",
            map_normalisation="min(R,k)",
            precision_normalisation="min(k,n)",
        ),
        exceptions=dict.fromkeys(("err", "map", "mrr", "precision"), _ZERO),
        metrics=("ndcg", "dcg", "err", "map", "mrr", "precision", "recall"),
        remarks=(
            "type=Exp is gain exp",
            "CatBoost's ERR takes each label for the probability that its document satisfies the reader; "
            "here err computes it from grade and max grade",
        ),
    ),
    Convention(
        name="ranklib",
        policy=Policy(ties="row_order", nothing_relevant="zero", max_grade=4, precision_normalisation="min(k,n)"),
        metrics=("ndcg", "dcg", "err", "map", "mrr", "precision"),
        remarks=("RankLib's MAP ignores its cutoff: compare it with map; its RR@0 is 0 by a mistake",),
    ),
    Convention(
        name="letor4",
        policy=Policy(
            discount="letor", ties="row_order", nothing_relevant="zero", max_grade=2, short_lists="zero"
        ),
        metrics=("ndcg", "map", "precision"),
    ),
    Convention(
        name="mslr",
        policy=Policy(discount="letor", ties="row_order", nothing_relevant="zero", relevant_from=2, max_grade=4),
        metrics=("ndcg", "map", "precision"),
    ),
    Convention(
        name="yahoo",
        policy=Policy(max_grade=4),
        metrics=("ndcg", "err"),
        remarks=("the challenge's paper says nothing of ties and of queries with nothing relevant: these are ours",),
    ),
    Convention(
        name="sklearn",
        policy=Policy(gain="linear", nothing_relevant="zero"),
        metrics=("ndcg", "dcg"),
        remarks=("scikit-learn takes gains, not grades: hand it 2**y - 1 for gain exp; it refuses single documents",),
    ),
)  # fmt: skip
CONVENTIONS: Mapping[str, Convention] = MappingProxyType({convention.name: convention for convention in _ALL})
