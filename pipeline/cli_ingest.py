"""The command ``rankmill data ingest``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from rankmill.foundation.command_line import AsJson, takes_options
from rankmill.pipeline.options import OTHER_FILES, IngestOptions


@takes_options
def ingest(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the dataset to write.")],
    options: IngestOptions,
    sources: Annotated[
        list[Path] | None,
        typer.Argument(metavar="SRC...", help="Files with judgments, folders, or quoted glob patterns."),
    ] = None,
    valid: Annotated[
        list[Path] | None,
        typer.Option(help="File, folder or pattern of the valid split; repeat for several.", rich_help_panel="Splits"),
    ] = None,
    test: Annotated[
        list[Path] | None,
        typer.Option(help="File, folder or pattern of the test split; repeat for several.", rich_help_panel="Splits"),
    ] = None,
    pairs: Annotated[
        list[Path] | None,
        typer.Option(
            help="File with preference pairs for these judgments; repeat for several.", rich_help_panel=OTHER_FILES
        ),
    ] = None,
    qrels: Annotated[
        list[Path] | None,
        typer.Option(
            help="File with the grades of the rows, as TREC qrels or a table; repeat for several.",
            rich_help_panel=OTHER_FILES,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Group judgments by query and write them as a dataset.

    The input need not be sorted by query.  Besides qid, doc_id, grade and features, tables may have the columns label
    (real number), event, weight, offset, position and query_weight.  Use --columns if your columns have other names.
    Otherwise qid, doc_id and grade are inferred from names such as query_id, url and relevance, and the inferred
    columns are printed.  Examples:

    rankmill data ingest S1.txt S2.txt S3.txt --valid S4.txt --test S5.txt -o DATASET

    rankmill data ingest log.parquet --columns qid=query_id,grade=rel --ignore 'title,debug_*' -o DATASET

    Grades may be words, negative or missing:

    rankmill data ingest judged.csv --grades perfect=4,excellent=3,good=2,fair=1,bad=0 --negative-grades zero -o DATASET

    A folder means all files in it, a pattern such as 'days/**/*.txt.gz' all files that match.  The order of files does
    not matter:

    rankmill data ingest judgments/ -o DATASET

    Use --split, --folds with --fold, or --time-column with --split-time to assign each query to a split by its hash or
    its latest time.  Without one of these options SRC is the train split, and --valid and --test name the files of the
    others.  All rows of a query go to the same split:

    rankmill data ingest clicks.csv --time-column seen --split-time valid=2026-01-01,test=2026-02-01 -o DATASET

    Judgments may be in separate files, and several judgments of one document can be combined.  Rows without a judgment
    are kept for re-ranking in DATASET/_unjudged:

    rankmill data ingest features.csv --qrels qrels.txt --aggregate median -o DATASET

    A preference pair states that one document of a query is better than another.  Each line (or row of a table) has a
    qid, the doc_ids better and worse, and optionally a weight and a probability:

    rankmill data ingest judgments.csv --pairs clicks.tsv -o DATASET
    """
    from rankmill.pipeline.ingest import ingest as build
    from rankmill.pipeline.ingest_report import IngestBars

    with IngestBars() as bars:
        report = build(
            sources or (),
            out,
            valid=valid or (),
            test=test or (),
            pairs=pairs or (),
            qrels=qrels or (),
            options=options,
            progress=bars.update,
            say=bars.say,
        )
    typer.echo(json.dumps(report.to_json()) if as_json else report.render())
