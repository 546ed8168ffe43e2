"""Simulate users who click.

Relevance and position bias of the logs are known, to test click models and training on clicks.

A session asks one query, drawn by popularity, and sees the best ``list_length`` documents of a logging ranker (of one
of them, drawn at random, if there are several).  The probability of a click on an examined document of grade y, out of
0 .. Y, is

    gamma = click_noise + (1 - click_noise) (2^y - 1) / (2^Y - 1)

and rank k is examined with theta_k = (.68 .61 .48 .34 .28 .20 .11 .10 .08 .06)^eta, from rank 11 on as rank 10 (the eye
tracking of Joachims et al. 2005, as used by Ai et al. 2018).  The user models are

    pbm      P(click at k) = theta_k gamma
    cascade  everything is examined up to the first click, nothing after it; no eta
    dcm      everything is examined up to a click at k, after which the user continues with probability .9 (theta_k /
             theta_1)
    ubm      P(click at k) = theta_(k - l) gamma, where l is the rank of the last click, 0 before the first
    trust    P(click at k) = theta_k ((.98 - .01 (k - 1)) gamma + .65 / k (1 - gamma)): users trust high ranks (Agarwal
             et al. 2019)

Draws depend on the seed, the number of the session and the rank alone, so that the first sessions are the same in a
longer log.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rankmill.clicks import _simulation_kernels as kernels
from rankmill.clicks.options import RUN_SUFFIX, ClickSimulation, UserModelName
from rankmill.clicks.result_lists import LogBlock, LogInMemory, ResultLists
from rankmill.foundation.errors import InputError, InvalidParameter
from rankmill.foundation.kernels.randoms import random_bits, random_bits_of
from rankmill.foundation.options import spelled
from rankmill.foundation.storage.publish import check_new_file, publish_file
from rankmill.foundation.storage.staging import staging_folder
from rankmill.pipeline.options import SynthParameters
from rankmill.pipeline.read.trec_run import read_ranked_lines
from rankmill.pipeline.synth import generate, ideal_scores

EXAMINATION = (0.68, 0.61, 0.48, 0.34, 0.28, 0.20, 0.11, 0.10, 0.08, 0.06)

SUFFIXES = (".parquet", ".csv")
_SESSIONS_AT_ONCE = 200_000  # of a file: 10 documents of each take 26 MB
_OF_QUERIES, _OF_SESSIONS, _OF_IDS = 1, 2, 3  # streams of the seed


class UserModel(NamedTuple):
    """What users do: ``P(click at k) = examination[k, l] (floor[k] + slope[k] gamma)`` while they continue.

    Ranks count from 0.
    """

    examination: npt.NDArray[np.float64]
    """(ranks, ranks + 1) by rank and by the rank of the last click from 1, 0 before the first."""
    floor: npt.NDArray[np.float64]
    slope: npt.NDArray[np.float64]
    """(ranks,) what makes an examined document be clicked; trust bias."""
    continuation: npt.NDArray[np.float64]
    """(ranks,) the probability that the user continues after a click there."""


@dataclass(frozen=True)
class QueriesToShow:
    """Queries whose documents have known grades.

    Parameters
    ----------
    start
        (queries + 1,) the first document of each query, int64.
    grades
        (documents,) 0 or more.
    queries, documents
        Ids (queries,) and (documents,); documents ascending (byte by byte) within a query.  Left out: numbers of equal
        width.
    """

    start: npt.NDArray[np.int64]
    grades: npt.NDArray[np.int32]
    queries: pa.Array[Any] | None = None
    documents: pa.Array[Any] | None = None

    @cached_property
    def query_ids(self) -> pa.Array[Any]:
        """Ids (queries,)."""
        return _numbered("Q", len(self.start) - 1) if self.queries is None else self.queries

    @cached_property
    def document_ids(self) -> pa.Array[Any]:
        """Ids (documents,)."""
        return _numbered("D", len(self.grades)) if self.documents is None else self.documents


@dataclass(frozen=True)
class SimulatedLog:
    """A log of one block in memory, and its true relevance.

    It has all documents of the judged queries, in the same order.
    """

    log: LogInMemory
    relevance: npt.NDArray[np.float64]
    """(documents,) the probability of a click on each document if it is examined and trusted as it is (gamma)."""
    users: UserModel


@dataclass(frozen=True, slots=True)
class ClickLogReport:
    """The result of :func:`write_click_log`."""

    path: Path
    sessions: int
    impressions: int
    clicks: int
    simulation: ClickSimulation

    def render(self) -> str:
        """Return the report as a line of text."""
        return f"{self.path}: {self.clicks:,} clicks on {self.impressions:,} impressions in {self.sessions:,} sessions"


def user_model(name: UserModelName, ranks: int, eta: float = 1.0) -> UserModel:
    """Return the users of the model ``name``, for lists of ``ranks``.

    Examination probabilities are raised to ``eta``.
    """
    if name not in get_args(UserModelName):
        raise InvalidParameter.unknown("user model", name, get_args(UserModelName))
    rank = np.arange(ranks)
    theta = np.array(EXAMINATION)[np.minimum(rank, len(EXAMINATION) - 1)] ** eta
    ones, by_last = np.ones(ranks), np.ones((ranks, ranks + 1))
    if name == "cascade":
        return UserModel(by_last, np.zeros(ranks), ones, np.zeros(ranks))
    if name == "dcm":
        return UserModel(by_last, np.zeros(ranks), ones, 0.9 * theta / theta[0])
    if name == "ubm":
        distance = np.maximum(rank[:, None] - np.arange(ranks + 1)[None, :], 0)
        return UserModel(theta[distance], np.zeros(ranks), ones, ones)
    by_last *= theta[:, None]
    if name == "pbm":
        return UserModel(by_last, np.zeros(ranks), ones, ones)
    floor = 0.65 / (rank + 1)
    return UserModel(by_last, floor, np.maximum(0.98 - 0.01 * rank, floor) - floor, ones)


def click_probabilities(grades: npt.NDArray[np.int32], click_noise: float) -> npt.NDArray[np.float64]:
    """Return the probability of a click on an examined document of each grade, (n,).

    >>> click_probabilities(np.array([0, 1, 2], dtype=np.int32), 0.1).round(3).tolist()
    [0.1, 0.4, 1.0]
    """
    gain = np.exp2(grades.astype(np.float64)) - 1.0
    highest = gain.max(initial=0.0)
    relevance: npt.NDArray[np.float64] = click_noise + (1.0 - click_noise) * gain / (highest if highest > 0 else 1.0)
    return relevance


def simulate(
    judged: QueriesToShow,
    scores: Sequence[npt.NDArray[np.floating]],
    options: ClickSimulation | None = None,
    *,
    seed: int = 1,
) -> SimulatedLog:
    """Return the log of simulated sessions.

    Parameters
    ----------
    judged
        The queries, of one document or more each.
    scores
        Scores (documents,) of each logging ranker: documents are shown by descending score, ties in the order of the
        documents. With none, every list is in random order.
    options
        The users and lists.
    seed
        Of all draws.

    Raises
    ------
    InputError
        There is no query, a query has no document, or the numbers of documents differ.
    """
    drawn = _Draws(judged, scores, options or ClickSimulation(), seed)
    n = drawn.options.sessions
    session, query = np.arange(n, dtype=np.int64), drawn.queries(0, n)
    hashes = random_bits_of(
        np.full(n, random_bits(np.uint64(seed), _OF_IDS), dtype=np.uint64), session.astype(np.uint64)
    )
    order = np.lexsort((hashes, query))
    lists = drawn.lists(session[order], query[order])
    block = LogBlock(
        lists=lists._replace(session=hashes[order]),
        queries=judged.query_ids,
        documents=judged.document_ids,
        document_start=judged.start,
    )
    return SimulatedLog(LogInMemory((block,), drawn.policies), drawn.relevance, drawn.users)


def write_click_log(
    path: Path,
    judged: QueriesToShow,
    scores: Sequence[npt.NDArray[np.floating]],
    options: ClickSimulation | None = None,
    *,
    seed: int = 1,
    overwrite: bool = False,
) -> ClickLogReport:
    """Write the sessions of :func:`simulate` as a flat table, a row an impression.

    The columns are session, qid, doc_id, position, clicked and policy; sessions are in the order of their numbers.  The
    memory does not grow with the number of sessions.

    Raises
    ------
    InputError
        As :func:`simulate`; or ``path`` is neither .parquet nor .csv, or exists and may not be replaced.
    """
    check_new_file(path, overwrite=overwrite, suffixes=SUFFIXES)
    drawn, impressions, clicks = _Draws(judged, scores, options or ClickSimulation(), seed), 0, 0
    with staging_folder(path) as staging:
        staged = staging / path.name
        with _writer(staged) as writer:
            for table in drawn.tables():
                impressions += len(table)
                clicks += int(table.column("clicked").to_numpy().sum())
                writer.write_table(table)
        publish_file(staged, path)
    return ClickLogReport(path, drawn.options.sessions, impressions, clicks, drawn.options)


def generated_queries(parameters: SynthParameters, logger: str) -> tuple[QueriesToShow, list[npt.NDArray[np.float64]]]:
    """Return the queries that `rankmill data synth` writes, and the scores of the logging ranker, none for ``random``.

    Raises
    ------
    InputError, MalformedLine
        ``logger`` is a TREC run that cannot be read, or lacks a document.
    """
    starts, grades, queries, documents, scores = [np.zeros(1, np.int64)], [], [], [], []
    for block in generate(parameters):
        sizes = np.diff(block.starts)
        query = np.repeat(np.arange(len(sizes)) + block.first_query + 1, sizes)
        place = np.arange(len(query)) - np.repeat(block.starts[:-1], sizes) + 1
        ids = np.array([f"D{q}-{d}" for q, d in zip(query.tolist(), place.tolist(), strict=True)])
        order = np.lexsort((ids, query))  # within a query ascending by id
        hidden = ideal_scores(block.values.T) if logger == "ideal" else block.values[0].astype(np.float64)
        starts.append(block.starts[1:] + starts[-1][-1])
        grades.append(block.grades[order])
        scores.append(hidden[order])
        queries.append(pa.array([str(q + block.first_query + 1) for q in range(len(sizes))], pa.string()))
        documents.append(pa.array(ids[order], pa.string()))
    judged = QueriesToShow(
        np.concatenate(starts), np.concatenate(grades), pa.concat_arrays(queries), pa.concat_arrays(documents)
    )
    if logger.endswith(RUN_SUFFIX):
        return judged, [_scores_of_run(Path(logger), judged.document_ids)]
    return judged, [] if logger == "random" else [np.concatenate(scores)]


def _scores_of_run(path: Path, documents: pa.Array[Any]) -> npt.NDArray[np.float64]:
    """Return the score of each of ``documents`` (n,), whose ids contain their queries."""
    found = np.full(len(documents), np.nan)
    for lines in read_ranked_lines(path):
        place = pc.index_in(lines.doc_id, documents)
        known = place.is_valid().to_numpy(zero_copy_only=False)
        found[place.drop_null().to_numpy()] = lines.score[known]
    if (lacking := np.flatnonzero(np.isnan(found))).size:
        raise InputError(
            f"{path}: lacks {len(lacking):,} of the {len(documents):,} generated documents, such as "
            f"{documents[int(lacking[0])]};"
            f" rank the file that data synth wrote with the same {spelled('seed')} and sizes"
        )
    return found


class _Draws:
    """Sessions of some judged queries."""

    def __init__(
        self,
        judged: QueriesToShow,
        scores: Sequence[npt.NDArray[np.floating]],
        options: ClickSimulation,
        seed: int,
    ) -> None:
        sizes = np.diff(judged.start)
        if len(sizes) == 0 or sizes.min() < 1:
            raise InputError("clicks are simulated for one query or more, of one document or more each")
        for each in (judged.grades, *scores):
            if len(each) != judged.start[-1]:
                raise InputError(
                    f"expected {judged.start[-1]:,} grades and scores, one a document; found {len(each):,}"
                )
        self.judged, self.options, self._seed = judged, options, np.uint64(seed)
        self.users = user_model(options.user_model, int(min(options.list_length, sizes.max())), options.eta)
        self.relevance = click_probabilities(judged.grades, options.click_noise)
        number = np.repeat(np.arange(len(sizes)), sizes)
        ranked = [np.lexsort((-each.astype(np.float64), number)) for each in scores]
        self._rankings = np.array(ranked or [np.arange(judged.start[-1])], dtype=np.int64)
        self._shares = np.array((options.randomised, options.swapped) if ranked else (1.0, 0.0))
        self._lengths = np.minimum(sizes, options.list_length)
        self._scratch = np.empty(int(sizes.max()), dtype=np.int64)
        loggers = [f"logger{i + 1}" for i in range(len(ranked))] if len(ranked) != 1 else ["logger"]
        loggers = loggers or ["logger"]
        self.policies = (*loggers, *(f"{name}-swapped" for name in loggers), "random")

    def _key(self, stream: int) -> np.uint64:
        return np.uint64(random_bits(self._seed, stream))

    @cached_property
    def _cumulative(self) -> npt.NDArray[np.float64]:
        n = len(self._lengths)
        if self.options.popularity == "equal":
            return np.arange(1.0, n + 1.0)
        place = np.argsort(
            random_bits_of(np.full(n, self._key(_OF_QUERIES), np.uint64), np.arange(n, dtype=np.uint64)), kind="stable"
        )
        share = np.empty(n)
        share[place] = 1.0 / np.arange(1.0, n + 1.0)
        return np.cumsum(share)

    def queries(self, first: int, last: int) -> npt.NDArray[np.int64]:
        """Return the queries of the sessions from ``first`` to before ``last``."""
        out = np.empty(last - first, dtype=np.int64)
        kernels.draw_queries(self._key(_OF_SESSIONS), np.int64(first), self._cumulative, out)
        return out

    def lists(self, session: npt.NDArray[np.int64], query: npt.NDArray[np.int64]) -> ResultLists:
        """Return the lists of sessions (lists,); the hashes are the numbers of the sessions."""
        start = np.zeros(len(session) + 1, dtype=np.int64)
        np.cumsum(self._lengths[query], out=start[1:])
        policy = np.empty(len(session), dtype=np.int32)
        document, rank, clicked = (np.empty(start[-1], dtype=kind) for kind in (np.int64, np.int32, np.uint8))
        kernels.draw_sessions(
            self._key(_OF_SESSIONS),
            session,
            query,
            start,
            self.judged.start,
            self._rankings,
            self._shares,
            self.relevance,
            self.users,
            self._scratch,
            (policy, document, rank, clicked),
        )
        return ResultLists(start, query, session.astype(np.uint64), policy, document, rank, clicked)

    def tables(self) -> Iterator[pa.Table]:
        """Yield the impressions as tables, in the order of the sessions."""
        for first in range(0, self.options.sessions, _SESSIONS_AT_ONCE):
            last = min(first + _SESSIONS_AT_ONCE, self.options.sessions)
            session = np.arange(first, last, dtype=np.int64)
            lists = self.lists(session, self.queries(first, last))
            sizes = np.diff(lists.start)
            texts = pa.array([f"S{number}" for number in range(first, last)], pa.string())
            columns = {
                "session": texts.take(_places(np.repeat(session - first, sizes))),
                "qid": self.judged.query_ids.take(_places(np.repeat(lists.query, sizes))),
                "doc_id": self.judged.document_ids.take(_places(lists.document)),
                "position": pa.array(lists.rank),
                "clicked": pa.array(lists.clicked),
                "policy": pa.array(self.policies, pa.string()).take(_places(np.repeat(lists.policy, sizes))),
            }
            yield pa.table(columns)


def _places(numbers: npt.NDArray[np.integer]) -> pa.Array[Any]:
    return pa.array(numbers.astype(np.int64, copy=False), pa.int64())


def _numbered(letter: str, n: int) -> pa.Array[Any]:
    width = len(str(n))
    return pa.array([f"{letter}{i + 1:0{width}}" for i in range(n)], pa.string())


def _writer(path: Path) -> Any:
    types: dict[str, pa.DataType] = {name: pa.string() for name in ("session", "qid", "doc_id")}
    types |= {"position": pa.int32(), "clicked": pa.uint8(), "policy": pa.string()}
    schema = pa.schema([pa.field(name, kind) for name, kind in types.items()])
    if path.suffix == ".csv":
        import pyarrow.csv

        return pyarrow.csv.CSVWriter(path, schema)
    import pyarrow.parquet

    return pyarrow.parquet.ParquetWriter(path, schema, compression="zstd")
