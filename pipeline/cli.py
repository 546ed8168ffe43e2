"""``rankmill data``: from raw judgments to a dataset."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

if TYPE_CHECKING:
    from pipeline.ingest import IngestOptions
    from pipeline.sources.batch import Absent, Labels
    from pipeline.sources.grades import NegativeGrades, Unjudged

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

app = typer.Typer(no_args_is_help=True, help="Turn raw judgments into a dataset, and look at it.")


@app.command()
def ingest(
    context: typer.Context,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the dataset to make.")],
    sources: Annotated[
        list[Path] | None,
        typer.Argument(metavar="SRC...", help="Files with judgments (or pairs), folders, quoted patterns."),
    ] = None,
    valid: Annotated[
        list[Path] | None, typer.Option(help="File, folder or pattern of the valid split (may be repeated).")
    ] = None,
    test: Annotated[
        list[Path] | None, typer.Option(help="File, folder or pattern of the test split (may be repeated).")
    ] = None,
    pairs: Annotated[
        list[Path] | None, typer.Option(help="File of preference pairs of these judgments (may be repeated).")
    ] = None,
    qrels: Annotated[
        list[Path] | None,
        typer.Option(
            help="File of judgments (TREC's qrels or a table) that give the rows their grades (may be repeated)."
        ),
    ] = None,
    aggregate: Annotated[
        str | None,
        typer.Option(
            metavar="mean|median|max|majority|latest",
            help="What several judgments of one document make; default: keep all.",
        ),
    ] = None,
    split: Annotated[str | None, typer.Option(help="Draw the splits by query: train=0.8,valid=0.1,test=0.1.")] = None,
    split_time: Annotated[
        str | None,
        typer.Option(help="Split by the latest time of each query: valid=2026-01-01,test=2026-02-01; train is before."),
    ] = None,
    folds: Annotated[
        int | None, typer.Option(help="Split by hash into this many parts, 3 or more, for cross-validation.")
    ] = None,
    fold: Annotated[
        int | None, typer.Option(help="Which fold of --folds this dataset is, 1 to --folds: train from that part on.")
    ] = None,
    format: Annotated[  # noqa: A002
        str,
        typer.Option(
            metavar="auto|letor|csv|tsv|parquet|arrow|jsonl|run|pairs",
            help="Format of the files; auto: by suffix; pairs: preference pairs of the dataset that -o names.",
        ),
    ] = "auto",
    absent: Annotated[
        str, typer.Option(metavar="zero|missing", help="What a feature means that a line of LETOR text leaves out.")
    ] = "zero",
    index_base: Annotated[int, typer.Option(min=0, max=1, help="Number of the first feature in LETOR text.")] = 1,
    n_features: Annotated[
        int | None, typer.Option(min=1, help="Features of LETOR text; default: highest seen.")
    ] = None,
    labels: Annotated[
        str, typer.Option(metavar="grade|real", help="What the first number of a line of LETOR text is.")
    ] = "grade",
    columns: Annotated[
        str | None,
        typer.Option(metavar="PART=NAME,..", help="Columns of tables with other names: qid=query_id,grade=rel."),
    ] = None,
    ignore: Annotated[
        str | None, typer.Option(metavar="NAME,..", help="Columns of tables to leave out: title,debug_*.")
    ] = None,
    grades: Annotated[
        str | None, typer.Option(metavar="WORD=GRADE,..", help="Grades that are words: perfect=4,good=2,bad=0.")
    ] = None,
    negative_grades: Annotated[
        str, typer.Option(metavar="reject|zero|unjudged", help="What a negative grade means.")
    ] = "reject",
    unjudged: Annotated[
        str, typer.Option(metavar="keep|zero|reject", help="What it means that a row has no grade.")
    ] = "keep",
    time_column: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Column of tables that holds times: ISO text or seconds since 1970."),
    ] = None,
    max_grade: Annotated[int | None, typer.Option(min=0, help="Highest grade allowed; default: highest seen.")] = None,
    max_rejects: Annotated[int, typer.Option(min=0, help="Bad rows to put aside before giving up.")] = 0,
    buckets: Annotated[int, typer.Option(min=1, help="Shards of the dataset.")] = 32,
    memory: Annotated[str, typer.Option(help="Bound on the memory of the process, 512MB or more.")] = "2GB",
    threads: Annotated[int, typer.Option(min=0, help="Threads, as far as the memory allows; 0: all cores.")] = 0,
    block_size: Annotated[str, typer.Option(help="Text parsed at a time by each thread.")] = "16MiB",
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
    judged are kept apart, in DATASET/unjudged, to be re-ranked:

    rankmill data ingest features.csv --qrels qrels.txt --aggregate median -o DATASET

    Preference pairs say that one document of a query is better than another one.  A line (or a row of a table) names qid,
    better and worse, the latter two by doc_id, and perhaps a weight and a probability.  Pairs come with the judgments, or
    later for a dataset that is there:

    rankmill data ingest judgments.csv --pairs clicks.tsv -o DATASET

    rankmill data ingest --format pairs clicks.tsv -o DATASET
    """
    from pipeline.group.hashing import parse_shares
    from pipeline.group.splits import fold_choice, parse_split_time
    from pipeline.ingest import IngestOptions
    from pipeline.ingest import ingest as build
    from pipeline.judgments.rules import check_aggregate
    from pipeline.sizes import parse_size
    from pipeline.sources.batch import ReadOptions
    from pipeline.sources.grades import parse_words
    from pipeline.sources.parts import parse_columns, parse_ignored

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
            grades=() if grades is None else parse_words(grades),
            negative_grades=cast("NegativeGrades", negative_grades),
            unjudged=cast("Unjudged", unjudged),
            columns={} if columns is None else parse_columns(columns),
            ignore=() if ignore is None else parse_ignored(ignore),
            time_column=time_column,
        ),
        shares=None if split is None else parse_shares(split),
        split_time=None if split_time is None else parse_split_time(split_time),
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

    def say(line: str) -> None:
        typer.echo(line, err=True)

    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

        with Progress(
            TextColumn("reading"),
            BarColumn(),
            DownloadColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        ) as bar:
            task = bar.add_task("reading", total=None)
            report = build(
                sources or (), out, valid=valid or (), test=test or (), pairs=pairs or (), qrels=qrels or (), options=options,
                progress=lambda done, total: bar.update(task, completed=done, total=total), say=say,
            )  # fmt: skip
    else:
        report = build(
            sources or (),
            out,
            valid=valid or (),
            test=test or (),
            pairs=pairs or (),
            qrels=qrels or (),
            options=options,
            say=say,
        )
    typer.echo(json.dumps(report.to_json()) if as_json else report.render())


