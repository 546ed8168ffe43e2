"""Read the training rows of a split, and choose what to learn from: grades, given pairs, or both."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rankmill.foundation.errors import InvalidParameter, TrainingDataRejected
from rankmill.pipeline.bins.spec import BinSpec
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.pipeline.group.query_splits import hash_ids
from rankmill.pipeline.pairs.stored_pairs import PreferencePairs
from rankmill.trainer.data.layout import BlockedBins
from rankmill.trainer.data.rows import COLUMNS, RankedRows, has_two_grades
from rankmill.trainer.data.target_encoding import features_to_encode
from rankmill.trainer.objectives.registry import learns_labels, objective_class
from rankmill.trainer.objectives.spelling import OBJECTIVES, parse_spelling
from rankmill.trainer.objectives.weights import relative_weights
from rankmill.trainer.parameters import BOTH, GRADES, PAIRS, TrainParameters

_NAMES_SALT = 0x2545F4914F6CDD1D  # says nothing about buckets and splits, which are hashes of the same ids


def read_rows(
    dataset: Dataset, split: str, binspec: BinSpec, parameters: TrainParameters, columns: RankedRows | None = None
) -> RankedRows:
    """Return the rows of ``split`` with all columns that the objective can use; bins are mapped from the dataset.

    ``columns`` is the result of :func:`read_columns` if they have been read already.
    """
    encoded = features_to_encode(binspec, parameters.encode_above)
    return replace(
        read_columns(dataset, split, parameters) if columns is None else columns,
        bins=BlockedBins(dataset.bin_words(split, binspec.digest), binspec.n_bins),
        codes={name: _column(dataset, split, name) for name in encoded},
    )


def categories_of(dataset: Dataset, binspec: BinSpec) -> dict[str, list[str]]:
    """Return the categorical features of the bins, with the texts of all categories in the dataset."""
    texts = dataset.vocabulary.texts
    return {name: [*texts.get(name, {})] for name in binspec.categories}


def read_columns(dataset: Dataset, split: str, parameters: TrainParameters) -> RankedRows:
    """Return the rows of ``split`` without their bins."""
    queries = dataset.queries(split)
    unused = {"label": not learns_labels(parameters.objective), "position": not parameters.corrects_clicks}
    columns: dict[str, Any] = {
        field: _column(dataset, split, column.name)
        for field, column in COLUMNS.items()
        if column.name in dataset.optional_columns and not unused.get(column.name)
    }
    return RankedRows(
        grades=_column(dataset, split, "grade").astype(np.int32, copy=False),
        starts=queries.starts,
        bins=(),
        weights=_unless_equal(columns.pop("weights", None)),
        query_weights=_unless_equal(queries.weights),
        names=hash_ids(queries.qid, _NAMES_SALT).view(np.int64),
        pairs=dataset.pairs(split),
        goals={name: _column(dataset, split, name) for name in dataset.goals},
        **columns,
    )


def _column(dataset: Dataset, split: str, name: str) -> npt.NDArray[Any]:
    values: npt.NDArray[Any] = dataset.rows(split, [name]).column(0).to_numpy()
    _give_back()
    return values


def _unless_equal(weights: npt.NDArray[np.float64] | None) -> npt.NDArray[np.float64] | None:
    """Return None if all weights are equal, as only ratios matter."""
    alike = weights is not None and len(weights) > 0 and weights[0] > 0.0 and bool((weights == weights[0]).all())
    return None if alike else weights


def _give_back() -> None:
    """Return the memory that Arrow's readers have freed to the system: some 20 MB that they would keep."""
    pa.default_memory_pool().release_unused()


LEARNT_FROM = "learnt_from"  # in the model, if the data had pairs and the objective accepts pairs


