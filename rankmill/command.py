"""What all commands have in common: an option is given once, and each mistake in the command line is one line."""

from __future__ import annotations

import shlex
from collections import Counter
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand, TyperGroup

from rankmill.foundation.errors import UnusableColumns
from rankmill.other_libraries import OURS

if TYPE_CHECKING:
    from collections.abc import Iterator

UsageError: type[Exception] = typer.BadParameter.__bases__[0]
"""What Typer raises for a mistake in the command line; it has no public name for it."""

START_HERE = """\
rankmill: learning to rank, from judgments to models.  Start here:

  rankmill demo                                   (all of it, on generated data)
  rankmill data ingest judged.csv -o ds --split train=0.8,valid=0.1,test=0.1
  rankmill data bin ds
  rankmill train ds --name web
  rankmill evaluate ds --model web@latest
  rankmill models gate web --on ds
  rankmill models promote web@latest --reason "first model"
  rankmill rerank candidates.csv --model web -o ranked

rankmill --help lists all commands; rankmill COMMAND --help describes one."""

_WORDS = "rankmill.words"


class Command(TyperCommand):
    """A command of rankmill."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read ``args``; BadParameter if an option that holds one value is given twice, as one of the two would be lost."""
        ctx.meta[_WORDS] = list(args)
        if not ctx.resilient_parsing:
            _, _, given = self.make_parser(ctx).parse_args(args=list(args))
            counted: dict[Any, int] = Counter(given)
            for param, times in counted.items():
                option = param.param_type_name == "option" and not param.is_flag and not param.multiple
                if option and times > 1:
                    raise typer.BadParameter(f"it takes one value, found {times}", ctx=ctx, param=param)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; if it cannot use columns of its input, say the command line that ignores or converts them."""
        try:
            return super().invoke(ctx)
        except UnusableColumns as error:
            known = {name for param in self.params for name in param.opts}
            if len(error.problems) > 1 and error.options and known.issuperset(error.options[::2]):
                line = shlex.join([*ctx.command_path.split(), *ctx.meta[_WORDS], *error.options])
                error.add_note(f"all at once: {line}")
            raise


def adopt(app: typer.Typer) -> None:
    """Make all commands of ``app`` a `Command`."""
    for command in app.registered_commands:
        command.cls = Command
    for group in app.registered_groups:
        if group.typer_instance is not None:
            adopt(group.typer_instance)


def usage_line(error: Any) -> str:
    """Return what is wrong with a command line, as one line: the command, the mistake, the cure."""
    message = " ".join(error.format_message().split()).rstrip(".")
    message = message[:1].lower() + message[1:]
    if error.ctx is None:
        return message
    path, cure = error.ctx.command_path, ""
    if hasattr(error, "possibilities"):  # an option that there is none of
        plain = {name.lstrip("-"): name for param in error.ctx.command.params for name in param.opts}
        asked = error.option_name.lstrip("-")
        ours = OURS.get(asked.replace("-", "_"), "").replace("_", "-")  # what other libraries call it
        near = [ours] if ours in plain else get_close_matches(asked, plain, n=1)
        message = f"unknown option {error.option_name!r}"
        cure = f"did you mean {plain[near[0]]!r}?" if near else ""
    elif message.startswith("no such command"):
        name = message.split("'")[1]
        message, cure = f"unknown command {name!r}", _nearest_command(error.ctx, name)
    where = path.partition(" ")[2]
    return f"{where}: " * bool(where) + f"{message}; {cure or f'see {path} --help'}"


def _nearest_command(ctx: Any, name: str) -> str:
    """Say which command was perhaps meant by ``name``: one of that name in another group, or a near one of this group."""
    here = list(ctx.command.commands)
    near = [path for path in _paths(ctx.find_root().command) if path.split()[-1] == name]
    near = near or get_close_matches(name, here, n=1)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(here)}"


def _paths(group: Any, before: str = "") -> Iterator[str]:
    for name, command in group.commands.items():
        yield before + name
        if isinstance(command, TyperGroup):
            yield from _paths(command, f"{before}{name} ")
