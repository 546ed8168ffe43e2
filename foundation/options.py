"""Options declared once.

A group of options is a class under ``@options``: a frozen dataclass whose fields are made by :func:`option`, with help,
bounds and choices.  From that one declaration come the command line (`rankmill.foundation.command_line`), the keys of
``rankmill.toml`` and the parameters of Python functions and classes.  So do the checks with their messages, and the
pages of the reference.

>>> @options
... class Growth:
...     max_leaves: int = option(default=31, help="Leaves of a tree at most.", least=2)
...     grow: str = option(default="best_first", help="Next leaf to split.", choices=("best_first", "breadth_first"))
>>> Growth(max_leaves=63.0).max_leaves
63
>>> Growth(grow="bestfirst")
Traceback (most recent call last):
rankmill.foundation.errors.InvalidParameter: unknown value of grow 'bestfirst'; did you mean 'best_first'?
>>> with spelled_for("command line"):
...     Growth(max_leaves=1)
Traceback (most recent call last):
rankmill.foundation.errors.InvalidParameter: --max-leaves must be 2 or more, got 1
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from functools import cache, partial
from math import inf, isfinite
from typing import Annotated, Any, TypeVar, dataclass_transform, get_args, get_origin, get_type_hints

from rankmill.foundation.errors import InvalidParameter
from rankmill.foundation.scalars import real_number, text, truth, whole_number
from rankmill.foundation.units import parse_size

DEFAULTS = "defaults-1"  # the oldest preset
STORED_DEFAULTS = "defaults@1"  # how models, checkpoints and searches name it
_METADATA, _GROUP = "option", "group of options"  # of fields
_OPTIONS = "_is_group_of_options"
_FLAGS = {"metrics": "--metric", "n_queries": "--queries"}  # of options whose flag is not their name with dashes
_PLAIN: Mapping[str, Callable[[str, Any], object]] = {
    "int": whole_number,
    "float": real_number,
    "bool": truth,
    "str": text,
}  # by the annotation of a field
_place: ContextVar[str] = ContextVar("_place", default="Python")  # where the caller writes options

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., object])


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """Description of an option other than its name, type and default: the arguments of :func:`option`."""

    help: str
    least: float | None = None
    most: float | None = None
    above: float | None = None
    below: float | None = None
    choices: tuple[str, ...] = ()
    size: bool = False
    read: Callable[[Any], Any] | None = None
    convert: Callable[[Any], Any] | None = None
    repeat: bool = False
    flags: tuple[str, ...] = ()
    metavar: str | None = None
    panel: str | None = None
    on_command_line: bool = True
    always_stored: bool = True
    by_preset: Any = None  # the choice of the oldest preset, if presets decide this option


def option(
    *,
    help: str,  # noqa: A002 - the word of the field
    default: Any = MISSING,
    default_factory: Any = MISSING,
    **said: Any,
) -> Any:
    """Declare an option as a field of a class under ``@options``.

    Parameters
    ----------
    default, default_factory
        As of a field of a dataclass; without them the option must be given.
    help
        One or two sentences, the same on the command line, in the reference and in Python's help.
    said
        The other fields of :class:`Option`.  ``least``, ``most``: inclusive bounds; ``above``, ``below``: exclusive
        bounds (-inf and inf: any finite number).  ``choices``: the allowed texts, ``""`` for "left out".  ``size``:
        bytes, also as text such as ``2GB``.  ``read``: makes the value from the text of a command line (from a list of
        texts if it may be given more than once, ``repeat``).  ``convert``: makes the stored value from the given one,
        wherever it comes from.
        ``flags``: if they are not the name with dashes.  ``metavar``, ``panel``: as in Typer.  ``on_command_line``:
        false for what only Python has.  ``always_stored``: false for an option that files contain only if it differs
        from the default, so that their bytes stay the same.  ``by_preset``: left out, None, a preset of the group
        decides; ``default`` is then the choice of its oldest preset.
    """
    description = help
    if said.pop("by_preset", False):
        said["by_preset"], description = default, f"{help} Default: chosen by the preset ({DEFAULTS}: {default})."
        default = None
    declared: Any = field(
        metadata={_METADATA: Option(help=description, **said)}, default=default, default_factory=default_factory
    )
    return declared


def option_like(
    group: Any, name: str, *, default: Any = MISSING, default_factory: Any = MISSING, otherwise: str = "", **other: Any
) -> Any:
    """Declare an option like that of ``group`` with the same name, but another default.

    ``otherwise`` describes that default.

    ``other`` has fields of :class:`Option` that differ.
    """
    spec = replace(next(option_of(each) for each in declared_in(group) if each.name == name), **other)
    help_text = spec.help + (f"  Left out: {otherwise}." if otherwise else "")
    metadata = {_METADATA: replace(spec, help=help_text)}
    declared: Any = field(default=default, default_factory=default_factory, metadata=metadata)
    return declared


def group(*, default_factory: type) -> Any:
    """Declare a field that holds another group of options, ``default_factory``.

    Its options belong to the outer group, too.
    """
    return field(default_factory=default_factory, metadata={_GROUP: default_factory})


class Without:
    """Marks options of a group that a command or a section does not have.

    It is written ``Annotated[Group, Without("name", ..)]``.
    """

    def __init__(self, *names: str) -> None:
        self.names = names


class With:
    """Marks, in ``Annotated[Group, With(n_queries=200)]``, other defaults that a command has for options of a group."""

    def __init__(self, **defaults: Any) -> None:
        self.defaults = defaults


@dataclass(frozen=True, slots=True)
class ChangesOf:
    """Marks a mapping with only the options of ``group`` that were given.

    It is written ``Annotated[Mapping[str, Any], ChangesOf(Policy)]``.
    """

    group: type


@dataclass(frozen=True, slots=True)
class Grouped:
    """A parameter of a command, or a field of a section, that stands for the options of a group."""

    kind: type
    options: tuple[Field[Any], ...]
    changes: bool
    defaults: Mapping[str, Any]  # other than the group's own

    def default_of(self, declared: Field[Any]) -> Any:
        """Return the default of an option here; ``...`` if it must be given."""
        return self.defaults.get(declared.name, default_of(declared))

    def made_of(self, given: Mapping[str, Any]) -> Any:
        """Return the group, or only the given options of it."""
        found = {each.name: given[each.name] for each in self.options if each.name in given}
        return found if self.changes else made_of(self.kind, {**self.defaults, **found})


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(option, option_like, group, field))
def options(kind: type[T]) -> type[T]:
    """Make ``kind`` a group of options: a frozen dataclass that checks itself.

    All numbers, NumPy's too, are kept as plain int and float: 31.0 becomes 31 for an integer option, 31.5 is
    refused.  The method ``check_together``, if there is one, checks several fields together.
    """

    def check_all(self: Any) -> None:
        check(self)
        if hasattr(self, "check_together"):
            self.check_together()

    kind.__post_init__ = check_all  # type: ignore[attr-defined]
    setattr(kind, _OPTIONS, True)
    made = dataclass(frozen=True, slots=True, kw_only=True)(kind)
    for each in declared_in(made):
        for flag in option_of(each).flags[:1]:
            _FLAGS[each.name] = flag.partition("/")[0]
    return made


def declared_in(kind: Any) -> list[Field[Any]]:
    """Return the fields of a group of options that :func:`option` created, in order.

    Those of inner groups are included.

    Of a :class:`Grouped`, those that it has.
    """
    if isinstance(kind, Grouped):
        return [*kind.options]
    declarations: list[Field[Any]] = []
    for each in fields(kind):
        if _GROUP in each.metadata:
            declarations += declared_in(each.metadata[_GROUP])
        elif _METADATA in each.metadata:
            declarations.append(each)
    return declarations


def grouped(hint: Any) -> Grouped | None:
    """Return the group of options that the annotation ``hint`` names; None if it is another type."""
    kind, *marks = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    changes = next((mark for mark in marks if isinstance(mark, ChangesOf)), None)
    kind = kind if changes is None else changes.group
    if not isinstance(kind, type) or not hasattr(kind, _OPTIONS):
        return None
    left_out = {name for mark in marks if isinstance(mark, Without) for name in mark.names}
    chosen = [each for each in declared_in(kind) if each.name not in left_out]
    defaults = {name: value for mark in marks if isinstance(mark, With) for name, value in mark.defaults.items()}
    return Grouped(kind, tuple(chosen), changes is not None, defaults)


def values_of(instance: Any) -> dict[str, Any]:
    """Return the values of all options of a group, including those of inner groups, by name."""
    values: dict[str, Any] = {}
    for each in fields(instance):
        value = getattr(instance, each.name)
        values |= (
            values_of(value) if _GROUP in each.metadata else {each.name: value} if _METADATA in each.metadata else {}
        )
    return values


@cache  # every command with the group asks at the start
def types_in(kind: Any) -> Mapping[str, Any]:
    """Return the types of the options of a group by name."""
    types = get_type_hints(kind)
    for each in fields(kind):
        if _GROUP in each.metadata:
            types |= types_in(each.metadata[_GROUP])
    return types


def made_from(kind: type[T], given: Mapping[str, Any]) -> T:
    """Return the group of options for keyword arguments; InvalidParameter for an unknown name."""
    known = [each.name for each in declared_in(kind)]
    for name in given:
        if name not in known:
            raise InvalidParameter.unknown("option", name, known)
    return made_of(kind, given)


def made_of(kind: type[T], given: Mapping[str, Any]) -> T:
    """Return a group of options from values by name, including those of inner groups.

    The others have their defaults.
    """
    own = {each.name: given[each.name] for each in fields(kind) if each.name in given}  # type: ignore[arg-type]
    inner = {each.name: each.metadata[_GROUP] for each in fields(kind) if _GROUP in each.metadata}  # type: ignore[arg-type]
    return kind(**own, **{name: made_of(within, given) for name, within in inner.items() if name not in own})


def option_of(declared: Field[Any]) -> Option:
    """Return the :class:`Option` of the field ``declared``."""
    said: Option = declared.metadata[_METADATA]
    return said


def default_of(declared: Field[Any]) -> Any:
    """Return the default of the option ``declared``; ``...`` if it must be given."""
    if declared.default_factory is not MISSING:
        return declared.default_factory()
    return ... if declared.default is MISSING else declared.default


def argument_type(declared: Field[Any]) -> str:
    """Return the type that an argument for the option ``declared`` may have; sizes may be text such as ``2GB``."""
    said = option_of(declared)
    return f"{declared.type}{' | str' * said.size}{' | None' * (said.by_preset is not None)}"


def defaults_of(*groups: type | Grouped) -> dict[str, Any]:
    """Return the defaults of all options of ``groups`` by name."""
    return {each.name: default_of(each) for group in groups for each in declared_in(group)}


def takes_options_of(*groups: type) -> Callable[[F], F]:
    """Show the options of ``groups`` instead of a function's ``**`` in its signature, and at the end of its docstring.

    Their names and types for type checkers are in `rankmill.scorer.arguments`.
    """

    def shown(function: F) -> F:
        types = {each.name: argument_type(each) for group in groups for each in declared_in(group)}
        signature = signature_of(function, defaults_of(*groups), types)
        function.__signature__ = signature  # type: ignore[attr-defined]
        function.__doc__ = f"{inspect.getdoc(function)}\n\n{documented(*groups, title='Other Parameters')}\n"
        return function

    return shown


def signature_of(
    function: Callable[..., object], defaults: Mapping[str, Any], types: Mapping[str, Any] | None = None
) -> inspect.Signature:
    """Return the signature of ``function`` with keyword arguments instead of its ``**``. Help and editors show it."""
    known = [each for each in inspect.signature(function).parameters.values() if each.kind is not each.VAR_KEYWORD]
    hints, by_name = types or {}, inspect.Parameter.KEYWORD_ONLY
    more = [
        inspect.Parameter(name, by_name, default=value, annotation=hints.get(name, inspect.Parameter.empty))
        for name, value in defaults.items()
    ]
    return inspect.signature(function).replace(parameters=[*known, *more])


def documented(*groups: type | Grouped, title: str = "Parameters", names: Collection[str] | None = None) -> str:
    """Return the options of ``groups``, or those with ``names``, as a section of a docstring.

    It has name, type, default and help.
    """
    lines = [title, "-" * len(title)]
    for group in groups:
        for each in (each for each in declared_in(group) if names is None or each.name in names):
            default = default_of(each)
            lines += [f"{each.name} : {argument_type(each)}" + ("" if default is ... else f", default {default!r}")]
            lines += textwrap.wrap(option_of(each).help, 110, initial_indent="    ", subsequent_indent="    ")
    return "\n".join(lines)


def check(instance: Any) -> None:
    """Check the options of the group ``instance`` one by one and make their values plain.

    Raises
    ------
    InvalidParameter
        A value is of another type, out of bounds, or not one of the choices; the message has name, bound and value.
    """
    for each in fields(instance):
        if _METADATA not in each.metadata:
            continue
        value, spec = getattr(instance, each.name), option_of(each)
        optional = str(each.type).endswith(" | None") or spec.by_preset is not None
        if value is None and optional:
            continue
        if spec.size and isinstance(value, str):
            value = parse_size(value, spelled(each.name))
        plain = _PLAIN.get(str(each.type).removesuffix(" | None"))
        if plain is not None:
            value = plain(spelled(each.name), value)
        if spec.convert is not None:
            value = spec.convert(value)
        if value is not getattr(instance, each.name):
            object.__setattr__(instance, each.name, value)
        if spec.choices:
            check_choice(each.name, value, spec.choices)
        if isinstance(value, int | float) and not _within(value, spec):
            shown = f"{value:,} bytes" if spec.size else value
            raise InvalidParameter(f"{spelled(each.name)} must be {_bounds(spec, value)}, got {shown}")


def with_option_names(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return stored ``parameters`` with the preset as the option spells it.

    >>> with_option_names({"preset": "defaults@1", "seed": 7})
    {'preset': 'defaults-1', 'seed': 7}
    """
    preset = {"preset": DEFAULTS} if parameters.get("preset") == STORED_DEFAULTS else {}
    return {**parameters, **preset}


