"""A ranker for arrays in memory, with the interface of scikit-learn and LightGBM."""

from __future__ import annotations

import os
import textwrap
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, Unpack

import numpy as np
import numpy.typing as npt

from rankmill.common_options import OF_RANKER
from rankmill.foundation.cluster.options import checked_address
from rankmill.foundation.errors import InvalidParameter, NotFitted, NoTrees, RankmillError
from rankmill.foundation.notebook_html import HtmlTable, card
from rankmill.foundation.options import (
    Grouped,
    check_choice,
    declared_in,
    defaults_of,
    documented,
    group,
    made_of,
    option,
    options,
    signature_of,
)
from rankmill.foundation.storage.url_arguments import local_paths
from rankmill.pipeline.options import MAX_BIN
from rankmill.pipeline.read.grades import note_on_gains
from rankmill.python.array_rows import rows_of
from rankmill.python.arrays import (
    check_same_rows,
    directions_by_name,
    made_up_names,
    queries_of,
    with_goals,
    with_queries,
)
from rankmill.python.binned_dataset import binned_or_given
from rankmill.python.binned_rows import BinnedRows, BinningOptions
from rankmill.python.eval_sets import EvalSet, eval_sets_of
from rankmill.python.feature_table import matrix_for
from rankmill.python.given_rows import FitColumns, GivenRows
from rankmill.python.net_rows import expected_of, rows_for_net, with_eval_set
from rankmill.python.other_libraries import (
    Routed,
    checked_callbacks,
    checked_metrics,
    frame_of_search,
    keywords_of,
    refuse_function,
    refuse_of_predict,
    refuse_search_without_queries,
    unknown_argument,
    unknown_attribute,
    unknown_parameter,
)
from rankmill.python.prepared import PreparedModel
from rankmill.scorer.forest.forest import Forest, importance_table, split_shares
from rankmill.scorer.forest.predict import ForestPredictor
from rankmill.scorer.metrics import Metric
from rankmill.scorer.models.loading import forest_of, importance_of, kind_of, parts_of
from rankmill.scorer.models.model import Model as TrainedModel
from rankmill.scorer.nets.net import Net
from rankmill.seen_queries import SeenQueries, learnt_in_the_end, seen_queries
from rankmill.trainer.candidates.blend_of_kinds import RANKING, TREES, blend_of_kinds
from rankmill.trainer.candidates.combined_forests import BaseModel, after_base
from rankmill.trainer.data.measured_queries import MeasuredQueries
from rankmill.trainer.data.training_rows import given_pairs, resolved, what_is_learnt_from
from rankmill.trainer.nets.options import FROM, NET, SHARED, ModelOptions, NetOptions
from rankmill.trainer.nets.training import train_net
from rankmill.trainer.objectives.registry import learns_labels
from rankmill.trainer.objectives.user import spelled
from rankmill.trainer.parameters import ALL, AUTO, BLENDING, GRADES, TrainParameters, all_parameters
from rankmill.trainer.presets import alone_line, blends, choices_line, shape_of_rows, why_trees_alone, with_preset
from rankmill.trainer.progress import TrainingProgress, to_stderr, verbosely
from rankmill.trainer.rounds.early_stopping import GoalMean, parse_measure
from rankmill.trainer.rounds.train_on_rows import fit
from rankmill.trainer.rounds.training_result import CrossValidation, RoundRecord, note_without_splits
from rankmill.trainer.team import workers_for
from rankmill.trainer.training_facts import parameters_in_words
from rankmill.trainer.training_options import StartingModel, TrainingOptions

if TYPE_CHECKING:
    from rankmill.scorer.inspect.shap import ShapValues

Model: TypeAlias = "Ranker | Forest | str | os.PathLike[str]"


def _cluster(given: Any) -> Any:
    """Return a Dask client, or the checked text that names a cluster."""
    if isinstance(given, str) or given is None:
        return checked_address(given)
    if not (hasattr(given, "scheduler") and hasattr(given, "submit")):
        raise InvalidParameter(
            f'cluster must be a Dask client, or text such as "local:4" or "tcp://10.0.0.5:8786", got {given!r}'
        )
    return given


@options
class RankerOptions:
    """Options of a ranker besides the training parameters."""

    binning: BinningOptions = group(default_factory=BinningOptions)
    importance_type: str = option(
        default="gain",
        help="How to compute feature_importances_: from the gain of splits, or from the number of splits.",
        choices=("gain", "split"),
    )
    verbose: int | bool = option(
        default=1,
        help="Progress output.  1 or True: one line on what was trained, and a line on stderr about every 10 seconds;"
        " N above 1: also what the preset chose, and a line after every N rounds; 0: nothing.  Does not change the"
        " model.",
    )
    delta: Callable[..., Any] | None = option(
        default=None,
        help="Function (grades, i, j) that returns the weight of a pair at ranks i and j.  With "
        'objective="lambdamart" it is used'
        " instead of the change of the metric: see rankmill.trainer.objectives.user.remember_delta.",
    )

    cluster: Any = option(
        default=None,
        help='Train a Dask DataFrame on the workers of a cluster: a Dask Client, or text: "local:4" starts 4 of them '
        "here,"
        ' "tcp://HOST:PORT" uses a running Dask scheduler.  See docs/cluster.md.',
        convert=_cluster,
    )
    scratch: str | os.PathLike[str] | None = option(
        default=None,
        help="With cluster: a folder that all workers see under the same path, for the rows and a dataset of them "
        "while fit works.  Default: the system's folder of temporary files, which only workers on this machine see.",
    )


