"""Parameters that are out of bounds or do not go together: one table, each refused in a line that names the facts."""

import numpy as np
import pytest

from rankmill.foundation.errors import InvalidParameter
from tests.refusals import refused
from tests.trainer.fixed import fixed
from tests.trainer.planted import fit, small_data

FOREST = {"boosting": "rf", "query_fraction": 0.6, "feature_fraction": 0.7}
OLE = {"criterion": "ole"}

# whatever the data are
ALONE = [
    ({"learning_rate": 0.0}, "learning_rate", "(0, 1]", "0.0"),
    ({"learning_rate": float("nan")}, "learning_rate"),
    ({"max_leaves": 1}, "max_leaves", "2"),
    ({"lambda_l2": -1.0}, "lambda_l2", "0", "-1.0"),
    ({"lambda_l2": float("inf")}, "lambda_l2"),
    ({"objective": "lambdamat"}, "'lambdamart'"),
    ({"gain": "expo"}, "gain", "'exp'"),
    ({"gain": "table(1,2)"}, "gain", "start at 0"),
    ({"gain": "table(0,2,1)"}, "gain", "not fall"),
    ({"gain": "table(a)"}, "gain", "numbers"),
    ({"sigma": 0.0}, "sigma"),
    ({"stop_window": 0}, "stop_window", "1"),
    ({"seed": -1}, "seed"),
    ({"seed": 1.5}, "seed", "1.5"),
    ({"n_rounds": "10"}, "n_rounds", "'10'"),
    ({"max_leaves": True}, "max_leaves", "True"),
    ({"max_leaves": float("inf")}, "max_leaves", "whole number"),
    ({"max_leaves": np.arange(99)}, "max_leaves", "array([ 0,"),
    ({"learning_rate": "0.1"}, "learning_rate", "'0.1'"),
    ({"sigma": 10**400}, "sigma", "number"),
    ({"sigma": None}, "sigma", "None"),
    ({"lambda_normalisation": "no"}, "lambda_normalisation", "'no'"),
    ({"objective": 3}, "objective", "text", "3"),
    ({"stop_metric": None}, "stop_metric", "text", "None"),
    ({"step_search": "lines"}, "step_search", "lines", "line"),
    ({"monotone": {"a": -0.5}}, "monotone['a']", "-0.5"),
    ({"monotone": {"a": 2}}, "monotone['a']", "-1", "2"),
    ({"monotone": {0: 1}}, "monotone", "directions"),
    ({"monotone": [1, 0]}, "monotone", "directions"),
    ({"goals": {"bought": 0.7, "fresh": 0.4}}, "1 together", "1.1"),
    ({"goals": {"bought": -0.1}}, "goals['bought']", "-0.1"),
    ({"goals": {"bought": "much"}}, "goals['bought']", "much"),
    ({"goals": {"goals": 0.1}}, "goals", "reserved"),
    ({"goals": "bought"}, "goals", "bought"),
    ({"goals": 3}, "goals", "3"),
    ({"position_bias": "additive", "boosting": "dart"}, "position_bias 'additive'", "boosting", "dart"),
    ({"position_bias": "additive", **FOREST}, "position_bias 'additive'", "boosting", "rf"),
    ({"position_bias": "additive", "members": 2}, "position_bias 'additive'", "members", 2),
    ({"position_bias": "additive", "refit": "all"}, "position_bias 'additive'", "refit", "all"),
    ({"grow": "oblivious", "feature_fraction_by_node": 0.5}, "feature_fraction_by_node", "oblivious", "feature_fraction_by_level"),
]  # fmt: skip
TRAINED = [
    ({"bootstrap": "mvs", "row_fraction": 0.5}, "mvs", "queries", "row_fraction"),
    ({"bootstrap": "mvs", "bootstrap_by": "document", "query_fraction": 0.5}, "mvs", "document", "query_fraction"),
    ({"bootstrap": "mvs", "query_fraction": 0.5, "rounds_by": "oob"}, "mvs", "rounds_by", "oob"),
    ({"bootstrap": "bayesian", **OLE}, "bootstrap", "ole"),
    ({"bootstrap": "bayesian", "leaf": "exact", "objective": "ranknet"}, "bootstrap", "leaf", "exact"),
    ({"bootstrap": "goss", "row_fraction": 0.5}, "goss", "query", "row_fraction"),
    ({"bootstrap": "goss", "query_fraction": 0.5}, "goss", "query", "query_fraction"),
    ({"bootstrap": "goss", "top_rate": 0.7, "other_rate": 0.4}, "top_rate", "other_rate", "0.7", "0.4"),
    ({"bootstrap": "goss", "rounds_by": "oob"}, "goss", "rounds_by", "oob"),
    ({"bootstrap": "poisson"}, "bootstrap", "poisson"),
    ({**OLE, "grow": "oblivious", "objective": "ranknet"}, "'ole'", "'oblivious'"),
    ({**OLE, "monotone": {"f0": 1}}, "monotone", "criterion"),
    ({"criterion": "rwse", "objective": "laplace"}, "'rwse'", "laplace", "se"),
    ({"leaf": "exact", "objective": "laplace"}, "leaf 'exact'", "laplace"),
    ({"criterion": "olé"}, "criterion", "'olé'", "'ole'"),
    ({"leaf": "newtn"}, "leaf", "newtn", "newton"),
    ({"ole_features": -1}, "ole_features", "0"),
    ({"ole_pairs": -1.0}, "ole_pairs", "0"),
    ({"boosting": "dart", "rounds_by": "oob", "query_fraction": 0.5}, "dart", "rounds_by", "oob"),
    ({"boosting": "dart", "step_search": "line", "objective": "l2"}, "dart", "step_search"),
    ({"boosting": "dart", "objective": "gbrank"}, "boosting", "gbrank"),
    ({**FOREST, "step_search": "line", "objective": "l2"}, "rf", "step_search"),
    ({**FOREST, "members": 3}, "rf", "members"),
    ({**FOREST, "objective": "gbrank"}, "boosting", "gbrank"),
    ({"boosting": "rf"}, "rf", "query_fraction", "same"),
    ({"boosting": "rf", "bootstrap": "mvs"}, "rf", "query_fraction", "same"),
    ({"boosting": "forest"}, "boosting", "forest"),
    ({"boosting": "rf", "rounds_by": "oob", "bootstrap": "bayesian"}, "oob", "query_fraction"),
    ({"members": 2, "query_fraction": 0.5, "objective": "gbrank"}, "members", "gbrank"),
    ({"members": 2, "query_fraction": 0.5, "rounds_by": "oob"}, "members", "oob"),
    ({"interaction_constraints": [["f0", "g7"]]}, "interaction_constraints", "unknown feature", "'g7'"),
    ({"interaction_constraints": [["f0", "f0"]]}, "interaction_constraints", "different", "f0"),
    ({"interaction_constraints": [[]]}, "interaction_constraints", "[]"),
    ({"interaction_constraints": "f0,f1"}, "interaction_constraints", "lists", "names"),
    ({"interaction_constraints": ["f0,f1"]}, "interaction_constraints", "lists", "names"),
    ({"feature_weights": {"f0": -1.0}}, "feature_weights['f0']", "0 or more", "-1"),
    ({"feature_weights": {"g7": 1.0}}, "feature_weights", "unknown feature", "'g7'"),
    ({"feature_weights": {"f0": float("inf")}}, "feature_weights['f0']"),
    ({"feature_weights": [1.0]}, "feature_weights", "by feature name"),
    ({"feature_weights": {"f0": 1.0}, **OLE}, "feature_weights", "ole"),
    ({"extra_trees": True, **OLE}, "extra_trees", "ole"),
    ({"random_strength": 1.0, **OLE}, "random_strength", "ole"),
    *(({name: 1.0, **OLE}, name, "ole") for name in ("lambda_l1", "max_delta_step", "path_smooth")),
    *(({name: -1.0}, name, "0") for name in ("lambda_l1", "max_delta_step", "path_smooth")),
    ({"monotone": {"f22": 1}}, "monotone", "feature", "'f22'", "'f2'"),
    *(({"monotone": {"f0": 1}, "objective": name}, "monotone", "one score") for name in ("mcrank", "ordinal")),
    ({"objective": "lambdaloss", "metric": "map"}, "lambdaloss", "metrics", "ndcg"),
]


@pytest.mark.parametrize(
    ("given", "facts"), [(given, facts) for given, *facts in ALONE], ids=lambda each: str(each)[:60]
)
def test_values_that_cannot_be_are_refused(given, facts):
    with refused(InvalidParameter, *facts):
        fixed(**given)


@pytest.mark.parametrize(
    ("given", "facts"), [(given, facts) for given, *facts in TRAINED], ids=lambda each: str(each)[:60]
)
def test_values_that_do_not_go_together_are_refused(given, facts):
    with refused(InvalidParameter, *facts):
        fit(small_data(), n_rounds=1, **given)
