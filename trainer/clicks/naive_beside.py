"""The naive model beside one that corrects clicks.

It is the same training without the correction, to show its effect.
"""

from __future__ import annotations

from dataclasses import replace

from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.trainer.candidates.version_facts import metrics_of
from rankmill.trainer.clicks.position_bias import POSITION_BIAS
from rankmill.trainer.parameters import NONE, TrainParameters
from rankmill.trainer.rounds.training_result import TrainingResult
from rankmill.trainer.training_facts import CLICKS, JUDGMENTS, ClickFacts, OneOfSeveral


def naive_of(parameters: TrainParameters) -> TrainParameters | None:
    """Return the same training without its correction of clicks; None if there is no correction."""
    if not parameters.corrects_clicks:
        return None
    return replace(parameters, position_bias=NONE, propensities={}, self_normalise=False)


def click_facts(
    dataset: Dataset, parameters: TrainParameters, result: TrainingResult, naive: TrainingResult | None
) -> ClickFacts:
    """Return what a version says of the correction of clicks by ``parameters``, which ``result`` was trained with."""
    grades = dataset.rows("valid", ["grade"]).column(0).to_numpy()
    bias = result.forest.info.get(POSITION_BIAS)
    return ClickFacts(
        correction="propensities" if parameters.propensities else f"position_bias {parameters.position_bias}",
        position_bias=None if not isinstance(bias, dict) else {name: tuple(values) for name, values in bias.items()},
        valid_has=None if not len(grades) else JUDGMENTS if grades.max() > 1 else CLICKS,
        naive=None
        if naive is None
        else OneOfSeveral(
            sha256=naive.forest.sha256,
            best_round=naive.best_round,
            rounds_trained=len(naive.history),
            metrics=metrics_of(naive),
        ),
    )
