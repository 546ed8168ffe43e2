"""Why one document stands above another: the difference of their contributions, feature by feature.

Contributions are Shapley values (`scorer.inspect.shap`), so the differences add up to that of the two outputs, and what all
documents of a query have alike falls out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from scorer.errors import InputError
from scorer.forest import Forest
from scorer.inspect.paths import Codes
from scorer.inspect.shap import Explainer
from scorer.predict import predict


@dataclass(frozen=True, slots=True)
class Difference:
    """What one feature has to do with it."""

    feature: str
    values: tuple[float, float]
    """Its values in the one document and the other, NaN where missing."""
    contributions: tuple[float, float]
    """To the output of the one document and of the other."""

    @property
    def difference(self) -> float:
        """By how much it lifts the one above the other."""
        return self.contributions[0] - self.contributions[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Why:
    """Two documents and what sets them apart; the differences add up to that of ``outputs``."""

    scores: tuple[float, float]
    output: int
    """Which output is explained, from 0."""
    outputs: tuple[float, float]
    """Of a forest of one output without a link these are the scores."""
    differences: tuple[Difference, ...]
    """Of all features that the model asks for; the greatest difference either way first."""


def why(
    forest: Forest,
    above: npt.ArrayLike,
    below: npt.ArrayLike,
    *,
    output: int = 0,
    n_rounds: int | None = None,
) -> Why:
    """Explain why the document ``above`` has another score than ``below``.

    Parameters
    ----------
    forest
        The trained model.
    above, below
        (n_features,) features of the two documents, NaN where missing.
    output
        Which output to explain of a forest with several, from 0.
    n_rounds
        Explain the first so many rounds; None: all.

    Raises
    ------
    InputError
        There is no such output, ``n_rounds`` is more than the model has, or it does not know its training rows.
    ValueError
        A document has another number of features.
    """
    explainer = Explainer(forest, n_rounds=n_rounds)
    values = np.stack([np.asarray(document, dtype=np.float32) for document in (above, below)])
    codes = explainer.paths.codes(values)
    scores = predict(explainer.paths.forest, values)
    return why_at(explainer, codes, values[:, list(explainer.paths.features)], scores, output=output)


def why_at(
    explainer: Explainer,
    codes: Codes,
    values: npt.NDArray[np.float32],
    scores: npt.NDArray[np.float64],
    *,
    output: int = 0,
) -> Why:
    """As `why`, for the ``codes`` and ``values`` (2, n_slots) of the features asked for, and the two ``scores``."""
    n_outputs = explainer.paths.forest.n_outputs
    if not 0 <= output < n_outputs:
        raise InputError(f"output must be in 0..{n_outputs - 1}, got {output}")
    found = explainer.contributions(codes)[:, output]
    totals = found.sum(axis=1) + explainer.expected[output]
    order = np.argsort(-np.abs(found[0] - found[1]), kind="stable")
    names = explainer.paths.feature_names
    return Why(
        scores=(float(scores[0]), float(scores[1])),
        output=output,
        outputs=(float(totals[0]), float(totals[1])),
        differences=tuple(
            Difference(
                names[slot],
                (float(values[0, slot]), float(values[1, slot])),
                (float(found[0, slot]), float(found[1, slot])),
            )
            for slot in order
        ),
    )