def resolved(rows: RankedRows, parameters: TrainParameters) -> TrainParameters:
    """Return the parameters with ``learn_from`` resolved for these training rows: grades, pairs or both.

    Default: grades if some query has two different grades, otherwise pairs if there are any.

    Raises
    ------
    InvalidParameter
        ``learn_from`` asks for pairs, but the objective does not accept pairs.
    TrainingDataRejected
        ``learn_from`` asks for pairs, but there are none.
    """
    asked, takes = parameters.learn_from, takes_pairs(parameters)
    if asked in {PAIRS, BOTH}:
        if not takes:
            known = ", ".join(sorted(name for name in OBJECTIVES if objective_class(name).learns.pairs))
            raise InvalidParameter(
                f"learn_from {asked!r}: {parameters.objective} cannot learn from pairs; use one of {known}"
            )
        if not given_pairs(rows):
            raise TrainingDataRejected(
                f"learn_from {asked!r}: the train split has no pairs; ingest its files again with them: rankmill data"
                " ingest SRC --pairs PAIRS -o DATASET --overwrite (in Python: pairs= of Ranker.fit), or learn from "
                "grades"
            )
        return parameters
    pairs_alone = not asked and takes and given_pairs(rows) > 0 and not has_two_grades(rows.grades, rows.starts)
    return replace(parameters, learn_from=PAIRS if pairs_alone else GRADES)


def rows_learnt_from(rows: RankedRows, parameters: TrainParameters) -> RankedRows:
    """Return ``rows`` with the pairs of the loss; without pairs the loss uses those that the grades define.

    ``parameters`` are `resolved`; if ``learn_from`` is still empty, given pairs are used.
    """
    if rows.pairs is None or parameters.learn_from in {"", PAIRS}:
        return rows
    if parameters.learn_from == GRADES:
        return replace(rows, pairs=None)
    return replace(rows, pairs=_with_pairs_of_grades(rows, rows.pairs, parameters.pairs_weight))


def what_is_learnt_from(rows: RankedRows, parameters: TrainParameters) -> str:
    """Return a sentence that says what the `resolved` parameters learn from ``rows``."""
    n, name = given_pairs(rows), parameters.objective
    if parameters.learn_from == PAIRS:
        return f"learning from the {n:,} pairs, not from grades"
    if parameters.learn_from == BOTH:
        return f"learning from grades and from the {n:,} pairs (pairs_weight {parameters.pairs_weight:g})"
    text = "learning from " + ("labels" if rows.labels is not None else "grades")
    if parameters.goals:
        weights = [("the grades", parameters.grade_weight), *parameters.goals.items()]
        text = f"learning from {', '.join(f'{each} ({weight:.3g})' for each, weight in weights)}"
    if not n:
        return text
    if not takes_pairs(parameters):
        return f"{text}; the {n:,} pairs are NOT used: {name} cannot learn from pairs"
    return f"{text}; the {n:,} pairs are NOT used: set learn_from to pairs or both (--learn-from) to use them"


def learnt_from_facts(rows: RankedRows, parameters: TrainParameters) -> dict[str, str]:
    """Return the fact that the model stores about it; empty if there was no choice."""
    return {LEARNT_FROM: parameters.learn_from} if given_pairs(rows) and takes_pairs(parameters) else {}


def given_pairs(rows: RankedRows) -> int:
    """Return the number of pairs given with the rows."""
    return 0 if rows.pairs is None else len(rows.pairs.better)


def takes_pairs(parameters: TrainParameters) -> bool:
    """Whether the objective can learn from given pairs."""
    return objective_class(parse_spelling(parameters.objective)[0]).learns.pairs


def _with_pairs_of_grades(rows: RankedRows, given: PreferencePairs, pairs_weight: float) -> PreferencePairs:
    """Return all pairs of different grades, of weight 1, and the given ones, of weight ``pairs_weight`` on average."""
    weight = pairs_weight * relative_weights(given.weight, len(given.weight))
    parts: list[tuple[np.ndarray, ...]] = []
    sizes = np.zeros(rows.n_queries, dtype=np.int64)
    for q in range(rows.n_queries):
        first, last = int(rows.starts[q]), int(rows.starts[q + 1])
        grades = rows.grades[first:last]
        better, worse = np.nonzero(grades[:, None] > grades[None, :])
        own = slice(int(given.starts[q]), int(given.starts[q + 1]))
        sizes[q] = len(better) + own.stop - own.start
        certain = np.ones(len(better))
        parts.append(
            (
                np.concatenate([better + first, given.better[own]]),
                np.concatenate([worse + first, given.worse[own]]),
                np.concatenate([certain, weight[own]]),
                np.concatenate([certain, given.probability[own]]),
            )
        )
    better, worse, weights, probability = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    return PreferencePairs(
        better=better.astype(np.int32),
        worse=worse.astype(np.int32),
        weight=weights,
        probability=probability,
        starts=np.concatenate(([0], np.cumsum(sizes))),
    )
