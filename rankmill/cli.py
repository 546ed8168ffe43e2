"""The ``rankmill`` command: collects all commands, and turns errors into one line and an exit code.

Commands raise errors; only this module prints them and exits with a code of `rankmill.foundation.exit_codes`.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import re
import shutil
import sys
import traceback
from collections import Counter
from copy import copy
from difflib import get_close_matches
from functools import partial
from itertools import zip_longest
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command_from_info

import rankmill
import rankmill.cli_models
import rankmill.cli_tools
import rankmill.clicks.cli
import rankmill.pipeline.cli
import rankmill.registry.cli
import rankmill.report.cli
import rankmill.run.cli
import rankmill.scorer.cli
import rankmill.scorer.cli_inspect
import rankmill.trainer.cli
import rankmill.trainer.cli_tune
from rankmill.clicks.cli import synth
from rankmill.common_options import OF_COMMANDS
from rankmill.foundation.command_line import WITHOUT_NUMBER, AsJson, TakesUrls
from rankmill.foundation.cores import available_cores
from rankmill.foundation.cures import shell_line, words_of
from rankmill.foundation.errors import UnusableColumns, code_of, lines_of, without_secrets
from rankmill.foundation.exit_codes import BUG, INTERRUPTED, READER_GONE, TERMINATED, USAGE
from rankmill.foundation.interrupts import end_on_signals, leave, was_asked_to_end
from rankmill.foundation.options import spelled_for
from rankmill.foundation.shown import Shown, shown_on_streams
from rankmill.python.other_libraries import OURS
from rankmill.scorer.metrics import parse_metric

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from typer.models import CommandInfo

UsageError: type[Exception] = typer.BadParameter.__bases__[0]
"""The error that Typer raises for a wrong command line; Typer has no public name for it."""

START_HERE = """\
rankmill: learning to rank, from judgments to models.  Get started:

  rankmill demo                                   (all steps, on generated data)
  rankmill data ingest judged.csv -o ds --split train=0.8,valid=0.1,test=0.1
  rankmill data bin ds
  rankmill train ds --name web
  rankmill evaluate ds --model web@latest
  rankmill models gate web --on ds
  rankmill models promote web@latest --reason "first model"
  rankmill rerank candidates.csv --model web -o ranked

