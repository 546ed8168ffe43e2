"""Training options.  TrainParameters are stored in the model file, so none of them depends on the machine."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from math import fsum
from pathlib import Path
from typing import Any

from rankmill.foundation.errors import InvalidParameter, name_hint
from rankmill.foundation.options import (
    DEFAULTS,
    STORED_DEFAULTS,
    declared_in,
    option,
    option_like,
    option_of,
    options,
    spelled,
    with_option_names,
)
from rankmill.scorer.metrics.metric_options import Policy
from rankmill.trainer.by_feature import (
    as_amounts,
    as_groups,
    parse_amounts,
    parse_groups,
    parse_monotone,
    without_zeros,
)
from rankmill.trainer.clicks.propensities_given import as_propensities
from rankmill.trainer.goal_options import MIXES, ROUNDING, SUM, as_goals, parse_goals
from rankmill.trainer.incompatible import check_given
from rankmill.trainer.objectives.spelling import OBJECTIVES, canonical
from rankmill.trainer.toml_files import read_toml

AUTO = "auto-1"
BLENDING = "auto-2"
FAST, USUAL = BUDGETS = ("fast", "default")
PRESETS = (DEFAULTS, AUTO, BLENDING)  # a new number whenever what it decides changes
OF_EVERY_KIND = ("preset", "budget", "metric", "stop_metric", "gain", "seed", "refit", "early_stopping_rounds")
"""Options that a blend of models of several kinds takes; with another one the preset ``auto-2`` trains trees alone."""

CRITERIA = ("rwse", "se", "ole")
CRITERION_ALIASES = {"wse": "rwse"}  # equal wherever h > 0 (Li 2010)
LEAVES = ("newton", "exact")
GRADES, PAIRS, BOTH = LEARN_FROM = ("grades", "pairs", "both")
KEEP_ROUNDS = ("best", "all")
ROUNDS_BY = ("valid", "test", "oob", "cv")
REFITS = NONE, ALL = ("none", "all")
STEP_SEARCHES = ("none", "line")
L2_SCALES = (NONE, "mean_hessian")
BOOTSTRAPS = _, BAYESIAN, MVS, GOSS = (NONE, "bayesian", "mvs", "goss")
BOOSTINGS = GBDT, DART, RF = ("gbdt", "dart", "rf")
BOOTSTRAP_UNITS = QUERY, DOCUMENT = ("query", "document")
LEAF_ROWS = ("sample", ALL)
COMPARE_BY = VALID, FOLDS = ("valid", "folds")
USUAL_FOLDS = 5
POSITION_BIASES = _, ADDITIVE, UNBIASED = (NONE, "additive", "unbiased")
GROWTHS = ("best_first", "breadth_first", "depth_first", "oblivious")
OBLIVIOUS_DEPTH = 6  # where max_depth is left at 0
MOST_OBLIVIOUS_DEPTH = 12  # 4096 leaves; half as many histograms in memory
MOST = 1_000_000
NAMES = [name for name in OBJECTIVES if name != "user"]  # functions cannot be given on a command line

younger = partial(option, always_stored=False)
"""An option that files name only where its value is not that of the oldest preset."""


@options
class TrainParameters:
    """Parameters of one training run.

    Numbers of any kind may be given, NumPy's too, and are kept as plain int and float: ``max_leaves=31.0`` is 31,
    ``max_leaves=31.5`` is refused.  A direction of 0 in ``monotone`` means no constraint and is dropped.

    Raises
    ------
    InvalidParameter
        A value is of another kind or outside its bounds; the message has name, bound and value.
    """

    preset: str = option(
        default=BLENDING,
        help="What chooses the options that you leave out: auto-2 (blends two kinds of trees and a net; with an option "
        "of trees alone it is auto-1), auto-1 (by the number of queries) or defaults-1 (fixed values). Options that "
        "you give always win.",
        choices=PRESETS,
    )
    budget: str = younger(
        default=USUAL,
        help="Time that the preset auto-2 may take: fast (the trees of auto-1 alone) or default (a blend).",
        choices=BUDGETS,
    )
    objective: str = option(
        default="lambdamart",
        by_preset=True,
        help="Loss to minimise, such as lambdamart or quantile(alpha=0.9). docs/objectives.md describes each.  One of: "
        + ", ".join(NAMES)
        + ".",
        metavar="NAME[(OPTION=VALUE, ..)]",
        convert=canonical,
    )
    learn_from: str = option(
        default="",
        help="Learn from grades, pairs or both, if DATASET has preference pairs. Default: grades, or"
        " pairs if no query has two different grades.",
        choices=("", *LEARN_FROM),
    )
    pairs_weight: float = option(
        default=1.0,
        help="Weight of a given preference pair when learning from both. A pair of different grades has weight 1.",
        above=0,
    )
    goals: Mapping[str, float] = younger(
        default_factory=dict,
        help="Further grades of the dataset to learn from, and their weights of 1 together at most: the grade has the "
        "rest.",
        metavar="NAME:WEIGHT,..",
        read=parse_goals,
        repeat=True,
        convert=as_goals,
    )
    mix_goals: str = younger(
        default=SUM,
        help="How the losses of goals are combined. sum: weighted sum of their gradients. draw: in each round each "
        "query learns from one of the grades, drawn with the weights as probabilities.",
        choices=MIXES,
    )
    metric: str = option(
        default="ndcg@10",
        help="Metric that lambdamart optimises: ndcg, dcg, err, map, mrr, precision, recall, wta, rbp(p) or "
        "concordance, with @k. yetirank(mode=metric) supports all but concordance, stochasticrank ndcg, dcg, err and "
        "mrr, apxdcg ndcg and dcg, lambdaloss ndcg. Other objectives use it for early stopping only, a blend also for "
        "its weights.",
    )
    stop_metric: str = option(
        default="",
        help="Metric that early stopping watches on the valid split; deviance is the loss. Default:"
        " the same as metric (coxph: deviance).",
    )
    gain: str = option_like(Policy, "gain", default="exp")
    n_rounds: int = option(default=500, by_preset=True, help="Maximum number of boosting rounds.", least=1, most=MOST)
    learning_rate: float = option(
        default=0.1, by_preset=True, help="Shrinkage of each tree, in (0, 1].", above=0.0, most=1.0
    )
    boosting: str = younger(
        default="gbdt",
        help="How rounds add up. gbdt: each corrects the sum of all before it. dart: each corrects the sum without "
        "some dropped rounds. rf: random forest, the mean of independent trees; learning_rate is not used.",
        choices=BOOSTINGS,
    )
    drop_rate: float = younger(
        default=0.1, help="With dart: probability that an earlier round is dropped, on average.", least=0, most=1
    )
    skip_drop: float = younger(default=0.5, help="With dart: probability that a round drops nothing.", least=0, most=1)
    max_drop: int = younger(
        default=50, help="With dart: maximum number of dropped rounds; 0: unlimited.", least=0, most=MOST
    )
    uniform_drop: bool = younger(
        default=False, help="With dart: drop all rounds equally often, not in proportion to their weights."
    )
    xgboost_dart_mode: bool = younger(
        default=False,
        help="With dart: weights as in XGBoost, 1 / (k + learning_rate) where k rounds are dropped, not 1 / (k + 1).",
    )
    early_stopping_rounds: int = option(
        default=50,
        help="Stop after this many rounds without an improvement on the valid split. 0: never; train"
        " and keep all rounds.",
        least=0,
        most=MOST,
    )
    keep_rounds: str = option(
        default="",
        help="Rounds to keep: best (up to the best round on the valid split) or all. Default: best,"
        " or all if early stopping is off.",
        choices=("", *KEEP_ROUNDS),
    )
    min_improvement: float = option(
        default=0.0, help="Minimum improvement of the stop metric that counts as better; must be exceeded.", least=0
    )
    stop_window: int = younger(
        default=1,
        by_preset=True,
        help="Smooth the stop metric before the best round is chosen: exponential moving mean over about this many"
        " rounds. 1: no smoothing.",
        least=1,
        most=MOST,
    )
    rounds_by: str = option(
        default="valid",
        help="How to choose the number of rounds. valid: by the valid split. test: by held-out queries of the train "
        "split. oob: by documents or queries outside the sample of a round. cv: by cross-validation first.",
        choices=ROUNDS_BY,
    )
    holdout_fraction: float = option(
        default=0.2,
        help="Share of the train queries to hold out with --rounds-by test, in (0, 1).",
        above=0,
        below=1,
    )
    folds: int = option(default=USUAL_FOLDS, help="Number of folds of a cross-validation.", least=2, most=MOST)
    refit: str = younger(
        default="none",
        by_preset=True,
        help="What to do after the number of rounds is found. none: keep that model. all: train again with that many "
        "rounds on the train and valid splits together; metrics stay those of the first training.",
        choices=REFITS,
    )
    step_search: str = option(
        default="none",
        help="Line search for each round. line: scale its trees to minimise the loss, then shrink. none: no search.",
        choices=STEP_SEARCHES,
    )
    criterion: str = option(
        default="",
        help="Criterion that chooses splits: se (squared error), rwse (squared error weighted by the"
        " hessian) or ole (the loss itself). Default: depends on the objective.",
        choices=("", *CRITERIA),
        convert=lambda name: CRITERION_ALIASES.get(name, name),
    )
    ole_features: int = option(
        default=8,
        help="With ole: evaluate the loss only for this many features, preselected with rwse; 0: all.",
        least=0,
        most=2**31,
    )
    ole_pairs: float = option(
        default=1.0,
        help="With ole: approximate number of pairs per document to sample for the hessian, at least"
        " 65,536 in all; 0: all pairs.",
        least=0,
    )
    leaf: str = option(
        default="",
        help="How to compute leaf values: newton, or exact (ignore pairs within one leaf). Default:"
        " exact for ole, newton otherwise.",
        choices=("", *LEAVES),
    )
    grow: str = option(
        default="best_first",
        by_preset=True,
        help="Order in which leaves are split: best_first, breadth_first or depth_first. oblivious:"
        " one condition for all leaves of a depth.",
        choices=GROWTHS,
    )
    max_leaves: int = option(
        default=31,
        by_preset=True,
        help="Maximum number of leaves per tree. Oblivious trees have 2^max_depth.",
        least=2,
        most=65_536,
    )
    max_depth: int = option(
        default=0,
        by_preset=True,
        help="Maximum depth of a tree; 0: unlimited, but 6 for oblivious trees.",
        least=0,
        most=65_536,
    )
    min_rows_in_leaf: int = option(
        default=20, by_preset=True, help="Minimum number of documents in a leaf.", least=1, most=2**31
    )
    min_hessian_in_leaf: float = option(default=1e-3, help="Minimum sum of hessians in a leaf.", least=0)
    lambda_l2: float = option(
        default=0.0,
        by_preset=True,
        help="L2 regularisation of leaf values, added to the hessian sum of a leaf.",
        least=0,
    )
    lambda_l1: float = younger(
        default=0.0,
        help="L1 regularisation of leaf values: the sum of gradients of a leaf is drawn towards 0 by as much.",
        least=0,
    )
    max_delta_step: float = younger(
        default=0.0, help="Maximum absolute value of a leaf, before the learning rate; 0: unlimited.", least=0
    )
    path_smooth: float = younger(
        default=0.0,
        help="Average the value of each node with that of the node above it, as if that had this many documents; 0: "
        "do not.",
        least=0,
    )
    l2_scale: str = younger(
        default="none",
        by_preset=True,
        help="Unit of lambda_l2: none (the hessian itself) or mean_hessian (the mean hessian of a document, so that"
        " lambda_l2 counts as that many documents).",
        choices=L2_SCALES,
    )
    min_gain: float = option(default=0.0, help="Minimum gain of a split; must be exceeded.", least=0)
    one_vs_rest: int = younger(
        default=4,
        help="Split a feature of up to this many categories by one of them against the rest; one of more by sets of"
        " categories.",
        least=0,
        most=255,
    )
    categories_in_set: int = younger(
        default=32, help="Maximum number of categories in the set of a split.", least=1, most=255
    )
    category_l2: float = younger(
        default=10.0, help="L2 regularisation added to lambda_l2 in the gains of splits by sets of categories.", least=0
    )
    category_smoothing: float = younger(
        default=10.0,
        help="Added to the hessian sum of each category when categories are ordered by their mean gradient; "
        "categories of fewer documents of a node are in no set.",
        least=0,
    )
    encode_above: int = younger(
        default=0,
        by_preset=True,
        help="Give each categorical feature of more than this many categories a second column: the mean grade of a "
        "category's documents in earlier queries, in a random order (ordered target encoding). 0: none.",
        least=0,
        most=2**31,
    )
    encoding_smoothing: float = younger(
        default=5.0,
        help="Number of documents of the mean grade that are added to each category for its target encoding.",
        above=0,
    )
    min_rows_in_group: int = younger(
        default=100,
        help="Minimum number of documents by which a set of categories differs from the one tried before, and that "
        "are not in it.",
        least=0,
        most=2**31,
    )
    monotone: Mapping[str, int] = option(
        default_factory=dict,
        help="Monotone constraint of a feature: scores never decrease (1) or never increase (-1) as"
        " it grows; repeat for several.",
        metavar="NAME:1|-1",
        read=parse_monotone,
        repeat=True,
        convert=without_zeros,
    )
    interaction_constraints: Sequence[Sequence[str]] = younger(
        default_factory=list,
        help="Group of features that may occur together on a path of a tree; repeat for several. A feature in no "
        "group occurs with no other.",
        metavar="NAME,NAME,..",
        read=parse_groups,
        repeat=True,
        convert=as_groups,
    )
    feature_weights: Mapping[str, float] = younger(
        default_factory=dict,
        help="Weight of a feature: factor of the gains of its splits where splits are compared; 0: never use it. "
        "Repeat for several.",
        metavar="NAME:WEIGHT",
        read=partial(parse_amounts, "feature_weights"),
        repeat=True,
        convert=partial(as_amounts, "feature_weights"),
    )
    feature_fraction: float = option(
        default=1.0,
        by_preset=True,
        help="Share of the features to sample for each tree, in (0, 1].",
        above=0.0,
        most=1.0,
    )
    feature_fraction_by_level: float = younger(
        default=1.0, help="Share of the features of a tree to sample for each depth, in (0, 1].", above=0.0, most=1.0
    )
    feature_fraction_by_node: float = younger(
        default=1.0,
        help="Share of the features of a depth to sample for each node, in (0, 1]. Not with oblivious trees, whose "
        "nodes of a depth share a condition.",
        above=0.0,
        most=1.0,
    )
    extra_trees: bool = younger(
        default=False,
        help="Try one random threshold for each feature and node (extremely randomised trees), instead of all.",
    )
    query_fraction: float = option(
        default=1.0,
        by_preset=True,
        help="Share of the queries to sample for each tree, in (0, 1].",
        above=0.0,
        most=1.0,
    )
    row_fraction: float = option(
        default=1.0,
        by_preset=True,
        help="Share of the documents to sample for each tree, from the sampled queries, in (0, 1].",
        above=0.0,
        most=1.0,
    )
    bootstrap: str = younger(
        default="none",
        by_preset=True,
        help="Random weights of queries or documents for each tree. bayesian: (-ln u)^bagging_temperature. mvs: "
        "minimal-variance sampling; large gradients are drawn more often, weighted by 1 / probability. goss: the "
        "largest gradients (top_rate), and a random part of the others (other_rate) with a higher weight.",
        choices=BOOTSTRAPS,
    )
    bootstrap_by: str = younger(
        default="query",
        by_preset=True,
        help="With bootstrap: give one weight to each query, or to each document. With mvs, query_fraction or "
        "row_fraction is the expected share of those that have a gradient.",
        choices=BOOTSTRAP_UNITS,
    )
    bagging_temperature: float = younger(
        default=1.0, help="With bootstrap bayesian: spread of the weights; 0: all are 1.", least=0, most=100
    )
    top_rate: float = younger(
        default=0.2,
        help="With bootstrap goss: share of the queries or documents that are kept for their large gradients, in (0, "
        "1).",
        above=0,
        below=1,
    )
    other_rate: float = younger(
        default=0.1,
        help="With bootstrap goss: share of the queries or documents to draw from the others, in (0, 1). Both shares "
        "are at most 1 together.",
        above=0,
        below=1,
    )
    leaf_rows: str = younger(
        default="sample",
        by_preset=True,
        help="What leaf values are computed from: sample (documents and weights that the tree was grown from) or all"
        " (all documents, without weights of bootstrap).",
        choices=LEAF_ROWS,
    )
    random_strength: float = younger(
        default=0.0,
        by_preset=True,
        help="Noise on split scores, as a multiple of the score that a feature without signal gets by chance. It "
        "fades over the rounds. 0: none.",
        least=0,
    )
    members: int = younger(
        default=1,
        by_preset=True,
        help="Number of models to boost side by side, which differ by their random draws; the score is their mean. "
        "All have the same number of rounds. Training and scoring take as many times as long.",
        least=1,
        most=100,
    )
    sigma: float = option(default=1.0, help="Steepness (sigma) of the pairwise logistic loss.", above=0)
    truncation: int = option(
        default=30,
        help="Use a pair only if one of its documents is in the top k by score; this is k.",
        least=1,
        most=2**31,
    )
    lambda_normalisation: bool = option(
        default=True,
        help="Reduce the weight of pairs with distant scores, and normalise lambdas per query. Not done where "
        "propensities or position_bias unbiased weigh clicks, whose weights it would undo.",
    )
    position_bias: str = younger(
        default=NONE,
        help="Correct the position bias of clicks (grade 1: clicked, 0: not; column position). additive: learn a "
        "number for each position, which is added to scores while training. unbiased: Unbiased LambdaMART, for "
        "lambdamart and ranknet; weigh pairs by ratios for each position. none: no correction.",
        choices=POSITION_BIASES,
    )
    position_bias_l2: float = younger(
        default=0.0,
        help="With position_bias additive: L2 regularisation of the numbers, for each document at the position.",
        least=0,
    )
    position_bias_norm: float = younger(
        default=1.0,
        help="With position_bias unbiased: the ratios are raised to 1 / (1 + this). 0: as they are.",
        least=0,
    )
    propensities: Mapping[str, Any] = younger(
        default_factory=dict,
        help="Weigh clicks by the examination probabilities of this file of clicks fit (inverse propensities): the "
        "pairs of lambdamart, ranknet and other losses of pairs, or the labels of l2 and query_rmse, which also "
        "correct trust. Needs the column position.",
        metavar="FILE",
        read=as_propensities,
        convert=as_propensities,
    )
    propensity_clip: float = younger(
        default=0.05,
        help="With propensities: lowest examination probability that is used, so that no click weighs more than 1 / "
        "this.",
        above=0,
        most=1,
    )
    self_normalise: bool = younger(
        default=False,
        help="With propensities and a loss of pairs: divide the weights of the clicks of a list by their mean. Lists "
        "with one click lose their correction, so this is for logs in which most have several.",
    )
    seed: int = option(default=7, help="Random seed.", least=0, most=2**63 - 1)

    def check_together(self) -> None:
        """Raise InvalidParameter if values do not go together; fill in what the oldest preset decides."""
        if self.preset == DEFAULTS:
            for name, value in self._left_out({}).items():
                object.__setattr__(self, name, value)
        if self.metric == "deviance":
            raise InvalidParameter(
                "metric 'deviance' is the loss, which training always minimises; to stop early by it, set stop_metric "
                "to deviance"
            )
        if ":" in self.metric:
            raise InvalidParameter(
                f"metric {self.metric!r}: losses are by the grade; to rank by goals, too, set {spelled('goals')}, and "
                "to stop early by a goal, stop_metric"
            )
        check_given(self)
        if self.bootstrap == GOSS and self.top_rate + self.other_rate > 1.0:
            raise InvalidParameter(
                f"{spelled('top_rate')} and {spelled('other_rate')} must be at most 1 together, got {self.top_rate} and"
                f" {self.other_rate}"
            )
        if self.grow == "oblivious" and (self.max_depth or 0) > MOST_OBLIVIOUS_DEPTH:
            raise InvalidParameter(
                f"{spelled('max_depth')} of oblivious trees must be in 0 .. {MOST_OBLIVIOUS_DEPTH}, got "
                f"{self.max_depth}"
            )

    @property
    def grade_weight(self) -> float:
        """The weight of the grade beside the goals."""
        rest = 1.0 - fsum(self.goals.values())
        return rest if rest > ROUNDING else 0.0

    @property
    def corrects_clicks(self) -> bool:
        """Whether position bias is corrected."""
        return self.position_bias != NONE or bool(self.propensities)

    @property
    def keeps_best(self) -> bool:
        """Whether rounds after the best one are dropped."""
        if self.keep_rounds:
            return self.keep_rounds == "best"
        return self.early_stopping_rounds > 0 or self.rounds_by != "valid"

    @property
    def depth(self) -> int:
        """Maximum depth of a tree; 0: unlimited."""
        return self.max_depth or (OBLIVIOUS_DEPTH if self.grow == "oblivious" else 0)

    @property
    def leaves(self) -> int:
        """Maximum number of leaves per tree."""
        return 2**self.depth if self.grow == "oblivious" else self.max_leaves

    def for_features(self, names: Collection[str]) -> TrainParameters:
        """Return a copy without constraints of features other than ``names``."""
        groups = [[name for name in group if name in names] for group in self.interaction_constraints]
        return replace(
            self,
            monotone={name: direction for name, direction in self.monotone.items() if name in names},
            interaction_constraints=[group for group in groups if group],
            feature_weights={name: amount for name, amount in self.feature_weights.items() if name in names},
        )

    def completed(self, values: Mapping[str, Any]) -> TrainParameters:
        """Return a copy in which options that were left out have these ``values``, or that of the oldest preset."""
        return replace(self, **self._left_out(values))

    def _left_out(self, values: Mapping[str, Any]) -> dict[str, Any]:
        found = [each for each in declared_in(TrainParameters) if getattr(self, each.name) is None]
        return {each.name: values.get(each.name, option_of(each).by_preset) for each in found}

    def as_dict(self) -> dict[str, Any]:
        """Return every parameter by name."""
        return asdict(self)

    def stored(self) -> dict[str, Any]:
        """Return the parameters that a file names: a younger option only where it is not that of the oldest preset."""
        young = [each.name for each in declared_in(type(self)) if not option_of(each).always_stored]
        usual = {name: getattr(OLDEST, name) for name in young}
        values = self.as_dict()
        preset = values.pop("preset")
        found = {name: value for name, value in values.items() if name not in usual or value != usual[name]}
        return {**found, "preset": STORED_DEFAULTS if preset == DEFAULTS else preset}


OLDEST = TrainParameters(preset=DEFAULTS)  # files that do not name an option were trained with these


def all_parameters(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return every parameter by name of a file that has ``stored`` some.

    The others have the values of the oldest preset.

    >>> all_parameters({"preset": "defaults@1"}) == all_parameters({}) == OLDEST.as_dict()
    True
    """
    return {**OLDEST.as_dict(), **with_option_names(stored)}


