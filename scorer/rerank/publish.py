"""Check the output path of a re-ranking, and replace an older folder so that a complete one always exists.

If names cannot be exchanged atomically, the old folder is renamed next to OUT, never into the staging folder, which any
later run for OUT may remove.  A folder found under that name later is restored if OUT does not exist.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from rankmill.foundation.errors import ConflictError, InputError
from rankmill.foundation.options import spelled
from rankmill.foundation.storage.disk import exchange
from rankmill.foundation.storage.locks import LOCK_NAME, is_locked
from rankmill.foundation.storage.publish import fsync_folder, publish_folder
from rankmill.foundation.storage.special_files import refuse_special
from rankmill.scorer.rerank.ranked_file import checked_suffix, counts_belong_to, grades_path, is_ranked_folder

ASIDE = ".replaced"


def replace_folder(folder: Path, target: Path, staging: Path) -> None:
    """Publish ``folder``, which is inside ``staging``, as ``target``; an older one is removed once it is replaced.

    ``staging`` is from `rankmill.foundation.storage.staging.staging_folder` for ``target``.  After an error ``target``
    is unchanged.
    """
    if not target.exists():
        publish_folder(folder, target)
        return
    ready = staging / "ready"
    publish_folder(folder, ready)  # everything is on disk before anything moves
    if exchange(ready, target):  # the old folder is removed with the staging folder
        fsync_folder(target.parent)
        return
    aside = staging.with_suffix(ASIDE)
    try:
        target.rename(aside)
        ready.rename(target)
    except BaseException:
        if os.path.lexists(aside) and not os.path.lexists(target):
            aside.rename(target)
        raise
    fsync_folder(target.parent)
    _remove(aside)


def restore_replaced(target: Path) -> None:
    """Restore a folder that a killed run renamed, or remove it if ``target`` exists.

    That of a running process is not touched.
    """
    token = re.compile(rf"\.{re.escape(target.name)}\.[0-9a-f]+{re.escape(ASIDE)}")
    for aside in sorted(target.parent.glob(f".*{ASIDE}")):
        if (
            not token.fullmatch(aside.name)
            or not is_ranked_folder(aside)
            or is_locked(aside.with_suffix(".staging") / LOCK_NAME)
        ):
            continue
        if os.path.lexists(target):
            _remove(aside)
        else:
            aside.rename(target)
            fsync_folder(target.parent)


def _remove(aside: Path) -> None:
    if aside.is_symlink():
        aside.unlink()
    else:
        shutil.rmtree(aside, ignore_errors=True)  # no failure: the new folder is in place


def check_distinct(target: Path, candidates: Sequence[Path]) -> None:
    """Refuse an ``OUT`` whose replacement would destroy its own input."""
    places = [target.resolve()]
    if checked_suffix(target):
        places.append(grades_path(target).resolve())
    for path in candidates:
        found = path.resolve()
        if any(found.is_relative_to(place) for place in places):
            raise InputError(f"{target}: {path} is an input file and would be overwritten; choose another name for OUT")


def check_target(target: Path, *, overwrite: bool, several: bool = False) -> None:
    """Refuse an ``OUT`` that exists and may not be replaced, or that is a single file for ``several`` models.

    A folder that a killed run renamed is restored first.
    """
    refuse_special(target)
    single = bool(checked_suffix(target))
    if single and several:
        raise InputError(f"{target}: is the name of a file; several models need a folder, with one folder each in it")
    if not single:
        restore_replaced(target)
    if target.exists():
        if not overwrite:
            raise InputError(
                f"{target}: exists already; choose another name, or replace it with {spelled('overwrite')}"
            )
        if single and target.is_dir():
            raise InputError(f"{target}: is a folder, expected a file; remove it or choose another name")
        if not single and not is_ranked_folder(target):
            raise InputError(f"{target}: is not a folder of ranked lists and is not overwritten; choose another name")
    if single:
        _check_grades(grades_path(target), target, overwrite=overwrite)


def check_unchanged(target: Path, *, overwrite: bool) -> None:
    """Refuse, right before publishing, an ``OUT`` that appeared during the run and may not be replaced."""
    if not overwrite and target.exists():
        raise ConflictError(
            f"{target}: another run wrote it while this one was running; choose another name, or replace it with "
            f"{spelled('overwrite')}"
        )


def _check_grades(grades: Path, target: Path, *, overwrite: bool) -> None:
    """Refuse an existing file at the path of ``target``'s grade counts: it would be replaced or mistaken for them."""
    if not os.path.lexists(grades):
        return
    if counts_belong_to(grades) is None:
        raise InputError(
            f"{grades}: is where the grade counts of {target.name} go, but it is not such a table and is not "
            "overwritten; choose another name"
        )
    if not overwrite:
        raise InputError(
            f"{grades}: grade counts for {target.name} exist already; choose another name, or replace them with "
            f"{spelled('overwrite')}"
        )
