"""The result of a comparison of rankings, as text, HTML and JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rankmill.foundation.notebook_html import HtmlTable, card
from rankmill.foundation.records import as_json, left_out
from rankmill.foundation.terminal import labelled, text_table
from rankmill.scorer.evaluate.evaluation import IDEAL_WORDS, Evaluation
from rankmill.scorer.evaluate.train_test_overlap import Scope
from rankmill.scorer.metrics import Metric
from rankmill.scorer.metrics.per_query import TIED
from rankmill.scorer.metrics.significance import EXACT_UP_TO, FLIP_SEED, REPLICATES, Bootstrap, Paired

_LEAST_SHOWN = 1e-5
_FEW_NAMES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedNoise:
    """Variation of a metric between versions of a model that differ only in their seed.

    ``deviation`` is the standard deviation of the metric over ``versions``; if both models have such versions,
    it is pooled over the two groups.  ``exceeded_twice`` says whether the difference is more than twice as large.
    """

    deviation: float
    versions: tuple[str, ...]
    exceeded_twice: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricDifference(Paired):
    """One metric of one ranking against the baseline's.

    ``p`` is the p-value of the sign-flip test, ``p_holm`` the same adjusted for all rankings compared with the baseline
    by this metric; ``seed_noise`` is None if no seeds are known.
    """

    p: float
    p_holm: float
    seed_noise: SeedNoise | None = left_out()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Comparison:
    """Rankings of the same queries, each compared with the baseline.

    Attributes
    ----------
    names
        Names of the rankings.
    baseline
        Which of them the others are compared with, from 0.
    evaluations
        Of each ranking, on the same queries in the same order.
    differences
        By ranking (all but the baseline) and metric; None if fewer than two queries count.
    flips
        Number of random sign flips for p if there are too many to enumerate.
    notes
        Remarks.
    scope
        Which queries of a dataset these are, and what the models have seen of them; None if unknown.
    """

    names: tuple[str, ...]
    baseline: int
    evaluations: tuple[Evaluation, ...]
    differences: Mapping[int, Mapping[Metric, MetricDifference | None]]
    flips: int
    notes: tuple[str, ...]
    scope: Scope | None = None

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """The metrics, the same for every ranking."""
        return self.evaluations[0].metrics

    def record(self) -> dict[str, Any]:
        """Return the JSON form; NaN is None."""
        first, baseline = self.evaluations[self.baseline], self.names[self.baseline]
        rankings = [
            {"name": name, "metrics": each.figures, "ideal": each.ideal, "counts": each.counts}
            for name, each in zip(self.names, self.evaluations, strict=True)
        ]
        facts = {
            "rankings": rankings,
            "baseline": baseline,
            "convention": first.convention,
            "policy": first.policy,
            "bootstrap": Bootstrap(),
            "sign_flips": {"drawn": self.flips, "seed": FLIP_SEED, "counted_out_up_to": EXACT_UP_TO},
            "tied_within": TIED,
            "comparisons": [
                {"name": self.names[i], "against": baseline, "metrics": by_metric}
                for i, by_metric in self.differences.items()
            ],
            "notes": self.notes,
            **({} if self.scope is None else {"scope": self.scope}),
        }
        return dict(as_json(facts))

    def to_json(self) -> str:
        """Return `record` as one JSON object in one line; numbers keep all their digits."""
        return json.dumps(self.record(), ensure_ascii=False, allow_nan=False)

    def render(self) -> str:
        """Return the report as text."""
        first = self.evaluations[self.baseline]
        lines = []
        for i in self.differences:
            lines += [*self._one(i), ""]
        policy = first.convention.describe()
        tests = (
            f"differences: above 0 is better than {self.names[self.baseline]}; within {TIED:g} is a tie; intervals: "
            f"95 % bootstrap over queries ({REPLICATES:,} replicates); p: sign flips, all of up to {EXACT_UP_TO} "
            f"queries that differ, else {self.flips:,} drawn; effect: the mean difference over its standard deviation"
        )
        notes = [
            ("conventions", policy),
            *(("", remark) for remark in first.convention.remarks),
            ("ideal list", IDEAL_WORDS[first.ideal]),
            *([] if self.scope is None else [("splits", self.scope.words())]),
            ("data", f"{first.counts.n_queries:,} queries, {first.counts.n_documents:,} documents"),
            ("columns", tests),
            *(("note", note) for note in self.notes),
        ]
        return "\n".join(lines + [labelled(label, words) for label, words in notes]) + "\n"

    def __repr__(self) -> str:
        return (
            f"<Comparison of {', '.join(self.names)} with {self.names[self.baseline]} on "
            f"{len(self.evaluations[0].qids):,} queries>"
        )

    def _repr_html_(self) -> str:
        """Return the differences from the baseline for a notebook."""
        first = self.evaluations[self.baseline]
        other = self.names[self.baseline]
        tables = [HtmlTable(*self._table(i), f"{self.names[i]} against {other}") for i in self.differences]
        facts = {"queries": f"{first.counts.n_queries:,}", "documents": f"{first.counts.n_documents:,}"}
        scope = [] if self.scope is None else [f"splits: {self.scope.words()}"]
        return card("Comparison", facts, tables, [*scope, *self.notes])

    def _one(self, i: int) -> list[str]:
        noise = [
            labelled("seeds", _noise_words(metric, diff.difference, diff.seed_noise))
            for metric, diff in self.differences[i].items()
            if diff is not None and diff.seed_noise is not None
        ]
        title = f"{self.names[i]} against {self.names[self.baseline]}"
        return [title, text_table(*self._table(i)), *noise, *self._worst(i)]

    def _table(self, i: int) -> tuple[list[str], list[list[str]]]:
        """Return the header and the rows of the differences of ranking ``i`` from the baseline."""
        several = len(self.differences) > 1
        head = ["metric", "queries", self.names[self.baseline], self.names[i], "difference", "95 % interval", "p"]
        head += ["p (Holm)"] if several else []
        head += ["win / tie / loss", "effect", *(f"q{share}" for share in ("5", "50", "95"))]
        rows = []
        for metric, diff in self.differences[i].items():
            if diff is None:
                rows.append([str(metric), *["too few queries", *[""] * (len(head) - 2)]])
                continue
            row = [str(metric), f"{diff.n_queries:,}", f"{diff.other:.4f}", f"{diff.candidate:.4f}"]
            row += [f"{diff.difference:+.4f}", f"{diff.interval[0]:+.4f} to {diff.interval[1]:+.4f}", _p(diff.p)]
            row += [_p(diff.p_holm)] if several else []
            row += [f"{diff.wins:,} / {diff.ties:,} / {diff.losses:,}"]
            row += ["" if diff.effect_size is None else f"{diff.effect_size:+.3f}"]
            rows.append(row + [f"{diff.quantiles[share]:+.4f}" for share in ("0.05", "0.5", "0.95")])
        return head, rows

    def _worst(self, i: int) -> list[str]:
        metric, diff = next(iter(self.differences[i].items()))
        if diff is None or not diff.worst:
            return []
        rows = [
            [lost.qid, f"{lost.other:.4f}", f"{lost.candidate:.4f}", f"{lost.difference:+.4f}"] for lost in diff.worst
        ]
        head = ["qid", self.names[self.baseline], self.names[i], "difference"]
        return ["", f"the queries that lost most, by {metric}", text_table(head, rows)]


def _noise_words(metric: Metric, difference: float, noise: SeedNoise) -> str:
    verb = "exceeds" if noise.exceeded_twice else "does not exceed"
    names = list(noise.versions)
    shown = ", ".join(names[:_FEW_NAMES]) + (f" and {len(names) - _FEW_NAMES} more" if len(names) > _FEW_NAMES else "")
    return (
        f"{metric}: the difference {difference:+.4f} {verb} twice the standard deviation over seeds, "
        f"{noise.deviation:.4f} ({shown})"
    )


def _p(p: float) -> str:
    return (
        f"< {_LEAST_SHOWN:.5f}" if p < _LEAST_SHOWN and not math.isclose(p, _LEAST_SHOWN, rel_tol=0.1) else f"{p:.5f}"
    )
