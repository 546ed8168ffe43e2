"""Removed names of earlier versions, with what to use instead.

They answer an old option, key, command or parameter.
"""

from __future__ import annotations

from typing import NamedTuple

COMMAND, RANKER = "command", "Ranker"
_TRAININGS, _PARAMETERS = ("train", "cv", "tune", "select-features"), ("[train]", RANKER)


class Removed(NamedTuple):
    """A name that was removed from some ``places``.

    Places are commands, ``[sections]`` of rankmill.toml, and `RANKER`; or the name itself is a `COMMAND`.

    ``NAME=VALUE`` is a value that the option or key ``NAME``, which stayed, no longer has.
    """

    name: str
    places: tuple[str, ...]
    instead: str


REMOVED = (
    Removed("append", ("data ingest",), "ingest all files again; the bytes are the same for any order"),
    Removed("format=pairs", ("data ingest", "[ingest]"), "ingest the judgments again with pairs"),
    Removed("to=c", ("convert",), "write onnx, lightgbm or xgboost, for which there are compilers"),
    Removed("to=ranklib", ("convert",), "write solr, lightgbm, xgboost or onnx"),
    Removed("estimate=dr", ("clicks judge", "[clicks]"), "use pbm, ips or snips"),
    Removed("models fsck", (COMMAND,), "rankmill models verify reports; restore from a backup what is damaged"),
    Removed("bin-cache", _TRAININGS, "leave it out, as rankmill data bin writes what trainings map"),
    Removed("distill", (COMMAND,), "use the teacher itself; or train fewer trees with rankmill train"),
    Removed("inspect importance", (COMMAND,), "use rankmill inspect influence"),
    Removed("preset=defaults@1", (*_TRAININGS, "[train]"), "use defaults-1"),
    Removed(
        "objective=position_based",
        ("train", "cv", "select-features", "[train]"),
        "use position_bias additive or unbiased, or propensities of rankmill clicks fit",
    ),
    Removed("delimiter=\\t", ("data ingest", "rerank", "evaluate", "[ingest]"), "use tab"),
    Removed("models refit-leaves", (COMMAND,), "train on the new data with --base-model or anew with rankmill train"),
    Removed("top", ("models diff",), "compare rankmill inspect influence of both models"),
    Removed("goal-steps", ("train",), "train a model for each of some --goals NAME:WEIGHT, and compare them"),
    Removed("goal-floors", ("train",), "set limits of goals with --also in rankmill models gate"),
    Removed("goal_steps", ("[train]",), "give goals weights, such as goals = {bought = 0.3}"),
    Removed("goal_floors", ("[train]",), "set limits of goals with also in [gate]"),
    Removed("forced-splits", _TRAININGS, "restrict trees with --interaction-constraints or --monotone"),
    Removed(
        "feature-costs",
        _TRAININGS,
        "weigh gains with --feature-weights, or find few features with rankmill select-features",
    ),
    Removed("split-cost", _TRAININGS, "grow smaller trees with --min-gain or --max-leaves"),
    Removed("forced_splits", _PARAMETERS, "restrict trees with interaction_constraints or monotone"),
    Removed(
        "feature_costs",
        _PARAMETERS,
        "weigh gains with feature_weights, or find few features with rankmill select-features",
    ),
    Removed("split_cost", _PARAMETERS, "grow smaller trees with min_gain or max_leaves"),
    Removed("features", ("clicks fit",), "train with --position-bias, or judge without --propensities"),
    Removed(
        "clicks join", (COMMAND,), "join the log and the features in DuckDB; docs/click-judgments.md has the query"
    ),
    Removed("search", ("models blend", "[blend]"), "weights are found by the sweep"),
    Removed("dry-run", ("run",), "see what would be done with --plan"),
    Removed("log", ("run",), "read the JSON lines of WORK/log.jsonl"),
    Removed("tell", ("the configuration",), "the log is always WORK/log.jsonl"),
    Removed(
        "profile", ("train", "[train]"), "sample it with a profiler of native code, such as py-spy record --native"
    ),
    Removed("map-normalisation=hits", ("evaluate", "compare", "explain-metric", "models gate"), "use min(R,k)"),
    Removed("map_normalisation=hits", ("[evaluate]",), "use min(R,k)"),
)


def removal(name: str, place: str) -> str:
    """Return what to use instead of ``name``, which ``place`` does not know; nothing if it never had it."""
    plain = name.lstrip("-").replace("-", "_")
    instead = next((row.instead for row in REMOVED if row.name.replace("-", "_") == plain and place in row.places), "")
    return instead and f"{name.rsplit(maxsplit=1)[-1]} was removed: {instead}"
