"""The ``rankmill`` command: composes the rooms' commands and is the one place where an error becomes a line and a code.

Every command raises; nothing below this module prints an error or chooses an exit code.  The table is the contract
with schedulers: 0 done, 1 a bug of ours, 2 usage, 10 data rejected, 11 gate not passed, 12 drift, 13 integrity or
format, 74 input/output, 75 conflict (try again), 130 and 143 signals, 141 the reader of our output went away.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

import pipeline.cli
import pipeline.errors
import rankmill
import rankmill.cli_convert
import rankmill.cli_models
import rankmill.errors
import registry.cli
import registry.cli_move
import registry.errors
import scorer.cli
import scorer.cli_compare
import scorer.cli_inspect
import scorer.errors
import trainer.cli
import trainer.errors
from scorer.metrics import parse_metric

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

PLATFORMS = ("linux", "darwin")

BUG = 1
USAGE = 2
DATA_REJECTED = 10
GATE_NOT_PASSED = 11
DRIFT = 12
INTEGRITY = 13
INPUT_OUTPUT = 74
TRY_AGAIN = 75
READER_GONE = 128 + signal.SIGPIPE

EXIT_CODES: dict[type[Exception], int] = {
    pipeline.errors.DatasetFormatError: INTEGRITY,
    scorer.errors.ModelFormatError: INTEGRITY,
    registry.errors.IntegrityError: INTEGRITY,
    pipeline.errors.DataRejected: DATA_REJECTED,
    trainer.errors.TrainingDataRejected: DATA_REJECTED,
    scorer.errors.CandidatesRejected: DATA_REJECTED,
    scorer.errors.ConversionRefused: DATA_REJECTED,
    pipeline.errors.DriftAlarm: DRIFT,
    registry.errors.PromotionRefused: GATE_NOT_PASSED,
    registry.errors.ConflictError: TRY_AGAIN,
    pipeline.errors.DatasetConflict: TRY_AGAIN,
    pipeline.errors.InputError: USAGE,
    trainer.errors.InvalidParameter: USAGE,
    scorer.errors.InputError: USAGE,
    registry.errors.InputError: USAGE,
    rankmill.errors.InputError: USAGE,
    rankmill.errors.ConfigError: USAGE,
    OSError: INPUT_OUTPUT,
}

app = typer.Typer(
    name="rankmill",
    help="Learning to rank, as a pipeline: judgments in, versioned models and re-ranked lists out.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _show_version(value: bool) -> None:
    if value:
        typer.echo(f"rankmill {rankmill.__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and leave.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Learning to rank, as a pipeline: judgments in, versioned models and re-ranked lists out."""


@app.command()
def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for everything it writes.")] = Path("rankmill-demo"),
    queries: Annotated[int, typer.Option(min=50, help="Queries to generate.")] = 1200,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the generated judgments and of the training.")] = 7,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Run the whole story on generated judgments, showing each command as it runs.

    Example: rankmill demo --out rankmill-demo
    """
    from rankmill.demo import run_demo

    def run_command(arguments: Sequence[str]) -> None:
        with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext():
            code = app(args=list(arguments), prog_name="rankmill", standalone_mode=False)
        if code:  # an interrupt comes back as its exit code: the rest of the story must not go on without this step
            raise SystemExit(code)

    def say(line: str) -> None:
        typer.echo(line, err=as_json)

    say(
        "Every command below is shown as you would type it. The first run also compiles the kernels: half a minute more."
    )
    typer.echo(run_demo(out, run_command, say, queries=queries, seed=seed).render(json=as_json))


@app.command()
def run(
    config: Annotated[Path, typer.Argument(help="The configuration file.")] = Path("rankmill.toml"),
    registry_folder: Annotated[
        Path, typer.Option("--registry", envvar="RANKMILL_REGISTRY", file_okay=False, help="Folder of the registry.")
    ] = Path("registry-data"),
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Ingest, bin, train, evaluate, gate, re-rank and promote as the configuration says.

    Relative paths in the configuration start at its own folder.  A version that does not pass the gate is registered, not
    promoted; the present one ranks the lists, and the run leaves with 11.

    Example: rankmill run rankmill.toml
    """
    from rankmill.config import read_config
    from rankmill.run.chain import run_chain

    def say(line: str) -> None:
        typer.echo(line, err=True)

    report = run_chain(read_config(config), config.parent, registry_folder, say)
    typer.echo(report.render(json=as_json))
    report.require()


app.registered_commands += trainer.cli.app.registered_commands + scorer.cli.app.registered_commands
app.registered_commands += scorer.cli_compare.app.registered_commands
app.registered_commands += rankmill.cli_convert.app.registered_commands
app.add_typer(pipeline.cli.app, name="data")
models = typer.Typer(no_args_is_help=True, help=registry.cli.app.info.help)
registry.cli_move.metric_checks.append(parse_metric)  # a policy that no gate can satisfy would lock the alias
models.registered_commands += registry.cli.app.registered_commands + rankmill.cli_models.app.registered_commands
app.add_typer(models, name="models")
app.add_typer(scorer.cli_inspect.app, name="inspect")


def main() -> NoReturn:
    """Run the command line of this process and leave with its exit code."""
    signal.signal(signal.SIGTERM, _terminate)
    sys.exit(execute(sys.argv[1:]))


def execute(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code; whatever went wrong is one line on stderr, save for bugs."""
    if sys.platform not in PLATFORMS:
        return _say(f"runs on Linux and macOS; this is {sys.platform}", USAGE)
    try:
        code = _invoke(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        return _reader_gone()
    except KeyboardInterrupt:  # outside of Typer's own care: while a module is imported
        return 128 + signal.SIGINT
    except Exception as error:
        return _report(error)
    return code


def _invoke(arguments: Sequence[str]) -> int:
    """Hand ``arguments`` to Typer, which always leaves by ``SystemExit``: its own errors are 2, an interrupt is 130."""
    try:
        app(args=list(arguments), prog_name="rankmill")
    except SystemExit as leave:
        if isinstance(leave.__context__, BrokenPipeError):  # Typer and Rich turn it into a plain 1, our code for a bug
            raise leave.__context__ from None
        return leave.code if isinstance(leave.code, int) else int(leave.code is not None)
    return 0


def _report(error: Exception) -> int:
    for kind, code in EXIT_CODES.items():
        if isinstance(error, kind):
            return _say(_one_line(error), code)
    traceback.print_exception(error)
    return _say(f"this is a bug in rankmill {rankmill.__version__}; please report it with the lines above", BUG)


def _one_line(error: Exception) -> str:
    text = str(error)
    if isinstance(error, OSError) and error.strerror:
        names = " -> ".join(os.fsdecode(name) for name in (error.filename, error.filename2) if name is not None)
        text = f"{names}: {error.strerror}" if names else error.strerror
    return " ".join(text.split("\n"))


def _say(message: str, code: int) -> int:
    sys.stderr.write(f"rankmill: {message}\n")
    return code


def _reader_gone() -> int:
    """Leave quietly when the reader of our output went away, as in ``rankmill models list | head -1``."""
    # The interpreter flushes stdout once more as it ends: give that flush somewhere to go.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return READER_GONE


def _terminate(signum: int, _frame: FrameType | None) -> NoReturn:
    """Unwind the stack, so that staged files are removed on the way; a second signal must not cut that short."""
    signal.signal(signum, signal.SIG_IGN)
    raise SystemExit(128 + signum)
