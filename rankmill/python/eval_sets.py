"""The eval sets of :meth:`rankmill.python.ranker.Ranker.fit`, in all the forms that it takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, TypeVar

import numpy as np

from rankmill.foundation.errors import InvalidParameter, TrainingDataRejected
from rankmill.python.arrays import names_of
from rankmill.python.binned_dataset import BinnedDataset
from rankmill.python.binned_rows import BinnedRows
from rankmill.python.given_rows import Expected, GivenRows, RowsAtOnce, unpacked
from rankmill.trainer.rounds.training_result import HOLDOUT, TRAIN

EvalSet: TypeAlias = "RowsAtOnce | BinnedDataset"
Rows = TypeVar("Rows")


def eval_sets_of(
    eval_set: Any,
    more: Mapping[str, Any],
    expected: Expected,
    taken: Callable[[GivenRows | BinnedRows], Rows],
) -> list[tuple[str, Rows]]:
    """Return (name, rows) of every set, with the ``expected`` features, as ``taken`` makes them for the training.

    ``more`` has the other arguments of ``fit``; ``goals`` that are columns are those of sets, too, that are frames and
    name no others.

    Raises
    ------
    InvalidParameter, TrainingDataRejected
        Arguments conflict, or a set is invalid.
    """
    sets = [] if eval_set is None else list(eval_set) if _is_several(eval_set) else [eval_set]
    eval_names, eval_qid, eval_group = (more.get(name) for name in ("eval_names", "eval_qid", "eval_group"))
    goals = None if isinstance(more.get("goals"), Mapping) else more.get("goals")
    if eval_names is None:
        eval_names = ["valid"] if len(sets) == 1 else [f"valid_{i}" for i in range(len(sets))]
    for what, given in (("eval_names", eval_names), ("eval_qid", eval_qid), ("eval_group", eval_group)):
        if given is not None and len(given) != len(sets):
            raise InvalidParameter(f"{what} has {len(given)} entries for {len(sets)} eval sets")
    for i, name in enumerate(eval_names):
        if name in {TRAIN, HOLDOUT}:
            raise InvalidParameter(f"eval_names: {name!r} is the name of other rows in history_; choose another")
        if name in eval_names[:i]:
            raise InvalidParameter(f"eval_names: {name!r} is there twice; choose another")
    found = []
    for i, (name, one) in enumerate(zip(eval_names, sets, strict=True)):
        if not isinstance(one, BinnedDataset) and (not isinstance(one, tuple) or len(one) not in {2, 3}):
            raise InvalidParameter(
                f"an eval set must be (X, y, qid), or (X, y) with eval_qid or eval_group, or"
                f" (X, y, {{'qid': .., 'offset': ..}}), or a BinnedDataset; {name!r} is not"
            )
        try:
            if isinstance(one, BinnedDataset):
                found.append((name, taken(one.binned)))
                continue
            X, y, qid, group, columns = unpacked(one)  # noqa: N806 - the field's name
            if goals is not None and columns.get("goals") is None:
                columns = {**columns, "goals": goals}
            if qid is None and group is None:
                qid = None if eval_qid is None else eval_qid[i]
                group = None if eval_group is None else eval_group[i]
            found.append((name, taken(GivenRows.of_arrays(X, y, qid, group, columns, expected=expected))))
        except (InvalidParameter, TrainingDataRejected) as error:
            raise type(error)(f"eval set {name!r}: {error}") from None
    return found


def _is_several(eval_set: Any) -> bool:
    """Whether ``eval_set`` is a list or tuple of sets, rather than one set.

    One set is a tuple of arrays that begins with a table.
    """
    if not isinstance(eval_set, tuple):
        return isinstance(eval_set, list)
    return all(
        isinstance(one, BinnedDataset) or (isinstance(one, tuple) and len(one) in {2, 3} and _is_table(one[0]))
        for one in eval_set
    )


def _is_table(values: Any) -> bool:
    if names_of(values) is not None:
        return True
    if isinstance(values, list | tuple):  # a list of rows, which may be ragged
        return bool(values) and isinstance(values[0], list | tuple | np.ndarray)
    return len(getattr(values, "shape", ())) == 2
