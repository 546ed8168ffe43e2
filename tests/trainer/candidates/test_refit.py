"""Training again on the train and valid splits, for the number of rounds that was found without the valid split."""

from dataclasses import replace

import numpy as np
import pytest

from rankmill.foundation.errors import InputError, InvalidParameter, TrainingDataRejected
from rankmill.foundation.records import as_json
from rankmill.pipeline.group.sketch import TRAIN_QUERIES, QuerySketch
from rankmill.pipeline.pairs.stored_pairs import PreferencePairs
from rankmill.scorer.evaluate.train_test_overlap import TrainedModel, scope_of
from rankmill.trainer.candidates.multi_seed_training import plan_candidate, train_candidate
from rankmill.trainer.candidates.train_on_dataset import plan_of, train
from rankmill.trainer.data.rows import RankedRows
from rankmill.trainer.options import SeedOptions
from rankmill.trainer.rounds.checkpoints import Checkpoint, Checkpoints
from rankmill.trainer.rounds.train_on_rows import fit
from rankmill.trainer.training_options import StartingModel, TrainingOptions
from tests.refusals import refused
from tests.trainer.fixed import fixed
from tests.trainer.planted import boost_rows, rows_of, small_data
from tests.trainer.small_dataset import SMALL, small_dataset

REFIT = replace(SMALL, refit="all")
ONE = TrainingOptions(n_threads=1)


def fitted(train_rows, eval_sets, options=None, **parameters):
    given = fixed(**{"n_rounds": 20, "max_leaves": 8, "learning_rate": 0.5, **parameters})
    return boost_rows(train_rows, eval_sets, given, run=fit, **(options or {}))


def together(first, second):
    """Return (x, grades, starts) of both."""
    starts = np.concatenate([first[2], second[2][1:] + first[2][-1]])
    return np.concatenate([first[0], second[0]]), np.concatenate([first[1], second[1]]), starts


@pytest.mark.parametrize(
    "parameters",
    [
        {"early_stopping_rounds": 5, "grow": "oblivious", "max_depth": 3, "row_fraction": 0.7},
        {"rounds_by": "test", "early_stopping_rounds": 5},
        {"rounds_by": "cv", "folds": 3, "early_stopping_rounds": 5},
        {"rounds_by": "oob", "query_fraction": 0.6},
        {"objective": "mcrank", "n_rounds": 6, "early_stopping_rounds": 0},
    ],
    ids=str,
)
def test_it_is_training_on_the_rows_of_both_for_the_rounds_of_the_first(parameters):
    train_part, valid_part, binspec = small_data()
    rows = {name: rows_of(part, binspec) for name, part in (("train", train_part), ("valid", valid_part))}
    first = fitted(rows["train"], [("valid", rows["valid"])], **parameters)
    found = fitted(rows["train"], [("valid", rows["valid"])], refit="all", **parameters)
    own = {**parameters, "rounds_by": "valid", "early_stopping_rounds": 0, "n_rounds": first.best_round}
    both = fitted(rows_of(together(train_part, valid_part), binspec), [], **own)
    for name in ("node_value", "node_feature", "node_cut", "node_left", "tree_starts", "tree_weights", "base_score"):
        assert np.array_equal(getattr(found.forest, name), getattr(both.forest, name)), name
    assert (found.history, found.best_round) == (first.history, first.best_round)
    cut = [rows_of(part, binspec, batch=7) for part in (train_part, valid_part)]
    chunked = fitted(cut[0], [("valid", cut[1])], refit="all", options={"n_threads": 3}, **parameters)
    assert chunked.forest.to_bytes() == found.forest.to_bytes()
    assert found.forest.info["valid"] == first.forest.info["valid"]
    assert found.forest.info["refit"] == {
        "rows": len(train_part[1]) + len(valid_part[1]),
        "queries": len(train_part[2]) + len(valid_part[2]) - 2,
        "rounds": first.best_round,
    }


def test_rows_after_others_take_everything_along():
    rng = np.random.default_rng(3)

    def rows(starts, **columns):
        return RankedRows(rng.integers(0, 3, size=starts[-1]).astype(np.int32), np.array(starts), [], **columns)

    def pairs(better, worse, starts):
        ones = np.ones(len(better))
        return PreferencePairs(np.array(better, np.int32), np.array(worse, np.int32), ones, ones / 2, np.array(starts))

    first = rows(
        [0, 2, 5], weights=np.arange(5.0), pairs=pairs([1, 4], [0, 2], [0, 1, 2]), query_weights=np.array([1.0, 2.0])
    )
    second = rows(
        [0, 3], labels=np.array([0.5, 1.5, 2.5]), offsets=np.arange(3.0), events=np.array([0, 1, 0], np.uint8),
        pairs=pairs([2], [1], [0, 1]), names=np.array([9]),
    )  # fmt: skip
    found = first.followed_by(second, [])
    assert found.starts.tolist() == [0, 2, 5, 8]
    assert found.grades.tolist() == [*first.grades, *second.grades]
    assert found.weights.tolist() == [0, 1, 2, 3, 4, 1, 1, 1]
    assert found.query_weights.tolist() == [1, 2, 1]
    assert found.labels.tolist() == [*first.grades, 0.5, 1.5, 2.5]
    assert found.offsets.tolist() == [0, 0, 0, 0, 0, 0, 1, 2]
    assert found.events.tolist() == [1, 1, 1, 1, 1, 0, 1, 0]
    assert found.names.tolist() == [0, 1, 9]
    assert (found.pairs.better.tolist(), found.pairs.worse.tolist()) == ([1, 4, 7], [0, 2, 6])
    assert found.pairs.starts.tolist() == [0, 1, 2, 3]
    alone = first.followed_by(replace(second, pairs=None), [])
    assert (alone.pairs.better.tolist(), alone.pairs.starts.tolist()) == ([1, 4], [0, 1, 2, 2])
    plain = rows([0, 2]).followed_by(rows([0, 3]), [])
    columns = ("weights", "query_weights", "labels", "offsets", "events", "names", "pairs")
    assert [getattr(plain, name) for name in columns] == [None] * len(columns)


