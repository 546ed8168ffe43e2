"""``rankmill cv``, ``train --rounds-by`` and the columns of a dataset besides grades, as a person types them."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from rankmill import Ranker
from rankmill.cli import execute
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.pipeline.options import SynthParameters
from rankmill.pipeline.synth import write_synthetic
from rankmill.scorer.forest.forest import Forest
from rankmill.scorer.forest.predict import predict
from rankmill.trainer.candidates.train_on_dataset import cross_validate, plan_of, train
from rankmill.trainer.training_options import TrainingOptions
from tests.refusals import unnamed
from tests.trainer.fixed import FIXED, fixed

SMALL = ["--n-rounds", "6", "--max-leaves", "4", "--min-rows-in-leaf", "5", "--n-threads", "1"]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    file, made = folder / "j.txt", str(folder / "d")
    write_synthetic(file, SynthParameters(queries=40, documents_per_query=8, features=10, seed=1))
    assert execute(["data", "ingest", str(file), "-o", made, "--buckets", "2"]) == 0
    assert execute(["data", "bin", made, "--max-bin", "31"]) == 0
    return folder


@pytest.fixture
def dataset(made, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    return "d"


def facts(capsys, *arguments):
    capsys.readouterr()
    assert execute([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_cv_says_what_a_training_is_worth(dataset, capsys):
    found = facts(capsys, "cv", dataset, "--folds", "4", *SMALL, "--eval-metric", "map")
    assert found["folds"] == 4
    assert found["rounds_trained"] == 6
    curve = found["curves"]["ndcg@10"]
    assert np.allclose(curve["mean"], np.mean(curve["folds"], axis=0))
    assert np.allclose(curve["deviation"], np.std(curve["folds"], axis=0, ddof=1))
    assert found["best_round"] == int(np.argmax(curve["mean"])) + 1
    assert found["best"]["map"]["mean"] == found["curves"]["map"]["mean"][found["best_round"] - 1]
    assert execute(["cv", dataset, "--folds", "4", *SMALL]) == 0
    out = capsys.readouterr().out
    assert not unnamed(out, f"{found['best_round']} of 6", "ndcg@10")
    assert f"{found['best']['ndcg@10']['mean']:.4f} +- {found['best']['ndcg@10']['deviation']:.4f}" in out
    assert not Path("registry-data").exists()
    for option in (["--rounds-by", "oob"], ["--holdout-fraction", "0.5"]):  # which would say nothing to it
        assert execute(["cv", dataset, *SMALL, *option]) == 2
        assert "unknown option" in capsys.readouterr().err


def test_folds_of_a_dataset_go_by_the_ids_of_queries_whatever_its_buckets(dataset, capsys):
    assert execute(["data", "ingest", "j.txt", "-o", "other", "--buckets", "7"]) == 0
    assert execute(["data", "bin", "other", "--max-bin", "31"]) == 0
    parameters = fixed(n_rounds=3, max_leaves=4, objective="l2", folds=3)
    one, two = (
        cross_validate(Dataset.open(Path(name)), parameters, TrainingOptions(n_threads=1)) for name in ("d", "other")
    )
    for round_number in (1, 2, 3):
        assert np.allclose(one.values("ndcg@10", round_number), two.values("ndcg@10", round_number))


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (["--rounds-by", "cv", "--folds", "3"], "cv"),
        (["--rounds-by", "test", "--holdout-fraction", "0.25"], "holdout"),
        (["--rounds-by", "oob", "--query-fraction", "0.5", "--objective", "listnet"], "train"),
    ],
    ids=str,
)
def test_train_says_what_decided(dataset, capsys, options, word):
    found = facts(capsys, "train", dataset, "--name", "web", *SMALL, *options)
    assert found[word]["ndcg@10"] > 0.3
    shown = facts(capsys, "models", "show", "web")
    forest = Forest.from_bytes(Path(shown["model_path"]).read_bytes())
    assert forest.parameters["rounds_by"] == options[1]
    curves = found["curves"]
    assert len(curves["metrics"]["train"]["ndcg@10"]) == found["rounds_trained"]
    if options[1] == "oob":
        assert found["rounds"] == int(np.argmax(np.cumsum(curves["oob_improvement"]))) + 1
    if options[1] == "cv":
        assert found["cross_validation"]["best_round"] == found["rounds"]
    assert shown["manifest"]["parameters"]["criterion"] == ""  # left to the objective
    assert execute(["train", dataset, "--name", "web", *SMALL, *options]) == 0
    assert f"{word} ndcg@10" in capsys.readouterr().out
    assert execute(["train", dataset, "--name", "x", *SMALL, "--metric", "deviance"]) == 2
    assert "set stop_metric to deviance" in capsys.readouterr().err  # it is watched and not optimised


def test_memory_for_the_copy_is_in_the_plan(dataset):
    opened = Dataset.open(Path(dataset))
    plain, parted = (plan_of(opened, fixed(rounds_by=way)) for way in ("valid", "test"))
    columns = 4 * plain.train_rows + plain.column_bytes
    assert parted.bytes_needed - plain.bytes_needed == plain.bin_bytes + columns


@pytest.fixture(scope="module")
def made_columns(tmp_path_factory):
    folder = tmp_path_factory.mktemp("columns")
    rng = np.random.default_rng(4)
    n, n_queries = 300, 30
    qid = np.repeat(np.arange(n_queries), n // n_queries)
    x = rng.normal(size=(n, 3)).astype(np.float32)
    of_query = rng.choice([0.5, 1.0, 3.0], size=n_queries)
    arrays = {
        "y": np.clip(np.round(x[:, 0] + 1), 0, 3).astype(int),
        "label": x[:, 0] + x[:, 1] * x[:, 2],
        "sample_weight": rng.uniform(0.1, 2.0, size=n),
        "offset": rng.normal(size=n),
        "query_weight": of_query[qid],
    }
    names = ["qid", "doc_id", "grade", "label", "weight", "offset", "query_weight", "a", "b", "c"]
    lines = [
        ",".join(map(repr, [int(qid[i]), int(i), *(value[i].item() for value in arrays.values()), *map(float, x[i])]))
        for i in rng.permutation(n)
    ]
    (folder / "j.csv").write_text("\n".join([",".join(names), *lines]) + "\n")
    assert execute(["data", "ingest", str(folder / "j.csv"), "-o", str(folder / "d"), "--buckets", "4"]) == 0
    assert execute(["data", "bin", str(folder / "d")]) == 0
    return folder, x, qid, arrays


@pytest.fixture
def columns(made_columns, tmp_path, monkeypatch):
    """A dataset with every optional column, and the same as arrays."""
    folder, x, qid, arrays = made_columns
    monkeypatch.chdir(tmp_path)
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    return Dataset.open(Path("d")), x, qid, dict(arrays)


@pytest.mark.parametrize("objective", ["l2", "lambdamart", "listnet"])
def test_a_dataset_with_all_columns_trains_as_arrays_do(columns, objective):
    dataset, x, qid, arrays = columns
    given = {name: value for name, value in arrays.items() if name != "label" or objective == "l2"}
    own = {**FIXED, "n_rounds": 8, "max_leaves": 6, "objective": objective}
    forest = train(dataset, fixed(**own), TrainingOptions(n_threads=1)).forest
    ranker = Ranker(**own, n_threads=1).fit(x, given.pop("y"), qid=qid, **given)
    assert np.allclose(predict(forest, x), ranker.predict(x), atol=1e-9)
    plain = Ranker(**own, n_threads=1).fit(x, arrays["y"], qid=qid)
    assert not np.allclose(plain.predict(x), ranker.predict(x), atol=1e-3)


def test_pairs_of_a_dataset_are_learnt_as_those_of_arrays(columns, capsys):
    _, x, qid, arrays = columns
    rng = np.random.default_rng(9)
    pairs = np.array(
        [(i, j) for i in range(300) for j in range(300) if qid[i] == qid[j] and x[i, 1] > x[j, 1] + rng.random()]
    )
    weight, probability = rng.uniform(0.5, 2.0, size=len(pairs)), rng.uniform(0.6, 1.0, size=len(pairs))
    lines = [
        f"{qid[i]} {i} {j} {w.item()!r} {p.item()!r}" for (i, j), w, p in zip(pairs, weight, probability, strict=True)
    ]
    Path("pairs.txt").write_text("\n".join(rng.permutation(lines)) + "\n")
    again = ["data", "ingest", "j.csv", "--pairs", "pairs.txt", "-o", "d", "--buckets", "4", "--overwrite"]
    assert execute(again) == 0, capsys.readouterr().err
    own = {**FIXED, "n_rounds": 8, "max_leaves": 6, "objective": "ranknet", "learn_from": "pairs"}
    dataset = Dataset.open(Path("d"))
    forest = train(dataset, fixed(**own), TrainingOptions(n_threads=1)).forest
    given = {name: value for name, value in arrays.items() if name not in {"label", "y"}}
    ranker = Ranker(**own, n_threads=1).fit(
        x, arrays["y"], qid=qid, pairs=pairs, pair_weight=weight, pair_probability=probability, **given
    )
    assert np.allclose(predict(forest, x), ranker.predict(x), atol=1e-9)
    assert np.corrcoef(ranker.predict(x), x[:, 1])[0, 1] > 0.5  # pairs, not grades
    found = cross_validate(dataset, fixed(**own, folds=3), TrainingOptions(n_threads=1))
    assert len(found.histories) == 3
