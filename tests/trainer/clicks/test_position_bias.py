"""Laws of learning position bias beside the trees, of weighing clicks by inverse propensities, and of the naive model
beside."""

import json
from dataclasses import replace
from itertools import pairwise

import numpy as np
import polars as pl
import pytest

from rankmill.foundation.errors import InputError, InvalidParameter, TrainingDataRejected
from rankmill.pipeline.bins.binning import bin_dataset
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.pipeline.ingest import ingest
from rankmill.pipeline.judgments.propensities import Propensities, write_propensities
from rankmill.pipeline.options import IngestOptions
from rankmill.registry import Registry
from rankmill.trainer.candidates.train_on_dataset import train
from rankmill.trainer.clicks.position_bias import POSITION_BIAS
from rankmill.trainer.clicks.propensities_given import as_propensities
from rankmill.trainer.objectives.registry import objective_of
from rankmill.trainer.options import SeedOptions
from rankmill.trainer.parameters import TrainParameters, options_for
from rankmill.trainer.rounds.boosting import boost
from rankmill.trainer.rounds.checkpoints import Checkpoint
from rankmill.trainer.training_options import StartingModel, TrainingOptions
from rankmill.trainer.training_service import train_and_register
from tests.naive_clicks import naive_additive_step, naive_unbiased_step
from tests.refusals import refused
from tests.trainer.fixed import fixed
from tests.trainer.objectives.loss_cases import derivatives
from tests.trainer.planted import data_of as planted_data
from tests.trainer.planted import planted, rows_of, small_data

RANKS = 10
THETA = 1.0 / np.arange(1, RANKS + 1)


def impressions(seed=1, n_lists=300, theta=THETA, positions=None, follows=0, noise=2.0):
    """Lists of ten in an order that follows a feature, by default one that says a little, with clicks of a
    position-based model."""
    x, grades, starts = planted(seed, n_queries=n_lists)
    rng = np.random.default_rng(seed)
    kept, rank = [], []
    for first, last in pairwise(starts):
        order = np.argsort(
            -(np.nan_to_num(x[first:last, follows]) + noise * rng.normal(size=last - first)), kind="stable"
        )[:RANKS]
        at = np.empty(last - first, dtype=np.int64)
        at[order] = np.arange(len(order))
        shown = np.sort(order)
        kept.append(first + shown)
        rank.append(at[shown])
    rows, at = np.concatenate(kept), np.concatenate(rank)
    gamma = 0.1 + 0.9 * (2.0 ** grades[rows] - 1) / 15.0
    clicked = (rng.random(len(rows)) < theta[at] * gamma).astype(np.int32)
    sizes = np.array([len(part) for part in kept])
    part = (x[rows], clicked, np.concatenate(([0], np.cumsum(sizes))).astype(np.int64))
    found = rows_of(part, small_data()[2])
    return replace(found, positions=(at + 1 if positions is None else np.full(len(at), positions)).astype(np.int32))


def data_of(rows=None):
    return planted_data(rows or impressions(), [("valid", rows_of(small_data()[1], small_data()[2]))])


def trained(rows=None, checkpoint=None, options=None, **parameters):
    given = {"n_rounds": 12, "max_leaves": 8, "min_rows_in_leaf": 5, "early_stopping_rounds": 0, **parameters}
    own = TrainingOptions(**{"n_threads": 1, **(options or {})})
    return boost(data_of(rows), fixed(**given), own, checkpoint=checkpoint)


WAYS = [
    {"position_bias": "additive"},
    {"position_bias": "additive", "objective": "ranknet", "position_bias_l2": 0.1},
    {"position_bias": "additive", "objective": "l2"},
    {"position_bias": "additive", "objective": "query_rmse"},
    {"position_bias": "unbiased"},
    {"position_bias": "unbiased", "objective": "ranknet", "position_bias_norm": 0.0},
]


