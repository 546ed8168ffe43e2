"""Workers that somebody else has started, with Dask's own commands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rankmill.foundation.cluster.workers import open_cluster
from rankmill.foundation.errors import ClusterUnavailable, InputError
from tests.clusters import UNPROFILED, dask, square
from tests.refusals import refused
from tests.waiting import until


@pytest.mark.slow
def test_a_scheduler_and_its_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankmill.foundation.cluster.workers._PATIENCE_SECONDS", 1.0)
    file = tmp_path / "scheduler.json"
    with dask("scheduler", "--port", "0", "--scheduler-file", str(file)) as scheduler:
        until(lambda: file.exists() and file.read_text(), scheduler)
        address = json.loads(file.read_text())["address"]

        def workers() -> int:
            try:
                with open_cluster(address) as cluster:
                    return cluster.size
            except ClusterUnavailable:
                return 0

        with refused(ClusterUnavailable, address, "no workers"), open_cluster(address):
            pass
        with dask("worker", address, "--nthreads", "2") as worker:
            until(workers, worker)
            with (
                open_cluster(address) as cluster,
                refused(InputError, "profiler", "DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED=False"),
            ):
                list(cluster.run(square, [1], tmp_path))
        until(lambda: not workers(), scheduler)
        with dask("worker", address, "--nthreads", "2", **UNPROFILED) as worker:
            until(workers, worker)
            with open_cluster(address) as cluster:
                assert {item: found[0] for item, found in cluster.run(square, range(5), tmp_path)} == {
                    number: number**2 for number in range(5)
                }
                results = cluster.run(square, range(100_000), tmp_path)
                next(results)
                scheduler.kill()
                with refused(ClusterUnavailable, address, "the same command"):
                    list(results)
