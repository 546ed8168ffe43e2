"""Add pairs from files, during an ingest or to an existing dataset."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from rankmill.foundation.errors import ConflictError, DataRejected, InputError
from rankmill.foundation.options import spelled
from rankmill.foundation.records import JSON, as_json
from rankmill.foundation.storage.locks import alone
from rankmill.foundation.storage.publish import fsync_folder, write_atomically
from rankmill.foundation.storage.staging import staging_folder
from rankmill.pipeline.dataset import Dataset
from rankmill.pipeline.dataset_manifest import MANIFEST_NAME, PAIR_REJECTS_NAME, PAIRS, PairSet, SourceFile, path_in
from rankmill.pipeline.digests import SourceDigests
from rankmill.pipeline.options import DEFAULT_BLOCK_BYTES
from rankmill.pipeline.pairs.pair_files import PairFile
from rankmill.pipeline.pairs.pair_join import SPILLED, join_pairs
from rankmill.pipeline.publish_dataset import sweep
from rankmill.pipeline.query_spill import QuerySpill
from rankmill.pipeline.rejects import listing_rejects, write_rejects
from rankmill.pipeline.sources.batch import Quarantine
from rankmill.pipeline.sources.empty_files import with_rows
from rankmill.pipeline.sources.files import check_file, find_files, refuse_copies
from rankmill.pipeline.stored_shards import read_manifest

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from pathlib import Path

    from rankmill.pipeline.dataset_manifest import PairShard
    from rankmill.pipeline.judgments.judgment_files import JudgmentFile
    from rankmill.pipeline.sources.batch import Reject


def sorted_files(paths: Sequence[Path], taken: Collection[Path] = ()) -> list[Path]:
    """Return files of pairs in an order that does not depend on the arguments; InputError if one occurs twice."""
    seen = {path.resolve() for path in taken}
    for path in paths:
        check_file(path)
        if path.resolve() in seen:
            raise InputError(f"{path}: is given twice")
        seen.add(path.resolve())
    files = sorted(paths, key=lambda path: (path.name, os.fspath(path)))
    refuse_copies(files)
    return files


def read_pairs(
    sources: Sequence[PairFile], spill: QuerySpill, block_bytes: int, done: Callable[[int, int], None] | None = None
) -> None:
    """Spill the pairs of all files; call ``done`` with (number of the file, bytes read of it) from time to time."""
    for number, source in enumerate(sources):
        pairs = 0
        for batch in source.batches(block_bytes):
            pairs += len(batch)
            spill.add(batch.stored(number))
            if done is not None:
                done(number, source.position)
        if not pairs:
            raise DataRejected(f"{source.path}: contains no pairs")


def pair_set(shards: list[PairShard], files: list[SourceFile], rejected: int) -> PairSet:
    """Return the manifest's entry; DataRejected if no pair is left."""
    total = sum(shard.pairs for shard in shards)
    if not total:
        raise DataRejected(f"{files[0].name}: no valid pair is left; {rejected:,} were quarantined")
    return PairSet(
        pairs=total, shards=shards, sources=sorted(files, key=lambda file: (file.name, file.sha256)), rejected=rejected
    )


def source_files(
    sources: Sequence[JudgmentFile | PairFile], digests: Mapping[Path, tuple[int, str]]
) -> list[SourceFile]:
    """Return the manifest's entries of files of judgments or pairs; ``digests`` has the size and the sha256 of each."""
    return [
        SourceFile(name=source.path.name, size=digests[source.path][0], sha256=digests[source.path][1])
        for source in sources
    ]


@dataclass(frozen=True, slots=True)
class PairReport:
    """The pairs of a dataset after they were added."""

    dataset: Dataset
    pairs: PairSet

    def render(self) -> str:
        """Return a few lines for a person."""
        put_aside = f"; {self.pairs.rejected:,} quarantined" if self.pairs.rejected else ""
        files = f"{len(self.pairs.sources)} file{'s' * (len(self.pairs.sources) > 1)}"
        return f"{self.dataset.path}: {self.pairs.pairs:,} pairs from {files}{put_aside}"

    def to_json(self) -> dict[str, JSON]:
        """Return the same facts for a program."""
        return {
            "dataset": str(self.dataset.path),
            "digest": self.dataset.digest,
            "pairs": self.pairs.pairs,
            "rejected_pairs": self.pairs.rejected,
            "sources": as_json(self.pairs.sources),
        }


def add_pairs(
    paths: Sequence[Path],
    path: Path,
    *,
    max_rejects: int = 0,
    block_size: int = DEFAULT_BLOCK_BYTES,
    overwrite: bool = False,
    say: Callable[[str], None] | None = None,
) -> PairReport:
    """Join the pairs of some files to the rows of the dataset at ``path``, and publish the new manifest.

    Parameters
    ----------
    paths
        The files, folders of them and patterns, in any order.
    path
        The dataset.
    max_rejects
        Maximum number of malformed pairs to quarantine.
    block_size
        Bytes of text parsed at a time.
    overwrite
        Whether to replace existing pairs.
    say
        Called with a line about files without rows, which are skipped.

    Raises
    ------
    InputError
        A file is missing, there is no dataset, or it has pairs already.
    DataRejected
        A pair is invalid; the dataset is unchanged.
    """
    dataset = Dataset.open(path)
    if dataset.manifest.pairs is not None and not overwrite:
        raise InputError(f"{path}: the dataset already has pairs; replace them with {spelled('overwrite')}")
    if not paths:
        raise InputError("no input files")
    files = sorted_files(with_rows(find_files(paths), say=say))
    quarantine = Quarantine(max_rejects)
    sources = [PairFile(file, quarantine) for file in files]
    shard_of = {shard.bucket: shard for shard in dataset.manifest.shards}

    def ids_of(bucket: int) -> pa.Table | None:
        return dataset.ids(shard_of[bucket]) if bucket in shard_of else None

    with (
        staging_folder(path) as staging,
        SourceDigests(files) as digests,
        listing_rejects(path, quarantine),
    ):
        spill = QuerySpill(staging / "spill", dataset.manifest.buckets, SPILLED)
        read_pairs(sources, spill, block_size)
        shards = join_pairs(spill, ids_of, sources, quarantine, staging)
        found = pair_set(shards, source_files(sources, digests.results()), len(quarantine.rejects))
        return PairReport(dataset=_publish(dataset, staging / PAIRS, found, quarantine.rejects), pairs=found)


def _publish(dataset: Dataset, staged: Path, found: PairSet, rejects: Sequence[Reject]) -> Dataset:
    """Move the staged shards of pairs into the dataset and publish a manifest with them; return the new dataset."""
    path = dataset.path
    with alone(path):
        current = read_manifest(path)
        if current.data_digest() != dataset.digest:
            raise ConflictError(
                f"{path}: another command replaced the dataset while pairs were added to it; run the command again"
            )
        folder = path_in(path, PAIRS)
        folder.mkdir(exist_ok=True)
        for file in staged.iterdir():
            file.replace(folder / file.name)
        fsync_folder(folder)
        if rejects:
            write_rejects(path_in(path, PAIR_REJECTS_NAME), rejects)
        manifest = current.model_copy(update={"pairs": found})
        write_atomically(path_in(path, MANIFEST_NAME), manifest.to_bytes())
        if not rejects:
            path_in(path, PAIR_REJECTS_NAME).unlink(missing_ok=True)
        sweep(path, current, manifest)
    return Dataset(path, manifest)


def read_ids(file: Path) -> pa.Table:
    """Return qid and doc_id of a staged shard."""
    return pq.read_table(file, columns=["qid", "doc_id"], partitioning=None)
