"""Read and check ``rankmill.toml`` before a run starts.  A mistake is one line with its place and the fix."""

from __future__ import annotations

import json
import re
import tomllib
from dataclasses import fields, is_dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter, ValidationError

from rankmill.config import Config
from rankmill.foundation.errors import ConfigError, InputError, RankmillError
from rankmill.foundation.options import Grouped, grouped, option_of, spelled_for, types_in
from rankmill.foundation.storage.special_files import refuse_special
from rankmill.gate.gate_rules import METRIC
from rankmill.pipeline.dataset.goals import check_goal
from rankmill.pipeline.read.column_roles import check_columns
from rankmill.python.other_libraries import unknown_name
from rankmill.registry.names import check_alias, check_name
from rankmill.scorer.metrics import Metric, parse_metric
from rankmill.scorer.metrics.conventions import named_convention
from rankmill.trainer.rounds.early_stopping import parse_measure

_TABLES = {
    "grades": "{good = 2, bad = 0}",
    "goals": "{bought = 0.3}",
    "also": '{"ndcg@10:bought" = 0.005}',
    "columns": '{qid = "query_id", grade = "rel"}',
    "split": "{train = 0.8, test = 0.2}",
    "split_time": '{valid = "2026-01-01", test = "2026-02-01"}',
    "propensities": "{examination = [1.0, 0.6, 0.4]}",
}  # examples of keys that are tables
_FILE = "FILE"  # metavar of options with the content of a file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pydantic_core import ErrorDetails


@spelled_for("file")
def read_config(path: Path) -> Config:
    """Read and check ``path``.

    Raises
    ------
    InputError
        The file does not exist.
    ConfigError
        The file is not valid TOML or not a valid configuration; one line with the file, the key and the cure.
    """
    refuse_special(path)
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, IsADirectoryError):
        raise InputError(
            f"{path}: no such file; create a configuration (see docs/formats.md) or name another file"
        ) from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: expected UTF-8 text, found other bytes") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(_not_toml(path, str(error))) from None
    groups = _taken_out(data)
    try:
        config: Config = TypeAdapter(Config).validate_json(json.dumps(data, default=str))
        for section, name, group, given in groups:
            made = group.made_of(_typed(section, group, given, path.parent))
            config = replace(config, **{section: replace(getattr(config, section), **{name: made})})
    except ValidationError as error:
        found = error.errors(include_url=False)
        worst = min(found, key=lambda row: row["type"] != "unexpected_keyword_argument")  # misspelt keys first
        raise ConfigError(f"{path}: {_explain(worst)}") from None
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    except InputError as error:
        raise ConfigError(f"{path}: [{section}] {error}") from None
    try:
        config = config.on_cluster().for_blend()
    except InputError as error:
        raise ConfigError(f"{path}: [cluster] {error}") from None
    _check_later_stages(path, config)
    return config


class _Given(NamedTuple):
    """The keys in a section that belong to a group of options, which is a field of the section."""

    section: str
    field: str
    group: Grouped
    values: Mapping[str, object]


def _taken_out(data: dict[str, Any]) -> list[_Given]:
    """Move the keys of groups of options out of their sections."""
    found = []
    for section, table in data.items():
        kind = section_class(section)
        if kind is None or not isinstance(table, dict):
            continue
        for name, hint in get_type_hints(kind, include_extras=True).items():
            group = grouped(hint)
            if group is not None:
                given = {each.name: table.pop(each.name) for each in group.options if each.name in table}
                found.append(_Given(section, name, group, json.loads(json.dumps(given, default=str))))
    return found


