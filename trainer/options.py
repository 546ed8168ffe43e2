"""The options by which commands take the parameters of a training, each under its own name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from rankmill.trainer.objectives.registry import OBJECTIVES

if TYPE_CHECKING:
    from rankmill.trainer.parameters import TrainParameters

NAMES = [name for name in OBJECTIVES if name != "user"]  # a command line has no functions


def training_parameters(
    *,
    objective: Annotated[
        str,
        typer.Option(
            metavar="NAME[(OPTION=VALUE, ..)]",
            help=f"The loss, such as lambdamart or quantile(alpha=0.9); docs/objectives.md says what each is for: {', '.join(NAMES)}.",
        ),
    ] = "lambdamart",
    criterion: Annotated[
        str,
        typer.Option(
            help="By which splits are chosen: se (squared error), rwse (weighted by curvature) or ole (the loss itself);"
            " left out: what the objective does best with.",
            show_default=False,
        ),
    ] = "",
    ole_features: Annotated[
        int, typer.Option(help="For ole: so many features that look best to rwse are searched by the loss; 0: all.")
    ] = 8,
    ole_pairs: Annotated[
        float,
        typer.Option(
            help="For ole: pairs a document drawn to measure curvature, about, and 65,536 at least; 0: all pairs."
        ),
    ] = 1.0,
    leaf: Annotated[
        str,
        typer.Option(
            help="Steps of leaves: newton, or exact (pairs of documents in one leaf do not count); left out: exact for ole.",
            show_default=False,
        ),
    ] = "",
    learn_from: Annotated[
        str,
        typer.Option(
            help="What to learn from, if DATASET has preference pairs: grades, pairs or both; left out: grades, or pairs if no"
            " query has two different grades.",
            show_default=False,
        ),
    ] = "",
    pairs_weight: Annotated[
        float,
        typer.Option(help="With --learn-from both: weight of a given pair, where a pair of different grades weighs 1."),
    ] = 1.0,
    metric: Annotated[
        str,
        typer.Option(
            help="What lambdamart optimises: ndcg, dcg, err, map, mrr, precision, recall, wta, rbp(p) or concordance, with"
            " @k; lambdaloss takes ndcg, apxdcg and stochasticrank ndcg or dcg.  The others are only stopped by it."
        ),
    ] = "ndcg@10",
    stop_metric: Annotated[
        str,
        typer.Option(
            help="Early stopping watches it on the valid split, deviance is the loss; left out: the metric itself (coxph: deviance).",
            show_default=False,
        ),
    ] = "",
    gain: Annotated[str, typer.Option(help="Gain of a grade y in the metrics: exp (2^y - 1) or linear (y).")] = "exp",
    n_rounds: Annotated[int, typer.Option(help="Trees at most.")] = 500,
    learning_rate: Annotated[float, typer.Option(help="Shrinkage of every tree, in (0, 1].")] = 0.1,
    early_stopping_rounds: Annotated[
        int,
        typer.Option(
            help="Stop after this many rounds without a better valid metric.  0: off, train N_ROUNDS rounds and keep them all."
        ),
    ] = 50,
    keep_rounds: Annotated[
        str,
        typer.Option(
            help="Rounds to keep: best (up to the best one on the valid split) or all that were trained; left out: best, but"
            " all with --early-stopping-rounds 0.",
            show_default=False,
        ),
    ] = "",
    min_improvement: Annotated[
        float, typer.Option(help="A round is better only if the value is so by more than this.")
    ] = 0.0,
    rounds_by: Annotated[
        str,
        typer.Option(
            help="Who says how many rounds are kept: valid (the valid split), test (queries of the train split that are"
            " kept apart), oob (what the trees of a round have not seen), or cv (a cross-validation first)."
        ),
    ] = "valid",
    holdout_fraction: Annotated[
        float, typer.Option(help="Share of the queries that are kept apart with --rounds-by test, in (0, 1).")
    ] = 0.2,
    folds: Annotated[int, typer.Option(help="Parts of a cross-validation.")] = 5,
    step_search: Annotated[
        str, typer.Option(help="line: scale the trees of a round by what lowers the loss most, then shrink; or none.")
    ] = "none",
    grow: Annotated[
        str,
        typer.Option(
            help="Which leaf is split next: best_first, breadth_first or depth_first; or oblivious, one condition for"
            " all leaves of a depth."
        ),
    ] = "best_first",
    max_leaves: Annotated[int, typer.Option(help="Leaves of a tree at most; oblivious trees have 2^max_depth.")] = 31,
    max_depth: Annotated[int, typer.Option(help="Depth of a tree at most; 0: no bound, oblivious trees 6.")] = 0,
    min_rows_in_leaf: Annotated[int, typer.Option(help="Documents in a leaf at least.")] = 20,
    min_hessian_in_leaf: Annotated[float, typer.Option(help="Sum of curvatures in a leaf at least.")] = 1e-3,
    lambda_l2: Annotated[float, typer.Option(help="Added to the curvature of a leaf.")] = 0.0,
    min_gain: Annotated[float, typer.Option(help="A split must gain more than this.")] = 0.0,
    monotone: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME:1|-1",
            help="Scores never fall (1) or never rise (-1) with this feature; repeat for several.",
        ),
    ] = None,
    feature_fraction: Annotated[
        float, typer.Option(help="Share of the features drawn for each tree, in (0, 1].")
    ] = 1.0,
    query_fraction: Annotated[float, typer.Option(help="Share of the queries drawn for each tree, in (0, 1].")] = 1.0,
    row_fraction: Annotated[
        float, typer.Option(help="Share of the documents of these queries drawn for each tree, in (0, 1].")
    ] = 1.0,
    sigma: Annotated[float, typer.Option(help="Steepness of the pairwise logistic loss.")] = 1.0,
    truncation: Annotated[int, typer.Option(help="Pairs need a document among the first so many by score.")] = 30,
    lambda_normalisation: Annotated[bool, typer.Option(help="Damp pairs far apart and scale queries alike.")] = True,
    seed: Annotated[int, typer.Option(help="Key of all randomness.")] = 7,
) -> TrainParameters:
    """Return what the options say; the same names and defaults as :class:`rankmill.trainer.parameters.TrainParameters`."""
    given = dict(locals())
    from rankmill.trainer.monotone import parse_monotone
    from rankmill.trainer.parameters import TrainParameters

    return TrainParameters(**{**given, "monotone": parse_monotone(monotone or ())})


def takes_training_parameters(command: Callable[..., None], without: Sequence[str] = ()) -> Callable[..., None]:
    """Give ``command`` the options of a training in the place of its argument ``parameters``, which it gets from them.

    Those in ``without`` would say nothing to it.
    """
    options = [option for option in _parameters_of(training_parameters) if option.name not in without]
    merged: list[inspect.Parameter] = []
    for parameter in _parameters_of(command):
        merged += options if parameter.name == "parameters" else [parameter]

    @wraps(command)
    def run(**given: Any) -> None:
        own = {option.name: given.pop(option.name) for option in options}
        command(parameters=training_parameters(**own), **given)

    run.__signature__ = inspect.Signature(merged)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in merged}
    return run


def _parameters_of(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return its parameters as ones by name, their annotations resolved."""
    hints = get_type_hints(function, localns={"TrainParameters": object}, include_extras=True)
    return [
        parameter.replace(annotation=hints[parameter.name], kind=inspect.Parameter.KEYWORD_ONLY)
        for parameter in inspect.signature(function).parameters.values()
    ]
