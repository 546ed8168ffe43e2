"""The options that Python functions take by name, with their types, for editors and type checkers.

The classes are made by ``python -m rankmill.reference.pages docs`` from those that declare the options; a test says if
they are out of date.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Literal, TypedDict

from rankmill.pipeline.options import Absent, Format
from rankmill.scorer.metrics.metric import Metric
from rankmill.scorer.metrics.metric_options import (
    Discount,
    Gain,
    MapNormalisation,
    NothingRelevant,
    PrecisionNormalisation,
    ShortLists,
    Ties,
)
from rankmill.scorer.options import Lacking


class PolicyArguments(TypedDict, total=False):
    """The options of `Policy`."""

    gain: Gain
    discount: Discount
    ties: Ties
    nothing_relevant: NothingRelevant
    relevant_from: int
    max_grade: int | None
    short_lists: ShortLists
    map_normalisation: MapNormalisation
    precision_normalisation: PrecisionNormalisation
    ties_seed: int


class CandidateArguments(TypedDict, total=False):
    """The options of `CandidateOptions`."""

    format: Format
    absent: Absent | None
    index_base: Literal[0, 1] | None
    n_features: int | None
    delimiter: str | None
    decimal_comma: bool
    columns: Mapping[str, str] | None
    n_rounds: int | None
    start_round: int
    n_threads: int
    announce: bool


class JudgedArguments(CandidateArguments, PolicyArguments, total=False):
    """The options of `JudgedOptions`."""

    metrics: Sequence[str | Metric]
    convention: str
    qrels: str | os.PathLike[str] | None
    split: str | None
    cluster: str | None
    complete: bool
    by: Sequence[str]


class RerankArguments(CandidateArguments, total=False):
    """The options of `RerankOptions`."""

    top_k: int | None
    keep: Sequence[str]
    grade_counts: bool
    memory: int | str
    run: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
    lacking: Lacking
    overwrite: bool
    cluster: str | None
    fresh: bool
