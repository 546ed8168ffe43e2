"""Re-ranking and ingest from a bucket on loopback against the local disk: seconds, peak memory, and the same bytes.

``python -m benchmarks.bucket --gb 1 --work FOLDER`` generates candidates (136 float32 features, files of about 128 MB)
and a forest of 500 trees, starts SeaweedFS on loopback and uploads them.  Each line is a separate process.  One reads
from the disk, two from the bucket, without and with a filled cache.  For the last, the server is killed and started
again in the middle.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.rerank import FEATURES, write_candidates, write_model
from rankmill.foundation.storage.bucket import open_bucket
from rankmill.foundation.storage.location import ObjectUrl
from tests.cloud import servers

FILE_BYTES = 128_000_000
BUCKET = ObjectUrl("s3", servers.BUCKET)


class Store:
    """SeaweedFS in a folder, which can be killed and started again."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._port = folder, servers.free_port()
        folder.mkdir()
        command, _ = servers.COMMANDS["seaweedfs"](folder, self._port)
        larger = {"-master.volumeSizeLimitMB=64": "-master.volumeSizeLimitMB=1024", "-volume.max=64": "-volume.max=64"}
        self._command = [str(servers.program("weed")), *(larger.get(word, word) for word in command[1:])]
        os.environ |= servers.s3_environment(self._port)

    def start(self) -> None:
        """Start it, and wait until it answers."""
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command, cwd=self._folder, stdout=log, stderr=log, start_new_session=True
            )
        while True:
            try:
                servers.make_bucket("seaweedfs", self._port, servers.BUCKET)
            except OSError:
                time.sleep(0.2)
            else:
                return

    def kill(self) -> None:
        """Kill it, as a power failure would."""
        os.killpg(self._process.pid, signal.SIGKILL)  # its own session, started above
        self._process.wait()


@contextmanager
def _running(folder: Path) -> Iterator[Store]:
    store = Store(folder)
    store.start()
    try:
        yield store
    finally:
        store.kill()


def _digest(folder: Path) -> str:
    found = hashlib.sha256()
    for path in sorted(folder.rglob("*.parquet")):
        found.update(path.relative_to(folder).as_posix().encode() + path.read_bytes())
    return found.hexdigest()[:12]


def _measure(name: str, words: list[str], out: Path, while_it_runs: Callable[[], None] | None = None) -> None:
    shutil.rmtree(out, ignore_errors=True)
    started = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "rankmill", *words, "-o", str(out)], stdout=subprocess.DEVNULL)
    helper = threading.Thread(target=while_it_runs or (lambda: None))
    helper.start()
    _, status, used = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    helper.join()
    peak = used.ru_maxrss * (1024 if sys.platform == "linux" else 1) / 1e6
    found = _digest(out) if process.returncode == 0 else f"exit {process.returncode}"
    sys.stdout.write(f"| {name} | {seconds:.1f} | {used.ru_utime + used.ru_stime:.1f} | {peak:,.0f} | {found} |\n")
    sys.stdout.flush()


def main() -> None:
    """Run every way, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gb", type=float, default=1.0)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--memory", default="1GB")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    source, model, out = options.work / "candidates", options.work / "model.rankmill", options.work / "out"
    rows = int(FILE_BYTES / (4 * FEATURES))
    n_files = max(1, round(options.gb * 1e9 / FILE_BYTES))
    source.mkdir(exist_ok=True)
    for number in range(n_files):
        path = source / f"{number:04}.parquet"
        if not path.exists():
            write_candidates(path, rows, shuffled=False, start=number * rows)
    if not model.exists():
        write_model(model)
    size = sum(path.stat().st_size for path in source.iterdir())
    cache = options.work / "cache"
    shutil.rmtree(options.work / "store", ignore_errors=True)
    with _running(options.work / "store") as store:
        client = open_bucket(BUCKET)
        for path in sorted(source.iterdir()):
            client.put_file(BUCKET / "candidates" / path.name, path)
        url = str(BUCKET / "candidates")
        ranking = ["--model", str(model), "--top-k", "100", "--memory", options.memory]
        first = str(next(source.iterdir()))
        shutil.rmtree(out, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "rankmill", "rerank", first, *ranking, "-o", str(out)], check=True)
        sys.stdout.write(
            f"\n{rows * n_files:,} rows, {n_files} files, {size / 1e9:.1f} GB, --memory {options.memory}\n\n"
        )
        sys.stdout.write("| what | s | CPU s | peak MB | bytes |\n|---|---|---|---|---|\n")

        def fail() -> None:
            while not any((cache / "objects").glob("*/*")):  # until the first part is there
                time.sleep(0.01)
            store.kill()
            time.sleep(5)
            store.start()

        def from_disk() -> None:
            _measure("rerank, disk", ["rerank", str(source), *ranking], out)

        def from_bucket(name: str, then: Callable[[], None] | None = None, *, fresh: bool) -> None:
            if fresh:
                shutil.rmtree(cache, ignore_errors=True)
            _measure(f"rerank, {name}", ["rerank", url, *ranking, "--cache", str(cache)], out, then)

        from_disk()
        from_bucket("bucket", fresh=True)
        from_bucket("bucket, filled cache", fresh=False)
        from_bucket("bucket, server killed while it is read, and back after 5 s", fail, fresh=True)
        from_disk()
        words = ["rerank", url, *ranking, "--cache", str(cache), "-o", str(BUCKET / "ranked")]
        process = subprocess.Popen([sys.executable, "-m", "rankmill", *words])
        while process.poll() is None and not any((cache / "out").rglob("journal.json")):  # until its first checkpoint
            time.sleep(0.01)
        process.kill()
        process.wait()
        started = time.perf_counter()
        subprocess.run([sys.executable, "-m", "rankmill", *words], check=True)
        lists = options.work / "lists"
        lists.mkdir(exist_ok=True)
        for each in client.below(BUCKET / "ranked"):
            (lists / each.url.name).write_bytes(client.get(each.url))
        seconds = time.perf_counter() - started
        sys.stdout.write(
            f"| rerank to the bucket, killed at its first checkpoint, the rest | {seconds:.1f} | | | {_digest(lists)} "
            "|\n"
        )
        shutil.rmtree(cache, ignore_errors=True)
        ingest = ["--memory", options.memory]
        _measure("ingest, disk", ["data", "ingest", str(source), *ingest], out)
        _measure("ingest, bucket", ["data", "ingest", f"{url}/*.parquet", *ingest, "--cache", str(cache)], out)


if __name__ == "__main__":
    main()
