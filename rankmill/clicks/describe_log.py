"""Describe a click log: what was shown and clicked, what it determines, and which click model to use, if any.

Two rules are ours.  The order of a policy looks random if documents of a query differ in their mean position no more
than chance allows:
the sum over documents of n (mean - mean of the query)^2, over what independent positions give, is below 1.5.  Sessions
are suspicious with more lists, or more clicks, than both 20 and five times the 99th percentile of the sessions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from rankmill.clicks.models.click_model import NotIdentified
from rankmill.clicks.models.fit_log import ClickModelComparison, compare_click_models
from rankmill.clicks.options import DEEPEST, ClickFitOptions, ClickModelName
from rankmill.clicks.recommend import ClickRecommendation, recommend
from rankmill.clicks.result_lists import ClickLog, LogBlock, parts_of_lists
from rankmill.clicks.sorted_log import LogTotals
from rankmill.foundation.errors import InputError
from rankmill.foundation.notebook_html import HtmlTable, card
from rankmill.foundation.records import left_out
from rankmill.foundation.terminal import labelled, text_table

_RANDOM_BELOW = 1.5  # ratio of variances
_FEWEST_REPEATS = 100  # impressions of documents that were shown before, to judge the order of a policy
_MOST_POLICIES = 20  # whose order is looked at
_SESSIONS_AT_ONCE = 1 << 22  # lists whose sessions are counted in a pass over the log
_MOST_COUNTED = 1 << 16  # lists or clicks of a session; more count as this many
_SUSPICIOUS_FROM, _SUSPICIOUS_TIMES, _PERCENTILE = 20, 5, 0.99
_MOST_RANKS_SHOWN = 20

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class RankClicks:
    """Impressions and clicks at a position."""

    rank: int
    impressions: int
    clicks: int
    elsewhere: int
    """Documents shown here and also at another position."""

    @property
    def rate(self) -> float:
        """The click-through rate."""
        return self.clicks / max(self.impressions, 1)


@dataclass(frozen=True, slots=True)
class PolicyFigures:
    """A ranking policy."""

    name: str
    lists: int
    share: float
    """Of all lists."""
    rate: float
    """Clicks an impression."""
    order: float | None = left_out()
    """Ratio of variances of positions between and within documents; 1 if the order is random, None if documents hardly
    repeat."""
    random: bool | None = left_out()


@dataclass(frozen=True, slots=True)
class SuspiciousSessions:
    """Sessions with more lists, or clicks, than the limit."""

    limit: int
    sessions: int
    share: float
    """Of all lists, or clicks, that these sessions have."""
    most: int


@dataclass(frozen=True, slots=True)
class ModelFigures:
    """How a click model predicts held-out sessions, or why it is refused."""

    model: ClickModelName
    log_likelihood: float | None = left_out()
    perplexity: float | None = left_out()
    """Over all ranks."""
    examination: tuple[float, ...] | None = left_out()
    refused: str | None = left_out()
    doubted: str | None = left_out()
    """Why the model is not recommended although the log determines it."""


@dataclass(frozen=True, slots=True)
class ClickLogDescription:
    """The result of :func:`describe_clicks`."""

    sessions: int
    lists: int
    impressions: int
    clicks: int
    queries: int
    documents: int
    clicked_documents: int
    repeated_documents: int
    """Documents shown at several positions."""
    repeated_impressions: int
    """Impressions of these."""
    ranks: tuple[RankClicks, ...]
    policies: tuple[PolicyFigures, ...]
    many_lists: SuspiciousSessions
    many_clicks: SuspiciousSessions
    models: tuple[ModelFigures, ...]
    recommended: ClickRecommendation
    read: LogTotals | None = left_out()
    """What was merged and left out in reading."""

    def facts(self) -> dict[str, str]:
        """Return the main figures by name."""
        per_list = self.impressions / max(self.lists, 1)
        facts = {
            "sessions": f"{self.sessions:,}",
            "result lists": f"{self.lists:,} of {per_list:.1f} documents",
            "impressions": f"{self.impressions:,}",
            "clicks": f"{self.clicks:,} ({self.clicks / max(self.impressions, 1):.2%} of impressions)",
            "queries": f"{self.queries:,}",
            "documents": f"{self.documents:,} (of a query), {self.clicked_documents:,} of them clicked",
        }
        if self.read is not None and self.read.merged:
            facts["merged rows"] = f"{self.read.merged:,} rows about an impression of another row"
        if self.read is not None and self.read.left_out:
            facts["left out"] = f"{self.read.left_out:,} contradictory lists"
        return facts

    def notes(self) -> tuple[str, ...]:
        """Return what follows for estimates, in sentences."""
        share = self.repeated_impressions / max(self.impressions, 1)
        notes = [
            f"{self.repeated_documents:,} of {self.documents:,} documents were shown at several positions "
            f"({share:.1%} of the impressions); only they tell position from relevance"
        ]
        for what, found in (("lists", self.many_lists), ("clicks", self.many_clicks)):
            if found.sessions:
                notes.append(
                    f"{found.sessions:,} sessions have more than {found.limit:,} {what} (up to {found.most:,}), "
                    f"{found.share:.1%} of all; if they are bots, remove them"
                )
        notes += [
            f"{policy.name or 'the policy'} shows documents in random order"
            for policy in self.policies
            if policy.random
        ]
        notes += [f"{each.doubted}; it is not recommended" for each in self.models if each.doubted]
        return tuple(notes)

    def _tables(self) -> list[tuple[str, list[str], list[list[str]]]]:
        first = self.ranks[0].rate if self.ranks else 0.0
        ranks = [
            [
                str(each.rank), f"{each.impressions:,}", f"{each.clicks:,}", f"{each.rate:.4f}",
                f"{each.rate / first:.3f}" if first else "", f"{each.elsewhere:,}",
            ]
            for each in self.ranks[:_MOST_RANKS_SHOWN]
        ]  # fmt: skip
        words = {True: "random", False: "not random", None: "unknown"}
        policies = [
            [each.name or "(one)", f"{each.lists:,}", f"{each.share:.1%}", f"{each.rate:.4f}", words[each.random]]
            for each in self.policies
        ]
        models = [
            [each.model, f"{each.log_likelihood:.5f}", f"{each.perplexity:.4f}"]
            for each in self.models
            if each.log_likelihood is not None
        ]
        return [
            ("Positions", ["position", "impressions", "clicks", "rate", "of the first", "shown elsewhere, too"], ranks),
            ("Policies", ["policy", "lists", "share", "click rate", "order"], policies),
            ("Click models, on held-out sessions", ["model", "log-likelihood", "perplexity"], models),
        ]

    @property
    def refusals(self) -> tuple[str, ...]:
        """Why models are refused."""
        return tuple(each.refused for each in self.models if each.refused is not None)

    def render(self) -> str:
        """Return the description as text."""
        lines = [labelled(name, value) for name, value in self.facts().items()]
        for title, header, rows in self._tables():
            if rows:
                lines += ["", title, text_table(header, rows)]
        lines += ["", *(labelled("note", note) for note in self.notes())]
        lines += [labelled("refused", reason) for reason in self.refusals]
        return "\n".join([*lines, labelled("recommended", self.recommended.render())])

    def page(self) -> str:
        """Return the description as a page of HTML without scripts or other files."""
        tables = [HtmlTable(header, rows, title) for title, header, rows in self._tables() if rows]
        notes = [
            f"Recommended: {self.recommended.render()}",
            *self.notes(),
            *(f"Refused: {each}" for each in self.refusals),
        ]
        body = card("Click log", self.facts(), tables, notes)
        style = (
            "body { font-family: sans-serif; margin: 2em; } @media (prefers-color-scheme: dark) { body { "
            "background: #111; color: #eee; } }"
        )
        return (
            '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>Click log</title>'
            f"<style>{style}</style></head><body>{body}</body></html>\n"
        )


def describe_clicks(
    log: ClickLog, options: ClickFitOptions | None = None, totals: LogTotals | None = None
) -> ClickLogDescription:
    """Return what is in ``log``, and the click model that predicts its held-out sessions best.

    ``totals`` are those of reading.

    Memory: a block, the counts of the click models, and 16 bytes for each of 4 million lists.

    Raises
    ------
    InputError
        The log is empty, or the policy of the options is unknown.
    """
    options = options or ClickFitOptions(replicates=0)
    sums = _Sums(len(log.policies))
    for block in log.blocks():
        sums.add(block)
    if not sums.lists:
        raise InputError("the log has no result list")
    sessions, many_lists, many_clicks = _sessions(log, sums.lists, sums.clicks)
    try:
        compared = compare_click_models(log, replace(options, replicates=0))
    except NotIdentified as error:
        compared = ClickModelComparison({}, {"dctr": str(error)}, {})
    return ClickLogDescription(
        sessions=sessions,
        lists=sums.lists,
        impressions=int(sums.by_rank[0].sum()),
        clicks=sums.clicks,
        queries=sums.queries,
        documents=sums.documents,
        clicked_documents=sums.clicked,
        repeated_documents=sums.repeated,
        repeated_impressions=sums.repeated_impressions,
        ranks=tuple(
            RankClicks(k + 1, *map(int, row))
            for k, row in enumerate(sums.by_rank.T.tolist())
            if row[0] or k < sums.deepest
        ),
        policies=sums.policies(log.policies),
        many_lists=many_lists,
        many_clicks=many_clicks,
        models=_figures(compared),
        recommended=recommend(log, compared, sums.clicks / sums.documents),
        read=totals,
    )


def _figures(compared: ClickModelComparison) -> tuple[ModelFigures, ...]:
    found = []
    for name, fitted in compared.fitted.items():
        held_out = fitted.propensities.held_out
        likelihood = None if held_out is None else held_out.log_likelihood
        perplexity = None if likelihood is None else float(np.exp(-likelihood))
        doubt = compared.doubted.get(name)
        found.append(ModelFigures(name, likelihood, perplexity, fitted.propensities.examination, doubted=doubt))
    return (*found, *(ModelFigures(name, refused=reason) for name, reason in compared.refused.items()))


class _Sums:
    """Sums over the blocks of a log."""

    def __init__(self, policies: int) -> None:
        self.lists = self.clicks = self.queries = self.documents = self.clicked = 0
        self.repeated = self.repeated_impressions = self.deepest = 0
        self.by_rank = np.zeros((3, DEEPEST), dtype=np.int64)
        self._of_policy = np.zeros((3, policies))  # lists, impressions, clicks
        self._order = np.zeros((3, policies))  # between, expected, repeats

    def add(self, block: LogBlock) -> None:
        """Add a block; ranks below ``DEEPEST`` count as it."""
        lists, documents = block.lists, len(block.documents)
        self.lists += len(lists.query)
        self.queries += len(np.unique(lists.query))
        self._of_policy[0] += np.bincount(lists.policy, minlength=self._of_policy.shape[1])
        shown, clicked = np.zeros(documents, dtype=np.int64), np.zeros(documents, dtype=np.int64)
        deepest = min(int(lists.rank.max(initial=0)), DEEPEST)
        at_rank = np.zeros(
            (documents, -(-deepest // 64)), dtype=np.uint64
        )  # bits: the ranks that a document was shown at
        orders = {
            number: _Positions(documents, len(block.queries))
            for number in np.unique(lists.policy)[:_MOST_POLICIES].tolist()
        }
        for first, last in parts_of_lists(lists.start):
            here = slice(lists.start[first], lists.start[last])
            document, rank = lists.document[here], np.minimum(lists.rank[here], DEEPEST) - 1
            clicks = lists.clicked[here] > 0
            self.by_rank[0] += np.bincount(rank, minlength=DEEPEST)
            self.by_rank[1] += np.bincount(rank[clicks], minlength=DEEPEST)
            shown += np.bincount(document, minlength=documents)
            clicked += np.bincount(document[clicks], minlength=documents)
            bits = np.uint64(1) << (rank & 63).astype(np.uint64)
            np.bitwise_or.at(at_rank.reshape(-1), document * at_rank.shape[1] + (rank >> 6), bits)
            sizes = np.diff(lists.start[first : last + 1])
            policy, query = np.repeat(lists.policy[first:last], sizes), np.repeat(lists.query[first:last], sizes)
            self._of_policy[1] += np.bincount(policy, minlength=self._of_policy.shape[1])
            self._of_policy[2] += np.bincount(policy[clicks], minlength=self._of_policy.shape[1])
            for number, positions in orders.items():
                of_it = slice(None) if len(orders) == 1 else policy == number
                positions.add(document[of_it], query[of_it], rank[of_it])
        self.deepest = max(self.deepest, deepest)
        self.clicks += int(clicked.sum())
        self.documents += int((shown > 0).sum())
        self.clicked += int((clicked > 0).sum())
        several = np.bitwise_count(at_rank).sum(axis=1) > 1
        self.repeated += int(several.sum())
        self.repeated_impressions += int(shown[several].sum())
        at_rank = at_rank[several]
        for k in range(deepest):
            self.by_rank[2, k] += np.count_nonzero(at_rank[:, k >> 6] >> np.uint64(k & 63) & np.uint64(1))
        query_of = np.repeat(np.arange(len(block.queries)), np.diff(block.document_start))
        for number, positions in orders.items():
            for k, values in enumerate(positions.order(query_of)):
                # query after query, so that the division into blocks does not matter
                self._order[k, number] = np.cumsum(np.append(self._order[k, number], values))[-1]

    def policies(self, names: Sequence[str]) -> tuple[PolicyFigures, ...]:
        """Return the policies."""
        found = []
        for number, name in enumerate(names):
            lists, impressions, clicks = self._of_policy[:, number].tolist()
            between, expected, repeats = self._order[:, number].tolist()
            order = between / expected if repeats >= _FEWEST_REPEATS and expected > 0.0 else None
            random = None if order is None else order < _RANDOM_BELOW
            found.append(
                PolicyFigures(name, int(lists), lists / self.lists, clicks / max(impressions, 1.0), order, random)
            )
        return tuple(found)


class _Positions:
    """Where a policy put the documents of a block."""

    def __init__(self, documents: int, queries: int) -> None:
        self._shown, self._total = np.zeros(documents, dtype=np.int64), np.zeros(documents)
        self._squares = np.zeros(queries)

    def add(
        self, document: npt.NDArray[np.int64], query: npt.NDArray[np.int64], rank: npt.NDArray[np.signedinteger]
    ) -> None:
        """Add impressions."""
        self._shown += np.bincount(document, minlength=len(self._shown))
        self._total += np.bincount(document, rank, minlength=len(self._total))
        self._squares += np.bincount(query, rank.astype(np.float64) ** 2, minlength=len(self._squares))

    def order(self, query_of: npt.NDArray[np.int64]) -> Floats:
        """Return (3, queries): squares between documents, their expectation, and repeated impressions.

        The expectation is that of a random order; repeated impressions are of documents shown before.

        ``query_of`` (documents,) is the query of each document.
        """
        shown, total, queries = self._shown, self._total, len(self._squares)
        of_query = [np.bincount(query_of, values, minlength=queries) for values in (shown, total, shown > 0)]
        impressions = np.maximum(of_query[0], 1.0)
        mean = of_query[1] / impressions
        spread = self._squares / impressions - mean**2
        seen = shown > 0
        far = total[seen] / shown[seen] - mean[query_of[seen]]
        repeated = of_query[0] > of_query[2]  # queries whose documents were shown again
        between = np.bincount(query_of[seen], shown[seen] * far**2, minlength=queries)
        expected = np.maximum(of_query[2] - 1.0, 0.0) * spread
        return np.array([between * repeated, expected * repeated, of_query[0] - of_query[2]])


def _sessions(log: ClickLog, lists: int, clicks: int) -> tuple[int, SuspiciousSessions, SuspiciousSessions]:
    """Count sessions, in as many passes over the log as memory needs; each pass has those whose hash is in a range."""
    passes = -(-lists // _SESSIONS_AT_ONCE)
    histograms = np.zeros((2, _MOST_COUNTED + 1), dtype=np.int64)
    most = [0, 0]
    for number in range(passes):
        keys, clicked = [], []
        for block in log.blocks():
            found = block.lists
            sums = np.append(0, np.cumsum(found.clicked, dtype=np.int64))
            here = (found.session >> np.uint64(32)) * np.uint64(passes) >> np.uint64(32) == number
            keys.append(found.session[here])
            clicked.append((sums[found.start[1:]] - sums[found.start[:-1]])[here].astype(np.int32))
        _, place, counts = np.unique(np.concatenate(keys), return_inverse=True, return_counts=True)
        of_session = np.bincount(place, np.concatenate(clicked), minlength=len(counts)).astype(np.int64)
        for k, values in enumerate((counts, of_session)):
            histograms[k] += np.bincount(np.minimum(values, _MOST_COUNTED), minlength=_MOST_COUNTED + 1)
            most[k] = max(most[k], int(values.max(initial=0)))
    sessions = int(histograms[0].sum())
    return sessions, _suspicious(histograms[0], most[0], lists), _suspicious(histograms[1], most[1], clicks)


def _suspicious(histogram: npt.NDArray[np.int64], most: int, total: int) -> SuspiciousSessions:
    shares = np.cumsum(histogram) / max(histogram.sum(), 1)
    limit = max(_SUSPICIOUS_FROM, _SUSPICIOUS_TIMES * int(np.searchsorted(shares, _PERCENTILE)))
    above = histogram[limit + 1 :]
    counted = int((above * np.arange(limit + 1, limit + 1 + len(above))).sum())
    return SuspiciousSessions(limit, int(above.sum()), counted / max(total, 1), most)
