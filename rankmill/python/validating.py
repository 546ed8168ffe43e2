"""Cross-validation and feature selection of a ranker on arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy.typing as npt

from rankmill.foundation.errors import InvalidParameter
from rankmill.pipeline.bins.spec import BinSpec
from rankmill.python.binned_dataset import binned_or_given
from rankmill.python.binned_rows import BinnedRows
from rankmill.python.eval_sets import eval_sets_of
from rankmill.python.given_rows import FitColumns, GivenRows
from rankmill.python.net_rows import rows_for_net
from rankmill.python.other_libraries import checked_metrics, keywords_of, unknown_argument
from rankmill.python.ranker import Ranker, warn_of_gains
from rankmill.trainer.candidates.feature_selection import FeatureSelection, select_features_of_rows
from rankmill.trainer.nets.cross_validating import cross_validate_net
from rankmill.trainer.nets.options import NET
from rankmill.trainer.objectives.registry import learns_labels
from rankmill.trainer.options import SelectOptions
from rankmill.trainer.parameters import TrainParameters
from rankmill.trainer.presets import alone_line, choices_line, shape_of_rows, with_preset
from rankmill.trainer.progress import TrainingProgress, to_stderr, verbosely
from rankmill.trainer.rounds.train_on_rows import cross_validate_rows
from rankmill.trainer.rounds.training_result import CrossValidation, RoundRecord
from rankmill.trainer.team import workers_for
from rankmill.trainer.training_options import TrainingOptions


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
    """Cross-validate the parameters of ``ranker``, of trees or a net.

    For each of its ``folds``, it trains on the queries of the others.

    Parameters
    ----------
    ranker
        Its parameters are used; it is not fitted.
    X, y, qid, group, eval_metrics
        As :meth:`rankmill.python.ranker.Ranker.fit` takes them; ``X`` may be a BinnedDataset.
    on_round
        Called with the fold (1, 2, ..) and the record of every round.
    columns
        ``sample_weight``, ``query_weight``, ``label``, ``event``, ``offset``, ``pairs`` .., as ``fit`` takes them.

    Returns
    -------
    CrossValidation
        ``best_round``, the best number of rounds, or epochs of a net, with ``mean`` and ``deviation`` of every metric;
        ``to_dict()`` has the curves.

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
    _check_names(ranker, columns, cross_validate)
    if ranker.checked_kind().model == NET:
        rows = binned_or_given(X, y, qid, group, columns, own, _CROSS_VALIDATE)
        options = ranker.net_options(rows.feature_names)
        of_net = rows_for_net(rows, options, _CROSS_VALIDATE)
        del X, rows
        warn_of_gains(of_net.train.rows.grades, options.gain, 3)
        epochs = replace(options.losses(), n_rounds=options.epochs, folds=ranker.folds)
        with verbosely(ranker.verbose, epochs, folds_alone=True, step="epoch") as progress:
            return cross_validate_net(
                of_net, options, epochs.folds, eval_metrics=metrics, n_threads=workers_for(own.n_threads),
                on_round=_reporting(progress, on_round),
            )  # fmt: skip
    given, parameters = _binned(
        ranker, binned_or_given(X, y, qid, group, columns, own, _CROSS_VALIDATE), _CROSS_VALIDATE
    )
    data = given.training_data(parameters.objective)
    del X, given
    asked, parameters = parameters, with_preset(parameters, shape_of_rows(data).in_folds())
    warn_of_gains(data.train.grades, parameters.gain, 3)
    choices = choices_line(asked, parameters), alone_line(asked)
    with verbosely(ranker.verbose, parameters, *choices, folds_alone=True) as progress:
        report, n_threads = _reporting(progress, on_round), workers_for(own.n_threads)
        return cross_validate_rows(
            data, parameters, TrainingOptions(eval_metrics=metrics, n_threads=n_threads, on_round=report)
        )


