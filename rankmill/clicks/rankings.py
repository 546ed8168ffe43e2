"""Rankings to be judged by clicks: scored lists as they are, or what a model makes of candidates."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import polars as pl
import pyarrow as pa

from rankmill.foundation.errors import DataRejected, InputError
from rankmill.foundation.options import spelled
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.pipeline.read.batch import Source
from rankmill.scorer.evaluate.scored_file import as_scored, read_scored
from rankmill.scorer.evaluate.train_test_overlap import names_dataset
from rankmill.scorer.models.loading import predictor_of
from rankmill.scorer.models.model import Model
from rankmill.scorer.options import JudgedOptions
from rankmill.scorer.rerank.candidate_sources import DatasetSource, files_of, open_sources, read_options
from rankmill.scorer.rerank.score import scored_rows


def scored_table(source: Model | Path, on: Sequence[Path] = ()) -> pa.Table:
    """Return qid, doc_id and score of a scored list, or of the candidates ``on`` by a model.

    Candidates are files, folders or a dataset.

    Raises
    ------
    InputError
        There are no candidates for a model, or no such file.
    CandidatesRejected
        The list or the candidates are malformed.
    """
    if not isinstance(source, Model):
        return read_scored(source)
    if not on:
        raise InputError(f"no candidates given for the model; name them with {spelled('on')}")
    options, predictor = JudgedOptions(), predictor_of(source)
    reading = read_options(options, source)
    sources: list[Source] = (
        [DatasetSource(Dataset.open(on[0]), None, predictor)]
        if names_dataset(list(on))
        else open_sources(files_of(on, options.format), options.format, reading)
    )
    return as_scored(scored_rows(sources, predictor, reading, options.threads), ", ".join(map(str, on)))


def ranked_rows(name: str, table: pa.Table) -> pl.DataFrame:
    """Return qid, doc_id and score of a scored list in the order of its queries.

    The best documents come first, ties by ascending doc_id.

    Raises
    ------
    InputError
        A row has no doc_id.
    DataRejected
        A query has a document twice.
    """
    if "doc_id" not in table.column_names or table.column("doc_id").null_count:
        raise InputError(f"{name}: expected a doc_id in every row, to find it in the log; some have none")
    rows = pl.DataFrame(table.select(["qid", "doc_id", "score"]))
    twice = rows.filter(pl.struct("qid", "doc_id").is_duplicated())
    if len(twice):
        qid, doc_id = twice.select("qid", "doc_id").sort("qid", "doc_id").row(0)
        raise DataRejected(f"{name}: expected each document once per query, found {doc_id!r} of query {qid!r} again")
    return rows.sort("qid", "score", "doc_id", descending=[False, True, False])
