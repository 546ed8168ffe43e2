"""Commands whose options are declared elsewhere: a parameter that is a group of options stands for all of them.

.. code-block:: python

    @app.command()
    @takes_options
    def train(dataset: Annotated[Path, typer.Argument()], parameters: TrainParameters) -> None: ...

has an option for every field of ``TrainParameters`` and gets the checked group.  ``Annotated[TrainParameters, Without("folds")]`` leaves
some out.  ``Annotated[Mapping[str, Any], ChangesOf(Policy)]`` has the same options without defaults and gets what was given.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import Field, dataclass
from functools import wraps
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import typer

from rankmill.foundation.options import declared_in, default_of, option_of, spelled_for_a_command_line

EMPTY: tuple[Any, ...] = ("", (), {}, None)


class Without:
    """Marks the options of a group that a command does not have."""

    def __init__(self, *names: str) -> None:
        self.names = names


@dataclass(frozen=True, slots=True)
class ChangesOf:
    """Marks a parameter that holds what was given of the options of ``group``, by name, and no defaults."""

    group: type


@dataclass(frozen=True, slots=True)
class _Group:
    """A parameter of a command that stands for options."""

    kind: type
    options: tuple[Field[Any], ...]
    changes: bool

    def made_of(self, values: Mapping[str, Any]) -> Any:
        """Return the group, or what is given of it, of the values that Typer has read."""
        given = {each.name: _read(each, values[each.name]) for each in self.options if values[each.name] is not None}
        return given if self.changes else self.kind(**given)


def takes_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give ``command`` the options of its groups in their place; what it raises spells options as flags."""
    parameters: list[inspect.Parameter] = []
    groups: dict[str, _Group] = {}
    hints = get_type_hints(command, include_extras=True)
    for parameter in inspect.signature(command).parameters.values():
        hint = hints[parameter.name]
        group = _group_of(hint)
        if group is None:
            parameters.append(parameter.replace(annotation=hint, kind=inspect.Parameter.KEYWORD_ONLY))
        else:
            groups[parameter.name] = group
            parameters += _parameters_of(group)

    @wraps(command)
    def run(**given: Any) -> None:
        with spelled_for_a_command_line():
            made = {name: group.made_of(given) for name, group in groups.items()}
            own = {name: given[name] for name in given if name in hints}
            command(**own, **made)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _group_of(hint: Any) -> _Group | None:
    marks = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    kind = get_args(hint)[0] if marks else hint
    changes = next((mark.group for mark in marks if isinstance(mark, ChangesOf)), None)
    kind = changes or kind
    if not hasattr(kind, "__dataclass_fields__"):
        return None
    left_out = {name for mark in marks if isinstance(mark, Without) for name in mark.names}
    found = (each for each in declared_in(kind) if each.name not in left_out and option_of(each).on_command_line)
    return _Group(kind, tuple(found), changes is not None)


def _parameters_of(group: _Group) -> Iterator[inspect.Parameter]:
    hints = get_type_hints(group.kind)
    for each in group.options:
        said, default = option_of(each), default_of(each)
        kind = _typer_type(hints[each.name], as_text=said.read is not None or said.size, repeat=said.repeat)
        flags = list(said.flags)
        if kind is bool and default is False and not flags:
            flags = [f"--{each.name.replace('_', '-')}"]
        shown = default not in EMPTY and not group.changes
        if said.repeat or default in EMPTY[1:] or group.changes or said.read is not None:
            default, kind = None if default is not ... else ..., kind | None if default is not ... else kind
        elif said.size:
            default = str(default)
        declared = typer.Option(
            *flags, help=said.help, metavar=said.metavar, rich_help_panel=said.panel, show_default=shown
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


def _read(declared: Field[Any], value: Any) -> Any:
    said = option_of(declared)
    if said.read is not None:
        return said.read(value)
    return tuple(value) if isinstance(value, list) else value
