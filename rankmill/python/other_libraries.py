"""Help for users of other libraries: their parameter names and callbacks, and scikit-learn's metadata routing."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable
from difflib import get_close_matches
from types import FrameType
from typing import Any, TypeVar

from rankmill.foundation.errors import InvalidParameter

_LIBRARIES = {"lightgbm": "LightGBM", "xgboost": "XGBoost", "catboost": "CatBoost"}

OURS = {
    theirs: ours
    for ours, names in {
        "objective": "loss loss_function",
        "metric": "eval_at metrics metric_name",
        "stop_metric": "first_metric_only",
        "gain": "label_gain ndcg_exp_gain",
        "n_rounds": "n_estimators num_iterations num_iteration num_trees n_trees num_tree num_rounds num_round "
        "num_boost_round nrounds n_iter max_iter iterations",
        "learning_rate": "eta shrinkage shrinkage_rate",
        "early_stopping_rounds": "early_stopping_round n_iter_no_change od_wait early_stopping",
        "min_improvement": "early_stopping_min_delta tol min_delta",
        "folds": "nfold n_splits",
        "criterion": "score_function",
        "grow": "grow_policy",
        "max_leaves": "num_leaves num_leaf n_leaves max_leaf_nodes max_leaf leaves",
        "max_depth": "depth",
        "min_rows_in_leaf": "min_data_in_leaf min_child_samples min_samples_leaf min_data min_data_per_leaf",
        "min_hessian_in_leaf": "min_sum_hessian_in_leaf min_child_weight min_sum_hessian min_hessian",
        "lambda_l2": "reg_lambda lambda l2_leaf_reg l2_regularization lambda_l_2",
        "min_gain": "min_gain_to_split min_split_gain gamma min_split_loss",
        "monotone": "monotone_constraints monotonic_cst monotone_constraint",
        "feature_fraction": "colsample_bytree colsample rsm sub_feature max_features",
        "feature_fraction_by_level": "colsample_bylevel",
        "feature_fraction_by_node": "feature_fraction_bynode colsample_bynode sub_feature_bynode",
        "extra_trees": "extra_tree",
        "interaction_constraints": "interaction_cst",
        "lambda_l1": "reg_alpha alpha l1_regularization",
        "max_delta_step": "max_tree_output max_leaf_output",
        "feature_weights": "feature_contri feature_contrib fc fp feature_penalty",
        "query_fraction": "bagging_by_query sampling_unit",
        "row_fraction": "bagging_fraction subsample sub_row bagging",
        "boosting": "booster boosting_type boost num_parallel_tree",
        "drop_rate": "rate_drop",
        "bootstrap": "data_sample_strategy bootstrap_type",
        "sigma": "sigmoid lambdarank_sigma",
        "truncation": "lambdarank_truncation_level lambdarank_num_pair_per_sample",
        "lambda_normalisation": "lambda_normalization lambdarank_norm lambdarank_normalization "
        "lambdarank_score_normalization",
        "position_bias": "lambdarank_unbiased",
        "position_bias_l2": "lambdarank_position_bias_regularization",
        "position_bias_norm": "lambdarank_bias_norm",
        "seed": "random_state random_seed data_random_seed bagging_seed",
        "categorical": "categorical_feature categorical_features cat_feature cat_features categorical_column "
        "enable_categorical",
        "one_vs_rest": "max_cat_to_onehot one_hot_max_size",
        "categories_in_set": "max_cat_threshold",
        "category_l2": "cat_l2",
        "category_smoothing": "cat_smooth",
        "min_rows_in_group": "min_data_per_group",
        "max_bin_of": "max_bin_by_feature",
        "max_bin": "max_bins border_count num_bins n_bins",
        "n_threads": "n_jobs num_threads num_thread nthread thread_count nthreads",
        "verbose": "verbosity verbose_eval silent logging_level log_evaluation",
        # arguments of fit
        "qid": "groups group_id query query_id qids",
        "sample_weight": "weight weights",
        "query_weight": "group_weight",
        "offset": "baseline base_margin init_score init_scores",
        "eval_metrics": "eval_metric",
        "eval_set": "eval_sets valid_sets validation_data evals",
        "eval_names": "valid_names",
        "init_model": "xgb_model",
    }.items()
    for theirs in names.split()
}
"""Our name for each name in LightGBM, XGBoost, CatBoost or scikit-learn; see docs/coming-from.md for other
differences."""

_NOT_HERE = (
    "auc_mu_weights auto_class_weights bagging_freq cegb_penalty_feature_coupled cegb_penalty_split class_weights "
    "data default_direction device device_type diffusion_temperature embedding_features feature_calcers "
    "feature_pre_filter first_feature_use_penalties force_col_wise force_row_wise forced_splits_file "
    "forced_splits_filename forcedsplits_filename ignored_features input_model linear_tree metric_freq "
    "min_data_in_bin model_shrink_rate monotone_penalty neg_bagging_fraction normalize_type num_feature one_drop "
    "poisson_max_delta_step pos_bagging_fraction pre_partition process_type sample_type saved_feature_importance_type "
    "scale_pos_weight sparse_features_conflict_fraction text_features top_k two_round updater updater_seq weight_column"
)
NOT_HERE = frozenset(_NOT_HERE.split())
"""Names of theirs that none of ours stands for, but that are spelled like one of ours or are passed so often that a
guess would mislead."""


def unknown_name(what: str, name: str, known: Iterable[str], where: str = "") -> str:
    """Describe the unknown ``what`` called ``name``: our name for it, the nearest spelling, or all of ``known``.

    >>> unknown_name("parameter", "n_estimators", ["n_rounds", "seed"])
    "unknown parameter 'n_estimators'; did you mean 'n_rounds'?"
    >>> unknown_name("parameter", "linear_tree", ["extra_trees", "seed"])
    "unknown parameter 'linear_tree'; none of ours stands for it, see docs/coming-from.md"
    """
    if name.lower() in NOT_HERE:
        return f"unknown {what} {name!r}{where}; none of ours stands for it, see docs/coming-from.md"
    choices = list(known)
    ours = OURS.get(name.lower())
    near = [ours] if ours in choices else get_close_matches(name, choices, n=1)
    return f"unknown {what} {name!r}{where}; " + (
        f"did you mean {near[0]!r}?" if near else f"known: {', '.join(choices)}"
    )


def unknown_argument(name: str, of_fit: Iterable[str], of_ranker: Iterable[str], where: str = "fit") -> str:
    """Describe ``name``, an unknown argument of ``fit`` or of the function ``where``.

    It may be a parameter of the ranker.
    """
    ours = OURS.get(name, name)
    if ours in of_ranker:
        return f"{where} takes no {name!r}; it is a parameter of the ranker: Ranker({ours}=..)"
    return unknown_name(f"argument of {where}", name, of_fit)


def unknown_parameter(name: str, of_ranker: Collection[str], of_fit: Collection[str]) -> str:
    """Describe ``name``, an unknown parameter of the ranker, which may be an argument of ``fit``.

    >>> unknown_parameter("valid_sets", ["metric", "seed"], ["eval_set", "qid"])
    "Ranker takes no 'valid_sets'; it is an argument of fit: fit(X, y, eval_set=..)"
    """
    ours = OURS.get(name, name)
    if ours in of_fit and ours not in of_ranker:
        return f"Ranker takes no {name!r}; it is an argument of fit: fit(X, y, {ours}=..)"
    return unknown_name("parameter", name, of_ranker)


def checked_callbacks(callbacks: Any) -> list[Callable[..., Any]]:
    """Return callbacks as a list, also for a single function.

    Raises
    ------
    InvalidParameter
        A callback is not a function, or is for another library with other arguments.
    """
    if callbacks is None:
        return []
    found = [callbacks] if callable(callbacks) or not isinstance(callbacks, Iterable) else list(callbacks)
    for callback in found:
        kind = callback if hasattr(callback, "__qualname__") else type(callback)
        library = _LIBRARIES.get(str(getattr(kind, "__module__", "")).partition(".")[0])
        if library is not None:
            name = kind.__qualname__.partition(".")[0]
            raise InvalidParameter(
                f"callbacks: {name} is a callback of {library}; instead, {_replacement_of(name.lower())}"
            )
        if not callable(callback):
            raise InvalidParameter(f"callbacks must be functions that take a RoundRecord, got {callback!r}")
    return found


def checked_metrics(eval_metrics: Any) -> list[str]:
    """Return the names of metrics as a list, also for a single name; InvalidParameter for a function."""
    if eval_metrics is None:
        return []
    found = [eval_metrics] if isinstance(eval_metrics, str) or callable(eval_metrics) else list(eval_metrics)
    for metric in found:
        refuse_function("eval_metrics", metric)
    return found


def refuse_function(name: str, metric: object) -> None:
    """Raise InvalidParameter if the metric of the parameter ``name`` is a function."""
    if callable(metric):
        called = getattr(metric, "__name__", type(metric).__name__)
        raise InvalidParameter(
            f"{name} takes names of metrics such as 'ndcg@10', not the function {called}; apply it to the result of "
            "predict, or train for it with objective= or delta="
        )


def _replacement_of(name: str) -> str:
    if "stop" in name:
        return "use early_stopping_rounds=N"
    if "record" in name:
        return "read evals_result_ after fit, which has the values of every round"
    if "log" in name or "monitor" in name:
        return "use verbose= to print the rounds"
    return "give a function that takes a RoundRecord and returns true to stop"


_OF_PREDICT = {
    **dict.fromkeys(("pred_contrib", "pred_contribs"), "use ranker.contributions(X)"),
    **dict.fromkeys(("pred_leaf",), "use ranker.apply(X)"),
    **dict.fromkeys(
        ("num_iteration", "best_iteration", "ntree_limit", "ntree_end"), "give n_rounds=, the number of rounds"
    ),
    "iteration_range": "give start_round= and n_rounds=, the number of rounds",
    **dict.fromkeys(("start_iteration", "ntree_start"), "give start_round="),
    **dict.fromkeys(("raw_score", "output_margin", "prediction_type"), "leave it out; scores are always raw"),
    **dict.fromkeys(("qid", "group"), "leave it out; the score of a row does not depend on others"),
    **dict.fromkeys(("thread_count", "num_threads", "n_jobs"), "give n_threads= to Ranker"),
}


def refuse_of_predict(others: Iterable[str]) -> None:
    """Raise InvalidParameter for arguments that ``predict`` does not take, with what other libraries have them for."""
    for name in others:
        cure = _OF_PREDICT.get(name, "it takes X, n_rounds and start_round")
        raise InvalidParameter(f"predict takes no {name!r}; {cure}")


_ATTRIBUTES = {
    theirs: ours
    for ours, names in {
        "best_round_": "best_iteration_ best_iteration best_iter_ n_estimators_ n_iter_ tree_count_ "
        "get_best_iteration current_iteration num_trees",
        "history_[best_round_ - 1].metrics": "best_score_ best_score get_best_score",
        "evals_result_": "evals_result evals_log_ get_evals_result eval_results_ validation_scores_ train_score_",
        "forest_ (the trees)": "booster_ booster get_booster estimators_ dump_model get_dump trees_to_dataframe",
        "feature_names_in_ (or model_.feature_names)": "feature_name_ feature_name feature_names feature_names_ "
        "get_feature_names",
        "n_features_in_": "n_features_ n_features num_feature",
        "feature_importances_": "feature_importance feature_importances get_feature_importance get_score get_fscore "
        "coef_",
        "model_.objective": "objective_ loss_",
        "contributions(X)": "shap_values predict_contrib get_shap_values",
        "apply(X)": "calc_leaf_indexes predict_leaf",
        "predict(X, n_rounds=..)": "staged_predict",
        "predict(X)": "predict_proba decision_function predict_log_proba rank",
        "fit(.., resume=.., init_model=..)": "partial_fit refit update",
        "save(path)": "save_model dump",
        "Ranker.load(path)": "load_model",
        "rankmill.cross_validate(ranker, X, y, qid=..)": "cv cross_validate",
    }.items()
    for theirs in names.split()
}
"""What we have for each attribute and method of a fitted ranker of LightGBM, XGBoost, CatBoost or scikit-learn."""


def unknown_attribute(kind: str, name: str) -> str:
    """Describe the attribute ``name`` that a ``kind`` of object lacks, with what we have for it.

    >>> unknown_attribute("Ranker", "best_iteration_")
    "'Ranker' object has no attribute 'best_iteration_'; use best_round_"
    """
    ours = _ATTRIBUTES.get(name, "")
    return f"{kind!r} object has no attribute {name!r}" + (f"; use {ours}" if ours else "")


METHODS = ("fit", "score")
IN_SEARCHES = "as a column 'qid' of a frame X, or by metadata routing, sklearn.set_config(enable_metadata_routing=True)"
"""How scikit-learn's searches get the query of each row."""
_BY_PLACE = ("group", "pairs", "pair_weight", "pair_probability")  # refer to all rows, so they cannot be cut into folds
_GROUPS = "qid"  # always requested: ranking needs it

