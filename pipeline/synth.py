"""Generate judgments like those of a search engine with a known signal, so that the best possible ranking is known.

Ten features carry the signal; the others imitate further features of such data.  The hidden relevance of a document is

    h = topical + 0.6 links + 1.2 topical title + nav (1.6 anchors + 1.2 clicks) + (1 - nav) topical fresh
        + 0.3 long title - 0.8 [spam > 0.6] - 0.5 |depth - 2| / 6

    topical = f1 / (f1 + 9)      f1   text match, heavy tail
    title   = f2                 f2   share of the query's terms in the title; zero in 45 % of documents
    anchors = f3 / (f3 + 2.5)    f3   links with the query as text: a heavy-tailed count, zero in 70 %
    clicks  = f4 / (f4 + 4)      f4   clicks: a heavy-tailed count, zero in 85 %
    links   = f5 / (f5 + 0.5)    f5   link popularity, heavy tail
    depth   = f6                 f6   depth of the URL, 0 to 8, mostly small
    spam    = f7                 f7   spam score, 0 to 1
    long    = (f8 - 1) / 5       f8   number of query terms, 1 to 6: the same for all documents of a query
    nav     = f9                 f9   how navigational the query is, 0 to 1: the same for all documents of a query
    fresh   = 30 / (30 + f10)    f10  age in days, heavy tail

It has additive terms, interactions, a step, a non-monotone term, and weights that depend on the query.  Four thresholds
on ``h + offset of the query + noise * e`` give the grades 0 to 4, which 52, 32, 13, 2 and 1 % of a large sample have.
The sum of four uniform numbers is e, with standard deviation 1; the offset is that of two, with 0.41.  Ranking by ``h``
itself (`ideal_scores`) is the best possible ranking.

The features from f11 on repeat a cycle of nine kinds.  Two are copies of a signal feature, one noisy and one exact on
another scale.  The others are an unrelated heavy-tailed count, a count that is zero in 90 %, a flag set in 1 to 5 %, a
share that is often exactly 0 or 1, a small category, a feature of the query, and plain noise.

With ``categorical`` there are more features, c1, c2, .., whose values are text.  Category i of k, from 0, has a share
of ``sqrt((i + 1) / k) - sqrt(i / k)`` of the documents, independently of the other features.  Its effect, which is
added to h, is uniform in -0.9 to 0.9, with a standard deviation of 0.52.  The thresholds of the grades are chosen so
that their shares stay.

The same parameters give the same bytes. Random numbers are from Philox keyed by (seed, query), values are on a decimal
grid, and all operations are exact by IEEE 754.  The rows of a query do not depend on the number of queries; its grades
and first features do not depend on the number of features.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rankmill.foundation.errors import InputError
from rankmill.foundation.records import as_json
from rankmill.foundation.storage.publish import check_new_file, publish_file
from rankmill.foundation.storage.staging import staging_folder
from rankmill.pipeline.arrow import as_array, parts_of
from rankmill.pipeline.options import MAX_SEED, N_SIGNAL, SynthParameters

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

SHARES = (0.52, 0.32, 0.13, 0.02, 0.01)
_SIGNAL_DECIMALS = (4, 6, 0, 0, 3, 0, 4, 0, 3, 0)
_FILLER_KINDS = 9
_NOISE_ROWS = 2  # 32-bit draws per document for the noise of its grade
_HEADER = 8  # 64-bit draws per query
_CALIBRATION_KEY = MAX_SEED + 1  # above all seeds, so that no data set shares draws with the calibration
_CALIBRATION_QUERIES, _CALIBRATION_DOCUMENTS = 4096, 32
_BLOCK_CELLS = 4_000_000  # values generated at once

_EFFECT = 0.9  # of a category, at most
_ROOT_OF_3 = 1.7320508075688772

_join: Any = pc.binary_join_element_wise  # its stubs know no mix of texts and arrays

Floats = npt.NDArray[np.float64]
Grid = npt.NDArray[np.int32]
Draws = npt.NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class SynthReport:
    """The result of `write_synthetic`."""

    path: Path
    queries: int
    rows: int
    grades: Mapping[int, int]
    """Number of rows of each grade."""
    parameters: SynthParameters

    def render(self) -> str:
        """Return the report as two lines of text."""
        shares = ", ".join(f"{grade}: {rows:,} ({rows / self.rows:.1%})" for grade, rows in self.grades.items())
        sizes = f"{self.rows:,} documents of {self.queries:,} queries, {self.parameters.features} features"
        sizes += f" and {len(self.parameters.categorical)} of categories" if self.parameters.categorical else ""
        return f"{self.path}: {sizes}\n  grades    {shares}"

    def to_json(self) -> Any:
        """Return the report as JSON values."""
        return as_json(self)


@dataclass(frozen=True)
class QueryBlock:
    """Rows of some consecutive queries."""

    first_query: int
    starts: npt.NDArray[np.int64]
    """Row offsets, shape (queries + 1,)."""
    grades: npt.NDArray[np.int32]
    grid: Grid
    """Shape (features, rows): the values times 10 to the power of ``decimals``."""
    decimals: npt.NDArray[np.int64]
    categories: npt.NDArray[np.int32]
    """Shape (categorical features, rows): the number of the category, from 0."""

    @cached_property
    def values(self) -> npt.NDArray[np.float32]:
        """Shape (features, rows): exactly the float32 of the decimal text."""
        # grid and power are exact in float32, so the quotient is rounded once
        powers = np.array([10**places for places in self.decimals.tolist()], dtype=np.float32)
        return self.grid.astype(np.float32) / powers[:, None]


def write_synthetic(path: Path, parameters: SynthParameters, *, overwrite: bool = False) -> SynthReport:
    """Write generated judgments to ``path``: Parquet if it ends in .parquet, else LETOR text.

    Text lines read ``grade qid:Q 1:v 2:v ... #docid = D``; Parquet has the columns qid, doc_id, grade, f1, f2, ...
    Both hold the same float32 values.  Categories, c1, c2, .., are dictionaries of text, which only Parquet has.
    Memory does not grow with the number of queries.  With ``overwrite`` an existing file is replaced when the new one
    is complete.

    Raises
    ------
    InputError
        The suffix of ``path`` is neither .parquet nor one of text (.txt, .letor, .svm or none), or ``path`` exists and
        may not be replaced, or it is text and there are categorical features.
    """
    write = _WRITERS.get(path.suffix)
    if write is None:
        raise InputError(f"{path}: cannot write {path.suffix!r}; name the file .parquet or .txt")
    if parameters.categorical and write is not _write_parquet:
        raise InputError(f"{path}: LETOR text cannot hold categories of text; name the file .parquet")
    check_new_file(path, overwrite=overwrite)
    with staging_folder(path) as staging:
        staged = staging / path.name
        counts = write(staged, parameters)
        publish_file(staged, path)
    return SynthReport(path, parameters.queries, sum(counts), dict(enumerate(counts)), parameters)


def ideal_scores(values: npt.NDArray[np.float32]) -> Floats:
    """Return the hidden relevance without noise, (n,), of documents with features ``values`` (n, at least 10).

    No ranker that uses only the features can be expected to rank better.

    >>> ideal_scores(np.array([[9, 1, 0, 0, 0.5, 2, 0.1, 1, 1.0, 30]], dtype=np.float32)).tolist()
    [1.4]
    """
    columns = np.asarray(values)[:, :N_SIGNAL].astype(np.float64).T
    match, title, anchor_count, click_count, popularity, depth, spam, terms, navigational, age = columns
    topical = match / (match + 9.0)
    links = popularity / (popularity + 0.5)
    anchors = anchor_count / (anchor_count + 2.5)
    clicks = click_count / (click_count + 4.0)
    fresh = 30.0 / (30.0 + age)
    hidden: Floats = (
        topical
        + 0.6 * links
        + 1.2 * topical * title
        + navigational * (1.6 * anchors + 1.2 * clicks)
        + (1.0 - navigational) * topical * fresh
        + 0.3 * (terms - 1.0) / 5.0 * title
        - 0.8 * (spam > 0.6)
        - 0.5 * np.abs(depth - 2.0) / 6.0
    )
    return hidden


def category_effects(parameters: SynthParameters) -> list[Floats]:
    """Return what each category of each categorical feature adds to the hidden relevance, (categories,) each.

    The effects of a feature are the same for every seed and size; with more categories, the first ones keep theirs.
    """
    found = []
    for feature, number in enumerate(parameters.categorical):
        stream = np.random.Philox(key=np.array([_CALIBRATION_KEY + 1, feature], dtype=np.uint64))
        draws = (stream.random_raw(number) >> np.uint64(32)).astype(np.uint32)
        found.append((2.0 * _uniform(draws) - 1.0) * _EFFECT)
    return found


def generate(parameters: SynthParameters) -> Iterator[QueryBlock]:
    """Yield the queries of ``parameters`` in order, in blocks."""
    thresholds = _thresholds(parameters)
    width = parameters.features + len(parameters.categorical)
    together = max(1, _BLOCK_CELLS // (parameters.documents_per_query * width))
    for first in range(0, parameters.queries, together):
        queries = range(first, min(first + together, parameters.queries))
        yield _generate_block(parameters, queries, thresholds)


def _generate_block(parameters: SynthParameters, queries: range, thresholds: Floats) -> QueryBlock:
    features = parameters.features
    header, draws, starts = _draw(parameters.seed, queries, parameters.documents_per_query, features, sized=True)
    grid = np.empty((features, draws.shape[1]), dtype=np.int32)
    decimals = np.zeros(features, dtype=np.int64)
    sizes = np.diff(starts)
    per_query = np.repeat(header, sizes, axis=0)
    _fill_signal(grid, draws, per_query)
    decimals[:N_SIGNAL] = _SIGNAL_DECIMALS
    for f in range(N_SIGNAL, features):
        draw = draws[f + _NOISE_ROWS]
        decimals[f] = _fill_other(grid, f - N_SIGNAL, draw, np.repeat(draw[starts[:-1]], sizes))
    categories = _draw_categories(parameters.seed, queries, sizes, parameters)
    no_grades = np.zeros(0, np.int32)
    signal = QueryBlock(queries.start, starts, no_grades, grid[:N_SIGNAL], decimals[:N_SIGNAL], categories)
    disturbed = _noisy_relevance(signal.values, draws, per_query, parameters.noise)
    disturbed = _with_effects(disturbed, categories, parameters)
    grades = np.searchsorted(thresholds, disturbed, side="right").astype(np.int32)
    return QueryBlock(queries.start, starts, grades, grid, decimals, categories)


def _draw_categories(
    key: int, queries: range, sizes: npt.NDArray[np.int64], parameters: SynthParameters
) -> npt.NDArray[np.int32]:
    """Return the categories of the documents of ``queries``, (categorical features, rows).

    They come from random streams of their own.
    """
    numbers = parameters.categorical
    if not numbers:
        return np.empty((0, int(sizes.sum())), dtype=np.int32)
    parts = []
    for query, size in zip(queries, sizes.tolist(), strict=True):
        stream = np.random.Philox(key=np.array([key, query], dtype=np.uint64), counter=[0, 0, 0, 1])
        draws = (stream.random_raw(len(numbers) * size) >> np.uint64(32)).astype(np.uint32)
        uniform = _uniform(draws.reshape(len(numbers), size))
        parts.append(np.floor(uniform * uniform * np.array(numbers, dtype=np.float64)[:, None]).astype(np.int32))
    return np.concatenate(parts, axis=1)


def _with_effects(relevance: Floats, categories: npt.NDArray[np.int32], parameters: SynthParameters) -> Floats:
    """Return ``relevance`` (n,) with the effects of ``categories``."""
    for effects, places in zip(category_effects(parameters), categories, strict=True):
        relevance = relevance + effects[places]
    return relevance


def _thresholds(parameters: SynthParameters) -> Floats:
    """Return the four thresholds of the grades: quantiles of a fixed sample, the same for every seed and size."""
    queries = range(_CALIBRATION_QUERIES)
    header, draws, starts = _draw(_CALIBRATION_KEY, queries, _CALIBRATION_DOCUMENTS, N_SIGNAL, sized=False)
    per_query = np.repeat(header, np.diff(starts), axis=0)
    grid = np.empty((N_SIGNAL, draws.shape[1]), dtype=np.int32)
    _fill_signal(grid, draws, per_query)
    categories = _draw_categories(_CALIBRATION_KEY, queries, np.diff(starts), parameters)
    block = QueryBlock(0, starts, np.zeros(0, np.int32), grid, np.array(_SIGNAL_DECIMALS), categories)
    disturbed = _noisy_relevance(block.values, draws, per_query, parameters.noise)
    disturbed = np.sort(_with_effects(disturbed, categories, parameters))
    return disturbed[[round(share * len(disturbed)) for share in (0.52, 0.84, 0.97, 0.99)]]


def _draw(
    key: int, queries: range, mean: int, features: int, *, sized: bool
) -> tuple[npt.NDArray[np.float64], Draws, npt.NDArray[np.int64]]:
    """Return uniform numbers (queries, 8), draws (features + 2, rows) and row offsets of ``queries``.

    The stream of a query has the query's own numbers, then draws for each feature, beginning with the signal and its
    noise.
    """
    headers = np.empty((len(queries), _HEADER), dtype=np.float64)
    starts = np.zeros(len(queries) + 1, dtype=np.int64)
    parts: list[Draws] = []
    for i, query in enumerate(queries):
        stream = np.random.Philox(key=np.array([key, query], dtype=np.uint64))
        headers[i] = _uniform((stream.random_raw(_HEADER) >> np.uint64(32)).astype(np.uint32))
        # the sum of two uniform numbers: sizes near the mean are most frequent
        size = 1 + int((mean - 1) * (headers[i, 0] + headers[i, 1]) + 0.5) if sized else mean
        starts[i + 1] = starts[i] + size
        cells = (features + _NOISE_ROWS) * size
        raw = stream.random_raw((cells + 1) // 2).astype("<u8", copy=False).view("<u4")[:cells]
        parts.append(raw.reshape(features + _NOISE_ROWS, size))
    return headers, np.concatenate(parts, axis=1), starts


def _uniform(draws: Draws) -> Floats:
    """Return numbers in (0, 1), exact in float64."""
    return (draws.astype(np.float64) + 0.5) * 2.0**-32


def _odds(uniform: Floats) -> Floats:
    """Return u / (1 - u): log-logistic with median 1, close to log-normal but with a heavier tail."""
    return uniform / (1.0 - uniform)


def _zero_inflated(uniform: Floats, zeros: float) -> tuple[npt.NDArray[np.bool_], Floats]:
    """Return which values are not zero, and a uniform number for them; ``zeros`` is the share of zeros."""
    return uniform >= zeros, np.maximum((uniform - zeros) / (1.0 - zeros), 2.0**-33)


def _to_grid(values: Floats, highest: float, decimals: int = 0) -> Grid:
    """Return ``values`` clipped at ``highest`` and rounded down to the decimal grid."""
    return np.floor(np.minimum(values, highest) * float(10**decimals)).astype(np.int32)


def _count(uniform: Floats, zeros: float, scale: float, highest: float) -> Grid:
    """Return heavy-tailed counts, of which a share of ``zeros`` are 0."""
    positive, rest = _zero_inflated(uniform, zeros)
    return np.where(positive, 1 + _to_grid(scale * _odds(rest), highest - 1), 0).astype(np.int32)


def _fill_signal(grid: Grid, draws: Draws, per_query: Floats) -> None:
    """Write f1 to f10; see the docstring of the module."""
    u = [_uniform(draws[_NOISE_ROWS + f]) for f in range(N_SIGNAL)]
    terms = 1 + np.floor(per_query[:, 2] * 6.0)
    matched, rest = _zero_inflated(u[1], 0.45)
    grid[0] = _to_grid(9.0 * np.sqrt(_odds(u[0])), 99.9999, 4)
    grid[1] = np.where(matched, np.floor((1 + np.floor(rest * terms)) / terms * 1e6), 0)
    grid[2] = _count(u[2], 0.70, 2.5, 99_999)
    grid[3] = _count(u[3], 0.85, 4.0, 999_999)
    grid[4] = _to_grid(0.5 * _odds(u[4]), 9999.999, 3)
    grid[5] = _to_grid(9.0 * u[5] * u[5], 8)
    grid[6] = _to_grid(u[6], 1, 4)
    grid[7] = terms
    grid[8] = _to_grid(per_query[:, 3], 1, 3)
    grid[9] = _to_grid(60.0 * _odds(u[9]), 9999)


def _fill_other(grid: Grid, number: int, draw: Draws, query_draw: Draws) -> int:
    """Write the ``number``-th feature after the signal; return its number of decimals."""
    u, cycle, row = _uniform(draw), number // _FILLER_KINDS, number + N_SIGNAL
    kind = number % _FILLER_KINDS
    # copies are made only of signal features of the document: f1 to f7 and f10
    source = (0, 1, 2, 3, 4, 5, 6, 9)[cycle % 8]
    if kind == 0:  # a noisy copy: the value times 0.5 to 1.5
        grid[row] = np.floor(grid[source] * (0.5 + u))
        return _SIGNAL_DECIMALS[source]
    if kind == 1:
        grid[row] = _count(u, 0.3, 20.0 * (1 + cycle % 7), 9_999_999)
    elif kind == 2:
        grid[row] = _count(u, 0.9, 3.0, 9_999)
    elif kind == 3:
        grid[row] = u < 0.01 * (1 + cycle % 5)
    elif kind == 4:  # a fifth exactly 0, a fifth exactly 1
        grid[row] = _to_grid(np.minimum(np.maximum((u - 0.2) / 0.6, 0.0), 1.0), 1, 6)
        return 6
    elif kind == 5:
        grid[row] = _to_grid(_uniform(query_draw), 1, 3)
        return 3
    elif kind == 6:  # the same order and ties on another scale
        grid[row] = grid[source]
        return _SIGNAL_DECIMALS[source] + 2
    elif kind == 7:
        grid[row] = _to_grid(u * (3 + cycle % 10), 12)
    else:
        grid[row] = _to_grid(u, 1, 6)
        return 6
    return 0


def _noisy_relevance(signal: npt.NDArray[np.float32], draws: Draws, per_query: Floats, noise: float) -> Floats:
    """Return the hidden relevance plus the query's offset and the noise of the judge."""
    halves = draws[:_NOISE_ROWS]
    total = sum((part >> 16) + (part & 0xFFFF).astype(np.float64) for part in halves) + 2.0
    bell = (total / 65536.0 - 2.0) * _ROOT_OF_3  # four uniform numbers have variance 4 / 12
    offset = per_query[:, 4] + per_query[:, 5] - 1.0
    disturbed: Floats = ideal_scores(signal.T) + offset + noise * bell
    return disturbed


