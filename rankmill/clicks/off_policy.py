r"""Off-policy evaluation: what rankings that were never shown would be worth, by the clicks on the rankings that were.

A query q was asked N times, and showed document d in n of its lists, at ranks k_i with clicks c_i.  A ranking has d at
rank r.  With a weight w of ranks (DCG's, or examination, which gives expected clicks), its value is the mean over the
lists of the log of

    V_q = sum over d of w_r(d) g_d

where g_d is an estimate of d's relevance (`rankmill.clicks.judge`):

    ips      (1 / n) sum (c_i - beta_i) / alpha_i: unbiased if examination is right and all documents were shown
    clipped  the same with max(alpha_i, tau)
    snips    the sum of ips, divided by the sum of g_d over all documents shown for the query: the mean rank weight of a
             relevant document, which does not depend on the scale of alpha
    dr       y_d + (1 / n) sum (c_i - beta_i - alpha_i y_d) / max(alpha_i, tau), with the regression estimate y_d, the
             clicks of d shrunken to the mean of the log; for a document that was never shown, that mean

For ips, clipped and snips a document that was never shown counts 0.  Intervals come from the bootstrap over
sessions or queries.  A list l counts

    v_l = V_q + sum over its documents of w (N / n) sqrt(n / (n - 1)) (z_i - mean of z of d)

with z_i the summand of the estimate: the mean of v_l over lists is the value, and their spread is that of the estimate.
Sessions (or queries) are put into 16,384 groups by hash, and groups are drawn, so that the memory does not grow with
the log.

Sources: Joachims et al. 2017, Swaminathan and Joachims 2015, Li et al. 2018 (values by examination), Vardasbi et al.
2020, Oosterhuis 2022.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from rankmill.clicks.options import OffPolicyOptions
from rankmill.clicks.rankings import ranked_rows
from rankmill.clicks.result_lists import ClickLog, LogBlock
from rankmill.clicks.weighted_clicks import (
    STEPS,
    ClickTotals,
    Counts,
    Floats,
    in_steps,
    log_totals,
    summed_by,
    weighted_clicks,
)
from rankmill.foundation.errors import DataRejected
from rankmill.foundation.options import spelled
from rankmill.foundation.records import left_out
from rankmill.pipeline.group.query_splits import hash_ids
from rankmill.pipeline.judgments.propensities import Propensities
from rankmill.scorer.metrics.discount import discounts
from rankmill.scorer.metrics.significance import BOOTSTRAP_SEED, REPLICATES

Estimator = Literal["ips", "clipped", "snips", "dr"]
ESTIMATORS: tuple[Estimator, ...] = ("ips", "clipped", "snips", "dr")
GROUPS = 1 << 14  # of sessions or queries
BYTES_USED = 160  # for an impression of a block: the log's arrays, three summands, and what one ranking needs at a time


class NotSupported(DataRejected):
    """The log does not say what a ranking is worth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimated:
    """An estimate and its 95 % interval; no interval if there are fewer than two sessions or queries."""

    value: float
    interval: tuple[float, float] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankingValue:
    """What a ranking is worth.

    Attributes
    ----------
    values
        By estimator.
    effective_clicks
        ``(sum of weights)^2 / sum of squared weights`` of the clicks that ips uses: as many equally weighted clicks say
        as much.
    shown
        Share of the documents within the cut-off that the log has shown for their query, over its lists.
    overlap
        Share of the rank weights on these documents.
    clipped
        Share of the impressions of ranked documents with an examination probability below the clip.
    """

    values: dict[str, Estimated]
    effective_clicks: float
    shown: float
    overlap: float
    clipped: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OffPolicyEvaluation:
    """The values of some rankings, and how much better than the first the others are, by estimator."""

    rankings: dict[str, RankingValue]
    differences: dict[str, dict[str, Estimated]] = field(default_factory=dict)
    lists: int
    queries: int
    """Of the log, with a ranking by all."""
    queries_without_ranking: int
    clicks: int
    options: OffPolicyOptions

    def render(self) -> str:
        """Return the report as text."""
        what = "expected clicks" if self.options.rank_weight == "clicks" else "dcg"
        lines = [
            f"value: {what}@{self.options.cutoff} a result list, on {self.lists:,} lists of {self.queries:,} queries "
            f"with {self.clicks:,} clicks (95 % intervals over {self.options.unit}; snips: rank weight of a relevant "
            "document)"
        ]
        if self.queries_without_ranking:
            lines.append(f"{self.queries_without_ranking:,} queries of the log have no ranking and do not count")
        width = max(map(len, self.rankings))
        for name, ranking in self.rankings.items():
            shown = "  ".join(f"{which} {_shown(found)}" for which, found in ranking.values.items())
            lines.append(f"{name:<{width}}  {shown}")
            lines.append(
                f"{'':<{width}}  {ranking.effective_clicks:,.0f} effective clicks; the log has shown "
                f"{ranking.shown:.1%} of its"
                f" documents, {ranking.overlap:.1%} by rank weight; {ranking.clipped:.1%} of impressions clipped"
            )
        first = next(iter(self.rankings))
        for name, difference in self.differences.items():
            shown = "  ".join(f"{which} {_shown(found, sign='+')}" for which, found in difference.items())
            lines.append(f"{name} - {first}: {shown}")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class OffPolicyDifference:
    """How much better a candidate ranking is than that of production, by the log; for a gate.

    Attributes
    ----------
    reason
        Why the log does not say so; the rest is left out then.
    difference
        Candidate minus production by ``dr``; above 0 the candidate is better.
    """

    reason: str | None = left_out()
    difference: Estimated | None = left_out()
    candidate: RankingValue | None = left_out()


