"""Cross-validation of a ranker on arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy.typing as npt

from rankmill.binned_dataset import given_rows
from rankmill.binned_rows import BinnedRows
from rankmill.other_libraries import checked_metrics
from rankmill.ranker import Ranker
from rankmill.trainer.objectives.registry import learns_labels
from rankmill.trainer.presets import choices_line, shape_of_rows, with_preset
from rankmill.trainer.progress import verbosely
from rankmill.trainer.train_on_rows import cross_validate_rows
from rankmill.trainer.training_options import TrainingOptions
from rankmill.trainer.training_result import CrossValidation, RoundRecord
from rankmill.trainer.workers import workers_for


def cross_validate(
    ranker: Ranker,
    X: Any,  # noqa: N803 - the field's name
    y: npt.ArrayLike | None = None,
    *,
    qid: npt.ArrayLike | None = None,
    group: npt.ArrayLike | None = None,
    eval_metrics: str | list[str] | tuple[str, ...] = (),
    on_round: Callable[[int, RoundRecord], object] | None = None,
    **columns: Any,
) -> CrossValidation:
    """Cross-validate the parameters of ``ranker``: for each of its ``folds``, train on the queries of the others.

    Parameters
    ----------
    ranker
        Its parameters are used; it is not fitted.
    X, y, qid, group, eval_metrics
        As :meth:`rankmill.ranker.Ranker.fit` takes them; ``X`` may be a BinnedDataset.
    on_round
        Called with the fold (1, 2, ..) and the record of every round.
    columns
        ``sample_weight``, ``query_weight``, ``label``, ``event``, ``offset``, ``pairs`` .., as ``fit`` takes them.

    Returns
    -------
    CrossValidation
        ``best_round``, the best number of rounds, with ``mean`` and ``deviation`` of every metric; ``to_dict()`` has the
        curves.

    Raises
    ------
    InvalidParameter, TrainingDataRejected
        As ``fit``; there are fewer queries than folds.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X, qid = rng.normal(size=(300, 3)), np.repeat(np.arange(30), 10)
    >>> y = np.clip(np.round(X[:, 0] + 1), 0, 4)
    >>> found = cross_validate(Ranker(n_rounds=5, max_leaves=4, folds=3), X, y, qid=qid)
    >>> len(found.values("ndcg@10"))
    3
    """
    metrics = checked_metrics(eval_metrics)
    own = ranker.checked_options().binning
    given = given_rows(X, y, qid, group, columns, own, "cross_validate ")
    parameters = ranker.checked_parameters(given.feature_names)
    if not isinstance(given, BinnedRows):
        rows = given.rows(regression=learns_labels(parameters.objective), where="cross_validate ")
        given = BinnedRows.of_given(given, rows, own)
    data = given.training_data(parameters.objective)
    del X, given
    asked, parameters = parameters, with_preset(parameters, shape_of_rows(data).in_folds())
    with verbosely(ranker.verbose, parameters, choices_line(asked, parameters), folds_alone=True) as progress:

        def tell(record: RoundRecord) -> None:
            progress.update(record)
            if on_round is not None:
                on_round(record.fold, record)

        return cross_validate_rows(
            data, parameters, TrainingOptions(eval_metrics=metrics, n_threads=workers_for(own.n_threads), on_round=tell)
        )
