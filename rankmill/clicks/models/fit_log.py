"""Fit click models to a log and compare them on held-out sessions.

Intervals come from drawing sessions again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import e, exp, factorial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rankmill.clicks.models import _kernels as kernels
from rankmill.clicks.models.click_model import OFTEN, ClickModel, NotIdentified, fit_click_model
from rankmill.clicks.models.counts import ClickCounts, Weighting, count_clicks, deepest_rank, equally, summed
from rankmill.clicks.options import CLICK_MODELS, DEEPEST, ClickFitOptions, ClickModelName
from rankmill.clicks.result_lists import ClickLog, ResultLists
from rankmill.foundation.errors import InputError
from rankmill.foundation.kernels.randoms import random_bits_of
from rankmill.foundation.options import spelled
from rankmill.foundation.terminal import text_table
from rankmill.pipeline.judgments.propensities import HeldOutClicks, Propensities

Floats = npt.NDArray[np.float64]

WITH_INTERVALS = ("pbm", "allpairs", "randomised", "trust")  # models in which examination depends on the rank alone

_HELD_OUT, _REPLICATES = 1, 2  # elements of the sequence of a session's hash
_TOGETHER = 10  # replicates counted in one reading of the log
_MOST_DRAWN = 12  # times that a session counts in a replicate; more has a probability of 6e-11
_QUANTILE = 1.959963984540054  # of the normal distribution, for 95 %
_AS_LIKELY = 10.0  # log-likelihood of all held-out impressions
_BETTER = 0.005  # of the log-likelihood
_MORE_RELEVANT = 1.2  # documents at a rank than at one above, if a model is to be believed


@dataclass(frozen=True, slots=True)
class FittedClicks:
    """What a click model of a log says; its relevance of all documents, 16 bytes each, is not kept."""

    converged: bool
    propensities: Propensities


@dataclass(frozen=True, slots=True)
class ClickFitReport:
    """The result of ``rankmill clicks fit``."""

    path: Path
    converged: bool
    propensities: Propensities

    def render(self) -> str:
        """Return the report as text."""
        found = self.propensities
        columns = {"examination": found.examination, "from": found.low, "to": found.high, "trust": found.trust}
        if found.continuation is not None:
            columns["continues after a click"] = found.continuation
        columns["perplexity"] = None if found.held_out is None else found.held_out.perplexity
        shown = {name: values for name, values in columns.items() if values is not None}
        rows = [[str(k + 1), *(f"{values[k]:.4f}" for values in shown.values())] for k in range(len(found.examination))]
        lines = [text_table(["rank", *shown], rows), ""]
        if found.held_out is not None:
            lines.append(
                f"held-out log-likelihood {found.held_out.log_likelihood:.5f} an impression,"
                f" {found.held_out.impressions:,} impressions"
            )
        if not self.converged:
            lines.append("the fit did not converge; the log hardly determines this model")
        return "\n".join([*lines, f"{self.path}: click model {found.model}"])


@dataclass(frozen=True, slots=True)
class ClickModelComparison:
    """The models that a log determines, and why others are left out."""

    fitted: dict[ClickModelName, FittedClicks]
    refused: dict[ClickModelName, str]
    doubted: dict[ClickModelName, str]
    """Fitted models by which documents at a rank are more relevant than those above: they find too little examination
    there."""
    counts: ClickCounts
    """Of all sessions, which the models are fitted to."""

    @property
    def recommended(self) -> ClickModelName:
        """The model without doubts that predicts held-out clicks best.

        Of those within 1e-4 of its log-likelihood, it is the first.

        ``dctr`` corrects nothing, and is only taken if its log-likelihood over all held-out impressions is not worse by
        10, too.  Where most documents keep their positions, it predicts almost as well as models that know why.
        ``ubm`` and ``allpairs`` only if they are better by 0.5 %: with a number for each two positions they gain some
        by chance.
        """

        def held_out(name: ClickModelName) -> float:
            figures = self.fitted[name].propensities.held_out
            return -np.inf if figures is None else figures.log_likelihood

        def as_good(name: ClickModelName) -> float:
            figures = self.fitted[name].propensities.held_out
            return 1e-4 if name != "dctr" or figures is None else min(1e-4, _AS_LIKELY / figures.impressions)

        believed = [name for name in self.fitted if name not in self.doubted] or list(self.fitted)
        plain = [name for name in believed if name not in {"ubm", "allpairs"}] or believed
        best = max(map(held_out, plain))
        flexible = [name for name in believed if held_out(name) > best + _BETTER * abs(best)]
        if flexible:
            return max(flexible, key=held_out)
        return next(name for name in plain if held_out(name) >= best - as_good(name))


def fit_clicks(log: ClickLog, name: ClickModelName, options: ClickFitOptions | None = None) -> FittedClicks:
    """Return the click model ``name`` of all sessions, with figures of a fit to the sessions that are not held out.

    Raises
    ------
    NotIdentified
        The log does not determine the model.
    InputError
        The log is empty, or ``randomised`` has no policy.
    """
    compared = compare_click_models(log, options, (name,))
    if name in compared.refused:
        raise NotIdentified(compared.refused[name])
    return compared.fitted[name]


def compare_click_models(
    log: ClickLog, options: ClickFitOptions | None = None, names: Sequence[ClickModelName] = ()
) -> ClickModelComparison:
    """Fit all models (or those of ``names``) as :func:`fit_clicks` does.

    ``randomised`` is fitted only if the options name a policy.

    Raises
    ------
    InputError
        As :func:`fit_clicks`.
    """
    options = options or ClickFitOptions()
    names = names or [name for name in CLICK_MODELS if name != "randomised" or options.policy is not None]
    ranks = min(options.ranks or DEEPEST, deepest_rank(log))
    if ranks == 0:
        raise InputError("the log has no result list")
    random = _of_policy(log, options.policy) if "randomised" in names else None
    training, held_out = _part(options.held_out, held=False), _part(options.held_out, held=True)
    weightings = [equally, training] + ([] if random is None else [random, _both(random, training)])
    counts = count_clicks(log, ranks, weightings)
    fitted: dict[ClickModelName, FittedClicks] = {}
    refused: dict[ClickModelName, str] = {}
    for name in names:
        at_random: Sequence[ClickCounts | None] = counts[2:] if name == "randomised" else (None, None)
        try:
            model = fit_click_model(name, counts[0], options, random=at_random[0])
            fit_to_part = fit_click_model(name, counts[1], options, start=model, random=at_random[1])
            figures = _held_out_figures(log, fit_to_part, held_out)
        except NotIdentified as error:
            refused[name] = str(error)
            continue
        interval = None
        if options.replicates and name in WITH_INTERVALS:
            interval = _interval(log, model, options, random if name == "randomised" else None)
        fitted[name] = FittedClicks(model.converged, _propensities(log, model, interval, figures))
    doubts = {name: _doubt(counts[0], one.propensities) for name, one in fitted.items() if name != "dctr"}
    return ClickModelComparison(fitted, refused, {name: why for name, why in doubts.items() if why}, counts[0])


def _doubt(counts: ClickCounts, found: Propensities) -> str:
    """Return why ``found`` is doubtful.

    Relevance that rises from rank to rank explains it by more than twice its standard error.
    """
    shown, clicked = counts.by_rank(counts.shown), counts.by_rank(counts.clicked)
    trust = 0.0 if found.trust is None else np.array(found.trust)
    with np.errstate(divide="ignore", invalid="ignore"):
        rate, examination = clicked / shown, np.array(found.examination)
        far = counts.clicked - counts.shown * rate[counts.rank - 1]
        # documents are what varies, so their rows (by last click) are one
        first = np.flatnonzero(np.diff(counts.document * counts.ranks + counts.rank, prepend=-1))
        spread = summed(counts.rank[first] - 1, np.add.reduceat(far, first) ** 2, counts.ranks)
        relevance = np.maximum(rate - trust, 0.0) / examination
        error = 2.0 * np.sqrt(spread) / shown / examination
    least = np.nan_to_num(relevance - error, nan=0.0)
    most = np.minimum.accumulate(np.nan_to_num(relevance + error, nan=np.inf))
    k = int(np.argmax(least - _MORE_RELEVANT * most))
    if least[k] <= _MORE_RELEVANT * most[k]:
        return ""
    above = int(np.argmin(relevance[:k] + error[:k]))
    return (
        f"by {found.model}, documents at position {k + 1} are {relevance[k] / relevance[above]:.1f} times as relevant "
        f"as those at {above + 1}, so examination there comes out too small"
    )


def _propensities(
    log: ClickLog, model: ClickModel, interval: tuple[Floats, Floats] | None, figures: HeldOutClicks
) -> Propensities:
    ranks = len(model.continuation)
    examination = model.by_rank
    if model.name not in WITH_INTERVALS:  # depends on clicks: the mean over the lists of the log
        sums = _followed(log, model, equally)
        examination = sums[2] / np.maximum(sums[0], 1.0)
        examination = np.maximum(examination / examination[0], kernels.LEAST)
    table = [tuple(_complete(model)[k, : k + 1].tolist()) for k in range(ranks)]
    return Propensities(
        model=model.name,
        examination=tuple(examination.tolist()),
        low=None if interval is None else tuple(interval[0].tolist()),
        high=None if interval is None else tuple(interval[1].tolist()),
        continuation=tuple(model.continuation.tolist()) if model.name == "dcm" else None,
        by_last_click=tuple(table) if model.name == "ubm" else None,
        trust=tuple(model.trust.tolist()) if model.name == "trust" else None,
        held_out=figures,
    )


def _complete(model: ClickModel) -> Floats:
    """Return the examination table (ranks, ranks + 1).

    Where it is not identified it is that of a list without clicks.
    """
    return np.where(np.isnan(model.examination), model.examination[:, :1], model.examination)


def _followed(log: ClickLog, model: ClickModel, weighting: Weighting) -> Floats:
    """Return sums by rank (4, ranks) of the predictions for the lists that count; see ``follow_lists``."""
    out, first, table = np.zeros((4, len(model.continuation))), 0, _complete(model)
    for block in log.blocks():
        lists, n = block.lists, len(block.documents)
        keep = (weighting(lists) > 0.0).astype(np.uint8)
        relevance = model.shrunken[first : first + n]
        columns = (lists.start, lists.document, lists.rank, lists.clicked)
        kernels.follow_lists(*columns, keep, relevance, table, model.continuation, model.trust, out)
        first += n
    return out


def _held_out_figures(log: ClickLog, model: ClickModel, held_out: Weighting) -> HeldOutClicks:
    shown, likelihood = _followed(log, model, held_out)[:2]
    if shown.sum() == 0.0:
        raise InputError(f"no session is held out; choose a larger {spelled('held_out')}")
    return HeldOutClicks(
        impressions=int(shown.sum()),
        log_likelihood=float(likelihood.sum() / shown.sum()),
        perplexity=tuple(exp(-value) for value in (likelihood / np.maximum(shown, 1.0)).tolist()),
    )


def _interval(
    log: ClickLog, model: ClickModel, options: ClickFitOptions, random: Weighting | None
) -> tuple[Floats, Floats] | None:
    """Return the ends of the 95 % intervals (ranks,).

    They are normal on the logarithm, by the spread over bootstrap samples of sessions.

    None if fewer than half of the samples determine the model.
    """
    found = []
    # the other documents have no part in the fit, but many rows
    least = OFTEN if model.only_often else 0
    for counts in _samples(log, len(model.continuation), options.replicates, random, least):
        try:
            found.append(np.log(fit_click_model(model.name, counts, options, start=model).by_rank))
        except NotIdentified:
            continue
    if len(found) < max(options.replicates / 2, 2):
        return None
    half = _QUANTILE * np.std(found, axis=0, ddof=1)
    return model.by_rank * np.exp(-half), model.by_rank * np.exp(half)


def _samples(
    log: ClickLog, ranks: int, replicates: int, among: Weighting | None, least_shown: int
) -> Iterator[ClickCounts]:
    """Yield the counts of samples in which each session counts a Poisson number of times, 1 on average."""
    for first in range(0, replicates, _TOGETHER):
        numbers = range(first, min(first + _TOGETHER, replicates))
        drawn = [_drawn(number) for number in numbers]
        weightings = drawn if among is None else [_both(among, each) for each in drawn]
        yield from count_clicks(log, ranks, weightings, least_shown=least_shown)


def _drawn(replicate: int) -> Weighting:
    shares = np.cumsum([1.0 / e / factorial(n) for n in range(_MOST_DRAWN)])

    def weights(lists: ResultLists) -> Floats:
        out = np.empty(len(lists.session))
        kernels.poisson_weights(_keys(lists, _REPLICATES), np.int64(replicate), shares, out)
        return out

    return weights


def _part(share: float, *, held: bool) -> Weighting:
    limit = np.uint64(int(share * 2.0**63))

    def weights(lists: ResultLists) -> Floats:
        drawn = (_keys(lists, _HELD_OUT) >> np.uint64(1)) < limit
        return np.where(drawn == held, 1.0, 0.0)

    return weights


def _keys(lists: ResultLists, stream: int) -> npt.NDArray[np.uint64]:
    return random_bits_of(lists.session, np.array([stream], dtype=np.uint64))


def _both(one: Weighting, other: Weighting) -> Weighting:
    return lambda lists: one(lists) * other(lists)


def _of_policy(log: ClickLog, policy: str | None) -> Weighting:
    known = ", ".join(repr(name) for name in log.policies)
    if policy is None:
        raise InputError(f"randomised: name the policy of random order with {spelled('policy')}; the log has {known}")
    if policy not in log.policies:
        raise InputError(f"{spelled('policy')}: the log has no {policy!r}, but {known}")
    number = log.policies.index(policy)
    return lambda lists: (lists.policy == number).astype(np.float64)