def off_policy_difference(
    log: ClickLog,
    candidate: pa.Table,
    production: pa.Table,
    propensities: Propensities,
    options: OffPolicyOptions | None = None,
) -> OffPolicyDifference:
    """Compare two rankings on ``log``; parameters as :func:`evaluate_off_policy`.

    What the log does not support is in the record, not raised.
    """
    rankings = {"production": production, "candidate": candidate}
    try:
        found = evaluate_off_policy(log, rankings, propensities, options)
    except NotSupported as error:
        return OffPolicyDifference(reason=str(error))
    return OffPolicyDifference(difference=found.differences["candidate"]["dr"], candidate=found.rankings["candidate"])


def evaluate_off_policy(
    log: ClickLog,
    rankings: Mapping[str, pa.Table],
    propensities: Propensities,
    options: OffPolicyOptions | None = None,
) -> OffPolicyEvaluation:
    """Estimate the values of ``rankings`` on ``log``, and the differences of all others from the first.

    Parameters
    ----------
    log
        Read twice.
    rankings
        By name: columns qid, doc_id and score, as `rankmill.scorer.evaluate.scored_file.read_scored` returns them.
        Documents are ranked by descending score, ties by ascending doc_id.
    propensities
        Examination by rank.
    options
        See :class:`OffPolicyOptions`.

    Raises
    ------
    InputError
        A ranking has a row without doc_id.
    NotSupported
        The log has no ranked query, or has shown too little of a ranking.
    DataRejected
        The log has no click, or a ranking has a document twice.
    """
    options = options or OffPolicyOptions()
    totals = log_totals(log, options.clip, propensities)
    frames = [_ranked(name, table, options, propensities) for name, table in rankings.items()]
    sums = [_Sums() for _ in frames]
    lists = clicks = queries = without = 0
    for block in log.blocks():
        sizes = np.diff(block.document_start)
        query = np.repeat(np.arange(len(sizes)), sizes)
        found = [_in_block(rows, block, query, totals) for rows in frames]
        known = np.logical_and.reduce([each.known for each in found])
        often = np.bincount(block.lists.query, minlength=len(sizes))
        asked = often > 0
        queries, without = queries + int((known & asked).sum()), without + int((~known & asked).sum())
        lists += int(often[known].sum())
        facts = _BlockFacts(block, query, known, often, options, propensities, totals)
        clicks += int(block.lists.clicked[facts.counted].sum())
        for one, of_block in zip(sums, found, strict=True):
            one.add(facts, of_block)
    if lists == 0:
        raise NotSupported("no query of the log is ranked; check that both spell the ids of queries alike")
    _draw_again(sums)
    values = {}
    for name, one in zip(rankings, sums, strict=True):
        values[name] = one.value()
        if values[name].overlap < options.min_overlap:
            raise NotSupported(
                f"{name}: the documents that the log has shown get {values[name].overlap:.1%} of its rank weights, so "
                f"the log does not say what it is worth; log more of its documents, or lower {spelled('min_overlap')} "
                f"{options.min_overlap:g}"
            )
    differences: dict[str, dict[str, Estimated]] = {
        name: {which: one.estimated(which, sums[0]) for which in ESTIMATORS}
        for name, one in list(zip(rankings, sums, strict=True))[1:]
    }
    return OffPolicyEvaluation(
        rankings=values,
        differences=differences,
        lists=lists,
        queries=queries,
        queries_without_ranking=without,
        clicks=clicks,
        options=options,
    )