def _typed(section: str, group: Grouped, given: Mapping[str, object], folder: Path) -> Mapping[str, object]:
    """Convert values to the types of their options; ConfigError if a value in a list has the wrong type.

    A file whose content is the value is read later; its path starts at ``folder``.
    """
    types = types_in(group.kind)
    found: dict[str, object] = {}
    files = {each.name for each in group.options if option_of(each).metavar == _FILE}
    for name, value in given.items():
        if name in files and isinstance(value, str):
            found[name] = folder / value
            if not (folder / value).is_file():
                raise ConfigError(f"[{section}] {name}: {folder / value}: no such file")
            continue
        several = isinstance(value, list | dict) or _is_table_or_list(types[name])
        try:
            found[name] = TypeAdapter(types[name]).validate_json(json.dumps(value), strict=True) if several else value
        except ValidationError as error:
            row = error.errors(include_url=False)[0]
            row["loc"] = (section, name, *row["loc"])
            raise ConfigError(_explain(row)) from None
    return found


def _is_table_or_list(hint: Any) -> bool:
    """Return whether all types of ``hint`` except None are lists or tables.

    >>> _is_table_or_list(dict[str, int] | None), _is_table_or_list(float | list[float])
    (True, False)
    """
    union = get_origin(hint) in {Union, UnionType}
    parts = [part for part in get_args(hint) if part is not type(None)] if union else [hint]
    return all(get_origin(part) not in {None, Literal} for part in parts)


def section_class(name: str) -> Any:
    """Return the class of the section ``name`` of the configuration; None if it is not a section."""
    hint = get_type_hints(Config).get(name)
    return next((part for part in (hint, *getattr(hint, "__args__", ())) if is_dataclass(part)), None)


def _check_later_stages(path: Path, config: Config) -> None:
    """Run the checks of later stages now, so that a mistake is not found only after hours of training."""
    goals = config.ingest.options.read.goals

    def check_reported(names: Iterable[str]) -> None:
        for metric in map(parse_metric, names):
            check_goal(metric, metric.goal, goals, "[ingest]")

    def check_measured(*names: str) -> None:
        check_reported(name for name in names if isinstance(parse_measure(name), Metric))

    rows: list[tuple[str, Callable[[], object]]] = [
        ("train.name:", lambda: check_name(config.train.name)),
        ("[train]", config.train.check_kind),
        ("[blend]", config.check_blend),
        ("train.metric:", lambda: parse_metric(config.train.parameters.metric)),
        (
            "train.stop_metric:",
            lambda: check_measured(config.train.parameters.stop_metric or config.train.parameters.metric),
        ),
        ("train.eval_metrics:", lambda: check_measured(*config.train.machine.eval_metrics)),
        ("[evaluate]", lambda: named_convention(config.evaluate.convention).but(**config.evaluate.policy)),
        ("evaluate.metrics:", lambda: check_reported(config.evaluate.metrics)),
    ]
    if config.clicks is not None:
        rows.append(("[clicks]", config.clicks.check_judge))
        if (
            config.gate
            and config.clicks.judge.form == "labels"
            and not (config.ingest.test or config.ingest.valid or config.ingest.qrels)
        ):
            raise ConfigError(
                f"{path}: [gate] needs grades to compare by, but labels from clicks have none; give queries that "
                "people judged with"
                ' ingest.test, or choose form = "grades" in [clicks]'
            )
    if config.gate is not None:
        gate = config.gate
        rows.append(("gate.alias:", lambda: check_alias(gate.alias)))
        rows.append(("gate.metric:", lambda: check_reported([gate.options.metric or METRIC])))
        rows.append(("gate.also:", lambda: check_reported(gate.options.also)))
    if config.promote is not None:
        alias = config.promote.alias
        rows.append(("promote.alias:", lambda: check_alias(alias)))
        if config.gate is not None and config.gate.alias == alias:
            raise ConfigError(f"{path}: [promote] and [gate] both move {alias}; remove [promote]")
    if config.rerank is not None:
        reranking = config.rerank.options
        if reranking.lacking != "reject" and not config.rerank.run:
            raise ConfigError(f"{path}: rerank.lacking is for the documents of a run; name the run with rerank.run")
        rows.append(("[rerank]", lambda: check_columns(reranking.columns or {}, ())))
        rows.append(("[rerank]", config.rerank.check_out))
    rows.append(("[report]", config.report.check_out))
    for where, check in rows:
        try:
            check()
        except RankmillError as error:
            raise ConfigError(f"{path}: {where} {error}") from None


