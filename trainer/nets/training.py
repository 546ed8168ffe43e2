"""Train a net on rows in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import inf, isnan, nan
from typing import Any

import numpy as np
import numpy.typing as npt

from rankmill.foundation.errors import InvalidParameter, TrainingDataRejected
from rankmill.foundation.kernels.randoms import random_bits
from rankmill.foundation.options import spelled
from rankmill.scorer.nets.net import IDENTITY, LARGEST_SCORE, Net
from rankmill.trainer.data.measured_queries import MeasuredQueries
from rankmill.trainer.data.rows import RankedRows
from rankmill.trainer.data.training_rows import learnt_from_facts, resolved, rows_learnt_from
from rankmill.trainer.nets.batches import Epoch, most_rows
from rankmill.trainer.nets.checkpoint import NetCheckpoint
from rankmill.trainer.nets.fit_inputs import fit_inputs
from rankmill.trainer.nets.options import COSINE, FOLLOW_LOSS, PAIRS, NetOptions
from rankmill.trainer.nets.pair_updates import update_by_pairs
from rankmill.trainer.nets.passes import Passes, PreparedRows, Weights
from rankmill.trainer.objectives.protocol import Objective
from rankmill.trainer.objectives.registry import objective_of
from rankmill.trainer.rounds.early_stopping import DEVIANCE, EarlyStopping, measures_of
from rankmill.trainer.rounds.training_result import HOLDOUT, TRAIN, Curves, QueryValues, RoundRecord
from rankmill.trainer.team import Team, with_team, workers_for_rows

VALID = "valid"
_SLOWER = 0.8  # factor of the learning rate after an epoch with a higher loss
_LEAST_PRODUCTS = 1 << 27  # of a batch, forward and back: of a smaller net, workers would wait more than they work
_LEAST_RANKED = 4096  # rows a worker that are ranked for a metric

OnEpoch = Callable[[RoundRecord, Callable[[], bytes]], bool | None]


@dataclass(frozen=True, slots=True)
class NetRows:
    """Rows of a split with the values of their features."""

    values: npt.NDArray[np.float32]  # (n_rows, n_features), NaN where missing, codes of categories
    rows: RankedRows  # everything else; ``bins`` are not used

    def __post_init__(self) -> None:
        """Lay out the values row by row as float32, which copies them only if they are not."""
        object.__setattr__(self, "values", np.ascontiguousarray(self.values, dtype=np.float32))

    def of_queries(self, chosen: npt.NDArray[np.bool_]) -> NetRows:
        """Return a copy of the rows of the ``chosen`` queries (n_queries,)."""
        return NetRows(self.values[np.repeat(chosen, np.diff(self.rows.starts))], self.rows.of_queries(chosen))


@dataclass(frozen=True, slots=True, kw_only=True)
class NetData:
    """All that one training of a net learns from and measures."""

    train: NetRows
    valid: NetRows | None = None
    feature_names: Sequence[str]
    max_grade: int
    categories: Mapping[str, Sequence[str]] = field(default_factory=dict)  # as in `TrainingData`
    goals: Mapping[str, int] = field(default_factory=dict)  # highest grade of each goal that is measured
    valid_name: str = VALID  # of the valid split in records
    info: Mapping[str, Any] = field(default_factory=dict)  # facts to keep in the model file; no times, no paths

    @property
    def categorical(self) -> list[int]:
        """Positions of the categorical features."""
        return [f for f, name in enumerate(self.feature_names) if name in self.categories]

    def check_shapes(self) -> None:
        """Raise TrainingDataRejected unless every row has a value of every feature."""
        for name, split in ((TRAIN, self.train), (self.valid_name, self.valid)):
            if split is not None and split.values.shape != (split.rows.n_rows, len(self.feature_names)):
                raise TrainingDataRejected(
                    f"expected values of shape ({split.rows.n_rows}, {len(self.feature_names)}) in the {name} split, "
                    f"got {split.values.shape}"
                )

    def without_values(self) -> NetData:
        """Return the same without the values of features."""
        none = np.empty((0, len(self.feature_names)), dtype=np.float32)
        valid = None if self.valid is None else replace(self.valid, values=none)
        return replace(self, train=replace(self.train, values=none), valid=valid)

    def without_queries(self, queries: npt.NDArray[np.bool_]) -> NetData:
        """Return the train split without ``queries``, a mask (n_queries,); these are held out."""
        split = self.train.of_queries(~queries), self.train.of_queries(queries)
        return replace(self, train=split[0], valid=split[1], valid_name=HOLDOUT)


@dataclass(frozen=True, slots=True)
class NetResult:
    """The net of the best epoch, and the history of its training."""

    net: Net
    best_epoch: int
    history: tuple[RoundRecord, ...] = field(repr=False)
    checkpoint: bytes = field(repr=False)  # to resume the training: see :func:`train_net`
    stop_metric: str
    # the stop metric of each valid query after every epoch that this call trained, if asked for and not the loss
    by_query: tuple[QueryValues, ...] = field(default=(), repr=False, compare=False)
    nets: tuple[Net, ...] = field(default=(), repr=False, compare=False)  # of every epoch of this call, if asked for


def train_net(
    data: NetData | Callable[[], NetData],
    options: NetOptions,
    *,
    eval_metrics: Sequence[str] = (),
    n_threads: int = 1,
    on_epoch: OnEpoch | None = None,
    resume: bytes | None = None,
    by_query: bool = False,
    keep_nets: bool = False,
) -> NetResult:
    """Train a net; the same bytes for any ``n_threads``.

    The net is that of the epoch with the best stop metric on the valid split.  It is that of the last epoch if there is
    no valid split or no early stopping.  Metrics of the train split are those of the scores during the epoch, with
    dropout and noise.

    Parameters
    ----------
    data
        Or a function that returns it: then the values of features are freed once the inputs are computed.
    eval_metrics
        More metrics to measure; ``deviance`` is the loss.
    on_epoch
        Called after every epoch with its metrics and a function that returns a checkpoint.  Training ends if it returns
        true.
    resume
        A checkpoint of a training with the same data and options, of which only ``epochs`` and
        ``early_stopping_epochs`` may differ: the result has the same bytes as training in one go.
    by_query
        Keep the stop metric of each valid query after every epoch.
    keep_nets
        Keep the net of every epoch.

    Raises
    ------
    InvalidParameter
        The objective does not work with nets, the checkpoint is of another training, or the weights grow without bound.
    TrainingDataRejected
        There is nothing to learn from the rows, or their shapes do not fit.
    rankmill.foundation.errors.InputError
        The metric is unknown.
    """
    given = [data() if callable(data) else data]
    n_rows, n_features = given[0].train.rows.n_rows, len(given[0].feature_names)
    return with_team(
        workers_for_rows(n_threads, n_rows, n_features),
        lambda team: _Training(given.pop, options, eval_metrics, team, by_query=by_query, keep_nets=keep_nets).run(
            on_epoch, resume
        ),
    )


def with_pairs_chosen(data: NetData, options: NetOptions) -> NetData:
    """Return ``data`` with given pairs only where the grades order nothing, as trees learn from it."""
    own = resolved(data.train.rows, options.losses())

    def learnt(split: NetRows) -> NetRows:
        return replace(split, rows=rows_learnt_from(split.rows, own))

    return replace(
        data,
        train=learnt(data.train),
        valid=None if data.valid is None else learnt(data.valid),
        info={**data.info, **learnt_from_facts(data.train.rows, own)},
    )


class _Training:
    def __init__(
        self,
        read: Callable[[], NetData],
        options: NetOptions,
        eval_metrics: Sequence[str],
        team: Team,
        *,
        by_query: bool,
        keep_nets: bool,
    ) -> None:
        data = with_pairs_chosen(read(), options)
        data.check_shapes()
        self._options, self._team, self._losses = options, team, options.losses()
        self._stored = options.stored()
        rows = data.train.rows
        # before anything that takes long: refuses rows from which nothing can be learnt
        objective = objective_of(rows, self._losses)
        objective.limit_to(0, rows.n_queries)
        if not abs(objective.starting_score) <= LARGEST_SCORE:
            raise TrainingDataRejected(
                f"the scores of a net are at most {LARGEST_SCORE:g}, but the best constant one of these rows is"
                f" {objective.starting_score:g}; divide the labels"
            )
        self._objective, self._start = objective, float(np.float32(objective.starting_score))
        self._measures = measures_of(self._losses, eval_metrics, graded=rows.graded)
        self._stop_metric = self._measures[0]
        self._data = data.without_values()
        self._of_train = self._queries_of(rows)
        self._valid = None if data.valid is None else self._queries_of(data.valid.rows)
        keeps = by_query and self._valid is not None and self._stop_metric != DEVIANCE
        self._by_query: list[QueryValues] | None = [] if keeps else None
        self._nets: list[Net] | None = [] if keep_nets else None
        if self._valid is not None:
            self._valid.check_decides(
                self._stop_metric,
                data.valid_name,
                "cannot decide when to stop; use a split with such queries, or none",
                constant=data.valid_name == HOLDOUT,  # the other folds decide, too
            )
        others = (rows.offsets, rows.weights, rows.query_weights, rows.pairs)
        if options.updates == PAIRS and (data.categorical or any(each is not None for each in others)):
            raise InvalidParameter(
                f"{spelled('updates')} pairs works with numeric features and grades only, without offsets, weights "
                "and given pairs; use queries"
            )
        self._inputs = fit_inputs(data.train.values, data.categorical, options, team)
        self._prepared = PreparedRows.of(self._inputs, data.train.values, team)
        self._prepared_valid = None if data.valid is None else PreparedRows.of(self._inputs, data.valid.values, team)
        del data  # the values, unless the caller keeps them
        self._passes = Passes(
            Weights(self._inputs, options),
            self._inputs,
            options,
            most_rows(rows, options.batch_documents),
            self._start,
        )
        products = 3 * options.batch_documents * sum(n * m for n, m in pairwise(self._passes.weights.widths))
        self._of_batches = team if products >= _LEAST_PRODUCTS else Team(1)
        self._scores, self._g, self._h = (np.zeros(rows.n_rows) for _ in range(3))

    def run(self, on_epoch: OnEpoch | None, resume: bytes | None) -> NetResult:
        """Train until the last epoch, or until it stops early."""
        options, rows = self._options, self._data.train.rows
        stopping = EarlyStopping(options.early_stopping_epochs, self._stop_metric.higher_is_better)
        key, rate, last_loss = self._key(), options.learning_rate, inf
        history: list[RoundRecord] = []
        best: Net | None = None
        if resume is not None:
            state, arrays, kept = NetCheckpoint.from_bytes(resume)
            best = Net.from_bytes(kept)
            state.check_resumable(key, options)
            self._passes.restore(arrays, state.steps)
            history, rate = list(state.curves.history()), state.rate
            last_loss = inf if state.last_loss is None else state.last_loss
            stopping.best_round = state.best_epoch
            stopping.best_value = nan if state.best_value is None else state.best_value
        stopped = len(history) > 0 and stopping.patience > 0 and len(history) - stopping.best_round >= stopping.patience

        def checkpoint() -> bytes:
            state = NetCheckpoint(
                key=key, options=options.stored(), rate=rate, steps=self._passes.steps, best_epoch=stopping.best_round,
                best_value=None if isnan(stopping.best_value) else stopping.best_value,
                last_loss=None if last_loss == inf else last_loss, curves=Curves.of(history),
            )  # fmt: skip
            return state.to_bytes(self._passes.state(), b"" if best is None else best.to_bytes())

        while len(history) < options.epochs and not stopped:
            number = len(history) + 1
            epoch = Epoch.of(rows, options.seed, number)
            objective = self._objective.in_order(epoch.queries, epoch.places)
            objective = objective or objective_of(epoch.rows, self._losses)
            self._train(epoch, objective, number, rate)
            try:
                net = self._net(number)
            except ValueError as error:
                raise InvalidParameter(
                    f"the weights of the net grew without bound in epoch {number} ({error}); lower "
                    f"{spelled('learning_rate')}, now {options.learning_rate:g}"
                ) from error
            if self._nets is not None:
                self._nets.append(net)
            record = RoundRecord(number, self._measured(epoch, objective, net))
            history.append(record)
            if options.schedule == FOLLOW_LOSS:
                loss = record.metrics[TRAIN][str(DEVIANCE)]
                rate *= _SLOWER if loss > last_loss else 1.0
                last_loss = loss
            value = record.metrics.get(self._data.valid_name, {}).get(str(self._stop_metric), nan)
            stopped = stopping.update(number, value)
            keeps_best = self._valid is not None and options.early_stopping_epochs > 0
            if not keeps_best:
                stopping.best_round = number
                stopped = False
            if stopping.best_round == number or best is None:
                best = net
            if on_epoch is not None and on_epoch(record, checkpoint):
                break
        assert best is not None  # noqa: S101 - there is an epoch, of this call or before
        return NetResult(
            best, stopping.best_round, tuple(history), checkpoint(), str(self._stop_metric),
            tuple(self._by_query or ()), tuple(self._nets or ()),
        )  # fmt: skip

    def _train(self, epoch: Epoch, objective: Objective, number: int, rate: float) -> None:
        """Pass over all batches once."""
        options, passes, starts = self._options, self._passes, epoch.rows.starts
        if options.schedule == COSINE:
            rate *= float(0.5 * (1.0 + _cosine((number - 1) / options.epochs)))
        if options.updates == PAIRS:
            update_by_pairs(epoch, self._prepared.numbers, passes.weights, rate, options.sigma, self._scores)
            return
        offsets = epoch.rows.offsets
        for first_query, last_query in epoch.batches(options.batch_documents):
            first, last = int(starts[first_query]), int(starts[last_query])
            if first == last:
                continue
            step = passes.steps + 1
            key = np.uint64(random_bits(np.uint64(options.seed), step))
            scores, slopes = self._scores[first:last], self._g[first:last]
            passes.forward(self._prepared, epoch.places[first:last], key, scores, self._of_batches)
            if offsets is not None:
                scores += offsets[first:last]
            objective.limit_to(first_query, last_query)
            objective.gradients(step, self._scores, self._g, self._h, self._of_batches)
            slopes /= last_query - first_query
            passes.backward(slopes, passes.rule(rate), self._of_batches)
            passes.follow_statistics()

    def _net(self, epochs: int) -> Net:
        """Return the net as it is now."""
        options, data = self._options, self._data
        parts = self._passes.weights.parts
        return Net(
            feature_names=tuple(data.feature_names),
            inputs=replace(self._inputs, embeddings=parts["tables"]) if data.categories else self._inputs,
            layers=tuple(self._passes.folded()),
            top=parts["top"],
            start=self._start,
            activation=options.activation if options.layers else IDENTITY,
            objective=options.objective,
            categories=data.categories,
            parameters=self._stored,
            info={**data.info, "max_grade": data.max_grade, "epochs": epochs},
        )

    def _measured(self, epoch: Epoch, objective: Objective, net: Net) -> dict[str, dict[str, float]]:
        """Return what is measured, and the loss if it is needed, of the train split and the valid split."""
        with_loss = DEVIANCE in self._measures or self._options.schedule == FOLLOW_LOSS
        objective.limit_to(0, epoch.rows.n_queries)
        loss = objective.deviance(self._scores) if with_loss else None
        as_stored = np.empty_like(self._scores)
        as_stored[epoch.places] = self._scores
        found = {TRAIN: self._means(self._of_train, as_stored, loss)}
        valid, prepared = self._data.valid, self._prepared_valid
        if valid is not None and prepared is not None and self._valid is not None:
            scores = net.scores_of_inputs(prepared.numbers, prepared.categories, self._team.size)
            if valid.rows.offsets is not None:
                scores += valid.rows.offsets
            loss = objective_of(valid.rows, self._losses).deviance(scores) if DEVIANCE in self._measures else None
            found[self._data.valid_name] = self._means(self._valid, scores, loss)
        return found

    def _queries_of(self, rows: RankedRows) -> MeasuredQueries:
        return MeasuredQueries(rows, self._measures, self._losses, {"": self._data.max_grade, **self._data.goals})

    def _means(self, queries: MeasuredQueries, scores: npt.NDArray[np.float64], loss: float | None) -> dict[str, float]:
        values = np.empty((len(queries.metrics), queries.n_queries))
        least = max(1, _LEAST_RANKED * queries.n_queries // max(1, len(scores)))
        self._team.share(
            queries.n_queries, least, lambda first, last, _: queries.evaluate_into(scores, first, last, values)
        )
        means = queries.means(values)
        if queries is self._valid and self._by_query is not None:
            self._by_query.append(queries.by_query(values)[str(self._stop_metric)])
        if loss is not None:
            means[str(DEVIANCE)] = loss
        named = [str(each) for each in self._measures]
        return {
            name: means[name]
            for name in sorted(means, key=lambda name: named.index(name) if name in named else len(named))
        }

    def _key(self) -> str:
        """Return a digest of the data: of the inputs fitted to them, and of all that losses and metrics read."""
        digest = hashlib.sha256("\n".join(self._data.feature_names).encode())
        for array in (
            *self._inputs.arrays().values(),
            self._data.train.rows.query_names,
            *(each for split in (self._data.train, self._data.valid) if split for each in _arrays_of(split.rows)),
        ):
            digest.update(b"none" if array is None else np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()


def _arrays_of(rows: RankedRows) -> list[npt.NDArray[Any] | None]:
    """Return the columns that losses and metrics read."""
    pairs = (
        () if rows.pairs is None else (rows.pairs.better, rows.pairs.worse, rows.pairs.weight, rows.pairs.probability)
    )
    of_rows = (rows.grades, rows.starts, rows.weights, rows.labels, rows.events, rows.offsets, rows.query_weights)
    return [*of_rows, *pairs, *rows.goals.values()]


def _cosine(share: float) -> float:
    """Return cos(pi share) for 0 <= share <= 1 by its series: the bits of libraries differ."""
    x = np.pi * (share if share <= 0.5 else 1.0 - share)
    term = total = 1.0
    for k in range(1, 12):
        term *= -x * x / ((2 * k - 1) * (2 * k))
        total += term
    return float(total if share <= 0.5 else -total)
