"""Charts of models and results for notebooks, as Altair charts; Altair is the optional extra ``rankmill[plots]``.

A chart contains its data and can be modified like any Altair chart: ``plot_importance(ranker).properties(width=600)``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import polars as pl

from rankmill.foundation.errors import InputError, InvalidParameter, MissingLibrary
from rankmill.foundation.scalars import whole_number
from rankmill.python.feature_table import matrix_for
from rankmill.python.ranker import Ranker
from rankmill.scorer.evaluate.evaluation import Evaluation
from rankmill.scorer.forest.forest import Forest, feature_importance
from rankmill.scorer.inspect.dependence import partial_dependence
from rankmill.scorer.inspect.paths import leaf_paths
from rankmill.scorer.inspect.shap import shap_values

if TYPE_CHECKING:
    import altair as alt

__all__ = [
    "plot_dependence",
    "plot_importance",
    "plot_learning_curve",
    "plot_metric_by_slice",
    "plot_shap_summary",
]

Model: TypeAlias = Ranker | Forest
T = TypeVar("T")

MOST_POINTS = 3000  # per chart: Altair allows 5000, and each one adds text to the notebook
MOST_STEPS = 40  # values of each feature in a chart of two features
_NO_RANK = "#888"  # colour of values without an order: categories, and what is missing
_SEED = 0  # of the jitter in a chart of SHAP values


def plot_learning_curve(ranker: Ranker, metric: str | None = None) -> alt.LayerChart:
    """Plot a metric after every round, one line per set; a dashed line marks the round that was kept.

    Parameters
    ----------
    ranker
        A fitted ranker; a loaded one has no history.
    metric
        A metric that was measured in training; None: the first.

    Raises
    ------
    InputError
        There is no history, or no such metric in it.
    MissingLibrary
        Altair is not installed.
    """
    alt = _altair("plot_learning_curve")
    _checked("ranker", ranker, Ranker, "a ranker, which has the history of its training").fitted("plot_learning_curve")
    curves = ranker.evals_result_
    measured = list(next(iter(curves.values()), {}))
    if not measured:
        raise InputError("a loaded ranker has no history to plot; fit it again")
    chosen = _one_of("metric", metric, measured)
    rows = [
        {"round": number, "set": name, chosen: value}
        for name, metrics in curves.items()
        for number, value in enumerate(metrics[chosen], start=1)
    ]
    lines = alt.Chart(_spread(pl.DataFrame(rows), "round")).mark_line()
    lines = lines.encode(
        x=alt.X("round:Q", title="round"),
        y=alt.Y(_quantity(chosen), title=chosen, scale=alt.Scale(zero=False)),
        color=alt.Color("set:N", title=None, sort=list(curves)),
        tooltip=["set:N", "round:Q", alt.Tooltip(_quantity(chosen), format=".4f", title=chosen)],
    )
    kept = alt.Chart(pl.DataFrame({"round": [ranker.best_round_]})).mark_rule(strokeDash=[4, 4], opacity=0.6)
    return lines + kept.encode(x="round:Q", tooltip=[alt.Tooltip("round:Q", title="kept")])


def plot_importance(model: Model, top: int = 20) -> alt.Chart:
    """Plot the ``top`` features by their share of the gain of all splits.

    Raises
    ------
    MissingLibrary
        Altair is not installed.
    """
    alt = _altair("plot_importance")
    forest = _forest_of(model)
    shares = feature_importance(forest)
    order = np.argsort(-shares, kind="stable")[: _checked_top(top)]
    frame = pl.DataFrame({"feature": [forest.feature_names[f] for f in order], "share": shares[order]})
    bars = alt.Chart(frame).mark_bar()
    return bars.encode(
        x=alt.X("share:Q", title="share of gain", axis=alt.Axis(format="%")),
        y=alt.Y("feature:N", sort=None, title=None),
        tooltip=["feature:N", alt.Tooltip("share:Q", format=".2%")],
    )


def plot_dependence(model: Model, *features: str, X: Any = None) -> alt.Chart | alt.LayerChart:  # noqa: N803
    """Plot the partial dependence of the score on one feature as steps, or on two as colours.

    A categorical feature has a point for each category, and one for all others.

    Parameters
    ----------
    model
        A fitted ranker or a forest of one output.
    features
        One name or two.
    X
        Documents to average over, as :meth:`Ranker.predict` takes them; None: the training rows, from counts in the
        model.

    Raises
    ------
    InputError
        A feature is unknown, the model has several outputs, or ``X`` has no rows.
    MissingLibrary
        Altair is not installed.
    """
    alt = _altair("plot_dependence")
    forest = _forest_of(model)
    _require_one_output(forest, "plot_dependence")
    values = None if X is None else matrix_for(forest, X)
    if values is not None and not len(values):
        raise InputError("plot_dependence averages over documents, and X has no rows")
    found = partial_dependence(forest, features, values=values)
    axes, score = [points.astype(np.float64) for points in found.points], found.outputs[0]
    texts = found.categories or {}
    if len(features) == 2:
        kept = [
            _evenly_spaced(np.flatnonzero(~np.isnan(axis) if name in texts else np.isfinite(axis)))
            for name, axis in zip(features, axes, strict=True)
        ]
        ticks = [
            np.array(texts[name], dtype=object)[own] if name in texts else axis[own]
            for name, axis, own in zip(features, axes, kept, strict=True)
        ]
        first, second = np.meshgrid(*ticks, indexing="ij")
        cells = pl.DataFrame(
            {"a": first.ravel().tolist(), "b": second.ravel().tolist(), "score": score[np.ix_(*kept)].ravel()}
        )
        formats: list[Any] = [
            alt.Axis(labelOverlap=True, **({} if name in texts else {"format": ".3~g"})) for name in features
        ]
        squares = alt.Chart(cells).mark_rect().properties(width=400, height=400)
        return squares.encode(
            x=alt.X("a:O", title=features[0], axis=formats[0]),
            y=alt.Y("b:O", title=features[1], sort="descending", axis=formats[1]),
            color=alt.Color("score:Q", title="mean score", scale=alt.Scale(scheme="viridis")),
            tooltip=[
                *("ab"[i] + (":N" if name in texts else ":Q") for i, name in enumerate(features)),
                alt.Tooltip("score:Q", format=".4f"),
            ],
        )
    missing = alt.Chart(pl.DataFrame({"score": score[np.isnan(axes[0])]})).mark_rule(strokeDash=[4, 4], opacity=0.6)
    if texts:
        known = ~np.isnan(axes[0])
        frame = pl.DataFrame(
            {
                "category": [text for text, kept in zip(texts[features[0]], known, strict=True) if kept],
                "score": score[known],
            }
        )
        points = alt.Chart(frame.sort("score", descending=True).head(MOST_STEPS)).mark_point(
            filled=True, size=60, opacity=1
        )
        return points.encode(
            x=alt.X("score:Q", title="mean score", scale=alt.Scale(zero=False)),
            y=alt.Y("category:N", sort=None, title=features[0]),
            tooltip=["category:N", alt.Tooltip("score:Q", format=".4f")],
        ) + missing.encode(x="score:Q", tooltip=[alt.Tooltip("score:Q", format=".4f", title="score if missing")])
    finite = np.isfinite(axes[0])
    x, y = axes[0][finite], score[finite]
    room = 0.05 * (x[-1] - x[0]) or 1.0  # the score is constant beyond the thresholds
    frame = pl.DataFrame({"value": [x[0] - room, *x, x[-1] + room], "score": [y[0], *y, y[-1]]})
    steps = alt.Chart(_spread(frame, "value")).mark_line(interpolate="step-before")
    return steps.encode(
        x=alt.X("value:Q", title=features[0], scale=alt.Scale(zero=False, nice=False)),
        y=alt.Y("score:Q", title="mean score", scale=alt.Scale(zero=False)),
        tooltip=[alt.Tooltip("value:Q", format=".4~g"), alt.Tooltip("score:Q", format=".4f")],
    ) + missing.encode(y="score:Q", tooltip=[alt.Tooltip("score:Q", format=".4f", title="score if missing")])


def plot_shap_summary(model: Model, X: Any, qid: npt.ArrayLike | None = None, top: int = 12) -> alt.Chart:  # noqa: N803
    """Plot the SHAP values of documents, one row of points per feature.

    Features are sorted by mean absolute value, largest first.

    The colour is the rank of the value among those of the feature; categories and missing values, which have none, are
    grey.

    Parameters
    ----------
    model
        A fitted ranker or a forest of one output.
    X
        Documents, as :meth:`Ranker.predict` takes them; if there are many, an evenly spaced subset is shown.
    qid
        (n,) query of each document: if given, values are relative to the mean over the query.
    top
        Number of features.

    Raises
    ------
    InputError
        The model has several outputs, or has no counts of training rows; or ``X`` has no rows.
    MissingLibrary
        Altair is not installed.
    """
    alt = _altair("plot_shap_summary")
    forest = _forest_of(model)
    _require_one_output(forest, "plot_shap_summary")
    values = matrix_for(forest, X)
    if not len(values):
        raise InputError("plot_shap_summary needs documents, and X has no rows")
    contributions = shap_values(forest, values, qid=qid).values[:, 0, :]
    sizes = np.abs(contributions).mean(axis=0)
    order = np.argsort(-sizes, kind="stable")[: _checked_top(top)]
    shown = _evenly_spaced(np.arange(len(values)), MOST_POINTS // max(len(order), 1))
    apart = np.random.Generator(np.random.PCG64(_SEED)).uniform(size=len(shown))
    paths = leaf_paths(forest)
    texts = {f: paths.value_names(paths.features.index(f), values[shown, f]) for f in order if f in paths.features}
    in_order = pl.col("value").rank("average")
    parts = [
        pl.DataFrame(
            {
                "shap": contributions[shown, f],
                "value": pl.Series(
                    values[shown, f] if texts.get(f) is None else np.full(len(shown), np.nan), nan_to_null=True
                ),
                "apart": apart,
                "category": pl.Series(texts.get(f), dtype=pl.String) if texts.get(f) else [""] * len(shown),
            }
        ).select(
            pl.lit(forest.feature_names[f]).alias("feature"),
            pl.col("shap").cast(pl.Float64).round_sig_figs(5),
            pl.when(pl.col("value").is_finite()).then(pl.col("value").cast(pl.Float64).round_sig_figs(5)),
            ((in_order - 1) / (pl.col("value").count() - 1).clip(lower_bound=1)).round(3).alias("rank"),
            pl.col("apart").round(2),
            *(["category"] if forest.categories else []),
        )
        for f in order
    ]
    points = alt.Chart(pl.concat(parts)).mark_circle(
        size=14, opacity=0.7, invalid=None
    )  # else points without rank are left out
    points = points.properties(width=440, height=26 * len(parts))
    return points.encode(
        x=alt.X("shap:Q", title="SHAP value: what the feature adds to the score"),
        y=alt.Y("feature:N", sort=[forest.feature_names[f] for f in order], title=None),
        yOffset=alt.YOffset("apart:Q", scale=alt.Scale(domain=[-0.3, 1.3])),
        color=alt.condition(
            "!isValid(datum.rank)",
            alt.value(_NO_RANK),
            alt.Color("rank:Q", title="value: low to high", scale=alt.Scale(scheme="viridis"),
                      legend=alt.Legend(format="%")),
        ),
        tooltip=[
            "feature:N", alt.Tooltip("value:Q", format=".4~g"), *(["category:N"] if forest.categories else []),
            alt.Tooltip("shap:Q", format=".4f"),
        ],
    )  # fmt: skip


def plot_metric_by_slice(evaluation: Evaluation, by: str | None = None, metric: str | None = None) -> alt.LayerChart:
    """Plot a metric with its 95 % interval for each slice of an evaluation.

    A dashed line marks the value over all queries.

    Parameters
    ----------
    evaluation
        The result of ``evaluate(.., by=[..])``.
    by
        One of the columns in ``by``; None: the first.
    metric
        One of its metrics; None: the first.

    Raises
    ------
    InputError
        It has no slices, or no such column or metric.
    MissingLibrary
        Altair is not installed.
    """
    alt = _altair("plot_metric_by_slice")
    if not _checked("evaluation", evaluation, Evaluation, "what evaluate(.., by=[..]) returns").slices:
        raise InputError("the evaluation has no slices; give evaluate a column: by=[..]")
    column = _one_of("by", by, [each.by for each in evaluation.slices])
    name = _one_of("metric", metric, [str(each) for each in evaluation.metrics])
    chosen = next(each for each in evaluation.metrics if str(each) == name)
    rows = []
    for each in next(slices for slices in evaluation.slices if slices.by == column).slices:
        figure = each.metrics[chosen]
        low, high = figure.interval or (figure.mean, figure.mean)
        rows.append({"slice": each.name, "queries": figure.n_queries, "mean": figure.mean, "low": low, "high": high})
    types = {"slice": pl.String, "queries": pl.Int64, "mean": pl.Float64, "low": pl.Float64, "high": pl.Float64}
    base = alt.Chart(pl.DataFrame(rows, schema=types)).encode(y=alt.Y("slice:N", sort=None, title=column))
    tips = ["slice:N", "queries:Q", *(alt.Tooltip(f"{end}:Q", format=".4f") for end in ("mean", "low", "high"))]
    intervals = base.mark_rule().encode(x=alt.X("low:Q", title=name, scale=alt.Scale(zero=False)), x2="high:Q")
    means = base.mark_point(filled=True, size=60, opacity=1).encode(x="mean:Q", tooltip=tips)
    whole = alt.Chart(pl.DataFrame({"mean": [evaluation.means[chosen]]})).mark_rule(strokeDash=[4, 4], opacity=0.6)
    return intervals + means + whole.encode(x="mean:Q", tooltip=[alt.Tooltip("mean:Q", format=".4f", title="all")])


def _altair(what: str) -> Any:
    """Return Altair; MissingLibrary with the cure if it is not installed."""
    try:
        import altair
    except ImportError:
        raise MissingLibrary(
            f"{what} needs Altair, which is not installed; install it with: pip install 'rankmill[plots]'"
        ) from None
    return altair


def _forest_of(model: Model) -> Forest:
    if isinstance(model, Forest):
        return model
    return _checked("model", model, Ranker, "a ranker or its forest_").fitted_forest("a plot")


def _checked(name: str, given: Any, kind: type[T], words: str) -> T:
    """Return what is ``given`` as ``name`` if it is of this ``kind``; else InvalidParameter."""
    if not isinstance(given, kind):
        raise InvalidParameter(f"{name} must be {words}, got a {type(given).__name__}")
    return given


def _checked_top(top: int) -> int:
    if whole_number("top", top) < 1:
        raise InvalidParameter(f"top must be 1 or more, got {top}")
    return top


def _require_one_output(forest: Forest, what: str) -> None:
    if forest.n_outputs > 1:
        raise InputError(f"{what} is for models of one output, this one has {forest.n_outputs}")


def _one_of(what: str, name: str | None, known: Sequence[str]) -> str:
    if name is None:
        return known[0]
    if name not in known:
        raise InputError.unknown(what, name, known)
    return name


def _quantity(name: str) -> str:
    """Escape the name of a column of numbers for Altair."""
    for special in "\\:.[]":
        name = name.replace(special, f"\\{special}")
    return f"{name}:Q"


def _evenly_spaced(places: npt.NDArray[np.int64], most: int = MOST_STEPS) -> npt.NDArray[np.int64]:
    """Return at most ``most`` of ``places``, evenly spaced, including the first and the last."""
    if len(places) <= most:
        return places
    return places[np.unique(np.linspace(0, len(places) - 1, most).round().astype(np.int64))]


def _spread(frame: pl.DataFrame, by: str) -> pl.DataFrame:
    """Return ``frame``, reduced to evenly spaced values of ``by`` if it has too many rows for Altair."""
    values = frame[by].unique().sort()
    rows_each = max(1, len(frame) // max(len(values), 1))
    kept = values.gather(_evenly_spaced(np.arange(len(values)), MOST_POINTS // rows_each))
    return frame if len(kept) == len(values) else frame.filter(pl.col(by).is_in(kept.to_list()))
