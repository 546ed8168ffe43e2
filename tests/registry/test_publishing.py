"""Files appear whole, once and under a name that was free, by hard links."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rankmill.foundation.errors import InputError, IntegrityError, InvalidName
from rankmill.registry.blob_store import Store
from rankmill.registry.cli import app
from rankmill.registry.model_registry import Registry
from tests.refusals import refused
from tests.registry.conftest import FACTS, QuickDisk

NO_LINKS = [errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS]


def error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


class NoLinks(QuickDisk):
    """A file system without hard links."""

    def __init__(self, number: int = errno.EPERM) -> None:
        self.number = number

    def link(self, source: Path, target: Path) -> None:
        raise error(self.number)


class LosesTheAnswer(QuickDisk):
    """Does what it is asked, and says something else."""

    def __init__(self, answer: int) -> None:
        self.answer = answer

    def link(self, source: Path, target: Path) -> None:
        super().link(source, target)
        raise error(self.answer)


@pytest.mark.parametrize("number", NO_LINKS)
def test_without_hard_links_the_reason_is_said_and_nothing_left(tmp_path: Path, number: int) -> None:
    for root in (tmp_path / "a" / "b", tmp_path):
        with refused(OSError, "hard links", "NFS") as caught:
            Store(root, NoLinks(number)).prepare()
        assert caught.value.errno == number
        assert "\n" not in str(caught.value)
        assert list(tmp_path.iterdir()) == []


def test_a_registry_that_was_moved_to_such_a_place_stays_as_it_is(
    web: Registry, tree: Callable[[Path], object]
) -> None:
    moved, before = Registry(web.root, disk=NoLinks()), {k: v[1] for k, v in tree(web.root).items()}
    for write in (lambda: moved.promote("web", 1), lambda: moved.register("web", b"4", manifest=FACTS)):
        with refused(OSError, "hard links"):
            write()
        assert {k: v[1] for k, v in tree(web.root).items() if v[1]} == {k: v for k, v in before.items() if v}
    assert list((web.root / "tmp").iterdir()) == []
    assert moved.resolve("web", bare="production").number == 3


@pytest.mark.parametrize("answer", [errno.EIO, errno.EEXIST, errno.ESTALE, errno.ETIMEDOUT, errno.ENOENT])
def test_what_was_published_counts_whatever_the_answer(tmp_path: Path, answer: int) -> None:
    store = Store(tmp_path / "r", LosesTheAnswer(answer))
    store.prepare()
    assert store.storage.put_new(store.root / "one", b"first")
    assert not Store(tmp_path / "r").storage.put_new(store.root / "one", b"second")
    assert (store.root / "one").read_bytes() == b"first"
    assert list((store.root / "tmp").iterdir()) == []


class Fails(QuickDisk):
    """The first ``times`` links go wrong, and nothing is done."""

    def __init__(self, number: int, times: int) -> None:
        self.number, self.times = number, times

    def link(self, source: Path, target: Path) -> None:
        self.times -= 1
        if self.times >= 0:
            raise error(self.number)
        super().link(source, target)


def test_a_stale_handle_is_looked_up_again_once(web: Registry) -> None:
    assert Registry(web.root, disk=Fails(errno.ESTALE, 1)).promote("web", 1).number == 8
    with pytest.raises(OSError) as caught:
        Registry(web.root, disk=Fails(errno.ESTALE, 9)).promote("web", 2)
    assert caught.value.errno == errno.ESTALE
    assert len(web.log("web")) == 8


def test_another_file_system_below_the_root_is_named(web: Registry) -> None:
    with refused(OSError, "one file system") as caught:
        Registry(web.root, disk=Fails(errno.EXDEV, 1)).promote("web", 1)
    assert caught.value.filename == str(web.root / "models" / "web" / "log")


class SeenLate(QuickDisk):
    """The name is taken, and a reader that looks at once does not see by what (NFS)."""

    hidden = True

    def read(self, path: Path, limit: int = -1) -> bytes:
        if self.hidden:
            self.hidden = False
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return super().read(path, limit)


def test_a_name_that_is_taken_but_not_seen_yet_is_asked_for_again(web: Registry) -> None:
    store = Store(web.root, SeenLate())
    Store(web.root).storage.put_new(web.root / "one", b"first")
    assert not store.storage.put_new(web.root / "one", b"second")
    store.storage.disk.hidden = True
    assert store.storage.put_new(web.root / "one", b"first")


class BackedUp(QuickDisk):
    """Somebody gives all files a second name, as `cp --link` does, and then the answer is an error."""

    def __init__(self, number: int, backup: Path) -> None:
        self.number, self.backup = number, backup

    def link(self, source: Path, target: Path) -> None:
        self.backup.unlink(missing_ok=True)
        os.link(source, self.backup)
        raise error(self.number)


@pytest.mark.parametrize("number", [errno.EEXIST, errno.EIO])
def test_a_second_name_that_somebody_else_has_made_is_no_success(web: Registry, tmp_path: Path, number: int) -> None:
    store = Store(web.root, BackedUp(number, tmp_path / "backup"))
    with refused(OSError, "unknown", "written"):
        store.storage.put_new(web.root / "one", b"1")
    assert not (web.root / "one").exists()
    (web.root / "one").write_bytes(b"2")
    assert not store.storage.put_new(web.root / "one", b"1")
    assert list((web.root / "tmp").iterdir()) == []


# ---- ``rankmill models init``: makes a registry once, says what it is and refuses where none can be kept


def init(root: Path, *words: str) -> str:
    result = CliRunner().invoke(app, ["init", "--registry", str(root), *words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


def reported(root: Path, *words: str) -> dict[str, object]:
    answer: dict[str, object] = json.loads(init(root, *words, "--json"))
    return answer


@pytest.mark.parametrize(
    ("words", "protected"),
    [
        ([], ["production"]),
        (["--open"], []),
        (["--protect", "staging", "--protect", "eu"], ["eu", "production", "staging"]),
        (["--open", "--protect", "staging"], ["staging"]),
        (["--protect", "production"], ["production"]),
    ],
)
def test_it_makes_a_registry_once(
    tmp_path: Path, words: list[str], protected: list[str], tree: Callable[[Path], object]
) -> None:
    root = tmp_path / "a" / "b"
    expected = {"registry": str(root), "made": True, "protected": protected}
    assert reported(root, *words) == expected
    before = (root / "FORMAT.json").stat()
    assert reported(root, *words) == reported(root) == reported(root, *words) | {"made": False}
    assert (root / "FORMAT.json").stat() == before
    assert sorted(path.name for path in root.rglob("*")) == ["FORMAT.json", "tmp"]
    assert Registry(root).names() == []


def test_other_rules_than_those_that_stand_are_refused(tmp_path: Path) -> None:
    init(tmp_path / "r", "--open")
    before = (tmp_path / "r" / "FORMAT.json").read_bytes()
    with refused(InputError, "already", "protection of nothing"):
        init(tmp_path / "r", "--protect", "staging")
    assert (tmp_path / "r" / "FORMAT.json").read_bytes() == before


def test_what_cannot_be_a_registry_is_refused_and_left_alone(tmp_path: Path, tree: Callable[[Path], object]) -> None:
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "thesis.tex").touch()
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "FORMAT.json").write_text("{}")
    (tmp_path / "file").touch()
    before = tree(tmp_path)
    with refused(InputError, "thesis.tex"):
        init(tmp_path / "foreign")
    with pytest.raises(IntegrityError, match=r"FORMAT\.json"):
        init(tmp_path / "damaged")
    with pytest.raises(InvalidName, match="latest"):
        init(tmp_path / "new", "--protect", "latest")
    with pytest.raises(NotADirectoryError):
        init(tmp_path / "file" / "r")
    assert tree(tmp_path) == before


class NoFolderFsync(QuickDisk):
    """As on SMB, or on a disk that fails."""

    def __init__(self, number: int) -> None:
        self.number = number

    def fsync_folder(self, folder: Path) -> None:
        raise OSError(self.number, os.strerror(self.number), str(folder))


@pytest.mark.parametrize("number", [errno.EIO, errno.EINVAL])
def test_a_folder_that_is_not_flushed_is_an_error(web: Registry, number: int) -> None:
    for write in (lambda r: r.initialise(), lambda r: r.promote("web", 1)):
        with refused(OSError, "power failure") as caught:
            write(Registry(web.root, disk=NoFolderFsync(number)))
        assert caught.value.errno == number
