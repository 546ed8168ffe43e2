"""A search for parameters: the same table for any workers and after any kill, and trials that are what they say."""

import json
import math
import os
import signal
import subprocess
import sys
import time
import tomllib
from dataclasses import replace

import numpy as np
import pytest

from rankmill.cli import execute
from rankmill.foundation.errors import DatasetFormatError, InvalidParameter
from rankmill.foundation.options import spelled_for
from rankmill.scorer.metrics.per_query import mean_of
from rankmill.trainer.candidates.train_on_dataset import cross_validate, train
from rankmill.trainer.nets.options import NetOptions
from rankmill.trainer.options import TuneOptions
from rankmill.trainer.parameters import TrainParameters
from rankmill.trainer.presets import shape_of_dataset, with_preset
from rankmill.trainer.training_options import TrainingOptions
from rankmill.trainer.tuning import search
from rankmill.trainer.tuning import searched as of_kinds
from rankmill.trainer.tuning.gain import gain_of
from rankmill.trainer.tuning.search import plan_tuning, tune
from rankmill.trainer.tuning.space import space_of
from rankmill.trainer.tuning.table import Row
from rankmill.trainer.tuning.trials import Outcome
from tests import ROOT
from tests.refusals import refused, unnamed
from tests.trainer.small_dataset import SMALL
from tests.waiting import LIMIT, until
from tests.written import files_in

BASE = replace(SMALL, n_rounds=12, early_stopping_rounds=0)
SPACE = space_of({"learning_rate": "0.05..0.8:log", "max_leaves": "2..8", "objective": "lambdamart,l2"}, "test")
USUAL = TuneOptions(trials=6, repeat=1, best=2, workers=1, compare_by="valid")


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch):
    monkeypatch.setattr("rankmill.trainer.team.available_cores", lambda: 1)


def searched(dataset, out, options=USUAL, **more):
    return tune(plan_tuning(dataset, BASE, SPACE, options), out, **more)


@pytest.fixture(scope="module")
def done(dataset, tmp_path_factory):
    out = tmp_path_factory.mktemp("done") / "t"
    return out, searched(dataset, out)


def test_a_trial_is_the_training_that_it_says(dataset, done):
    _, table = done
    assert [row.trial for row in table.rows if not row.values] == [0]  # the parameters as they were given
    for row in (table.rows[0], table.rows[-1]):
        result = train(dataset, replace(BASE, **row.values), TrainingOptions(n_threads=1))
        assert row.outcome.score == result.history[result.best_round - 1].metrics["valid"]["ndcg@10"]
        assert (row.outcome.best_round, row.outcome.trained) == (result.best_round, len(result.history))
        values = [math.nan if value is None else value for value in row.outcome.by_query]
        assert np.array_equal(values, result.by_query["valid"]["ndcg@10"].values.round(6), equal_nan=True)
    for seed, outcome in table.rows[0].repeats.items():
        result = train(dataset, replace(BASE, **table.rows[0].values, seed=seed), TrainingOptions(n_threads=1))
        assert outcome.score == result.history[result.best_round - 1].metrics["valid"]["ndcg@10"]


def test_the_best_trials_and_the_options_as_given_are_repeated(done):
    _, table = done
    scores = [row.outcome.score for row in table.rows]
    assert scores == sorted(scores, reverse=True)
    assert {row.trial for row in table.rows if row.repeats} == {0, *[row.trial for row in table.rows if row.trial][:2]}
    assert table.best.mean == max(row.mean for row in table.rows if row.repeats)
    reported = table.to_dict()["trials"][0]["over_seeds"]
    assert reported["mean"] == table.rows[0].mean
    assert reported["least"] == min(table.rows[0].scores)