@pytest.mark.parametrize(
    ("name", "bias"), [("l2", "additive"), ("softmax", "additive"), ("ranknet", "additive"), ("ranknet", "unbiased")]
)
def test_gradients_are_derivatives_of_the_loss_of_shifted_or_weighted_scores(name, bias):
    rows = impressions(n_lists=60)
    objective = objective_of(rows, fixed(objective=name, position_bias=bias))
    rng = np.random.default_rng(1)
    scores, tiny = rng.normal(size=rows.n_rows), 1e-5
    for step in (1, 2, 3):
        g, _ = derivatives(objective, scores, step=step)
    learnt = objective.learnt(3)[POSITION_BIAS]
    assert max(np.ptp(values) for name, values in learnt.items() if name != "position") > 0.01
    for row in rng.choice(rows.n_rows, 12, replace=False):
        moved = [scores.copy() for _ in range(2)]
        for values, sign in zip(moved, (1.0, -1.0), strict=True):
            values[row] += sign * tiny
        above, below = (float(np.sum(objective.losses(values))) for values in moved)
        assert g[row] == pytest.approx((above - below) / (2 * tiny), rel=1e-4, abs=1e-7)


@pytest.mark.parametrize("name", ["l2", "ranknet", "lambdamart"])
def test_additive_steps_are_those_of_the_slow_twin(name):
    rows = impressions(n_lists=40)
    plain = objective_of(rows, fixed(objective=name))
    objective = objective_of(rows, fixed(objective=name, position_bias="additive", position_bias_l2=0.2))
    rng, bias = np.random.default_rng(2), np.zeros(RANKS)
    for step in range(1, 5):
        scores = rng.normal(size=rows.n_rows)
        g, h = derivatives(objective, scores, step=step)
        expected = derivatives(plain, scores + bias[rows.positions - 1], step=step)
        assert g == pytest.approx(expected[0])
        assert h == pytest.approx(expected[1])
        bias = naive_additive_step(bias, rows.positions, g, h, rate=0.1, l2=0.2)
        found = objective.learnt(step)[POSITION_BIAS]
        assert found["position"] == list(range(1, RANKS + 1))
        assert found["additive"] == pytest.approx(bias - bias[0])


def test_unbiased_steps_are_those_of_the_slow_twin():
    rows = impressions(n_lists=200)
    rows = replace(rows, weights=np.random.default_rng(4).random(rows.n_rows) + 0.5)
    objective = objective_of(rows, fixed(objective="ranknet", position_bias="unbiased"))
    weights = rows.weights / rows.weights.mean()
    rng, ratios = np.random.default_rng(2), (np.ones(RANKS), np.ones(RANKS))
    for step in range(1, 5):
        scores = rng.normal(size=rows.n_rows)
        g, _ = derivatives(objective, scores, step=step)
        expected, ratios = naive_unbiased_step(
            ratios, scores, rows.grades, rows.starts, rows.positions, weights, power=0.5
        )
        assert g == pytest.approx(expected)
        found = objective.learnt(step)[POSITION_BIAS]
        assert found["clicked"] == pytest.approx(ratios[0])
        assert found["not_clicked"] == pytest.approx(ratios[1])


@pytest.mark.parametrize("way", [WAYS[1], WAYS[4]], ids=str)
def test_one_position_for_all_is_plain_training(way):
    """Where only differences of scores matter: with l2 a common number takes a part of what the trees would learn."""
    rows = impressions(positions=3)
    plain = {name: value for name, value in way.items() if not name.startswith("position_bias")}
    if way["position_bias"] == "unbiased":
        plain["lambda_normalisation"] = False
    found, expected = trained(rows, **way).forest, trained(rows, **plain).forest
    assert np.array_equal(found.thresholds, expected.thresholds, equal_nan=True)
    assert found.node_value == pytest.approx(expected.node_value, rel=1e-6, abs=1e-9)
    assert found.info[POSITION_BIAS]["position"] == [3]


@pytest.mark.parametrize("way", [WAYS[0], WAYS[2], WAYS[5]], ids=str)
def test_threads_kills_and_resuming_change_no_byte(way, tmp_path):
    rows = impressions()
    more = {"query_fraction": 0.7, **way}
    found = trained(rows, **more).forest.to_bytes()
    assert trained(rows, options={"n_threads": 3}, **more).forest.to_bytes() == found
    half = trained(rows, **{**more, "n_rounds": 5}).forest
    assert trained(rows, options={"resume": StartingModel(half)}, **more).forest.to_bytes() == found
    path, rounds = tmp_path / "a.checkpoint", []

    def dies(record):
        rounds.append(record)
        if len(rounds) == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trained(rows, Checkpoint(path, every=0.0), {"on_round": dies}, **more)
    assert trained(rows, Checkpoint(path), **more).forest.to_bytes() == found


