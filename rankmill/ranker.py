"""A ranker for arrays in memory, with the habits of scikit-learn and of LightGBM."""

from __future__ import annotations

import inspect
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, Never, TypeAlias

import numpy as np
import numpy.typing as npt

from rankmill.arrays import (
    ArrayRows,
    check_same_rows,
    directions_by_name,
    made_up_names,
    matrix_of,
    queries_of,
    rows_of,
    with_queries,
)
from rankmill.eval_sets import EvalSet, eval_sets_of
from rankmill.extras import Extras
from rankmill.foundation.errors import InvalidParameter
from rankmill.foundation.scalars import whole_number
from rankmill.peers import checked_callbacks, checked_metrics, refuse_function, unknown_argument, unknown_name
from rankmill.pipeline.binning import MIN_MAX_BIN
from rankmill.pipeline.binspec import BinSpec, matrix_bins
from rankmill.pipeline.quantiles import MAX_BIN
from rankmill.routing import Routed, keywords_of
from rankmill.scorer.forest import Forest
from rankmill.scorer.metrics import Policy, parse_metric
from rankmill.scorer.metrics.queries import PreparedQueries
from rankmill.scorer.predict import predict
from rankmill.trainer.base_model import BaseModel, after_base
from rankmill.trainer.boosting import RankedRows, RoundRecord
from rankmill.trainer.fitting import fit
from rankmill.trainer.history import CrossValidation
from rankmill.trainer.learnt_from import given_pairs, settled, what_is_learnt_from
from rankmill.trainer.objectives.registry import learns_labels
from rankmill.trainer.objectives.user import spelled
from rankmill.trainer.parameters import GRADES, TrainParameters
from rankmill.trainer.progress import verbosely
from rankmill.trainer.workers import workers_for

Model: TypeAlias = "Ranker | Forest | str | os.PathLike[str]"

IMPORTANCES = ("gain", "split")


