"""Read a column of the evaluated input with the query ids, for slices."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from rankmill.foundation.errors import InputError
from rankmill.foundation.options import spelled
from rankmill.pipeline.bins.categories import code_name
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.pipeline.options import Format, ReadOptions
from rankmill.pipeline.read.batch import Source
from rankmill.pipeline.read.column_roles import KEPT
from rankmill.pipeline.read.columnar import TableSource
from rankmill.pipeline.read.columns import TableColumns
from rankmill.pipeline.read.open_source import open_source
from rankmill.scorer.evaluate.scored_file import open_list, scored_shards
from rankmill.scorer.rerank.candidate_sources import open_sources

BLOCK_BYTES = 16 << 20


def column_of_dataset(dataset: Dataset, split: str | None, name: str) -> pl.DataFrame:
    """Return qid and value, one row per document of ``split``, categories as text.

    An unknown column raises the dataset's own error.
    """
    rows = _named(pl.DataFrame(dataset.rows(split, ("qid", name))), "qid", name)
    if name in dataset.manifest.categorical:
        return rows.with_columns(value=_texts(rows["value"].to_numpy(), dataset.vocabulary.names(name)))
    return rows


def column_of_candidates(paths: Sequence[Path], input_format: Format, options: ReadOptions, name: str) -> pl.DataFrame:
    """Return qid and value, one row per candidate.

    Raises
    ------
    InputError
        A file has no such column.
    """
    parts: list[pl.DataFrame] = []
    for source in open_sources(paths, input_format, options):
        if isinstance(source, TableSource):
            columns_of = partial(_with_column, source.roles.column_of["qid"], name)
            parts += _columns_of_tables([open_source(source.path, input_format, options, columns_of=columns_of)], name)
        else:
            parts += _column_of_text(source, options, name)
    return pl.concat(parts, how="vertical_relaxed")


def column_of_scored(scored: Path | pa.Table, name: str) -> pl.DataFrame:
    """Return qid and value, one row per scored document.

    Raises
    ------
    InputError
        There is no such column; a TREC run has only its own.
    """
    if isinstance(scored, pa.Table):
        _check(scored.column_names, name, "the table")
        return _named(pl.DataFrame(scored.select(list(dict.fromkeys(("qid", name))))), "qid", name)
    columns_of = partial(_with_column, "qid", name)
    if (source := open_list(scored, columns_of)) is not None:
        tables: list[Source] = [source]
    else:
        tables = [open_source(shard, "parquet", columns_of=columns_of) for shard in scored_shards(scored)]
    if not tables:
        raise InputError(
            f"{spelled('by')} {name}: {scored} is a TREC run, which has no other columns; give a table instead"
        )
    return pl.concat(_columns_of_tables(tables, name), how="vertical_relaxed")


def _with_column(qid: str, wanted: str, path: Path, header: Sequence[str], *_: object) -> TableColumns:
    _check(header, wanted, str(path))
    return TableColumns({"qid": qid, f"{KEPT}value": wanted}, ())


def _columns_of_tables(tables: Sequence[Source], name: str) -> Iterator[pl.DataFrame]:
    """Yield qid and value of each table; text is numbers if every non-empty cell is a number."""
    for table in tables:
        assert isinstance(table, TableSource)  # noqa: S101 - opened as one
        found = []
        for rows in table.table_rows():
            rows.reject(rows.problems)
            found.append(pl.DataFrame({"qid": rows.columns["qid"], name: rows.columns[f"{KEPT}value"]}))
        if found:
            yield _as_numbers(_named(pl.concat(found, how="vertical_relaxed"), "qid", name))


def _column_of_text(source: Source, options: ReadOptions, name: str) -> Iterator[pl.DataFrame]:
    """Yield qid and value of LETOR text, or of a run."""
    if source.columns is None:
        index = re.fullmatch("f(0|[1-9][0-9]{0,8})", name)
        if index is None or int(index[1]) < options.index_base:
            raise InputError(
                f"{spelled('by')} {name}: {source.path} is LETOR text, whose columns are f{options.index_base}, .."
            )
        place = int(index[1]) - options.index_base
    else:
        _check(source.columns, name, str(source.path))
        place = source.columns.index(name)
    yield pl.DataFrame(schema={"qid": pl.String, "value": pl.Float32})
    for batch in source.batches(BLOCK_BYTES):
        there = place < batch.values.shape[1]
        value = batch.values[:, place].copy() if there else np.full(len(batch), options.absent_value, np.float32)
        yield pl.DataFrame({"qid": pl.Series(batch.qid), "value": value})


def _texts(codes: npt.NDArray[np.float32], names: dict[float, str]) -> pl.Series:
    """Return the texts of the categories ``codes`` (n,); null where missing."""
    known, place = np.unique(codes, return_inverse=True)
    texts = [None if np.isnan(code) else code_name(code, names) for code in known.tolist()]
    return pl.Series(texts, dtype=pl.String)[place]


def _as_numbers(rows: pl.DataFrame) -> pl.DataFrame:
    """Return rows with the text ``value`` as numbers if every non-empty one is a number."""
    if rows.schema["value"] != pl.String:
        return rows
    rows = rows.with_columns(pl.when(pl.col("value") != "").then("value"))
    numbers = rows["value"].cast(pl.Float64, strict=False)
    return rows.with_columns(value=numbers) if numbers.null_count() == rows["value"].null_count() else rows


def _named(rows: pl.DataFrame, qid: str, name: str) -> pl.DataFrame:
    value = pl.col(name)
    if rows.schema[name].is_nested():
        raise InputError(f"{spelled('by')} {name}: expected a column of text or numbers, found {rows.schema[name]}")
    if not (rows.schema[name].is_numeric() or rows.schema[name] == pl.Boolean):
        value = value.cast(pl.String)
    return rows.select(pl.col(qid).cast(pl.String).alias("qid"), value.alias("value"))


def _check(names: Sequence[str], name: str, where: str) -> None:
    if name not in names:
        raise InputError.unknown(f"{spelled('by')} column of {where}", name, [*names, "query_size", "grade_mix"])
