"""A ranker for arrays in memory, with the habits of scikit-learn."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pipeline.binning import MIN_MAX_BIN
from pipeline.binspec import BinSpec, apply_bins, feature_bins
from pipeline.cores import available_cores
from pipeline.group.hashing import digest_of_rows
from pipeline.quantiles import MAX_BIN
from scorer.predict import predict
from trainer.boosting import RankedRows, RoundRecord, boost
from trainer.errors import InvalidParameter, TrainingDataRejected
from trainer.parameters import TrainParameters

if TYPE_CHECKING:
    from scorer.forest import Forest

    EvalSet = tuple[npt.ArrayLike, npt.ArrayLike, npt.ArrayLike]


class Ranker:
    """LambdaMART on arrays: ``fit`` takes features, grades and query ids; ``predict`` gives scores.

    Parameters are those of :class:`trainer.parameters.TrainParameters`, and

    max_bin
        Value bins of a feature, 15 to 255.
    n_threads
        0: the cores this process may use.  Never changes the model.

    Attributes
    ----------
    forest_
        The trained :class:`scorer.forest.Forest`; ``forest_.save(path)`` writes the model file.
    best_round_
        Rounds that were kept.
    history_
        One :class:`trainer.boosting.RoundRecord` a round.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> X, qid = rng.normal(size=(300, 3)), np.repeat(np.arange(30), 10)
    >>> y = np.clip(np.round(X[:, 0] + 1), 0, 4)
    >>> ranker = Ranker(n_rounds=5, max_leaves=4).fit(X, y, qid=qid)
    >>> ranker.predict(X).shape
    (300,)
    """

    def __init__(
        self,
        *,
        objective: str = "lambdamart",
        metric: str = "ndcg@10",
        stop_metric: str = "",
        gain: str = "exp",
        n_rounds: int = 500,
        learning_rate: float = 0.1,
        early_stopping_rounds: int = 50,
        max_leaves: int = 31,
        max_depth: int = 0,
        min_rows_in_leaf: int = 20,
        min_hessian_in_leaf: float = 1e-3,
        lambda_l2: float = 0.0,
        min_gain: float = 0.0,
        sigma: float = 1.0,
        truncation: int = 30,
        lambda_normalisation: bool = True,
        seed: int = 7,
        max_bin: int = MAX_BIN,
        n_threads: int = 0,
    ) -> None:
        given = dict(locals())
        for name in self._parameter_names():
            setattr(self, name, given[name])

    @classmethod
    def _parameter_names(cls) -> list[str]:
        return [name for name in inspect.signature(cls.__init__).parameters if name != "self"]

    def get_params(self, deep: bool = True) -> dict[str, Any]:  # noqa: ARG002, FBT001, FBT002 - scikit-learn's signature
        """Return the parameters by name, as scikit-learn's ``clone`` and searches ask for them."""
        return {name: getattr(self, name) for name in self._parameter_names()}

    def set_params(self, **parameters: Any) -> Ranker:
        """Set parameters by name and return self; InvalidParameter for an unknown one."""
        known = self._parameter_names()
        for name, value in parameters.items():
            if name not in known:
                raise InvalidParameter(f"unknown parameter {name!r}; known: {', '.join(known)}")
            setattr(self, name, value)
        return self

    def fit(
        self,
        X: npt.ArrayLike,  # noqa: N803 - the field's name
        y: npt.ArrayLike,
        *,
        qid: npt.ArrayLike | None = None,
        group: npt.ArrayLike | None = None,
        eval_set: EvalSet | None = None,
        early_stopping_rounds: int | None = None,
    ) -> Ranker:
        """Train and return self.

        Parameters
        ----------
        X
            (n, n_features) numbers, rounded to float32; NaN is missing.  What has ``to_numpy()`` is accepted too.
        y
            (n,) grades, whole numbers of 0 or more.
        qid
            (n,) query of each row, numbers or strings, in any order.
        group
            Instead of ``qid``: sizes of the queries, in row order.
        eval_set
            (X, y, qid) that decides how many rounds are kept; a list with one of these is accepted too.
        early_stopping_rounds
            Overrides the parameter for this call.

        Raises
        ------
        InvalidParameter
            A parameter is out of bounds, or both or neither of ``qid`` and ``group`` are given.
        TrainingDataRejected
            Shapes do not fit together, or a grade is negative, fractional or not a number.
        """
        own = {name: value for name, value in self.get_params().items() if name not in {"max_bin", "n_threads"}}
        if early_stopping_rounds is not None:
            own["early_stopping_rounds"] = early_stopping_rounds
        if not MIN_MAX_BIN <= self.max_bin <= MAX_BIN:
            raise InvalidParameter(f"max_bin must be in {MIN_MAX_BIN} .. {MAX_BIN}, got {self.max_bin}")
        parameters = TrainParameters(**own)
        values = _matrix(X)
        if (qid is None) == (group is None):
            raise InvalidParameter("fit needs either qid, the query of each row, or group, the sizes of the queries")
        queries = np.asarray(qid) if qid is not None else _from_sizes(group, len(values))
        names = _names(X) or tuple(f"f{i}" for i in range(values.shape[1]))
        binspec = BinSpec(
            tuple(feature_bins(name, values[:, i].copy(), self.max_bin) for i, name in enumerate(names)), self.max_bin
        )
        train = _ranked(values, y, queries, binspec)
        valid = None
        if eval_set is not None:
            watched, grades, of_query = _one_set(eval_set)
            valid = _ranked(_matrix(_in_order(watched, names)), grades, of_query, binspec)
        highest = max(int(part.grades.max(initial=0)) for part in (train, valid) if part is not None)
        result = boost(
            train, [] if valid is None else [("valid", valid)], [feature.edges for feature in binspec.features], names, parameters,
            max_grade=highest, n_threads=self.n_threads,
        )  # fmt: skip
        self.forest_: Forest = result.forest
        self.best_round_: int = result.best_round
        self.history_: tuple[RoundRecord, ...] = result.history
        return self

    def predict(self, X: npt.ArrayLike, *, n_rounds: int | None = None) -> npt.NDArray[np.float64]:  # noqa: N803
        """Return scores (n,) float64 of ``X`` (n, n_features); ``n_rounds`` takes the first trees only.

        Columns of a frame are found by name.

        Raises
        ------
        InvalidParameter
            The ranker has not been fitted.
        TrainingDataRejected
            ``X`` lacks features, or has another number of them.
        """
        if not hasattr(self, "forest_"):
            raise InvalidParameter("predict needs a fitted ranker; call fit first")
        values = _matrix(_in_order(X, self.forest_.feature_names))
        if values.shape[1] != len(self.forest_.feature_names):
            raise TrainingDataRejected(
                f"X has {values.shape[1]} features, the ranker was fitted on {len(self.forest_.feature_names)}"
            )
        return predict(self.forest_, values, n_rounds=n_rounds, n_threads=self.n_threads or available_cores())

    max_bin: int
    n_threads: int