@dataclass(frozen=True, slots=True)
class _InBlock:
    """A ranking's documents among those of a block."""

    known: npt.NDArray[np.bool_]
    """(queries,) whether it ranks the query."""
    weight: Floats
    """(documents,) rank weight, 0 beyond the cut-off and for unranked documents."""
    top: Counts
    """(queries,) its documents within the cut-off."""
    total: Floats
    """(queries,) their rank weights."""
    unseen: Floats
    """(queries,) sum of rank weight times regression estimate of its documents that are not in the block."""


def _in_block(ranked: pl.DataFrame, block: LogBlock, query: Counts, totals: ClickTotals) -> _InBlock:
    """Return what a ranking (:func:`_ranked`) has in ``block``; ``query`` (documents,) are those of its documents."""
    qids = pl.Series("qid", block.queries, dtype=pl.String)
    shown = pl.DataFrame(
        {"qid": qids.gather(query), "doc_id": pl.Series(block.documents, dtype=pl.String)}
    ).with_row_index("document")
    rows = ranked.join(pl.DataFrame({"qid": qids}).with_row_index("query"), on="qid")
    rows = rows.join(shown, on=["qid", "doc_id"], how="left", maintain_order="left")
    document, of = rows["document"], rows["query"].to_numpy().astype(np.int64)
    there, of_row = document.is_not_null().to_numpy(), rows["weight"].to_numpy()
    weight = np.zeros(len(query))
    weight[document.drop_nulls().to_numpy()] = of_row[there]
    top = np.bincount(of, minlength=len(qids))
    return _InBlock(
        known=top > 0,
        weight=weight,
        top=top,
        total=summed_by(of, of_row, len(qids)),
        unseen=summed_by(of[~there], of_row[~there] * totals.relevance, len(qids)),
    )


def _ranked(name: str, table: pa.Table, options: OffPolicyOptions, propensities: Propensities) -> pl.DataFrame:
    """Return qid, doc_id and rank weight of a ranking down to the cut-off."""
    rows = ranked_rows(name, table)
    rows = rows.with_columns(rank=pl.int_range(1, pl.len() + 1).over("qid")).filter(pl.col("rank") <= options.cutoff)
    rank = rows["rank"].to_numpy().astype(np.int32)
    weight = propensities.at(rank) if options.rank_weight == "clicks" else discounts(options.cutoff)[rank - 1]
    return rows.select("qid", "doc_id", weight=weight)