KIND = Grouped(
    kind=ModelOptions,
    options=tuple(each for each in declared_in(ModelOptions) if each.name not in {*SHARED, *FROM}),
    changes=False,
    defaults={},
)
"""The kind of model, and the options that only nets have."""
DEFAULTS = defaults_of(TrainParameters, RankerOptions, KIND) | {"monotone": None}
KEPT = ("model_", "best_round_", "history_", "cross_validation_", "n_features_in_")
"""Attributes that every fitted ranker has."""


class FitArguments(FitColumns, total=False):
    """Arguments of :meth:`Ranker.fit` besides those it names."""

    eval_names: Sequence[str] | None
    eval_qid: Sequence[npt.ArrayLike] | None
    eval_group: Sequence[npt.ArrayLike] | None
    early_stopping_rounds: int | None
    base_model: Model | None


class Ranker(Routed):
    """Gradient-boosted trees, or a net, on arrays.

    ``fit`` takes features, grades and query ids; ``predict`` returns scores.

    Parameters are those of :class:`rankmill.trainer.parameters.TrainParameters` and :class:`RankerOptions`, by name,
    and with ``model="net"`` those of :class:`rankmill.trainer.nets.options.NetOptions`. ``help(Ranker.__init__)``
    describes the common ones, ``print(Ranker.help_all())`` all.  Two accept more types:

    monotone
        1: the score never falls when the feature rises; -1: it never rises.  Such as ``{"bm25": 1}`` by name,
        ``{0: 1}`` by column, or a list with a number per column.
    objective
        Also a function ``(scores, targets, starts, g, h)`` that writes gradients and hessians: see
        :class:`rankmill.trainer.objectives.user.UserObjective`.

    Attributes
    ----------
    model_
        The trained model: a :class:`rankmill.scorer.forest.forest.Forest`, a :class:`rankmill.scorer.nets.net.Net` or a
        :class:`rankmill.scorer.models.loading.Blend`; ``model_.save(path)`` writes the model file.
    forest_
        The same, if it is a forest; else InputError.
    best_round_
        Number of rounds that were kept; of a net, the epoch; of a blend, that of its first model.
    history_
        One :class:`rankmill.trainer.rounds.training_result.RoundRecord` per round, or epoch: of a blend, of its first
        model, before it was trained on all rows.  If folds chose the rounds, these are means: ``holdout`` of the
        held-out queries, and the eval set by its name, each query by the fold that did not learn from it.
    cross_validation_
        The cross-validation that chose the number of rounds, if ``rounds_by`` is ``cv`` or folds judged a blend, whose
        trees learn twice as fast there: its rounds count twice in ``best_round_`` and ``history_``.
    loaded_from_
        Only after :meth:`load`: the version, such as ``web@7``, or the file.
    n_features_in_, feature_names_in_
        Number and names of the columns of ``X``; names only if ``X`` had names.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> X, qid = rng.normal(size=(300, 3)), np.repeat(np.arange(30), 10)
    >>> y = np.clip(np.round(X[:, 0] + 1), 0, 4)
    >>> ranker = Ranker(n_rounds=5, max_leaves=4).fit(X, y, qid=qid)
    >>> ranker.predict(X).shape
    (300,)
    """

    objective: str | Callable[..., object]
    delta: Callable[..., Any] | None
    metric: str
    stop_metric: str
    gain: str
    goals: Mapping[str, float]
    learn_from: str
    n_rounds: int
    folds: int
    early_stopping_rounds: int
    monotone: Mapping[str, int] | Mapping[int, int] | Sequence[int] | None
    max_bin: int
    max_bin_of: Mapping[str, int] | None
    categorical: Sequence[str | int] | None
    n_threads: int
    cluster: Any
    model: str
    importance_type: str
    verbose: int | bool
    loaded_from_: str
    _seen: SeenQueries | None

    def __init__(self, **parameters: Any) -> None:
        self._refuse_unknown(parameters)
        for name, default in DEFAULTS.items():
            setattr(self, name, parameters.get(name, default))

    @staticmethod
    def help_all() -> str:
        """Return a description of all parameters, as text."""
        return documented(TrainParameters, RankerOptions, KIND)

    @classmethod
    def _parameter_names(cls) -> list[str]:
        return list(DEFAULTS)

    @classmethod
    def _refuse_unknown(cls, given: Mapping[str, object]) -> None:
        known = cls._parameter_names()
        for name in given:
            if name not in known:
                raise InvalidParameter(unknown_parameter(name, known, keywords_of(cls.fit)))

    def __repr__(self) -> str:
        """Return the parameters that differ from their defaults."""
        changed = [
            f"{name}={value!r}" for name, value in self.get_params().items() if not _is_default(value, DEFAULTS[name])
        ]
        return f"{type(self).__name__}({', '.join(changed)})"

    def _repr_html_(self) -> str:
        """Return an HTML summary for notebooks: the training, its metrics and the most important features."""
        if not hasattr(self, "model_"):
            return card(repr(self), {"state": "not fitted"})
        model = self.model_
        rounds = f"{self.best_round_:,}" + (f" of {len(self.history_):,} trained" if self.history_ else "")
        if isinstance(model, Forest):
            facts = {"rounds": rounds, "trees": f"{model.n_trees:,}"}
        else:
            facts = {"model": kind_of(model)} | (
                {"epochs" if isinstance(parts_of(model)[0], Net) else "rounds": rounds} if self.best_round_ else {}
            )
        words = parameters_in_words(model.parameters)
        facts |= {kind: words[kind] for kind in (TREES, RANKING, NET) if kind in words}  # of the preset's blend
        facts |= {
            "objective": model.objective,
            "features": f"{len(model.used_features):,} of {model.n_features:,} used",
            "sha256": model.sha256[:12],
        }
        facts |= {"loaded from": self.loaded_from_} if hasattr(self, "loaded_from_") else {}
        importance = importance_of(model)
        tables = [] if importance is None else [importance_table(model.feature_names, importance)]
        if self.history_:
            best = self.history_[self.best_round_ - 1].metrics
            metrics = list(dict.fromkeys(name for found in best.values() for name in found))
            rows = [[name, *(f"{found[metric]:.4f}" for metric in metrics)] for name, found in best.items()]
            of_first = " of the first model" if len(parts_of(model)) > 1 else ""
            tables.insert(0, HtmlTable(["set", *metrics], rows, f"after {self.best_round_:,} rounds{of_first}"))
        return card(repr(self), facts, tables)

    def get_params(self, deep: bool = True) -> dict[str, Any]:  # noqa: ARG002, FBT001, FBT002 - scikit-learn's signature
        """Return the parameters by name, for scikit-learn's ``clone`` and searches."""
        return {name: getattr(self, name) for name in self._parameter_names()}

    def __sklearn_clone__(self) -> Ranker:
        """Return an unfitted estimator with equal parameters, for scikit-learn's ``clone``.

        It keeps the same Dask client.
        """
        given = self.get_params(deep=False)
        made = type(self)(**{name: value if name == "cluster" else deepcopy(value) for name, value in given.items()})
        if hasattr(self, "_metadata_request"):
            made._metadata_request = deepcopy(self._metadata_request)  # noqa: SLF001 - scikit-learn's
        return made

    def __getstate__(self) -> dict[str, Any]:
        """Return what a pickle or a copy has: all but a Dask client."""
        return {**self.__dict__, "cluster": self.cluster if isinstance(self.cluster, str) else None}

    def set_params(self, **parameters: Any) -> Ranker:
        """Set parameters by name and return self; InvalidParameter for an unknown one."""
        self._refuse_unknown(parameters)
        for name, value in parameters.items():
            setattr(self, name, value)
        return self

    def fit(
        self,
        X: Any,  # noqa: N803 - the field's name
        y: npt.ArrayLike | None = None,
        *,
        qid: npt.ArrayLike | None = None,
        group: npt.ArrayLike | None = None,
        eval_set: EvalSet | Sequence[EvalSet] | None = None,
        eval_metrics: str | Sequence[str] = (),
        callbacks: Callable[[RoundRecord], bool | None] | Sequence[Callable[[RoundRecord], bool | None]] = (),
        resume: Model | None = None,
        init_model: Model | None = None,
        **more: Unpack[FitArguments],
    ) -> Ranker:
        """Train and return self.

        Parameters
        ----------
        X
            (n, n_features) numbers, rounded to float32; NaN and null are missing.  A NumPy array, a list of rows, a
            Polars or pandas frame, an Arrow table.  A column ``qid`` of a frame is not a feature: it is used as the
            argument ``qid``. Columns of text, and of a type of categories, are categorical features; the parameter
            ``categorical`` names others. Or a :class:`rankmill.BinnedDataset`, which has all the other columns, too.
            With the parameter ``cluster``: a Dask DataFrame.  Then ``y``, ``qid`` and the other columns are names of
            its columns, which are not features then, or Dask Series with the same partitions; see docs/cluster.md.
        y
            (n,) grades, whole numbers of 0 or more.  Objectives of regression take any finite numbers: if one of them
            is not a whole number from 0 to 31, all are labels.  Then there are no grades, and ranking metrics have no
            value: stop by ``deviance``, or give grades here and labels as ``label``.
        qid
            (n,) query of each row, numbers or strings, in any order.
        group
            Instead of ``qid``: sizes of the queries, in row order.
        sample_weight
            (n,) weight of each document in the loss, 0 or more; only ratios matter.
        query_weight
            Weight of each query: (n,), equal in all rows of a query; or one per query, in order of first appearance
            (that of ``group``); or a mapping from query id.  Only ratios matter.
        label
            (n,) labels for regression objectives; ``y`` is then used only for metrics.
        event
            (n,) with times as labels: 1 if the event was observed, 0 if the time is censored.
        offset
            (n,) start values of the scores.  Losses and metrics use offset + prediction; :meth:`predict` returns the
            prediction without the offset.
        position
            (n,) rank at which each document was shown, from 1, for the parameter ``position_bias``.
        pairs
            (p, 2) row numbers (better, worse) within a query: preferences, for pairwise objectives.  They may
            contradict each other.  With ``learn_from="pairs"`` they replace the pairs from grades; with ``"both"`` they
            are added. By default they are used only if no query has two different grades.
        pair_weight, pair_probability
            (p,) weight of each pair, 0 or more; and the probability that it is correct, in [0, 1].
        goals
            Further grades by name, ``{"bought": (n,) grades}``, for metrics such as ``ndcg@10:bought`` and the
            parameter ``goals``. Or a list of columns of the frame ``X`` that have them; they are not features then, and
            eval sets that are frames have the same columns.
        eval_set
            (X, y, qid), a BinnedDataset with the bins of the training data, or a list or tuple of these.  The first set
            decides how many rounds are kept.  Instead of qid you can give a mapping with more arguments: ``{"qid": qid,
            "offset": offset}``.  A net takes one set. With ``refit="all"``, the default up to 5,000 queries, the model
            is then trained again on the first set as well:
            judge it on other rows, or set ``refit="none"``.
        eval_names
            Names of the sets in ``history_``.  Default: ``valid``, or ``valid_0``, ``valid_1``, ..
        eval_qid, eval_group
            If the sets are (X, y): query ids, or sizes of queries, for each set.
        eval_metrics
            More metrics to measure on all sets, such as ``["map", "err@10"]``.
        early_stopping_rounds
            Overrides the parameter for this call.
        callbacks
            A function or a list of functions, called with the :class:`RoundRecord` of each round.  Training ends if one
            returns true; on a cluster that is an error.
        resume
            A fitted ranker, a forest or a model file, trained on the same rows with the same parameters: resume it
            until there are ``n_rounds`` rounds in total.  The result has the same bytes as training in one run.  Eval
            sets may differ, but not the first one with ``refit="all"``.
        init_model
            Like ``resume``, but add ``n_rounds`` rounds to those of the model.
        base_model
            A fitted ranker, a forest or a model file, to be corrected by new trees.  Its features are found by name.
            Losses and metrics use its scores plus those of the new trees; ``forest_`` contains both.  It may have been
            trained on other rows.

        Raises
        ------
        InvalidParameter
            A parameter is out of bounds, arguments conflict, or the model to resume was trained with other parameters.
        TrainingDataRejected
            There are no rows, or shapes do not match; a feature is neither a number nor a category, or has no name; a
            grade is negative, fractional or not a number.
        DataRejected, WorkerLost, ClusterUnavailable
            Only with ``cluster``: the rows are invalid, the workers were lost, or the scheduler does not answer.
        """
        for name in more:
            if name not in FitArguments.__annotations__:
                raise InvalidParameter(unknown_argument(name, keywords_of(type(self).fit), self._parameter_names()))
        if not (qid is None and group is None):
            refuse_search_without_queries()
        columns = {name: more.get(name) for name in FitColumns.__annotations__}
        listeners, metrics = checked_callbacks(callbacks), checked_metrics(eval_metrics)
        own = self.checked_options()
        if own.cluster is not None:
            rows = {"qid": qid, "group": group, "eval_set": eval_set}
            return self._fit_on_cluster(X, y, own, {**more, **rows}, metrics, listeners, resume, init_model)
        given = binned_or_given(X, y, qid, group, columns, own.binning, "fit ")
        if self.checked_kind().model == NET:
            del X  # what is not needed any more
            of_trees = {"resume": resume, "init_model": init_model}
            return self._fit_net(given, own, eval_set, metrics, listeners, {**more, **of_trees})
        names, base = given.feature_names, None
        if (corrected := more.get("base_model")) is not None:
            if isinstance(given, BinnedRows):
                raise InvalidParameter(
                    "base_model needs the values of the features, which a BinnedDataset does not have; give X and y, "
                    "or the scores of the base model as offset"
                )
            directions = directions_by_name(self.monotone, names)
            base = BaseModel(_forest_of(corrected, "base_model"), names, directions, categorical=given.table.texts)
        with _named(init_model):
            forest = self._started_from(resume, init_model, base)
        parameters = self.checked_parameters(names, more.get("early_stopping_rounds"))
        n_threads = workers_for(own.binning.n_threads)
        _check_labels(columns, parameters.objective)
        blended = blends(parameters)
        binned = partial(
            BinnedRows.of_given,
            own=own.binning,
            regression=learns_labels(parameters.objective),
            base=base,
            keep=blended,
        )
        train = binned(given, where="fit ")
        given_names = given.given_names
        del X, given  # what is not needed any more
        eval_sets = eval_sets_of(eval_set, more, train.expected, partial(binned, reference=train.binspec))
        data = train.training_data(parameters.objective, eval_sets)
        start = None if forest is None else StartingModel(forest)
        asked, parameters = parameters, with_preset(parameters, shape_of_rows(data), start)
        if forest is not None and init_model is not None:
            parameters = replace(parameters, n_rounds=forest.n_rounds + parameters.n_rounds)
        if given_pairs(data.train) and not self.learn_from:
            learning = resolved(data.train, parameters)
            if learning.learn_from == GRADES:
                warnings.warn(what_is_learnt_from(data.train, learning), UserWarning, stacklevel=2)
        then = dict(eval_sets[:1]) if parameters.refit == ALL else {}
        says = own.verbose and (own.verbose != 1 or frame_of_search() is None)  # not in every fold of a search
        if asked.refit is None and says:
            for name in then:
                to_stderr(f'fit: {learnt_in_the_end(name)}; score others, or give refit="none"')
        values = [rows.values for rows in (train, *(rows for _, rows in eval_sets[:1])) if rows.values is not None]
        alone = ""
        if asked.preset == BLENDING:
            reasons = (
                "it starts from another model" if start or base else why_trees_alone(asked, data.train),
                "a BinnedDataset has bins alone" if len(values) < 1 + bool(eval_sets) else "",
                "callbacks are given" if listeners else "",
                "there are several eval sets" if len(eval_sets) > 1 else "",
            )
            alone = next(filter(None, reasons), "")
        note = alone_line(asked, alone) if says else ""
        with verbosely(own.verbose, parameters, choices_line(asked, parameters, alone), note) as progress:
            options = TrainingOptions(
                eval_metrics=metrics,
                resume=start,
                n_threads=n_threads,
                on_round=_all_of(progress, listeners),
            )
            if blended and not alone:
                blend = blend_of_kinds(data, values[0], values[1] if eval_sets else None, asked, options)
                self._keep(blend.model, blend.best_round, blend.history, given_names, blend.cross_validation)
            else:
                with _named(init_model):
                    result = fit(data, parameters, options)
                trained = result.forest if base is None else base.joined(result.forest)
                _warn_of(note_without_splits(trained), 3)
                self._keep(trained, result.best_round, result.history, given_names, result.cross_validation)
        if blended and not alone and says:
            to_stderr(f"fit: {blend.facts.line()}")
        warn_of_gains(data.train.grades, parameters.gain, 3)
        self._seen = seen_queries(train.queries, {name: rows.queries for name, rows in then.items()})
        return self

    def _fit_on_cluster(
        self,
        X: Any,  # noqa: N803
        y: Any,
        own: RankerOptions,
        given: Mapping[str, Any],
        metrics: Sequence[str],
        listeners: Sequence[Callable[[RoundRecord], bool | None]],
        resume: Model | None,
        init_model: Model | None,
    ) -> Ranker:
        """Train on the workers of a cluster; arguments as :meth:`fit` takes them."""
        from rankmill.python.fit_on_cluster import fit_on_cluster, refuse_on_cluster

        refuse_on_cluster(self, given)
        with _named(init_model):
            start, further = self._started_from(resume, init_model, None), init_model is not None
            result, given_names, note = fit_on_cluster(
                self, X, y, own, given, metrics, listeners, start, further=further
            )
        _warn_of(note_without_splits(result.forest), 4)
        _warn_of(note, 4)
        self._keep(result.forest, result.best_round, result.history, given_names)
        return self

    def _fit_net(
        self,
        given: BinnedRows | GivenRows,
        own: RankerOptions,
        eval_set: EvalSet | Sequence[EvalSet] | None,
        metrics: Sequence[str],
        listeners: Sequence[Callable[[RoundRecord], bool | None]],
        more: Mapping[str, Any],
    ) -> Ranker:
        """Train a net; arguments as :meth:`fit` takes them."""
        options, binning = self.net_options(given.feature_names), own.binning
        of_trees = {name: more.get(name) for name in ("resume", "init_model", "base_model", "early_stopping_rounds")}
        of_trees |= {
            "max_bin": binning.max_bin if binning.max_bin != MAX_BIN else None,
            "max_bin_of": binning.max_bin_of,
        }
        for name, value in of_trees.items():
            if value is not None:
                instead = "; use early_stopping_epochs" if name == "early_stopping_rounds" else ""
                raise InvalidParameter(f"{name} is of trees; leave it out with model net{instead}")
        _check_labels(more, options.objective)
        data = rows_for_net(given, options, "fit ")
        eval_sets = eval_sets_of(eval_set, more, expected_of(given), lambda rows: rows_for_net(rows, options))
        if len(eval_sets) > 1:
            raise InvalidParameter(
                f"a net takes one eval set, which decides the epoch that is kept; got {len(eval_sets)}"
            )
        for name, rows in eval_sets:
            data = with_eval_set(data, name, rows)
        given_names = given.given_names
        del given
        rounds = replace(options.losses(), n_rounds=options.epochs)
        with verbosely(own.verbose, rounds, step="epoch") as progress:
            on_round = _all_of(progress, listeners)
            result = train_net(
                data,
                options,
                eval_metrics=metrics,
                n_threads=workers_for(binning.n_threads),
                on_epoch=lambda record, _: on_round(record),
            )
        warn_of_gains(data.train.rows.grades, options.gain, 4)
        self._keep(result.net, result.best_epoch, result.history, given_names)
        return self

    def _keep(
        self,
        model: TrainedModel,
        best_round: int,
        history: tuple[RoundRecord, ...],
        given_names: tuple[str, ...] | None,
        cross_validation: CrossValidation | None = None,
    ) -> None:
        """Store the results of a training."""
        self.__dict__.pop("loaded_from_", None)
        self._seen = None
        self.model_: TrainedModel = model
        self._prepared = PreparedModel(model)
        self.best_round_: int = best_round
        self.history_: tuple[RoundRecord, ...] = history
        self.cross_validation_: CrossValidation | None = cross_validation
        self.n_features_in_: int = model.n_features
        if given_names is not None:
            self.feature_names_in_: npt.NDArray[np.object_] = np.array(given_names, dtype=object)
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_

    @classmethod
    def load(cls, model: str | os.PathLike[str], *, registry: str | os.PathLike[str] | None = None) -> Ranker:
        """Load a fitted ranker from a model file or a registry: see :func:`rankmill.python.loading.load_model`."""
        from rankmill.python.model_files import named_model

        return cls.from_model(*named_model(model, registry))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model file ``path`` atomically, or put it at a URL, for :meth:`load` and ``--model``.

        It has no history.
        """
        model = self.fitted("save")
        with local_paths({"out": path}) as local:
            model.save(local["out"])

    @classmethod
    def from_model(cls, model: TrainedModel, name: str = "") -> Ranker:
        """Return a fitted ranker with ``model``, the parameters that it was trained with, and no history."""
        known, (first, *_) = cls._parameter_names(), parts_of(model)
        best_round = int(str(first.info.get("epochs", 0))) if isinstance(first, Net) else first.n_rounds
        trained_with = dict(model.parameters)
        if isinstance(model, Forest):
            trained_with = all_parameters(trained_with) if trained_with else {}
            if trained_with.get("preset") == AUTO and trained_with["refit"] == ALL:
                trained_with["refit"] = None  # chosen where there was an eval set, which the next training may not have
        elif isinstance(model, Net):
            trained_with |= {"model": NET, "layers": model.widths}
        ranker = cls(**{key: value for key, value in trained_with.items() if key in known})
        ranker.categorical = [*model.categories] or None
        named = model.feature_names != made_up_names(model.n_features)
        ranker._keep(model, best_round, (), model.feature_names if named else None)
        ranker.loaded_from_ = name
        return ranker

    def predict(
        self,
        X: Any,  # noqa: N803
        *,
        n_rounds: int | None = None,
        start_round: int = 0,
        **others: object,
    ) -> npt.NDArray[np.float64]:
        """Return scores (n,) float64 of ``X`` (n, n_features), without offsets.

        ``n_rounds`` uses this number of rounds only, from ``start_round`` on.  The base score belongs to round 0, so
        the scores of the parts of a model add up.

        Columns of a frame are found by name.  The model knows which are categorical; a category that it has not seen,
        and None, equal none of those that it has.

        Raises
        ------
        InvalidParameter
            The ranker has not been fitted, ``X`` is a BinnedDataset, or there are ``others``: arguments of other
            libraries.
        TrainingDataRejected
            ``X`` lacks features, has the wrong number of them, or has text for a number, or numbers alone for a feature
            of which the model knows texts alone.
        """
        refuse_of_predict(others)
        model = self.fitted("predict")
        prepared = self._prepared_for(model)
        predictor, values = prepared.predictor(n_rounds, start_round), prepared.numbers(X)
        if values is None:
            values = matrix_for(model, X)
        return predictor.scores(values, n_threads=workers_for(self.n_threads))

    def apply(self, X: Any, *, n_rounds: int | None = None, start_round: int = 0) -> npt.NDArray[np.int32]:  # noqa: N803
        """Return the leaf that each row of ``X`` reaches in each tree, (n, n_trees).

        A leaf is a node of its tree, counted from its root, 0.  Parameters and errors are those of :meth:`predict`.
        """
        forest = self.fitted_forest("apply")
        prepared = self._prepared_for(forest)
        predictor, values = prepared.predictor(n_rounds, start_round), prepared.numbers(X)
        assert isinstance(predictor, ForestPredictor)  # noqa: S101 - as of every forest
        if values is None:
            values = matrix_for(forest, X)
        return predictor.leaves(values, n_threads=workers_for(self.n_threads))

    def contributions(self, X: Any, *, qid: npt.ArrayLike | None = None, n_rounds: int | None = None) -> ShapValues:  # noqa: N803
        """Return what each feature adds to the score of each row of ``X``.

        These are SHAP values, and the base that they are added to.  A net has Shapley values of 64 orders of the
        features, each against a missing value; a blend has the weighted sum over its parts.

        ``values`` are (n, n_outputs, n_features), and ``base`` (n, n_outputs).  ``qid`` and ``n_rounds`` are explained
        at :func:`rankmill.scorer.inspect.shap.shap_values`; other errors are those of :meth:`predict`.
        """
        from rankmill.scorer.inspect.any_model import contributions_of

        model = self.fitted("contributions")
        values, n_threads = matrix_for(model, X), workers_for(self.n_threads)
        return contributions_of(model, values, qid=qid, n_rounds=n_rounds, n_threads=n_threads)

    def score(
        self,
        X: Any,  # noqa: N803
        y: npt.ArrayLike,
        *,
        qid: npt.ArrayLike | None = None,
        group: npt.ArrayLike | None = None,
        goals: Mapping[str, npt.ArrayLike] | Sequence[str] | None = None,
    ) -> float:
        """Return the mean of the stop metric over the queries with a relevant document; NaN if there are none.

        Without ``goals``, a ranker that stops by the mean over goals by default is measured by the grade alone.
        Raises the same errors as :meth:`fit` and :meth:`predict`.
        """
        model = self.fitted("score")
        check_same_rows({"X": X, "y": y, "qid": qid})
        names, qid = with_queries(X, qid, group, "score ")
        _, goals = with_goals(X, names, goals, "score ")
        values = matrix_for(model, X)
        rows = rows_of(values, y, queries_of(qid, group, len(values), "score "), {"goals": goals})
        assert isinstance(rows.values, np.ndarray)  # noqa: S101 - as given
        ranked = rows.rows
        if (seen := self.__dict__.get("_seen")) is not None:
            seen.warn_of(rows.queries)
        self._check_metrics()
        parameters = TrainParameters(gain="exp" if self.gain is None else self.gain, goals=self.goals)
        named = "" if self.stop_metric == "deviance" else self.stop_metric
        measure = parse_measure(named or self.metric)
        if isinstance(measure, Metric) and not named and ranked.goals and self.goals:
            measure = GoalMean(measure)
        scale = {name: int(column.max(initial=0)) for name, column in ranked.goals.items()}
        scale[""] = max(int(ranked.grades.max(initial=0)), int(str(model.info.get("max_grade", 0))))
        measured = MeasuredQueries(ranked, [measure], parameters, scale)
        scores = self._prepared_for(model).predictor().scores(rows.values, n_threads=workers_for(self.n_threads))
        return measured.means(measured.evaluate(scores))[str(measure)]

    if not TYPE_CHECKING:  # which would take it for a promise of any attribute

        def __getattr__(self, name: str) -> Any:
            """Raise AttributeError that says what is called otherwise here, needs ``fit``, or is not in this model."""
            found = getattr(type(self), name, None)
            if isinstance(found, property) and found.fget is not None:
                return found.fget(self)  # whose AttributeError led here: raise it again
            if name in KEPT and "model_" not in self.__dict__:
                raise NotFitted.needed_by(name)
            raise AttributeError(unknown_attribute(type(self).__name__, name), name=name, obj=self)

    @property
    def feature_importances_(self) -> npt.NDArray[np.float64]:
        """Share of each feature (n_features,) in the gain of all splits, or in their number.

        All are 0 if there are no splits.

        Of a blend that a preset has made: the mean of its models of trees, by their shares; a net has no gains.  A
        model without trees has no such attribute: the NoTrees that is raised is an AttributeError.
        """
        model = self.fitted("feature_importances_")
        check_choice("importance_type", self.importance_type, ("gain", "split"))
        found = importance_of(model) if self.importance_type == "gain" else importance_of(model, split_shares)
        if found is None:
            cure = "rankmill inspect influence --on DOCUMENTS measures the importance in any model"
            raise NoTrees(f"feature_importances_ are of trees, and this is {kind_of(model)}; {cure}")
        return found

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
        """Whether ``fit`` has been called."""
        return hasattr(self, "model_")

    def __sklearn_tags__(self) -> Any:
        """Return scikit-learn's description of this estimator."""
        from sklearn.utils import InputTags, Tags, TargetTags

        takes = InputTags(allow_nan=True, categorical=True, string=True)
        return Tags(estimator_type=None, target_tags=TargetTags(required=True), input_tags=takes)

    def checked_options(self) -> RankerOptions:
        """Return the options that are not training parameters; InvalidParameter if one is out of bounds."""
        return made_of(RankerOptions, {name: getattr(self, name) for name in defaults_of(RankerOptions)})

    def checked_parameters(self, names: Sequence[str], patience: int | None = None) -> TrainParameters:
        """Return the training parameters for features with these ``names``.

        ``patience`` overrides the ranker's own.  InvalidParameter if one is out of bounds, or the ranker trains a net.
        """
        if self.checked_kind().model == NET:
            raise InvalidParameter(
                "features are selected by trainings of trees; leave out model net, and see which features a net needs "
                "with rankmill inspect influence"
            )
        return self._parameters(names, patience)

    def checked_kind(self) -> ModelOptions:
        """Return the kind of model, with the options of nets; InvalidParameter if these are given for trees."""
        kind: ModelOptions = KIND.made_of({each.name: getattr(self, each.name) for each in KIND.options})
        if kind.model != NET:
            kind.check_trees()
        return kind

    def net_options(self, names: Sequence[str]) -> NetOptions:
        """Return the options of the net; InvalidParameter if one is out of bounds, or of trees."""
        return self.checked_kind().net_options(self._parameters(names), "folds")

    def _parameters(self, names: Sequence[str], patience: int | None = None) -> TrainParameters:
        self._check_metrics()
        given = {name: getattr(self, name) for name in defaults_of(TrainParameters)}
        given |= {
            "objective": spelled(self.objective, self.delta),
            "monotone": directions_by_name(self.monotone, names),
            "early_stopping_rounds": self.early_stopping_rounds if patience is None else patience,
        }
        return TrainParameters(**given)

    def fitted(self, what: str) -> TrainedModel:
        """Return ``model_`` for ``what``; NotFitted if ``fit`` has not been called."""
        if "model_" not in self.__dict__:
            raise NotFitted.needed_by(what)
        return self.model_

    def _prepared_for(self, model: TrainedModel) -> PreparedModel:
        """Return what is kept of ``model`` between calls."""
        prepared = getattr(self, "_prepared", None)
        if prepared is None or prepared.model is not model:  # also if a user has set model_
            self._prepared = prepared = PreparedModel(model)
        return prepared

    def fitted_forest(self, what: str) -> Forest:
        """Return ``forest_`` for ``what``, errors as :meth:`fitted`; NoTrees if the model is not a forest."""
        return forest_of(self.fitted(what), what)

    @property
    def forest_(self) -> Forest:
        """The trained forest; NoTrees, an AttributeError, if the model is of another kind, see ``model_``."""
        return self.fitted_forest("forest_")

    def _check_metrics(self) -> None:
        for name in ("metric", "stop_metric"):
            refuse_function(name, getattr(self, name))
        if self.gain is not None and not isinstance(self.gain, str):
            gains = ",".join(map(str, np.ravel(self.gain).tolist()))
            raise InvalidParameter(f'gain is text: for gains of your own by grade give gain="table({gains})"')

    def _started_from(self, resume: Model | None, init_model: Model | None, base: BaseModel | None) -> Forest | None:
        """Return the forest to resume, if any."""
        if resume is not None and init_model is not None:
            raise InvalidParameter(
                "fit takes resume, after which there are n_rounds rounds in all, or init_model, which adds n_rounds; "
                "not both"
            )
        if resume is not None:
            return after_base(_forest_of(resume, "resume"), base)
        return None if init_model is None else after_base(_forest_of(init_model, "init_model"), base)