@pytest.mark.parametrize("way", [WAYS[3], WAYS[5]], ids=str)
def test_the_bias_of_the_simulation_is_found(way):
    """Examination falls with the rank, and so must what is learnt; without bias hardly anything is learnt."""
    biased = trained(impressions(n_lists=1500), **{**way, "n_rounds": 20}).forest.info[POSITION_BIAS]
    fair = trained(impressions(n_lists=1500, theta=np.full(RANKS, 0.5)), **{**way, "n_rounds": 20}).forest.info[
        POSITION_BIAS
    ]
    kind = "additive" if way["position_bias"] == "additive" else "clicked"
    found, other = np.array(biased[kind]), np.array(fair[kind])
    assert np.corrcoef(found, np.log(THETA))[0, 1] > 0.9
    assert np.ptp(other) < 0.5 * np.ptp(found)
    if kind == "clicked":  # the same for the rest would undo the weights of clicks
        assert min(biased["not_clicked"]) > 0.8


def test_the_model_has_the_bias_of_its_best_round():
    whole = trained(position_bias="additive", n_rounds=12, early_stopping_rounds=3)
    rounds = whole.best_round
    assert rounds < 12
    part = trained(position_bias="additive", n_rounds=rounds, early_stopping_rounds=0)
    assert whole.forest.info[POSITION_BIAS] == part.forest.info[POSITION_BIAS]


def test_losses_that_have_other_targets_or_no_pairs_are_refused():
    rows = impressions(n_lists=20)
    for name in ("mcrank", "gbrank"):
        with refused(InvalidParameter, "position_bias 'additive'", name):
            objective_of(rows, fixed(objective=name, position_bias="additive"))
    for name in ("l2", "yetirank"):
        with refused(InvalidParameter, "position_bias 'unbiased'", name, "ranknet"):
            objective_of(rows, fixed(objective=name, position_bias="unbiased"))


def test_rows_without_positions_and_grades_that_are_no_clicks_are_refused():
    rows = impressions(n_lists=20)
    with refused(TrainingDataRejected, "position_bias 'additive'", "column 'position'", "position="):
        objective_of(replace(rows, positions=None), fixed(position_bias="additive"))
    with refused(TrainingDataRejected, "position_bias 'unbiased'", "1 (clicked)", 3):
        objective_of(replace(rows, grades=rows.grades * 3), fixed(position_bias="unbiased"))
    objective_of(replace(rows, grades=rows.grades * 3), fixed(position_bias="additive"))


# -- propensities that are given --------------------------------------------------------------------------------------


GIVEN = {"examination": list(THETA)}


def same(found, expected):
    assert np.array_equal(found.thresholds, expected.thresholds, equal_nan=True)
    assert found.node_value.tobytes() == expected.node_value.tobytes()


@pytest.mark.parametrize("name", ["lambdamart", "query_rmse"])
def test_equal_propensities_are_plain_training(name):
    for given in ({"examination": [1.0]}, {"examination": [1.0] * RANKS, "trust": [0.0] * RANKS}):
        same(
            trained(objective=name, propensities=given).forest,
            trained(objective=name, lambda_normalisation=False).forest,
        )


@pytest.mark.parametrize("name", ["lambdamart", "ranknet"])
def test_a_pair_weighs_as_its_click(name):
    """As weights of documents do that are 1 / theta for clicks, which slow twins of the losses check."""
    rows = impressions(n_lists=60)
    clip = 0.3
    weights = np.where(rows.grades > 0, 1.0 / np.maximum(THETA[rows.positions - 1], clip), 1.0)
    scores = np.random.default_rng(1).normal(size=rows.n_rows)
    found = objective_of(rows, fixed(objective=name, propensities=GIVEN, propensity_clip=clip))
    expected = objective_of(replace(rows, weights=weights), fixed(objective=name, lambda_normalisation=False))
    assert np.array_equal(derivatives(found, scores), derivatives(expected, scores))