def test_the_winner_is_the_best_trial_only_if_it_gains_on_other_queries(done):
    """The gain is that of the means over seeds; without queries' values the best trial wins."""
    _, table = done
    rows = sorted(table.rows, key=lambda row: row.trial)
    means = np.array([np.mean(np.array([each.by_query for each in row.sound], dtype=float), axis=0) for row in rows])
    whole = np.rint(1e6 * means[:, ~np.isnan(means[0])]).astype(np.int64)
    expected = gain_of(whole, [row.trial for row in rows].index(table.best.trial), 1e-6)
    assert table.gain == expected
    assert table.winner.trial == (table.best.trial if expected.corrected > 0 else 0)
    worse = replace(table, higher_is_better=False)
    assert worse.best.mean == min(row.mean for row in table.rows if row.repeats)
    assert worse.gain.observed >= 0.0
    assert worse.winner.trial in {0, worse.best.trial}
    lucky = Outcome(score=0.6, best_round=3, trained=4, by_query=(1.0, 1.0, 0.0, 0.0, 0.0, 0.4))
    given = Outcome(score=0.55, best_round=5, trained=6, by_query=(0.2, 0.2, 0.3, 0.3, 0.3, 0.4))
    apart = replace(table, rows=(Row(1, {"max_leaves": 2}, lucky, {}), Row(0, {}, given, {})))
    assert (apart.best.trial, apart.winner.trial) == (1, 0)
    assert "trial 0 wins" in apart.render()
    alike = replace(apart, rows=(Row(1, {"max_leaves": 2}, replace(given, score=0.56), {}), Row(0, {}, given, {})))
    assert (alike.best.trial, alike.gain.corrected, alike.winner.trial) == (1, 0.0, 0)  # on queries nothing is gained
    unmeasured = replace(
        apart, rows=tuple(replace(row, outcome=replace(row.outcome, by_query=None)) for row in apart.rows)
    )
    assert (unmeasured.gain, unmeasured.winner.trial) == (None, 1)


@pytest.mark.slow
def test_the_folder_has_the_same_bytes_for_two_workers(dataset, done, tmp_path):
    out, table = done
    other = searched(dataset, tmp_path / "two", replace(USUAL, workers=2))
    assert other.to_json() == table.to_json()
    assert files_in(tmp_path / "two") == files_in(out)
    assert not (out / "checkpoints").exists()


def test_a_search_that_is_killed_again_and_again_leaves_what_an_undisturbed_one_does(
    dataset, done, tmp_path, monkeypatch
):
    out, table = done
    real, calls = of_kinds.train, 0

    def dying(*arguments, **options):
        nonlocal calls
        calls += 1
        if calls % 3 == 0:
            raise KeyboardInterrupt
        return real(*arguments, **options)

    monkeypatch.setattr(of_kinds, "train", dying)
    for _ in range(50):
        try:
            found = searched(dataset, tmp_path / "t")
            break
        except KeyboardInterrupt:
            continue
    assert calls > 6
    assert found.to_json() == table.to_json()
    assert files_in(tmp_path / "t") == files_in(out)
    before = calls
    searched(dataset, tmp_path / "t")
    assert calls == before  # all is known


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_trial_that_fails_is_reported_and_ends_nothing(dataset, tmp_path, workers):
    space = space_of({"objective": "l2,gbrank", "step_search": "line"}, "t")  # which gbrank's loss does not have
    options = TuneOptions(trials=6, repeat=0, workers=workers)
    with spelled_for("command line"):
        table = tune(plan_tuning(dataset, replace(BASE, n_rounds=3), space, options), tmp_path / "t")
    failed = [row for row in table.rows if row.outcome.error]
    assert 0 < len(failed) < 6
    assert {row.values["objective"] for row in failed} == {"gbrank"}
    assert table.rows[-len(failed) :] == tuple(failed)
    assert f"trial {failed[0].trial} failed: InvalidParameter" in table.render()
    assert not unnamed(failed[0].outcome.error, "--step-search")
    assert json.loads(table.to_json())["trials"][-1]["error"] == failed[-1].outcome.error


@pytest.mark.parametrize("error", [OSError(5, "i/o"), MemoryError(), DatasetFormatError("damaged")], ids=str)
def test_what_may_be_otherwise_next_time_is_not_recorded(dataset, tmp_path, monkeypatch, error):
    options = TuneOptions(trials=1, repeat=0, workers=1, compare_by="valid")

    def failing(*_, **__):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(of_kinds, "train", failing)
        with pytest.raises(type(error)):
            searched(dataset, tmp_path / "t", options)
    table = searched(dataset, tmp_path / "t", options)
    assert all(row.outcome.score is not None for row in table.rows)


def test_where_all_fail_the_first_says_why(dataset, tmp_path):
    base = replace(BASE, objective="gbrank", stop_metric="deviance")  # which only a training refuses
    plan = plan_tuning(dataset, base, space_of({"max_leaves": "4..8"}, "t"), TuneOptions(trials=2, workers=1))
    with refused(InvalidParameter, "trial", "InvalidParameter"):
        tune(plan, tmp_path / "t")


