"""Models of any kind: read them, score with them, and blends of them.

A blend is the weighted sum of the scores of its parts, in one file that holds them all::

    score(x) = base_score + w_1 score_1(x) + w_2 score_2(x) + ..           added in this order in float64

    weights      [  w_1        w_2      ]
    part_starts  [0          s          e]
    part_bytes   [RANKMILL...|RANKMILL...]     the file of part 1, then that of part 2

Parts may differ in kind, features, objective and data.  Each scores a document alone, so the blend does, too.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rankmill.foundation.errors import InputError, InvalidParameter, ModelFormatError, NoTrees
from rankmill.foundation.options import spelled, spelled_in
from rankmill.foundation.records import JSON, canonical_json
from rankmill.scorer.forest.forest import Forest, feature_importance, split_counts
from rankmill.scorer.forest.predict import ForestPredictor
from rankmill.scorer.models import model_file
from rankmill.scorer.models.model import Model, Predictor, bytes_of_model, check_bound
from rankmill.scorer.nets.net import Net
from rankmill.scorer.nets.predict import NetPredictor

ARRAYS: model_file.ArrayTypes = (
    ("weights", np.dtype("<f8")),
    ("part_starts", np.dtype("<i8")),
    ("part_bytes", np.dtype("u1")),
)
HEADER: model_file.Header = {"base_score": float, "info": dict, "parameters": dict}
MOST_PARTS = 1000
BLEND = "blend"


def read_model(data: bytes, where: str = "model") -> Model:
    """Read a model of any kind from ``data``; ``where`` names the source in messages.

    Raises
    ------
    ModelFormatError
        It is not a sound model of a format that this version reads.
    """
    number = model_file.format_number(data, where)
    if number == model_file.BLEND:
        return Blend.from_bytes(data, where)
    return Net.from_bytes(data, where) if number == model_file.NET else Forest.from_bytes(data, where)


def load_model_file(path: str | os.PathLike[str]) -> Model:
    """Read the model file ``path``; InputError if there is none, else errors as `read_model`."""
    if not isinstance(path, str | os.PathLike):
        own = f"; give its {'model_' if hasattr(path, 'model_') else 'path'}"
        raise InvalidParameter(f"model must be a model or the path of its file, got a {type(path).__name__}{own}")
    return read_model(bytes_of_model(path), str(path))


def predictor_of(model: Model, *, n_rounds: int | None = None, start_round: int = 0) -> Predictor:
    """Lay out ``model`` for prediction, by default with all of its rounds.

    Raises
    ------
    InputError
        The model has fewer rounds, or no rounds to choose from.
    """
    if isinstance(model, Forest):
        return ForestPredictor(model, n_rounds=n_rounds, start_round=start_round)
    if n_rounds is not None or start_round:
        option = spelled("start_round" if n_rounds is None else "n_rounds")
        raise InputError(f"{option} chooses rounds of a forest; this model is {kind_of(model)}{trees_instead(model)}")
    if isinstance(model, Net):
        return NetPredictor(model)
    assert isinstance(model, Blend)  # noqa: S101 (there is no other kind)
    return BlendPredictor(model)


@lru_cache(maxsize=1)
def laid_out(models: tuple[Path, ...], n_rounds: int | None, start_round: int) -> list[Predictor]:
    """Return the models in these files, laid out; a worker keeps those of its last task."""
    return [predictor_of(load_model_file(path), n_rounds=n_rounds, start_round=start_round) for path in models]


def forest_of(model: Model, use: str) -> Forest:
    """Return ``model`` if it is a forest, which ``use`` needs, such as "inspect shap".

    Raises
    ------
    NoTrees
        It is a model of another kind.
    """
    if not isinstance(model, Forest):
        raise NoTrees(f"{use} needs a model of trees, and this is {kind_of(model)}{trees_instead(model)}")
    return model


def trees_instead(model: Model) -> str:
    """Return the end of a message that a model is no forest of trees.

    If a preset has chosen a blend, it says how to train trees alone.
    """
    if not (isinstance(model, Blend) and "preset" in model.parameters):
        return ""
    fast = f"{spelled('budget')} fast" if spelled_in() == "command line" else 'budget="fast"'
    return f"; train trees alone with {fast}"


def kind_of(model: Model) -> str:
    """Return in a few words what kind of model it is."""
    if isinstance(model, Blend):
        return (
            f"a blend of {len(model.parts)} models" if len(model.parts) > 1 else f"a blend of {kind_of(model.parts[0])}"
        )
    if isinstance(model, Net):
        return f"a net of {model.n_weights:,} weights"
    return f"a forest of {model.n_trees:,} trees"


def parts_of(model: Model) -> tuple[Model, ...]:
    """Return the models whose scores ``model`` sums: itself, if it is no blend."""
    return model.parts if isinstance(model, Blend) else (model,)


def trees_of(model: Model) -> list[tuple[Forest, float]]:
    """Return a forest, or the forests in a blend that a preset has made, with their shares; empty for other models."""
    if isinstance(model, Forest):
        return [(model, 1.0)]
    kinds = model.parameters.get("kinds") if isinstance(model, Blend) else None
    shares = [float(kind["share"]) for kind in kinds if kind["share"]] if isinstance(kinds, list) else []
    return [(part, share) for part, share in zip(parts_of(model), shares, strict=False) if isinstance(part, Forest)]


def importance_of(
    model: Model, of: Callable[[Forest], npt.NDArray[np.float64]] = feature_importance
) -> npt.NDArray[np.float64] | None:
    """Return the mean of ``of`` (n_features,) over `trees_of` the model, by their shares; None if there are none."""
    trees = trees_of(model)
    if not trees:
        return None
    summed: npt.NDArray[np.float64] = np.sum([share * of(forest) for forest, share in trees], axis=0)
    return summed / sum(share for _, share in trees)


def splits_of(model: Model) -> npt.NDArray[np.int64]:
    """Return how many splits of the forests of `trees_of` each feature (n_features,) has."""
    counts = [split_counts(forest) for forest, _ in trees_of(model)]
    return np.sum(counts, axis=0) if counts else np.zeros(model.n_features, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Blend(Model):
    """A weighted sum of models.  Parts that are blends themselves are replaced by their own parts.

    Raises
    ------
    ValueError
        There are no parts; a weight is not finite; a feature is categorical in one part and a number in another.
    """

    parts: tuple[Model, ...]
    weights: npt.NDArray[np.float64]  # (n_parts,)
    base_score: float = 0.0
    parameters: Mapping[str, JSON] = field(default_factory=dict)  # how the weights were found
    info: Mapping[str, JSON] = field(default_factory=dict)
    feature_names: tuple[str, ...] = field(init=False)  # of all parts, in the order in which they come
    categories: Mapping[str, Sequence[str]] = field(init=False)
    objective: str = field(init=False, default=BLEND)

    def __post_init__(self) -> None:
        given = np.array(self.weights, dtype=np.float64)
        if given.shape != (len(self.parts),):
            raise ValueError(f"weights of the shape {given.shape} for {len(self.parts)} parts")
        parts: list[Model] = []
        weights: list[float] = []
        base = float(self.base_score)
        for part, weight in zip(self.parts, given.tolist(), strict=True):
            parts += parts_of(part)
            weights += [weight * own for own in part.weights.tolist()] if isinstance(part, Blend) else [weight]
            base += weight * part.base_score if isinstance(part, Blend) else 0.0
        names = tuple(dict.fromkeys(name for part in parts for name in part.feature_names))
        texts = {
            name: sorted({text for part in parts for text in part.categories.get(name, ())})
            for name in names
            if any(name in part.categories for part in parts)
        }
        flat = np.array(weights, dtype=np.float64)
        flat.setflags(write=False)
        own = {"parts": tuple(parts), "weights": flat, "base_score": base}
        own |= {name: json.loads(canonical_json(dict(getattr(self, name)))) for name in ("parameters", "info")}
        for name, value in {**own, "feature_names": names, "categories": texts}.items():
            object.__setattr__(self, name, value)
        if (fault := self._fault()) is not None:
            raise ValueError(fault)
        check_bound(self.score_bound)

    def _fault(self) -> str | None:
        if not 1 <= len(self.parts) <= MOST_PARTS:
            return f"{len(self.parts)} parts, expected 1 to {MOST_PARTS:,}"
        if not (np.isfinite(self.weights).all() and np.isfinite(self.base_score)):
            return "a weight or the base score is not finite"
        for name in self.categories:
            if any(name in part.feature_names and name not in part.categories for part in self.parts):
                return f"the feature {name!r} is categorical in one part and a number in another"
        return None

    def __repr__(self) -> str:
        return f"<Blend of {len(self.parts)} models, sha256 {self.sha256[:12]}>"

    @property
    def score_bound(self) -> float:
        """Upper bound of the absolute score of any document.

        It is the absolute base score plus those of the parts times their weights.
        """
        weights: list[float] = self.weights.tolist()
        return abs(self.base_score) + sum(
            abs(w) * part.score_bound for w, part in zip(weights, self.parts, strict=True)
        )

    @property
    def used_features(self) -> tuple[int, ...]:
        """Positions in ``feature_names`` of the features that some part uses, ascending."""
        used = {part.feature_names[f] for part in self.parts for f in part.used_features}
        return tuple(f for f, name in enumerate(self.feature_names) if name in used)

    @property
    def n_trees(self) -> int:
        """Trees of all parts."""
        return sum(part.n_trees for part in self.parts)

    def to_bytes(self) -> bytes:
        """Return the bytes of the model file: the same for equal blends, on every machine."""
        files = [part.to_bytes() for part in self.parts]
        arrays: dict[str, npt.NDArray[Any]] = {
            "weights": self.weights,
            "part_starts": np.cumsum([0, *map(len, files)]).astype(np.int64),
            "part_bytes": np.frombuffer(b"".join(files), dtype=np.uint8),
        }
        return model_file.encode(model_file.BLEND, {name: getattr(self, name) for name in HEADER}, arrays)

    @classmethod
    def from_bytes(cls, data: bytes, where: str = "model") -> Blend:
        """Read a blend from ``data``; ``where`` names the source in messages.

        Raises
        ------
        ModelFormatError
            It is no blend, or it or one of its parts is not valid.
        """
        _, header, arrays = model_file.decode(data, where, "a blend", {model_file.BLEND: (HEADER, ARRAYS)})
        starts, files = arrays["part_starts"].tolist(), arrays["part_bytes"].tobytes()
        if starts[:1] != [0] or starts[-1] != len(files) or sorted(set(starts)) != starts:
            raise ModelFormatError(f"{where}: the parts of the blend do not follow one another")
        files_of = {
            f"{where}, part {number}": files[first:last] for number, (first, last) in enumerate(pairwise(starts), 1)
        }
        # before any is read: blends within blends could be as deep as their file is long
        if any(model_file.format_number(file, part) == model_file.BLEND for part, file in files_of.items()):
            raise ModelFormatError(f"{where}: the blend is not valid: a part is itself a blend")
        parts = tuple(read_model(file, part) for part, file in files_of.items())
        try:
            return cls(parts=parts, weights=arrays["weights"], **header)
        except (ValueError, TypeError, RecursionError) as error:
            raise ModelFormatError(f"{where}: the blend is not valid: {model_file.shortened(error)}") from error


class BlendPredictor(Predictor):
    """The parts of a blend laid out for prediction: each document's values are read once, and scored by every part."""

    def __init__(self, blend: Blend) -> None:
        self.model = blend
        self.features = blend.used_features
        self._parts = [predictor_of(part) for part in blend.parts]
        self.table_bytes = sum(part.table_bytes for part in self._parts)
        slot = {name: i for i, name in enumerate(self.feature_names)}
        self._slots = [np.array([slot[name] for name in part.feature_names], dtype=np.int64) for part in self._parts]
        self._weights, self._base = blend.weights.tolist(), blend.base_score

    @property
    def comparisons(self) -> int:
        """Number of comparisons per document: those of all parts."""
        return sum(part.comparisons for part in self._parts)

    def scores(
        self,
        values: npt.NDArray[np.float32],
        *,
        columns: npt.ArrayLike | None = None,
        absent: float = np.nan,
        n_threads: int = 1,
    ) -> npt.NDArray[np.float64]:
        """Score the rows of ``values``, as `Predictor.scores` says."""
        where = self._columns(values, columns)
        return self._sum(
            part.scores(values, columns=where[slots], absent=absent, n_threads=n_threads)
            for part, slots in zip(self._parts, self._slots, strict=True)
        )

    @property
    def code_bytes(self) -> int:
        """Bytes per row of `codes_buffer`."""
        return sum(part.code_bytes for part in self._parts)

    def codes_buffer(self, n_rows: int) -> list[Any]:
        """Return a buffer of each part."""
        return [part.codes_buffer(n_rows) for part in self._parts]

    def take_column(self, codes: list[Any], slot: int, first: int, values: npt.NDArray[np.float32]) -> None:
        """Hand the values of one feature to the parts that use it, as `Predictor.take_column` says."""
        for part, slots, own in zip(self._parts, self._slots, codes, strict=True):
            for found in np.flatnonzero(slots == slot).tolist():
                part.take_column(own, found, first, values)

    def scores_of_codes(self, codes: list[Any], n_rows: int) -> npt.NDArray[np.float64]:
        """Return the (``n_rows``,) scores, once ``codes`` has the values of all features."""
        return self._sum(part.scores_of_codes(own, n_rows) for part, own in zip(self._parts, codes, strict=True))

    def _sum(self, scores: Iterable[npt.NDArray[np.float64]]) -> npt.NDArray[np.float64]:
        total: npt.NDArray[np.float64] | float = self._base
        for weight, of_part in zip(self._weights, scores, strict=True):
            total = total + weight * of_part
        return np.asarray(total, dtype=np.float64)