def test_self_normalised_weights_are_relative_within_a_list():
    rows = impressions(n_lists=60)
    scores = np.random.default_rng(1).normal(size=rows.n_rows)
    weights = np.ones(rows.n_rows)
    for q in range(rows.n_queries):
        own = slice(rows.starts[q], rows.starts[q + 1])
        clicked = rows.grades[own] > 0
        of_clicks = 1.0 / THETA[rows.positions[own][clicked] - 1]
        weights[own][clicked] = of_clicks / of_clicks.mean() if len(of_clicks) else 1.0
    parameters = {"propensities": GIVEN, "propensity_clip": 0.01, "self_normalise": True}
    found = objective_of(rows, fixed(objective="ranknet", **parameters))
    expected = objective_of(replace(rows, weights=weights), fixed(objective="ranknet"))
    assert derivatives(found, scores) == pytest.approx(np.array(derivatives(expected, scores)))


def test_labels_are_relevance_on_average_also_with_trust():
    theta, trust = np.array([0.9, 0.6, 0.3]), np.array([0.2, 0.1, 0.05])
    rng, gamma, n = np.random.default_rng(3), 0.4, 30_000
    rows = impressions(n_lists=3)
    positions = np.arange(n) % 3 + 1
    clicked = (rng.random(n) < theta[positions - 1] * gamma + trust[positions - 1]).astype(np.int32)
    rows = replace(rows, grades=clicked, starts=np.arange(0, n + 1, 3), positions=positions.astype(np.int32))
    given = {"examination": theta.tolist(), "trust": trust.tolist()}
    start = objective_of(rows, fixed(objective="l2", propensities=given)).starting_score
    assert start == pytest.approx(gamma, abs=0.02)
    clipped = objective_of(rows, fixed(objective="l2", propensities=given, propensity_clip=0.9))
    assert clipped.starting_score == pytest.approx(np.mean((clicked - trust[positions - 1]) / 0.9))


def test_a_file_of_clicks_fit_is_kept_as_its_numbers(tmp_path):
    path = tmp_path / "pbm.json"
    write_propensities(path, Propensities(model="pbm", examination=(1.0, 0.5), low=(1.0, 0.4), high=(1.0, 0.6)))
    found = TrainParameters(preset="auto-1", propensities=path)
    assert found.propensities == {"examination": [1.0, 0.5]} == as_propensities(str(path))
    assert options_for(found.stored())["propensities"] == {"examination": [1.0, 0.5]}
    assert "propensities" not in TrainParameters().stored()
    assert str(tmp_path) not in json.dumps(found.stored())


@pytest.mark.parametrize(
    ("given", "kind", "facts"),
    [
        ("/nowhere/pbm.json", InputError, ["/nowhere/pbm.json", "no such file"]),
        ({"examination": [1.0, 0.0]}, InvalidParameter, ["propensities", "over 0", "0.0"]),
        ({"examination": [1.0], "trust": [0.1, 0.2]}, InvalidParameter, ["propensities", "trust", "0.2"]),
        ({"theta": [1.0]}, InvalidParameter, ["propensities", "clicks fit"]),
        (7, InvalidParameter, ["propensities", "clicks fit", 7]),
    ],
)
def test_what_is_no_file_of_propensities_is_refused(given, kind, facts):
    with refused(kind, *facts):
        TrainParameters(propensities=given)


def test_what_does_not_go_together_is_refused():
    for more in ({"position_bias": "additive"}, {"goals": {"bought": 0.5}}, {"refit": "all"}):
        with refused(InvalidParameter, "propensities", *more):
            fixed(propensities=GIVEN, **more)


@pytest.mark.parametrize(
    ("name", "more", "facts"),
    [
        ("bernoulli", {}, ["bernoulli", "lambdamart", "query_rmse"]),
        ("laplace", {}, ["laplace", "mean"]),
        ("lambdamart", {"propensities": {"examination": [1.0], "trust": [0.1]}}, ["lambdamart", "trust", "l2"]),
        ("l2", {"self_normalise": True}, ["self_normalise", "l2"]),
    ],
)
def test_losses_that_cannot_be_corrected_are_refused(name, more, facts):
    with refused(InvalidParameter, *facts):
        objective_of(impressions(n_lists=20), fixed(objective=name, **{"propensities": GIVEN, **more}))


