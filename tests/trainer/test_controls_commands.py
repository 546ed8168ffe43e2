"""``rankmill cv``, ``train --rounds-by`` and the columns of a dataset besides grades, as a person types them."""

import shutil
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from rankmill import Ranker
from rankmill.pipeline.bins.binning import bin_dataset
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.pipeline.ingest import ingest
from rankmill.pipeline.options import IngestOptions
from rankmill.scorer.forest.forest import Forest
from rankmill.scorer.forest.predict import predict
from rankmill.trainer.candidates.train_on_dataset import cross_validate, plan_of, train
from rankmill.trainer.training_options import TrainingOptions
from tests.refusals import unnamed
from tests.trainer.fixed import FIXED, fixed
from tests.trainer.small_dataset import small_dataset

SMALL = "--n-rounds 6 --max-leaves 4 --min-rows-in-leaf 5 --n-threads 1"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return small_dataset(tmp_path_factory.mktemp("made"), {}, 40).path.parent


@pytest.fixture
def dataset(made, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    return "d"


def test_cv_says_what_a_training_is_worth(dataset, typed):
    found = typed.json(f"cv {dataset} --folds 4 {SMALL} --eval-metric map")
    assert (found["folds"], found["rounds_trained"]) == (4, 6)
    curve, best = found["curves"]["ndcg@10"], found["best"]
    assert np.allclose(curve["mean"], np.mean(curve["folds"], axis=0))
    assert np.allclose(curve["deviation"], np.std(curve["folds"], axis=0, ddof=1))
    assert found["best_round"] == int(np.argmax(curve["mean"])) + 1
    assert best["map"]["mean"] == found["curves"]["map"]["mean"][found["best_round"] - 1]
    out = typed.out(f"cv {dataset} --folds 4 {SMALL}")
    assert not unnamed(out, f"{found['best_round']} of 6", "ndcg@10")
    assert f"{best['ndcg@10']['mean']:.4f} +- {best['ndcg@10']['deviation']:.4f}" in out
    assert not Path("registry-data").exists()
    for option in ("--rounds-by oob", "--holdout-fraction 0.5"):  # which would say nothing to it
        assert "unknown option" in typed.err(f"cv {dataset} {SMALL} {option}", code=2)


def test_folds_of_a_dataset_go_by_the_ids_of_queries_whatever_its_buckets(dataset, typed):
    typed("data ingest judgments.txt -o other --buckets 7")
    typed("data bin other --max-bin 31")
    parameters = fixed(n_rounds=3, max_leaves=4, objective="l2", folds=3)
    one, two = (
        cross_validate(Dataset.open(Path(name)), parameters, TrainingOptions(n_threads=1)) for name in ("d", "other")
    )
    for round_number in (1, 2, 3):
        assert np.allclose(one.values("ndcg@10", round_number), two.values("ndcg@10", round_number))


@pytest.mark.parametrize(
    ("rounds_by", "options", "word"),
    [
        ("cv", "--folds 3", "cv"),
        ("test", "--holdout-fraction 0.25", "holdout"),
        ("oob", "--query-fraction 0.5 --objective listnet", "train"),
    ],
)
def test_train_says_what_decided(dataset, typed, rounds_by, options, word):
    command = f"train {dataset} --name web {SMALL} --rounds-by {rounds_by} {options}"
    found, shown = typed.json(command), typed.json("models show web")
    assert found[word]["ndcg@10"] > 0.3
    assert Forest.load(Path(shown["model_path"])).parameters["rounds_by"] == rounds_by
    curves = found["curves"]
    assert len(curves["metrics"]["train"]["ndcg@10"]) == found["rounds_trained"]
    if rounds_by == "oob":
        assert found["rounds"] == int(np.argmax(np.cumsum(curves["oob_improvement"]))) + 1
    if rounds_by == "cv":
        assert found["cross_validation"]["best_round"] == found["rounds"]
    assert shown["manifest"]["parameters"]["criterion"] == ""  # left to the objective
    assert f"{word} ndcg@10" in typed.out(command)


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
    arrays = {
        "y": np.clip(np.round(x[:, 0] + 1), 0, 3).astype(int),
        "label": x[:, 0] + x[:, 1] * x[:, 2],
        "sample_weight": rng.uniform(0.1, 2.0, size=n),
        "offset": rng.normal(size=n),
        "query_weight": rng.choice([0.5, 1.0, 3.0], size=n_queries)[qid],
    }
    names = {"y": "grade", "sample_weight": "weight"}
    frame = pl.DataFrame({
        "qid": qid, "doc_id": np.arange(n), **{names.get(name, name): values for name, values in arrays.items()},
        "a": x[:, 0], "b": x[:, 1], "c": x[:, 2],
    })  # fmt: skip
    frame.sample(fraction=1.0, shuffle=True, seed=4).write_csv(folder / "j.csv")
    ingest([folder / "j.csv"], folder / "d", options=IngestOptions(buckets=4))
    bin_dataset(Dataset.open(folder / "d"))
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


def test_pairs_of_a_dataset_are_learnt_as_those_of_arrays(columns, typed):
    _, x, qid, arrays = columns
    rng = np.random.default_rng(9)
    pairs = np.array(
        [(i, j) for i in range(300) for j in range(300) if qid[i] == qid[j] and x[i, 1] > x[j, 1] + rng.random()]
    )
    weight, probability = rng.uniform(0.5, 2.0, size=len(pairs)), rng.uniform(0.6, 1.0, size=len(pairs))
    given = zip(pairs, weight.tolist(), probability.tolist(), strict=True)
    lines = [f"{qid[i]} {i} {j} {w!r} {p!r}" for (i, j), w, p in given]
    Path("pairs.txt").write_text("\n".join(rng.permutation(lines)) + "\n")
    typed("data ingest j.csv --pairs pairs.txt -o d --buckets 4 --overwrite")
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
