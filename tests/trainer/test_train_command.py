"""``rankmill train`` as a person types it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.synth import SynthParameters, write_synthetic
from rankmill.cli import execute

SMALL = ["--n-rounds", "3", "--max-leaves", "3", "--n-threads", "1"]


@pytest.fixture
def dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    write_synthetic(Path("j.txt"), SynthParameters(queries=30, documents_per_query=8, features=10, seed=1))
    assert execute(["data", "ingest", "j.txt", "-o", "d", "--buckets", "2"]) == 0
    assert execute(["data", "bin", "d", "--max-bin", "31"]) == 0
    return "d"


def test_it_says_what_it_trains_on_and_what_is_new(dataset: str, capsys) -> None:
    capsys.readouterr()
    for new, word in ((True, "registered web@1"), (False, "the same as web@1")):
        assert execute(["train", dataset, "--name", "web", *SMALL]) == 0
        out, err = capsys.readouterr()
        assert out.startswith(word)
        assert "on 31 bins" in err or "31 bins (" in err
        assert "no valid split, so all 3 rounds are kept" in err
        assert execute(["train", dataset, "--name", "web", *SMALL, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["new"] is False, new


def test_a_registry_that_cannot_be_is_refused_before_the_training(dataset: str, capsys, monkeypatch) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("trained in vain")

    monkeypatch.setattr("trainer.training.train", never)
    Path("foreign").mkdir()
    Path("foreign/precious.txt").write_text("mine")
    assert execute(["train", dataset, "--name", "web", "--registry", "foreign", *SMALL]) == 2
    assert Path("foreign/precious.txt").read_text() == "mine"


def test_the_model_knows_how_the_judgments_were_read(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [f"{d % 3} qid:{q} 0:{d % 3} 1:{d}\n" for q in range(20) for d in range(6)]
    Path("zero.txt").write_text("".join(lines))
    assert execute(["data", "ingest", "zero.txt", "-o", "d", "--index-base", "0", "--absent", "missing"]) == 0
    assert execute(["data", "bin", "d"]) == 0
    assert execute(["train", "d", "--name", "web", *SMALL]) == 0
    assert execute(["rerank", "zero.txt", "--model", "web@latest", "-o", "ranked"]) == 0, capsys.readouterr().err