def _is_default(value: object, default: object) -> bool:
    """Whether a parameter has its default, or an equal number or container: a copy, or as read from a file."""
    return value is default or ((np.isscalar(value) or type(value) is type(default)) and bool(value == default))


def _help() -> str:
    """Return the parameters of a ranker as sections of a docstring: the common ones, and the names of the others."""
    groups = (TrainParameters, RankerOptions, KIND)
    common = {name for names in OF_RANKER.values() for name in names}
    sections = [documented(*groups, title=title, names=names) for title, names in OF_RANKER.items()]
    others = textwrap.fill(", ".join(name for name in DEFAULTS if name not in common), 110)
    sections.append(f"Advanced\n--------\nprint(Ranker.help_all()) describes these, too:\n{others}")
    return "\n\n".join(sections)


Ranker.__init__.__signature__ = signature_of(Ranker.__init__, DEFAULTS)  # type: ignore[attr-defined]
Ranker.__init__.__doc__ = _help()
Ranker.fit.__signature__ = signature_of(Ranker.fit, dict.fromkeys(FitArguments.__annotations__))  # type: ignore[attr-defined]


@contextmanager
def _named(init_model: Model | None) -> Iterator[None]:
    """Let errors that name ``resume`` name ``init_model``, if that is given."""
    try:
        yield
    except RankmillError as error:
        if init_model is None or not str(error).startswith("resume: "):
            raise
        raise type(error)(f"init_model{str(error).removeprefix('resume')}") from error


