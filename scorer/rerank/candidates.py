"""Find the features of a model among the columns of candidates, and check the resulting scores."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rankmill.foundation.cures import FEATURES_FILE, NAME, OUT, command
from rankmill.foundation.errors import CandidatesRejected, NotFiniteScore
from rankmill.foundation.options import spelled
from rankmill.pipeline.options import ReadOptions
from rankmill.pipeline.read.batch import Source
from rankmill.pipeline.read.trec_run import FEATURES, RunSource
from rankmill.scorer.models.model import Predictor

SHOWN = 5  # names in a message


@dataclass(frozen=True, slots=True)
class Columns:
    """Positions of a model's features among the columns of a source.

    ``places`` has one column number per feature of ``Predictor.features``, -1 if the column may still appear (sparse
    text gets wider as it is read).  ``needed`` is the width that text must reach, 0 for a source with known columns.
    """

    places: npt.NDArray[np.int64]
    needed: int


def check_rows(
    sources: Sequence[Source], layouts: Sequence[Columns], options: ReadOptions, rows: int, width: int
) -> None:
    """Raise CandidatesRejected if there are no ``rows``, or if features of a model are missing.

    ``width`` is the widest row of text.
    """
    if rows == 0:
        raise CandidatesRejected(f"{', '.join(str(source.path) for source in sources)}: no candidates found")
    needed = max((layout.needed for layout in layouts), default=0)
    if needed > width and options.n_features is None:
        base = options.index_base
        raise CandidatesRejected(
            f"{sources[0].path}: the model uses feature f{needed - 1 + base}, the highest index in the candidates is "
            f"{width - 1 + base}; if absent features mean {options.absent}, set {spelled('n_features')} {needed}"
        )


def locate_features(source: Source, predictor: Predictor, options: ReadOptions) -> Columns:
    """Find the columns of ``source`` that hold the features of ``predictor``.

    CandidatesRejected if one cannot be there.
    """
    names = predictor.feature_names
    if source.columns is not None:
        place_of = {name: i for i, name in enumerate(source.columns)}
        missing = [name for name in names if name not in place_of]
        if missing:
            raise missing_error(source, missing)
        return Columns(np.array([place_of[name] for name in names], dtype=np.int64), 0)
    # Text names its features by index: f<index>.
    indices = [_index_of(name) for name in names]
    foreign = [name for name, index in zip(names, indices, strict=True) if index is None or index < options.index_base]
    if foreign:
        raise _foreign_error(source, foreign, options)
    places = np.array([cast("int", index) - options.index_base for index in indices], dtype=np.int64)
    needed = int(places.max(initial=-1)) + 1
    if options.n_features is not None and needed > options.n_features:
        raise CandidatesRejected(
            f"{source.path}: the model uses feature f{needed - 1 + options.index_base}, but {spelled('n_features')} "
            f"{options.n_features} is lower; set at least {spelled('n_features')} {needed}"
        )
    return Columns(places, needed)


def check_finite(scored: pa.RecordBatch, where: str) -> None:
    """Raise NotFiniteScore if a score of rows of ``SCORED_ROW`` is not finite."""
    score = scored.column("score").to_numpy()
    if not np.isfinite(score).all():
        bad = int(np.argmin(np.isfinite(score)))
        raise NotFiniteScore(where, scored["row"][bad].as_py(), scored["qid"][bad].as_py(), float(score[bad]))


def _index_of(name: str) -> int | None:
    match = re.fullmatch(r"f(0|[1-9][0-9]{0,8})", name)
    return None if match is None else int(match[1])


def _first_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def missing_error(source: Source, lacking: Sequence[str]) -> CandidatesRejected:
    """Return the error of candidates that lack columns of features."""
    if isinstance(source, RunSource):
        return CandidatesRejected(
            f"{source.path}: the model uses {_first_names(lacking)}, and a TREC run has the features "
            f"{' and '.join(FEATURES)} only; "
            f"`{command('rerank', FEATURES_FILE, '--run', source.path, '--model', NAME, '-o', OUT)}` ranks its "
            "documents by features in other files"
        )
    columns = source.columns or () if source.table is None else source.table.offered
    found = _first_names(columns) or "none"
    few = _first_names([repr(name) for name in lacking])
    near = get_close_matches(lacking[0], columns, n=1, cutoff=0.8)
    cure = (
        f"if {near[0]!r} is {lacking[0]!r}, rename it; or convert a model of another tool again with "
        f"{spelled('features')}"
        if near
        else "add the columns, empty where missing, or use a model trained without them"
    )
    return CandidatesRejected(
        f"{source.path}: no column{'s' if len(lacking) > 1 else ''} {few}, which the model uses; the columns are: "
        f"{found}; {cure}"
    )


def _foreign_error(source: Source, foreign: Sequence[str], options: ReadOptions) -> CandidatesRejected:
    cure = (
        f"where its features count from 0: {spelled('index_base')} 0; where the model was read from XGBoost, whose "
        f"first column is f0: convert it again with {spelled('features')} f1..fN"
        if foreign == ["f0"] and options.index_base == 1
        else "give the candidates as Parquet or CSV with columns of those names, or convert a model of another tool "
        f"again with {spelled('features')}"
    )
    return CandidatesRejected(
        f"{source.path}: the model uses {_first_names(foreign)}, but LETOR text can only hold features named "
        f"f{options.index_base}, f{options.index_base + 1}, ..; {cure}"
    )
