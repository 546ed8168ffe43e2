"""Files of rows are read while they are fetched: the same bytes whichever part arrives when, and errors reach the reader."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rankmill.foundation.errors import ConflictError
from rankmill.foundation.storage import fetching, local_copies
from rankmill.foundation.storage.arriving import open_to_read, readable
from rankmill.foundation.storage.bucket import StoreError
from rankmill.foundation.storage.local_copies import LocalCopies
from rankmill.foundation.storage.publish import digest_of, file_digest
from tests.foundation.test_local_copies import ROOT, Bucket
from tests.refusals import refused

DATA = bytes(range(50))


class SlowBucket(Bucket):
    """Gives each part when the test lets it."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[int] = []
        self._allowed: set[int] = set()
        self._changed = threading.Condition()

    def allow(self, *starts: int) -> None:
        with self._changed:
            self._allowed.update(starts)
            self._changed.notify_all()

    def part(self, url: Any, start: int, size: int) -> tuple[bytes, str]:
        self.asked.append(start)
        with self._changed:
            assert self._changed.wait_for(lambda: start in self._allowed, timeout=60)
        return super().part(url, start, size)


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> SlowBucket:
    made = SlowBucket()
    made.put(ROOT / "rows.txt", DATA)
    monkeypatch.setattr(local_copies, "open_bucket", lambda url: made)
    monkeypatch.setattr(local_copies, "LATER_AT_A_TIME", 2)
    monkeypatch.setattr(fetching, "PART", 10)
    monkeypatch.setattr(fetching, "PAUSES", ())
    return made


@pytest.fixture
def copies(bucket: SlowBucket, tmp_path: Path) -> Iterator[LocalCopies]:
    made = LocalCopies(tmp_path / "cache")
    yield made
    bucket.allow(*range(50))
    made.close()


def test_a_read_waits_for_its_bytes_only(bucket: SlowBucket, copies: LocalCopies) -> None:
    place = copies.read(ROOT / "rows.txt", later=True)
    assert place.stat().st_size == 50
    with open_to_read(place) as file:
        bucket.allow(0)
        assert file.read(7) == DATA[:7]
        bucket.allow(10)
        assert file.read(7) == DATA[7:14]
        reads: list[bytes | None] = []
        reader = threading.Thread(target=lambda: (file.seek(-5, 2), reads.append(file.read(100))))
        reader.start()
        bucket.allow(20)
        while 40 not in bucket.asked:  # it is fetched next: before 30, unless that was asked for already
            pass
        assert not reads
        bucket.allow(40)
        reader.join()
        assert reads == [DATA[45:]]
        bucket.allow(30)
        assert file_digest(place) == digest_of(DATA)
    assert isinstance(readable(place), (str, type(file)))


def test_what_is_complete_is_in_the_cache_under_its_name(
    bucket: SlowBucket, copies: LocalCopies, tmp_path: Path
) -> None:
    place = copies.read(ROOT / "rows.txt", later=True)
    bucket.allow(*range(50))
    while not isinstance(readable(place), str):
        assert place.stat().st_size == 50  # also while it gets its name
    assert place.read_bytes() == DATA
    copies.close()
    (kept,) = [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert kept.read_bytes() == DATA
    bucket.asked.clear()
    again = LocalCopies(tmp_path / "cache")
    assert again.read(ROOT / "rows.txt", later=True).read_bytes() == DATA
    again.close()
    assert not bucket.asked


def test_what_goes_wrong_reaches_the_reader(bucket: SlowBucket, copies: LocalCopies, tmp_path: Path) -> None:
    bucket.allow(0, 10)
    place = copies.read(ROOT / "rows.txt", later=True)
    with open_to_read(place) as file:
        assert file.read(20) == DATA[:20]
        bucket.put(ROOT / "rows.txt", b"another")
        bucket.allow(20, 30)
        with refused(ConflictError, "s3://b/rows.txt", "replaced"):
            file.read(5)
    copies.close()
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


def test_fetching_stops_when_nobody_reads_any_more(
    bucket: SlowBucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "PAUSES", (1000,))
    copies = LocalCopies(tmp_path / "cache")

    def fail(number: int) -> None:
        raise StoreError(ROOT, "a made error", errno.EIO)

    bucket.before_part = fail
    bucket.allow(0, 10)
    copies.read(ROOT / "rows.txt", later=True)
    copies.close()  # does not wait for the next try
    assert set(bucket.asked) <= {0, 10}
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


def test_companions_and_hidden_files_are_there_at_once(bucket: SlowBucket, copies: LocalCopies) -> None:
    bucket.allow(0, 10)
    bucket.fill("in/a.txt", "in/a.txt.query", "in/_names")
    copies.read(ROOT / "in", later=True)
    for name in ("a.txt.query", "_names"):
        assert readable(copies.place(ROOT / "in" / name)) == str(copies.place(ROOT / "in" / name))
