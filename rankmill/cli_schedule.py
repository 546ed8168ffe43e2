"""``rankmill schedule`` and ``rankmill health``: runs by the clock, and whether they work."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rankmill.foundation.command_line import AsJson

if TYPE_CHECKING:
    from datetime import timedelta

    from rankmill.cron import Ticks

app = typer.Typer()


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    options_metavar="--cron LINE [OPTIONS] [CONFIG] [OPTIONS OF rankmill run]",
)
def schedule(
    context: typer.Context,
    cron: Annotated[
        str, typer.Option(metavar="LINE", help="When: minute, hour, day of the month, month, day of the week.")
    ],
    timezone: Annotated[str, typer.Option(help="Whose clocks LINE means: UTC, Europe/Berlin, ..")] = "UTC",
    run_at_start: Annotated[
        bool,
        typer.Option(
            "--run-at-start", help="Begin with the run of the last moment that has been; it may be done already."
        ),
    ] = False,
    jitter: Annotated[
        int,
        typer.Option(
            min=0,
            metavar="SECONDS",
            help="Begin up to this much later, always by the same for one configuration on one host: so that many do not "
            "begin at once.",
        ),
    ] = 0,
    grace: Annotated[
        int, typer.Option(min=1, metavar="SECONDS", help="Time for a run to end when the schedule is told to.")
    ] = 60,
    show: Annotated[
        int | None,
        typer.Option("--list", min=1, metavar="N", help="Print the next N times and leave.", show_default=False),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run by a cron line, in the foreground, never two runs at once.

    What is no option above is handed to each run as it stands: the configuration, and every option of rankmill run but
    --date, which is the day of the moment in the time zone.  A moment that comes while a run is under way is skipped; how
    a run ended is told, and the schedule goes on.  SIGTERM and SIGINT reach the run, which has --grace seconds to end; it
    goes on from there the next time.

    Example: rankmill schedule rankmill.toml --cron "0 2 * * *" --timezone Europe/Berlin --run-at-start
    When that is: rankmill schedule rankmill.toml --cron "0 2 * * *" --list 5 (--json is for it)
    """
    from datetime import timedelta

    from rankmill.cron import RunCommand, Ticks, keyed_delay

    ticks = Ticks(cron, timezone)
    command = RunCommand.parse(context)
    delay = timedelta(seconds=keyed_delay(jitter, os.path.realpath(command.config)))
    if show is not None:
        typer.echo(_next_times(ticks, show, delay, as_json=as_json))
        return
    from rankmill.scheduler import Machine, Scheduler

    command.check()
    machine = Machine()
    tell = _tell_json if command.log_json else _tell
    tell(f"{command.config}: {ticks}", event="started", cron=cron, timezone=timezone)
    scheduler = Scheduler(ticks, command.for_date, machine, tell, delay=delay, grace=timedelta(seconds=grace))
    sys.exit(scheduler.keep(at_start=run_at_start))


@app.command()
def health(
    work: Annotated[Path, typer.Argument(metavar="[WORK]", help="The work folder of the runs.")] = Path("work"),
    max_age: Annotated[
        str, typer.Option(metavar="AGE", help="How long ago a run may last have worked: 26h, 90m, 2d.")
    ] = "26h",
    as_json: AsJson = False,
) -> None:
    """Say whether runs work: leaves with 0 if one did not too long ago, else with 75 and one line that says what is wrong.

    A run works if it left 0, were there nothing to do, or 11 or 12: the gate or drift alarms did what they are for.

    Example: rankmill health work --max-age 26h
    In a health check of Docker: rankmill health work --max-age 26h || exit 1
    """
    from datetime import UTC, datetime

    from rankmill.foundation.units import parse_span
    from rankmill.health import Health

    found = Health.of(work, parse_span(max_age, "--max-age"), datetime.now(UTC))
    if as_json or found.healthy:
        typer.echo(found.render(json=as_json))
    found.require()


def _next_times(ticks: Ticks, n: int, delay: timedelta, *, as_json: bool) -> str:
    from datetime import UTC, datetime
    from itertools import islice

    times = [
        {"at": (tick + delay).astimezone(ticks.zone).isoformat(), "date": ticks.date(tick).isoformat()}
        for tick in islice(ticks.after(datetime.now(UTC)), n)
    ]
    if as_json:
        return json.dumps({"cron": ticks.line, "timezone": ticks.zone.key, "times": times})
    return "\n".join(f"{time['at'].replace('T', ' ')}  run of {time['date']}" for time in times)


def _tell(line: str, **_facts: Any) -> None:
    typer.echo(f"schedule: {line}", err=True)


def _tell_json(line: str, *, event: str, level: str = "info", **facts: Any) -> None:
    from datetime import UTC, datetime

    from rankmill.run.plain_json import json_line, rfc3339

    told = {"ts": rfc3339(datetime.now(UTC)), "level": level, "event": f"schedule_{event}", "message": line, **facts}
    typer.echo(json_line(told), err=True, nl=False)
