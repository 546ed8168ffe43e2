"""``rankmill run``: the whole pipeline from a configuration file."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from rankmill.foundation.command_line import AsJson, CacheFolder, takes_options
from rankmill.registry.cli_options import DEFAULT_FOLDER, RegistryFolder
from rankmill.run.stage_choice import StageChoice

app = typer.Typer()


@app.command()
@takes_options
def run(
    *,
    config: Annotated[Path, typer.Argument(help="Configuration file.")] = Path("rankmill.toml"),
    registry_folder: RegistryFolder = DEFAULT_FOLDER,
    date: Annotated[
        datetime | None,
        typer.Option(
            formats=["%Y-%m-%d"],
            help="Logical date of the run; it replaces {date} in the configuration.",
            show_default=False,
        ),
    ] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Print what would be done and why, and do nothing.")] = False,
    choice: StageChoice,
    rehash: Annotated[
        bool,
        typer.Option(
            "--rehash", help="Hash all files again, even if size, time and inode (of an object: ETag) have not changed."
        ),
    ] = False,
    cache: CacheFolder = None,
    as_json: AsJson = False,
) -> None:
    """Run the pipeline of a configuration: ingest, bin, train, evaluate, gate, promote, rerank and report.

    Relative paths start at the folder of the configuration.  A stage runs again only if a file, an option, its code or its
    output has changed.  A killed run resumes.  A version that fails the gate is registered but not promoted: the current version
    ranks the lists, and the exit code is 11.

    Example: rankmill run rankmill.toml
    What would be done: rankmill run rankmill.toml --plan
    For a day: rankmill run rankmill.toml --date 2026-11-21
    """
    import json

    from rankmill.run.runner import plan_of
    from rankmill.run.runner import run as run_chain
    from rankmill.run.work import Work

    day = None if date is None else date.date()
    work = Work(config, registry_folder, choice=choice, day=day, rehash=rehash, cache=cache)
    if plan:
        rows = plan_of(work)
        plan_json = json.dumps({"plan": [row._asdict() for row in rows]}) if as_json else None
        typer.echo(plan_json or "\n".join(f"{stage:<9} {what:<5} {why}" for stage, what, why in rows))
        return

    report = run_chain(work)
    typer.echo(report.render(json=as_json))
    report.require()
