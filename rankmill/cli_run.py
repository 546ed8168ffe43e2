"""``rankmill run``: the whole chain from a configuration."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rankmill.foundation.command_line import AsJson, takes_options
from rankmill.registry.cli_options import DEFAULT_FOLDER, RegistryFolder
from rankmill.run.stage_choice import StageChoice

if TYPE_CHECKING:
    from rankmill.run.events import Observer
    from rankmill.run.work import Work

app = typer.Typer()


class LogStyle(StrEnum):
    """What is written to stderr."""

    text = "text"
    json = "json"


@app.command()
@takes_options
def run(
    *,
    config: Annotated[Path, typer.Argument(help="The configuration file.")] = Path("rankmill.toml"),
    registry_folder: RegistryFolder = DEFAULT_FOLDER,
    date: Annotated[
        datetime | None,
        typer.Option(
            formats=["%Y-%m-%d"],
            help="The logical date of the run, which stands for {date} in the patterns of the configuration.",
            show_default=False,
        ),
    ] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Say what would be done and why, and do nothing.")] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Do all of it over links to the work folder and the registry: nothing that anybody uses changes.",
        ),
    ] = False,
    choice: StageChoice,
    rehash: Annotated[
        bool, typer.Option("--rehash", help="Read files again whose size, time and inode are as they were.")
    ] = False,
    log: Annotated[LogStyle, typer.Option(help="What stderr is: lines for people, or JSON lines.")] = LogStyle.text,
    as_json: AsJson = False,
) -> None:
    """Ingest, bin, train, evaluate, gate, promote, re-rank and report as the configuration says; what is done stays.

    Relative paths in the configuration start at its own folder.  A stage is done again if a file, an option or the code
    that goes into it has changed, or what it made has; a run that was killed is gone on with.  A version that does not
    pass the gate is registered, not promoted; the present one ranks the lists, and the run leaves with 11.

    Example: rankmill run rankmill.toml
    What would be done: rankmill run rankmill.toml --plan
    For a day: rankmill run rankmill.toml --date 2026-11-21
    """
    import json

    from rankmill.run.json_stderr import speak_json
    from rankmill.run.observers import observer_of
    from rankmill.run.runner import RunRequest, plan_of
    from rankmill.run.runner import run as run_chain

    if log is LogStyle.json:  # from here on, so that a mistake in the configuration is JSON as well
        speak_json()
    asked = RunRequest(
        config=config,
        registry=registry_folder,
        choice=choice,
        day=None if date is None else date.date(),
        rehash=rehash,
        dry=dry_run,
    )
    if plan:
        rows = plan_of(asked)
        told = json.dumps({"plan": [row._asdict() for row in rows]}) if as_json else None
        typer.echo(told or "\n".join(f"{stage:<9} {what:<5} {why}" for stage, what, why in rows))
        return

    def observer(work: Work) -> Observer:
        return observer_of(log.value, work.config, work.folder, work=work.path, files=not dry_run)

    report = run_chain(asked, observer)
    typer.echo(report.render(json=as_json))
    if dry_run:
        typer.echo(
            f"a dry run: nothing was registered or promoted; evaluation, gate and report are in {report.work}, "
            "the dataset and the lists were links and are gone",
            err=True,
        )
    report.require()
