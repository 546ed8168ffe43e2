"""The metrics of a forest on a split, as a training would have measured them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rankmill.pipeline.dataset import Dataset
from rankmill.scorer.forest import Forest
from rankmill.scorer.metrics import Metric
from rankmill.scorer.metrics.queries import PreparedQueries, mean_of
from rankmill.scorer.predict import Predictor
from rankmill.trainer.history import QueryValues
from rankmill.trainer.learnt_from import LEARNT_FROM, rows_learnt_from
from rankmill.trainer.measures import DEVIANCE, parse_measure, stop_measure
from rankmill.trainer.objectives.registry import objective_of
from rankmill.trainer.parameters import TrainParameters
from rankmill.trainer.reading import read_columns
from rankmill.trainer.watching import policy_of


def measure(
    forest: Forest,
    dataset: Dataset,
    split: str,
    parameters: TrainParameters,
    eval_metrics: Sequence[str] = (),
    n_threads: int = 1,
) -> tuple[dict[str, float], dict[str, QueryValues]]:
    """Return the stop metric and ``eval_metrics`` of ``forest`` on ``split``: means, and query by query.

    Documents are scored a batch of features at a time; held are a few numbers of each.  Offsets of the dataset are added to
    the scores, as in a training.  The deviance is left out where scores are made of several sums of trees.
    """
    own = replace(parameters, learn_from=str(forest.info.get(LEARNT_FROM, "")))
    rows = rows_learnt_from(read_columns(dataset, split, parameters), own)
    if rows.n_rows == 0:
        return {}, {}
    predictor = Predictor(forest)
    names = predictor.feature_names or forest.feature_names[:1]  # rows without a column would have no number
    columns = np.arange(len(predictor.features))
    scores = np.concatenate(
        [
            predictor.scores(batch, columns=columns, n_threads=n_threads)
            for batch in dataset.feature_batches(split, names)
        ]
    )
    if rows.offsets is not None:
        scores += rows.offsets
    wanted = [stop_measure(parameters, graded=rows.graded), *map(parse_measure, eval_metrics)]
    measures = [each for each in dict.fromkeys(wanted) if each != DEVIANCE or forest.link == "identity"]
    metrics = [each for each in measures if isinstance(each, Metric)]
    queries = PreparedQueries(rows.grades, rows.starts, policy_of(metrics, parameters, dataset.max_grade))
    values = queries.evaluate(metrics, scores)
    means = {
        str(each): mean_of(values[each]) if isinstance(each, Metric) else objective_of(rows, own).deviance(scores)
        for each in measures
    }
    return means, {str(each): QueryValues(values[each], queries.weights(each)) for each in metrics}
