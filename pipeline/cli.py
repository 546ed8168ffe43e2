"""The commands ``rankmill data ..``, which build and inspect datasets."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from rankmill.foundation.command_line import AsJson, takes_options
from rankmill.pipeline.cli_ingest import ingest
from rankmill.pipeline.options import BinOptions, QueryOptions

_SHOWN = 40  # rows of an answer
DatasetFolder = Annotated[
    Path, typer.Argument(metavar="DATASET", help="Folder of a dataset, made by rankmill data ingest.")
]

app = typer.Typer(no_args_is_help=True, help="Build a dataset from raw judgments, and inspect it.")


app.command()(ingest)


@app.command(name="bin")
@takes_options
def bin_(
    dataset: DatasetFolder,
    options: BinOptions,
    as_json: AsJson = False,
) -> None:
    """Divide the values of every feature into quantile bins, as training requires.

    Bin edges are quantiles of the train split. They are exact if one column fits into --memory for sorting
    (13 bytes a row), otherwise from a sample of a million rows. Existing bins are not computed again. Training uses
    the bins requested last. A categorical feature has a bin for each of its most frequent categories, and one for the
    others. Examples:

    rankmill data bin DATASET --max-bin 255 --memory 4GB

    rankmill data bin DATASET --max-bin-of brand=50,price=63
    """
    from rankmill.pipeline.bins.binning import bin_dataset, bin_plan, find_bins
    from rankmill.pipeline.dataset.dataset import Dataset

    opened = Dataset.open(dataset)
    plan = bin_plan(opened, options.memory)
    found = find_bins(opened, options.max_bin, plan.sampled_rows, options.max_bin_of)
    if found is None:
        typer.echo(plan.render(), err=True)
    spec = bin_dataset(
        opened,
        options.max_bin,
        options.memory,
        max_bin_of=options.max_bin_of,
        cluster=options.cluster,
        say=lambda line: typer.echo(line, err=True),
    )
    bins = [len(feature.edges) + 1 for feature in spec.features]
    if as_json:
        facts = {
            "binspec": spec.digest,
            "max_bin": spec.max_bin,
            "max_bin_of": dict(spec.max_bin_of),
            "sampled_rows": spec.sampled_rows,
            "bins": dict(zip(spec.feature_names, bins, strict=True)),
        }
        typer.echo(json.dumps({"dataset": str(dataset), "written": found is None, **facts}))
    elif found is not None and opened.bin_set().binspec == spec.digest:
        typer.echo(f"{dataset}: nothing to do; the bins {spec.digest[:12]} already exist")
    elif found is not None:
        typer.echo(f"{dataset}: the bins {spec.digest[:12]} already exist; training now uses them")
    else:
        typer.echo(
            f"{dataset}: {len(bins)} features in {sum(bins):,} bins, {sum(b == options.max_bin for b in bins)} of "
            f"them with all {options.max_bin}; bins {spec.digest[:12]}"
        )


@app.command()
def describe(
    dataset: DatasetFolder,
    against: Annotated[
        Path | None,
        typer.Option(metavar="OLD", help="Older dataset to compare with: print the drift since then instead."),
    ] = None,
    fail_on_drift: Annotated[
        bool,
        typer.Option(
            "--fail-on-drift", help="Exit with 12 if features or grades drifted, or features appeared or disappeared."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Describe a dataset: splits, grades, queries without training signal, and every feature.

    With --against, measure how far each feature and the grades drifted from an older dataset: the population stability
    index (PSI) on the bins of the older dataset. An alarm means a PSI above 0.1 that is also significant (p < 0.001 for
    all features together). Examples:

    rankmill data describe DATASET

    rankmill data describe DATASET --against DATASET-OF-YESTERDAY --fail-on-drift
    """
    from rankmill.foundation.errors import DriftAlarm, InputError
    from rankmill.foundation.terminal import page_width
    from rankmill.pipeline.dataset.dataset import Dataset
    from rankmill.pipeline.statistics.dataset_drift import compare
    from rankmill.pipeline.statistics.describe_dataset import describe as look

    width = page_width(120)
    if against is None:
        if fail_on_drift:
            raise InputError("--fail-on-drift needs an older dataset to compare with; give it with --against")
        found = look(Dataset.open(dataset))
        typer.echo(found.to_json() if as_json else found.render(width))
        return
    moved = compare(Dataset.open(dataset), Dataset.open(against))
    typer.echo(moved.to_json() if as_json else moved.render(width))
    if fail_on_drift and moved.alarms:
        names = ", ".join(moved.alarms[:10]) + (f" and {len(moved.alarms) - 10} more" if len(moved.alarms) > 10 else "")
        raise DriftAlarm(f"{dataset}: drifted from {against} in {names}")


@app.command()
@takes_options
def query(
    *,
    dataset: DatasetFolder,
    sql: Annotated[str, typer.Argument(metavar="SQL", help="One SELECT statement.")],
    options: QueryOptions,
    as_json: AsJson = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV with a header line on stdout.")] = False,
) -> None:
    """Query a dataset with SQL. This is read-only and does not verify the digests of files.

    The tables are features (qid, doc_id, grade, one column a feature; NULL is missing) and queries.  If the dataset has
    them, there are categories, bins, pairs, unjudged and the lists of rejects.  To join features and bins, use their
    columns shard and row.  For example:

    rankmill data query DATASET "SELECT grade, count(*), avg(f1) FROM features GROUP BY grade ORDER BY grade"

    rankmill data query DATASET "SELECT * FROM queries ORDER BY n_docs DESC LIMIT 10"

    rankmill data query DATASET "SELECT b.f1, avg(f.grade) FROM features f JOIN bins b USING (shard, row) GROUP BY 1"
    """
    from rankmill.foundation.errors import InputError
    from rankmill.foundation.terminal import text_table
    from rankmill.pipeline.dataset.dataset import Dataset
    from rankmill.pipeline.dataset.sql import query_dataset

    if as_json and as_csv:
        raise InputError("--json and --csv cannot be combined; use one of them")
    answer = query_dataset(Dataset.open(dataset), sql, options)
    names, columns = answer.column_names, [column.to_pylist() for column in answer.columns]
    rows = [[None if value != value else value for value in row] for row in zip(*columns, strict=True)]  # noqa: PLR0124  NaN
    if as_json:
        typer.echo(json.dumps({"columns": names, "rows": rows}, default=str))
    elif as_csv:
        csv.writer(sys.stdout, lineterminator="\n").writerows([names, *rows])
    else:
        more = f", the first {_SHOWN} shown; --json and --csv have all" * (len(answer) > _SHOWN)
        cells = [["" if value is None else str(value) for value in row] for row in rows[:_SHOWN]]
        typer.echo(f"{text_table(names, cells)}\n{len(answer):,} row{'s' * (len(answer) != 1)}{more}")
