"""Commands with declared options: a parameter typed as a group of options adds all of them to the command line.

.. code-block:: python

    @app.command()
    @takes_options
    def train(dataset: Annotated[Path, typer.Argument()], parameters: TrainParameters) -> None: ...

has an option for every field of ``TrainParameters`` and gets the checked group.  ``Annotated[TrainParameters,
Without("folds")]`` leaves some out, ``Annotated[Selection, With(n_queries=200)]`` has another default.
``Annotated[Mapping[str, Any], ChangesOf(Policy)]`` has the same options without defaults and gets what was given.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import typer

from rankmill.foundation.options import Grouped, grouped, option_of, spelled_for, types_in

WITHOUT_NUMBER = "[N=5]"
"""The metavar of an option whose number may be left out."""
EMPTY: tuple[Any, ...] = ("", (), {}, None)

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the file if it exists.")]
CacheFolder = Annotated[
    Path | None,
    typer.Option(
        "--cache",
        envvar="RANKMILL_CACHE",
        metavar="DIR",
        help="Keep what is fetched from buckets in this folder, for later commands.",
        show_default=False,
    ),
]


def takes_options(command: Callable[..., None]) -> Callable[..., None]:
    """Replace the groups in the signature of ``command`` by their options; its errors spell options as flags."""
    return _TakesOptions(command)


def given_names(context: typer.Context) -> list[str]:
    """Return the names of the arguments and options that were given on the command line."""
    return [
        name
        for name in context.params
        if (source := context.get_parameter_source(name)) is not None and source.name == "COMMANDLINE"
    ]


class _Changed:
    """A command whose signature is created when it is first read.

    At start-up this happens only for the command that is called.
    """

    __signature__: Any

    def __init__(self, command: Callable[..., None]) -> None:
        self._command = command
        self.__name__, self.__doc__, self.__module__ = command.__name__, command.__doc__, command.__module__

    @property
    def __annotations__(self) -> dict[str, Any]:  # type: ignore[override]
        return {parameter.name: parameter.annotation for parameter in self.__signature__.parameters.values()}


class _TakesOptions(_Changed):
    """A command with the options of its groups."""

    def __call__(self, **given: Any) -> None:
        with spelled_for("command line"):
            groups = {name: group.made_of(_read(group, given)) for name, group in self._groups.items()}
            plain = {name: given[name] for name in given if name in self._hints and name not in self._groups}
            self._command(**plain, **groups)

    @cached_property
    def _hints(self) -> Mapping[str, Any]:
        return get_type_hints(self._command, include_extras=True)

    @cached_property
    def _groups(self) -> Mapping[str, Grouped]:
        groups = {name: grouped(hint) for name, hint in self._hints.items()}
        return {name: group for name, group in groups.items() if group is not None}

    @cached_property
    def __signature__(self) -> inspect.Signature:
        parameters: list[inspect.Parameter] = []
        for parameter in inspect.signature(self._command).parameters.values():
            group, hint = self._groups.get(parameter.name), self._hints[parameter.name]
            if group is None:
                parameters.append(parameter.replace(annotation=hint, kind=inspect.Parameter.KEYWORD_ONLY))
            else:
                parameters += _parameters_of(group)
        return inspect.Signature(parameters)


class TakesUrls(_Changed):
    """A command with an option ``--cache``, whose paths may be URLs (`rankmill.foundation.storage.url_arguments`)."""

    def __call__(self, **given: Any) -> None:
        """Run the command with local names of what the URLs name."""
        from rankmill.foundation.storage.url_arguments import local_paths

        folder = given.pop("cache") if self._adds_cache else given.get("cache")
        updated = "dataset" if self.__name__ == "bin_" else ""
        with local_paths(given, folder, updated=updated, shown=True) as local:
            self._command(**local)

    @cached_property
    def _own(self) -> list[inspect.Parameter]:
        return list(inspect.signature(self._command, eval_str=True).parameters.values())

    @cached_property
    def _adds_cache(self) -> bool:
        names = {each.name for each in self._own if "Path" in str(each.annotation)}
        return "cache" not in names and bool(names - {"registry", "registry_folder", "to", "config", "work"})

    @cached_property
    def __signature__(self) -> inspect.Signature:
        cache = inspect.Parameter("cache", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=CacheFolder)
        own = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in self._own]
        return inspect.Signature([*own, *([cache] if self._adds_cache else [])])


def _parameters_of(group: Grouped) -> Iterator[inspect.Parameter]:
    types = types_in(group.kind)
    for each in group.options:
        if not option_of(each).on_command_line:
            continue
        spec, default = option_of(each), group.default_of(each)
        kind = _typer_type(types[each.name], as_text=spec.read is not None or spec.size, repeat=spec.repeat)
        flags = list(spec.flags)
        if kind is bool and default is False and not flags:
            flags = [f"--{each.name.replace('_', '-')}"]
        shown = default not in EMPTY and not group.changes
        if spec.repeat or default in EMPTY[1:] or group.changes or spec.read is not None:
            default, kind = None if default is not ... else ..., kind | None if default is not ... else kind
        elif spec.size:
            default = str(default)
        declared = typer.Option(
            *flags,
            help=spec.help,
            metavar=spec.metavar or "|".join(filter(None, spec.choices)) or None,
            rich_help_panel=spec.panel,
            show_default=shown,
        )
        yield inspect.Parameter(
            each.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if default is ... else default,
            annotation=Annotated[kind, declared],
        )


def _typer_type(hint: Any, *, as_text: bool, repeat: bool) -> Any:
    """Return the type that Typer reads for an option whose value is of ``hint``."""
    if as_text:
        return list[str] if repeat else str
    parts = [part for part in get_args(hint) if part is not type(None)]
    if get_origin(hint) in {Union, UnionType}:
        return _typer_type(parts[0], as_text=False, repeat=repeat)
    if get_origin(hint) is Literal:
        return type(parts[0])
    if get_origin(hint) in {tuple, Sequence, list}:
        return list[parts[0]]  # type: ignore[valid-type]
    return hint


def _read(group: Grouped, given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the values of the group's options that Typer has read and that are not left out."""
    values = {}
    for each in group.options:
        value, spec = given.get(each.name), option_of(each)
        if value is not None:
            plain = tuple(value) if isinstance(value, list) else value
            values[each.name] = plain if spec.read is None else spec.read(value)
    return values
