"""Put a finished dataset in its place, whether that is free or taken by an older one."""

from __future__ import annotations

import json
from pathlib import Path

from pipeline.errors import DatasetConflict, InputError, PipelineError
from pipeline.manifest import MANIFEST_NAME, UNJUDGED, Manifest
from pipeline.publish import alone, fsync_file, fsync_folder, publish_folder
from pipeline.stored_shards import read_manifest

REJECTS_NAME = "rejects.parquet"
PAIR_REJECTS_NAME = "pair_rejects.parquet"
JUDGMENT_REJECTS_NAME = "judgment_rejects.parquet"
_FOLDERS = ("features", "queries", "statistics", "pairs", UNJUDGED)


def check_destination(out: Path, *, overwrite: bool) -> None:
    """Raise InputError if something is at ``out`` that may not be replaced."""
    if not out.exists():
        return
    if not out.is_dir():
        raise InputError(f"{out}: is a file; a dataset is a folder")
    if not any(out.iterdir()):
        return
    if not _is_dataset(out):
        raise InputError(f"{out}: is a folder with other things in it; choose another name for the dataset")
    if not overwrite:
        raise InputError(f"{out}: there is a dataset already; choose another name, or replace it with --overwrite")


def publish_dataset(
    staged: Path, out: Path, manifest: Manifest, *, overwrite: bool, grown_from: Manifest | None = None
) -> None:
    """Make the shards in ``staged`` the dataset ``out`` in one step; with ``grown_from`` those that this had stay with them.

    A new dataset is a rename of the folder.  An older one is replaced by its manifest: shards are named by digest, so
    the new ones go next to the old ones before, and a reader has either all of the old or all of the new.  The old
    shards stay until the next replacement, for the readers that have them open; those older still are removed.

    Raises
    ------
    InputError
        Something is in the way.
    DatasetConflict
        The dataset is not ``grown_from`` any more.
    """
    check_destination(out, overwrite=overwrite)
    if not (out / MANIFEST_NAME).exists():
        (staged / MANIFEST_NAME).write_bytes(manifest.to_bytes())
        publish_folder(staged, out)
        return
    with alone(out):
        _replace(staged, out, manifest, grown_from)


def _replace(staged: Path, out: Path, manifest: Manifest, grown_from: Manifest | None) -> None:
    old = _old_manifest(out)
    if grown_from is not None and (old is None or old.data_digest() != grown_from.data_digest()):
        raise DatasetConflict(f"{out}: was replaced by other data while rows were added to it; run it again")
    if old is not None and old.rows_digest() == manifest.rows_digest():
        manifest = manifest.model_copy(update={"bins": old.bins})
    (staged / MANIFEST_NAME).write_bytes(manifest.to_bytes())
    fsync_file(staged / MANIFEST_NAME)  # all that takes room is on the disk now: what follows gives it names
    lists = (REJECTS_NAME, PAIR_REJECTS_NAME, JUDGMENT_REJECTS_NAME)
    listed = [name for name in lists if (staged / name).exists()]
    brought: list[Path] = []
    try:
        for name in _FOLDERS:
            if (staged / name).exists():
                _bring(staged / name, out / name, brought)
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
        sweep(out, old, manifest)


def _bring(staged: Path, folder: Path, brought: list[Path]) -> None:
    """Move the files of ``staged`` to ``folder``; those that it did not have are added to ``brought``, each before it is moved."""
    folder.mkdir(exist_ok=True)
    for file in staged.iterdir():
        place = folder / file.name
        if not place.exists():
            brought.append(place)
        file.replace(place)
    fsync_folder(folder)


def _is_dataset(folder: Path) -> bool:
    """Say whether ``folder`` may be replaced as a dataset: its manifest has a format number, or is damaged beside features."""
    manifest = folder / MANIFEST_NAME
    if not manifest.is_file():
        return False
    try:
        return "format" in json.loads(manifest.read_bytes()) or (folder / "features").is_dir()
    except (OSError, ValueError, TypeError):
        return (folder / "features").is_dir()


def _old_manifest(out: Path) -> Manifest | None:
    """Return the manifest in the way, None if it is of another format: what belongs to it is not known then."""
    try:
        return read_manifest(out)
    except PipelineError:
        return None


def _files(manifest: Manifest) -> set[str]:
    files = {f"features/{shard.features}.parquet" for shard in manifest.shards}
    files |= {f"queries/{shard.queries}.parquet" for shard in manifest.shards}
    files |= {f"statistics/{s.statistics.digest}.parquet" for s in manifest.shards if s.statistics is not None}
    files |= {f"{UNJUDGED}/{shard.digest}.parquet" for shard in manifest.unjudged}
    return files if manifest.pairs is None else files | {f"pairs/{s.digest}.parquet" for s in manifest.pairs.shards}


def sweep(out: Path, old: Manifest, new: Manifest) -> None:
    """Remove the shards of the dataset ``out`` that belong neither to its ``old`` manifest nor to its ``new`` one."""
    keep = _files(old) | _files(new)
    for name in _FOLDERS:
        for file in (out / name).glob("*.parquet"):
            if f"{name}/{file.name}" not in keep:
                file.unlink(missing_ok=True)
