"""Time listing, resolving and promoting a model with many versions, in one process.

The log has the same content as if written by the registry: a registration for each version, a promotion for every
tenth.  The time of fsync is measured separately, since it depends on the disk and not on the registry.

    python benchmarks/versions.py --versions 10000
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from rankmill.foundation.storage.disk import Disk
from rankmill.registry.blob_store import Store
from rankmill.registry.commit_log import CommitLog
from rankmill.registry.model_registry import Registry
from rankmill.registry.model_state import GENESIS
from rankmill.registry.stored_records import Change, Entry, Move, Register

FACTS = {"features": ["f1"], "dataset_digest": None, "parameters": {}, "metrics": {"valid": {"ndcg@10": 0.5}}}


class TimedDisk(Disk):
    """Measures the time spent waiting for stable storage."""

    waited = 0.0
    calls = 0

    def fsync(self, descriptor: int) -> None:
        start = time.perf_counter()
        super().fsync(descriptor)
        self._add(start)

    def fsync_folder(self, folder: Path) -> None:
        start = time.perf_counter()
        super().fsync_folder(folder)
        self._add(start)

    def _add(self, start: float) -> None:
        self.waited += time.perf_counter() - start
        self.calls += 1


def fill(root: Path, versions: int, model_bytes: int) -> None:
    """Write the log of ``versions`` versions; only the last two have blobs, the others are never read."""
    registry = Registry(root)
    registry.prepare(protected=())
    registry.register("web", bytes(model_bytes), manifest=FACTS)
    log = CommitLog(Store(root), "web")
    row = registry.state("web").versions[1]
    prev, number = registry.state("web").digest, 1
    changes: list[Change] = []
    target = None
    for version in range(2, versions + 1):
        changes.append(
            Register(op="register", version=version, model=row.model, size=row.size, manifest=row.manifest)
            if version > versions - 2
            else Register(
                op="register", version=version, model=f"{version:064x}", size=row.size, manifest=f"{version + 1:064x}"
            )
        )
        if version % 10 == 0:
            changes.append(Move(op="promote", alias="production", version=version, previous=target))
            target = version
    for change in changes:
        number += 1
        entry = Entry(
            number=number,
            prev=prev,
            txid=f"{number:032x}",
            change=change,
            time="2026-01-02T03:04:05.678Z",
            actor="operator",
            host="scheduler-7",
            reason="the run of the night",
        )
        log.path(number).write_bytes(entry.to_bytes())
        prev = entry.digest
    assert prev != GENESIS


def spent(work: Callable[[], object], disk: TimedDisk, repeats: int) -> str:
    """Return the median and maximum milliseconds of several calls, and the time spent waiting for the disk.

    The milliseconds exclude the waiting.
    """
    own, waited = [], []
    for _ in range(repeats):
        before, start = disk.waited, time.perf_counter()
        work()
        waited.append(disk.waited - before)
        own.append(time.perf_counter() - start - waited[-1])
    text = f"{statistics.median(own) * 1e3:8.1f} ms (worst {max(own) * 1e3:.1f})"
    return text + (f", and {statistics.median(waited) * 1e3:.1f} ms in fsync" if any(waited) else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--versions", type=int, default=10_000)
    parser.add_argument("--model-bytes", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=21)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        root, disk = Path(folder) / "registry", TimedDisk()
        fill(root, options.versions, options.model_bytes)

        def opened() -> Registry:
            return Registry(root, disk=disk)

        last, turn = options.versions, iter(range(10**6))
        start = time.perf_counter()
        opened().state("web")
        print(f"fold of the whole log, once    {(time.perf_counter() - start) * 1e3:8.1f} ms")
        start = time.perf_counter()
        opened().promote("web", last - 1)
        print(f"first promotion, no checkpoint {(time.perf_counter() - start) * 1e3:8.1f} ms")
        print(f"list all versions              {spent(lambda: opened().versions('web'), disk, options.repeats)}")
        print(
            f"resolve web@production         "
            f"{spent(lambda: opened().resolve('web@production', bare='latest'), disk, options.repeats)}"
        )
        print(
            f"promote                        "
            f"{spent(lambda: opened().promote('web', last - next(turn) % 2), disk, options.repeats)}"
        )
        print(f"roll back                      {spent(lambda: opened().rollback('web'), disk, options.repeats)}")


if __name__ == "__main__":
    main()