def test_rows_that_are_no_impressions_are_refused():
    rows = impressions(n_lists=20)
    parameters = fixed(objective="l2", propensities=GIVEN)
    with refused(TrainingDataRejected, "propensities", "column 'position'"):
        objective_of(replace(rows, positions=None), parameters)
    with refused(TrainingDataRejected, "propensities", "1 (clicked)", 2):
        objective_of(replace(rows, grades=rows.grades * 2), parameters)
    with refused(TrainingDataRejected, "propensities", "labels"):
        objective_of(replace(rows, labels=np.zeros(rows.n_rows)), parameters)


# -- the naive model beside -------------------------------------------------------------------------------------------


PLAIN = {"n_rounds": 6, "max_leaves": 4, "min_rows_in_leaf": 5, "early_stopping_rounds": 0}
QUIET = TrainingOptions(n_threads=1, on_message=lambda _: None)


@pytest.fixture(scope="module")
def clicks(tmp_path_factory):
    """A dataset of lists of six, clicked at random, less at lower positions."""
    folder, rng, n = tmp_path_factory.mktemp("clicks"), np.random.default_rng(1), 200
    position = np.tile(np.arange(1, 7), n)
    x = rng.normal(size=(6 * n, 2))
    frame = pl.DataFrame(
        {
            "qid": np.repeat([f"q{i}/s" for i in range(n)], 6),
            "doc_id": np.tile([f"d{i}" for i in range(6)], n),
            "grade": (rng.random(6 * n) < 0.9 / position / (1.0 + np.exp(-x[:, 0]))).astype(np.int64),
            "position": position,
            "f1": x[:, 0],
            "f2": x[:, 1],
        }
    )
    frame.write_parquet(folder / "impressions.parquet")
    return dataset_of(folder)


def dataset_of(folder):
    ingest([folder / "impressions.parquet"], folder / "d", options=IngestOptions(split={"train": 0.7, "valid": 0.3}))
    bin_dataset(Dataset.open(folder / "d"), 31)
    return Dataset.open(folder / "d")


@pytest.mark.parametrize(
    "way",
    [{"position_bias": "additive"}, {"position_bias": "unbiased"}, {"propensities": {"examination": [1.0, 0.5]}}],
    ids=str,
)
def test_a_corrected_model_shows_the_naive_one(clicks, tmp_path, way):
    registry = Registry(tmp_path / "registry")
    done = train_and_register(clicks, "w", registry, fixed(**PLAIN, **way), QUIET, SeedOptions())
    plain = train(clicks, fixed(**PLAIN), QUIET)
    found = done.candidate.facts.clicks
    assert found.naive.sha256 == plain.forest.sha256
    assert found.naive.metrics["valid"]["ndcg@10"] == plain.history[-1].metrics["valid"]["ndcg@10"]
    assert found.valid_has == "clicks"
    shown = done.report.valid["ndcg@10"]
    line = f"valid ndcg@10 (clicks): naive {found.naive.metrics['valid']['ndcg@10']:.4f}, corrected {shown:.4f}"
    assert line in done.report.render()
    learnt = done.report.to_dict()["clicks"].get("position_bias")
    assert (learnt is None) == ("propensities" in way)
    assert learnt is None or learnt["position"] == [1, 2, 3, 4, 5, 6]
    alone = train_and_register(
        clicks, "w", registry, fixed(**PLAIN, **way), replace(QUIET, naive_beside=False), SeedOptions()
    )
    assert alone.version.sha256 == done.version.sha256
    assert alone.candidate.facts.clicks.naive is None


def test_without_a_correction_nothing_is_trained_beside(clicks, tmp_path):
    done = train_and_register(clicks, "w", Registry(tmp_path / "registry"), fixed(**PLAIN), QUIET, SeedOptions())
    assert done.candidate.facts.clicks is None
    assert "clicks" not in done.report.to_dict()


@pytest.mark.parametrize("bias", ["additive", "unbiased"])
def test_the_memory_of_the_loss_is_counted(bias):
    rows = impressions(n_lists=20)
    plain = objective_of(rows, fixed(objective="ranknet"))
    corrected = objective_of(rows, fixed(objective="ranknet", position_bias=bias))
    assert corrected.bytes_held(rows) >= plain.bytes_held(rows) + 4 * rows.n_rows
