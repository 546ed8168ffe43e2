"""A grown tree whose splits are bin numbers."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from rankmill.trainer.data.layout import BlockedBins
from rankmill.trainer.growing import _partition_kernels
from rankmill.trainer.team import Team

_LEAST_WALKED = 4096  # minimum rows per worker of a walk down a tree


@dataclass(frozen=True, slots=True)
class Tree:
    """Nodes in the order of creation, the root first; every array has shape (n_nodes,).

    ``feature`` is -1 at a leaf.  Elsewhere a row goes ``left`` if its bin is in 1 .. ``threshold``, or if it is 0
    (missing) and ``missing_left``.  If ``threshold`` is 0, it goes left if its bin is in the node's set: bin b is bit
    b % 64 of ``sets[node, b // 64]``.  ``value`` is what the node adds to a score, shrinkage included.
    """

    feature: npt.NDArray[np.int32]
    threshold: npt.NDArray[np.int32]
    missing_left: npt.NDArray[np.uint8]
    left: npt.NDArray[np.int32]
    right: npt.NDArray[np.int32]
    value: npt.NDArray[np.float64]
    gain: npt.NDArray[np.float64]
    rows: npt.NDArray[np.int64]
    sets: npt.NDArray[np.uint64]  # (n_nodes, 4)

    @property
    def n_leaves(self) -> int:
        """Number of leaves; 1 if the tree has no split."""
        return int((self.feature < 0).sum())

    def times(self, factor: float) -> Tree:
        """Return the tree with values multiplied by ``factor``."""
        return replace(self, value=factor * self.value + 0.0)  # 0.0 instead of -0.0


def add_tree(
    tree: Tree, bins: BlockedBins, rows: npt.NDArray[np.int32], scores: npt.NDArray[np.float64], team: Team
) -> None:
    """Add ``tree`` to the ``scores`` (n_rows,) of ``rows``, with the same bits as growing it adds to its own rows."""
    team.share(
        len(rows),
        _LEAST_WALKED,
        lambda first, last, _: _partition_kernels.add_tree_blocked(
            bins.words, bins.lanes, bins.digits, tree.feature, tree.threshold, tree.missing_left, tree.sets, tree.left,
            tree.right, tree.value, rows, first, last, scores,
        ),
    )  # fmt: skip
