"""What a comparison of rankings found, and how a person or a program reads it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rankmill.foundation.records import as_json, left_out
from rankmill.foundation.terminal import labelled, text_table
from rankmill.scorer.evaluation import IDEAL_WORDS, Evaluation
from rankmill.scorer.metrics import Metric
from rankmill.scorer.metrics.significance import BOOTSTRAP_SEED, EXACT_UP_TO, FLIP_SEED, REPLICATES, TIED, Paired
from rankmill.scorer.train_test_overlap import Scope

_LEAST_SHOWN = 1e-5
_FEW_NAMES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedNoise:
    """How much a metric varies between versions of a model that differ in their seed only.

    ``deviation`` is the standard deviation of the metric over ``versions``; where both models have such versions,
    pooled over the two groups.  ``exceeded_twice`` says whether the difference is more than twice as large.
    """

    deviation: float
    versions: tuple[str, ...]
    exceeded_twice: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One metric of one ranking against the baseline's.

    ``p`` is that of the sign-flip test, ``p_holm`` the same adjusted for all rankings compared with the baseline by this
    metric; ``seed_noise`` is None where no seeds are known.
    """

    paired: Paired
    p: float
    p_holm: float
    seed_noise: SeedNoise | None = left_out()

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, those of ``paired`` among the others."""
        facts: dict[str, Any] = as_json(self)
        paired: dict[str, Any] = facts.pop("paired")
        return paired | facts


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Comparison:
    """Rankings of the same queries, each but the baseline against the baseline.

    Attributes
    ----------
    names
        What the rankings are called.
    baseline
        Which of them the others are compared with, from 0.
    evaluations
        Of each ranking, on the same queries in the same order.
    differences
        By ranking (all but the baseline) and metric; None where fewer than two queries count.
    flips
        Signs drawn for p where they are too many to count out.
    notes
        What else to know.
    scope
        Which queries of a dataset these are, and what the models have seen of them; None where nothing is known.
    """

    names: tuple[str, ...]
    baseline: int
    evaluations: tuple[Evaluation, ...]
    differences: Mapping[int, Mapping[Metric, Difference | None]]
    flips: int
    notes: tuple[str, ...]
    scope: Scope | None = None

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """The metrics, the same for every ranking."""
        return self.evaluations[0].metrics

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values; what is not a number is None."""
        first = self.evaluations[self.baseline]
        rankings = []
        for name, evaluation in zip(self.names, self.evaluations, strict=True):
            report = evaluation.to_dict()
            rankings.append({"name": name, **{key: report[key] for key in ("metrics", "ideal", "counts")}})
        return {
            "rankings": rankings,
            "baseline": self.names[self.baseline],
            "convention": first.convention.to_dict(),
            "policy": first.policy.to_dict(),
            "bootstrap": {"level": 0.95, "replicates": REPLICATES, "seed": BOOTSTRAP_SEED},
            "sign_flips": {"drawn": self.flips, "seed": FLIP_SEED, "counted_out_up_to": EXACT_UP_TO},
            "tied_within": TIED,
            "comparisons": [
                {
                    "name": self.names[i],
                    "against": self.names[self.baseline],
                    "metrics": {
                        str(metric): None if each is None else each.to_dict() for metric, each in found.items()
                    },
                }
                for i, found in self.differences.items()
            ],
            "notes": list(self.notes),
            **({} if self.scope is None else {"scope": self.scope.to_dict()}),
        }

    def to_json(self) -> str:
        """Return `to_dict` as one JSON object in one line; numbers keep all their digits."""
        return json.dumps(self.to_dict(), ensure_ascii=False, allow_nan=False)

    def render(self) -> str:
        """Return the report as text."""
        first = self.evaluations[self.baseline]
        lines = []
        for i in self.differences:
            lines += [*self._one(i), ""]
        policy = first.convention.describe()
        tests = (
            f"differences: above 0 is better than {self.names[self.baseline]}; within {TIED:g} is a tie; intervals: 95 % "
            f"bootstrap over queries ({REPLICATES:,} replicates); p: sign flips, all of up to {EXACT_UP_TO} queries that "
            f"differ, else {self.flips:,} drawn; effect: the mean difference over its standard deviation"
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

    def _one(self, i: int) -> list[str]:
        name, other = self.names[i], self.names[self.baseline]
        several = len(self.differences) > 1
        head = ["metric", "queries", other, name, "difference", "95 % interval", "p"]
        head += ["p (Holm)"] if several else []
        head += ["win / tie / loss", "effect", *(f"q{share}" for share in ("5", "50", "95"))]
        rows, noise = [], []
        for metric, found in self.differences[i].items():
            if found is None:
                rows.append([str(metric), *["too few queries", *[""] * (len(head) - 2)]])
                continue
            pair = found.paired
            row = [str(metric), f"{pair.n_queries:,}", f"{pair.other:.4f}", f"{pair.candidate:.4f}"]
            row += [f"{pair.difference:+.4f}", f"{pair.interval[0]:+.4f} to {pair.interval[1]:+.4f}", _p(found.p)]
            row += [_p(found.p_holm)] if several else []
            row += [f"{pair.wins:,} / {pair.ties:,} / {pair.losses:,}"]
            row += ["" if pair.effect_size is None else f"{pair.effect_size:+.3f}"]
            rows.append(row + [f"{pair.quantiles[share]:+.4f}" for share in ("0.05", "0.5", "0.95")])
            if found.seed_noise is not None:
                noise.append(labelled("seeds", _noise_words(metric, pair.difference, found.seed_noise)))
        lines = [f"{name} against {other}", text_table(head, rows), *noise]
        return lines + self._worst(i)

    def _worst(self, i: int) -> list[str]:
        metric, found = next(iter(self.differences[i].items()))
        if found is None or not found.paired.worst:
            return []
        rows = [
            [lost.qid, f"{lost.other:.4f}", f"{lost.candidate:.4f}", f"{lost.difference:+.4f}"]
            for lost in found.paired.worst
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