def options_for(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options to give for a training with the ``parameters`` of a file, whatever its preset would choose.

    >>> options_for({"max_leaves": 15, "seed": 7, "preset": "defaults@1"})
    {'preset': 'defaults-1', 'max_leaves': 15}
    """
    if parameters.get("preset") == BLENDING:
        usual = TrainParameters().as_dict() | {"preset": AUTO}
        return {name: value for name, value in parameters.items() if name in OF_EVERY_KIND and value != usual[name]}
    values = all_parameters(parameters)
    left_out = (OLDEST if values["preset"] == DEFAULTS else TrainParameters()).as_dict() | {"preset": BLENDING}
    return {name: values[name] for name, usual in left_out.items() if values[name] != usual}


def section_in(path: Path, known: Sequence[str]) -> dict[str, Any]:
    """Return the section ``[train]`` of a TOML file.

    Raises
    ------
    InvalidParameter
        The file is not valid TOML, has no such section, or the section has a key that is not ``known``.
    """
    section = read_toml(path, "a section [train]").get("train")
    if not isinstance(section, dict):
        raise InvalidParameter(f"{path}: expected a section [train] with training parameters, found none")
    for name in section:
        if name not in known:
            raise InvalidParameter(f"{path}: [train]: unknown parameter {name!r}; {name_hint(name, known)}")
    return section