class Ranker(Routed):
    """Gradient-boosted trees on arrays: ``fit`` takes features, grades and query ids; ``predict`` gives scores.

    Parameters are those of :class:`rankmill.trainer.parameters.TrainParameters`, numbers of any kind among them, and

    monotone
        1 where scores may never fall with a feature, -1 where they may never rise: ``{"bm25": 1}`` by name,
        ``{0: 1}`` by column, or a list with a number for every column.
    max_bin
        Value bins of a feature, 15 to 255.
    n_threads
        0: the cores this process may use.  Never changes the model.
    importance_type
        What ``feature_importances_`` counts: the ``gain`` of splits, or each ``split`` as one.
    verbose
        1 (or True): a line on stderr about every 10 seconds, so that short trainings say nothing; N above 1: a line after
        every N rounds; 0: nothing.  Never changes the model.
    objective
        Besides names also a function ``(scores, targets, starts, g, h)`` that writes derivatives and curvatures: see
        :class:`rankmill.trainer.objectives.user.UserObjective`.
    delta
        A function ``(grades, i, j)``, what swapping the ranks i and j is worth, for ``objective="lambdamart"`` in place of
        the metric's: see :func:`rankmill.trainer.objectives.user.remember_delta`.

    Attributes
    ----------
    forest_
        The trained :class:`rankmill.scorer.forest.Forest`; ``forest_.save(path)`` writes the model file.
    best_round_
        Rounds that were kept.
    history_
        One :class:`rankmill.trainer.boosting.RoundRecord` a round.
    cross_validation_
        What said how many rounds to take, where ``rounds_by`` is ``cv``.
    loaded_from_
        Only after :meth:`load`: the version, such as ``web@7``, or the file.
    n_features_in_, feature_names_in_
        Columns of ``X``; names only where it had some.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> X, qid = rng.normal(size=(300, 3)), np.repeat(np.arange(30), 10)
    >>> y = np.clip(np.round(X[:, 0] + 1), 0, 4)
    >>> ranker = Ranker(n_rounds=5, max_leaves=4).fit(X, y, qid=qid)
    >>> ranker.predict(X).shape
    (300,)
    """

    max_bin: int
    n_threads: int
    importance_type: str
    verbose: int

    def __init__(
        self,
        *,
        objective: str | Callable[..., object] = "lambdamart",
        learn_from: str = "",
        pairs_weight: float = 1.0,
        metric: str = "ndcg@10",
        stop_metric: str = "",
        gain: str = "exp",
        n_rounds: int = 500,
        learning_rate: float = 0.1,
        early_stopping_rounds: int = 50,
        keep_rounds: str = "",
        min_improvement: float = 0.0,
        rounds_by: str = "valid",
        holdout_fraction: float = 0.2,
        folds: int = 5,
        step_search: str = "none",
        criterion: str = "",
        ole_features: int = 8,
        ole_pairs: float = 1.0,
        leaf: str = "",
        grow: str = "best_first",
        max_leaves: int = 31,
        max_depth: int = 0,
        min_rows_in_leaf: int = 20,
        min_hessian_in_leaf: float = 1e-3,
        lambda_l2: float = 0.0,
        min_gain: float = 0.0,
        monotone: Mapping[str, int] | Mapping[int, int] | Sequence[int] | None = None,
        feature_fraction: float = 1.0,
        query_fraction: float = 1.0,
        row_fraction: float = 1.0,
        sigma: float = 1.0,
        truncation: int = 30,
        lambda_normalisation: bool = True,
        seed: int = 7,
        max_bin: int = MAX_BIN,
        n_threads: int = 0,
        importance_type: str = "gain",
        verbose: int = 1,
        delta: Callable[..., Any] | None = None,
        **unknown: Never,
    ) -> None:
        given = dict(locals())
        self._refuse_unknown(unknown)
        for name in self._parameter_names():
            setattr(self, name, given[name])

    @classmethod
    def _parameter_names(cls) -> list[str]:
        return keywords_of(cls.__init__)

    @classmethod
    def _refuse_unknown(cls, given: Mapping[str, object]) -> None:
        known = cls._parameter_names()
        for name in given:
            if name not in known:
                raise InvalidParameter(unknown_name("parameter", name, known))

    def __repr__(self) -> str:
        """Return the parameters that differ from their defaults."""
        defaults = {name: p.default for name, p in inspect.signature(type(self).__init__).parameters.items()}
        changed = [
            f"{name}={value!r}"
            for name, value in self.get_params().items()
            if value is not defaults[name] and not (np.isscalar(value) and value == defaults[name])
        ]
        return f"{type(self).__name__}({', '.join(changed)})"

    def get_params(self, deep: bool = True) -> dict[str, Any]:  # noqa: ARG002, FBT001, FBT002 - scikit-learn's signature
        """Return the parameters by name, as scikit-learn's ``clone`` and searches ask for them."""
        return {name: getattr(self, name) for name in self._parameter_names()}

    def set_params(self, **parameters: Any) -> Ranker:
        """Set parameters by name and return self; InvalidParameter for an unknown one."""
        self._refuse_unknown(parameters)
        for name, value in parameters.items():
            setattr(self, name, value)
        return self

    def fit(
        self,
        X: Any,  # noqa: N803 - the field's name
        y: npt.ArrayLike,
        *,
        qid: npt.ArrayLike | None = None,
        group: npt.ArrayLike | None = None,
        sample_weight: npt.ArrayLike | None = None,
        query_weight: npt.ArrayLike | Mapping[Any, float] | None = None,
        label: npt.ArrayLike | None = None,
        event: npt.ArrayLike | None = None,
        offset: npt.ArrayLike | None = None,
        init_score: npt.ArrayLike | None = None,
        pairs: npt.ArrayLike | None = None,
        pair_weight: npt.ArrayLike | None = None,
        pair_probability: npt.ArrayLike | None = None,
        eval_set: EvalSet | Sequence[EvalSet] | None = None,
        eval_names: Sequence[str] | None = None,
        eval_qid: Sequence[npt.ArrayLike] | None = None,
        eval_group: Sequence[npt.ArrayLike] | None = None,
        eval_metrics: str | Sequence[str] = (),
        early_stopping_rounds: int | None = None,
        callbacks: Callable[[RoundRecord], bool | None] | Sequence[Callable[[RoundRecord], bool | None]] = (),
        resume: Model | None = None,
        init_model: Model | None = None,
        base_model: Model | None = None,
        **unknown: Never,
    ) -> Ranker:
        """Train and return self.

        Parameters
        ----------
        X
            (n, n_features) numbers, rounded to float32; NaN and null are missing.  A NumPy array, a list of rows, a Polars or
            pandas frame, an Arrow table.  A column ``qid`` of a frame is no feature: it stands for the argument ``qid``.
        y
            (n,) grades, whole numbers of 0 or more.  Objectives of regression take any finite numbers: if one of them is
            no whole number from 0 to 31, all are labels and no grade is known, so that metrics of rankings have no value (stop by
            ``deviance``, or give grades here and ``label`` besides).
        qid
            (n,) query of each row, numbers or strings, in any order.
        group
            Instead of ``qid``: sizes of the queries, in row order.
        sample_weight
            (n,) how much each document counts in the loss, 0 or more; only ratios matter.
        query_weight
            How much each query counts: (n,), the same in all rows of a query; or one for each query, in the order in
            which they first appear (that of ``group``); or a mapping from query id.  Only ratios matter.
        label
            (n,) what an objective of regression learns instead of ``y``, which then serves metrics.
        event
            (n,) for times as labels: 1 where the end was seen, 0 where the time is censored.
        offset, init_score
            (n,) what scores start from, by either name (LightGBM's is ``init_score``): losses and metrics see
            offset + prediction, and :meth:`predict` returns the prediction alone.
        pairs
            (p, 2) row numbers (better, worse) of one query each: preferences, for objectives of pairs.  They may contradict
            each other.  The parameter ``learn_from`` says whether they are learnt from instead of the pairs that grades make
            (``pairs``) or besides them (``both``); left out, they are used only if no query has two different grades.
        pair_weight, pair_probability
            (p,) how much each pair counts, 0 or more; and how probable it is that it holds, in [0, 1].
        eval_set
            (X, y, qid), or a list or tuple of such.  The first decides how many rounds are kept.  In the place of qid
            may stand a mapping of more: ``{"qid": qid, "offset": offset}`` with the names of these arguments.
        eval_names
            Names of the sets in ``history_``; left out: ``valid``, or ``valid_0``, ``valid_1``, ..
        eval_qid, eval_group
            Where the sets are (X, y): the query ids, or the sizes of the queries, of each of them.
        eval_metrics
            Metrics to be measured on all sets besides the stop metric, such as ``["map", "err@10"]``.
        early_stopping_rounds
            Overrides the parameter for this call.
        callbacks
            Each is called with the :class:`RoundRecord` of every round; training ends if one returns true.  One function or a
            list of them.
        resume
            A fitted ranker, a forest or a model file, trained on the same rows with the same parameters: go on until there
            are ``n_rounds`` rounds in all.  The result has the same bytes as training in one go.  Eval sets may be others.
        init_model
            The same, for ``n_rounds`` rounds more than the model has.
        base_model
            A fitted ranker, a forest or a model file, whose features are found by name: correct it.  Losses and metrics
            see its scores plus those of the new trees, and so do users: ``forest_`` holds its trees and the new ones.
            The rows may be others than those it was trained on.

        Raises
        ------
        InvalidParameter
            A parameter is out of bounds, arguments do not go together, or the model to go on from was trained in another
            way.
        TrainingDataRejected
            There are no rows, or shapes do not fit together; a feature is no number or has no name, a grade is negative,
            fractional or no number.
        """
        self._check_importance_type()
        for name in unknown:
            raise InvalidParameter(unknown_argument(name, keywords_of(type(self).fit), self._parameter_names()))
        listeners, metrics = checked_callbacks(callbacks), checked_metrics(eval_metrics)
        rows_given = {
            "X": X,
            "y": y,
            "qid": qid,
            "sample_weight": sample_weight,
            "query_weight": query_weight,
            "label": label,
        }
        check_same_rows(rows_given | {"event": event, "offset": offset, "init_score": init_score})
        given_names, qid = with_queries(X, qid, group, "fit ")
        values = matrix_of(X, given_names)
        names = given_names or made_up_names(values.shape[1])
        base = None
        if base_model is not None:
            base = BaseModel(_forest_of(base_model), names, directions_by_name(self.monotone, names))
        forest, n_rounds = self._started_from(resume, init_model, base)
        parameters, max_bin, n_threads = self.checked_parameters(names, n_rounds, early_stopping_rounds)
        extras = Extras.of(
            {
                "sample_weight": sample_weight, "query_weight": query_weight, "label": label, "event": event,
                "offset": offset, "init_score": init_score, "pairs": pairs, "pair_weight": pair_weight,
                "pair_probability": pair_probability,
            }
        )  # fmt: skip
        regression = learns_labels(parameters.objective)
        if label is not None and not regression:
            raise InvalidParameter(f"label is for objectives of regression; {parameters.objective} learns grades")
        train = rows_of(values, y, queries_of(qid, group, len(values), "fit "), extras, regression=regression)
        watched = eval_sets_of(eval_set, eval_names, eval_qid, eval_group, names, regression=regression)
        binspec = matrix_bins(names, values, max_bin, n_threads=n_threads)
        learnt = _on_top_of(base, train, binspec, n_threads)
        if given_pairs(learnt) and not self.learn_from:
            own = settled(learnt, parameters)
            if own.learn_from == GRADES:
                warnings.warn(what_is_learnt_from(learnt, own), UserWarning, stacklevel=2)
        with verbosely(self.verbose, parameters) as progress:
            result = fit(
                learnt,
                [(name, _on_top_of(base, rows, binspec, n_threads)) for name, rows in watched],
                [feature.edges for feature in binspec.features],
                names,
                parameters,
                max_grade=max(int(rows.grades.max(initial=0)) for rows in (train, *(rows for _, rows in watched))),
                eval_metrics=metrics,
                info={"dataset_digest": train.digest, "binspec_digest": binspec.digest},
                resume=forest,
                n_threads=n_threads,
                on_round=_all_of([progress.update, *listeners]),
                on_fold=lambda fold, record: progress.update(record, fold, "fold"),
            )
        self.__dict__.pop("loaded_from_", None)
        self.forest_: Forest = result.forest if base is None else base.joined(result.forest)
        self.best_round_: int = result.best_round
        self.history_: tuple[RoundRecord, ...] = result.history
        self.cross_validation_: CrossValidation | None = result.cross_validation
        self.n_features_in_: int = len(names)
        if given_names is not None:
            self.feature_names_in_: npt.NDArray[np.object_] = np.array(given_names, dtype=object)
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_
        return self

    @classmethod
    def load(cls, model: str | os.PathLike[str], *, registry: str | os.PathLike[str] | None = None) -> Ranker:
        """Return the fitted ranker in a model file or a registry: see :func:`rankmill.loading.load_model`."""
        from rankmill.loading import load_forest

        forest, name = load_forest(model, registry)
        return cls.from_forest(forest, name)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model file ``path``, which :meth:`load` and every ``--model`` take, in one step; it holds no history."""
        self.fitted("save").save(path)

    @classmethod
    def from_forest(cls, forest: Forest, name: str = "") -> Ranker:
        """Return a fitted ranker with ``forest``, the parameters that it was trained with, and no history."""
        known = cls._parameter_names()
        ranker = cls(**{key: value for key, value in forest.parameters.items() if key in known})  # type: ignore[arg-type]
        ranker.forest_, ranker.best_round_, ranker.history_, ranker.cross_validation_ = (
            forest,
            forest.n_rounds,
            (),
            None,
        )
        ranker.loaded_from_ = name
        ranker.n_features_in_ = forest.n_features
        if forest.feature_names != made_up_names(forest.n_features):
            ranker.feature_names_in_ = np.array(forest.feature_names, dtype=object)
        return ranker

    def predict(self, X: Any, *, n_rounds: int | None = None) -> npt.NDArray[np.float64]:  # noqa: N803
        """Return scores (n,) float64 of ``X`` (n, n_features), without offsets; ``n_rounds`` takes the first rounds only.

        Columns of a frame are found by name.

        Raises
        ------
        InvalidParameter
            The ranker has not been fitted.
        TrainingDataRejected
            ``X`` lacks features, has another number of them, or holds something else than numbers.
        """
        forest = self.fitted("predict")
        values = matrix_of(X, forest.feature_names)
        return predict(forest, values, n_rounds=n_rounds, n_threads=workers_for(self.n_threads))

    def score(
        self,
        X: Any,  # noqa: N803
        y: npt.ArrayLike,
        *,
        qid: npt.ArrayLike | None = None,
        group: npt.ArrayLike | None = None,
    ) -> float:
        """Return the mean of the stop metric over the queries that have something relevant; NaN if none has.

        Errors as :meth:`fit` and :meth:`predict`.
        """
        forest = self.fitted("score")
        check_same_rows({"X": X, "y": y, "qid": qid})
        _, qid = with_queries(X, qid, group, "score ")
        values = matrix_of(X, forest.feature_names)
        rows = rows_of(values, y, queries_of(qid, group, len(values), "score "))
        self._check_metrics()
        metric = parse_metric(self.metric if self.stop_metric in {"", "deviance"} else self.stop_metric)
        highest = max(int(rows.grades.max(initial=0)), int(str(forest.info.get("max_grade", 0))), 1)
        policy = Policy(
            gain="exp" if self.gain == "exp" else "linear", max_grade=highest if metric.name == "err" else None
        )
        scores = predict(forest, rows.values, n_threads=workers_for(self.n_threads))
        return PreparedQueries(rows.grades, rows.starts, policy).means([metric], scores)[metric]

    @property
    def feature_importances_(self) -> npt.NDArray[np.float64]:
        """Share of each feature (n_features,) in the gain of all splits, or in their number; all 0 without a split."""
        forest = self.fitted("feature_importances_")
        self._check_importance_type()
        inner = forest.node_feature >= 0
        found = np.bincount(
            forest.node_feature[inner],
            weights=forest.node_gain[inner] if self.importance_type == "gain" else None,
            minlength=forest.n_features,
        ).astype(np.float64)
        total = found.sum()
        return found / total if total > 0.0 else found

    @property
    def evals_result_(self) -> dict[str, dict[str, list[float]]]:
        """The metrics of ``history_`` as lists over the rounds: ``evals_result_[set][metric]``."""
        self.fitted("evals_result_")
        first = self.history_[0].metrics if self.history_ else {}
        return {
            name: {metric: [record.metrics[name][metric] for record in self.history_] for metric in metrics}
            for name, metrics in first.items()
        }

    def __sklearn_is_fitted__(self) -> bool:
        """Tell scikit-learn whether ``fit`` has been called."""
        return hasattr(self, "forest_")

    def __sklearn_tags__(self) -> Any:
        """Tell scikit-learn, which is the only one to ask, what this estimator takes."""
        from sklearn.utils import InputTags, Tags, TargetTags

        return Tags(estimator_type=None, target_tags=TargetTags(required=True), input_tags=InputTags(allow_nan=True))

    def checked_parameters(
        self, names: Sequence[str], n_rounds: int | None = None, patience: int | None = None
    ) -> tuple[TrainParameters, int, int]:
        """Return the parameters of a training over features of these ``names``, ``max_bin``, and the threads to work with.

        ``n_rounds`` and ``patience`` rule over the ranker's own.  InvalidParameter where one is out of bounds.
        """
        self._check_metrics()
        max_bin, n_threads = whole_number("max_bin", self.max_bin), workers_for(self.n_threads)
        if not MIN_MAX_BIN <= max_bin <= MAX_BIN:
            raise InvalidParameter(f"max_bin must be in {MIN_MAX_BIN} .. {MAX_BIN}, got {max_bin}")
        own = {field.name: getattr(self, field.name) for field in fields(TrainParameters)}
        own |= {
            "objective": spelled(self.objective, self.delta),
            "monotone": directions_by_name(self.monotone, names),
            "n_rounds": self.n_rounds if n_rounds is None else n_rounds,
            "early_stopping_rounds": self.early_stopping_rounds if patience is None else patience,
        }
        return TrainParameters(**own), max_bin, n_threads

    loaded_from_: str

    # set by __init__ from its arguments, all of them
    objective: str | Callable[..., object]
    learn_from: str
    delta: Callable[..., Any] | None
    metric: str
    stop_metric: str
    gain: str
    n_rounds: int
    early_stopping_rounds: int
    monotone: Any

    def fitted(self, what: str) -> Forest:
        """Return ``forest_`` for ``what``; InvalidParameter if ``fit`` has not been called."""
        if not hasattr(self, "forest_"):
            raise InvalidParameter(f"{what} needs a fitted ranker; call fit first")
        return self.forest_

    def _check_metrics(self) -> None:
        for name in ("metric", "stop_metric"):
            refuse_function(name, getattr(self, name))

    def _check_importance_type(self) -> None:
        if self.importance_type not in IMPORTANCES:
            raise InvalidParameter(f"importance_type must be 'gain' or 'split', got {self.importance_type!r}")

    def _started_from(
        self, resume: Model | None, init_model: Model | None, base: BaseModel | None
    ) -> tuple[Forest | None, int]:
        """Return the forest to go on from, if any, and how many rounds there are to be in all."""
        if resume is not None and init_model is not None:
            raise InvalidParameter(
                "fit takes resume, after which there are n_rounds rounds in all, or init_model, which adds n_rounds; not both"
            )
        if init_model is not None:
            forest = after_base(_forest_of(init_model), base)
            return forest, forest.n_rounds + whole_number("n_rounds", self.n_rounds)
        return (None if resume is None else after_base(_forest_of(resume), base)), self.n_rounds


def _forest_of(model: Model) -> Forest:
    if isinstance(model, Ranker):
        return model.fitted("resume")
    if isinstance(model, Forest):
        return model
    from rankmill.loading import load_forest

    return load_forest(model)[0]


def _on_top_of(base: BaseModel | None, rows: ArrayRows, binspec: BinSpec, n_threads: int) -> RankedRows:
    """Return the rows as the trainer takes them, with the scores of the base as offsets."""
    found = rows.ranked(binspec, n_threads)
    if base is None:
        return found
    values = rows.values[:, [base.feature_names.index(name) for name in base.needed]]
    return replace(found, offsets=base.offsets(found.offsets, [values], n_threads))


def _all_of(callbacks: Sequence[Callable[[RoundRecord], bool | None]]) -> Callable[[RoundRecord], bool] | None:
    """Return one callback that calls all of them, in their order; true if any of them says so."""

    def call(record: RoundRecord) -> bool:
        answers = [bool(callback(record)) for callback in callbacks]
        return any(answers)

    return call if callbacks else None
