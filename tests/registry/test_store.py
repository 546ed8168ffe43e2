from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from rankmill.foundation.errors import IntegrityError, InvalidName
from rankmill.foundation.storage.disk import Disk
from rankmill.registry.blob_store import Blobs, Store
from tests.refusals import refused
from tests.registry.conftest import QuickDisk


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(tmp_path / "a" / "b")
    store.prepare()
    return store


def blobs_of(store: Store) -> Blobs:
    return Blobs(store.storage, store.root, "web")


def test_a_blob_is_read_only_and_named_by_its_digest(store: Store) -> None:
    sha256 = blobs_of(store).put(b"bytes")
    path = store.root / "blobs" / "web" / sha256
    assert path == blobs_of(store).path(sha256)
    assert path.stat().st_mode & 0o222 == 0
    assert blobs_of(store).read(sha256) == b"bytes"
    assert list((store.root / "tmp").iterdir()) == []


def test_a_large_blob_survives_short_writes(tmp_path: Path) -> None:
    class Slow(Disk):
        def write(self, descriptor: int, data: memoryview) -> int:
            return os.write(descriptor, data[:1000])

    store = Store(tmp_path / "r", Slow())
    store.prepare()
    blobs = blobs_of(store)
    assert blobs.read(blobs.put(b"0123456789" * 777)) == b"0123456789" * 777


def test_a_damaged_or_missing_blob_is_neither_served_nor_built_upon(store: Store) -> None:
    blobs = blobs_of(store)
    sha256 = blobs.put(b"bytes")
    for flaw in (b"", b"byteS", b"bytes and more"):
        (store.root / "blobs/web" / sha256).unlink()
        (store.root / "blobs/web" / sha256).write_bytes(flaw)
        for use in (lambda: blobs.read(sha256), lambda: blobs.put(b"bytes")):
            with refused(IntegrityError, sha256):
                use()
    with refused(IntegrityError, "missing"):
        blobs.read("0" * 64)


def rewrite_format(store: Store, text: str) -> Store:
    (store.root / "FORMAT.json").unlink()
    (store.root / "FORMAT.json").write_text(text)
    return Store(store.root)


def test_a_registry_says_once_what_it_protects(tmp_path: Path) -> None:
    for name, protected in {"default": ("production",), "open": (), "both": ("a", "b")}.items():
        store = Store(tmp_path / name)
        assert store.protected == ()
        store.prepare() if name == "default" else store.prepare(reversed([*protected, *protected]))
        assert store.protected == Store(tmp_path / name).protected == protected
        Store(tmp_path / name).prepare(["other"])
        assert Store(tmp_path / name).protected == protected
    assert (
        tmp_path / "default" / "FORMAT.json"
    ).read_bytes() == b'{"format":5,"kind":"disk","protected":["production"]}\n'
    with pytest.raises(InvalidName):
        Store(tmp_path / "none").prepare(["latest"])
    assert not (tmp_path / "none").exists()


def test_another_format_is_refused_with_what_reads_it(store: Store) -> None:
    for number in (0, 1, 4):
        old = '{"format":1}\n' if number == 1 else f'{{"format":{number},"protected":["production"]}}\n'
        for use in (Store.exists, Store.prepare):
            with refused(
                IntegrityError, "FORMAT.json", f"format {number}", "reads format 5", "rankmill 0.1.0", "new one"
            ):
                use(rewrite_format(store, old))
        assert (store.root / "FORMAT.json").read_text() == old
    with refused(IntegrityError, "FORMAT.json", "format 99", "reads format 5", "after 0.1.0"):
        rewrite_format(store, '{"format":99,"rules":[]}\n').exists()


def test_a_damaged_format_file_is_reported(store: Store) -> None:
    for text in (
        *("", "{}", "[1]", '{"format":true}', '{"format":1', "\x00", '{"format":5}', '{"format":5}\n'),
        '{"format":5,"kind":"disk","protected":[],"sealed":true}\n',
        '{"format":5,"kind":"tape","protected":[]}\n',
        *(f'{{"format":5,"kind":"disk","protected":{x}}}\n' for x in ("null", "5", '"ab"', "[5]", '["latest"]')),
    ):
        with refused(IntegrityError, "FORMAT.json"):
            rewrite_format(store, text).prepare()


def test_a_lost_format_file_is_no_empty_registry(store: Store) -> None:
    (store.root / "models" / "web" / "log").mkdir(parents=True)
    (store.root / "FORMAT.json").unlink()
    with pytest.raises(IntegrityError, match="missing"):
        Store(store.root).exists()


