"""The naive model beside one that corrects clicks: the same training without the correction, to see what the correction changes."""

from __future__ import annotations

from dataclasses import replace

from rankmill.foundation.training_facts import CLICKS, JUDGMENTS, ClickFacts, OneOfSeveral
from rankmill.pipeline.dataset import Dataset
from rankmill.trainer.clicks.position_bias import POSITION_BIAS
from rankmill.trainer.objectives.registry import takes_positions
from rankmill.trainer.parameters import NONE, TrainParameters
from rankmill.trainer.training_result import TrainingResult
from rankmill.trainer.version_facts import metrics_of


def naive_of(dataset: Dataset, parameters: TrainParameters) -> tuple[Dataset, TrainParameters] | None:
    """Return what the same training without its correction of clicks learns from; None if there is no correction.

    An objective that learns position bias itself has none of it on a dataset without positions.
    """
    if parameters.corrects_clicks:
        return dataset, replace(parameters, position_bias=NONE, propensities={}, self_normalise=False)
    manifest = dataset.manifest
    if "position" in manifest.columns and takes_positions(parameters.objective):
        others = [name for name in manifest.columns if name != "position"]
        return Dataset(dataset.path, manifest.model_copy(update={"columns": others})), parameters
    return None


def _correction(parameters: TrainParameters) -> str:
    if parameters.propensities:
        return "propensities"
    return f"position_bias {parameters.position_bias}" if parameters.corrects_clicks else str(parameters.objective)


def click_facts(
    dataset: Dataset, parameters: TrainParameters, result: TrainingResult, naive: TrainingResult | None
) -> ClickFacts:
    """Return what a version says of the correction of clicks by ``parameters``, which ``result`` was trained with."""
    grades = dataset.rows("valid", ["grade"]).column(0).to_numpy()
    bias = result.forest.info.get(POSITION_BIAS)
    return ClickFacts(
        correction=_correction(parameters),
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
