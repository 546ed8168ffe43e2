"""Several seeds: the best of them, their average, and how much chance there is in them."""

import statistics
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from rankmill.foundation.errors import InvalidParameter
from rankmill.foundation.records import as_json, to_line
from rankmill.scorer.forest.forest import Forest
from rankmill.scorer.forest.predict import ForestPredictor
from rankmill.scorer.models.identity import ModelIdentity
from rankmill.scorer.models.model_service import recipe_and_seed
from rankmill.trainer.candidates import train_on_dataset as training
from rankmill.trainer.candidates.combined_forests import average
from rankmill.trainer.candidates.multi_seed_training import plan_candidate, train_candidate
from rankmill.trainer.candidates.version_facts import facts_of
from rankmill.trainer.options import SeedOptions
from rankmill.trainer.rounds.checkpoints import FinishedTrainings, training_key
from rankmill.trainer.rounds.round_metrics import measure
from rankmill.trainer.training_facts import OtherModel, Spread
from rankmill.trainer.training_options import StartingModel, TrainingOptions
from tests.refusals import refused
from tests.trainer.small_dataset import SMALL, small_dataset

SEEDS = (1, 2, 3)
METRICS = ("map", "deviance")


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    return tmp_path_factory.mktemp("kept")


def candidate_of(dataset, kept, choose, seeds=SEEDS, parameters=SMALL, **more):
    chosen = SeedOptions(seeds=seeds, choose=choose, splits=more.pop("splits", ()))
    options = TrainingOptions(**{"eval_metrics": METRICS, "n_threads": 1, "checkpoint": kept, **more})
    return train_candidate(dataset, parameters, options, chosen)


@pytest.fixture(scope="module")
def forests(dataset):
    return [training.train(dataset, replace(SMALL, seed=seed), TrainingOptions(n_threads=1)).forest for seed in SEEDS]


def scores(forest, dataset, split="test"):
    return ForestPredictor(forest).scores(np.concatenate(list(dataset.feature_batches(split))))


def test_the_average_s_scores_are_the_means_of_the_scores(dataset, kept, forests):
    forest = candidate_of(dataset, kept, "average").forest
    assert len({each.sha256 for each in forests}) == 3  # else this says nothing
    assert forest.n_trees == sum(each.n_trees for each in forests)
    of_all = np.array([scores(each, dataset) for each in forests])
    assert np.allclose(scores(forest, dataset), of_all.mean(axis=0), rtol=1e-13, atol=1e-13)
    assert Forest.from_bytes(forest.to_bytes()) == forest
    assert np.array_equal(scores(average(forests[:1]), dataset), scores(forests[0], dataset))


@pytest.mark.parametrize("choose", ["best", "average"])
def test_the_order_of_seeds_threads_and_the_folder_change_nothing(dataset, kept, choose):
    found = candidate_of(dataset, kept, choose)
    other = candidate_of(dataset, None, choose, seeds=(3, 1, 2), n_threads=2)
    assert other.forest.to_bytes() == found.forest.to_bytes()
    assert _json(other.facts) == _json(found.facts)
    assert other.record() == found.record()


def _json(facts):
    return to_line(facts)


def test_the_best_is_best_on_the_valid_split_and_the_forest_of_its_own_training(dataset, kept, forests):
    found = candidate_of(dataset, kept, "best")
    values = [each.metrics["valid"]["ndcg@10"] for each in found.seeds]
    assert found.chosen == SEEDS[values.index(max(values))]
    assert [each.facts().sha256 for each in found.seeds] == [each.sha256 for each in forests]
    assert found.forest.sha256 == forests[SEEDS.index(found.chosen)].sha256
    assert found.facts.seeds.chosen == found.chosen == found.facts.parameters["seed"]
    worst = candidate_of(dataset, None, "best", parameters=replace(SMALL, stop_metric="deviance"))
    losses = [each.metrics["valid"]["deviance"] for each in worst.seeds]
    assert worst.chosen == SEEDS[losses.index(min(losses))]