def test_without_a_valid_split_it_is_refused_before_the_training(tmp_path):
    facts = "refit all", "valid split", "eval_set", "refit to none"
    train_part, _, binspec = small_data()
    with refused(TrainingDataRejected, facts):
        fitted(rows_of(train_part, binspec), [], refit="all")
    with refused(TrainingDataRejected, facts):
        plan_of(small_dataset(tmp_path, {"train": 0.8, "test": 0.2}), REFIT)


@pytest.mark.parametrize("more", [{}, {"rounds_by": "cv", "folds": 3}], ids=str)
def test_threads_and_kills_in_either_training_change_nothing(dataset, tmp_path, more):
    parameters = replace(REFIT, **more)
    whole = train(dataset, parameters, ONE)
    assert train(dataset, parameters, TrainingOptions(n_threads=2)).forest.to_bytes() == whole.forest.to_bytes()
    deaths = 0
    while True:
        writes = 0

        def dying(self, rounds, forest, real=Checkpoint.write):
            nonlocal writes
            before = self._rounds
            real(self, rounds, forest)
            writes += self._rounds > before
            if writes == 5:
                raise KeyboardInterrupt

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Checkpoint, "write", dying)
            try:
                found = train(dataset, parameters, ONE, Checkpoints(tmp_path, "k", every=0.0))
                break
            except KeyboardInterrupt:
                deaths += 1
    assert deaths >= (9 if more else 3)  # in both trainings
    assert found.forest.to_bytes() == whole.forest.to_bytes()
    assert (found.history, found.best_round) == (whole.history, whole.best_round)
    Checkpoints(tmp_path, "k").clear()
    assert list(tmp_path.iterdir()) == []


def test_resuming_is_training_in_one_go(dataset):
    short = train(dataset, replace(REFIT, n_rounds=3), ONE)
    resumed = train(dataset, REFIT, replace(ONE, resume=StartingModel(short.forest)))
    assert resumed.forest.to_bytes() == train(dataset, REFIT, ONE).forest.to_bytes()
    with refused(InvalidParameter, "resume", "refit", "'all'", "'none'"):
        train(dataset, SMALL, replace(ONE, resume=StartingModel(short.forest)))


def test_the_manifest_names_both_trainings_and_the_valid_queries_are_known_to_be_seen(dataset):
    found, plain = (train_candidate(dataset, each, ONE) for each in (REFIT, SMALL))
    facts = as_json(found.facts)
    sizes = {name: dataset.queries(name) for name in ("train", "valid")}
    assert facts["refit"] == {
        "rows": sum(each.n_rows for each in sizes.values()),
        "queries": sum(map(len, sizes.values())),
        "rounds": found.forest.n_rounds,
    }
    assert (facts["metrics"], facts["intervals"]) == (
        as_json(plain.facts)["metrics"],
        as_json(plain.facts)["intervals"],
    )
    assert "refit" not in as_json(plain.facts)
    assert "refit" not in plain.forest.parameters
    assert set(found.facts.changed_parameters) - set(plain.facts.changed_parameters) == {"refit"}
    sketches = [QuerySketch.from_bytes(each.attachments[TRAIN_QUERIES], "t").queries for each in (found, plain)]
    assert sketches == [sum(map(len, sizes.values())), len(sizes["train"])]
    model = TrainedModel.of(found.forest)
    assert scope_of(dataset, None, [model]).splits == ("test",)
    assert scope_of(dataset, "valid", [model]).seen_in_training == {"the model": ("valid",)}
    assert scope_of(dataset, "all", [model]).seen_in_training == {"the model": ("train", "valid")}
    assert scope_of(dataset, "valid", [TrainedModel.of(plain.forest)]).chose_rounds == {"the model": ("valid",)}


def test_no_split_is_left_to_score_where_all_were_learnt_from(tmp_path):
    data = small_dataset(tmp_path, {"train": 0.8, "valid": 0.2})
    model = TrainedModel.of(train(data, REFIT, ONE).forest)
    with refused(InputError, "no split", "queries"):
        scope_of(data, None, [model])


def test_the_average_of_refits_has_no_metrics_of_the_valid_split(dataset, tmp_path):
    seeds = SeedOptions(seeds=(1, 2), choose="average", splits=("test",))
    found = train_candidate(dataset, REFIT, replace(ONE, checkpoint=tmp_path), seeds)
    again = train_candidate(dataset, REFIT, replace(ONE, checkpoint=tmp_path), seeds)  # from what is kept
    assert again.forest.to_bytes() == found.forest.to_bytes()
    assert as_json(again.facts) == as_json(found.facts)
    assert set(found.facts.metrics) == {"train", "test"}
    assert set(found.noise_floor) == {"valid", "test"}  # those of the first trainings
    assert plan_candidate(dataset, REFIT).bytes_needed > plan_candidate(dataset, SMALL).bytes_needed