def _check_given(context: typer.Context, out: Path, options: IngestOptions) -> None:
    """Refuse what the command line says otherwise than the dataset that is added to, though it be a default."""
    from pipeline.append.meaning import OPTIONS, options_for
    from pipeline.dataset import read_manifest

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
    from pipeline.errors import InputError
    from pipeline.pairs.adding import add_pairs

    for name in _OF_JUDGMENTS:
        given = context.get_parameter_source(name)
        if given is not None and given.name != "DEFAULT":
            raise InputError(
                f"--{name.replace('_', '-')} is for judgments; with --format pairs the dataset {out} is as it is"
            )
    report = add_pairs(sources, out, max_rejects=max_rejects, block_bytes=block_bytes, overwrite=overwrite)
    typer.echo(json.dumps(report.to_json()) if as_json else report.render())


@app.command(name="bin")
def bin_(
    dataset: Annotated[Path, typer.Argument(metavar="DATASET", help="Folder that rankmill data ingest made.")],
    max_bin: Annotated[int, typer.Option(help="Bins a feature has at most, 15 to 255.")] = 255,
    memory: Annotated[str, typer.Option(help="Bound on the memory of the process, 512MB or more.")] = "2GB",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Cut every feature into quantile bins, as training needs them.

    The edges are the quantiles of the train split: exact ones if a column of it can be sorted in the memory that is given
    (12 bytes a row), else those of a sample of a million rows.  Bins that are there already are left alone.  Training uses
    the bins that were asked for last.  Example:

    rankmill data bin DATASET --max-bin 255 --memory 4GB
    """
    from pipeline.binning import bin_dataset, bin_plan, find_bins
    from pipeline.dataset import Dataset
    from pipeline.sizes import parse_size

    opened = Dataset.open(dataset)
    size = parse_size(memory, "--memory")
    plan = bin_plan(opened, size)
    found = find_bins(opened, max_bin, plan.sampled_rows)
    if found is None:
        typer.echo(plan.render(), err=True)
    spec = bin_dataset(opened, max_bin, size)
    bins = [len(feature.edges) + 1 for feature in spec.features]
    if as_json:
        facts = {
            "binspec": spec.digest,
            "max_bin": spec.max_bin,
            "sampled_rows": spec.sampled_rows,
            "bins": dict(zip(spec.feature_names, bins, strict=True)),
        }
        typer.echo(json.dumps({"dataset": str(dataset), "written": found is None, **facts}))
    elif found is not None and opened.bin_set().binspec == spec.digest:
        typer.echo(f"{dataset}: nothing to do, the bins {spec.digest[:12]} are there")
    elif found is not None:
        typer.echo(f"{dataset}: the bins {spec.digest[:12]} are there already; from now on training uses them")
    else:
        typer.echo(
            f"{dataset}: {len(bins)} features in {sum(bins):,} bins, {sum(b == max_bin for b in bins)} of them with all"
            f" {max_bin}; bins {spec.digest[:12]}"
        )


@app.command()
def describe(
    dataset: Annotated[Path, typer.Argument(metavar="DATASET", help="Folder that rankmill data ingest made.")],
    against: Annotated[
        Path | None, typer.Option(metavar="OLD", help="A former dataset: say what moved since, and nothing else.")
    ] = None,
    fail_on_drift: Annotated[
        bool, typer.Option("--fail-on-drift", help="Leave with 12 if features or grades moved, came or went.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Show what is in a dataset: splits, grades, queries that teach nothing, and every feature.

    With --against, how far each feature and the grades are from those of a former dataset: the population stability index
    (PSI) on the former's bins, and an alarm where it is above 0.1 and above what chance makes of queries like these once in
    a thousand comparisons.  For example:

    rankmill data describe DATASET

    rankmill data describe DATASET --against DATASET-OF-YESTERDAY --fail-on-drift
    """
    from shutil import get_terminal_size

    from pipeline.dataset import Dataset
    from pipeline.describe import describe as look
    from pipeline.drift.compare import compare
    from pipeline.errors import DriftAlarm, InputError

    width = max(80, get_terminal_size((120, 24)).columns)
    if against is None:
        if fail_on_drift:
            raise InputError("--fail-on-drift needs a former dataset; name it with --against")
        found = look(Dataset.open(dataset))
        typer.echo(found.to_json() if as_json else found.render(width))
        return
    moved = compare(Dataset.open(dataset), Dataset.open(against))
    typer.echo(moved.to_json() if as_json else moved.render(width))
    if fail_on_drift and moved.alarms:
        names = ", ".join(moved.alarms[:10]) + (f" and {len(moved.alarms) - 10} more" if len(moved.alarms) > 10 else "")
        raise DriftAlarm(f"{dataset}: differs from {against} in {names}")


@app.command()
def query(
    dataset: Annotated[Path, typer.Argument(metavar="DATASET", help="Folder that rankmill data ingest made.")],
    sql: Annotated[str, typer.Argument(metavar="SQL", help="One SELECT statement.")],
    memory: Annotated[str, typer.Option(help="Bound on the memory of the process, 512MB or more.")] = "1GB",
    threads: Annotated[int, typer.Option(min=0, help="Threads; 0: as many as there are cores, 4 at most.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout: columns and rows.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="CSV on stdout, with a header line.")] = False,
) -> None:
    """Ask a dataset in SQL.  Nothing is changed.

    The tables are features (qid, doc_id, grade, one column a feature; NULL is missing), queries, and, where the dataset has
    them, bins, pairs, rejects and pair_rejects.  Columns shard and row of features and bins say which rows are the same.
    For example:

    rankmill data query DATASET "SELECT grade, count(*), avg(f1) FROM features GROUP BY grade ORDER BY grade"

    rankmill data query DATASET "SELECT * FROM queries ORDER BY n_docs DESC LIMIT 10"

    rankmill data query DATASET "SELECT b.f1 AS bin, avg(f.grade) FROM features f JOIN bins b USING (shard, row) GROUP BY 1"
    """
    import csv
    from shutil import get_terminal_size

    from pipeline.dataset import Dataset
    from pipeline.errors import InputError
    from pipeline.sizes import parse_size
    from pipeline.sql import json_value, query_dataset, render_answer

    if as_json and as_csv:
        raise InputError("--json and --csv exclude each other")
    opened = Dataset.open(dataset)
    with query_dataset(opened, sql, memory=parse_size(memory, "--memory"), n_threads=threads) as answer:
        if as_json:
            sys.stdout.write(f'{{"columns": {json.dumps(answer.columns)}, "rows": [')
            for number, row in enumerate(answer.rows):
                sys.stdout.write(", " * bool(number) + json.dumps([json_value(value) for value in row]))
            sys.stdout.write("]}\n")
        elif as_csv:
            writer = csv.writer(sys.stdout, lineterminator="\n")
            writer.writerow(answer.columns)
            writer.writerows(answer.rows)
        else:
            typer.echo(render_answer(answer, max(80, get_terminal_size((120, 24)).columns)))


@app.command()
def synth(
    out: Annotated[Path, typer.Option("--out", "-o", help="File to write: .parquet, or .txt for LETOR text.")],
    queries: Annotated[int, typer.Option(help="Number of queries.")] = 1000,
    docs_per_query: Annotated[int, typer.Option(help="Documents a query has on average.")] = 40,
    features: Annotated[int, typer.Option(help="Number of features; the first 10 carry the signal.")] = 50,
    seed: Annotated[int, typer.Option(help="Another seed, other judgments.")] = 1,
    noise: Annotated[float, typer.Option(help="How much the grades are disturbed; 0 is not at all.")] = 0.6,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a file that is in the way.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Generate judgments like those of a web search engine, with a planted signal.

    Example, the size of MSLR-WEB10K:

    rankmill data synth -o judgments.parquet --queries 6000 --docs-per-query 120 --features 136
    """
    from pipeline.synth import SynthParameters, write_synthetic

    parameters = SynthParameters(
        queries=queries, documents_per_query=docs_per_query, features=features, seed=seed, noise=noise
    )
    report = write_synthetic(out, parameters, overwrite=overwrite)
    typer.echo(json.dumps(report.to_json()) if as_json else report.render())