def _ids(block: QueryBlock) -> tuple[pa.Array[Any], pa.Array[Any]]:
    """Return the ids of queries and of documents of the rows of ``block``: Q and DQ-n."""
    sizes = np.diff(block.starts)
    queries = np.repeat(np.arange(len(sizes)) + block.first_query + 1, sizes)
    qid = as_array(queries).cast(pa.string())
    number = as_array(np.arange(len(queries)) - np.repeat(block.starts[:-1], sizes) + 1).cast(pa.string())
    return qid, _join("D", qid, "-", number, "")


def _write_letor(path: Path, parameters: SynthParameters) -> tuple[int, ...]:
    counts = np.zeros(len(SHARES), dtype=np.int64)
    with path.open("xb") as file:
        for block in generate(parameters):
            counts += np.bincount(block.grades, minlength=len(SHARES))
            qid, documents = _ids(block)
            words = [as_array(block.grades).cast(pa.string()), " qid:", qid]
            for f, (column, places) in enumerate(zip(block.grid, block.decimals.tolist(), strict=True), start=1):
                whole, rest = np.divmod(column, 10**places)
                words += [f" {f}:", as_array(whole).cast(pa.string())]
                if places:
                    words += [".", pc.utf8_lpad(as_array(rest).cast(pa.string()), places, "0")]
            _, text = parts_of(_join(*words, " #docid = ", documents, "\n", ""))
            file.write(text.data)
    return tuple(counts.tolist())