class _BlockFacts:
    """What all rankings need of a block: sums by document of the summands of each estimator."""

    def __init__(
        self,
        block: LogBlock,
        query: Counts,
        known: npt.NDArray[np.bool_],
        often: Counts,
        options: OffPolicyOptions,
        propensities: Propensities,
        totals: ClickTotals,
    ) -> None:
        lists, n = block.lists, len(query)
        self.block, self.query, self.known, self.often = block, query, known, often
        self.document = lists.document
        self.of_list = np.repeat(np.arange(len(lists.query)), np.diff(lists.start))
        self.counted = known[lists.query][self.of_list]  # impressions
        self.shown = np.bincount(self.document, minlength=n)
        self.weighted = weighted = weighted_clicks(block, options.clip, propensities)
        clicks = weighted.clicked - weighted.beta
        a, examined = options.shrinkage, summed_by(self.document, weighted.alpha, n)
        with np.errstate(invalid="ignore", divide="ignore"):
            y = np.maximum((summed_by(self.document, clicks, n) + a * totals.relevance) / (examined + a), 0.0)
        self.y = np.where(examined + a > 0.0, y, totals.relevance)
        residual = (clicks - weighted.alpha * self.y[self.document]) / weighted.divisor
        ips = clicks / weighted.alpha
        self.summands = {"ips": ips, "clipped": weighted.corrected, "dr": residual}
        each = np.maximum(self.shown, 1)
        self.means = {name: summed_by(self.document, z, n) / each for name, z in self.summands.items()}
        hashes = lists.session if options.unit == "sessions" else hash_ids(block.queries)[lists.query]
        self.group = (hashes % np.uint64(GROUPS)).astype(np.int64)

    def by_list(self, name: str, weight: Floats, of_query: Floats) -> Floats:
        """Return v_l (lists,) of the estimate whose summands are ``name``.

        Documents have ``weight``, and ``of_query`` has the values V_q.
        """
        shown = self.shown.astype(np.float64)
        few = np.sqrt(shown / np.maximum(shown - 1.0, 1.0))
        scale = weight * few * self.often[self.query] / np.maximum(shown, 1.0)
        around = self.summands[name] - self.means[name][self.document]
        lists = self.block.lists
        return of_query[lists.query] + summed_by(self.of_list, scale[self.document] * around, len(lists.query))


