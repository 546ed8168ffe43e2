"""``rankmill doctor``: what it says of this machine, and that it leaves nothing behind."""

import errno
import json
import socket

import numpy as np

from rankmill import Registry, __version__, doctor
from rankmill.foundation.storage.disk import Disk
from tests.refusals import only_line


def tree(folder):
    return {(str(path), path.lstat().st_mtime_ns if path.is_file() else 0) for path in folder.rglob("*")}


def test_it_says_everything_in_text_and_in_json(tmp_path, monkeypatch, typed):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setenv("NUMBA_CPU_NAME", "generic")
    Registry(tmp_path / "models").prepare()
    before = tree(tmp_path)
    text = " ".join(typed.out(f"doctor --registry {tmp_path}/models").split())
    found = typed.json(f"doctor --registry {tmp_path}/models")
    assert tree(tmp_path) == before
    assert found["rankmill"].startswith(f"{__version__}, in ")
    assert f"numpy {np.__version__}" in found["libraries"]
    assert found["settings"] == "NUMBA_CPU_NAME=generic"
    assert found["registry"].startswith("~/models: ")
    for words in found.values():
        assert " ".join(words.split()) in text
    for private in (socket.gethostname(), str(tmp_path)):
        assert private not in text + json.dumps(found)


def test_a_registry_that_is_not_made_yet_is_not_made(tmp_path):
    assert doctor.facts_of(tmp_path / "a" / "b")["problem"] == ""
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_cannot_keep_a_registry_is_an_error_after_the_report(tmp_path, monkeypatch, typed):
    def refuse(*_):
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(Disk, "link", refuse)
    out, err = typed(f"doctor --registry {tmp_path} --json", code=74)
    assert "cannot hold a registry: " in json.loads(out)["registry"]
    assert "cannot hold a registry: " in only_line(err)
    assert list(tmp_path.iterdir()) == []


def test_the_limit_of_a_container_is_read_in_both_versions(tmp_path, monkeypatch):
    for number, (name, text, limit) in enumerate(
        (
            ("memory.max", "max\n", "no container limit"),
            ("memory.max", "50000000\n", "container limit 50"),
            ("memory.limit_in_bytes", "9223372036854771712\n", "no container limit"),
            ("memory.limit_in_bytes", "50000000\n", "container limit 50"),
            ("other", "", "no container limit"),
        )
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / name).write_text(text)
        files = (str(folder / "memory.max"), str(folder / "memory.limit_in_bytes"))
        monkeypatch.setattr(doctor, "LIMITS", files)
        assert limit in doctor.facts_of(tmp_path)["memory"], name