def _forest_of(model: Model, use: str) -> Forest:
    if isinstance(model, Ranker):
        return model.fitted_forest(use)
    if isinstance(model, TrainedModel):
        return forest_of(model, use)
    from rankmill.python.model_files import named_model

    return forest_of(named_model(model)[0], use)


def warn_of_gains(grades: npt.NDArray[np.int32], gain: str, stacklevel: int) -> None:
    """Warn if with this ``gain`` some of the ``grades`` (n,) count next to nothing."""
    _warn_of(note_on_gains(np.unique(grades).tolist(), gain), stacklevel + 1)


def _warn_of(note: str, stacklevel: int) -> None:
    """Warn with the ``note``, if there is any."""
    if note:
        warnings.warn(note, UserWarning, stacklevel=stacklevel)


def _check_labels(columns: Mapping[str, Any], objective: str | None) -> None:
    """Raise InvalidParameter if there are labels for an objective that learns grades."""
    if columns.get("label") is not None and not learns_labels(objective):
        this = f"{objective} learns" if objective else "the preset chooses one that learns"
        raise InvalidParameter(f"label is for objectives of regression, such as l2; {this} grades")


def _all_of(
    progress: TrainingProgress, callbacks: Sequence[Callable[[RoundRecord], bool | None]]
) -> Callable[[RoundRecord], bool]:
    """Return one callback that calls all in order, and returns true if any of them does.

    For folds only the progress is called.
    """

    def call(record: RoundRecord) -> bool:
        progress.update(record)
        answers = [] if record.fold else [bool(callback(record)) for callback in callbacks]
        return any(answers)

    return call