def test_the_noise_floor_is_mean_deviation_and_range_over_the_seeds(dataset, kept):
    found = candidate_of(dataset, kept, "average", splits=("test",))
    assert set(found.noise_floor) == {"valid", "test"}
    for split, metrics in found.noise_floor.items():
        for name, spread in metrics.items():
            values = [each.metrics[split][name] for each in found.seeds]
            assert spread.mean == pytest.approx(statistics.fmean(values), rel=1e-14)
            assert spread.deviation == pytest.approx(statistics.stdev(values), rel=1e-12)
            assert (spread.least, spread.greatest) == (min(values), max(values))
    assert found.facts.seeds.noise_floor == found.noise_floor
    assert Spread.of([1.0, 1.0]).deviation == 0.0


def test_the_average_says_what_it_measures_itself(dataset, kept):
    found = candidate_of(dataset, kept, "average", splits=("test",))
    for split in ("train", "valid", "test"):
        assert found.facts.metrics[split] == measure(found.forest, dataset, split, SMALL, METRICS)[0]
        low, high = found.facts.intervals[split]["ndcg@10"]
        assert low < found.facts.metrics[split]["ndcg@10"] < high
    assert found.facts.best_round is None
    assert found.forest.info["seeds"] == list(SEEDS)
    assert found.forest.info["dataset_digest"] == dataset.digest


def test_one_seed_is_a_plain_training(dataset):
    plain = training.train(dataset, replace(SMALL, seed=2), TrainingOptions(n_threads=1))
    for seeds, parameters in (((2,), SMALL), ((), replace(SMALL, seed=2))):
        found = train_candidate(
            dataset, parameters, TrainingOptions(n_threads=1), SeedOptions(seeds=seeds, choose="average")
        )
        assert found.forest == plain.forest
        assert found.facts == facts_of(dataset, plain)
        assert found.noise_floor is None


def test_trainings_that_are_done_are_not_done_again(dataset, tmp_path, monkeypatch):
    first = candidate_of(dataset, tmp_path, "best", seeds=(1, 2))
    calls = []
    real = training.train

    def counted(*arguments, **options):
        calls.append(arguments[1].seed)
        return real(*arguments, **options)

    monkeypatch.setattr(training, "train", counted)
    again = candidate_of(dataset, tmp_path, "best", seeds=(1, 2))
    assert calls == []
    assert _json(again.facts) == _json(first.facts)
    assert [each.result.history for each in again.seeds] == [each.result.history for each in first.seeds]
    candidate_of(dataset, tmp_path, "average")
    assert calls == [3]
    (tmp_path / f"{first.keys[0]}.rankmill").write_bytes(b"damaged")
    (tmp_path / f"{first.keys[1]}.json").write_bytes(b"{")
    assert _json(candidate_of(dataset, tmp_path, "best", seeds=(1, 2)).facts) == _json(first.facts)
    assert calls == [3, 1, 2]
    store = FinishedTrainings(tmp_path)
    (tmp_path / f"{'a' * 64}.whole.checkpoint").write_bytes(b"of a training that nobody wants any more")
    (tmp_path / f".{first.keys[0]}.json.0123.staging").write_bytes(b"left by a kill")
    store.remove_others(first.keys)
    assert sorted(path.stem for path in tmp_path.iterdir()) == sorted([*first.keys, *first.keys])
    store.remove(first.keys)
    assert list(tmp_path.iterdir()) == []


