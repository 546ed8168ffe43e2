"""Bin cache: training bins on disk in the layout of the trainer, written once and then memory-mapped.

A cache file is one header and then the array of :class:`rankmill.trainer.layout.BlockedBins`, byte for byte:

- header: one JSON object, padded with blanks to a multiple of 4,096 bytes, a newline last.  It holds the number of
  this format, the digests of the dataset and of its bins, the split, the width of a block, the shape, the bins of
  each feature, and the digest of the contents.
- array: uint8 of shape (n_blocks, n_rows, width).

The digest of the contents is the BLAKE2b (32 bytes) of the blocks' BLAKE2b digests (32 bytes each), in their order: a
block's rows arrive in order, so the digest is complete when the last row has been written.
"""

from __future__ import annotations

import errno
import json
import mmap
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from hashlib import blake2b
from math import prod
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rankmill.foundation.errors import InvalidParameter
from rankmill.foundation.storage.publish import publish_file
from rankmill.foundation.storage.staging import staging_folder
from rankmill.pipeline.dataset import Dataset
from rankmill.trainer.layout import (
    BIN,
    BLOCK_WIDTH,
    NO_RESERVE,
    WORD,
    BlockedBins,
    blocks_shape,
    fill_blocks,
    lanes_of,
    n_lanes,
)

FORMAT = 2
SUFFIX = ".bins"

_ALIGNMENT = 4096
_DIGEST_BYTES = 32
_UNKNOWN_DIGEST = b"?" * (2 * _DIGEST_BYTES)
_READ_BYTES = 1 << 20
_CANNOT_WRITE = (errno.EROFS, errno.EACCES, errno.EPERM)


