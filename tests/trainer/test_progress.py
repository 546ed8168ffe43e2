"""What a training says while it runs: lines off a terminal, a bar on one, nothing where that is asked for."""

import io
import json
from contextlib import redirect_stderr

import numpy as np
import pytest
from rich.console import Console

from rankmill import Ranker, cross_validate
from rankmill.foundation.errors import InvalidParameter
from rankmill.trainer.progress import TrainingProgress
from rankmill.trainer.rounds.training_result import RoundRecord


def record(number, fold=0):
    return RoundRecord(number, fold=fold, metrics={"train": {"ndcg@10": 0.5}, "valid": {"ndcg@10": 0.25}})


def lines_of(n_rounds, seconds_a_round, *, compiling=0.0, **options):
    """What is said by a training whose rounds take so long each."""
    now, said = [0.0], []
    progress = TrainingProgress(
        n_rounds,
        on_message=said.append,
        clock=lambda: now[0],
        console=Console(file=io.StringIO(), force_terminal=False),
        **options,
    )
    with progress:
        now[0] += compiling
        for fold in range(1, options.get("n_trainings", 1) + 1):
            for at in range(1, n_rounds + 1):
                now[0] += seconds_a_round
                progress.update(record(at, fold if options.get("n_trainings") else 0))
    return said


def test_without_a_terminal_there_is_a_line_about_every_ten_seconds():
    assert lines_of(100, 0.05) == []
    said = lines_of(100, 1.0)
    assert len(said) == 9
    assert (
        said[0] == "round 11 of 100: train ndcg@10 0.5000, valid ndcg@10 0.2500; 11 s so far, at most 1 min 29 s left"
    )


def test_compiling_before_the_first_round_does_not_change_the_time_left():
    assert lines_of(100, 1.0, compiling=60.0)[0].endswith("; 1 min 11 s so far, at most 1 min 29 s left")


@pytest.mark.parametrize(("every", "rounds"), [(0, []), (1, [1, 2, 3, 4, 5]), (2, [2, 4, 5]), (10, [5])])
def test_a_line_after_every_n_rounds_and_the_last(every, rounds):
    said = lines_of(5, 100.0, log_every=every)
    assert [int(line.split()[1]) for line in said] == rounds
    assert not any("left" in line for line in said if line.startswith("round 5 "))


def test_folds_are_named_and_those_to_come_counted():
    said = lines_of(4, 1.0, log_every=4, n_trainings=3)
    assert said == [
        f"fold {fold}, round 4 of 4: train ndcg@10 0.5000, valid ndcg@10 0.2500; {4 * fold} s so far{left}"
        for fold, left in ((1, ", at most 8 s left"), (2, ", at most 4 s left"), (3, ""))
    ]


def test_on_a_terminal_there_is_a_bar_and_no_line():
    screen, said = io.StringIO(), []
    console = Console(file=screen, force_terminal=True, width=100)
    with TrainingProgress(
        3, console=console, on_message=said.append, clock=iter(range(0, 900, 100)).__next__
    ) as progress:
        for number in (1, 2, 3):
            progress.update(record(number))
    assert said == []
    assert "round 3/3" in screen.getvalue()


TRAIN = "train D --name m --registry R --n-rounds 4"
COMMANDS = {
    "train": TRAIN,
    "seeds": f"{TRAIN} --seeds 1,2",
    "by cv": f"{TRAIN} --rounds-by cv --folds 3",
    "cv": "cv D --n-rounds 4 --folds 3",
    "tune": "tune D -o T --n-rounds 4 --trials 3 --repeat 0 --workers 1",
}
FOLDS = [f"fold {fold}, round {n}" for fold in (1, 2, 3) for n in (2, 4)]
STARTS = {
    "train": ["round 2", "round 4"],
    "seeds": [f"seed {seed}, round {n}" for seed in (1, 2) for n in (2, 4)],
    "by cv": FOLDS,
    "cv": FOLDS,
    "tune": ["trial 1, 2 of 4", "trial 3, 4 of 4"],
}


@pytest.mark.parametrize(("name", "log_every"), [*((name, 2) for name in COMMANDS), ("train", 0)])
def test_lines_go_to_stderr_and_stdout_stays_one_object(tmp_path, typed, dataset, name, log_every):
    words = (
        COMMANDS[name].replace(" D", f" {dataset.path}").replace(" R", f" {tmp_path}/r").replace(" T", f" {tmp_path}/t")
    )
    out, err = typed(f"{words} --max-leaves 4 --json --log-every {log_every}")
    assert isinstance(json.loads(out), dict)
    said = [line for line in err.splitlines() if " so far" in line]
    assert log_every or not said
    for line, start in zip(said, STARTS[name] if log_every else [], strict=False):
        assert line.startswith(start), said


def test_verbose_says_every_n_rounds_and_changes_no_model(capfd):
    rng = np.random.default_rng(0)
    x, qid = rng.normal(size=(300, 3)), np.repeat(np.arange(30), 10)
    y = np.clip(np.round(x[:, 0] + 1), 0, 4)
    models = set()
    for verbose, rounds in ((0, []), (False, []), (1, []), (True, []), (3, [3, 6, 7])):
        ranker = Ranker(n_rounds=7, max_leaves=4, verbose=verbose).fit(x, y, qid=qid)
        models.add(ranker.forest_.to_bytes())
        out, err = capfd.readouterr()
        assert out == ""
        said = [line for line in err.splitlines() if line.startswith("round ")]
        assert [int(line.split()[1]) for line in said] == rounds
        assert ("preset auto-2, trees alone" in err) == bool(verbose)
    assert len(models) == 1
    with redirect_stderr(io.StringIO()) as said:
        cross_validate(Ranker(n_rounds=2, max_leaves=4, folds=3, verbose=2), x, y, qid=qid)
    lines = [line for line in said.getvalue().splitlines() if " so far" in line]
    assert [line.partition(":")[0] for line in lines] == [f"fold {fold}, round 2 of 2" for fold in (1, 2, 3)]
    with pytest.raises(InvalidParameter, match="verbose"):
        Ranker(verbose=-1).fit(x, y, qid=qid)
