"""Bins of columns that do not fit into memory: the sample, what is exact all the same, and how far off the rest may
be."""

import itertools
import json
import math
import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from typer.testing import CliRunner

from rankmill.foundation.errors import InputError
from rankmill.foundation.units import MIN_MEMORY
from rankmill.pipeline.bins import binning, sampled_bins
from rankmill.pipeline.bins import write as bin_work
from rankmill.pipeline.bins.binning import bin_dataset, bin_plan, find_bins
from rankmill.pipeline.bins.quantiles import sort_values
from rankmill.pipeline.bins.sampled_bins import SAMPLE_SALT, atoms_of, sampled_edges, sampled_places
from rankmill.pipeline.bins.spec import BinSpec, apply_bins, feature_bins
from rankmill.pipeline.cli import app
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.pipeline.ingest import ingest
from rankmill.pipeline.memory_plans import MOST_SAMPLED_ROWS, BinPlan
from rankmill.pipeline.options import IngestOptions
from tests import naive_samples
from tests.refusals import refused, unnamed

law = settings(deadline=None, max_examples=30)
VALUES = hnp.arrays(np.float32, st.integers(0, 300), elements=st.integers(-9, 9).map(float) | st.floats(width=32))
QUERIES = st.lists(st.tuples(st.text(max_size=4), st.integers(1, 9)), max_size=12, unique_by=lambda query: query[0])


def places_of(queries, k, cuts):
    borders = [0, *sorted(cut % (len(queries) + 1) for cut in cuts), len(queries)]

    def batches():
        for low, high in itertools.pairwise(borders):
            part = queries[low:high]
            yield pa.array([qid for qid, _ in part], pa.string()), np.array([size for _, size in part], dtype=np.int64)

    return sampled_places(batches, k).tolist()


@law
@given(QUERIES, st.integers(1, 40), st.lists(st.integers(0, 20), max_size=4), st.integers(1, 30))
def test_the_sample_is_the_rows_of_the_smallest_keys_in_any_pieces(queries, k, cuts, chunk):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampled_bins, "_CHUNK_ROWS", chunk)
        assert places_of(queries, k, cuts) == naive_samples.smallest(queries, k, SAMPLE_SALT)


def look_through(values, cuts):
    pieces = np.split(values, sorted(cut % (len(values) + 1) for cut in cuts))
    (found,) = atoms_of(lambda: ([np.ascontiguousarray(piece)] for piece in pieces), 1)
    return found


@law
@given(VALUES, st.lists(st.integers(0, 300), max_size=3), st.integers(2, 12), st.randoms(use_true_random=False))
def test_what_is_counted_exactly_is_so_in_any_order_and_pieces(values, cuts, counters, random):
    present = values[~np.isnan(values)].tolist()
    wanted = naive_samples.atoms(present, counters + 1) if present else {}
    shuffled = values.tolist()
    random.shuffle(shuffled)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampled_bins, "COUNTERS", counters)
        for some in (values, np.array(shuffled, dtype=np.float32)):
            column = look_through(some, cuts)
            found, counts = column.values, column.counts
            assert column.beside.tolist() == naive_samples.neighbours(present, list(wanted))
            assert dict(zip(found.tolist(), counts.tolist(), strict=True)) == wanted
            assert found.tolist() == sorted(wanted)
            assert column.missing == np.isnan(values).sum()
            assert column.extremes == ((min(present), max(present)) if present else (None, None))


@law
@given(VALUES, st.integers(2, 40))
def test_a_sample_of_all_rows_gives_the_exact_edges(values, max_bin):
    column = look_through(values, [])
    np.testing.assert_array_equal(
        sampled_edges(values.copy(), column, max_bin), feature_bins("x", values, max_bin).edges
    )


# ---- a dataset -------------------------------------------------------------------------------------------------------

N_QUERIES, SIZE = 1200, 25
N_ROWS = N_QUERIES * SIZE


def columns():
    rng = np.random.default_rng(11)
    normal = rng.normal(size=N_ROWS)
    return {
        "normal": normal,
        "sparse": np.where(rng.random(N_ROWS) < 0.9, 0.0, rng.lognormal(size=N_ROWS)),
        "atoms": np.where(rng.random(N_ROWS) < 0.5, rng.integers(0, 40, N_ROWS) / 8, normal),
        "missing": np.where(rng.random(N_ROWS) < 0.3, np.nan, normal),
        "few": rng.integers(0, 7, N_ROWS).astype(float),
        "rare": np.where(np.arange(N_ROWS) % 7000 == 777, 5.0, 0.0),
        "constant": np.full(N_ROWS, 3.0),
        "nothing": np.full(N_ROWS, np.nan),
        "sorted": np.arange(N_ROWS).astype(float),
    }