rankmill --help lists all commands; rankmill COMMAND --help describes one."""

_WORDS = "rankmill.words"
_ALL = "rankmill.help_all"
_EXAMPLE = re.compile(r"\s*([A-Z][\w ,]*: )?rankmill ")  # a line of a help text that is an example


class PlainHelp:
    """The help of a command or a group, in a layout for any width.

    Typer's table gives texts only the space that is left.
    """

    def get_help(self: Any, ctx: Any) -> str:
        """Return the help, whose styles may be printed."""
        text = str(super().get_help(ctx))  # type: ignore[misc]
        if isinstance(sys.stdout, Shown):
            sys.stdout.allow(text)
        return text

    def format_help(self: Any, ctx: Any, formatter: Any) -> None:
        """Write the help, the options by panel.

        A command with many options shows the common ones, unless all are requested.
        """
        formatter.width = min(shutil.get_terminal_size().columns, 100) - 2
        self.format_usage(ctx, formatter)
        formatter.write_paragraph()
        for line in _lines_of(inspect.cleandoc(self.help or "")):
            hanging = "  " if _EXAMPLE.match(line) else ""
            formatter.write(f"{fill(line, formatter.width, subsequent_indent=hanging, break_on_hyphens=False)}\n")
        common = {} if ctx.meta.get(_ALL) else OF_COMMANDS.get(ctx.command_path.partition(" ")[2], {})
        panel_of = {name: title for title, names in common.items() for name in names}
        panels: dict[str, list[tuple[str, str]]] = {"Arguments": [], **{title: [] for title in common}}
        left_out = 0
        for param in self.get_params(ctx):
            row = param.get_help_record(ctx)
            if common and param.param_type_name == "option" and param.name not in panel_of:
                left_out += row is not None
            elif row is not None:
                panel = panel_of.get(param.name) if param.param_type_name == "option" else ""
                panel = panel or getattr(param, "rich_help_panel", None) or f"{param.param_type_name}s".capitalize()
                name = re.sub(r"<list\[(\w+)\]>", lambda found: f"<{found[1].lower()}>", row[0])
                panels.setdefault(panel, []).append((typer.style(name, bold=True), row[1]))
        for name, command in getattr(self, "commands", {}).items():
            first = next(_lines_of(inspect.cleandoc(command.help or "")))
            panels.setdefault("Commands", []).append((typer.style(name, bold=True), first))
        for title, rows in panels.items():
            if not rows:
                continue
            with formatter.section(typer.style(title, bold=True)):
                formatter.write_dl(rows, col_max=24)
        if left_out:
            formatter.write_paragraph()
            formatter.write(f"{left_out} more options: {ctx.command_path} --help-all\n")


class Group(PlainHelp, TyperGroup):
    """A group of commands."""


class Command(PlainHelp, TyperCommand):
    """A command whose options are created only when it is called."""

    def __init__(self, *args: Any, declared: CommandInfo, **more: Any) -> None:
        super().__init__(*args, **more)
        self._declared = declared
        del self.params, self.callback

    def __getattr__(self, name: str) -> Any:
        if name not in {"params", "callback"}:
            raise AttributeError(name)
        declared = copy(self._declared)
        if declared.callback is not None:
            declared.callback = TakesUrls(declared.callback)
        made = get_command_from_info(declared, pretty_exceptions_short=False, rich_markup_mode=self.rich_markup_mode)
        self.params, self.callback = made.params, made.callback
        return getattr(self, name)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse ``args``; BadParameter if an option with one value is given twice."""
        ctx.meta[_WORDS] = list(args)
        if "--help-all" in args:
            ctx.meta[_ALL] = True
            args = ["--help"]
        args = list(
            _with_numbers(
                args, {name for param in self.params if param.metavar == WITHOUT_NUMBER for name in param.opts}
            )
        )
        if not ctx.resilient_parsing:
            given = self.make_parser(ctx).parse_args(args=list(args))[2]
            counted: dict[Any, int] = Counter(given)
            for param, times in counted.items():
                option = param.param_type_name == "option" and not param.is_flag and not param.multiple
                if option and times > 1:
                    raise typer.BadParameter(f"it takes one value, found {times}", ctx=ctx, param=param)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; if it cannot use some columns, add the command line that ignores or converts them."""
        try:
            return super().invoke(ctx)
        except UnusableColumns as error:
            known = {name for param in self.params for name in param.opts}
            if len(error.problems) > 1 and error.options and known.issuperset(error.options):
                line = shell_line([*ctx.command_path.split(), *_with_options(ctx.meta[_WORDS], error.options)])
                if any("--categorical" in problem.cure for problem in error.problems):
                    error.add_note("to keep a column of categories: --categorical NAME, and not --ignore")
                error.add_note(f"all at once: {line}")
            raise


def _with_numbers(words: Sequence[str], options: Collection[str]) -> Iterator[str]:
    """Yield ``words``, with a number after each of ``options`` that has none.

    >>> [*_with_numbers(["--list", "a.toml"], {"--list"}), *_with_numbers(["--list", "3"], {"--list"})]
    ['--list', '5', 'a.toml', '--list', '3']
    """
    for word, after in zip_longest(words, words[1:], fillvalue=""):
        yield word
        if word in options and not re.fullmatch(r"[+-]?[0-9]+", after):
            yield re.sub("[^0-9]", "", WITHOUT_NUMBER)


def _with_options(words: Sequence[str], options: Mapping[str, list[str]]) -> list[str]:
    """Return the command line ``words`` with more ``options``; a list that is given already becomes longer.

    >>> _with_options(["a.csv", "--ignore", "b"], {"--ignore": ["c", "d"], "--decimal-comma": [""]})
    ['a.csv', '--ignore', 'b,c,d', '--decimal-comma']
    >>> _with_options(["a.csv", "--ignore", "b"], {"--ignore": ["c, d"]})
    ['a.csv', '--ignore', 'b', '--ignore', 'c, d']
    >>> _with_options(["a.csv", "--max-rejects", "1"], {"--max-rejects": ["2"]})
    ['a.csv', '--max-rejects', '2']
    >>> _with_options(["a.csv", "--columns", "qid=,grade=x"], {"--columns": ["qid=a"]})
    ['a.csv', '--columns', 'grade=x,qid=a']
    """
    found = list(words)
    for option, values in options.items():
        name = option.removeprefix("--").replace("-", "_")
        more = words_of(name, values if any(values) else True)
        if option not in found[:-1] or len(more) != 2 or any("," in value for value in values):
            found += more
            continue
        place = found.index(option) + 1
        if option == "--columns":  # a role has one column
            roles = {value.partition("=")[0] for value in values}
            pairs = [pair for pair in found[place].split(",") if pair.partition("=")[0].strip() not in roles]
            found[place] = ",".join([*pairs, more[1]])
            continue
        found[place] = more[1] if option == "--max-rejects" else f"{found[place]},{more[1]}"
    return found


def _lines_of(text: str) -> Iterator[str]:
    r"""Return the paragraphs and the examples of a docstring as one line each.

    >>> list(_lines_of("Train a model\non rows.\n\nExample: rankmill train a\nAgain: rankmill train b"))
    ['Train a model on rows.', '', 'Example: rankmill train a', 'Again: rankmill train b']
    >>> list(_lines_of("Start rankmill run\non a schedule."))
    ['Start rankmill run on a schedule.']
    """
    joined = ""
    for line in text.splitlines():
        if joined and line and not _EXAMPLE.match(joined) and not _EXAMPLE.match(line):
            joined += f" {line}"
            continue
        if joined:
            yield joined
        if not line:
            yield ""
        joined = line
    yield joined


def adopt(app: typer.Typer) -> None:
    """Make all commands of ``app`` a `Command`, and itself and its groups a `Group`."""
    for command in app.registered_commands:
        if command.callback is not None:
            declared = copy(command)
            command.cls = partial(Command, declared=declared)  # type: ignore[assignment]
            command.callback = _without_options(command.callback)
    app.info.cls = Group
    for group in app.registered_groups:
        if group.typer_instance is not None:
            adopt(group.typer_instance)


def _without_options(callback: Callable[..., Any]) -> Callable[[], None]:
    """Return a function with the name and help of a command, for the list of all commands."""

    def later() -> None: ...

    later.__name__, later.__doc__ = callback.__name__, callback.__doc__
    return later


def usage_line(error: Any) -> str:
    """Describe a usage error on one line: command, mistake, fix."""
    message = " ".join(error.format_message().split()).rstrip(".")
    message = message[:1].lower() + message[1:]
    if error.ctx is None:
        return message
    if file := re.fullmatch(r"invalid value for '--registry'.* '(.*)' is a file", message):
        message = f"--registry (or RANKMILL_REGISTRY): {file[1]} is a file; name the folder of a registry"
        return f"{error.ctx.command_path.partition(' ')[2]}: {message}"
    path, cure = error.ctx.command_path, ""
    where = path.partition(" ")[2]
    if hasattr(error, "possibilities"):  # unknown option
        flags = [name for param in error.ctx.command.params if param.param_type_name == "option" for name in param.opts]
        plain = {name.lstrip("-"): name for name in flags}
        asked = error.option_name.lstrip("-")
        ours = OURS.get(asked.replace("-", "_"), "").replace("_", "-")  # the name in other libraries
        near = [ours] if ours in plain else get_close_matches(asked, plain, n=1)
        message = f"unknown option {error.option_name!r}"
        cure = f"did you mean {plain[near[0]]!r}?" if near else _argument_for(error.ctx, asked)
    elif message.startswith("no such command"):
        name = message.split("'")[1]
        message, cure = f"unknown command {name!r}", _nearest_command(error.ctx, name)
    return f"{where}: " * bool(where) + f"{message}; {cure or f'see {path} --help'}"


def _argument_for(ctx: Any, option: str) -> str:
    """Return how to write the value of the unknown ``option`` if it is an argument of the command; else nothing."""
    for param in ctx.command.params:
        shown = (param.metavar or param.name).upper().strip("[]")
        if param.param_type_name == "argument" and option.upper() in re.findall("[A-Z]+", shown):
            return f"it is an argument, not an option: {ctx.command_path} {shown}"
    return ""


def _nearest_command(ctx: Any, name: str) -> str:
    """Suggest a command for ``name``: one with this name in another group, or a similar one in this group."""
    here = list(ctx.command.commands)
    near = [f"rankmill {path}" for path in _paths(ctx.find_root().command) if path.split()[-1] == name]
    near = near or get_close_matches(name, here, n=1)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(here)}"


def _paths(group: Any, before: str = "") -> Iterator[str]:
    for name, command in group.commands.items():
        yield before + name
        if isinstance(command, TyperGroup):
            yield from _paths(command, f"{before}{name} ")


PLATFORMS = ("linux", "darwin")

app = typer.Typer(
    name="rankmill",
    help="Learning to rank, from judgments to versioned models and ranked lists.",
    invoke_without_command=True,
    pretty_exceptions_enable=False,
)


def _show_version(value: bool) -> None:
    if value:
        typer.echo(f"rankmill {rankmill.__version__}")
        raise typer.Exit


@app.callback()
def root(
    context: typer.Context,
    _version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Learning to rank, from judgments to versioned models and ranked lists."""
    if context.invoked_subcommand is None:
        typer.echo(START_HERE)
        raise typer.Exit(USAGE)


