"""Trees over the rows that they were not grown from."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rankmill.trainer.growing import _kernels
from rankmill.trainer.growing.tree import Tree
from rankmill.trainer.layout import BlockedBins
from rankmill.trainer.workers import Team

_LEAST_WALKED = 4096  # rows a worker that walk down a tree


def add_tree(
    tree: Tree, bins: BlockedBins, rows: npt.NDArray[np.int32], scores: npt.NDArray[np.float64], team: Team
) -> None:
    """Add ``tree`` to the ``scores`` (n_rows,) of ``rows``: the bits that growing it would add."""
    team.share(
        len(rows),
        _LEAST_WALKED,
        lambda first, last, _: _kernels.add_tree_blocked(
            bins.words, tree.feature, tree.threshold, tree.missing_left, tree.left, tree.right, tree.value,
            rows, first, last, scores,
        ),
    )  # fmt: skip