def write(path):
    qid = np.repeat([f"q{i}" for i in range(N_QUERIES)], SIZE)
    table = {"qid": qid, "doc_id": [f"d{i}" for i in range(N_ROWS)], "grade": np.arange(N_ROWS, dtype=np.int32) % 3}
    pq.write_table(pa.table(table | {name: x.astype(np.float32) for name, x in columns().items()}), path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sampled")
    write(folder / "in.parquet")
    shares = {"train": 0.8, "valid": 0.2}
    ingest([folder / "in.parquet"], folder / "data", options=IngestOptions(split=shares, buckets=6))
    return folder


def sampled(dataset, k=4000, max_bin=63, together=4):
    plan = replace(bin_plan(dataset), sampled_rows=k, columns=together)
    return binning._write_bins(Dataset.open(dataset.path), max_bin, plan, {})


def test_counts_are_exact_atoms_stand_alone_and_the_rest_is_near(folder):
    dataset = Dataset.open(folder / "data")
    k, max_bin = 4000, 63
    spec = sampled(dataset, k, max_bin)
    assert Dataset.open(dataset.path).binspec().digest == spec.digest
    assert spec.sampled_rows == k
    train = np.concatenate(list(dataset.feature_batches("train")))
    n = len(train)
    # all features, all edges: 1 in 10,000 by Dvoretzky, Kiefer and Wolfowitz with a union bound
    error = math.sqrt(math.log(2 * len(spec.features) / 1e-4) / (2 * k))
    for bins, column in zip(spec.features, np.ascontiguousarray(train.T), strict=True):
        found = apply_bins(column[:, None], BinSpec((bins,))).ravel()
        np.testing.assert_array_equal(bins.counts, np.bincount(found, minlength=bins.n_bins))
        present, missing = sort_values(column.copy())
        assert bins.missing == missing
        if not len(present):
            assert (bins.minimum, bins.maximum, len(bins.edges)) == (None, None, 0)
            continue
        assert (bins.minimum, bins.maximum) == (present[0], present[-1])
        assert np.all(bins.counts[1:] > 0)
        assert np.all(np.isin(np.searchsorted(present, bins.edges, side="right"), np.arange(1, len(present))))
        values, counts = np.unique(present, return_counts=True)
        for value, count in zip(values.tolist(), counts.tolist(), strict=True):
            if count > 2 * len(present) / (max_bin - 1) + 2 * error * len(present):
                inside = found == found[np.flatnonzero(column == np.float32(value))[0]]
                assert set(column[inside].tolist()) == {value}
        # how much lies in a bin of many values: what it would be of the sample, plus twice the error of a share
        several = [mass for b, mass in enumerate(bins.counts[1:], 1) if len(np.unique(column[found == b])) > 1]
        assert max(several, default=0) <= 2 * len(present) / (max_bin - 1) + 1 + 2 * error * n
    rare = int((train[:, 5] == 5).sum())  # too few for any sample, and an extreme
    assert 0 < rare < 6
    assert spec.features[5].counts[1:].tolist() == [n - rare, rare]


def test_it_is_the_same_for_any_batches_groups_and_row_groups(folder, tmp_path, monkeypatch):
    dataset = Dataset.open(folder / "data")
    digest = sampled(dataset).digest
    files = {path.name: path.read_bytes() for path in (dataset.path / "_bins" / digest).iterdir()}
    for batch_rows, together in ((257, 1), (100_000, 9)):
        monkeypatch.setattr(bin_work, "_BATCH_ROWS", batch_rows)
        assert sampled(dataset, together=together).digest == digest
    monkeypatch.undo()
    # the same rows in pieces, in another order
    table = pq.read_table(folder / "in.parquet")
    order = np.random.default_rng(5).permutation(len(table))
    for part in range(3):
        pq.write_table(table.take(pa.array(order[part::3])), tmp_path / f"{part}.parquet", row_group_size=999)
    options = IngestOptions(split={"train": 0.8, "valid": 0.2}, buckets=6)
    ingest([tmp_path / f"{part}.parquet" for part in range(3)], tmp_path / "data", options=options)
    shuffled = Dataset.open(tmp_path / "data")
    assert sampled(shuffled).digest == digest
    assert {path.name: path.read_bytes() for path in (shuffled.path / "_bins" / digest).iterdir()} == files


def test_the_file_says_that_it_was_sampled_only_where_it_was(folder):
    dataset = Dataset.open(folder / "data")
    spec = sampled(dataset)
    text = (dataset.path / "_bins" / spec.digest / "binspec.json").read_text()
    assert json.loads(text)["sampled_rows"] == 4000
    assert BinSpec.from_json(text).digest == spec.digest
    exact = BinSpec(spec.features, spec.max_bin)
    assert "sampled_rows" not in exact.to_json()
    assert exact.digest != spec.digest
    assert BinSpec.from_json(exact.to_json()).sampled_rows is None


def test_better_bins_are_kept_and_worse_ones_made_again(folder, tmp_path):
    shutil.copytree(folder / "data", tmp_path / "data")
    dataset = Dataset.open(tmp_path / "data")
    coarse = sampled(dataset, 500, 31)
    opened = Dataset.open(dataset.path)
    assert find_bins(opened, 31) is None
    assert find_bins(opened, 31, 501) is None
    assert find_bins(opened, 31, 500).digest == coarse.digest
    exact = bin_dataset(opened, 31)  # the memory is there
    assert exact.sampled_rows is None
    opened = Dataset.open(dataset.path)
    assert opened.binspec().digest == exact.digest
    assert find_bins(opened, 31, 500).digest == exact.digest
    opened.verify()


# ---- the plan --------------------------------------------------------------------------------------------------------


def planned(rows, features, memory, queries=1000):
    shards = [type("Shard", (), {"rows": rows // 32})()] * 32
    splits = {"train": type("Count", (), {"rows": rows})()}
    names = ["x"] * features
    counts = {"features": names, "splits": splits, "queries": queries, "shards": shards, "categories": None}
    manifest = type("Manifest", (), counts)()
    return BinPlan.of(manifest, memory)


def test_the_plan_keeps_to_the_bound():
    memories = [512 * 10**6, 10**9, 2 * 10**9, 16 * 10**9]
    for features, exponent, memory in itertools.product([1, 46, 136, 700, 5000], [0, 4, 6, 7, 8, 9], memories):
        rows = 10**exponent
        plan = planned(rows, features, memory)
        assert 1 <= plan.columns <= features
        assert plan.peak_bytes <= memory
        assert plan.sampled_rows is None or plan.sampled_rows == min(rows, MOST_SAMPLED_ROWS)
        if 12 * rows < memory - 400 * 10**6 - rows // 32:
            assert plan.sampled_rows is None
        if 12 * rows > memory:
            assert plan.sampled_rows is not None
        assert plan.batch_rows == planned(1, features, 2 * memory).batch_rows


def test_more_queries_than_memory_are_refused():
    with refused(InputError, "memory", "512,000,000", "1900MB"):
        planned(10**9, 100, MIN_MEMORY, queries=300_000_000)
    assert planned(10**9, 100, 1_900_000_000, queries=300_000_000).sampled_rows is not None


def test_too_little_memory_is_refused(folder):
    with refused(InputError, "memory", "512MB", "511,999,999"):
        bin_plan(Dataset.open(folder / "data"), MIN_MEMORY - 1)


def test_the_command_says_before_what_it_takes(folder, tmp_path):
    shutil.copytree(folder / "data", tmp_path / "data")
    run = CliRunner().invoke(app, ["bin", str(tmp_path / "data"), "--memory", "1GB", "--max-bin", "17", "--json"])
    plan = bin_plan(Dataset.open(tmp_path / "data"), 10**9)
    assert run.stderr == f"{plan.render()}\n"
    assert not unnamed(run.stderr, f"{plan.rows:,}", "train", "9 of 9")
    assert json.loads(run.stdout)["sampled_rows"] is None
    again = CliRunner().invoke(app, ["bin", str(tmp_path / "data"), "--memory", "1GB", "--max-bin", "17"])
    assert again.stderr == ""


PEAK = """
import sys, time
from pathlib import Path
from rankmill.pipeline.bins.binning import bin_dataset, bin_plan
from rankmill.pipeline.dataset.dataset import Dataset
dataset = Dataset.open(Path(sys.argv[1]))
plan = bin_plan(dataset, int(sys.argv[2]))
started = time.perf_counter()
spec = bin_dataset(dataset, int(sys.argv[3]), int(sys.argv[2]))
peak = [line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")][0]
print(spec.sampled_rows or 0, plan.peak_bytes, 1024 * int(peak), round(time.perf_counter() - started, 1))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="VmHWM is Linux's")
@pytest.mark.parametrize(
    ("rows", "features", "sampled"), [(24_000_000, 4, True), (200_000, 700, False), (60_000, 1000, False)]
)
def test_peak_memory_keeps_to_the_bound(tmp_path, rows, features, sampled):
    # rows of queries of 100 documents, written a million values at a time
    names = [f"f{i}" for i in range(features)]
    step = max(100, 2_000_000 // features // 100 * 100)
    rng = np.random.default_rng(1)
    writer = None
    for low in range(0, rows, step):
        row = np.arange(low, min(low + step, rows))
        table = pa.table(
            {"qid": pa.array(row // 100).cast(pa.string()), "grade": (row % 3).astype(np.int32)}
            | {name: rng.normal(size=len(row)).astype(np.float32) for name in names}
        )
        writer = writer or pq.ParquetWriter(tmp_path / "in.parquet", table.schema, compression="none")
        writer.write_table(table)
    writer.close()
    ingest([tmp_path / "in.parquet"], tmp_path / "data", options=IngestOptions(memory=10**9))
    for max_bin in (254, 255):  # the first compiles
        command = [sys.executable, "-c", PEAK, tmp_path / "data", str(MIN_MEMORY), str(max_bin)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found, planned, peak, seconds = map(float, done.stdout.split())
        sys.stderr.write(f"{rows} x {features}: planned {planned / 1e6:.0f}, peak {peak / 1e6:.0f} MB, {seconds} s\n")
    assert bool(found) == sampled
    assert peak <= planned
    assert peak <= MIN_MEMORY * 1.02
