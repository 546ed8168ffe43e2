"""Rows as a net learns from them: the values of their features instead of bins."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rankmill.foundation.errors import InvalidParameter
from rankmill.python.binned_rows import BinnedRows
from rankmill.python.categorical_columns import texts_alone
from rankmill.python.given_rows import Expected, GivenRows
from rankmill.trainer.nets.options import NetOptions
from rankmill.trainer.nets.train_on_dataset import split_for_net
from rankmill.trainer.nets.training import NetData, NetRows
from rankmill.trainer.objectives.registry import learns_labels


def rows_for_net(given: GivenRows | BinnedRows, options: NetOptions, where: str = "") -> NetData:
    """Return rows to train on; ``where`` begins messages about their queries.

    Raises
    ------
    InvalidParameter
        They have bins alone.
    TrainingDataRejected
        As :meth:`rankmill.python.given_rows.GivenRows.rows`.
    """
    if isinstance(given, BinnedRows):
        if given.source is None:
            raise InvalidParameter(
                "a net needs the values of the features, and a BinnedDataset of arrays has their bins alone; give X "
                "and y, or BinnedDataset.open(..) of a dataset"
            )
        return split_for_net(*given.source, options)
    rows = given.rows(regression=learns_labels(options.objective), where=where)
    assert isinstance(rows.values, np.ndarray)  # noqa: S101 - given at once
    return NetData(
        train=NetRows(rows.values, rows.rows),
        feature_names=given.feature_names,
        max_grade=int(rows.rows.grades.max(initial=0)),
        categories={name: [*texts] for name, texts in given.table.texts.items()},
        goals={name: int(grades.max(initial=0)) for name, grades in rows.rows.goals.items()},
        info={"dataset_digest": rows.digest},
    )


def expected_of(given: GivenRows | BinnedRows) -> Expected:
    """Return the features that eval sets have."""
    if isinstance(given, BinnedRows):
        return given.expected
    values, names = given.table.values, given.table.names
    assert isinstance(values, np.ndarray)  # noqa: S101 - given at once
    texts = {name: texts_alone(of, values[:, names.index(name)]) for name, of in given.table.texts.items()}
    return names, texts


def with_eval_set(data: NetData, name: str, eval_set: NetData) -> NetData:
    """Return ``data`` with the rows of ``eval_set`` to decide which epoch is kept, as ``name`` in records.

    Raises
    ------
    InvalidParameter
        They have other features, or lack a goal.
    """
    if tuple(eval_set.feature_names) != tuple(data.feature_names) or {*eval_set.categories} != {*data.categories}:
        raise InvalidParameter(f"eval set {name!r}: its features are not those of the training data")
    return replace(
        data,
        valid=eval_set.train,
        valid_name=name,
        max_grade=max(data.max_grade, eval_set.max_grade),
        goals={goal: max(highest, eval_set.goals.get(goal, 0)) for goal, highest in data.goals.items()},
    )