@app.command()
def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="Output folder.")] = Path("rankmill-demo"),
    clicks: Annotated[
        bool,
        typer.Option(
            "--clicks", help="Learn from the clicks of simulated users, with and without correction, and compare."
        ),
    ] = False,
    queries: Annotated[
        int | None,
        typer.Option(min=50, help="Number of queries to generate. Default: 1200, or 300 with --clicks."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the generated judgments and of the training.")] = 7,
    as_json: AsJson = False,
) -> None:
    """Run the whole pipeline on generated judgments and print each command before it runs.

    Example: rankmill demo --out rankmill-demo
    Clicks: rankmill demo --clicks
    """
    from rankmill.clicks.demo import run_clicks_demo
    from rankmill.demo import run_demo

    def run_command(arguments: Sequence[str]) -> None:
        with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext():
            code = app(args=list(arguments), prog_name="rankmill", standalone_mode=False)
        if code:  # also for an interrupt: do not run the next commands
            raise SystemExit(code)

    def say(line: str) -> None:
        typer.echo(line, err=as_json)

    say("Each command is shown as you would type it. A first run may also compile kernels, for about 30 seconds.")
    given = {} if queries is None else {"queries": queries}
    report = (run_clicks_demo if clicks else run_demo)(out, run_command, say, seed=seed, **given)
    typer.echo(report.render(json=as_json))


for part in (
    rankmill.run.cli, rankmill.trainer.cli, rankmill.trainer.cli_tune, rankmill.scorer.cli, rankmill.report.cli,
    rankmill.cli_tools,
):  # fmt: skip
    app.registered_commands += part.app.registered_commands
rankmill.pipeline.cli.app.command()(synth)
app.add_typer(rankmill.pipeline.cli.app, name="data")
models = typer.Typer(
    no_args_is_help=True,
    help=f"{rankmill.registry.cli.app.info.help}\n\nNAME alone means its production version where a model is used "
    "(rerank, evaluate,"
    " compare, convert, report), and its latest version where it is shown or judged (show, diff, gate).",
)
rankmill.registry.cli.metric_checks.append(parse_metric)  # a policy with an unknown metric would lock the alias
models.registered_commands += (
    rankmill.registry.cli.app.registered_commands + rankmill.cli_models.app.registered_commands
)
app.add_typer(models, name="models")
app.add_typer(rankmill.scorer.cli_inspect.app, name="inspect")
app.add_typer(rankmill.clicks.cli.app, name="clicks")
adopt(app)


def main() -> NoReturn:
    """Run the command line of this process and exit with its code."""
    end_on_signals()
    # read by PyArrow and NumPy's linear algebra, which do not know the CPU quota of a container
    os.environ.setdefault("OMP_NUM_THREADS", str(available_cores()))
    try:
        code = execute(sys.argv[1:])
    except SystemExit:  # a signal while an error was reported
        code = TERMINATED
    leave(code)


def execute(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code; an error is one line on stderr, a bug also has a traceback."""
    with shown_on_streams(), spelled_for("command line"):
        return _execute(arguments)


def _execute(arguments: Sequence[str]) -> int:
    if sys.platform not in PLATFORMS:
        return _say(f"runs on Linux and macOS only; this is {sys.platform}", USAGE)
    for argument in arguments:
        if any("\ud800" <= letter <= "\udfff" for letter in argument):  # surrogates stand for bytes that are not UTF-8
            text = os.fsencode(argument).decode("utf-8", "backslashreplace")
            return _say(f"{text}: this name is not valid UTF-8; rename the file", USAGE)
    try:
        code = _invoke(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        return _reader_gone()
    except KeyboardInterrupt:  # without `main`, outside Typer
        return INTERRUPTED
    except Exception as error:
        return _report(error)
    return code


def _invoke(arguments: Sequence[str]) -> int:
    """Run ``arguments`` with Typer and return the exit code; wrong usage is one line and the usage code."""
    try:
        code = app(args=list(arguments), prog_name="rankmill", standalone_mode=False)
    except UsageError as error:
        if isinstance(error.__context__, BrokenPipeError):
            raise error.__context__ from None
        if "NoArgsIsHelp" in type(error).__name__:  # the help has been shown
            return USAGE
        return _say(usage_line(error), USAGE)
    except SystemExit as leave:
        if isinstance(leave.__context__, BrokenPipeError):  # Typer turns it into a plain 1, our code for a bug
            raise leave.__context__ from None
        return leave.code if isinstance(leave.code, int) else int(leave.code is not None)
    return code if isinstance(code, int) else 0


def _report(error: Exception) -> int:
    if was_asked_to_end():  # `main` knows the code
        return TERMINATED
    code = code_of(error)
    if code != BUG:
        return _say("\n  ".join(lines_of(error)), code)
    sys.stderr.write("".join(traceback.format_exception(error)))
    cure = "please report it with the lines above and what `rankmill doctor` prints"
    return _say(f"this is a bug in rankmill {rankmill.__version__}; {cure}", BUG)


def _say(message: str, code: int) -> int:
    sys.stderr.write(f"rankmill: {without_secrets(message)}\n")
    return code


def _reader_gone() -> int:
    """Exit quietly when the reader of the output is gone, as in ``rankmill models list | head -1``."""
    # The interpreter flushes stdout at exit: send that to /dev/null.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return READER_GONE
