"""Train on a dataset: estimate memory, then train the forest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import ceil, prod

from rankmill.foundation.errors import TrainingDataRejected
from rankmill.foundation.records import JSON, as_json, left_out
from rankmill.pipeline.bins.layout import BLOCK_WIDTH, blocks_shape, lanes_of, n_lanes
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.pipeline.dataset.goals import check_goal
from rankmill.scorer.metrics import Metric, parse_metric
from rankmill.trainer.candidates.combined_forests import BaseModel, after_base
from rankmill.trainer.data.rows import RankedRows, TrainingData, as_eval_set
from rankmill.trainer.data.shard import span_of
from rankmill.trainer.data.target_encoding import features_to_encode
from rankmill.trainer.data.training_rows import (
    categories_of,
    given_pairs,
    learnt_from_facts,
    read_columns,
    read_rows,
    resolved,
    rows_learnt_from,
    what_is_learnt_from,
)
from rankmill.trainer.growing.controls import Controls
from rankmill.trainer.growing.grower import Grower
from rankmill.trainer.growing.histogram import HistogramPool
from rankmill.trainer.objectives.protocol import ROWS, Objective, array_bytes
from rankmill.trainer.objectives.registry import criterion_of, objective_of, takes_exact_steps
from rankmill.trainer.parameters import BOTH, GBDT, NONE, TrainParameters
from rankmill.trainer.presets import choices_line, shape_of_dataset, with_preset
from rankmill.trainer.rounds.boosting import directions_of
from rankmill.trainer.rounds.checkpoints import Checkpoints
from rankmill.trainer.rounds.early_stopping import DEVIANCE, measures_of
from rankmill.trainer.rounds.members import FEWEST_DRAWN_PAIRS
from rankmill.trainer.rounds.resuming import check_resumable
from rankmill.trainer.rounds.train_on_rows import NOTHING_MORE, cross_validate_rows, fit, with_first_eval_set
from rankmill.trainer.rounds.training_result import CrossValidation, TrainingResult
from rankmill.trainer.training_options import DEFAULT_OPTIONS, TrainingOptions

BYTES_OF_METRICS = 29  # what metrics keep of a row, by the grade or by a goal
_BYTES_A_ROW = 4 + BYTES_OF_METRICS  # with the grade
_BYTES_AN_OUTPUT = 24  # of a training row: score, gradient, hessian.  The grower and the objective add their own
_BYTES_A_WEIGHTED_ROW = 56  # keys, chances and weights of the rows, and weighted gradients and hessians
_BYTES_A_SAMPLED_ROW = 48  # keys of the rows, those that are drawn and the others, while a sample is drawn
_BYTES_OF_LOSSES = 40  # a part of the loss: itself, and a Python number while they are summed
_BYTES_OF_ENCODING = 4 + 1 + 24  # code and bin of an encoded category; its number, value and target while it is encoded
_BYTES_A_PACKED_PAIR = 24  # twice 16; about half of them are inside a child of the root, and copied
_BYTES_OF_JOINING = 110  # a given pair, while those of the same documents are made one; no bins are held then
_BYTES_OF_LISTING = 72  # a pair of grades or a given one, while both are put into one list
_BYTES_OF_READING = 16 << 20  # readers' buffers, and freed memory that is not given back: 8 to 25 MB measured


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """Size and memory estimate of a training run, known before it starts."""

    train_rows: int
    train_queries: int
    valid_rows: int
    n_features: int  # with the columns of encoded categories
    n_lanes: int  # bytes of a row's bins: narrow features share one
    parameters: TrainParameters
    pool_bytes: int  # bound of the memory for histograms
    column_bytes: int  # of the columns read for the train split, except grades and bins
    learnt_from: str  # grades or pairs, in words
    given_pairs: int  # number of given pairs in the loss
    objective_bytes: int  # of the objective's own arrays
    n_outputs: int
    link: str  # how a score is made from the outputs
    graded: bool  # whether documents have grades to measure rankings by
    pair_bytes: int  # of the lists of pairs for choosing splits and leaf values
    weighted_rows: bool  # whether splits use document weights
    measured_parts: int  # number of terms of the loss, if it is measured
    measured_goals: int  # number of goals that metrics are of
    bins: str  # which binned copy of the dataset is used
    choices: str = ""  # what the preset chose, in words
    n_encoded: int = 0  # columns of encoded categories
    columns: RankedRows | None = field(default=None, repr=False, compare=False)  # of the train split, without bins
    blend: str = ""  # what else is trained for a blend of kinds, in words
    blend_bytes: int = 0  # peak memory of all that

    @property
    def bin_bytes(self) -> int:
        """Bytes of the train split's bins, padded to whole blocks, which are mapped.

        With more columns they are a copy in memory.
        """
        return prod(blocks_shape(self.n_lanes, self.train_rows, BLOCK_WIDTH))

    @property
    def bytes_needed(self) -> int:
        """Peak memory in bytes.

        It is the sum of bins (unless they are mapped), rows, pairs, the objective, histograms and the valid split.

        For LambdaMART on NDCG a training row takes about 93 bytes besides its bins, 141 if rows are sampled.  Measured,
        the peak of the process grows by this within 15 %, or 30 MB.
        """
        p, n = self.parameters, self.train_rows
        bins = self.bin_bytes if self.n_encoded else 0
        columns = self.column_bytes
        if p.rounds_by in {"test", "cv"}:  # a copy of the training queries and one of the held-out queries
            bins += self.bin_bytes
            columns += columns + 4 * n
        if p.refit != NONE:  # a copy with the valid split
            columns += columns * (n + self.valid_rows) // n
            n += self.valid_rows
            bins += prod(blocks_shape(self.n_lanes, n, BLOCK_WIDTH))
        pool = HistogramPool.bytes_needed(self.n_features, p, self.pool_bytes)
        a_row = _BYTES_A_ROW + Grower.BYTES_A_ROW + self.n_outputs * _BYTES_AN_OUTPUT
        if p.members > 1:  # scores of the others, and the mean of all
            a_row += 8 * self.n_outputs * p.members
        if p.boosting != GBDT:  # scores without what is dropped, or from the start on, and with new trees
            a_row += 16 * self.n_outputs + 4
        if min(p.query_fraction, p.row_fraction) < 1.0:
            a_row += _BYTES_A_SAMPLED_ROW
        if p.bootstrap != NONE:
            a_row += _BYTES_A_WEIGHTED_ROW
        if p.rounds_by == "oob" or p.step_search == "line":
            a_row += 8 + 24 * self.n_outputs  # losses; scores before a round, trial scores, and their difference
        linked = 8 if self.n_outputs > 1 else 0  # scores made from the outputs
        of_goals = BYTES_OF_METRICS * self.measured_goals
        a_row += of_goals
        a_valid_row = _BYTES_A_ROW + of_goals + 8 * self.n_outputs + linked + self.n_features
        own, valid_columns = self.objective_bytes, self.valid_rows * columns // self.train_rows
        if self.measured_parts:
            own += own * self.valid_rows // self.train_rows + self.measured_parts * _BYTES_OF_LOSSES
        boosting = n * (a_row + linked + 8 * self.weighted_rows) + self.valid_rows * a_valid_row + valid_columns
        held = bins + own + self.pair_bytes + boosting + pool
        a_pair = _BYTES_OF_JOINING + (_BYTES_OF_LISTING if p.learn_from == BOTH else 0)
        return _BYTES_OF_READING + columns + max(held, self.given_pairs * a_pair)

    def render(self) -> str:
        """Return a line for people, after one with the choices of the preset if there are any."""
        return (
            f"{self.choices}\n"
            * bool(self.choices)
            + f"training on {self.train_rows:,} documents of {self.train_queries:,} queries, "
            f"{self.n_features - self.n_encoded} features{f' ({self.n_encoded} also encoded)' * bool(self.n_encoded)};"
            f" {self.learnt_from}; {self.bins}; "
            + (f"{self.bin_bytes / 1e6:,.0f} MB of bins mapped; " if not self.n_encoded else "")
            + f"about {(self.blend_bytes or self.bytes_needed) / 1e6:,.0f} MB without the interpreter"
            + (f"; {self.blend}" if self.blend else self._which_rounds())
        )

    def _which_rounds(self) -> str:
        """Return a note if all rounds are kept or a refit follows."""
        return self._all_rounds() + ("" if self.parameters.refit == NONE else "; then again with the valid split")

    def _all_rounds(self) -> str:
        if self.parameters.rounds_by == "valid" and not self.valid_rows:
            return f"; no valid split, so all {self.parameters.n_rounds:,} rounds are kept"
        return "" if self.parameters.keeps_best else "; all trained rounds are kept"


def plan_of(dataset: Dataset, parameters: TrainParameters, options: TrainingOptions = DEFAULT_OPTIONS) -> TrainingPlan:
    """Return the size and memory estimate of a training on ``dataset``; for the arguments see :func:`train`.

    Raises
    ------
    TrainingDataRejected
        The train split is empty, or the objective cannot learn from it.
    rankmill.foundation.errors.InputError
        A metric is unknown.
    InvalidParameter
        The objective permits no such option or criterion, or a constraint names a feature that the dataset has not, or
        ``resume`` was trained in another way; or ``base_model`` asks for a feature that the dataset lacks, or moves
        against ``monotone``.
    rankmill.foundation.errors.InputError
        The dataset has not been binned.
    """
    given, parameters = parameters, with_preset(parameters, shape_of_dataset(dataset), options.resume)
    train, valid = dataset.queries("train"), dataset.queries("valid")
    if train.n_rows == 0:
        raise TrainingDataRejected(f"{dataset.path}: the train split is empty; ingest data for it")
    if parameters.refit != NONE and not valid.n_rows:
        raise TrainingDataRejected(f"{dataset.path}: {NOTHING_MORE}")
    parse_metric(parameters.metric)
    measures = measures_of(parameters, options.eval_metrics)
    for measure in measures:
        if isinstance(measure, Metric):
            check_goal(measure, measure.goal, dataset.goals, str(dataset.path))
    directions_of(parameters.monotone, dataset.feature_names)
    Controls.of(parameters, dataset.feature_names)
    bins = dataset.bin_set()
    base = _base_of(dataset, parameters, options)
    binspec = dataset.binspec()
    encoded = features_to_encode(binspec, parameters.encode_above)
    whole = read_columns(dataset, "train", parameters)
    own = resolved(whole, parameters)
    rows = rows_learnt_from(whole, own)
    objective = objective_of(rows, own)
    criterion = criterion_of(objective, parameters)
    if options.resume is not None:
        facts = {**facts_of_data(dataset, bins.binspec), **learnt_from_facts(whole, own)}
        check_resumable(after_base(options.resume.forest, base), parameters, dataset.feature_names, facts)
    return TrainingPlan(
        train_rows=train.n_rows,
        train_queries=len(train),
        valid_rows=valid.n_rows,
        n_features=len(dataset.feature_names) + len(encoded),
        n_lanes=n_lanes(lanes_of(binspec.n_bins)) + len(encoded),
        parameters=parameters,
        pool_bytes=options.histogram_memory,
        column_bytes=array_bytes(whole)
        - whole.grades.nbytes
        + (0 if base is None else 8 * train.n_rows)
        + _BYTES_OF_ENCODING * train.n_rows * len(encoded),
        learnt_from=what_is_learnt_from(whole, own),
        given_pairs=given_pairs(rows),
        objective_bytes=objective.bytes_held(rows),
        n_outputs=objective.n_outputs,
        link=objective.link,
        graded=rows.graded,
        pair_bytes=_pair_bytes(objective, criterion, parameters, train.n_rows),
        weighted_rows=criterion == "se",
        measured_parts=0 if DEVIANCE not in measures else train.n_rows if objective.sums_over == ROWS else len(train),
        measured_goals=len({each.goal for each in measures if isinstance(each, Metric) and each.goal}),
        bins=f"{bins.max_bin} bins ({bins.binspec[:12]})",
        choices=choices_line(given, parameters),
        n_encoded=len(encoded),
        columns=whole,
    )


def _pair_bytes(objective: Objective, criterion: str, parameters: TrainParameters, n_rows: int) -> int:
    """Return the bytes of the lists of pairs: for splits (packed as well) and for leaves."""
    exact, every = takes_exact_steps(objective, parameters), objective.most_pairs
    of_leaves = objective.splits.bytes_a_pair * objective.most_leaf_pairs if exact else 0
    if criterion != "ole":
        return of_leaves
    drawn = every
    if parameters.ole_pairs > 0.0:
        drawn = min(every, max(ceil(parameters.ole_pairs * n_rows), FEWEST_DRAWN_PAIRS))
    return (_BYTES_A_PACKED_PAIR + objective.splits.bytes_a_pair) * drawn + of_leaves


def train(
    dataset: Dataset,
    parameters: TrainParameters | None = None,
    options: TrainingOptions = DEFAULT_OPTIONS,
    checkpoints: Checkpoints | None = None,
    columns: RankedRows | None = None,
) -> TrainingResult:
    """Train on the train split of a binned dataset; measure its valid split if it has one.

    The model depends only on the dataset's rows, its bins, ``parameters`` and ``options.base_model``. Threads, caches,
    memory, ``options.resume`` and the way the dataset was made do not change it.

    Parameters
    ----------
    dataset
        A binned dataset; its newest bins are used.
    parameters
        Default: ``TrainParameters()``.
    options
        See :class:`TrainingOptions`; without ``on_message`` a message is a Python warning.
    checkpoints
        Where to write checkpoints, and where a killed training resumes.  The caller clears them after saving the
        result; :func:`rankmill.trainer.rounds.checkpoints.training_key` makes the key.
    columns
        Those of the plan, so that they are not read again.

    Raises
    ------
    TrainingDataRejected
        The train split is empty, or no query in it has two grades.
    InvalidParameter
        See :class:`TrainParameters`; ``resume`` was trained in another way; or
        ``base_model`` asks for a feature that the dataset lacks, or moves against ``monotone``.
    rankmill.foundation.errors.InputError
        The dataset has not been binned.
    """
    parameters = with_preset(parameters or TrainParameters(), shape_of_dataset(dataset), options.resume)
    base, resume = _base_of(dataset, parameters, options), options.resume
    if resume is not None:
        options = replace(options, resume=replace(resume, forest=after_base(resume.forest, base)))
    data = data_of(dataset, parameters, options, columns)
    if base is not None:
        train_rows, *others = (
            replace(rows, offsets=base.offsets(rows.offsets, dataset.feature_batches(split, base.needed)))
            for split, rows in (("train", data.train), *data.eval_sets)
        )
        data = replace(data, train=train_rows, eval_sets=[("valid", rows) for rows in others])
    result = fit(data, parameters, options, checkpoints)
    return result if base is None else replace(result, forest=base.joined(result.forest))


def data_of(
    dataset: Dataset, parameters: TrainParameters, options: TrainingOptions, columns: RankedRows | None = None
) -> TrainingData:
    """Return the train split and, as eval set, the valid split if there is one; errors as :func:`train`."""
    binspec = dataset.binspec()
    rows, valid = (
        read_rows(dataset, split, binspec, parameters, known) for split, known in (("train", columns), ("valid", None))
    )
    if rows.n_rows == 0:
        raise TrainingDataRejected(f"{dataset.path}: the train split is empty; ingest data for it")
    return TrainingData(
        train=rows,
        eval_sets=[("valid", as_eval_set(valid, span_of(valid.starts, options.shard)))] if valid.n_rows else [],
        edges=[feature.edges for feature in binspec.features],
        categories=categories_of(dataset, binspec),
        feature_names=dataset.feature_names,
        max_grade=dataset.max_grade,
        goal_max_grades=dataset.goals,
        info=facts_of_data(dataset, binspec.digest),
    )


def cross_validate(
    dataset: Dataset,
    parameters: TrainParameters | None = None,
    options: TrainingOptions = DEFAULT_OPTIONS,
    checkpoints: Checkpoints | None = None,
    *,
    with_valid: bool = False,
    by_query: bool = False,
) -> CrossValidation:
    """Cross-validate a training on the train split of a binned dataset.

    See :func:`rankmill.trainer.rounds.train_on_rows.cross_validate_rows`.

    Queries go to folds by the seed and a hash of their ids; ``with_valid``: those of the valid split, too.  Other
    arguments and errors are those of :func:`train` and of that function.
    """
    parameters = with_preset(parameters or TrainParameters(), shape_of_dataset(dataset).in_folds())
    data = data_of(dataset, parameters, options)
    if with_valid and data.eval_sets:
        parameters = replace(parameters, learn_from=resolved(data.train, parameters).learn_from)  # as without
        data = with_first_eval_set(data)
    return cross_validate_rows(data, parameters, options, checkpoints, by_query=by_query)


def _base_of(dataset: Dataset, parameters: TrainParameters, options: TrainingOptions) -> BaseModel | None:
    if options.base_model is None:
        return None
    categorical = dataset.binspec().categories
    return BaseModel(options.base_model.forest, dataset.feature_names, parameters.monotone, categorical)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFacts:
    """Facts about the data that a model stores; they must match when a training is resumed.

    Candidates must be read in the same way as the judgments.
    """

    dataset_digest: str
    binspec_digest: str
    absent: str
    index_base: int
    rows_digest: str | None = left_out()  # if there are pairs: replacing the pairs does not change the queries
    grades: Mapping[str, int] | None = left_out()
    negative_grades: str | None = left_out()


def facts_of_data(dataset: Dataset, binspec_digest: str) -> Mapping[str, JSON]:
    """Return :class:`DataFacts` as JSON for the model's header."""
    manifest, meaning = dataset.manifest, dataset.manifest.meaning
    facts = DataFacts(
        dataset_digest=dataset.digest,
        binspec_digest=binspec_digest,
        absent=meaning.absent,
        index_base=meaning.index_base,
        rows_digest=None if manifest.pairs is None else manifest.rows_digest(),
        grades=meaning.grades or None,
        negative_grades=None if meaning.negative_grades == "reject" else meaning.negative_grades,
    )
    found: Mapping[str, JSON] = as_json(facts)
    return found
