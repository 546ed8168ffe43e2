"""Presets: what they decide, that given options win, and that the model records every choice."""

from dataclasses import fields, replace

import numpy as np
import pytest

from rankmill import Ranker
from rankmill.foundation.errors import InvalidParameter, TrainingDataRejected
from rankmill.foundation.options import DEFAULTS
from rankmill.trainer.parameters import AUTO, NAMES, TrainParameters, options_for
from rankmill.trainer.presets import FEW_QUERIES, DataShape, with_preset
from tests.refusals import refused

SMALL = DataShape(100, has_valid=True, may_refit=True)
LARGE = DataShape(FEW_QUERIES + 1, has_valid=True, may_refit=True)


def judgments(n_queries=40, n_documents=15, n_features=4):
    rng = np.random.default_rng(3)
    x = rng.normal(size=(n_queries * n_documents, n_features)).astype(np.float32)
    grades = np.clip(np.rint(x[:, 0] + rng.normal(size=len(x))), 0, 3).astype(np.int32)
    return x, grades, np.repeat(np.arange(n_queries), n_documents)


@pytest.mark.parametrize("shape", [SMALL, LARGE])
def test_every_option_has_a_value_once_the_preset_has_chosen(shape):
    found = with_preset(TrainParameters(preset=AUTO), shape)
    assert [each.name for each in fields(found) if getattr(found, each.name) is None] == []


@pytest.mark.parametrize(
    ("name", "value"), [("learning_rate", 0.1), ("objective", "lambdamart"), ("grow", "best_first"), ("n_rounds", 500)]
)
def test_a_given_option_wins_even_if_it_is_the_old_default(name, value):
    found = with_preset(TrainParameters(preset=AUTO, **{name: value}), SMALL)
    assert getattr(found, name) == value
    assert getattr(with_preset(TrainParameters(preset=AUTO), SMALL), name) != value


@pytest.mark.parametrize(
    "given",
    [
        {"monotone": {"a": 1}},
        {"max_leaves": 31},
        {"grow": "depth_first"},
        {"criterion": "ole", "objective": "lambdamart"},
    ],
)
def test_the_preset_keeps_to_what_the_given_options_allow(given):
    found = with_preset(TrainParameters(preset=AUTO, **given), SMALL)
    assert {name: getattr(found, name) for name in given} == given
    assert found.grow != "oblivious" or "criterion" in given


def test_an_unknown_preset_is_refused():
    with pytest.raises(InvalidParameter, match="auto-1"):
        TrainParameters(preset="auto1")


def test_the_model_records_the_preset_and_its_choices_which_give_the_same_trees_when_given():
    x, grades, qid = judgments()
    eval_set = (x[:150], grades[:150], qid[:150])
    auto = Ranker(preset=AUTO, n_rounds=15).fit(x, grades, qid=qid, eval_set=eval_set)
    stored = dict(auto.forest_.parameters)
    assert stored["preset"] == AUTO
    chosen = with_preset(TrainParameters(preset=AUTO, n_rounds=15), DataShape(40, has_valid=True, may_refit=True))
    assert {
        name: stored[name] for name in ("objective", "grow", "max_depth", "learning_rate", "bootstrap", "refit")
    } == {
        name: getattr(chosen, name)
        for name in ("objective", "grow", "max_depth", "learning_rate", "bootstrap", "refit")
    }
    given = {name: value for name, value in stored.items() if name != "preset"}
    same = Ranker(**given).fit(x, grades, qid=qid, eval_set=eval_set)
    np.testing.assert_array_equal(same.predict(x), auto.predict(x))
    again = Ranker.from_model(auto.forest_)
    assert again.preset == AUTO
    assert again.fit(x, grades, qid=qid, eval_set=eval_set).forest_.to_bytes() == auto.forest_.to_bytes()


def test_the_valid_split_is_learnt_from_only_if_another_split_is_left_to_judge_the_model():
    assert with_preset(TrainParameters(preset=AUTO), replace(SMALL, may_refit=False)).refit == "none"
    x, grades, qid = judgments()
    alone = Ranker(preset=AUTO, n_rounds=5).fit(x, grades, qid=qid)
    assert alone.forest_.parameters.get("refit", "none") == "none"


def chosen(shape=SMALL, **given):
    return with_preset(TrainParameters(preset=AUTO, **given), shape)


def test_without_queries_to_choose_the_rounds_there_are_as_many_as_are_usually_best():
    alone = replace(SMALL, has_valid=False, may_refit=False)
    assert chosen(alone).n_rounds < 0.3 * chosen(SMALL).n_rounds
    assert chosen(alone, rounds_by="cv").n_rounds == chosen(SMALL).n_rounds == chosen(alone.in_folds()).n_rounds
    assert chosen(SMALL, early_stopping_rounds=0).n_rounds == chosen(alone).n_rounds


@pytest.mark.parametrize("shape", [SMALL, LARGE])
def test_few_rounds_learn_faster(shape):
    rates = [chosen(shape, n_rounds=n).learning_rate for n in (5, 20, 60, 200, 1000, 100_000)]
    assert rates == sorted(rates, reverse=True)
    assert rates[0] > 2 * rates[-1] == 2 * chosen(shape).learning_rate
    assert chosen(shape, n_rounds=5, learning_rate=0.01).learning_rate == 0.01


