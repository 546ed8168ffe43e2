"""Replacing a folder of ranked lists: at every moment, after every failure, one of the two is there and whole."""

import fcntl
import json
from pathlib import Path

import pytest

from rankmill.foundation.errors import InputError
from rankmill.foundation.storage import disk, publish
from rankmill.foundation.storage.disk import exchange
from rankmill.foundation.storage.staging import staging_folder
from rankmill.scorer.rerank import publish as replacing
from rankmill.scorer.rerank.publish import replace_folder, restore_replaced
from rankmill.scorer.rerank.rerank import rerank
from tests.refusals import refused
from tests.scorer.forests import random_forest
from tests.scorer.rerank.candidate_files import random_candidates, ranked, read_ranked, write_letor


def ranked_folder(path, text):
    path.mkdir()
    (path / "_manifest.json").write_text(json.dumps({"kind": "ranked"}))
    (path / "rows").write_text(text)
    return path


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def replace(target, text="new"):
    with staging_folder(target) as staging:
        replace_folder(ranked_folder(staging / "out", text), target, staging)


@pytest.fixture(params=["exchange", "two renames"])
def way(request, monkeypatch, tmp_path):
    if request.param == "two renames":
        monkeypatch.setattr(replacing, "exchange", lambda *_: False)
    else:
        (tmp_path / "a").mkdir()
        (tmp_path / "b").mkdir()
        can = exchange(tmp_path / "a", tmp_path / "b")
        (tmp_path / "a").rmdir()
        (tmp_path / "b").rmdir()
        if not can:
            pytest.skip("this file system cannot exchange names")
    return request.param


@pytest.mark.usefixtures("way")
def test_the_new_folder_is_there_and_nothing_else(tmp_path):
    ranked_folder(tmp_path / "out", "old")
    replace(tmp_path / "out")
    assert (tmp_path / "out" / "rows").read_text() == "new"
    assert names(tmp_path) == ["out"]


def test_all_is_synced_before_anything_moves(tmp_path, way, monkeypatch):
    ranked_folder(tmp_path / "out", "old")
    seen = []
    real = disk.flush_path

    def flush_path(path, *flags):
        seen.append((path.name, (tmp_path / "out" / "rows").read_text()))
        real(path, *flags)

    for module in (disk, publish):
        monkeypatch.setattr(module, "flush_path", flush_path)
    replace(tmp_path / "out")
    before = {name for name, rows in seen if rows == "old"}
    assert {"rows", "_manifest.json", "out"} <= before
    assert seen[-1] == (tmp_path.name, "new")
    assert way


def test_names_are_exchanged_in_one_step(tmp_path, way, monkeypatch):
    if way != "exchange":
        pytest.skip("only where names are exchanged")
    ranked_folder(tmp_path / "out", "old")
    before = (tmp_path / "out").stat().st_ino
    real = Path.rename

    def rename(self, to):
        assert self != tmp_path / "out", "OUT is never without a folder"
        return real(self, to)

    monkeypatch.setattr(Path, "rename", rename)
    replace(tmp_path / "out")
    assert (tmp_path / "out").stat().st_ino != before


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), KeyboardInterrupt()])
def test_a_failure_between_two_renames_brings_the_old_folder_back(tmp_path, monkeypatch, error):
    monkeypatch.setattr(replacing, "exchange", lambda *_: False)
    ranked_folder(tmp_path / "out", "old")
    real = Path.rename

    def rename(self, to):
        if self.name == "ready":
            raise error
        return real(self, to)

    monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises(type(error)):
        replace(tmp_path / "out")
    assert (tmp_path / "out" / "rows").read_text() == "old"
    assert names(tmp_path) == ["out"]


def test_a_run_killed_between_two_renames_loses_nothing(tmp_path):
    """What it leaves: no OUT, the old folder aside, a staging folder that nobody holds."""
    forest = random_forest(5, n_trees=10, max_leaves=12)
    rows = random_candidates(1)
    source = write_letor(tmp_path / "c.txt", rows)
    out = tmp_path / "out"
    for overwrite in (False, True):
        rerank(source, forest, out, overwrite=overwrite)
        out.rename(tmp_path / ".out.0123456789ab.replaced")
        (tmp_path / ".out.0123456789ab.staging").mkdir()
        (tmp_path / ".out.0123456789ab.staging" / "lock").touch()
        with staging_folder(out):  # whichever sweeps first
            assert (tmp_path / ".out.0123456789ab.replaced").is_dir()
        with refused(InputError, "overwrite"):
            rerank(source, forest, out)
        assert read_ranked(out) == ranked(forest, rows)
    ranked_folder(tmp_path / ".out.0123456789ab.replaced", "older")
    rerank(source, forest, out, top_k=1, overwrite=True)
    assert read_ranked(out) == ranked(forest, rows, 1)
    assert names(tmp_path) == ["c.txt", "out"]


def test_what_belongs_to_others_is_left_alone(tmp_path):
    alive = tmp_path / ".out.0123456789ab.staging"
    alive.mkdir()
    ranked_folder(tmp_path / ".out.0123456789ab.replaced", "of a living run")
    ranked_folder(tmp_path / ".out.x.0123456789ab.replaced", "of another OUT")
    (tmp_path / ".out.ba9876543210.replaced").mkdir()  # not ranked lists
    before = names(tmp_path)
    with (alive / "lock").open("xb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        restore_replaced(tmp_path / "out")
        assert names(tmp_path) == before
    restore_replaced(tmp_path / "out")
    assert (tmp_path / "out" / "rows").read_text() == "of a living run"