def test_few_queries_are_compared_by_folds_of_all_that_the_model_learns_from(dataset, tmp_path):
    options = TuneOptions(trials=2, repeat=2, best=1, workers=1)
    plan = plan_tuning(dataset, replace(BASE, n_rounds=8, folds=3, refit="all"), SPACE, options)
    assert "3 folds of the train and valid splits" in plan.render()
    table = tune(plan, tmp_path / "t")
    rounds = []
    for seed, outcome in {BASE.seed: table.winner.outcome, **table.winner.repeats}.items():
        found = cross_validate(
            dataset,
            replace(plan.base.options, **table.winner.values, seed=seed),
            TrainingOptions(n_threads=1),
            with_valid=True,
            by_query=True,
        )
        assert len(found.by_query) == len(dataset.queries("train")) + len(dataset.queries("valid"))
        assert outcome.score == mean_of(found.by_query)
        rounds.append(found.best_round)
    parameters = TrainParameters(**table.section())
    assert parameters.n_rounds == round(np.mean(rounds))
    result = train(dataset, parameters, TrainingOptions(n_threads=1))
    assert result.best_round == len(result.history) == parameters.n_rounds
    assert result.forest.info["refit"]["queries"] == len(found.by_query)
    assert not plan_tuning(dataset, BASE, SPACE, replace(options, compare_by="valid")).by_folds
    assert "of the train split" in plan_tuning(dataset, BASE, SPACE, options).render()  # without a refit


class Clock:
    """Each reading is some seconds after the one before."""

    def __init__(self, step):
        self.now, self.step = 0.0, step

    def __call__(self):
        self.now += self.step
        return self.now


def test_time_decides_the_number_of_trials_and_nothing_else(dataset, tmp_path):
    timed = TuneOptions(minutes=1.0, repeat=0, workers=1, compare_by="valid")
    plan = plan_tuning(dataset, replace(BASE, n_rounds=3), SPACE, timed)
    assert "1 minutes" in plan.render()
    out = tmp_path / "t"
    first = tune(plan, out, clock=Clock(10.0))
    assert 1 < len(first.rows) < 7
    assert tune(plan, out, clock=Clock(100.0)).rows == first.rows  # nothing is lost where nothing ends in time
    more = tune(plan, out, clock=Clock(5.0))
    assert len(more.rows) > len(first.rows)
    counted = replace(timed, minutes=0.0, trials=len(more.rows) - 1)
    tune(plan_tuning(dataset, replace(BASE, n_rounds=3), SPACE, counted), tmp_path / "o")
    assert files_in(out) == files_in(tmp_path / "o")
    limited = plan_tuning(dataset, replace(BASE, n_rounds=3), SPACE, replace(timed, trials=2))
    assert len(tune(limited, out, clock=Clock(0.01)).rows) == 3
    for name in ("00001-7.json", "00002-7.json"):  # as several workers leave after a kill
        (out / "trials" / name).unlink()
    assert {row.trial for row in tune(plan, out, clock=Clock(20.0)).rows} == {0, 1}


class Late:
    """A clock by which the time is over some real seconds from now."""

    def __init__(self, minutes, left):
        self.ahead = 60.0 * minutes - left - time.monotonic()
        self.read = False

    def __call__(self):
        """Return 0 at first, when the search begins."""
        if not self.read:
            self.read = True
            return 0.0
        return time.monotonic() + self.ahead


@pytest.mark.parametrize(("model", "compare_by"), [("trees", "valid"), ("net", "folds")])
def test_what_is_not_done_in_time_stops_after_its_round_and_goes_on_later(dataset, tmp_path, model, compare_by):
    options = TuneOptions(minutes=1.0, trials=1, repeat=1, workers=1, compare_by=compare_by)
    varied = space_of({"learning_rate": [0.01, 0.02]}, "space", model)
    long = replace(BASE, n_rounds=50_000, early_stopping_rounds=0)
    if model == "net":
        long = NetOptions(epochs=50_000, layers=(4,), early_stopping_epochs=0)
    plan = plan_tuning(dataset, long, varied, options, folds=2)
    started = time.monotonic()
    with refused(InvalidParameter, "minutes", 1, "no trial ended in time", "epochs" if model == "net" else "rounds"):
        tune(plan, tmp_path / "t", clock=Late(1.0, 0.3))
    assert time.monotonic() - started < 5.0
    kept = list((tmp_path / "t" / "checkpoints").glob("*"))
    assert bool(kept) == (model == "trees")