class _Unusable(Exception):
    """The file cannot be used; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedBins:
    """The cache file of one split of one binned dataset.

    The file's name holds the first digits of both digests, and its header all of them, so other data or other bins get
    another file.  Old files are not removed; a file that somebody removes is built again.

    Parameters
    ----------
    folder
        Folder of cache files, created at the first write.
    dataset_digest, binspec_digest
        Digests of the data and of its bins.
    split
        ``train``, ``valid`` or ``test``.
    n_rows
        Rows of the split.
    n_features
        Features of the dataset.
    width
        Lanes that share a block.

    Raises
    ------
    InvalidParameter
        ``folder`` is a file, or ``width`` is not a multiple of 8.
    TrainingDataRejected
        There are more rows than one training can take.
    """

    folder: Path
    dataset_digest: str
    binspec_digest: str
    split: str
    n_rows: int
    n_features: int
    width: int = BLOCK_WIDTH

    def __post_init__(self) -> None:
        blocks_shape(self.n_features, self.n_rows, self.width)
        if self.folder.exists() and not self.folder.is_dir():
            raise InvalidParameter(f"bin_cache must be a folder, got the file {self.folder}")

    @classmethod
    def of(
        cls, folder: Path, dataset: Dataset, binspec_digest: str, split: str, width: int = BLOCK_WIDTH
    ) -> CachedBins:
        """Return the cache of ``split`` of ``dataset`` in ``folder``; nothing is read or written yet."""
        return cls(
            folder=folder,
            dataset_digest=dataset.digest,
            binspec_digest=binspec_digest,
            split=split,
            n_rows=dataset.queries(split).n_rows,
            n_features=len(dataset.feature_names),
            width=width,
        )

    @property
    def path(self) -> Path:
        """The cache file."""
        name = f"{self.split}-{self.dataset_digest[:16]}-{self.binspec_digest[:16]}-w{self.width}-v{FORMAT}{SUFFIX}"
        return self.folder / name

    def can_be_mapped(self) -> bool:
        """Return whether the file exists or could be written; only :meth:`load` checks its contents."""
        if os.access(self.path, os.R_OK):
            return True
        nearest = next(above for above in (self.folder, *self.folder.absolute().parents) if above.exists())
        return nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)

    def load(
        self,
        batches: Callable[[], Iterable[npt.NDArray[np.uint8]]],
        n_bins: npt.NDArray[np.int32],
        say: Callable[[str], object],
    ) -> BlockedBins:
        """Return the bins mapped from the file, which is checked, and built first if it is missing or unusable.

        The file is read once from end to end, against its digest; that also brings it into the page cache.  The map
        is private: writes to the array never reach the file.  Files are only ever replaced, never changed
        in place; truncating one kills the trainings that use it.

        Parameters
        ----------
        batches
            Called if the file has to be built; yields row-major (m, n_features) uint8 in row order.  Only one batch
            is in memory at a time.
        n_bins
            Bins of each feature, the missing one included, shape (n_features,) int32.
        say
            Called with one line if an existing file cannot be used, and if no file can be written (a read-only folder), so that
            the bins are held in memory.

        Raises
        ------
        TrainingDataRejected
            The batches do not fit: see :meth:`BlockedBins.from_batches`.
        OSError
            Reading or writing failed for another reason than a lack of permission, for example on a full disk.
        """
        try:
            return self._open(n_bins)
        except FileNotFoundError:
            pass
        except (_Unusable, PermissionError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            say(f"{self.path}: {reason}; rebuilding the bin cache")
        try:
            return self._build(batches(), n_bins)
        except OSError as error:
            if error.errno not in _CANNOT_WRITE:
                raise
            say(
                f"{self.folder}: cannot write the bin cache ({error.strerror}); holding"
                f" {prod(self._shape(n_bins)) / 1e6:,.0f} MB of bins in memory instead"
            )
        return BlockedBins.from_batches(batches(), self.n_rows, n_bins, self.width)

    def _shape(self, n_bins: npt.NDArray[np.int32]) -> tuple[int, int, int]:
        return blocks_shape(n_lanes(lanes_of(n_bins)), self.n_rows, self.width)

    def _open(self, n_bins: npt.NDArray[np.int32]) -> BlockedBins:
        """Check the file and map it; _Unusable if it cannot be used."""
        with self.path.open("rb") as file:
            start, position = self._header(n_bins)
            shape = self._shape(n_bins)
            expected, found = len(start) + prod(shape), os.fstat(file.fileno()).st_size
            if found != expected:
                raise _Unusable(f"has {found:,} bytes instead of {expected:,}")
            header = file.read(len(start))
            after = position + len(_UNKNOWN_DIGEST)
            if header[:position] != start[:position] or header[after:] != start[after:]:
                raise _Unusable("is of another format, dataset or binning than its name says")
            contents = _Contents(shape[0])
            buffer = memoryview(bytearray(_READ_BYTES))
            for block in range(len(contents.blocks)):
                left = self.n_rows * self.width
                while left and (n := file.readinto(buffer[: min(left, _READ_BYTES)])):
                    contents.add(block, buffer[:n])
                    left -= n
            if header[position:after] != contents.digest():
                raise _Unusable("its digest does not match")
            return self._mapped(file.fileno(), len(start), n_bins)

    def _build(self, batches: Iterable[npt.NDArray[np.uint8]], n_bins: npt.NDArray[np.int32]) -> BlockedBins:
        """Write the file aside, publish it under its name and map it.

        Several processes may do this at once: all write the same bytes, and the last rename wins.
        """
        with staging_folder(self.path) as folder:
            staged = folder / "bins"
            with staged.open("xb+") as file:
                handle = file.fileno()
                header, position = self._header(n_bins)
                n_blocks, n_rows, width = self._shape(n_bins)
                contents = _Contents(n_blocks)

                def put(block: int, first: int, codes: npt.NDArray[np.uint8]) -> None:
                    rows = np.zeros((len(codes), width), dtype=BIN)
                    rows[:, : codes.shape[1]] = codes
                    data = rows.data.cast("B")
                    contents.add(block, data)
                    # write, not store through a map: on a full disk a map raises a signal, not an exception
                    _write_at(handle, data, len(header) + (block * n_rows + first) * width, self.folder)

                fill_blocks(batches, n_rows, n_bins, width, put)
                after = position + len(_UNKNOWN_DIGEST)
                whole = header[:position] + contents.digest() + header[after:]
                _write_at(handle, memoryview(whole), 0, self.folder)
                publish_file(staged, self.path)
                return self._mapped(handle, len(header), n_bins)

    def _header(self, n_bins: npt.NDArray[np.int32]) -> tuple[bytes, int]:
        """Return the header without its digest, and the position of the digest."""
        fields = {
            "rankmill_bin_cache": FORMAT,
            "contents": _UNKNOWN_DIGEST.decode(),
            "dataset": self.dataset_digest,
            "binspec": self.binspec_digest,
            "split": self.split,
            "width": self.width,
            "shape": self._shape(n_bins),
            "n_bins": n_bins.tolist(),
            "lanes": lanes_of(n_bins)[:, :2].tolist(),
        }
        text = json.dumps(fields, separators=(",", ":")).encode()
        size = -(-(len(text) + 1) // _ALIGNMENT) * _ALIGNMENT
        return text.ljust(size - 1) + b"\n", text.index(_UNKNOWN_DIGEST)

    def _mapped(self, handle: int, offset: int, n_bins: npt.NDArray[np.int32]) -> BlockedBins:
        """Map the whole open file; the array is writeable, because kernels are compiled for writeable arrays only.

        A writeable private map counts as memory that will be needed, and Linux refuses one larger than all memory, unless it
        is told to reserve nothing.
        """
        shape = self._shape(n_bins)
        pages = mmap.mmap(
            handle,
            offset + prod(shape),
            flags=mmap.MAP_PRIVATE | NO_RESERVE,
            prot=mmap.PROT_READ | mmap.PROT_WRITE,
        )
        lanes = np.frombuffer(pages, dtype=BIN, offset=offset).reshape(shape)
        return BlockedBins(words=lanes.view(WORD), n_bins=n_bins)


class _Contents:
    """The digest of all blocks, computed while they are written or read."""

    def __init__(self, n_blocks: int) -> None:
        self.blocks = [blake2b(digest_size=_DIGEST_BYTES) for _ in range(n_blocks)]

    def add(self, block: int, rows: memoryview) -> None:
        """Add the next bytes of ``block``."""
        self.blocks[block].update(rows)

    def digest(self) -> bytes:
        """Return the digest in hexadecimal."""
        whole = blake2b(b"".join(block.digest() for block in self.blocks), digest_size=_DIGEST_BYTES)
        return whole.hexdigest().encode()


def _write_at(handle: int, data: memoryview, offset: int, folder: Path) -> None:
    """Write all of ``data`` at ``offset``; an OSError names ``folder``, since the system names no file here."""
    try:
        while data:
            written = os.pwrite(handle, data, offset)
            data, offset = data[written:], offset + written
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(folder)) from error
