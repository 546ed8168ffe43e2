"""A training that is killed resumes, with the bytes and the history of one that was not."""

import signal
import subprocess
import sys
from dataclasses import replace

import pytest

from rankmill.foundation.interrupts import HeldSignals
from rankmill.scorer.forest.forest import Forest
from rankmill.trainer.candidates.multi_seed_training import train_candidate
from rankmill.trainer.candidates.train_on_dataset import train
from rankmill.trainer.options import SeedOptions
from rankmill.trainer.rounds.checkpoints import Checkpoint, Checkpoints
from rankmill.trainer.training_options import TrainingOptions
from tests import ROOT
from tests.trainer.planted import fit, small_data
from tests.trainer.small_dataset import SMALL
from tests.waiting import LIMIT, until


class Killed(BaseException):
    """What ends a training in these tests where a signal would."""


def test_a_cross_validation_goes_on_in_the_fold_where_it_was(dataset, tmp_path):
    parameters = replace(SMALL, rounds_by="cv", folds=3)
    whole = train(dataset, parameters, TrainingOptions(n_threads=1))
    for part in range(1, 5):
        checkpoints = Checkpoints(tmp_path, "k", every=0.0)
        writes = 0

        def dying(self, rounds, forest, part=part, real=Checkpoint.write):
            nonlocal writes
            writes += 1
            real(self, rounds, forest)
            if writes == 4 * part:
                raise Killed

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Checkpoint, "write", dying)
            with pytest.raises(Killed):
                train(dataset, parameters, TrainingOptions(n_threads=1), checkpoints=checkpoints)
    found = train(dataset, parameters, TrainingOptions(n_threads=1), checkpoints=Checkpoints(tmp_path, "k"))
    assert found.forest == whole.forest
    assert found.history == whole.history
    assert found.cross_validation == whole.cross_validation
    assert {path.name for path in tmp_path.iterdir()} == {f"k.{part}.checkpoint" for part in ("fold-1", "fold-2", "fold-3", "whole")}  # fmt: skip
    Checkpoints(tmp_path, "k").clear()
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_checkpoint_of_this_training_is_passed_over(tmp_path):
    data, path = small_data(), tmp_path / "a.checkpoint"
    whole = fit(data)
    path.write_bytes(b"damaged")
    assert fit(data, options={"checkpoint": Checkpoint(path)}).forest == whole.forest
    path.write_bytes(fit(data, max_leaves=5).forest.to_bytes())
    assert fit(data, options={"checkpoint": Checkpoint(path)}).forest == whole.forest


def test_a_disk_that_is_full_is_reported_and_ends_no_training(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "no space left on device")

    monkeypatch.setattr("rankmill.trainer.rounds.checkpoints.write_atomically", full)
    reported = []
    fit(small_data(), n_rounds=2, options={"checkpoint": Checkpoint(tmp_path / "c", 0.0, reported.append)})
    assert reported
    assert all("no space left" in line for line in reported)


DYING = """
import os, signal, sys
from pathlib import Path
from rankmill.pipeline.dataset.dataset import Dataset
from tests.trainer.small_dataset import SMALL
from rankmill.trainer.candidates.multi_seed_training import train_candidate
from rankmill.trainer.options import SeedOptions
from rankmill.trainer.training_options import TrainingOptions

dataset, folder, rounds = Dataset.open(Path(sys.argv[1])), Path(sys.argv[2]), map(int, sys.argv[3:])
for number in rounds:
    child = os.fork()
    if child == 0:
        def on_round(record):
            if (record.seed, record.round_number) == (2, number):
                os.kill(os.getpid(), signal.SIGKILL)
        options = TrainingOptions(checkpoint=folder, checkpoint_every=0.0, n_threads=1, on_round=on_round)
        train_candidate(dataset, SMALL, options, SeedOptions(seeds=(1, 2)))
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
"""


@pytest.mark.slow
def test_a_kill_without_warning_costs_what_was_not_written_and_nothing_else(dataset, tmp_path):
    subprocess.run(
        [sys.executable, "-c", DYING, str(dataset.path), str(tmp_path), "1", "3", "6"],
        cwd=ROOT,
        check=True,
        timeout=LIMIT,
    )
    assert [Forest.load(path).n_rounds for path in tmp_path.glob("*.checkpoint")] == [5]
    seeds = SeedOptions(seeds=(1, 2))
    whole = train_candidate(dataset, SMALL, TrainingOptions(n_threads=1), seeds)
    found = train_candidate(dataset, SMALL, TrainingOptions(n_threads=1, checkpoint=tmp_path), seeds)
    assert found.forest.to_bytes() == whole.forest.to_bytes()
    assert found.facts == whole.facts
    assert found.record() == whole.record()


@pytest.mark.slow
def test_a_request_to_end_ends_the_command_soon_with_a_checkpoint(dataset, tmp_path):
    arguments = ["train", str(dataset.path), "--name", "web", "--registry", str(tmp_path / "r"), "--n-rounds", "200000"]
    arguments += ["--early-stopping-rounds", "0", "--checkpoint", str(tmp_path / "c"), "--checkpoint-every", "0"]
    running = subprocess.Popen(
        [sys.executable, "-m", "rankmill", *arguments, "--n-threads", "2"], cwd=ROOT, stderr=subprocess.PIPE
    )
    try:
        until(lambda: list(tmp_path.glob("c/*.checkpoint")), running)
        running.send_signal(signal.SIGTERM)
        assert running.wait(timeout=LIMIT) == 143
    finally:
        running.kill()
        running.communicate()
    (path,) = (tmp_path / "c").iterdir()
    assert Forest.load(path).n_rounds >= 1


def test_signals_wait_while_they_are_held():
    seen = []
    before = signal.signal(signal.SIGTERM, lambda number, _: seen.append(number))
    try:
        with HeldSignals() as held:
            held.hold()
            signal.raise_signal(signal.SIGTERM)
            assert seen == []
            held.release()
            assert seen == [signal.SIGTERM]
            signal.raise_signal(signal.SIGTERM)
            assert len(seen) == 2
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # as the command line does at the first
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)