def _not_toml(path: Path, message: str) -> str:
    """Say where ``path`` is not TOML: ``message`` ends in (at line 3, column 5)."""
    if path.suffix != ".toml":
        return (
            f"{path}: is not a configuration in TOML; name one, such as rankmill.toml "
            f"({message[:1].lower()}{message[1:]})"
        )
    lines = path.read_text(encoding="utf-8").rstrip("\n").split("\n")
    place = re.fullmatch(r"(.*) \(at (?:line (\d+), column (\d+)|end of document)\)", message)
    if place is None:
        return f"{path}: {message}"
    what, line, column = (
        place[1][:1].lower() + place[1][1:],
        int(place[2] or len(lines)),
        place[3] or len(lines[-1]) + 1,
    )
    if "overwrite" in what or "declare" in what:
        what = f"{lines[line - 1].partition('=')[0].strip()} is given twice; remove one"
    return f"{path}:{line}:{column}: {what}"


def _explain(error: ErrorDetails) -> str:
    """Describe on one line which key is wrong, what was expected and found, and the nearest spelling."""
    key = ".".join(
        str(part) for part in error["loc"] if "[" not in str(part)
    )  # without members of unions, which are not keys
    kind, found = error["type"], error["input"]
    if kind == "unexpected_keyword_argument":
        *section, name = map(str, error["loc"])
        known = _keys_of(section)
        where = f"[{'.'.join(section)}]" if section else "the configuration"
        return unknown_name("key", name, known, f" in {where}")
    if kind == "missing":
        return f"{key} is missing" if len(error["loc"]) > 1 else f"section [{key}] is missing"
    if kind == "too_short":
        return f"{key}: expected at least one value, found none"
    if kind == "value_error":
        return f"[{key}] {error['ctx']['error']}"
    expected = error["msg"].removeprefix("Input should be ")
    if expected in {"an object", "a valid array"}:
        *section, name = key.rsplit(".", 1)
        where = f"[{section[0]}] {name}" if section else key
        return f"{where} must be {_such_as(name, found, table=expected == 'an object')}, got {found!r}"
    expected = {
        "a valid integer": "a whole number",
        "a valid number": "a number",
        "a valid string": "a text",
        "a valid boolean": "true or false",
    }.get(expected, expected)
    if kind == "literal_error" and isinstance(found, str):
        known = [value for value in re.findall(r"'([^']*)'", expected) if value]
        near = get_close_matches(found, known, n=1)
        expected += f"; did you mean {near[0]!r}?" if near else ""
        return f"{key}: found {found!r}, expected {expected}"
    return f"{key}: expected {expected}, found {found!r}"


def _such_as(name: str, found: object, *, table: bool) -> str:
    """Return what kind of value the key ``name`` has, with an example based on ``found`` if possible.

    >>> _such_as("ignore", "in_stock,title", table=False)
    'a list, such as ["in_stock", "title"]'
    """
    if table:
        return f"a table, such as {_TABLES.get(name, '{name = value}')}"
    words = re.findall("[^, ]+", found) if isinstance(found, str) else []
    return f"a list, such as {json.dumps(words or ['a', 'b'], ensure_ascii=False)}"


def _keys_of(section: Sequence[str]) -> list[str]:
    if not section:
        return [field.name for field in fields(Config)]
    kind = section_class(section[0])
    hints = {} if kind is None else get_type_hints(kind, include_extras=True)
    groups = {name: grouped(hint) for name, hint in hints.items()}
    return [
        key for name, group in groups.items() for key in ([name] if group is None else [o.name for o in group.options])
    ]
