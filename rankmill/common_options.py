"""The options that help shows at first: those of commands with more than 25 options, and those of `Ranker`.

``--help-all`` shows all options of a command.  An option is declared in its class, with its help: only names are here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

MODEL = ("model", "preset", "objective", "metric", "learn_from", "monotone")
TREES = (
    "n_rounds",
    "learning_rate",
    "max_leaves",
    "max_depth",
    "min_rows_in_leaf",
    "lambda_l2",
    "feature_fraction",
    "query_fraction",
)
STOPPING = ("early_stopping_rounds", "rounds_by", "refit")
MEASURED = ("metrics", "convention", "gain", "relevant_from")
REST = ("registry", "as_json", "cache")

OF_RANKER: Mapping[str, tuple[str, ...]] = {
    "Model": (*MODEL, "budget", "categorical"),
    "Trees": (*TREES, "max_bin"),
    "Stopping": STOPPING,
    "Machine and output": ("seed", "n_threads", "verbose", "importance_type", "cluster"),
}
OF_COMMANDS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "train": {
        "Model": (*MODEL, "budget"),
        "Trees": TREES,
        "Stopping": STOPPING,
        "Machine and output": ("name", "params", "resume", "seed", "n_threads", "registry", "as_json"),
    },
    "cv": {
        "Model": MODEL,
        "Trees": TREES,
        "Stopping": ("early_stopping_rounds", "folds"),
        "Machine and output": ("seed", "n_threads", "as_json"),
    },
    "tune": {
        "Search": ("out", "space", "vary", "trials", "minutes", "compare_by", "best", "repeat", "workers", "fresh"),
        "Model": MODEL,
        "Stopping": ("n_rounds", "early_stopping_rounds"),
        "Machine and output": ("seed", "as_json"),
    },
    "select-features": {
        "Search": ("out", "drop_fraction", "least_features", "tolerance", "repeats", "overwrite"),
        "Model": MODEL[1:],
        "Trees": TREES,
        "Machine and output": ("seed", "n_threads", "as_json"),
    },
    "evaluate": {
        "What is measured": ("model", *MEASURED, "split", "qrels", "complete", "by", "per_query"),
        "Input": ("format", "columns", "delimiter"),
        "Machine and output": ("n_threads", "cluster", *REST),
    },
    "compare": {
        "What is measured": ("on", "baseline", *MEASURED, "split", "qrels", "complete", "worst", "seeds"),
        "Input": ("format", "columns", "delimiter"),
        "Machine and output": ("n_threads", *REST),
    },
    "data ingest": {
        "Input": (
            "format", "columns", "ignore", "categorical", "delimiter", "absent", "valid", "test", "qrels", "pairs",
        ),
        "Grades": ("grades", "goals", "labels", "unjudged"),
        "Splits": ("split", "time_column", "split_time"),
        "Machine and output": ("out", "overwrite", "max_rejects", "memory", "threads", "as_json"),
    },
    "models gate": {
        "Rules": (
            "on",
            "split",
            "metric",
            "margin",
            "also",
            "alias",
            "best_of_last",
            "max_cost_ratio",
            "allow_feature_changes",
            "allow_seen_queries",
            "allow_significantly_worse",
        ),
        "What is measured": ("convention", "gain", "relevant_from"),
        "Machine and output": ("show", "reason", "n_threads", *REST),
    },
}  # fmt: skip
"""By the words of the command."""
