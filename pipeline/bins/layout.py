"""Bins in the layout of the trainer: blocks of lanes, each in row-major order.

Memory and the files that ``data bin`` writes have the same layout.

    feature    0     1     2     3     4   ..           lane    0     1                      2   ..
    bins     256     3   256    14     5   ..           code   f0    f3 + 14 f4 + 70 f1     f2  ..

A lane is a byte of every row.  Narrow features share lanes, so that one addition counts all of them: the *code* of a
lane is the number whose digits are their bins.  A file has the rows of a split, uint8 of shape (n_blocks, n_rows,
``BLOCK_WIDTH``), and nothing else: the edges say which lanes there are.  Trainings map it, so nothing is decoded or
held twice.
"""

from __future__ import annotations

import mmap
import platform
import sys
from collections.abc import Iterator
from heapq import heappop, heappush
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from rankmill.foundation.errors import InvalidParameter, TrainingDataRejected
from rankmill.foundation.storage.publish import keep_by_digest
from rankmill.pipeline.dataset.manifest import SPLITS, SplitName

if TYPE_CHECKING:
    from rankmill.pipeline.dataset.manifest import Manifest

BIN = np.uint8  # 0 is "missing", 1..255 are value bins
WORD = np.uint64  # eight lanes of one row
BINS_A_FEATURE = 256  # stride of one feature in a histogram; a bin is one byte
MOST_ROWS = 2**30  # with more, the mean |gradient| would be less than one step of a packed sum
BLOCK_WIDTH = 16  # lanes that share a block: 16 histograms of 2 KiB stay in a 32 KiB L1 cache
LANE, PLACE, CODES = 0, 1, 2  # columns of `lanes_of`, as kernels of the trainer name them
SUFFIX = ".bins"
# Python before 3.13 has no name for the flag; these architectures use the generic number
NO_RESERVE: int = getattr(
    mmap,
    "MAP_NORESERVE",
    0x4000 if sys.platform == "linux" and platform.machine() in {"x86_64", "aarch64", "riscv64"} else 0,
)

Codes = npt.NDArray[np.uint8]
OfSplits = Iterator[tuple[SplitName, Codes]]
"""The lanes of some rows, (m, n_lanes), with their split."""


def lanes_of(n_bins: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """Return for every feature the lane, the value of the place and the codes of the lane.

    The shape is (n_features, 3), int32.

    ``n_bins`` (n_features,) counts each feature's bins.  The code of a lane is the sum of place value times bin over
    its features, below the product of their bins, which is at most 256.  Lanes are in the order of their lowest
    features.  Features share lanes only if rows take fewer words then.

    >>> lanes_of(np.array([256, 3, 14, 256, 5, 4, 4, 4, 4], dtype=np.int32)).tolist()[1:5]
    [[1, 70, 210], [1, 1, 210], [2, 1, 256], [1, 14, 210]]
    """
    counts = [max(1, int(n)) for n in n_bins]
    groups: list[list[int]] = []
    open_groups: dict[int, list[int]] = {}  # numbers of groups, a heap for every product of bins
    for f in sorted(range(len(counts)), key=lambda f: (-counts[f], f)):  # first fit, in descending order
        most = BINS_A_FEATURE // counts[f]
        number, product = min(((heap[0], p) for p, heap in open_groups.items() if heap and p <= most), default=(-1, 1))
        if number < 0:
            number = len(groups)
            groups.append([])
        else:
            heappop(open_groups[product])
        groups[number].append(f)
        heappush(open_groups.setdefault(product * counts[f], []), number)
    if -(-len(groups) // 8) == -(-len(counts) // 8):
        groups = [[f] for f in range(len(counts))]
    lanes = np.zeros((len(counts), 3), dtype=np.int32)
    for lane, group in enumerate(sorted(groups, key=min)):
        place = 1
        for f in group:
            lanes[f, LANE], lanes[f, PLACE] = lane, place
            place *= counts[f]
        lanes[group, CODES] = place
    return lanes


def n_lanes(lanes: npt.NDArray[np.int32]) -> int:
    """Return the number of lanes that features have."""
    return int(lanes[:, LANE].max(initial=-1)) + 1


def joined(bins: Codes, lanes: npt.NDArray[np.int32]) -> Codes:
    """Return the codes (m, n_lanes) of row-major ``bins`` (m, n_features)."""
    codes = np.zeros((len(bins), n_lanes(lanes)), dtype=BIN)
    for column, (lane, place, _) in zip(bins.T, lanes.tolist(), strict=True):
        codes[:, lane] += column * BIN(place)
    return codes


def blocks_shape(lanes: int, n_rows: int, width: int = BLOCK_WIDTH) -> tuple[int, int, int]:
    """Return the shape in bytes of the blocks of this number of lanes, (n_blocks, n_rows, width).

    Raises
    ------
    InvalidParameter
        ``width`` is not a multiple of 8.
    TrainingDataRejected
        There are more rows than one training can take.
    """
    if width < 8 or width % 8:
        raise InvalidParameter(f"the block width must be a multiple of 8, got {width}")
    if n_rows > MOST_ROWS:
        raise TrainingDataRejected(f"{n_rows:,} rows are too many; the maximum of a training is {MOST_ROWS:,}")
    return -(-lanes // width), n_rows, width


def mapped(file: Path, shape: tuple[int, int, int]) -> npt.NDArray[np.uint64]:
    """Map ``file``, whose contents were checked, as words; writes to the array never reach it.

    It is writeable, because kernels are compiled for writeable arrays only.  A writeable private map counts as memory
    that will be needed, and Linux refuses one larger than all memory, unless the map reserves nothing.
    """
    with file.open("rb") as opened:
        flags, access = mmap.MAP_PRIVATE | NO_RESERVE, mmap.PROT_READ | mmap.PROT_WRITE
        pages = mmap.mmap(opened.fileno(), prod(shape), flags=flags, prot=access)
    return np.frombuffer(pages, dtype=BIN).reshape(shape).view(WORD)


class SplitFiles:
    """The files of all splits with rows, in the folder ``staging``, to which rows are added in canonical order."""

    def __init__(self, manifest: Manifest, lanes: int, staging: Path) -> None:
        rows = {name: manifest.splits[name].rows for name in SPLITS if name in manifest.splits}
        self._shapes = {name: blocks_shape(lanes, n_rows) for name, n_rows in rows.items() if n_rows}
        self._paths = {name: staging / f"{name}{SUFFIX}" for name in self._shapes}
        self._filled = dict.fromkeys(self._shapes, 0)
        for name, shape in self._shapes.items():
            with self._paths[name].open("xb") as file:
                file.truncate(prod(shape))

    def add(self, rows: OfSplits) -> None:
        """Add the next rows of some splits."""
        for name, codes in rows:
            (n_blocks, n_rows, width), first = self._shapes[name], self._filled[name]
            with self._paths[name].open("rb+") as file:
                for block in range(n_blocks):
                    part = codes[:, block * width : (block + 1) * width]
                    padded = np.zeros((len(codes), width), dtype=BIN)
                    padded[:, : part.shape[1]] = part
                    # write, not store through a map: on a full disk a map raises a signal, not an exception
                    file.seek((block * n_rows + first) * width)
                    file.write(padded.data)
            self._filled[name] += len(codes)

    def keep(self, folder: Path) -> dict[SplitName, str]:
        """Move the files to ``folder``, named by their digests, which are returned."""
        return {name: keep_by_digest(path, folder) for name, path in self._paths.items()}