def _write_parquet(path: Path, parameters: SynthParameters) -> tuple[int, ...]:
    counts = np.zeros(len(SHARES), dtype=np.int64)
    types: dict[str, pa.DataType] = {"qid": pa.string(), "doc_id": pa.string(), "grade": pa.int32()}
    types |= {f"f{f + 1}": pa.float32() for f in range(parameters.features)}
    named = {f"c{c + 1}": number for c, number in enumerate(parameters.categorical)}
    types |= dict.fromkeys(named, pa.dictionary(pa.int32(), pa.string()))
    texts = [pa.array([f"{name}-{k}" for k in range(number)], pa.string()) for name, number in named.items()]
    schema = pa.schema([pa.field(name, kind, nullable=False) for name, kind in types.items()])
    with pq.ParquetWriter(path, schema, compression="zstd", use_dictionary=cast("Any", [*named] or False)) as writer:
        for block in generate(parameters):
            counts += np.bincount(block.grades, minlength=len(SHARES))
            columns = [*_ids(block), *map(as_array, (block.grades, *block.values))]
            for words, places in zip(texts, block.categories, strict=True):
                columns.append(pa.DictionaryArray.from_arrays(pa.array(places), words))
            writer.write_table(pa.Table.from_arrays(columns, schema=schema))
    return tuple(counts.tolist())


_WRITERS = {".parquet": _write_parquet} | dict.fromkeys((".txt", ".letor", ".svm", ""), _write_letor)
