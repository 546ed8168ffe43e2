"""``rankmill models init``: makes a registry once, says what it is and refuses where none can be kept."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rankmill.foundation.errors import InputError, IntegrityError, InvalidName
from rankmill.foundation.storage.disk import Disk
from rankmill.registry.cli import app
from rankmill.registry.model_registry import Registry
from tests.refusals import refused
from tests.registry.conftest import QuickDisk
from tests.registry.test_publishing import NoLinks


def init(root: Path, *words: str) -> str:
    result = CliRunner().invoke(app, ["init", "--registry", str(root), *words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


def told(root: Path, *words: str) -> dict[str, object]:
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
    expected = {"registry": str(root), "made": True, "format": 4, "protected": protected}
    assert told(root, *words) == expected | {"publishes_by": "link", "flushes_folders": True}
    before = (root / "FORMAT.json").stat()
    assert told(root, *words) == told(root) == told(root, *words) | {"made": False}
    assert (root / "FORMAT.json").stat() == before
    assert sorted(path.name for path in root.rglob("*")) == ["FORMAT.json", "ballast", "tmp"]
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


def test_where_there_are_no_hard_links_it_says_so(tmp_path: Path) -> None:
    for made in (True, False):
        done = Registry(tmp_path / "r", disk=NoLinks()).initialise()
        assert (done.made, done.publishes_by) == (made, "rename")
        assert "renames that never replace" in done.render()
        assert list((tmp_path / "r" / "tmp").iterdir()) == []


class Careless(QuickDisk):
    """Replaces what is there, and says that all is well."""

    def link(self, source: Path, target: Path) -> None:
        target.unlink(missing_ok=True)
        super().link(source, target)


class CarelessRename(NoLinks):
    def rename_new(self, source: Path, target: Path) -> None:
        source.replace(target)


@pytest.mark.parametrize("disk", [Careless(), CarelessRename()], ids=["link", "rename"])
def test_a_file_system_that_replaces_files_is_found_out(tmp_path: Path, disk: Disk) -> None:
    with refused(OSError, "two files", "same name"):
        Registry(tmp_path / "r", disk=disk).initialise()
    assert list(tmp_path.iterdir()) == []


class NoFolderFsync(QuickDisk):
    """As on SMB."""

    def __init__(self, number: int) -> None:
        self.number = number

    def fsync_folder(self, folder: Path) -> None:
        raise OSError(self.number, os.strerror(self.number), str(folder))


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EOPNOTSUPP])
def test_folders_that_cannot_be_flushed_are_told_of(tmp_path: Path, number: int) -> None:
    for _ in range(2):
        done = Registry(tmp_path / "r", disk=NoFolderFsync(number)).initialise()
        assert not done.flushes_folders
        assert "cannot be flushed" in done.render()


def test_a_folder_that_is_not_flushed_though_it_could_be_is_an_error(web: Registry) -> None:
    for write in (lambda r: r.initialise(), lambda r: r.promote("web", 1)):
        with pytest.raises(OSError) as caught:
            write(Registry(web.root, disk=NoFolderFsync(errno.EIO)))
        assert caught.value.errno == errno.EIO