class _Sums:
    """Sums over the log for one ranking."""

    def __init__(self) -> None:
        names = ("lists", "all", *ESTIMATORS)
        self._groups = {name: np.zeros(GROUPS, dtype=np.int64) for name in names}  # in steps, but lists
        self.drawn = {name: np.zeros(0, dtype=np.int64) for name in names}
        """Sums over the groups of each bootstrap sample, (replicates,); none if there are fewer than two groups."""
        self._clicks = np.zeros(2, dtype=np.int64)  # weights, and their squares, in steps
        self._shares = np.zeros(4, dtype=np.int64)  # documents and rank weights that were shown, and all, in steps
        self._impressions = np.zeros(2, dtype=np.int64)  # clipped, and all

    def add(self, facts: _BlockFacts, ranking: _InBlock) -> None:
        n = len(facts.known)
        weight, query = ranking.weight, facts.query
        counts = facts.known[facts.block.lists.query]
        seen = facts.shown > 0

        def per_query(values: Floats) -> Floats:
            return summed_by(query, values, n)

        of_query = {name: per_query(weight * facts.means[name]) for name in ("ips", "clipped", "dr")}
        of_query["dr"] += per_query(weight * facts.y) + ranking.unseen
        by_list = {name: facts.by_list(name, weight, values) for name, values in of_query.items()}
        ones = np.ones(len(query))
        by_list["all"] = facts.by_list("ips", ones, per_query(facts.means["ips"]))
        by_list["snips"] = by_list["ips"]
        for name, values in by_list.items():
            np.add.at(self._groups[name], facts.group, in_steps(np.where(counts, values, 0.0)))
        self._groups["lists"] += np.bincount(facts.group[counts], minlength=GROUPS)
        of_click = np.where(facts.counted, weight[facts.document] * facts.summands["ips"], 0.0)
        of_click = of_click[facts.block.lists.clicked > 0]
        self._clicks += [in_steps(of_click).sum(), in_steps(of_click * of_click).sum()]
        often = np.where(facts.known, facts.often, 0)
        ranked = seen & (weight > 0.0)
        shares = (
            per_query(ranked.astype(np.float64)),
            ranking.top,
            per_query(np.where(seen, weight, 0.0)),
            ranking.total,
        )
        self._shares += [(often * in_steps(share)).sum() for share in shares]
        used = facts.counted & (weight[facts.document] > 0.0)
        low = facts.weighted.alpha < facts.weighted.clip
        self._impressions += [int((used & low).sum()), int(used.sum())]

    def estimated(self, which: Estimator, other: _Sums | None = None) -> Estimated:
        """Return the value by the estimator, or what it is more than that of ``other``; after :func:`_draw_again`."""
        below = "all" if which == "snips" else "lists"
        unit = 1.0 if which == "snips" else STEPS
        values, total = self._groups[which].sum(), self._groups[below].sum()
        drawn, totals = self.drawn[which], self.drawn[below]
        if other is not None:
            values, drawn = values - other._groups[which].sum(), drawn - other.drawn[which]  # noqa: SLF001
        if total <= 0:  # snips of a log whose corrected clicks add up to nothing
            return Estimated(value=0.0, interval=None)
        interval = None
        if len(drawn):
            means = np.sort(drawn / np.maximum(totals, 1)) / unit
            lowest = round(0.025 * len(means))
            interval = float(means[lowest]), float(means[len(means) - 1 - lowest])
        return Estimated(value=float(values / total / unit), interval=interval)

    @property
    def table(self) -> Counts:
        """The sums of each group that has lists, (groups, columns)."""
        used = self._groups["lists"] > 0
        return np.stack([column[used] for column in self._groups.values()], axis=1)

    def value(self) -> RankingValue:
        """Return what the ranking is worth; after :func:`_draw_again`."""
        shown, top, covered, total = self._shares.tolist()
        clipped, impressions = self._impressions.tolist()
        overlap = min(covered / total, 1.0) if total else 0.0
        weights, squares = (self._clicks / STEPS).tolist()
        return RankingValue(
            values={which: self.estimated(which) for which in ESTIMATORS},
            effective_clicks=weights**2 / squares if squares else 0.0,
            shown=shown / top if top else 0.0,
            overlap=overlap,
            clipped=clipped / impressions if impressions else 0.0,
        )


def _draw_again(sums: Sequence[_Sums]) -> None:
    """Draw groups with replacement, the same ones for all rankings.

    See `rankmill.scorer.metrics.significance.percentile_interval`.
    """
    table = np.concatenate([one.table for one in sums], axis=1)
    n, columns = table.shape
    if n < 2:
        return
    drawn = np.empty((REPLICATES, columns), dtype=np.int64)
    for b in range(REPLICATES):
        raw = np.random.Philox(key=np.array([BOOTSTRAP_SEED, b], np.uint64)).random_raw(n)
        place = ((raw >> np.uint64(32)) * np.uint64(n)) >> np.uint64(32)
        drawn[b] = np.bincount(place.astype(np.int64), minlength=n) @ table
    for one, part in zip(sums, np.split(drawn, len(sums), axis=1), strict=True):
        one.drawn = dict(zip(one.drawn, part.T, strict=True))


def _shown(found: Estimated, sign: str = "") -> str:
    if found.interval is None:
        return f"{found.value:{sign}.4f}"
    low, high = found.interval
    return f"{found.value:{sign}.4f} [{low:{sign}.4f}, {high:{sign}.4f}]"