R = TypeVar("R", bound="Routed")


def keywords_of(function: Callable[..., object]) -> list[str]:
    """Return the names of the keyword-only arguments of ``function``."""
    return [each.name for each in inspect.signature(function).parameters.values() if each.kind is each.KEYWORD_ONLY]


def frame_of_search() -> FrameType | None:
    """Return the call by which scikit-learn fits and scores a fold now, if any; nothing else says how it does."""
    frame = inspect.currentframe()
    while frame is not None and not (
        frame.f_code.co_name == "_fit_and_score" and str(frame.f_globals.get("__name__")).startswith("sklearn.")
    ):
        frame = frame.f_back
    return frame


def refuse_search_without_queries() -> None:
    """Raise InvalidParameter if scikit-learn, which fits a fold with its queries, is going to score it without them.

    It would otherwise warn of each failed score, and choose parameters by NaN.
    """
    frame = frame_of_search()
    if frame is None:
        return
    scorer = frame.f_locals.get("scorer")
    kinds = {type(each).__name__ for each in getattr(scorer, "_scorers", {"score": scorer}).values()}
    if "_PassthroughScorer" in kinds and not frame.f_locals.get("score_params"):
        raise InvalidParameter(
            f"scikit-learn would call fit with the queries and score without them; give them {IN_SEARCHES}, so that "
            "it cuts them into folds for both"
        )