def _names(frame: object) -> tuple[str, ...] | None:
    """Column names of a frame or an Arrow table; None for a plain array."""
    found = getattr(frame, "column_names", None) or getattr(frame, "columns", None)
    return None if found is None else tuple(str(name) for name in found)


def _in_order(frame: Any, names: tuple[str, ...]) -> Any:
    """Return a frame with its columns in the order of ``names``; a plain array as it is."""
    found = _names(frame)
    if found is None or found == names:
        return frame
    lacking = [name for name in names if name not in found]
    if lacking:
        raise TrainingDataRejected(f"X lacks the feature {lacking[0]!r} that the ranker was fitted on")
    return frame.select(list(names)) if hasattr(frame, "select") else frame[list(names)]


def _one_set(eval_set: Any) -> EvalSet:
    """Return (X, y, qid), given as it is or as the only one of a list."""
    if isinstance(eval_set, list):
        if len(eval_set) != 1:
            raise InvalidParameter(f"eval_set must be one (X, y, qid), got {len(eval_set)}")
        eval_set = eval_set[0]
    if len(eval_set) != 3:
        raise InvalidParameter(f"eval_set must be (X, y, qid), got {len(eval_set)} parts")
    x, y, qid = eval_set
    return x, y, qid


def _matrix(values: Any) -> npt.NDArray[np.float32]:
    if hasattr(values, "to_pydict"):  # an Arrow table has no matrix of its own
        array = np.column_stack([np.asarray(column) for column in values.columns])
    else:
        array = np.asarray(values.to_numpy() if hasattr(values, "to_numpy") else values)
    if array.ndim != 2 or array.shape[1] == 0:
        raise TrainingDataRejected(f"X must have shape (n, n_features) with a feature or more, got {array.shape}")
    return np.ascontiguousarray(array, dtype=np.float32)


def _from_sizes(group: npt.ArrayLike | None, n_rows: int) -> npt.NDArray[np.int64]:
    sizes = np.asarray(group, dtype=np.int64)
    if (sizes < 0).any() or sizes.sum() != n_rows:
        raise TrainingDataRejected(
            f"group must hold the sizes of the queries: they sum to {sizes.sum()} for {n_rows} rows (query ids go to qid)"
        )
    return np.repeat(np.arange(len(sizes)), sizes)


def _ranked(values: npt.NDArray[np.float32], y: npt.ArrayLike, qid: npt.ArrayLike, binspec: BinSpec) -> RankedRows:
    """Bring the rows of a query together, in an order that depends on what is in them and not on how they came."""
    grades, queries = np.asarray(y), np.asarray(qid)
    if grades.ndim != 1 or queries.ndim != 1:
        raise TrainingDataRejected(f"y and qid must have shape (n,), got {grades.shape} and {queries.shape}")
    if not len(values) == len(grades) == len(queries):
        raise TrainingDataRejected(f"X, y and qid have {len(values)}, {len(grades)} and {len(queries)} rows")
    with np.errstate(invalid="ignore"):  # NaN becomes some integer, which is then not equal to it
        whole = grades.astype(np.int32)
    if len(grades) and not (np.equal(whole, grades).all() and whole.min() >= 0):
        row = int(np.argmin(np.equal(whole, grades) & (whole >= 0)))
        raise TrainingDataRejected(f"row {row}: expected a grade, a whole number of 0 or more, found {grades[row]}")
    _, number = np.unique(queries, return_inverse=True)
    digest = digest_of_rows(values, whole)
    order = np.lexsort((digest[:, 1], digest[:, 0], number))
    starts = np.concatenate(([0], np.cumsum(np.bincount(number)))).astype(np.int64)
    return RankedRows(whole[order], starts, [apply_bins(values[order], binspec)])
