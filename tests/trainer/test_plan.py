"""The memory that is announced before a training: what losses, outputs and pairs add to it, and that it is what is
taken."""

import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from rankmill.foundation.errors import InvalidParameter
from rankmill.pipeline.bins.binning import bin_dataset
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.pipeline.ingest import ingest
from rankmill.pipeline.options import IngestOptions, SynthParameters
from rankmill.pipeline.synth import write_synthetic
from rankmill.trainer.candidates.train_on_dataset import plan_of
from rankmill.trainer.data.training_rows import read_columns
from rankmill.trainer.objectives.registry import objective_of
from rankmill.trainer.team import Team
from tests import ROOT
from tests.refusals import refused
from tests.trainer.fixed import fixed
from tests.trainer.objectives.test_every_objective import NAMES


def generated(folder, name, queries, documents, features):
    file = folder / f"{name}.parquet"
    parameters = SynthParameters(queries=queries, documents_per_query=documents, features=features, seed=1)
    write_synthetic(file, parameters)
    ingest([file], folder / name)
    bin_dataset(Dataset.open(folder / name))
    return Dataset.open(folder / name)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return generated(tmp_path_factory.mktemp("plan"), "small", 40, 12, 10)


def needed(dataset, **parameters):
    return plan_of(dataset, fixed(n_rounds=2, **parameters)).bytes_needed


def gradients_of(objective, rows):
    rng = np.random.default_rng(3)
    shape = (rows.n_rows,) if objective.n_outputs == 1 else (objective.n_outputs, rows.n_rows)
    scores, g, h = rng.normal(size=shape), np.empty(shape), np.empty(shape)
    objective.gradients(1, scores, g, h, Team(1))
    return scores


@pytest.mark.parametrize("name", NAMES)
def test_an_objective_lists_no_more_pairs_than_it_says_and_keeps_what_it_says(dataset, name):
    parameters = fixed(objective=name, truncation=5)
    rows = read_columns(dataset, "train", parameters)
    objective = objective_of(rows, parameters)
    said = objective.bytes_held(rows)
    scores = gradients_of(objective, rows)
    longest = int(np.diff(rows.starts).max())
    # workspaces are made when they are needed, for a query or the samples of one
    assert objective.bytes_held(rows) - said <= 8 * 16 * (longest + 128)
    if "ole" in objective.splits.criteria and not objective.splits.additive:
        pairs = objective.pair_hessians(1, scores, 0.0, Team(1))
        assert 0 < len(pairs.first) <= objective.most_pairs
    else:
        assert objective.most_pairs == 0 or "ole" not in objective.splits.criteria


