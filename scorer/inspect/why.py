"""Why one document stands above another: the difference of their contributions, feature by feature.

Contributions are Shapley values (`rankmill.scorer.inspect.shap`), so the differences add up to that of the two outputs, and what all
documents of a query have alike falls out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches

import numpy as np
import numpy.typing as npt

from rankmill.foundation.errors import InputError
from rankmill.scorer.forest import Forest
from rankmill.scorer.inspect.paths import Codes
from rankmill.scorer.inspect.shap import Explainer
from rankmill.scorer.predict import predict


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


def chosen_two(
    doc_ids: Sequence[str], scores: npt.NDArray[np.float64], above: str | None, below: str | None, qid: str
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Find two documents of one query by their ids.

    Parameters
    ----------
    doc_ids, scores
        Of the documents of the query, ids ascending: equal scores are ranked in this order, as `rerank` does.
    above, below
        Ids; None: the first document, and the one right below the other.
    qid
        The query, for messages.

    Returns
    -------
    Their places among the documents, and their ranks from 1.

    Raises
    ------
    InputError
        There is no such document, both are the same, or there is none below.
    """
    order = np.argsort(-scores, kind="stable")
    rank_of = np.empty(len(order), dtype=np.int64)
    rank_of[order] = np.arange(len(order))

    def place(name: str) -> int:
        if name in doc_ids:
            return doc_ids.index(name)
        near = get_close_matches(name, doc_ids, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"such as {doc_ids[0]!r}"
        raise InputError(f"query {qid}: there is no document {name!r} among its {len(doc_ids):,}; {hint}")

    first = int(order[0]) if above is None else place(above)
    if below is not None:
        second = place(below)
    elif rank_of[first] + 1 < len(order):
        second = int(order[rank_of[first] + 1])
    else:
        raise InputError(f"query {qid}: no document stands below {doc_ids[first]!r}; name another one with --below")
    if first == second:
        raise InputError(f"query {qid}: {doc_ids[first]!r} is compared with itself; name two documents")
    return (first, second), (int(rank_of[first]) + 1, int(rank_of[second]) + 1)
