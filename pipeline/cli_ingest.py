"""``rankmill data ingest``: its options, and what they stand for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from rankmill.foundation.command_line import AsJson, takes_options
from rankmill.foundation.errors import InputError
from rankmill.foundation.options import declared_in, spelled
from rankmill.pipeline.options import OTHER_FILES, IngestOptions

_FOR_PAIRS = {"format", "max_rejects", "block_size", "overwrite"}  # options that have a meaning where pairs are added


@takes_options
def ingest(
    context: typer.Context,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the dataset to make.")],
    options: IngestOptions,
    sources: Annotated[
        list[Path] | None,
        typer.Argument(metavar="SRC...", help="Files with judgments (or pairs), folders, quoted patterns."),
    ] = None,
    valid: Annotated[
        list[Path] | None,
        typer.Option(help="File, folder or pattern of the valid split (may be repeated).", rich_help_panel="Splits"),
    ] = None,
    test: Annotated[
        list[Path] | None,
        typer.Option(help="File, folder or pattern of the test split (may be repeated).", rich_help_panel="Splits"),
    ] = None,
    pairs: Annotated[
        list[Path] | None,
        typer.Option(
            help="File of preference pairs of these judgments (may be repeated).", rich_help_panel=OTHER_FILES
        ),
    ] = None,
    qrels: Annotated[
        list[Path] | None,
        typer.Option(
            help="File of judgments (TREC's qrels or a table) that give the rows their grades (may be repeated).",
            rich_help_panel=OTHER_FILES,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Group judgments by query and write them as a dataset.

    Rows of a query may stand anywhere in the input.  Tables may have the columns label (real number), event, weight, offset,
    position and query_weight besides qid, doc_id, grade and features.  Where they have other names, --columns says so; what it
    leaves open is guessed for qid, doc_id and grade (from names such as query_id, url, relevance), and the guess is told.  Examples:

    rankmill data ingest S1.txt S2.txt S3.txt --valid S4.txt --test S5.txt -o DATASET

    rankmill data ingest log.parquet --columns qid=query_id,grade=rel --ignore 'title,debug_*' -o DATASET

    Grades may be words, negative, or not there:

    rankmill data ingest judged.csv --grades perfect=4,excellent=3,good=2,fair=1,bad=0 --negative-grades zero -o DATASET

    A folder stands for the files in it, a pattern such as 'days/**/*.txt.gz' for the files that match; the order of files
    does not matter:

    rankmill data ingest judgments/ -o DATASET

    Where the files are not the splits, a query's own hash or its latest row decides, and what is known of a query stays in
    one split: --split, --folds with --fold, or --time-column with --split-time:

    rankmill data ingest clicks.csv --time-column seen --split-time valid=2026-01-01,test=2026-02-01 -o DATASET

    New files are added to a dataset that is there with --append.  Only the shards whose queries get new rows are written again, and
    the dataset is the same as if all files had come at once; its bins are to be made anew:

    rankmill data ingest monday.txt -o DATASET --append

    Judgments may come in files of their own, and several of one document (by several judges) be made one.  Rows that nobody has
    judged are kept apart, in DATASET/_unjudged, to be re-ranked:

    rankmill data ingest features.csv --qrels qrels.txt --aggregate median -o DATASET

    Preference pairs say that one document of a query is better than another one.  A line (or a row of a table) names qid,
    better and worse, the latter two by doc_id, and perhaps a weight and a probability.  Pairs come with the judgments, or
    later for a dataset that is there:

    rankmill data ingest judgments.csv --pairs clicks.tsv -o DATASET

    rankmill data ingest --format pairs clicks.tsv -o DATASET
    """
    from rankmill.pipeline.ingest import ingest as build
    from rankmill.pipeline.ingest_report import IngestBars

    if options.format == "pairs":
        _add_pairs(context, sources or [], out, options, as_json)
        return
    if options.append:
        _check_given(context, out, options)

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


def _check_given(context: typer.Context, out: Path, options: IngestOptions) -> None:
    """Refuse what the command line says otherwise than the dataset that is added to, though it be a default."""
    from rankmill.pipeline.ingest.append_base import OPTIONS_OF_DATASET, OPTIONS_OF_READING, options_for
    from rankmill.pipeline.stored_shards import read_manifest

    given = [name for name in (*OPTIONS_OF_READING, *OPTIONS_OF_DATASET) if _is_given(context, name)]
    options_for(out, read_manifest(out), options, given)


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"


def _add_pairs(context: typer.Context, sources: list[Path], out: Path, options: IngestOptions, as_json: bool) -> None:
    """Join pairs to a dataset that is there; the options that only an ingest of judgments has are refused."""
    from rankmill.pipeline.pairs.add_pairs import add_pairs

    for name in ("valid", "test", "pairs", "qrels", *(each.name for each in declared_in(IngestOptions))):
        if name not in _FOR_PAIRS and _is_given(context, name):
            raise InputError(f"{spelled(name)} is for judgments; with --format pairs the dataset {out} is as it is")
    report = add_pairs(
        sources, out, max_rejects=options.max_rejects, block_size=options.block_size, overwrite=options.overwrite
    )
    typer.echo(json.dumps(report.to_json()) if as_json else report.render())