def check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """Raise InvalidParameter if ``value`` of the option ``name`` is none of ``choices``, with the nearest spelling."""
    if value not in choices:
        raise InvalidParameter.unknown(f"value of {spelled(name)}", str(value), filter(None, choices))


def spelled(name: str) -> str:
    """Return the option ``name`` as the caller wrote it.

    It is ``max_rejects`` in Python and ``--max-rejects`` on the command line.
    """
    place = spelled_in()
    return option_flag(name) if place == "command line" else name if place in {"file", "Python"} else f"{place}({name})"


def spelled_in() -> str:
    """Return where the caller writes options: ``command line``, ``file``, ``Python``, or the call that has them."""
    return _place.get()


def option_flag(name: str) -> str:
    """Return the flag of the option ``name`` on a command line."""
    return _FLAGS.get(name, f"--{name.replace('_', '-')}")


@contextmanager
def spelled_for(place: str) -> Iterator[None]:
    """Name options in messages as in ``place``, a value of `spelled_in`, in this context of this thread."""
    before = _place.set(place)
    try:
        yield
    finally:
        _place.reset(before)


def spelled_alike(function: Callable[..., T]) -> Callable[..., T]:
    """Return ``function`` with the options in its messages spelled as here, for a call in another thread or process."""
    return partial(_call_for, _place.get(), function)


