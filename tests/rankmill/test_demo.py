"""The demo from end to end, small: the commands it shows are the ones it runs, and its table is about their output."""

import json
import shlex

import pytest

from rankmill.clicks import demo as demo_clicks
from tests.refusals import only_line, unnamed
from tests.test_architecture import public_commands

SMALL = "--queries 120 --seed 3"


@pytest.mark.slow
def test_the_demo_runs_every_step(tmp_path, monkeypatch, typed):
    monkeypatch.chdir(tmp_path)
    out = typed.out(f"demo {SMALL}")
    shown = [shlex.split(line[2:]) for line in out.splitlines() if line.startswith("$ ")]
    names = [name for name, _ in public_commands()]
    for command in shown:
        assert command[0] == "rankmill"
        assert tuple(command[1:2]) in names or tuple(command[1:3]) in names
    assert "the model" in out
    for what in ("judgments.txt", "dataset", "registry", "candidates.txt", "ranked", "report/index.html"):
        assert (tmp_path / "rankmill-demo" / what).exists()
        assert f"rankmill-demo/{what}" in out.split("Written:")[1]
    # The printed commands are all there is to it: typed by hand they report the same metrics.
    evaluate = next(command for command in shown if command[1] == "evaluate")
    metrics = typed.json(shlex.join(evaluate[1:]))["metrics"]
    row = next(line for line in out.splitlines() if line.startswith("the model "))
    assert [f"{metrics[name]['mean']:.4f}" for name in ("ndcg@10", "err@10", "map")] == row.split()[-3:]


@pytest.mark.slow
def test_json_is_one_object_and_the_orders_stand_as_they_must(tmp_path, typed):
    report = typed.json(f"demo --out {tmp_path}/demo {SMALL}")
    arrival, single, model, ideal = (means["ndcg@10"] for means in report["orders"].values())
    assert arrival < single < model < ideal
    assert 0.5 < report["share_won"] < 1
    assert report["queries"] == 30
    # Again in the same folder: the demo replaces what is its own, with the same result.
    assert typed.json(f"demo --out {tmp_path}/demo {SMALL}") == report


def test_the_demo_touches_nothing_that_is_not_its_own(tmp_path, typed):
    (tmp_path / "precious.txt").write_text("mine")
    said = only_line(typed.err(f"demo --out {tmp_path}", code=2))
    assert not unnamed(said, tmp_path, "exists", "demo", "--out")
    assert [path.name for path in tmp_path.iterdir()] == ["precious.txt"]


@pytest.mark.parametrize(
    "step", ["rankmill.pipeline.synth.write_synthetic", "rankmill.trainer.candidates.train_on_dataset.train"]
)
def test_an_interrupt_ends_the_demo(tmp_path, monkeypatch, typed, step):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(step, interrupted)
    out, err = typed(f"demo --out {tmp_path}/demo {SMALL}", code=130)
    assert "Written:" not in out
    assert "rankmill:" not in err


@pytest.mark.slow
def test_the_demo_of_clicks_compares_what_was_learnt_from_each(tmp_path, monkeypatch, typed):
    monkeypatch.setattr(demo_clicks, "SESSIONS", 80)
    monkeypatch.setattr(demo_clicks, "NEW_QUERIES", 40)
    monkeypatch.setattr(demo_clicks, "TRAINING", ("--objective", "lambdamart", "--n-rounds", "5"))
    monkeypatch.chdir(tmp_path)
    out, err = typed("demo --clicks --queries 50 --json")
    report = json.loads(out)
    shown = [shlex.split(line[2:])[1:3] for line in err.splitlines() if line.startswith("$ ")]
    assert [command[1] for command in shown if command[0] == "clicks"] == ["describe", "fit", "judge", "judge"]
    means = {name: means["ndcg@10"] for name, means in report["models"].items()}
    assert len(means) == 4  # JSON is sorted by name
    logger, naive, corrected, labels = (
        means[name] for name in ("1 % of the judgments", "naive clicks", "corrected clicks", "true labels")
    )
    assert max(logger, naive) < labels
    assert report["gap_closed"] == (corrected - naive) / (labels - naive)
    assert (report["seed"], report["sessions"]) == (7, 4000)
