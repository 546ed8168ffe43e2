"""Eval sets in the forms in which users hand them over, and the rows of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from rankmill.arrays import ArrayRows, check_same_rows, matrix_of, names_of, queries_of, rows_of, with_queries
from rankmill.extras import Extras
from rankmill.foundation.errors import InvalidParameter, TrainingDataRejected

EvalSet: TypeAlias = (
    "tuple[npt.ArrayLike, npt.ArrayLike] | tuple[npt.ArrayLike, npt.ArrayLike, npt.ArrayLike | Mapping[str, Any]]"
    # X, y, perhaps qid, or what is given by name
)


def eval_sets_of(
    eval_set: Any,
    eval_names: Sequence[str] | None,
    eval_qid: Sequence[Any] | None,
    eval_group: Sequence[Any] | None,
    names: tuple[str, ...],
    *,
    regression: bool = False,
) -> list[tuple[str, ArrayRows]]:
    """Return (name, rows) of every set; see :meth:`rankmill.ranker.Ranker.fit` for the forms in which they may come.

    Raises
    ------
    InvalidParameter, TrainingDataRejected
        Arguments do not go together, or a set is not what it should be.
    """
    sets = [] if eval_set is None else list(eval_set) if _is_several(eval_set) else [eval_set]
    if eval_names is None:
        eval_names = ["valid"] if len(sets) == 1 else [f"valid_{i}" for i in range(len(sets))]
    for what, given in (("eval_names", eval_names), ("eval_qid", eval_qid), ("eval_group", eval_group)):
        if given is not None and len(given) != len(sets):
            raise InvalidParameter(f"{what} has {len(given)} entries for {len(sets)} eval sets")
    found = []
    for i, (name, parts) in enumerate(zip(eval_names, sets, strict=True)):
        if not isinstance(parts, tuple) or len(parts) not in {2, 3}:
            raise InvalidParameter(
                f"an eval set must be (X, y, qid), or (X, y) with eval_qid or eval_group, or"
                f" (X, y, {{'qid': .., 'offset': ..}}); {name!r} is not"
            )
        more: dict[str, Any] = {} if len(parts) == 2 else dict(parts[2]) if _is_by_name(parts[2]) else {"qid": parts[2]}
        qid, group = more.pop("qid", None), more.pop("group", None)
        if qid is None and group is None:
            qid = None if eval_qid is None else eval_qid[i]
            group = None if eval_group is None else eval_group[i]
        where = f"eval set {name!r}: "
        try:
            check_same_rows({"X": parts[0], "y": parts[1], "qid": qid, **more})
            _, qid = with_queries(parts[0], qid, group)
            values = matrix_of(parts[0], names)
            extras = Extras.of(more)
            rows = rows_of(values, parts[1], queries_of(qid, group, len(values)), extras, regression=regression)
            found.append((name, rows))
        except (InvalidParameter, TrainingDataRejected) as error:
            raise type(error)(f"{where}{error}") from None
    return found


def _is_by_name(part: object) -> bool:
    return isinstance(part, Mapping)


def _is_several(eval_set: Any) -> bool:
    """Tell a list or tuple of eval sets from one set, a tuple of arrays of which the first is a table."""
    if not isinstance(eval_set, tuple):
        return isinstance(eval_set, list)
    return all(isinstance(one, tuple) and len(one) in {2, 3} and _is_table(one[0]) for one in eval_set)


def _is_table(values: Any) -> bool:
    if names_of(values) is not None:
        return True
    if isinstance(values, list | tuple):  # of rows, which may be ragged and so have no shape
        return bool(values) and isinstance(values[0], list | tuple | np.ndarray)
    return len(getattr(values, "shape", ())) == 2