def test_a_clock_that_is_set_back_lengthens_no_search(dataset, tmp_path, monkeypatch):
    days = iter(range(10**9))
    monkeypatch.setattr(time, "time", lambda: -86_400.0 * next(days))
    options = TuneOptions(minutes=1.0, trials=1, repeat=1, workers=1, compare_by="valid")
    plan = plan_tuning(dataset, replace(BASE, n_rounds=20_000, early_stopping_rounds=0), SPACE, options)
    with refused(InvalidParameter, "minutes", "no trial ended in time"):
        tune(plan, tmp_path / "t", clock=Late(1.0, 0.3))


def test_repeats_count_only_if_all_trials_have_them(dataset, tmp_path):
    options = TuneOptions(minutes=1.0, trials=2, best=2, repeat=3, workers=1, compare_by="valid")
    plan = plan_tuning(dataset, replace(BASE, n_rounds=3), SPACE, options)
    whole = tune(replace(plan, options=replace(options, minutes=0.0)), tmp_path / "all")
    assert {len(row.repeats) for row in whole.rows} == {3}
    tune(replace(plan, options=replace(options, minutes=0.0, repeat=0)), tmp_path / "t")
    some = tune(plan, tmp_path / "t", clock=Clock(6.5))  # time for eight of nine repeats
    assert {tuple(row.repeats) for row in some.rows} == {tuple(whole.rows[0].repeats)[:2]}
    tune(replace(plan, options=replace(options, minutes=0.0)), tmp_path / "t")
    assert files_in(tmp_path / "t") == files_in(tmp_path / "all")


def test_the_winner_can_be_pasted_and_trains_what_it_says(dataset, done):
    out, table = done
    section = tomllib.loads((out / "winner.toml").read_text())["train"]
    parameters = TrainParameters(**section)
    assert parameters == replace(BASE, stop_metric="", **table.winner.values)
    result = train(dataset, parameters, TrainingOptions(n_threads=1))
    assert result.history[result.best_round - 1].metrics["valid"]["ndcg@10"] == table.winner.outcome.score


def test_trials_train_one_of_the_models_that_the_preset_averages(dataset, tmp_path):
    options, few = TuneOptions(trials=1, repeat=0, workers=1), TrainParameters(n_rounds=4)
    space = space_of({"max_depth": "2..5"}, "test")
    members = with_preset(few, shape_of_dataset(dataset)).members
    assert members > 1
    table = tune(plan_tuning(dataset, few, space, options), tmp_path / "preset")
    alone = tune(plan_tuning(dataset, replace(few, members=1), space, options), tmp_path / "one")
    given = tune(plan_tuning(dataset, replace(few, members=members), space, options), tmp_path / "given")
    scores = [[row.outcome.score for row in each.rows] for each in (table, alone, given)]
    assert scores[0] == scores[1] != scores[2]
    assert [each.section().get("members", 1) for each in (table, alone, given)] == [members, 1, members]


def test_the_default_space_keeps_to_what_the_given_options_allow(dataset):
    for given in ({"monotone": {"f1": 1}}, {"max_leaves": 5}, {"criterion": "ole"}):
        plan = plan_tuning(dataset, TrainParameters(n_rounds=5, **given), None, TuneOptions(trials=2), fixed=[*given])
        assert not plan.space.parts.keys() & {"grow", *given}
    plan = plan_tuning(dataset, TrainParameters(lambda_l2=3.0), None, TuneOptions(trials=2), fixed=["lambda_l2"])
    assert not plan.space.parts.keys() & {"lambda_l2", "l2_scale"}  # which keeps its unit


def test_a_folder_of_another_search_is_refused_or_let_go_of(dataset, tmp_path):
    options = TuneOptions(trials=1, repeat=0, workers=1)
    searched(dataset, tmp_path / "t", options)
    other = plan_tuning(dataset, BASE, space_of({"max_leaves": "2..3"}, "t"), options)
    with refused(InvalidParameter, "search", "parameters, space, seed"):
        tune(other, tmp_path / "t")
    assert len(tune(other, tmp_path / "t", fresh=True).rows) == 2
    assert len(list((tmp_path / "t/trials").iterdir())) == 2
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign/precious.txt").write_text("mine")
    with refused(InvalidParameter, "files"):
        tune(other, tmp_path / "foreign", fresh=True)
    damaged = next((tmp_path / "t/trials").iterdir())
    before = damaged.read_bytes()
    damaged.write_bytes(before[:10])
    tune(other, tmp_path / "t")
    assert damaged.read_bytes() == before


