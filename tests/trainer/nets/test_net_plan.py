"""The memory that is announced before a net is trained is not exceeded, and not much more than what is taken."""

import os
import subprocess
import sys
import tracemalloc
from dataclasses import replace

import pytest

from rankmill.trainer.nets.options import NetOptions
from rankmill.trainer.nets.plan import plan_net
from rankmill.trainer.nets.train_on_dataset import train_net_on
from rankmill.trainer.options import CheckpointOptions
from tests import ROOT
from tests.trainer.test_plan import generated

MACHINE = CheckpointOptions(n_threads=1)


def needed(dataset, folds=0, **options):
    return plan_net(dataset, NetOptions(**options), MACHINE, folds).bytes_needed


def test_what_the_memory_depends_on(dataset):
    narrow, wide = needed(dataset, layers=(8,)), needed(dataset, layers=(1024, 1024))
    assert wide - narrow > 4 * 12 * 1024 * 1024  # of each weight twelve copies, moments and the like
    assert needed(dataset, layers=(1024, 1024), optimiser="sgd") < wide
    assert needed(dataset, layers=(1024, 1024), folds=3) > wide
    assert needed(dataset, layers=(8,), batch_documents=1) < needed(dataset, layers=(8,))
    plan = plan_net(dataset, NetOptions(layers=(8,)), MACHINE)
    assert replace(plan, train_rows=10**6).bytes_needed - plan.bytes_needed > 8e6 * plan.n_features
    assert replace(plan, n_missing=plan.n_missing + 1).bytes_needed > plan.bytes_needed
    assert replace(plan, n_categorical=1).bytes_needed > plan.bytes_needed
    assert f"training a net (8) on {plan.train_rows:,} documents" in plan.render()
    assert f"at most about {plan.bytes_needed / 1e6:,.0f} MB" in plan.render()


def test_a_wide_net_takes_no_more_than_was_announced(dataset):
    options = NetOptions(layers=(800, 600), epochs=2)
    train_net_on(dataset, replace(options, layers=(8, 8)), MACHINE)  # compiles
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        train_net_on(dataset, options, MACHINE)
        taken = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    announced = plan_net(dataset, options, MACHINE).bytes_needed
    assert taken <= announced <= 2 * taken + 30e6, (taken, announced)


GROWTH = """
import sys
from dataclasses import replace
from pathlib import Path

from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.trainer.nets.cross_validating import cross_validate_net_on
from rankmill.trainer.nets.options import NetOptions
from rankmill.trainer.nets.plan import plan_net
from rankmill.trainer.nets.train_on_dataset import train_net_on
from rankmill.trainer.options import CheckpointOptions


def status(key):
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith(key)))


small, large = (Dataset.open(Path(name)) for name in sys.argv[1:3])
given = {"epochs": 2, **eval(sys.argv[3])}
folds, machine = given.pop("folds", 0), CheckpointOptions(n_threads=given.pop("n_threads", 1))
options = NetOptions(**given)


def run(dataset, options):
    if folds:
        cross_validate_net_on(dataset, options, folds, machine)
    else:
        train_net_on(dataset, options, machine)


run(small, replace(options, layers=tuple(min(width, 8) for width in options.layers)))  # compiles
Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts anew
before = status("VmRSS")
needed = plan_net(large, options, machine, folds).bytes_needed
run(large, options)
print(needed, status("VmHWM") - before)
"""
SIZES = {"small": (60, 12), "many rows": (7_500, 12), "many features": (1_000, 136), "few": (500, 12)}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("memory")
    return {name: str(generated(folder, name, queries, 40, n).path) for name, (queries, n) in SIZES.items()}


@pytest.mark.slow
@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="needs the high-water mark of Linux")
@pytest.mark.parametrize(
    ("rows", "options"),
    [
        ("many rows", {}),
        ("many rows", {"layers": ()}),
        ("many rows", {"layers": (512,), "batch_documents": 100_000, "n_threads": 2}),
        ("many features", {}),
        ("many features", {"folds": 3}),
        ("few", {"layers": (1500, 1500)}),
        ("few", {"layers": (1500, 1500), "optimiser": "sgd", "learning_rate": 1e-4}),
        ("few", {"layers": (700, 700, 700), "batch_documents": 50}),
        ("few", {"layers": (1000, 1000), "folds": 3}),
    ],
    ids=str,
)
def test_a_training_takes_no_more_memory_than_was_announced(folders, rows, options):
    done = subprocess.run(
        [sys.executable, "-c", GROWTH, folders["small"], folders[rows], repr(options)],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    announced, growth = map(int, done.stdout.split())
    assert 0.5 * announced <= growth <= announced, (growth, announced)