def test_a_killed_training_of_three_seeds_resumes_with_the_third(dataset, tmp_path):
    whole = candidate_of(dataset, None, "average")

    def killed(record):
        if (record.seed, record.round_number) == (3, 4):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        candidate_of(dataset, tmp_path, "average", on_round=killed, checkpoint_every=0.0)
    reported = []
    seen = []
    found = candidate_of(
        dataset,
        tmp_path,
        "average",
        on_message=reported.append,
        on_round=lambda record: seen.append(record.seed),
        checkpoint_every=0.0,
    )
    assert set(seen) == {3}
    assert [line.split(":")[0] for line in reported[:2]] == ["seed 1 is already trained", "seed 2 is already trained"]
    assert found.forest == whole.forest
    assert found.record() == whole.record()
    assert not list(tmp_path.glob("*.checkpoint"))


def test_every_thing_that_decides_a_training_is_in_its_key(dataset):
    keys = {
        training_key(dataset, SMALL),
        training_key(dataset, replace(SMALL, seed=8)),
        training_key(dataset, replace(SMALL, n_rounds=13)),
        training_key(dataset, SMALL, ["map"]),
        training_key(dataset, SMALL, [], "a" * 64),
    }
    assert len(keys) == 5
    assert training_key(dataset, SMALL) in keys


def test_on_top_of_a_base_model_the_base_is_there_once(dataset):
    base = training.train(
        dataset, replace(SMALL, n_rounds=3, early_stopping_rounds=0), TrainingOptions(n_threads=1)
    ).forest
    origin = StartingModel(base, ModelIdentity(sha256=base.sha256))
    found = candidate_of(dataset, None, "average", base_model=origin)
    after = sum(each.result.forest.n_trees - base.n_trees for each in found.seeds)
    assert found.forest.n_trees == base.n_trees + after
    of_all = np.array([scores(each.result.forest, dataset) for each in found.seeds])
    assert np.allclose(scores(found.forest, dataset), of_all.mean(axis=0), rtol=1e-12, atol=1e-12)
    assert found.facts.base_model == OtherModel(sha256=base.sha256)


def test_an_average_cannot_be_resumed(dataset, kept):
    forest = candidate_of(dataset, kept, "average").forest
    with refused(InvalidParameter, "resume", "average", "seeds"):
        training.train(dataset, replace(SMALL, seed=1), TrainingOptions(resume=StartingModel(forest)))


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"seeds": (1, 2), "choose": "worst"}, ("choose", "'worst'", "best, average")),
        ({"seeds": (1, 2, 1)}, ("1", "2 times")),
        ({"seeds": (1, -2)}, "-2"),
        ({"seeds": (1, 2), "choose": "average", "parameters": {"objective": "mcrank"}}, "probabilities"),
    ],
)
def test_what_cannot_be_is_refused_before_the_training(dataset, asked, message):
    parameters = replace(SMALL, **asked.pop("parameters", {}))
    with refused(InvalidParameter, message):
        plan_candidate(dataset, parameters, TrainingOptions(), SeedOptions(**asked))


def test_without_a_valid_split_only_the_average_is_permitted(tmp_path):
    alone = small_dataset(tmp_path, {"train": 1.0}, queries=30)
    with refused(InvalidParameter, "seeds", "valid"):
        plan_candidate(alone, SMALL, TrainingOptions(), SeedOptions(seeds=(1, 2)))
    found = candidate_of(alone, None, "average", seeds=(1, 2))
    assert found.noise_floor == {}
    plan_candidate(alone, SMALL, TrainingOptions(), SeedOptions(seeds=(1,)))


def test_an_average_is_no_other_seed_of_a_single_model(dataset, kept):
    average, best = (candidate_of(dataset, kept, choose).facts for choose in ("average", "best"))
    plain = facts_of(dataset, training.train(dataset, replace(SMALL, seed=3), TrainingOptions(n_threads=1)))
    versions = [SimpleNamespace(manifest=as_json(facts)) for facts in (average, best, plain)]
    of_average, of_best, of_plain = (recipe_and_seed(version)[0] for version in versions)
    assert of_average != of_best == of_plain
    others = candidate_of(dataset, None, "average", seeds=(4, 5, 6)).facts
    assert recipe_and_seed(SimpleNamespace(manifest=as_json(others))) == (of_average, 4)
