"""``rankmill data ingest``: its options, and what they stand for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

if TYPE_CHECKING:
    from rankmill.pipeline.ingest import IngestOptions
    from rankmill.pipeline.sources.batch import Absent, Labels
    from rankmill.pipeline.sources.grades import NegativeGrades, Unjudged

_SPLITS = "Splits"
_OTHER_FILES = "Judgments from other files"
_MEANING = "What the input means"
_GRADES = "Grades"
_LIMITS = "Limits"

_OF_JUDGMENTS = [
    "valid",
    "test",
    "pairs",
    "qrels",
    "aggregate",
    "split",
    "split_time",
    "folds",
    "fold",
    "absent",
    "index_base",
    "n_features",
    "labels",
    "columns",
    "ignore",
    "grades",
    "negative_grades",
    "unjudged",
    "time_column",
    "max_grade",
    "buckets",
    "memory",
    "threads",
    "append",
]


def ingest(
    context: typer.Context,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the dataset to make.")],
    sources: Annotated[
        list[Path] | None,
        typer.Argument(metavar="SRC...", help="Files with judgments (or pairs), folders, quoted patterns."),
    ] = None,
    valid: Annotated[
        list[Path] | None,
        typer.Option(help="File, folder or pattern of the valid split (may be repeated).", rich_help_panel=_SPLITS),
    ] = None,
    test: Annotated[
        list[Path] | None,
        typer.Option(help="File, folder or pattern of the test split (may be repeated).", rich_help_panel=_SPLITS),
    ] = None,
    pairs: Annotated[
        list[Path] | None,
        typer.Option(
            help="File of preference pairs of these judgments (may be repeated).", rich_help_panel=_OTHER_FILES
        ),
    ] = None,
    qrels: Annotated[
        list[Path] | None,
        typer.Option(
            help="File of judgments (TREC's qrels or a table) that give the rows their grades (may be repeated).",
            rich_help_panel=_OTHER_FILES,
        ),
    ] = None,
    aggregate: Annotated[
        str | None,
        typer.Option(
            metavar="mean|median|max|majority|latest",
            help="What several judgments of one document make; default: keep all.",
            rich_help_panel=_GRADES,
        ),
    ] = None,
    split: Annotated[
        list[str] | None,
        typer.Option(help="Draw the splits by query: train=0.8,valid=0.1,test=0.1.", rich_help_panel=_SPLITS),
    ] = None,
    split_time: Annotated[
        list[str] | None,
        typer.Option(
            help="Split by the latest time of each query: valid=2026-01-01,test=2026-02-01; train is before.",
            rich_help_panel=_SPLITS,
        ),
    ] = None,
    folds: Annotated[
        int | None,
        typer.Option(
            help="Split by hash into this many parts, 3 or more, for cross-validation.", rich_help_panel=_SPLITS
        ),
    ] = None,
    fold: Annotated[
        int | None,
        typer.Option(
            help="Which fold of --folds this dataset is, 1 to --folds: train from that part on.",
            rich_help_panel=_SPLITS,
        ),
    ] = None,
    format: Annotated[  # noqa: A002
        str,
        typer.Option(
            metavar="auto|letor|csv|tsv|parquet|arrow|jsonl|run|pairs",
            help="Format of the files; auto: by suffix; pairs: preference pairs of the dataset that -o names.",
            rich_help_panel=_MEANING,
        ),
    ] = "auto",
    absent: Annotated[
        str,
        typer.Option(
            metavar="zero|missing",
            help="What a feature means that a line of LETOR text leaves out.",
            rich_help_panel=_MEANING,
        ),
    ] = "zero",
    index_base: Annotated[
        int, typer.Option(min=0, max=1, help="Number of the first feature in LETOR text.", rich_help_panel=_MEANING)
    ] = 1,
    n_features: Annotated[
        int | None, typer.Option(min=1, help="Features of LETOR text; default: highest seen.", rich_help_panel=_MEANING)
    ] = None,
    labels: Annotated[
        str,
        typer.Option(
            metavar="grade|real", help="What the first number of a line of LETOR text is.", rich_help_panel=_GRADES
        ),
    ] = "grade",
    columns: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PART=NAME,..",
            help="Columns of tables with other names: qid=query_id,grade=rel; repeat for more.",
            rich_help_panel=_MEANING,
        ),
    ] = None,
    ignore: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME,..",
            help="Columns of tables to leave out: title,debug_*; repeat for more.",
            rich_help_panel=_MEANING,
        ),
    ] = None,
    grades: Annotated[
        list[str] | None,
        typer.Option(
            metavar="WORD=GRADE,..",
            help="Grades that are words: perfect=4,good=2,bad=0; repeat for more.",
            rich_help_panel=_GRADES,
        ),
    ] = None,
    negative_grades: Annotated[
        str, typer.Option(metavar="reject|zero|unjudged", help="What a negative grade means.", rich_help_panel=_GRADES)
    ] = "reject",
    unjudged: Annotated[
        str,
        typer.Option(
            metavar="keep|zero|reject", help="What it means that a row has no grade.", rich_help_panel=_GRADES
        ),
    ] = "keep",
    time_column: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Column of tables that holds times: ISO text or seconds since 1970.",
            rich_help_panel=_MEANING,
        ),
    ] = None,
    max_grade: Annotated[
        int | None, typer.Option(min=0, help="Highest grade allowed; default: highest seen.", rich_help_panel=_GRADES)
    ] = None,
    max_rejects: Annotated[
        int, typer.Option(min=0, help="Bad rows to put aside before giving up.", rich_help_panel=_LIMITS)
    ] = 0,
    buckets: Annotated[int, typer.Option(min=1, help="Shards of the dataset.", rich_help_panel=_LIMITS)] = 32,
    memory: Annotated[
        str, typer.Option(help="Bound on the memory of the process, 512MB or more.", rich_help_panel=_LIMITS)
    ] = "2GB",
    threads: Annotated[
        int, typer.Option(min=0, help="Threads, as far as the memory allows; 0: all cores.", rich_help_panel=_LIMITS)
    ] = 0,
    block_size: Annotated[
        str, typer.Option(help="Text parsed at a time by each thread.", rich_help_panel=_LIMITS)
    ] = "16MiB",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a dataset that is in the way.")] = False,
    append: Annotated[
        bool,
        typer.Option("--append", help="Add the rows to the dataset that -o names, as if all files had come at once."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
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
    from rankmill.foundation.units import parse_size
    from rankmill.pipeline.group.query_splits import fold_choice, parse_shares, parse_split_time
    from rankmill.pipeline.ingest import IngestOptions
    from rankmill.pipeline.ingest import ingest as build
    from rankmill.pipeline.ingest_report import IngestBars
    from rankmill.pipeline.judgments.rules import check_aggregate
    from rankmill.pipeline.sources.batch import ReadOptions
    from rankmill.pipeline.sources.grades import parse_words
    from rankmill.pipeline.sources.parts import parse_columns, parse_ignored

    if format == "pairs":
        _add_pairs(context, sources or [], out, max_rejects, parse_size(block_size, "--block-size"), overwrite, as_json)
        return
    options = IngestOptions(
        format=format,
        read=ReadOptions(
            absent=cast("Absent", absent),
            index_base=1 if index_base else 0,
            n_features=n_features,
            max_grade=max_grade,
            labels=cast("Labels", labels),
            grades=parse_words(",".join(grades)) if grades else (),
            negative_grades=cast("NegativeGrades", negative_grades),
            unjudged=cast("Unjudged", unjudged),
            columns=parse_columns(columns or ()),
            ignore=parse_ignored(ignore or ()),
            time_column=time_column,
        ),
        shares=parse_shares(",".join(split)) if split else None,
        split_time=parse_split_time(",".join(split_time)) if split_time else None,
        folds=fold_choice(folds, fold),
        aggregate=None if aggregate is None else check_aggregate(aggregate),
        max_rejects=max_rejects,
        buckets=buckets,
        memory=parse_size(memory, "--memory"),
        threads=threads,
        block_bytes=parse_size(block_size, "--block-size"),
        overwrite=overwrite,
        append=append,
    )
    if append:
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
    from rankmill.pipeline.ingest.append_base import OPTIONS, options_for
    from rankmill.pipeline.stored_shards import read_manifest

    sources = {name: context.get_parameter_source(called) for name, called in OPTIONS.items()}
    given = [name for name, source in sources.items() if source is not None and source.name != "DEFAULT"]
    options_for(out, read_manifest(out), options, given)


def _add_pairs(
    context: typer.Context,
    sources: list[Path],
    out: Path,
    max_rejects: int,
    block_bytes: int,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Join pairs to a dataset that is there; the options that only an ingest of judgments has are refused."""
    from rankmill.foundation.errors import InputError
    from rankmill.pipeline.pairs.add_pairs import add_pairs

    for name in _OF_JUDGMENTS:
        given = context.get_parameter_source(name)
        if given is not None and given.name != "DEFAULT":
            raise InputError(
                f"--{name.replace('_', '-')} is for judgments; with --format pairs the dataset {out} is as it is"
            )
    report = add_pairs(sources, out, max_rejects=max_rejects, block_bytes=block_bytes, overwrite=overwrite)
    typer.echo(json.dumps(report.to_json()) if as_json else report.render())
