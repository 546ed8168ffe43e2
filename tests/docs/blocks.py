"""The blocks of code in README.md and docs/, and the commands that are named in them."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from functools import cache

from typer.main import get_command

from rankmill.cli import app, execute
from tests import ROOT

DOCS = ROOT / "docs"
BLOCK = re.compile(r"(?:^<!-- (?P<mark>[^\n]*?) -->\n)?^```(?P<kind>\w*)(?: [^\n]*)?\n(?P<text>.*?)^```$", re.M | re.S)


@dataclass(frozen=True)
class Block:
    """One fenced block; ``mark`` is what a comment before it says, such as ``not run: needs docker``."""

    kind: str
    mark: str
    text: str


def blocks(text):
    return [Block(each["kind"], each["mark"] or "", each["text"]) for each in BLOCK.finditer(text)]


def written_pages():
    """README.md and the pages of docs/ that are written by hand."""
    made = set((DOCS / "reference").rglob("*.md"))
    return [ROOT / "README.md", *(path for path in sorted(DOCS.rglob("*.md")) if path not in made)]


def lines(block):
    """The commands of a block of shell, without comments, or those that a session shows."""
    found = block.text.splitlines()
    if block.kind == "console":
        found = [line.removeprefix("$ ") for line in found if line.startswith("$ ")]
    return [line for line in found if line.strip() and not line.lstrip().startswith("#")]


@cache
def commands():
    """The options of every command, by its words."""

    def walk(command, name):
        below = getattr(command, "commands", None)
        if below is None:
            params = [param for param in command.params if param.param_type_name == "option"]
            yield name, {flag for param in params for flag in (*param.opts, *param.secondary_opts)}
        else:
            for word, one in below.items():
                yield from walk(one, (*name, word))

    return dict(walk(get_command(app), ()))


ON_ITS_OWN = {"--help", "--version", "--install-completion", "--show-completion"}


def complaint(line):
    """What is wrong with a command line that begins with ``rankmill``: an unknown command or option."""
    try:
        words = shlex.split(line, comments=True)[1:]
    except ValueError as error:
        return str(error)
    if not words or words[0] in ON_ITS_OWN:
        return None
    groups = {name[0] for name in commands() if len(name) == 2}
    name = tuple(words[: 2 if words[0] in groups else 1])
    if name == (words[0],) and words[0] in groups:  # "rankmill models" in prose
        return None
    if name not in commands():
        return f"no command {' '.join(name)!r}"
    known = commands()[name] | ON_ITS_OWN
    if name == ("schedule",):  # hands on what is not its own
        known = known | commands()["run",]
    given = [word.partition("=")[0] for word in words[len(name) :] if re.match(r"--?[a-z]", word)]
    unknown = [flag for flag in given if flag not in known]
    return f"{' '.join(name)} has no option {', '.join(unknown)}" if unknown else None


def run_line(line):
    """Run one line of shell: our own commands in this process, others by a shell."""
    words = shlex.split(line, comments=True)
    return execute(words[1:]) if words[0] == "rankmill" else subprocess.run(line, shell=True, check=False).returncode


def run_page(page, *, expected=None):
    """Run the shell and Python of a page in its order, in the current folder; return how many blocks ran.

    Blocks with a mark are not run.
    """
    names = {"__name__": "__main__"}
    ran = 0
    for block in blocks(page.read_text(encoding="utf-8")):
        if block.mark or block.kind not in {"sh", "python"}:
            continue
        ran += 1
        if block.kind == "python":
            exec(compile(block.text, f"{page.name}, block {ran}", "exec"), names)
            continue
        for line in lines(block):
            code = run_line(line)
            assert code == (expected or {}).get(line, 0), f"{page.name}: {line}: exit code {code}"
    sys.stdout.flush()
    return ran
