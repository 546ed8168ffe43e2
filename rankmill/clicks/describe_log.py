"""Describe a click log: what was shown and clicked, what it determines, and which click model to use, if any.

Sessions are suspicious with more lists, or more clicks, than both 20 and five times the 99th percentile of the
sessions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from rankmill.clicks.models.fit_log import ClickModelComparison, compare_click_models
from rankmill.clicks.options import ClickFitOptions, ClickModelName
from rankmill.clicks.recommend import ClickRecommendation, recommend
from rankmill.clicks.result_lists import ClickLog
from rankmill.foundation.records import left_out
from rankmill.foundation.terminal import labelled, text_table

_SESSIONS_AT_ONCE = 1 << 22  # lists whose sessions are counted in a pass over the log
_MOST_COUNTED = 1 << 16  # lists or clicks of a session; more count as this many
_SUSPICIOUS_FROM, _SUSPICIOUS_TIMES, _PERCENTILE = 20, 5, 0.99
_MOST_RANKS_SHOWN = 20


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
    merged: int
    """Rows about an impression of another row."""
    contradictory: int
    """Lists that were left out."""

    def render(self) -> str:
        """Return the description as text."""
        lines = [
            labelled("sessions", f"{self.sessions:,}"),
            labelled("result lists", f"{self.lists:,} of {self.impressions / self.lists:.1f} documents"),
            labelled("impressions", f"{self.impressions:,}"),
            labelled("clicks", f"{self.clicks:,} ({self.clicks / self.impressions:.2%} of impressions)"),
            labelled("queries", f"{self.queries:,}"),
            labelled("documents", f"{self.documents:,} (of a query), {self.clicked_documents:,} of them clicked"),
        ]
        if self.merged:
            lines.append(labelled("merged rows", f"{self.merged:,} rows about an impression of another row"))
        if self.contradictory:
            lines.append(labelled("left out", f"{self.contradictory:,} contradictory lists"))
        for title, header, rows in self._tables():
            if rows:
                lines += ["", title, text_table(header, rows)]
        share = self.repeated_impressions / self.impressions
        note = (
            f"{self.repeated_documents:,} of {self.documents:,} documents were shown at several positions"
            f" ({share:.1%} of the impressions); only they separate position from relevance"
        )
        lines += ["", labelled("note", note)]
        for what, found in (("lists", self.many_lists), ("clicks", self.many_clicks)):
            if found.sessions:
                note = (
                    f"{found.sessions:,} sessions have more than {found.limit:,} {what} (up to {found.most:,}),"
                    f" {found.share:.1%} of all; if they are bots, remove them"
                )
                lines.append(labelled("note", note))
        for model in self.models:
            if model.doubted is not None:
                lines.append(labelled("note", f"{model.doubted}; it is not recommended"))
            if model.refused is not None:
                lines.append(labelled("refused", model.refused))
        return "\n".join([*lines, labelled("recommended", self.recommended.render())])

    def _tables(self) -> list[tuple[str, list[str], list[list[str]]]]:
        first = self.ranks[0].rate
        ranks = [
            [
                str(each.rank), f"{each.impressions:,}", f"{each.clicks:,}", f"{each.rate:.4f}",
                f"{each.rate / first:.3f}" if first else "", f"{each.elsewhere:,}",
            ]
            for each in self.ranks[:_MOST_RANKS_SHOWN]
        ]  # fmt: skip
        policies = [
            [each.name or "(one)", f"{each.lists:,}", f"{each.share:.1%}", f"{each.rate:.4f}"] for each in self.policies
        ]
        models = [
            [each.model, f"{each.log_likelihood:.5f}", f"{each.perplexity:.4f}"]
            for each in self.models
            if each.log_likelihood is not None
        ]
        return [
            ("Positions", ["position", "impressions", "clicks", "rate", "of the first", "shown elsewhere, too"], ranks),
            ("Policies", ["policy", "lists", "share", "click rate"], policies),
            ("Click models, on held-out sessions", ["model", "log-likelihood", "perplexity"], models),
        ]


def describe_clicks(log: ClickLog, options: ClickFitOptions | None = None) -> ClickLogDescription:
    """Return what is in ``log``, and the click model that predicts its held-out sessions best.

    Documents and positions are those down to the last rank that models are fitted to.  Memory: a block, the counts of
    the click models, and 16 bytes for each of 4 million lists.

    Raises
    ------
    InputError
        The log is empty, or the policy of the options is unknown.
    """
    compared = compare_click_models(log, replace(options or ClickFitOptions(), replicates=0))
    counts = compared.counts
    # counts ascend by document, rank and last click: the first of each document and rank
    first = np.flatnonzero(np.diff(counts.document * (counts.ranks + 1) + counts.rank, prepend=-1))
    document, rank = counts.document[first], counts.rank[first] - 1
    places = np.bincount(document, minlength=counts.documents)
    elsewhere = np.bincount(rank[places[document] > 1], minlength=counts.ranks)
    by_rank = zip(counts.by_rank(counts.shown), counts.by_rank(counts.clicked), elsewhere, strict=True)
    documents, of_policy, queries = int((places > 0).sum()), np.zeros((3, len(log.policies)), dtype=np.int64), 0
    for block in log.blocks():
        lists, sizes = block.lists, np.diff(block.lists.start)
        queries += len(np.unique(lists.query))
        clicks = np.diff(np.append(0, np.cumsum(lists.clicked, dtype=np.int64))[lists.start])
        columns = (np.bincount(lists.policy, each, len(log.policies)) for each in (None, sizes, clicks))
        of_policy += np.stack([column.astype(np.int64) for column in columns])
    n_lists, n_impressions, n_clicks = of_policy.sum(axis=1).tolist()
    sessions, many_lists, many_clicks = _sessions(log, n_lists, n_clicks)
    return ClickLogDescription(
        sessions=sessions,
        lists=n_lists,
        impressions=n_impressions,
        clicks=n_clicks,
        queries=queries,
        documents=documents,
        clicked_documents=int((counts.by_document(counts.clicked) > 0).sum()),
        repeated_documents=int((places > 1).sum()),
        repeated_impressions=int(counts.by_document(counts.shown)[places > 1].sum()),
        ranks=tuple(RankClicks(k, *map(int, row)) for k, row in enumerate(by_rank, start=1)),
        policies=tuple(
            PolicyFigures(name, lists, lists / n_lists, clicks / max(shown, 1))
            for name, (lists, shown, clicks) in zip(log.policies, of_policy.T.tolist(), strict=True)
        ),
        many_lists=many_lists,
        many_clicks=many_clicks,
        models=_figures(compared),
        recommended=recommend(log, compared, n_clicks / documents),
        merged=log.merged,
        contradictory=log.left_out,
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
