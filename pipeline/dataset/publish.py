"""Publish a finished dataset, or replace an older one with it."""

from __future__ import annotations

import errno
import json
from contextlib import suppress
from pathlib import Path

from rankmill.foundation.errors import ConflictError, InputError, RankmillError
from rankmill.foundation.options import spelled
from rankmill.foundation.storage.locks import alone
from rankmill.foundation.storage.publish import fsync_file, fsync_folder, publish_folder
from rankmill.foundation.storage.special_files import refuse_special
from rankmill.pipeline.dataset.manifest import (
    CATEGORIES,
    FEATURES,
    JUDGMENT_REJECTS_NAME,
    MANIFEST_NAME,
    PAIR_REJECTS_NAME,
    PAIRS,
    QUERIES,
    REJECTS_NAME,
    REPLACED,
    STATISTICS,
    UNJUDGED,
    Manifest,
)
from rankmill.pipeline.dataset.stored_shards import read_manifest

_IN_USE = {errno.ENOTEMPTY, errno.EEXIST}  # of the name of a folder
_FOLDERS = (FEATURES, QUERIES, STATISTICS, PAIRS, UNJUDGED, CATEGORIES)


def check_destination(out: Path, *, overwrite: bool) -> None:
    """Raise InputError if ``out`` exists and may not be replaced."""
    refuse_special(out)
    if not out.exists():
        return
    if not out.is_dir():
        raise InputError(f"{out}: is a file, but a dataset is a folder; choose another name")
    if not any(out.iterdir()):
        return
    if not _is_dataset(out):
        raise InputError(f"{out}: is a folder with other files; choose another name for the dataset")
    if not overwrite:
        raise InputError(
            f"{out}: a dataset already exists; choose another name, or replace it with {spelled('overwrite')}"
        )


def publish_dataset(staged: Path, out: Path, manifest: Manifest, *, overwrite: bool) -> None:
    """Publish the shards in ``staged`` as the dataset ``out`` atomically.

    A new dataset is published by renaming the folder, a replacement by renaming the manifest.  As shards are named by
    digest, the new ones are first added to the old ones, so a reader sees either the old or the new dataset.  The old
    shards stay until the next replacement, for readers that have them open; older ones are removed.

    Raises
    ------
    InputError
        ``out`` is something else than a dataset.
    ConflictError
        Another command has made ``out`` meanwhile, and it may not be replaced.
    """
    if not (out / MANIFEST_NAME).exists():
        check_destination(out, overwrite=overwrite)
        (staged / MANIFEST_NAME).write_bytes(manifest.to_bytes())
        try:
            publish_folder(staged, out)
        except OSError as error:
            if error.errno not in _IN_USE:
                raise
        else:
            return
    if not overwrite:
        raise ConflictError(
            f"{out}: another command made this dataset while this one was running; choose another name, or replace it "
            f"with {spelled('overwrite')}"
        )
    check_destination(out, overwrite=True)
    with alone(out):
        _replace(staged, out, manifest)


def _replace(staged: Path, out: Path, manifest: Manifest) -> None:
    old = _old_manifest(out)
    if old is not None and old.rows_digest() == manifest.rows_digest():
        manifest = manifest.model_copy(update={"bins": old.bins})
    (staged / MANIFEST_NAME).write_bytes(manifest.to_bytes())
    fsync_file(staged / MANIFEST_NAME)  # all data are on disk now; the rest are renames
    lists = (REJECTS_NAME, PAIR_REJECTS_NAME, JUDGMENT_REJECTS_NAME)
    listed = [name for name in lists if (staged / name).exists()]
    brought: list[Path] = []
    try:
        for name in _FOLDERS:
            if (staged / name).exists():
                _move_files(staged / name, out / name, brought)
        for name in listed:
            (staged / name).replace(out / name)
        (staged / MANIFEST_NAME).replace(out / MANIFEST_NAME)
    except BaseException:
        for file in brought:
            file.unlink(missing_ok=True)
        raise
    fsync_folder(out)
    for name in lists:
        if name not in listed:
            (out / name).unlink(missing_ok=True)
    if old is not None:
        _sweep(out, old, manifest)


def _move_files(staged: Path, folder: Path, brought: list[Path]) -> None:
    """Move the files of ``staged`` to ``folder``; each new one is added to ``brought`` before it is moved."""
    folder.mkdir(exist_ok=True)
    for file in staged.iterdir():
        place = folder / file.name
        if not place.exists():
            brought.append(place)
        file.replace(place)
    fsync_folder(folder)


def _is_dataset(folder: Path) -> bool:
    """Whether ``folder`` is a dataset: its manifest has a format number, or is damaged and there are features."""
    manifest = folder / MANIFEST_NAME
    if not manifest.is_file():
        return False
    try:
        return "format" in json.loads(manifest.read_bytes()) or (folder / FEATURES).is_dir()
    except (OSError, ValueError, TypeError):
        return (folder / FEATURES).is_dir()


def _old_manifest(out: Path) -> Manifest | None:
    """Return the manifest of the existing dataset; None if it is of another format, whose files are unknown."""
    try:
        return read_manifest(out)
    except RankmillError:
        return None


def _files(manifest: Manifest) -> dict[str, set[str]]:
    """Return the digests of the shards in ``manifest``, by folder."""
    found: dict[str, set[str]] = {name: set() for name in _FOLDERS}
    for folder, digest, _ in manifest.files():
        found[folder].add(digest)
    return found


def _sweep(out: Path, old: Manifest, new: Manifest) -> None:
    """Remove the shards of the dataset ``out`` that are in neither the ``old`` nor the ``new`` manifest.

    Old shards of rows are moved to ``_replaced``, so that programs that read the folder ``features`` see only the new
    ones.
    """
    former, current = _files(old), _files(new)
    for name in _FOLDERS:
        for file in (out / name).glob("*.parquet"):
            if file.stem not in former[name] | current[name]:
                file.unlink(missing_ok=True)
            elif name == FEATURES and file.stem not in current[name]:
                with suppress(OSError):  # the new dataset is complete; the next change moves the rest
                    (out / REPLACED).mkdir(exist_ok=True)
                    file.rename(out / REPLACED / file.name)
    for file in (out / REPLACED).glob("*.parquet"):
        if file.stem not in former[FEATURES] - current[FEATURES]:
            file.unlink(missing_ok=True)