def test_pairs_above_the_truncation_are_counted_to_the_last(dataset, monkeypatch):
    parameters = fixed(objective="ranknet")
    rows = read_columns(dataset, "train", parameters)
    pairs = sum(
        int((rows.grades[a:b, None] > rows.grades[a:b]).sum())
        for a, b in zip(rows.starts[:-1], rows.starts[1:], strict=True)
    )
    assert objective_of(rows, parameters).most_pairs == pairs
    n, by_loss = rows.n_rows, {"objective": "ranknet", "criterion": "ole"}
    plain = needed(dataset, objective="ranknet")
    assert needed(dataset, **by_loss, ole_pairs=0.0) - plain == (24 + 16) * pairs
    assert needed(dataset, **by_loss, ole_pairs=0.5) - plain == (24 + 16) * pairs  # so few are not drawn from
    monkeypatch.setattr("rankmill.trainer.candidates.train_on_dataset.FEWEST_DRAWN_PAIRS", 1)
    assert needed(dataset, **by_loss, ole_pairs=0.5) - plain == (24 + 16) * ((n + 1) // 2)
    assert needed(dataset, objective="ranknet", leaf="exact") == plain  # those of leaves are summed without a list
    drawn = plan_of(dataset, fixed(objective="ranknet(pair_fraction=0.5)", leaf="exact"))
    assert drawn.pair_bytes == 16 * pairs


def test_every_output_has_scores_and_gradients_of_its_own(dataset):
    n = dataset.queries("train").n_rows
    two, five = (needed(dataset, objective="mcrank(max_grade=" + highest + ")") for highest in ("4", "7"))
    assert five - two == 3 * 24 * n
    assert needed(dataset, criterion="se") - needed(dataset) == 8 * n


def test_what_cannot_be_trained_is_refused_before_it_is_planned(dataset):
    for wrong in ({"criterion": "ole", "objective": "rank_xendcg"}, {"leaf": "exact", "objective": "apxdcg"}):
        with refused(InvalidParameter, next(iter(wrong)), wrong["objective"]):
            needed(dataset, **wrong)


def test_the_plan_is_one_line(dataset):
    plan = plan_of(dataset, fixed(objective="ranknet", criterion="ole"))
    assert "\n" not in plan.render()
    assert replace(plan, pair_bytes=plan.pair_bytes + 10**9).bytes_needed == plan.bytes_needed + 10**9


def test_given_pairs_and_optional_columns_are_counted(tmp_path):
    lines = ["qid,doc_id,grade,weight,offset,f", *(f"{i // 4},{i},{i % 3},{1 + i % 2},0.5,{i}" for i in range(400))]
    (tmp_path / "j.csv").write_text("\n".join(lines))
    (tmp_path / "pairs.txt").write_text("".join(f"{q} {4 * q} {4 * q + 1} 1\n" for q in range(100)))
    ingest([tmp_path / "j.csv"], tmp_path / "d", options=IngestOptions(buckets=2))
    bin_dataset(Dataset.open(tmp_path / "d"))
    parameters = fixed(objective="ranknet", criterion="ole", ole_pairs=0.0)
    plain = plan_of(Dataset.open(tmp_path / "d"), parameters)
    options = IngestOptions(buckets=2, overwrite=True)
    ingest([tmp_path / "j.csv"], tmp_path / "d", pairs=[tmp_path / "pairs.txt"], options=options)
    unused = plan_of(Dataset.open(tmp_path / "d"), parameters)
    assert unused.column_bytes - plain.column_bytes == 100 * (4 + 4 + 8 + 8) + 101 * 8
    assert (unused.given_pairs, unused.pair_bytes) == (0, plain.pair_bytes)
    paired = plan_of(Dataset.open(tmp_path / "d"), replace(parameters, learn_from="pairs"))
    assert plain.column_bytes == 400 * 16 + 101 * 8 + 100 * 8  # weights, offsets; starts and names of queries
    assert paired.column_bytes - plain.column_bytes == 100 * (4 + 4 + 8 + 8) + 101 * 8
    assert (plain.given_pairs, paired.given_pairs) == (0, 100)
    assert paired.pair_bytes == (24 + 16 + 16) * 100  # leaves list them too


GROWTH = """
import sys
from pathlib import Path

from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.trainer.parameters import TrainParameters
from rankmill.trainer.candidates.train_on_dataset import plan_of, train
from rankmill.trainer.training_options import TrainingOptions


def status(key):
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith(key)))


small, large = (Dataset.open(Path(name)) for name in sys.argv[1:3])
parameters = TrainParameters(preset="defaults-1", n_rounds=2, **eval(sys.argv[3]))
options = TrainingOptions(n_threads=1, eval_metrics=sys.argv[4:])
train(small, parameters, options)  # compiled kernels are no part of the plan
Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts anew
before = status("VmRSS")
plan = plan_of(large, parameters, options)
planning = status("VmHWM") - before
train(large, parameters, options)
print(plan.bytes_needed, plan.bin_bytes, planning, status("VmHWM") - before)
"""


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("memory")
    return [str(generated(folder, name, queries, 40, 12).path) for name, queries in (("small", 60), ("large", 7_500))]


@pytest.mark.slow
@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="needs the high-water mark of Linux")
@pytest.mark.parametrize(
    ("parameters", "eval_metrics"),
    [
        ({"objective": "mcrank"}, []),
        ({"objective": "mcrank", "step_search": "line"}, ["deviance"]),
        ({"criterion": "se"}, []),
        ({"criterion": "ole"}, []),
        ({"objective": "ranknet", "criterion": "ole"}, []),
        ({"objective": "ranknet", "criterion": "ole", "ole_pairs": 0.0}, ["deviance"]),
        ({"objective": "ranknet", "criterion": "ole", "leaf": "newton"}, []),
        ({"objective": "ranknet", "leaf": "exact"}, []),
        ({"objective": "listnet", "criterion": "ole"}, []),
        ({"objective": "yetirank", "criterion": "ole"}, []),
        ({"objective": "quantile"}, ["deviance"]),
        ({"objective": "coxph"}, []),
    ],
    ids=str,
)
def test_a_training_takes_the_memory_that_was_announced(folders, parameters, eval_metrics):
    done = subprocess.run(
        [sys.executable, "-c", GROWTH, *folders, repr(parameters), *eval_metrics],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    needed, mapped, planning, growth = map(int, done.stdout.split())
    # pages of the map count too, as long as nobody needs their memory for other things
    assert abs(growth - needed - mapped) <= max(0.15 * needed, 30e6), (needed, mapped, growth)
    assert planning <= needed