def test_a_resumed_training_keeps_the_rate_that_was_chosen_for_fewer_rounds():
    x, grades, qid = judgments()
    short = Ranker(n_rounds=30).fit(x, grades, qid=qid)
    rate = short.forest_.parameters["learning_rate"]
    whole = Ranker(n_rounds=60, learning_rate=rate).fit(x, grades, qid=qid)
    assert Ranker(n_rounds=60).fit(x, grades, qid=qid).forest_.parameters["learning_rate"] != rate
    for resumed in (
        Ranker(n_rounds=60).fit(x, grades, qid=qid, resume=short),
        Ranker(n_rounds=30).fit(x, grades, qid=qid, init_model=short),
    ):
        assert resumed.forest_.to_bytes() == whole.forest_.to_bytes()


@pytest.mark.parametrize("objective", [*NAMES, "quantile(alpha=0.9)"])
def test_every_objective_trains_with_what_the_preset_chooses_for_it(objective):
    found = chosen(objective=objective)
    assert found.objective.startswith(objective)
    assert found.members == (1 if objective == "gbrank" else 3)
    x, grades, qid = judgments(20, 8)
    more = {"label": grades + 1.0} if objective == "coxph" else {}
    assert Ranker(objective=objective, n_rounds=2).fit(x, grades, qid=qid, **more).forest_.n_rounds == 2


def test_a_model_of_the_fixed_preset_resumes_only_with_it_and_the_message_names_it():
    x, grades, qid = judgments()
    old = Ranker(preset=DEFAULTS, n_rounds=3).fit(x, grades, qid=qid)
    with refused(InvalidParameter, "preset", "defaults-1", "auto-1"):
        Ranker(n_rounds=6).fit(x, grades, qid=qid, resume=old)
    resumed = Ranker(preset=DEFAULTS, n_rounds=6).fit(x, grades, qid=qid, resume=old)
    assert resumed.forest_.to_bytes() == Ranker(preset=DEFAULTS, n_rounds=6).fit(x, grades, qid=qid).forest_.to_bytes()


def test_a_file_without_a_preset_has_the_fixed_values():
    x, grades, qid = judgments(10)
    forest = Ranker(preset=DEFAULTS, n_rounds=2).fit(x, grades, qid=qid).forest_
    former = replace(forest, parameters={name: value for name, value in forest.parameters.items() if name != "preset"})
    loaded = Ranker.from_model(former)
    assert (loaded.preset, loaded.learning_rate, loaded.bootstrap) == (DEFAULTS, 0.1, "none")
    assert loaded.fit(x, grades, qid=qid).forest_.to_bytes() == forest.to_bytes()
    assert Ranker(preset=DEFAULTS, n_rounds=2).fit(x, grades, qid=qid, resume=former).best_round_ == 2


@pytest.mark.parametrize("preset", [AUTO, DEFAULTS])
def test_the_options_for_a_model_give_its_parameters_whatever_the_data(preset):
    found = with_preset(TrainParameters(preset=preset, learning_rate=0.1, seed=3), SMALL)
    again = TrainParameters(**options_for(found.stored()))
    assert with_preset(again, LARGE) == found


def test_pairs_without_grades_are_learnt_from_by_an_objective_that_needs_none():
    x, grades, qid = judgments(20, 8)
    better = np.flatnonzero(grades[:-1] > grades[1:])
    pairs = np.column_stack([better, better + 1])
    pairs = pairs[qid[pairs[:, 0]] == qid[pairs[:, 1]]]
    for constant in (np.zeros_like(grades), np.ones_like(grades), qid % 3):
        found = Ranker(n_rounds=20).fit(x, constant, qid=qid, pairs=pairs)
        scores = found.predict(x)
        assert np.mean(scores[pairs[:, 0]] > scores[pairs[:, 1]]) > 0.7


def test_a_refitted_model_resumes_only_with_the_eval_set_that_it_has_learnt_from():
    x, grades, qid = judgments()
    first, other = ((x[:n], grades[:n], qid[:n]) for n in (150, 165))
    short = Ranker(n_rounds=3, learning_rate=0.1).fit(x, grades, qid=qid, eval_set=first)
    whole = Ranker(n_rounds=6, learning_rate=0.1).fit(x, grades, qid=qid, eval_set=first)
    found = Ranker(n_rounds=6, learning_rate=0.1).fit(x, grades, qid=qid, eval_set=first, resume=short)
    assert found.forest_.to_bytes() == whole.forest_.to_bytes()
    with refused(InvalidParameter, "eval set", "750", "765"):
        Ranker(n_rounds=6, learning_rate=0.1).fit(x, grades, qid=qid, eval_set=other, resume=short)
    with refused(TrainingDataRejected, "resume", "eval_set"):
        Ranker(n_rounds=6, learning_rate=0.1).fit(x, grades, qid=qid, resume=short)


def test_labels_need_an_objective_for_them():
    x, grades, qid = judgments(5)
    with refused(InvalidParameter, "label", "preset", "l2"):
        Ranker().fit(x, grades, qid=qid, label=x[:, 0])
