"""Refit the leaves of a fitted ranker on arrays."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from rankmill.array_rows import Extras, rows_of
from rankmill.arrays import check_same_rows, queries_of, with_queries
from rankmill.feature_table import matrix_for
from rankmill.ranker import Ranker
from rankmill.trainer.leaf_refits import bins_of_cuts, check_refittable, refit_leaves_on_rows
from rankmill.trainer.objectives.registry import learns_labels
from rankmill.trainer.rows import TrainingData
from rankmill.trainer.training_options import TrainingOptions
from rankmill.trainer.workers import workers_for


def refit_leaves(
    ranker: Ranker,
    X: Any,  # noqa: N803 - the field's name
    y: npt.ArrayLike,
    *,
    qid: npt.ArrayLike | None = None,
    group: npt.ArrayLike | None = None,
    decay: float = 0.9,
    **columns: Any,
) -> Ranker:
    """Return a ranker with the trees of ``ranker`` and leaf values ``decay * old + (1 - decay) * new``, new from these rows.

    Parameters
    ----------
    ranker
        Fitted; it stays as it is.  Its model knows how it was trained, and the leaves are refitted with the same options.
    X, y, qid, group
        As :meth:`rankmill.ranker.Ranker.fit` takes them; ``X`` has the features of the model.
    decay
        In 0 .. 1; 1 changes nothing.
    columns
        ``sample_weight``, ``query_weight``, ``label``, ``event``, ``offset``, ``pairs`` .., as ``fit`` takes them.

    Raises
    ------
    InvalidParameter
        The model holds several models, was converted from another tool, or was trained with ``step_search`` or by ``gbrank``.
    TrainingDataRejected
        The objective cannot learn from the rows.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X, qid = rng.normal(size=(300, 3)), np.repeat(np.arange(30), 10)
    >>> y = np.clip(np.round(X[:, 0] + 1), 0, 4)
    >>> ranker = Ranker(n_rounds=5, max_leaves=4, verbose=0).fit(X, y, qid=qid)
    >>> again = refit_leaves(ranker, X[:150], y[:150], qid=qid[:150], decay=0.5)
    >>> bool((again.forest_.node_feature == ranker.forest_.node_feature).all())
    True
    """
    forest = ranker.fitted_forest("refit_leaves")
    parameters = check_refittable(forest)
    check_same_rows({"X": X, "y": y, "qid": qid, **columns})
    _, qid = with_queries(X, qid, group, "refit_leaves ")
    values, n_threads = matrix_for(forest, X), workers_for(ranker.n_threads)
    rows = rows_of(
        values,
        y,
        queries_of(qid, group, len(values), "refit_leaves "),
        Extras.of(columns),
        regression=learns_labels(parameters.objective),
    )
    spec = bins_of_cuts(forest)
    data = TrainingData(
        train=rows.ranked(spec, n_threads),
        edges=[feature.edges for feature in spec.features],
        categories=spec.categories,
        feature_names=forest.feature_names,
        max_grade=int(rows.grades.max(initial=0)),
        info={"dataset_digest": rows.digest},
    )
    found = refit_leaves_on_rows(forest, data, decay, TrainingOptions(n_threads=n_threads))
    return Ranker.from_model(found.forest)
