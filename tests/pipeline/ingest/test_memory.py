"""The memory bound of an ingest: what the plan promises, and what a process takes; and the cores that it may use."""

import itertools
import os
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest

from rankmill.foundation.cores import available_cores
from rankmill.foundation.errors import InputError
from rankmill.foundation.process_memory import checked_memory
from rankmill.foundation.units import MIN_MEMORY
from rankmill.pipeline.group.query_splits import buckets_of
from rankmill.pipeline.group.spill import SpillFile, row_schema, spill_rows
from rankmill.pipeline.memory_plans import BYTES_A_ROW, RESIDENT, reading_threads, writing_share
from rankmill.pipeline.options import DEFAULT_BLOCK_BYTES, IngestOptions, SynthParameters
from rankmill.pipeline.read.batch import BATCH_BYTES, RowBatch
from rankmill.pipeline.synth import write_synthetic
from tests.refusals import refused


def test_the_first_pass_has_as_many_threads_as_memory_allows():
    for memory, threads in itertools.product([MIN_MEMORY, 10**9, 4 * 10**9, 64 * 10**9], [1, 2, 64]):
        found = reading_threads(memory, threads, DEFAULT_BLOCK_BYTES)
        each = 4 * DEFAULT_BLOCK_BYTES + 2 * BATCH_BYTES
        assert 1 <= found <= threads
        assert RESIDENT + found * each <= memory
        assert found == threads or RESIDENT + (found + 1) * each > memory
        assert reading_threads(memory, threads, 1 << 30) == max(1, min(threads, (memory - RESIDENT) // (4 << 30)))


def test_the_second_pass_keeps_within_the_bound():
    cases = [MIN_MEMORY, 10**9, 64 * 10**9], [1, 2, 64], [1, 1000, 200_000, 400_000], [1, 46, 136, 700]
    for memory, threads, rows, features in itertools.product(*cases):
        group = min(1 << 26, features << 22)
        share = writing_share(memory, threads, row_group_bytes=group, bucket_rows=rows, row_bytes=4 * features)
        assert 1 <= share.threads <= threads
        assert share.values >= min(group, 4 * features * rows)
        peak = RESIDENT + share.threads * (share.values + group + rows * BYTES_A_ROW)
        assert peak <= memory - 2 * BATCH_BYTES


def test_what_does_not_fit_is_said_with_the_cure():
    with refused(InputError, "9,000,000", "memory 1600MB", "buckets"):
        writing_share(10**9, 8, row_group_bytes=1 << 26, bucket_rows=9_000_000, row_bytes=544)
    share = writing_share(16 * 10**8, 8, row_group_bytes=1 << 26, bucket_rows=9_000_000, row_bytes=544)
    assert share.threads == 1
    with refused(InputError, "memory", "512MB", "100"):
        checked_memory(100)
    with refused(InputError, "threads", "0", "-1"):
        IngestOptions(threads=-1)


def test_long_ids_count_as_well(tmp_path):
    file = SpillFile(tmp_path / "spill", 2, row_schema())
    for doc_id in (None, pa.array(["d" * 1000, None, "d"])):
        qid = pa.array(["q1", "q1", "query 2"])
        spill_rows(file, RowBatch(qid=qid, doc_id=doc_id, grade=None, values=np.zeros((3, 1), dtype=np.float32)), 0)
    spill = file.finish()
    assert spill.id_bytes.sum(axis=1).tolist() == [22, 1001]
    of_each = {qid: int(buckets_of(pa.array([qid]), 2)[0]) for qid in ("q1", "query 2")}
    assert len(set(of_each.values())) == 2
    assert spill.id_bytes[:, of_each["q1"]].tolist() == [8, 1000]

    def threads(id_bytes):
        needs = {"row_group_bytes": 1 << 26, "bucket_rows": 10**6, "row_bytes": 544}
        return writing_share(4 * 10**9, 8, id_bytes=np.array([[0, id_bytes], [0, 0]]), **needs).threads

    assert threads(20 * 10**6) == threads(0) > threads(300 * 10**6) > threads(800 * 10**6)
    with refused(InputError, "1,000,000", "buckets"):
        threads(1500 * 10**6)
    with refused(InputError, "2,147 MB", "ids", "buckets"):
        threads(2**31)


def test_many_columns_take_space_in_a_file_of_few_rows():
    needs = {"row_group_bytes": 1 << 26, "bucket_rows": 256, "row_bytes": 1 << 18}
    assert writing_share(2 * 10**9, 8, **needs).threads == 3
    with refused(InputError, "memory 800MB"):
        writing_share(MIN_MEMORY, 8, **needs)


def test_the_quota_bounds_the_affinity(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 2, 4, 6}, raising=False)
    file = tmp_path / "cpu.max"
    assert available_cores(file) == 4
    for quota, cores in (("200000 100000", 2), ("250000 100000", 2), ("50000 100000", 1), ("1600000 100000", 4)):
        file.write_text(f"{quota}\n")
        assert available_cores(file) == cores
    for none in ("", "max 100000\n", "many 100000\n", "200000 0\n", "200000\n"):
        file.write_text(none)
        assert available_cores(file) == 4


@pytest.mark.parametrize(("count", "cores"), [(3, 3), (None, 1)])
def test_without_affinity_the_machine_is_counted(tmp_path, monkeypatch, count, cores):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: count)
    assert available_cores(tmp_path / "none") == cores