@pytest.mark.parametrize(
    ("options", "space", "message"),
    [
        ({"compare_by": "test"}, {}, ("compare_by", "'test'", "valid, folds")),
        ({"trials": -1}, {}, ("trials", "0")),
        ({"minutes": -1}, {}, ("minutes", "0")),
        ({"compare_by": "valid"}, {"objective": "l2,lambdamart"}, "objectives"),  # their losses are not compared
    ],
)
def test_what_cannot_be_searched_is_refused(dataset, options, space, message):
    with refused(InvalidParameter, message):
        plan_tuning(
            dataset,
            replace(BASE, stop_metric="deviance"),
            space_of(space or {"sigma": "1..2"}, "t"),
            TuneOptions(**options),
        )


def test_the_command(dataset, tmp_path, typed):
    command = f"tune {dataset.path} -o {tmp_path}/t --trials 2 --n-rounds 2 --workers 1 --repeat 1"
    out, err = typed(f"{command} --objective l2")
    assert not unnamed(err, "2 random trials", "8 parameters", "ndcg@10", "5 folds")  # not the objective
    assert '[train]\npreset = "auto-1"\nobjective = "l2"\nmetric = "ndcg@10"\nn_rounds = ' in out
    reported = typed.json(f"{command} --objective l2")
    assert reported == json.loads((tmp_path / "t/table.json").read_text())
    assert [each["trial"] for each in reported["trials"] if not each["parameters"]] == [0]
    assert "--fresh" in typed.err(f"{command} --vary max_leaves=2..4", code=2)
    assert not unnamed(typed.err(f"{command} --vary max_leafs=2..4", code=2), "'max_leaves'")


def test_the_second_trial_is_of_the_ranking_trees_and_the_winner_trains_trees(dataset, tmp_path, typed):
    reported = typed.json(f"tune {dataset.path} -o {tmp_path}/t --trials 2 --n-rounds 2 --workers 1 --repeat 0")
    trials = {each["trial"]: each["parameters"] for each in reported["trials"]}
    assert trials[1] == {"objective": "lambdamart"}
    assert len(trials[2]) > 2
    assert reported["train"]["preset"] == "auto-1"
    train = f"train {dataset.path} --name web --registry {tmp_path}/r --params {tmp_path}/t/winner.toml"
    assert "blend" not in typed.json(train)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_killed_command_leaves_no_worker_and_goes_on(dataset, tmp_path, number):
    def command(out, *more):
        options = ["--trials", "6", "--n-rounds", "400", "--early-stopping-rounds", "0", "--repeat", "1", *more]
        options += ["--compare-by", "valid"]
        return [sys.executable, "-m", "rankmill", "tune", str(dataset.path), "-o", str(tmp_path / out), *options]

    running = subprocess.Popen(command("killed", "--workers", "2"), cwd=ROOT, start_new_session=True)
    until(lambda: len(list(tmp_path.glob("killed/trials/*.json"))) >= 2, running)
    if number == signal.SIGTERM:
        running.send_signal(number)
        assert running.wait(timeout=LIMIT) == 143
    else:
        os.killpg(running.pid, number)  # as the kernel or a container ends all of them
        running.wait(timeout=LIMIT)
    until(lambda: not _in_group(running.pid))  # no worker is left
    subprocess.run(command("killed", "--workers", "2"), cwd=ROOT, check=True, timeout=LIMIT, capture_output=True)
    subprocess.run(command("whole", "--workers", "1"), cwd=ROOT, check=True, timeout=LIMIT, capture_output=True)
    assert files_in(tmp_path / "killed") == files_in(tmp_path / "whole")


def _in_group(group):
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.slow
def test_a_worker_that_is_killed_is_reported(dataset, tmp_path, monkeypatch):
    from joblib.externals.loky.process_executor import TerminatedWorkerError

    class Broken:
        def __init__(self, **_): ...

        def __call__(self, _):
            raise TerminatedWorkerError("killed")

    monkeypatch.setattr(search, "Parallel", Broken)
    assert execute(["tune", str(dataset.path), "-o", str(tmp_path / "t"), "--workers", "2", "--trials", "2"]) == 75