def _call_for(place: str, function: Callable[..., T], *given: Any) -> T:
    with spelled_for(place):
        return function(*given)


def _within(value: float, spec: Option) -> bool:
    return (
        (isfinite(value) or spec.least is spec.above is spec.most is spec.below is None)
        and (spec.least is None or value >= spec.least)
        and (spec.most is None or value <= spec.most)
        and (spec.above is None or value > spec.above)
        and (spec.below is None or value < spec.below)
    )


def _bounds(spec: Option, value: float) -> str:
    """Say what is allowed, as in "must be ..".

    >>> [_bounds(Option(help="", **each), 1) for each in ({"least": 1, "most": 9}, {"above": 0, "below": 1})]
    ['in 1 .. 9', 'above 0 and below 1']
    >>> [_bounds(Option(help="", **each), 1.5) for each in ({"above": 0, "most": 1}, {"above": 0}, {"least": 0})]
    ['in (0, 1]', 'a number above 0', 'a number of 0 or more']
    """
    if spec.size:
        return (
            f"at least {_as_size(spec.least)}"
            if spec.least is not None and value < spec.least
            else f"at most {_as_size(spec.most)}"
        )
    if spec.above == -inf:
        return "a finite number"
    number = "a number " if isinstance(value, float) else ""
    if spec.least is not None:
        if spec.most is not None:
            return f"in {spec.least} .. {spec.most}" if not number else f"in [{spec.least}, {spec.most}]"
        return f"{number}of {spec.least} or more" if number else f"{spec.least} or more"
    if spec.above is not None:
        if spec.most is not None:
            return f"in ({spec.above:g}, {spec.most:g}]"
        return f"above {spec.above} and below {spec.below}" if spec.below is not None else f"{number}above {spec.above}"
    return f"at most {spec.most}"


def _as_size(amount: float | None) -> str:
    """Return bytes as people write them.

    >>> [_as_size(512 * 10**6), _as_size(1 << 30), _as_size(1)]
    ['512MB', '1GiB', '1 byte']
    """
    whole = int(amount or 0)
    for unit, factor in (("GiB", 2**30), ("MB", 10**6)):
        if whole and whole % factor == 0:
            return f"{whole // factor}{unit}"
    return f"{whole} byte{'s' * (whole != 1)}"
