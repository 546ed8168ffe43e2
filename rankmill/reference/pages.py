"""The generated pages of the documentation.

They are every command, the keys of ``rankmill.toml``, conventions, exit codes and the Python API.

``python -m rankmill.reference.pages docs`` writes them below ``docs``, and beside it ``scorer/arguments.py``, the types
of options as arguments; ``--check docs`` exits with 1 if one is out of date.
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, get_type_hints

import rankmill
from rankmill.config import Config
from rankmill.config_file import section_class
from rankmill.foundation import errors
from rankmill.foundation.exit_codes import MEANINGS
from rankmill.foundation.options import Option, declared_in, default_of, grouped, option_of
from rankmill.reference.options import (
    COMMANDS_OF,
    HOW,
    allowed_cell,
    arguments,
    bounds,
    cell,
    code,
    default_cell,
)
from rankmill.scorer.metrics.conventions import CONVENTIONS, OURS
from rankmill.scorer.metrics.metric_options import Policy

COMMANDS_HEAD = f"""\
# Commands

{HOW}

Every command takes `--help`. If it has more than 25 options, this shows the common ones, and `--help-all` shows all.
Most take `--json`: the result is one JSON object on stdout, and everything else goes to stderr. If a command fails,
stdout stays empty. Only `models verify`, `models gate` and `run` print their report then, too.
The [exit codes](exit-codes.md) are the same for all commands.

`rankmill --install-completion` installs tab completion for your shell; `rankmill --show-completion` prints it.
`rankmill --version` prints the version.

| command | what it does |
|---|---|
"""

KEYS_HEAD = f"""\
# rankmill.toml

{HOW}

`rankmill run` reads this file. [Scheduled runs](../running.md) explains what a run does with it, and has an example.
Relative paths start at the folder of the file. An unknown key is an error that names the nearest known one.
The registry is not a key: it comes from `--registry`, else from `RANKMILL_REGISTRY`, else it is `registry-data` in the
current directory.

In `sources`, `valid`, `test`, `pairs`, `qrels`, `candidates` and `run`, `{{date}}` is replaced by the logical date of
the run (`--date`).
"""

CODES_HEAD = f"""\
# Exit codes

{HOW}

