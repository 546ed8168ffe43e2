"""``rankmill run``: the pipeline from a configuration file.

``schedule`` starts runs, ``health`` checks that they succeed.
"""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer

from rankmill.foundation.command_line import WITHOUT_NUMBER, AsJson, CacheFolder
from rankmill.foundation.errors import InputError
from rankmill.registry.cli_options import DEFAULT_FOLDER, RegistryFolder
from rankmill.run.stage_choice import STAGE_NAMES

app = typer.Typer()


@app.command()
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
    until: Annotated[
        str, typer.Option(help=f"Last stage to run ({', '.join(STAGE_NAMES)}).", metavar="STAGE")
    ] = STAGE_NAMES[-1],
    cache: CacheFolder = None,
    as_json: AsJson = False,
) -> None:
    """Run the pipeline of a configuration: ingest, bin, train, evaluate, gate, promote, rerank and report.

    Relative paths start at the folder of the configuration.  A stage runs again only if a file, an option, its code or
    its output has changed.  A killed run resumes.  A version that fails the gate is registered but not promoted: the
    current version ranks the lists, and the exit code is 11.

    Example: rankmill run rankmill.toml
    What would be done: rankmill run rankmill.toml --plan
    For a day: rankmill run rankmill.toml --date 2026-11-21
    """
    from rankmill.run.runner import plan_of
    from rankmill.run.runner import run as run_chain
    from rankmill.run.work import Work

    if until not in STAGE_NAMES:
        raise InputError(f"--until {until}: expected one of {', '.join(STAGE_NAMES)}")
    day = None if date is None else date.date()
    work = Work(config, registry_folder, until=until, day=day, cache=cache)
    if plan:
        rows = plan_of(work)
        plan_json = json.dumps({"plan": [row._asdict() for row in rows]}) if as_json else None
        typer.echo(plan_json or "\n".join(f"{stage:<9} {what:<5} {why}" for stage, what, why in rows))
        return

    report = run_chain(work)
    typer.echo(report.render(json=as_json))
    report.require()


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    options_metavar="--cron LINE [OPTIONS] [CONFIG] [OPTIONS OF rankmill run]",
)
def schedule(
    context: typer.Context,
    cron: Annotated[
        str, typer.Option(metavar="LINE", help="Cron line: minute, hour, day of the month, month, day of the week.")
    ],
    timezone: Annotated[str, typer.Option(help="Time zone of LINE, such as UTC or Europe/Berlin.")] = "UTC",
    run_at_start: Annotated[
        bool,
        typer.Option(
            "--run-at-start",
            help="Start at once with the run of the most recent scheduled time; if that run is complete, nothing is "
            "done.",
        ),
    ] = False,
    grace: Annotated[
        int, typer.Option(min=1, metavar="SECONDS", help="Time for a run to end after SIGTERM or SIGINT.")
    ] = 60,
    show: Annotated[
        int | None,
        typer.Option(
            "--list",
            min=1,
            metavar=WITHOUT_NUMBER,
            help="Print the next N start times, 5 without a number, and exit.",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Start rankmill run on a cron schedule, in the foreground, never two runs at once.

    All other arguments are passed to each run: the configuration, and any option of rankmill run except --date.  The
    date is the day of the scheduled time in the time zone.  A scheduled time during a run is skipped.  After a failed
    run the schedule continues.  SIGTERM and SIGINT are passed to the run, which has --grace seconds to end; the next
    run resumes it.

    Example: rankmill schedule rankmill.toml --cron "0 2 * * *" --timezone Europe/Berlin --run-at-start
    Show start times: rankmill schedule rankmill.toml --cron "0 2 * * *" --list 5 (also as --json)
    """
    from itertools import islice

    from rankmill.config_file import read_config
    from rankmill.run.scheduler import Machine, Scheduler, Ticks, run_command

    ticks = Ticks(cron, timezone)
    config, command = run_command(context)
    if show is not None:
        times = [
            {"at": tick.astimezone(ticks.zone).isoformat(), "date": ticks.date(tick).isoformat()}
            for tick in islice(ticks.after(datetime.now(UTC)), show)
        ]
        if as_json:
            typer.echo(json.dumps({"cron": ticks.line, "timezone": ticks.zone.key, "times": times}))
        else:
            typer.echo("\n".join(f"{time['at'].replace('T', ' ')}  run of {time['date']}" for time in times))
        return

    def say(line: str) -> None:
        typer.echo(f"schedule: {line}", err=True)

    read_config(Path(config))  # a mistake is better known now than in the night
    machine = Machine()
    say(f"{config}: {ticks}")
    scheduler = Scheduler(ticks, command, machine, say, grace=timedelta(seconds=grace))
    sys.exit(scheduler.keep(at_start=run_at_start))


@app.command()
def health(
    work: Annotated[Path, typer.Argument(metavar="[WORK]", help="Work folder of the runs.")] = Path("work"),
    max_age: Annotated[
        str, typer.Option(metavar="AGE", help="Maximum age of the last successful run, such as 26h, 90m or 2d.")
    ] = "26h",
    as_json: AsJson = False,
) -> None:
    """Check that runs succeed: exit with 0 if the last success is recent, else with 75 and one line that says why.

    A run succeeds if it exits with 0, even if there was nothing to do, or with 11 or 12: the gate or the drift check
    did its job.

    Example: rankmill health work --max-age 26h
    In a health check of Docker: rankmill health work --max-age 26h || exit 1
    """
    from rankmill.foundation.units import parse_span
    from rankmill.run.health import Health

    found = Health.of(work, parse_span(max_age, "--max-age"), datetime.now(UTC))
    if as_json or found.healthy:
        typer.echo(found.to_json() if as_json else found.render())
    found.require()
