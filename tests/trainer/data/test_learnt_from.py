"""What is learnt from: grades, pairs or both; pairs replace no grades unless that is asked for."""

import itertools
import json
import warnings
from dataclasses import replace

import numpy as np
import pytest

from rankmill import Ranker, cross_validate
from rankmill.foundation.errors import InvalidParameter, TrainingDataRejected
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.pipeline.ingest import ingest
from rankmill.pipeline.options import IngestOptions
from rankmill.registry import Registry
from rankmill.scorer.forest.forest import Forest
from rankmill.trainer.data.training_rows import resolved, rows_learnt_from
from rankmill.trainer.objectives.weights import relative_weights
from tests.refusals import refused, unnamed
from tests.trainer.fixed import fixed
from tests.trainer.objectives.loss_cases import build, case, derivatives
from tests.trainer.small_dataset import SHARES, small_dataset

SMALL = "--max-leaves 4 --min-rows-in-leaf 5 --preset defaults-1 --n-threads 1"


@pytest.fixture
def work(tmp_path, monkeypatch):
    """The folder of a dataset that has pairs which contradict its grades."""
    monkeypatch.chdir(tmp_path)
    data = small_dataset(tmp_path, SHARES)
    lines = ["qid,better,worse"]
    for split in SHARES:
        rows = data.rows(split, ("qid", "doc_id", "grade")).to_pylist()
        for one, other in itertools.pairwise(rows):
            if one["qid"] == other["qid"] and one["grade"] != other["grade"]:
                best, worst = sorted((one, other), key=lambda row: row["grade"])
                lines.append(f"{one['qid']},{best['doc_id']},{worst['doc_id']}")
    (tmp_path / "clicks.csv").write_text("\n".join(lines) + "\n")
    return tmp_path


def add_pairs(work):
    options = IngestOptions(buckets=3, split=SHARES, overwrite=True)
    ingest([work / "judgments.txt"], work / "d", pairs=[work / "clicks.csv"], options=options)


@pytest.fixture
def trained(typed):
    """Train a version of ``d``; return it, its forest and what was said on stderr."""

    def call(name, options="", rounds=5):
        said = typed.err(f"train d --name {name} --registry r {SMALL} --n-rounds {rounds} {options}")
        version = Registry("r").resolve(name, bare="latest")
        return version, Forest.from_bytes(version.read(), name), said

    return call


def values(forest):
    return forest.node_feature.tolist(), forest.node_value.tolist()


def test_pairs_that_are_added_to_a_dataset_replace_no_grades(work, typed, trained):
    _, before, said = trained("before")
    assert not unnamed(said, "learning from grades")
    add_pairs(work)
    n = Dataset.open(work / "d").pairs("train").better.size
    assert n > 100
    version, after, said = trained("after")
    assert not unnamed(said, f"{n:,} pairs", "NOT", "pairs or both")
    assert values(after) == values(before)
    assert after.info["learnt_from"] == version.manifest["learnt_from"] == "grades"
    assert values(trained("explicit", "--learn-from grades")[1]) == values(before)
    version, pairs, said = trained("pairs", "--learn-from pairs")
    assert not unnamed(said, f"{n:,} pairs", "not from grades")
    assert pairs.info["learnt_from"] == version.manifest["learnt_from"] == "pairs"
    assert version.manifest["metrics"]["train"]["ndcg@10"] < 0.8 * max(0.1, before.info["train"]["ndcg@10"])
    (_, heavy, said), (_, light, _) = (trained("both", f"--learn-from both --pairs-weight {w}") for w in (100, 0.001))
    assert not unnamed(said, "grades and")
    assert heavy.info["train"]["ndcg@10"] < light.info["train"]["ndcg@10"]
    assert not unnamed(trained("x", "--objective l2")[2], f"{n:,} pairs", "NOT", "l2")
    wrong = typed.err(f"train d --name x {SMALL} --objective l2 --learn-from pairs", code=2)
    assert not unnamed(wrong, "l2", "pairs", "gbrank, lambdaloss")
    assert not unnamed(typed.err(f"cv d {SMALL} --n-rounds 5 --folds 2 --learn-from pairs"), f"{n:,} pairs")


def test_resuming_continues_with_what_the_model_has_learnt_from(work, typed, trained):
    add_pairs(work)
    trained("web", "--learn-from pairs")
    long = "--resume web@1 --keep-rounds all"
    wrong = typed.err(f"train d --name web --registry r {SMALL} --n-rounds 8 {long}", code=2)
    assert not unnamed(wrong, "trained on pairs", "learn_from")
    whole = trained("whole", "--learn-from pairs --keep-rounds all", 8)[1]
    assert trained("web", f"{long} --learn-from pairs", 8)[1].to_bytes() == whole.to_bytes()


