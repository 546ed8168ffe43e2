"""Team-draft interleaving: mix two rankings into one list, and see whose documents users click.

Two rankings pick in turns, as captains pick teams. The one that has fewer documents picks next; a coin decides between
equal numbers. Each picks its best document that is not in the list yet.  A session is won by the ranking whose team got
more clicks.  If the rankings are equally good, each wins half of the sessions that are decided: the sign test says how
surprising the wins are.

Sources: Radlinski, Kurup and Joachims 2008 (team draft); Chapelle et al. 2012; Wilson 1927 (the interval).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import exp, lgamma, log, sqrt
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from rankmill.clicks.options import InterleavingOptions
from rankmill.clicks.rankings import ranked_rows
from rankmill.clicks.result_lists import ClickLog, LogBlock
from rankmill.clicks.table_files import TableWriter, columns_of
from rankmill.foundation.errors import DataRejected, InputError
from rankmill.foundation.kernels.randoms import random_bits, random_bits_of
from rankmill.foundation.storage.publish import check_new_file, publish_file
from rankmill.foundation.storage.staging import staging_folder
from rankmill.pipeline.group.query_splits import hash_ids

TEAMS = ("A", "B")
LISTS = columns_of(qid=pa.string(), policy=pa.string(), position=pa.int32(), doc_id=pa.string(), team=pa.string())
"""Columns of interleaved lists."""
_SALT = 0x3243F6A8885A308D
_QUERIES_AT_ONCE = 10_000


class Pick(NamedTuple):
    """A document in an interleaved list."""

    doc_id: str
    team: int
    """0: of the first ranking, 1: of the second."""


def team_draft(one: Sequence[str], two: Sequence[str], length: int, coins: int) -> list[Pick]:
    """Interleave two rankings of a query, best documents first.

    Bit i of ``coins`` decides the i-th turn at which both teams have equally many documents and both rankings have one
    left: 0 for the first ranking.  The list has ``length`` documents, or all of both rankings if they are fewer.

    >>> [pick.doc_id + "AB"[pick.team] for pick in team_draft("abc", "bcd", 4, coins=0b01)]
    ['bB', 'aA', 'cA', 'dB']
    """
    picked: set[str] = set()
    made: list[Pick] = []
    sizes, at = [0, 0], [0, 0]
    rankings = (one, two)
    while len(made) < length:
        for team, ranking in enumerate(rankings):
            while at[team] < len(ranking) and ranking[at[team]] in picked:
                at[team] += 1
        left = [at[team] < len(rankings[team]) for team in (0, 1)]
        if not any(left):
            break
        if not all(left):
            team = left.index(True)
        elif sizes[0] == sizes[1]:
            team, coins = coins & 1, coins >> 1
        else:
            team = int(sizes[1] < sizes[0])
        document = rankings[team][at[team]]
        picked.add(document)
        made.append(Pick(document, team))
        sizes[team] += 1
    return made


@dataclass(frozen=True, slots=True, kw_only=True)
class InterleavedLists:
    """The result of :func:`write_interleaved`."""

    path: Path
    queries: int
    lists: int
    only_one: int
    """Queries that only one of the rankings has; they are left out."""

    def render(self) -> str:
        """Return the report as a line of text."""
        left = f"; {self.only_one:,} queries are in one ranking only and left out" if self.only_one else ""
        return f"{self.path}: {self.lists:,} lists of {self.queries:,} queries{left}"


def write_interleaved(
    path: Path,
    one: pa.Table,
    two: pa.Table,
    options: InterleavingOptions | None = None,
    *,
    overwrite: bool = False,
) -> InterleavedLists:
    """Write interleaved lists of the queries that both rankings have, ascending by qid, to the Parquet file ``path``.

    A query has ``options.drafts`` lists, called ``draft 1`` and so on in the column ``policy``, which depend on the
    seed, the query, and the number of the draft alone.

    Parameters
    ----------
    one, two
        Columns qid, doc_id and score; ties by ascending doc_id.

    Raises
    ------
    InputError
        ``path`` cannot be written, or a row has no doc_id.
    DataRejected
        No query is in both rankings, or a ranking has a document twice.
    """
    options = options or InterleavingOptions()
    check_new_file(path, overwrite=overwrite, suffixes=(".parquet",))
    sorted_rows = [ranked_rows(f"ranking {name}", table) for name, table in zip(TEAMS, (one, two), strict=True)]
    ranked = [each.group_by("qid", maintain_order=True).agg("doc_id") for each in sorted_rows]
    both = ranked[0].join(ranked[1], on="qid", suffix=" of B").sort("qid")
    if both.is_empty():
        raise DataRejected("the rankings have no query in common; check that both spell the ids of queries alike")
    with staging_folder(path) as staging:
        staged = staging / path.name
        with TableWriter(staged, LISTS) as writer:
            for part in both.iter_slices(_QUERIES_AT_ONCE):
                rows = list(_drafts(part, options))
                columns = [
                    pa.array(column, kind) for column, kind in zip(zip(*rows, strict=True), LISTS.types, strict=True)
                ]
                writer.write(pa.Table.from_arrays(columns, schema=LISTS))
        publish_file(staged, path)
    return InterleavedLists(
        path=path,
        queries=len(both),
        lists=len(both) * options.drafts,
        only_one=len(ranked[0]) + len(ranked[1]) - 2 * len(both),
    )


def _drafts(queries: pl.DataFrame, options: InterleavingOptions) -> Iterator[tuple[str, str, int, str, str]]:
    hashes = hash_ids(queries["qid"].to_arrow().cast(pa.string()), _SALT)
    keys = random_bits_of(hashes, np.full(len(hashes), np.uint64(random_bits(np.uint64(options.seed), 1))))
    for (qid, one, two), key in zip(queries.iter_rows(), keys, strict=True):
        for draft in range(1, options.drafts + 1):
            coins = int(random_bits(np.uint64(key), draft))
            for position, pick in enumerate(team_draft(one, two, options.length, coins), start=1):
                yield qid, f"draft {draft}", position, pick.doc_id, TEAMS[pick.team]


@dataclass(frozen=True, slots=True, kw_only=True)
class InterleavingOutcome:
    """Which of two interleaved rankings users prefer.

    Attributes
    ----------
    wins_a, wins_b, ties
        Sessions with more clicks on the team of A, of B, or equally many (none among them).
    share_a
        Share of A among the sessions that are decided, with its 95 % interval; None if no session is.
    p
        Two-sided p-value of the sign test: that the shares differ from one half by chance.
    lists, lists_without_teams
        Result lists of the log that were interleaved, and the others, which do not count.
    clicks_a, clicks_b
        Clicks on documents of each team.
    """

    wins_a: int
    wins_b: int
    ties: int
    share_a: float | None
    interval: tuple[float, float] | None
    p: float
    lists: int
    lists_without_teams: int
    clicks_a: int
    clicks_b: int

    def render(self) -> str:
        """Return the outcome as text."""
        decided = self.wins_a + self.wins_b
        lines = [
            f"sessions: A wins {self.wins_a:,}, B wins {self.wins_b:,}, {self.ties:,} ties; clicks: A "
            f"{self.clicks_a:,}, B {self.clicks_b:,}; {self.lists:,} interleaved lists"
        ]
        if self.lists_without_teams:
            lines.append(
                f"{self.lists_without_teams:,} lists of the log are not among the interleaved ones and do not count"
            )
        if self.interval is None or self.share_a is None:
            lines.append("no session is decided")
            return "\n".join(lines)
        low, high = self.interval
        better = (
            "neither is shown to be better" if low <= 0.5 <= high else f"{'A' if self.share_a > 0.5 else 'B'} is better"
        )
        lines.append(
            f"A wins {self.share_a:.1%} of the {decided:,} decided sessions, 95 % interval {low:.1%} to {high:.1%}, p "
            f"= {self.p:.2g}: {better}"
        )
        return "\n".join(lines)


def interleaving_outcome(log: ClickLog, lists: pa.Table) -> InterleavingOutcome:
    """Count who wins the sessions of ``log``.

    Its policies name the drafts of ``lists``, read by :func:`read_interleaved`.

    Raises
    ------
    DataRejected
        No list of the log is among ``lists``.
    """
    teams = pl.DataFrame(lists).select("qid", "policy", "doc_id", "team")
    interleaved = without = 0
    clicks = np.zeros(2, dtype=np.int64)
    found: list[tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]] = []
    for block in log.blocks():
        team = _teams_of(block, log.policies, teams)
        starts = block.lists.start[:-1]
        known = (
            np.minimum.reduceat((team >= 0).astype(np.int64), starts).astype(np.bool_) if len(starts) else starts > 0
        )
        interleaved, without = interleaved + int(known.sum()), without + int((~known).sum())
        of_list = np.repeat(known, np.diff(block.lists.start))
        clicked = of_list & (block.lists.clicked > 0)
        clicks += np.bincount(team[clicked], minlength=2)
        ahead = np.where(clicked, 1 - 2 * team, 0)  # A: 1, B: -1
        sums = np.add.reduceat(ahead, starts) if len(starts) else ahead
        found.append((block.lists.session[known], sums[known]))
    if interleaved == 0:
        raise DataRejected(
            "no list of the log is among the interleaved ones; the log needs a column policy with the names of the "
            "drafts, and the same ids of queries and documents"
        )
    session, place = np.unique(np.concatenate([each[0] for each in found]), return_inverse=True)
    ahead = np.zeros(len(session), dtype=np.int64)
    np.add.at(ahead, place, np.concatenate([each[1] for each in found]))
    a, b = int((ahead > 0).sum()), int((ahead < 0).sum())
    return InterleavingOutcome(
        wins_a=a,
        wins_b=b,
        ties=int((ahead == 0).sum()),
        share_a=a / (a + b) if a + b else None,
        interval=interval_of_share(a, a + b) if a + b else None,
        p=sign_test(a, b),
        lists=interleaved,
        lists_without_teams=without,
        clicks_a=int(clicks[0]),
        clicks_b=int(clicks[1]),
    )


def _teams_of(block: LogBlock, policies: Sequence[str], teams: pl.DataFrame) -> npt.NDArray[np.int64]:
    """Return the team of each impression, (impressions,); -1: none."""
    lists, n = block.lists, len(block.documents)
    policy = np.repeat(lists.policy.astype(np.int64), np.diff(lists.start))
    key, place = np.unique(policy * max(n, 1) + lists.document, return_inverse=True)
    document = key % max(n, 1)
    query = np.searchsorted(block.document_start, document, side="right") - 1
    rows = pl.DataFrame(
        {
            "qid": pl.Series(block.queries, dtype=pl.String).gather(query),
            "policy": pl.Series(list(policies), dtype=pl.String).gather(key // max(n, 1)),
            "doc_id": pl.Series(block.documents, dtype=pl.String).gather(document),
        }
    )
    rows = rows.join(teams, on=["qid", "policy", "doc_id"], how="left", maintain_order="left")
    team = rows["team"].replace_strict({"A": 0, "B": 1}, default=-1, return_dtype=pl.Int64).fill_null(-1)
    found: npt.NDArray[np.int64] = team.to_numpy()[place]
    return found


def read_interleaved(path: Path) -> pa.Table:
    """Read interleaved lists.

    Raises
    ------
    InputError
        There is no such file.
    DataRejected
        It is not what `clicks interleave` writes.
    """
    try:
        return pq.read_table(path).select(LISTS.names).cast(LISTS)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; write it with `rankmill clicks interleave`") from None
    except (KeyError, ValueError):
        raise DataRejected(f"{path}: expected interleaved lists, with the columns {', '.join(LISTS.names)}") from None


def sign_test(wins: int, losses: int) -> float:
    """Return the two-sided exact p-value that wins and losses are equally likely.

    >>> round(sign_test(9, 1), 9)
    0.021484375
    """
    n, fewer = wins + losses, min(wins, losses)
    if fewer == max(wins, losses):
        return 1.0
    term = total = 1.0
    for i in range(fewer, 0, -1):  # from the largest term down, as far as they matter
        term *= i / (n - i + 1)
        total += term
        if term < 1e-17 * total:
            break
    largest = lgamma(n + 1) - lgamma(fewer + 1) - lgamma(n - fewer + 1) - n * log(2.0)
    return min(1.0, 2.0 * exp(largest) * total)


def interval_of_share(wins: int, n: int) -> tuple[float, float]:
    """Return the 95 % interval of a share (Wilson 1927); ``n`` is 1 or more.

    >>> [round(bound, 4) for bound in interval_of_share(9, 10)]
    [0.5958, 0.9821]
    """
    z2 = 1.959963984540054**2
    middle, half = wins + z2 / 2, sqrt(z2 * (wins * (n - wins) / n + z2 / 4))
    return max((middle - half) / (n + z2), 0.0), min((middle + half) / (n + z2), 1.0)