class Routed:
    """An estimator whose ``fit`` and ``score`` take metadata besides X and y, at least the query of each row."""

    def get_metadata_routing(self) -> Any:
        """Return the requests of ``fit`` and ``score`` as scikit-learn's MetadataRequest.

        These are the query ids, and those that were set.
        """
        from sklearn.utils.metadata_routing import MetadataRequest

        if hasattr(self, "_metadata_request"):
            return self._metadata_request
        requests = MetadataRequest(owner=self)
        for method in METHODS:
            for name in self._routable(method):
                getattr(requests, method).add_request(param=name, alias=True if name == _GROUPS else None)
        return requests

    def set_fit_request(self: R, **requests: bool | str | None) -> R:
        """Set which arguments scikit-learn passes to ``fit``, such as ``sample_weight=True``.

        ``qid`` is passed by default.

        Raises
        ------
        InvalidParameter
            ``fit`` has no such argument, it cannot be cut into folds, or metadata routing is disabled in scikit-learn.
        """
        return self._request("fit", requests)

    def set_score_request(self: R, **requests: bool | str | None) -> R:
        """Set which arguments scikit-learn passes to ``score``; see :meth:`set_fit_request`."""
        return self._request("score", requests)

    def _routable(self, method: str) -> list[str]:
        return [name for name in keywords_of(getattr(type(self), method)) if name not in _BY_PLACE]

    def _request(self: R, method: str, requests: dict[str, bool | str | None]) -> R:
        from sklearn import get_config

        if not get_config()["enable_metadata_routing"]:
            raise InvalidParameter(
                f"set_{method}_request needs sklearn.set_config(enable_metadata_routing=True), which turns metadata "
                "routing on"
            )
        known, routing = self._routable(method), self.get_metadata_routing()
        for name, asked in requests.items():
            if name in _BY_PLACE:
                raise InvalidParameter(
                    f"{name} refers to rows by position, so it cannot be split into folds; route qid instead"
                )
            if name not in known:
                raise InvalidParameter(f"{method} takes no {name!r}; known: {', '.join(known)}")
            getattr(routing, method).add_request(param=name, alias=asked)
        self._metadata_request = routing
        return self
