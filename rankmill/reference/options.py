"""Generate scorer/arguments.py with the types of options, and cells of the tables of options.

`rankmill.reference.pages` writes both.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from math import inf
from typing import Any

from rankmill.foundation.options import Option, argument_type, declared_in
from rankmill.gate.gate_rules import GateOptions
from rankmill.pipeline.options import BinOptions, IngestOptions, QueryOptions, SynthParameters
from rankmill.scorer import arguments as scorer_arguments
from rankmill.scorer.metrics.metric_options import Policy
from rankmill.scorer.options import CandidateOptions, ConvertOptions, JudgedOptions, RerankOptions, Selection
from rankmill.trainer.options import CheckpointOptions, SeedOptions, SpaceOptions, StartOptions, TuneOptions
from rankmill.trainer.parameters import TrainParameters

NO_BOUND = 2**31 - 1  # bounds of this size are not shown
HOW = "This page is generated from the code by `python -m rankmill.reference.pages docs`."

COMMANDS_OF: Mapping[Any, tuple[str, ...]] = {  # by group of options
    IngestOptions: ("data ingest",),
    BinOptions: ("data bin",),
    QueryOptions: ("data query",),
    SynthParameters: ("data synth",),
    TrainParameters: ("train", "cv", "tune"),
    CheckpointOptions: ("train",),
    StartOptions: ("train",),
    SeedOptions: ("train",),
    TuneOptions: ("tune",),
    SpaceOptions: ("tune",),
    CandidateOptions: ("rerank", "evaluate", "compare", "inspect shap"),
    RerankOptions: ("rerank",),
    JudgedOptions: ("evaluate",),
    Selection: ("inspect shap",),
    ConvertOptions: ("convert",),
    GateOptions: ("models gate",),
    Policy: ("evaluate", "compare", "explain-metric", "models gate"),
}

ARGUMENTS: Mapping[str, tuple[Any, tuple[str, ...]]] = {  # the class of options, and its first arguments
    "PolicyArguments": (Policy, ()),
    "CandidateArguments": (CandidateOptions, ()),
    "JudgedArguments": (JudgedOptions, ("CandidateArguments", "PolicyArguments")),
    "RerankArguments": (RerankOptions, ("CandidateArguments",)),
}


def arguments() -> str:
    """Return scorer/arguments.py: the existing text before the first class, and the generated classes."""
    head = inspect.getsource(scorer_arguments).partition("\n\n\nclass ")[0]
    return head + "\n" + "".join(_typed_dict(name, *of) for name, of in ARGUMENTS.items())


def _typed_dict(name: str, group: Any, bases: tuple[str, ...]) -> str:
    inherited = {each.name for base in bases for each in declared_in(ARGUMENTS[base][0])}
    own = [f"    {each.name}: {argument_type(each)}\n" for each in declared_in(group) if each.name not in inherited]
    head = f"class {name}({', '.join(bases or ('TypedDict',))}, total=False):"
    return f'\n\n{head}\n    """The options of `{group.__name__}`."""\n\n{"".join(own)}'


def default_cell(value: Any) -> str:
    """Format a default as the cell of a table."""
    if value is ...:
        return "must be given"
    if value and isinstance(value, tuple):
        return ", ".join(map(code, map(str, value)))
    empty = value in ("", (), [], {}, frozenset(), None)
    return "" if empty else code(str(value).lower() if isinstance(value, bool) else str(value))


def allowed_cell(declared: Option) -> str:
    """Format the allowed values of an option as the cell of a table."""
    if declared.choices:
        return ", ".join(f"`{choice}`" for choice in declared.choices if choice)
    if declared.above == -inf:
        return "finite"
    if declared.size:
        return "a size such as 2GB"
    found = [f"above {declared.above:g}"] if declared.above is not None else []
    found += bounds(declared.least, declared.most)
    return ", ".join([*found, f"below {declared.below:g}"] if declared.below is not None else found)


def bounds(least: float | None, most: float | None) -> list[str]:
    """Format an inclusive range."""
    low = [f"at least {least:,g}"] if least is not None else []
    return low + ([f"at most {most:,.10g}"] if most is not None and most < NO_BOUND else [])


def code(text: str) -> str:
    """Format text as code in the cell of a table."""
    return "`" + text.replace("|", "\\|") + "`"


def cell(text: str) -> str:
    """Escape Markdown in text."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")