@pytest.mark.parametrize(
    ("objective", "weight"), [("ranknet", 0.25), ("rankboost", 3.0), ("lambdamart", 1.0), ("lambdaloss", 3.0)]
)
def test_both_is_the_sum_of_the_losses(objective, weight):
    rows, scores = case(3, given=True)
    parameters = {"lambda_normalisation": False, "truncation": 2**31}
    graded = replace(rows, pairs=None)
    own = resolved(rows, fixed(objective=objective, learn_from="both", pairs_weight=weight, **parameters))
    both = derivatives(build(rows_learnt_from(rows, own), objective, **parameters), scores)
    n_graded = sum(
        int((rows.grades[a:b, None] > rows.grades[None, a:b]).sum())
        for a, b in zip(rows.starts[:-1], rows.starts[1:], strict=True)
    )
    n_given = len(rows.pairs.better)
    assert relative_weights(rows.pairs.weight, n_given).mean() == pytest.approx(1.0)
    mean = (n_graded + weight * n_given) / (n_graded + n_given)  # weights of pairs are relative to their mean
    for found, by_grades, by_pairs in zip(
        both,
        derivatives(build(graded, objective, **parameters), scores),
        derivatives(build(rows, objective, **parameters), scores),
        strict=True,
    ):
        assert np.allclose(mean * found, by_grades + weight * by_pairs, atol=1e-12)


def test_rows_with_pairs_alone_learn_from_them():
    rows, _ = case(4, given=True)
    blank = replace(rows, grades=np.zeros_like(rows.grades))
    assert resolved(blank, fixed(objective="ranknet")).learn_from == "pairs"
    assert resolved(rows, fixed(objective="ranknet")).learn_from == "grades"
    by_query = np.repeat(np.arange(rows.n_queries), np.diff(rows.starts)).astype(np.int32)
    assert resolved(replace(rows, grades=by_query), fixed(objective="ranknet")).learn_from == "pairs"
    assert resolved(blank, fixed(objective="l2")).learn_from == "grades"
    with refused(TrainingDataRejected, "learn_from 'both'", "pairs"):
        resolved(replace(rows, pairs=None), fixed(learn_from="both"))
    with pytest.raises(InvalidParameter, match=r"ranknet\(ties=true\)"):
        build(rows, "ranknet(ties=true)", learn_from="both")
    with refused(InvalidParameter, "gbrank", "both"):
        build(rows, "gbrank", learn_from="both")
    with refused(InvalidParameter, "pairs_weight", "0"):
        fixed(pairs_weight=0.0)
    with refused(InvalidParameter, "learn_from", "pair", "pairs"):
        fixed(learn_from="pair")


def test_a_ranker_warns_of_pairs_that_it_does_not_use():
    rng = np.random.default_rng(8)
    X, qid = rng.normal(size=(200, 3)), np.repeat(np.arange(20), 10)
    y = np.clip(np.round(X[:, 0] + 1), 0, 4)
    pairs = [
        (10 * q + int(np.argmin(X[10 * q : 10 * q + 10, 0])), 10 * q + int(np.argmax(X[10 * q : 10 * q + 10, 0])))
        for q in range(20)
    ]
    small = {"objective": "ranknet", "n_rounds": 5, "max_leaves": 4, "min_rows_in_leaf": 5, "n_threads": 1}
    plain = Ranker(**small).fit(X, y, qid=qid)
    with pytest.warns(UserWarning, match="learning from grades; the 20 pairs are NOT used: set learn_from"):
        warned = Ranker(**small).fit(X, y, qid=qid, pairs=pairs)
    assert np.array_equal(warned.predict(X), plain.predict(X))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        asked = Ranker(**small, learn_from="pairs").fit(X, y, qid=qid, pairs=pairs)
        alone = Ranker(**small).fit(X, np.zeros(len(X)), qid=qid, pairs=pairs)
        Ranker(**small, learn_from="grades").fit(X, y, qid=qid, pairs=pairs)
    assert np.array_equal(asked.predict(X), alone.predict(X))
    assert np.corrcoef(asked.predict(X), y)[0, 1] < 0 < np.corrcoef(plain.predict(X), y)[0, 1]
    folds = {
        choice: cross_validate(Ranker(**small, folds=2, learn_from=choice), X, y, qid=qid, pairs=pairs).mean("ndcg@10")
        for choice in ("", "pairs")
    }
    assert folds["pairs"] < folds[""]
    assert json.loads(json.dumps(asked.forest_.info["learnt_from"])) == "pairs"
