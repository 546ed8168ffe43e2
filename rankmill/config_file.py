"""Reading ``rankmill.toml``: all of it is checked before anything is run, and a mistake is one line with its place and cure."""

from __future__ import annotations

import json
import re
import tomllib
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

from pydantic import TypeAdapter, ValidationError

from rankmill.config import Config
from rankmill.foundation.errors import ConfigError, InputError, RankmillError
from rankmill.foundation.units import parse_size
from rankmill.gate.gate_rules import METRIC
from rankmill.other_libraries import unknown_name
from rankmill.pipeline.sources.parts import check_columns
from rankmill.registry.names import check_alias, check_name
from rankmill.scorer.memory import MemoryPlan
from rankmill.scorer.metrics import parse_metric
from rankmill.scorer.metrics.conventions import named_convention
from rankmill.trainer.early_stopping import parse_measure

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pydantic_core import ErrorDetails


def read_config(path: Path) -> Config:
    """Read and check all of ``path`` before anything is run.

    Raises
    ------
    InputError
        There is no such file.
    ConfigError
        The file breaks a rule of TOML or of the configuration; one line with the file, the key and the cure.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, IsADirectoryError):
        raise InputError(f"{path}: no such file; write one (see docs/formats.md) or name another") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: expected UTF-8 text, found other bytes") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(_with_place(path, str(error))) from None
    try:
        config: Config = TypeAdapter(Config).validate_json(json.dumps(data, default=str))
    except ValidationError as error:
        found = error.errors(include_url=False)
        worst = min(
            found, key=lambda row: row["type"] != "unexpected_keyword_argument"
        )  # a typing error, then the rest
        raise ConfigError(f"{path}: {_explain(worst)}") from None
    _check_what_the_rooms_check(path, config)
    return config


def _check_what_the_rooms_check(path: Path, config: Config) -> None:
    """Ask now what the rooms would ask later: a typing error must not come to light after hours of training."""
    rows: list[tuple[str, Callable[[], object]]] = [
        ("[ingest]", lambda: config.ingest.options),
        ("[bin]", lambda: config.bin.memory_bytes),
        ("train.name:", lambda: check_name(config.train.name)),
        ("train.metric:", lambda: parse_metric(config.train.metric)),
        ("train.stop_metric:", lambda: parse_measure(config.train.stop_metric or config.train.metric)),
        ("train.eval_metrics:", lambda: [parse_measure(measure) for measure in config.train.eval_metrics]),
        ("[train]", lambda: config.train.pool_bytes),
        ("[evaluate]", lambda: named_convention(config.evaluate.convention).but(**config.evaluate.options)),
        ("[tell]", lambda: config.tell.keep_bytes),
        ("evaluate.metrics:", lambda: [parse_metric(metric) for metric in config.evaluate.metrics]),
    ]
    if config.gate is not None:
        gate = config.gate
        rows.append(("gate.alias:", lambda: check_alias(gate.alias)))
        rows.append(("gate.metric:", lambda: parse_metric(gate.metric or METRIC)))
    if config.promote is not None:
        alias = config.promote.alias
        rows.append(("promote.alias:", lambda: check_alias(alias)))
        if config.gate is not None and config.gate.alias == alias:
            raise ConfigError(f"{path}: [promote] and [gate] both move {alias}; leave [promote] out")
    if config.rerank is not None:
        if config.rerank.lacking != "reject" and not config.rerank.run:
            raise ConfigError(
                f"{path}: rerank.lacking says what becomes of documents of a run; name it with rerank.run"
            )
        memory, columns = config.rerank.memory, config.rerank.columns
        rows.append(("[rerank]", lambda: MemoryPlan.of(parse_size(memory, "memory"))))
        rows.append(("[rerank]", lambda: check_columns(columns, ())))
        rows.append(("[rerank]", config.rerank.check_out))
    for where, check in rows:
        try:
            check()
        except RankmillError as error:
            raise ConfigError(f"{path}: {where} {error}") from None


def _with_place(path: Path, message: str) -> str:
    """Turn ``... (at line 3, column 5)`` into ``path:3:5: ...``."""
    place = re.fullmatch(r"(.*) \(at line (\d+), column (\d+)\)", message)
    return f"{path}:{place[2]}:{place[3]}: {place[1]}" if place else f"{path}: {message}"


def _explain(error: ErrorDetails) -> str:
    """Say in one line which key is wrong, what was expected, what was found, and the nearest spelling."""
    key = ".".join(str(part) for part in error["loc"])
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
    if kind == "literal_error" and isinstance(found, str):
        known = [value for value in re.findall(r"'([^']*)'", expected) if value]
        near = get_close_matches(found, known, n=1)
        expected += f"; did you mean {near[0]!r}?" if near else ""
        return f"{key}: found {found!r}, expected {expected}"
    return f"{key}: expected {expected}, found {found!r}"


def _keys_of(section: Sequence[str]) -> list[str]:
    kind: Any = Config
    for name in section:
        hint = get_type_hints(kind)[name]
        kind = next((part for part in (hint, *getattr(hint, "__args__", ())) if is_dataclass(part)), None)
    return [field.name for field in fields(kind)] if kind is not None else []
