"""Staging folders of processes that are killed while they remove them: never resumed, never left for good."""

from __future__ import annotations

import os
from pathlib import Path

from rankmill.foundation.storage.staging import scratch_folder, staging_folder

FILES = ("journal", "spill-0/a", "spill-0/b", "spill-1/a", "out/part", "notes")


def is_resumable(folder: Path) -> bool:
    return (folder / "journal").exists()


def fill(folder: Path) -> None:
    for name in FILES:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).touch()


def killed_at_removal(number: int, work) -> bool:
    """Do ``work`` in a process that ends without a word before its removal ``number``; return whether it came to
    that."""
    pid = os.fork()
    if not pid:
        left = [number]

        def counting(call):
            def counted(*arguments, **options):
                if not left[0]:
                    os._exit(1)
                left[0] -= 1
                return call(*arguments, **options)

            return counted

        os.unlink, os.rmdir = counting(os.unlink), counting(os.rmdir)
        try:
            work()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1


def holding_files(parent: Path) -> list[Path]:
    """Return the folders in ``parent`` but empty ones, which may be those of a process that begins: they go after an
    hour."""
    return [folder for folder in parent.iterdir() if any(folder.iterdir())]


def test_a_folder_whose_removal_was_interrupted_is_removed_and_never_resumed(tmp_path):
    out = tmp_path / "out"

    def work() -> None:
        with staging_folder(out, is_resumable) as folder:
            fill(folder)

    number = 0
    while killed_at_removal(number, work):
        number += 1
        assert len(list(tmp_path.iterdir())) == 1
        with staging_folder(out, is_resumable) as folder:
            whole = all((folder / name).is_file() for name in FILES)
            assert whole or not is_resumable(folder)
        assert not holding_files(tmp_path)
    assert number > len(FILES)


def test_a_scratch_folder_whose_removal_was_interrupted_is_removed_by_the_next(tmp_path):
    def work() -> None:
        with scratch_folder("x", tmp_path) as folder:
            fill(folder)

    number = 0
    while killed_at_removal(number, work):
        number += 1
        with scratch_folder("y", tmp_path):
            assert len(holding_files(tmp_path)) == 1
    assert number > len(FILES)