def test_a_fresh_volume_is_empty_enough(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    (tmp_path / ".gitkeep").touch()
    Store(tmp_path).prepare()
    assert Store(tmp_path).exists()


def test_a_copy_without_the_empty_folder_still_takes_writes(store: Store) -> None:
    (store.root / "tmp").rmdir()
    assert blobs_of(store).read(blobs_of(store).put(b"x")) == b"x"


FAILURES = {
    "create": ("tmp", "Input/output error; nothing was changed"),
    "write": ("tmp", "Input/output error; nothing was changed"),
    "fsync": ("tmp", "Input/output error; nothing was changed"),
    "link": (
        "",
        "Input/output error; it is unknown whether the change was written: see rankmill models log NAME, and repeat the command if it is not there",
    ),
    "fsync_folder": ("", "Input/output error; the change may be lost in a power failure"),
    "read": ("FORMAT.json", "Input/output error"),
}


@pytest.mark.parametrize("call", FAILURES)
def test_a_failure_is_reported_with_its_place_and_what_it_means(
    store: Store, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(Disk, call, fail)
    with pytest.raises(OSError) as caught:
        store.read(store.root / "FORMAT.json") if call == "read" else store.storage.put_new(store.root / "one", b"1")
    name, text = FAILURES[call]
    assert (caught.value.filename, caught.value.strerror) == (str(store.root / name), text)


@pytest.mark.parametrize("call", ["read", "names"])
def test_a_stale_handle_is_asked_for_again_once(store: Store, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    times, method = 0, getattr(Disk, call)

    def stale(disk: Disk, *arguments: object) -> object:
        nonlocal times
        times -= 1
        if times >= 0:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return method(disk, *arguments)

    monkeypatch.setattr(Disk, call, stale)
    look = (
        (lambda: store.read(store.root / "FORMAT.json"))
        if call == "read"
        else (lambda: store.storage.names(store.root))
    )
    whole, times = look(), 1
    assert look() == whole
    times = 2
    with pytest.raises(OSError) as caught:
        look()
    assert caught.value.errno == errno.ESTALE


# ---- A file is written once and flushed once before it is named, and what writers leave behind goes, but


HOUR = 3600.0


def error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


class Recorder(QuickDisk):
    """Remembers which file each call was about; the first ``times`` calls of ``failing`` go wrong."""

    def __init__(self, failing: str = "", number: int = errno.EIO, times: int = 1) -> None:
        self.failing, self.number, self.times = failing, number, times
        self.calls: list[tuple[str, Path]] = []
        self.files: dict[int, Path] = {}

    def _note(self, call: str, path: Path) -> None:
        self.calls.append((call, path))
        if call == self.failing and self.times:
            self.times -= 1
            raise error(self.number)

    def create(self, path: Path, mode: int = 0o444) -> int:
        descriptor = super().create(path, mode)
        self.files[descriptor] = path
        self._note("create", path)
        return descriptor

    def allocate(self, descriptor: int, size: int) -> None:
        self._note("allocate", self.files[descriptor])
        super().allocate(descriptor, size)

    def write(self, descriptor: int, data: memoryview) -> int:
        self._note("write", self.files[descriptor])
        return super().write(descriptor, data)

    def fsync(self, descriptor: int) -> None:
        self._note("fsync", self.files[descriptor])

    def close(self, descriptor: int) -> None:
        super().close(descriptor)
        self._note("close", self.files[descriptor])

    def reported(self, call: str) -> list[Path]:
        return [path for name, path in self.calls if name == call]


def written(tmp_path: Path, disk: QuickDisk, data: bytes = b"bytes") -> Path:
    """A file that is published in a registry."""
    path = tmp_path / "one"
    assert Store(tmp_path, disk).storage.put_new(path, data)
    return path


@pytest.mark.parametrize(
    ("call", "number"),
    [("write", errno.EIO), ("fsync", errno.EIO), ("close", errno.EIO), ("allocate", errno.ENOSPC)],
)
def test_a_file_that_could_not_be_written_or_flushed_is_given_up(tmp_path: Path, call: str, number: int) -> None:
    disk = Recorder(call, number)
    with refused(OSError, "nothing was changed", os.strerror(number)):
        written(tmp_path, disk)
    assert len(disk.reported("create")) == 1
    assert call != "allocate" or "write" not in dict(disk.calls)  # a full disk shows first
    assert list((tmp_path / "tmp").iterdir()) == []
    assert not (tmp_path / "one").exists()
    assert written(tmp_path, disk).read_bytes() == b"bytes"


def test_a_file_system_that_allocates_nothing_is_written_to_all_the_same(tmp_path: Path) -> None:
    for number in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
        path = written(tmp_path, Recorder("allocate", number), bytes(100_000))
        assert path.read_bytes() == bytes(100_000)
        assert path.stat().st_mode & 0o777 == 0o444
        path.unlink()


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o750), (0o002, 0o770), (0o077, 0o700)])
def test_those_who_may_not_write_may_not_look_at_what_is_being_written(tmp_path: Path, umask: int, mode: int) -> None:
    old = os.umask(umask)
    try:
        written(tmp_path, QuickDisk())
    finally:
        os.umask(old)
    assert (tmp_path / "tmp").stat().st_mode & 0o777 == mode


def test_a_name_that_is_taken_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("precious")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    for name in ("target", "link"):
        with pytest.raises(FileExistsError):
            QuickDisk().create(tmp_path / name)
    assert (tmp_path / "target").read_text() == "precious"


def test_descriptors_are_not_inherited(tmp_path: Path) -> None:
    descriptor = QuickDisk().create(tmp_path / "new")
    assert not os.get_inheritable(descriptor)
    os.close(descriptor)