def _reporting(
    progress: TrainingProgress, on_round: Callable[[int, RoundRecord], object] | None
) -> Callable[[RoundRecord], None]:
    def report(record: RoundRecord) -> None:
        progress.update(record)
        if on_round is not None:
            on_round(record.fold, record)

    return report


def select_features(
    ranker: Ranker,
    X: Any,  # noqa: N803 - the field's name
    y: npt.ArrayLike | None = None,
    *,
    eval_set: Any,
    qid: npt.ArrayLike | None = None,
    group: npt.ArrayLike | None = None,
    rules: SelectOptions | None = None,
    **columns: Any,
) -> FeatureSelection:
    """Find a small set of features that ranks ``eval_set`` about as well as all.

    It trains, permutes each feature within queries, drops features, and repeats.

    Parameters
    ----------
    ranker
        Its parameters are used, but for ``refit`` and ``rounds_by``; it is not fitted.
    X, y, qid, group, eval_set
        As :meth:`rankmill.python.ranker.Ranker.fit` takes them; ``X`` may be a BinnedDataset.  The first eval set
        chooses rounds and features, so judge on other rows.
    rules
        How many features each step drops, and the tolerance.
    columns
        ``sample_weight``, ``query_weight``, ``label``, ``event``, ``offset``, ``pairs`` .., as ``fit`` takes them.

    Returns
    -------
    FeatureSelection
        ``features``, the recommended names; ``steps`` with the metric of every number of features; ``forest``, the
        model of the recommended step.

    Raises
    ------
    InvalidParameter, TrainingDataRejected
        As ``fit``.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X, qid = rng.normal(size=(600, 4)), np.repeat(np.arange(60), 10)
    >>> y = np.clip(np.round(X[:, 2] + 1), 0, 4)
    >>> ranker = Ranker(n_rounds=5, max_leaves=4, verbose=0)
    >>> found = select_features(ranker, X[:400], y[:400], qid=qid[:400], eval_set=(X[400:], y[400:], qid[400:]))
    >>> found.features
    ('f2',)
    """
    own = ranker.checked_options()
    _check_names(ranker, columns, select_features)
    train, parameters = _binned(
        ranker, binned_or_given(X, y, qid, group, columns, own.binning, _SELECT_FEATURES), _SELECT_FEATURES
    )
    eval_sets = eval_sets_of(eval_set, {}, train.expected, lambda rows: _binned(ranker, rows, "", train.binspec)[0])
    data = train.training_data(parameters.objective, eval_sets)
    warn_of_gains(data.train.grades, parameters.gain, 3)
    if (note := alone_line(parameters)) and own.verbose:
        to_stderr(note)
    options = TrainingOptions(
        n_threads=workers_for(own.binning.n_threads), on_message=to_stderr if own.verbose else None
    )
    return select_features_of_rows(data, parameters, rules, options)


_CROSS_VALIDATE, _SELECT_FEATURES = "cross_validate ", "select_features "  # begin messages


def _check_names(ranker: Ranker, columns: Iterable[str], function: Callable[..., object]) -> None:
    """Raise InvalidParameter for an argument that ``function`` does not take, and for a ranker with a cluster."""
    if ranker.cluster is not None:
        raise InvalidParameter(
            f"{function.__name__} works on this machine alone; leave out the ranker's parameter cluster"
        )
    known = [*keywords_of(function), *FitColumns.__annotations__]
    for name in columns:
        if name not in known:
            raise InvalidParameter(unknown_argument(name, known, ranker.get_params(), function.__name__))


def _binned(
    ranker: Ranker, given: BinnedRows | GivenRows, where: str, reference: BinSpec | None = None
) -> tuple[BinnedRows, TrainParameters]:
    """Return the rows with bins and the parameters of ``ranker`` for their features.

    The bins are those of ``reference`` if given.
    """
    parameters = ranker.checked_parameters(given.feature_names)
    regression, own = learns_labels(parameters.objective), ranker.checked_options().binning
    return BinnedRows.of_given(given, own, regression=regression, reference=reference, where=where), parameters
