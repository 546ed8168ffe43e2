"""Several models as one, with weights: CatBoost's sum_models."""

from dataclasses import replace

import numpy as np
import pytest

from rankmill.foundation.errors import InvalidParameter
from rankmill.scorer.forest.forest import Forest
from rankmill.scorer.forest.predict import predict
from rankmill.trainer.candidates.combined_forests import average, merged
from tests.refusals import refused
from tests.trainer.planted import fit, planted, small_data


@pytest.fixture(scope="module")
def forests():
    return [
        fit(small_data(), n_rounds=5).forest,
        fit(small_data(), n_rounds=4, objective="l2", max_leaves=5).forest,
        fit(small_data(), n_rounds=6, members=2, bootstrap="bayesian").forest,
    ]


def renamed(forest, *names):
    return replace(forest, feature_names=names)


@pytest.mark.parametrize(
    ("weights", "mean"), [(None, True), ((1.0, 2.0, 0.5), True), ((3.0, -1.0, 1e-3), False)], ids=str
)
def test_the_score_is_the_weighted_sum_of_the_scores(forests, weights, mean):
    x = planted(8)[0]
    factors = np.array(weights or (1.0, 1.0, 1.0))
    factors = factors / factors.sum() if mean else factors
    found = merged(forests, weights, mean=mean)
    expected = sum(w * predict(forest, x) for w, forest in zip(factors, forests, strict=True))
    assert predict(found, x) == pytest.approx(expected, abs=1e-12)
    assert found.n_trees == sum(forest.n_trees for forest in forests)
    assert Forest.from_bytes(found.to_bytes()).to_bytes() == found.to_bytes()


def test_features_are_those_of_all_models(forests):
    x = planted(8)[0]
    own = forests[0].feature_names
    other = renamed(forests[1], "z", *own[2:], "y")  # shares five of the seven, in other places
    found = merged([forests[0], other], (0.3, 0.7), mean=False)
    assert found.feature_names == (*own, "z", "y")
    of_other = planted(9)[0][: len(x)]
    n = min(len(x), len(of_other))
    x, z, y = x[:n], of_other[:n, 0], of_other[:n, 1]
    expected = 0.3 * predict(forests[0], x) + 0.7 * predict(other, np.column_stack([z, x[:, 2:], y]))
    assert predict(found, np.column_stack([x, z, y])) == pytest.approx(expected, abs=1e-12)


def test_a_mean_of_alike_models_is_their_average(forests):
    x = planted(8)[0]
    pair = [fit(small_data(), n_rounds=5, seed=seed, query_fraction=0.5).forest for seed in (1, 2)]
    assert predict(merged(pair), x) == pytest.approx(predict(average(pair), x), abs=1e-13)
    assert merged([pair[0], pair[0]]).parameters == pair[0].parameters
    assert (merged(pair).parameters, merged(forests).objective) == ({}, "merged")


def test_what_cannot_be_merged_is_refused(forests):
    with refused(InvalidParameter, "two models", "1"):
        merged(forests[:1])
    with refused(InvalidParameter, "weights", "3", "2"):
        merged(forests, (1.0, 2.0))
    for bad in (0.0, float("nan"), float("inf")):
        with refused(InvalidParameter, "weights", "other than 0"):
            merged(forests[:2], (1.0, bad))
    with refused(InvalidParameter, "sum above 0"):
        merged(forests[:2], (1.0, -1.0))
    with refused(InvalidParameter, "link", "model 2"):
        merged([forests[0], fit(small_data(), n_rounds=2, objective="mcrank").forest])
    differ = [
        replace(forests[i], info={**forests[i].info, "absent": value}) for i, value in enumerate(("zero", "missing"))
    ]
    with refused(InvalidParameter, "absent", "zero", "missing"):
        merged(differ)
    with refused(InvalidParameter, "resume", "sum of several"):
        fit(small_data(), n_rounds=9, options={"resume": merged([forests[0], forests[0]])})


def test_the_command_registers_the_sum(dataset, tmp_path, typed):
    at = f"--registry {tmp_path}/r"
    for objective in ("l2", "lambdamart"):
        typed(f"train {dataset.path} --name web --objective {objective} --n-rounds 4 {at}")
    merge = f"models merge web@1 web@2 --name both {at} --weights"
    report = typed.json(f"{merge} 1,3")
    assert report["model"] == "both@1"
    assert [(each["model"], each["weight"]) for each in report["merged"]] == [("web@1", 0.25), ("web@2", 0.75)]
    assert typed.json(f"{merge} 1,3")["new"] is False
    typed(f"evaluate {dataset.path} --model both@1 --split all {at}")
    assert "weights" in typed.err(f"{merge} 1,x", code=2)