def test_this_process_has_one_at_least():
    assert available_cores() >= 1


SCRIPT = """
import sys
from pathlib import Path
from rankmill.pipeline.ingest import IngestOptions, ingest

options = IngestOptions(split={"train": 1.0}, memory=512 * 10**6, buckets=int(sys.argv[3]), threads=2)
ingest([Path(sys.argv[1])], Path(sys.argv[2]), options=options)
print([int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmHWM")][0])
"""


def peak(text, out, buckets=4):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, text, out, str(buckets)], capture_output=True, text=True, check=True
    )
    return int(done.stdout)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="VmHWM is Linux's")
@pytest.mark.parametrize(("features", "queries", "big"), [(136, 6000, 0), (700, 400, 200_000)])
def test_the_process_stays_under_the_bound(tmp_path, features, queries, big):
    """Values of several times the bound; ``big`` documents are of one query, 560 MB in one bucket."""
    text, small = tmp_path / "in.txt", tmp_path / "small.txt"
    write_synthetic(small, SynthParameters(queries=2, features=features))
    peak(small, tmp_path / "warm")
    write_synthetic(text, SynthParameters(queries=queries, documents_per_query=120, features=features))
    if big:
        more = tmp_path / "more.txt"
        write_synthetic(more, SynthParameters(queries=5300, documents_per_query=40, features=features, seed=2))
        with more.open("rb") as lines, text.open("ab") as file:
            for line, _ in zip(lines, range(big), strict=False):
                grade, _, rest = line.split(b" ", 2)
                file.write(b"%s qid:big %s" % (grade, rest))
        more.unlink()
    assert peak(text, tmp_path / "out") < 512 * 10**6


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="VmHWM is Linux's")
@pytest.mark.parametrize(
    ("name", "head", "line", "n"),
    [
        ("in.txt", "1 qid:1 1:1\n", "1 qid:%d\n", 6_000_000),
        ("in.csv", "qid,grade,f1\n", "%d,1,1\n", 6_000_000),
        ("wide.csv", f"qid,grade{''.join(f',f{k}' for k in range(700))}\n", f"%d,1{',1,' * 350}\n", 60_000),
    ],
    ids=["letor", "csv", "wide"],
)
def test_short_lines_and_cells_stay_under_the_bound_too(tmp_path, name, head, line, n):
    small, text = tmp_path / f"small-{name}", tmp_path / name
    small.write_text(head + line % 7)
    peak(small, tmp_path / "warm")
    text.write_text(head + "".join(line % (k % 1000) for k in range(n)))
    assert peak(text, tmp_path / "out", 64) < 512 * 10**6


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="VmHWM is Linux's")
def test_long_cells_stay_under_the_bound_too(tmp_path):
    small, text = tmp_path / "small.csv", tmp_path / "in.csv"
    head, line = "qid,doc_id,grade,f1\n", "{k},{0}{k},1,1\n"
    small.write_text(head + line.format("x", k=1))
    peak(small, tmp_path / "warm")
    with text.open("w", encoding="ascii") as file:
        file.write(head)
        file.writelines(line.format("x" * 1000, k=k) for k in range(300_000))
    assert peak(text, tmp_path / "out", 64) < 512 * 10**6
