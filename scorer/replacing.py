"""Put a finished folder of ranked lists in the place of an older one: one of the two is always there, and whole.

Where names cannot be exchanged in one step, the old folder steps aside under a name of its own next to OUT, never into
the staging folder, which any later run for OUT may remove.  What is found aside later goes back if OUT is not there.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from rankmill.foundation.storage.disk import exchange
from rankmill.foundation.storage.locks import LOCK_NAME, is_locked
from rankmill.foundation.storage.publish import fsync_folder, publish_folder
from rankmill.scorer.ranked_file import is_ranked_folder

ASIDE = ".replaced"


def replace_folder(folder: Path, target: Path, staging: Path) -> None:
    """Publish ``folder``, which lies in ``staging``, as ``target``; an older one is removed once it is replaced.

    ``staging`` is what `rankmill.foundation.storage.staging.staging_folder` gave for ``target``.  After an error ``target`` is what it was.
    """
    if not target.exists():
        publish_folder(folder, target)
        return
    ready = staging / "ready"
    publish_folder(folder, ready)  # everything is on disk before anything moves
    if exchange(ready, target):  # the older folder goes with the staging folder
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
    """Bring back a folder that a killed run left aside, or remove it if ``target`` is there; leave a living run's."""
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
        shutil.rmtree(aside, ignore_errors=True)  # the new folder is in its place: this is no failure