[Operations](../operations.md#exit-codes-and-what-to-do) says what to do about each of them. If a run meets several
problems, 13 wins over 10, 10 over 12, and 12 over 11.

| code | meaning | Python exceptions |
|---|---|---|
"""

PYTHON_HEAD = f"""\
# Python API

{HOW} The signatures and descriptions come from the docstrings. [In Python](../python.md) is the guide with examples.
All names below can be imported from `rankmill`.
"""

CONVENTIONS_HEAD = f"""\
# Conventions of tools

{HOW}

`--convention NAME` computes metrics as a tool does. [Metric conventions](../metrics.md) explains the columns. An empty
cell is the same as `rankmill`.

"""

SECTIONS = {
    "": "At the top of the file.",
    "cluster": "[Several machines](../cluster.md) for the stages that can use them. Leave the section out for none.",
    "clicks": "A click log that becomes judgments ([nightly runs from clicks](../clicks-nightly.md)). Leave the "
    "section out for none.",
    "ingest": "Where judgments come from.",
    "bin": "How finely features are cut.",
    "train": "The model's name and the training parameters.",
    "blend": "A [blend](../blends.md) of the trained model with others, which later stages judge and use. Leave the "
    "section out for none.",
    "evaluate": "What is measured on queries that were not trained on, and under which [conventions](../metrics.md).",
    "gate": "The [gate](../gates.md) before an alias. Leave the section out to register versions without a gate.",
    "promote": "An unprotected alias that every new version takes without a gate.",
    "rerank": "Candidate lists to rank. Leave the section out to rank nothing.",
    "report": "The [report](../report.md).",
    "drift": "[Drift](../drift.md) check before the training. Leave the section out for none.",
}
"""Description of each section of the file."""

LIKE_OPTIONS = {
    "clicks": ("clicks fit", "clicks judge"),
    "ingest": ("data ingest",),
    "bin": ("data bin",),
    "train": ("train",),
    "evaluate": ("evaluate",),
    "gate": ("models gate",),
    "rerank": ("rerank",),
}
"""The commands whose options are keys of a section: their pages describe these keys."""

KEYS = {
    "work": "Folder for the dataset, the models in training, evaluations and ranked lists.",
    "cluster.address": "The workers: `local:N` starts N of them here, `tcp://HOST:PORT` uses a running Dask scheduler.",
    "cluster.stages": "The stages that use them; `train` is one only if it is named. The key `cluster` of a stage "
    "comes first.",
    "clicks.sources": "Files of the click log, folders or patterns.",
    "clicks.model": "The click model that corrects labels. Left out: the one that `clicks describe` recommends.",
    "ingest.sources": "Files of judgments, folders or patterns.",
    "ingest.valid": "Files of the valid split.",
    "ingest.test": "Files of the test split.",
    "ingest.pairs": "Files of preference pairs.",
    "ingest.qrels": "Files of judgments that give the rows their grades.",
    "train.name": "The model's name in the registry.",
    "train.base_model": "A model that the new one corrects: a file, or a name in the registry.",
    "blend.name": "The blend's name in the registry.",
    "blend.models": "The other models of the blend: names in the registry (production), or NAME@7.",
    "evaluate.metrics": "Metrics to report.",
    "evaluate.convention": "Name of a metric convention. The keys below override parts of it.",
    "gate.split": "Split to judge on. Left out: test, or valid if there is no test split.",
    "promote.alias": "The alias to move.",
    "rerank.candidates": "Files of candidates, folders or patterns.",
    "rerank.out": "Where the ranked lists go: a name in the work folder, or a path or URL elsewhere. `{date}` in a "
    "URL is the logical date.",
    "rerank.run": "TREC runs: rank only the documents that they list.",
    "report.out": "A URL such as `s3://bucket/report/{date}` to which the report is put, too.",
    "report.by": "Columns to slice the queries by, besides query size and grade mix.",
    "drift.against": "The dataset to compare with: `previous` is that of the last run that completed; or a path.",
    "drift.stop": "End the run before the training if features drifted. Otherwise the run continues and exits with 12.",
}
"""Description of each key that is not an option of a group."""


def generated() -> dict[str, str]:
    """Return the text of every generated page by its path below ``docs``."""
    return {
        "reference/commands.md": COMMANDS_HEAD + "".join(_rows_of_commands()),
        **{_place(name): f"# rankmill {name}\n\n{HOW}\n{_command(name, one)}" for name, one in _commands()},
        "reference/configuration.md": KEYS_HEAD + "".join(_sections_of_keys()),
        "reference/conventions.md": CONVENTIONS_HEAD + "".join(_rows_of_conventions()),
        "reference/exit-codes.md": CODES_HEAD + "".join(_rows_of_codes()),
        "reference/python.md": PYTHON_HEAD + "".join(_names_of_python()),
    }


LIKE: Mapping[str, tuple[str, ...]] = {  # the commands whose pages describe options of these
    **dict.fromkeys(("cv", "select-features", "tune"), ("train",)),
    "evaluate": ("rerank",),
    **dict.fromkeys(("compare", "explain-metric", "models gate", "inspect"), ("rerank", "evaluate")),
}


def _commands() -> Iterator[tuple[str, Any]]:
    """Yield every command with its full name."""
    from typer.main import get_command

    from rankmill.cli import app

    root: Any = get_command(app)
    for top, command in sorted(root.commands.items()):
        for word, one in getattr(command, "commands", {"": command}).items():
            yield f"{top} {word}".strip(), one


def _place(name: str) -> str:
    return f"reference/commands/{name.replace(' ', '-')}.md"


def _rows_of_commands() -> Iterator[str]:
    for name, command in _commands():
        place = _place(name).removeprefix("reference/")
        yield f"| [`{name}`]({place}) | {cell(_paragraphs(command.help)[0])} |\n"


def _command(name: str, command: Any) -> str:
    arguments = [param for param in command.params if param.param_type_name == "argument"]
    required = [param for param in _options(command).values() if param.required]
    words = [f"{param.opts[0]} {param.metavar or param.name.upper()}" for param in required]
    words += [_argument(param) for param in arguments]
    text = f"\n```text\nrankmill {' '.join([name, *words])} [OPTIONS]\n```\n\n" + _help(command.help)
    if any(param.help for param in arguments):
        text += "\n| argument | what it is |\n|---|---|\n"
        text += "".join(f"| `{_argument(param)}` | {cell(param.help or '')} |\n" for param in arguments)
    left = _options(command)
    for other in LIKE.get(name, LIKE.get(name.partition(" ")[0], ())):
        there = _options(dict(_commands())[other])
        same = [flag for flag, param in left.items() if flag in there and _facts(param) == _facts(there[flag])]
        left = {flag: param for flag, param in left.items() if flag not in same}
        page = _place(other).rpartition("/")[2]
        links = ", ".join(f"[`{flag}`]({page}#{flag.lstrip('-')})" for flag in same)
        text += f"\nOptions of [`rankmill {other}`]({page}), described there: {links}.\n" if same else ""
    declared = _declared_in_groups(name)
    rows = "".join(_row(param, declared.get(param.name)) for param in left.values())
    return text + "\n| option | what it does |\n|---|---|\n" + rows if rows else text


def _options(command: Any) -> dict[str, Any]:
    """Return the options of a command by their longest flags."""
    options = [param for param in command.params if param.param_type_name == "option" and param.name != "help"]
    return {max(param.opts, key=len): param for param in options}


def _facts(param: Any) -> tuple[Any, ...]:
    return param.help, param.default, param.required, param.multiple, param.opts


def _declared_in_groups(name: str) -> Mapping[str, Option]:
    groups = [group for group, names in COMMANDS_OF.items() if name in names]
    return {each.name: option_of(each) for group in groups for each in declared_in(group)}


def _argument(param: Any) -> str:
    name = (param.metavar or param.name).upper().removesuffix("...")
    several = "..." if param.nargs == -1 else ""
    return f"{name}{several}" if param.required else f"[{name}{several}]"


def _row(param: Any, declared: Option | None) -> str:
    flags = ", ".join(f"`{flag}`" for flag in (*param.opts, *param.secondary_opts))
    value = param.metavar or ""
    allowed = allowed_cell(declared) if declared is not None else ", ".join(bounds(param.min, param.max))
    if not allowed and re.fullmatch(r"\[?[a-z0-9_]+(\|[a-z0-9_]+)+\]?", value):
        allowed = ", ".join(f"`{choice}`" for choice in value.strip("[]").split("|"))
    written = f" Value: {code(value)}." if value and not allowed else ""
    default = ... if param.required else None if param.default is False else param.default
    note = " May be repeated." if param.multiple and "repeat" not in (param.help or "") else ""
    named = f'<span id="{max(param.opts, key=len).lstrip("-")}"></span>{flags}'
    return f"| {named} | {cell(param.help or '')}{note}{written}{_bound_to(default, allowed)} |\n"


def _bound_to(default: Any, allowed: str) -> str:
    """Return the line below the help of an option or a key: its default and allowed values."""
    if default is ...:
        sentences = ["Must be given."]
    else:
        sentences = [f"Default: {default_cell(default)}."] if default_cell(default) else []
    sentences += [f"Allowed: {allowed}."] if allowed else []
    return "<br>" + " ".join(sentences) if sentences else ""


def _paragraphs(text: str) -> list[str]:
    return [part.strip("\n") for part in re.split(r"\n\s*\n", inspect.cleandoc(text))]


def _help(text: str) -> str:
    """Return the help of a command as Markdown: lines that begin with a command become code blocks."""
    found = []
    for paragraph in _paragraphs(text):
        prose: list[str] = []
        for line in paragraph.replace("\b", "").splitlines():
            caption, called, words = re.match(r"(?:(.*?: +)|\s*)(?:(rankmill )(.*))?", line).groups()  # type: ignore[union-attr]
            if called and (caption is None or "`" not in caption):
                prose.append(caption.strip() if caption else "")
                found += [_prose(" ".join(filter(None, prose))), f"```sh\nrankmill {words}\n```"]
                prose = []
            else:
                prose.append(line.strip())
        found.append(_prose(" ".join(prose)))
    return "\n\n".join(part for part in found if part) + "\n"


# Configuration


def _sections_of_keys() -> Iterator[str]:
    unused = set(KEYS)
    for name, kind in _sections():
        title, lead = (f"[{name}]", f"{name}.") if name else ("Top level", "")
        rows: list[str] = []
        same: list[str] = []
        options = _links_to_options(LIKE_OPTIONS.get(name, ()))
        for key, default, declared in _keys_of(kind):
            unused.discard(lead + key)
            allowed = allowed_cell(declared) if declared is not None else ""
            description = cell(declared.help) if declared is not None else KEYS[lead + key]
            link = options.get((key, description)) if declared is not None else None
            same += [f"[`{key}`]({link})"] if link else []
            rows += [] if link else [f"| `{key}` | {description}{_bound_to(default, allowed)} |\n"]
        yield f"\n## {title}\n\n{SECTIONS[name]}\n"
        if rows:
            yield f"\n| key | what it does |\n|---|---|\n{''.join(rows)}"
        if same:
            named = " and ".join(f"[`{one}`]({_place(one).removeprefix('reference/')})" for one in LIKE_OPTIONS[name])
            yield f"\nKeys that are options of {named}, described there: {', '.join(same)}.\n"
    if unused:
        raise LookupError(f"rankmill.reference.pages describes unknown keys: {', '.join(sorted(unused))}")


def _links_to_options(names: Sequence[str]) -> dict[tuple[str, str], str]:
    """Return the place of each option of these commands, by its name and its help."""
    commands = dict(_commands())
    return {
        (param.name, cell(param.help or "")): f"{_place(name).removeprefix('reference/')}#{flag.lstrip('-')}"
        for name in names
        for flag, param in _options(commands[name]).items()
    }


def _sections() -> Iterator[tuple[str, Any]]:
    """Yield the sections of the configuration with their classes, first the top level with None."""
    yield "", None
    for name in get_type_hints(Config):
        kind = section_class(name)
        if kind is not None:
            yield name, kind


def _keys_of(kind: Any) -> Iterator[tuple[str, Any, Option | None]]:
    """Yield name, default and declaration of every key of a section; at the top level, without the sections."""
    sections = {name for name, _ in _sections()}
    hints = get_type_hints(kind or Config, include_extras=True)
    for each in fields(kind or Config):
        group = grouped(hints[each.name])
        if group is not None:
            known = {field.name: field for field in declared_in(group.kind)}
            changes = group.kind is Policy  # if omitted, the convention decides
            yield from (
                (one.name, None if changes else default_of(known[one.name]), option_of(known[one.name]))
                for one in group.options
            )
        elif each.name not in sections:
            yield each.name, ... if each.default is MISSING else getattr(each.default, "default", each.default), None


# Conventions, exit codes and Python


def _rows_of_conventions() -> Iterator[str]:
    columns = [each.name for each in declared_in(Policy) if each.name != "ties_seed"]
    ours = CONVENTIONS[OURS].policy
    yield f"| | {' | '.join(name.replace('_', ' ') for name in columns)} |\n|{'---|' * (len(columns) + 1)}\n"
    for name, convention in CONVENTIONS.items():
        values = [(getattr(convention.policy, column), getattr(ours, column)) for column in columns]
        cells = ["" if (value == our and name != OURS) or value is None else cell(str(value)) for value, our in values]
        yield f"| `{name}` | {' | '.join(cells)} |\n"
    for name, convention in CONVENTIONS.items():
        special = [
            f"{metric}: {option.replace('_', ' ')} {value}"
            for metric, changes in convention.exceptions.items()
            for option, value in changes.items()
        ]
        yield f"\n## {name}\n\nMetrics of this tool: {', '.join(f'`{metric}`' for metric in convention.metrics)}.\n"
        yield "".join(
            f"{'' if number else chr(10)}- {_prose(line)}\n"
            for number, line in enumerate([*special, *convention.remarks])
        )


def _rows_of_codes() -> Iterator[str]:
    kinds = [
        kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.RankmillError)
    ]
    for number, meaning in sorted(MEANINGS.items()):
        names = ", ".join(f"`{kind.__name__}`" for kind in kinds if kind.exit_code == number)
        yield f"| {number} | {cell(meaning)} | {names} |\n"


def _names_of_python() -> Iterator[str]:
    for name in sorted(set(rankmill.__all__) - {"__version__"}):
        found = getattr(rankmill, name)
        yield f"\n::: {found.__module__}.{found.__qualname__}\n"


def _prose(text: str) -> str:
    """Escape Markdown in the text of a help."""
    return re.sub(r"([*<\[\]])", r"\\\1", " ".join(text.split()))


def main(words: Sequence[str]) -> int:
    """Write the pages to a folder and the arguments, or compare them with the existing files.

    Return 1 if one is out of date.
    """
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--check", action="store_true", help="compare only")
    given = parser.parse_args(words)
    check, folder = given.check, given.folder
    files = {folder / page: text for page, text in generated().items()} | {
        folder.parent / "scorer" / "arguments.py": arguments()
    }
    stale = [path for path, text in files.items() if _text(path) != text]
    gone = [path for path in sorted(folder.glob("reference/commands/*.md")) if path not in files]
    for path in [*stale, *gone]:
        if check:
            sys.stderr.write(f"{path}: out of date; run: python -m rankmill.reference.pages {folder}\n")
        elif path in gone:
            path.unlink()
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(files[path], encoding="utf-8")
    return 1 if check and (stale or gone) else 0


def _text(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.is_file() else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
