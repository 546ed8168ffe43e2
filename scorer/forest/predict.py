"""Score documents.

Cuts map float32 features to codes, codes pass through the trees, the link turns outputs into a score.

Codes are exact (values and cuts are compared as float32).  An output is the sum over its trees in order, in float64,
and the link takes one document at a time.  A score therefore has the same bits for any batch size, row order and number
of threads, and the same bits as the plain walk in ``tests/naive.py``.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from rankmill.foundation.threads import for_each
from rankmill.scorer import _kernels, _tree_kernels
from rankmill.scorer.forest.forest import Forest, checked_rounds
from rankmill.scorer.forest.layout import TreeLayout, choose_layout, search_of
from rankmill.scorer.forest.links import class_values
from rankmill.scorer.models.model import Predictor

TILE = 512  # documents whose codes stay in the second-level cache while all trees are evaluated; a multiple of 64
MAPPED = 16 << 20  # codes of at least this many bytes get their own mapping: an allocator may keep freed memory
ROWS_OF_A_TURN = 4 * TILE  # rows that a free thread takes next, converted to float32


class ForestPredictor(Predictor):
    """A forest laid out for prediction; make one and use it for many batches.  Safe to share between threads.

    Parameters
    ----------
    forest
        The trained model.
    n_rounds
        Use this number of rounds only, from ``start_round`` on; None: all.  The first k of a random forest are their
        mean.
    start_round
        Skip this number of rounds.  The base score belongs to round 0 and is skipped, too.

    Raises
    ------
    InputError
        The forest has fewer rounds.
    """

    def __init__(self, forest: Forest, *, n_rounds: int | None = None, start_round: int = 0) -> None:
        if start_round or (n_rounds is not None and forest.is_mean_of_rounds):
            forest, n_rounds = forest.truncated(n_rounds, start_round), None
        _, n_trees = checked_rounds(forest, n_rounds)
        n_nodes = int(forest.tree_starts[n_trees])
        feature = forest.node_feature[:n_nodes]
        used = np.unique(feature[feature >= 0])
        counts = np.diff(forest.cut_starts)[used]
        self.model = self.forest = forest
        self.features: tuple[int, ...] = tuple(int(f) for f in used)
        self._counts = counts
        self._search = search_of(forest, used)
        self._layout = choose_layout(forest, n_trees, used)
        self.table_bytes = self._layout.sets.tables.nbytes
        self._ordinal = forest.link.startswith("ordinal")
        self._values = class_values(forest.link, forest.n_outputs)
        every = np.arange(n_trees, dtype=np.int32)
        self._trees_of = [every[k :: forest.n_outputs].copy() for k in range(forest.n_outputs)]

    @property
    def comparisons(self) -> int:
        """Number of comparisons per document; it does not depend on its features.

        The bin of a used feature with c cuts takes ceil(log2 c) + 1.  A tree takes one for each level, since documents
        descend together to the deepest leaf, one for adding the leaf, and one for each group of sets of categories.
        """
        searches = sum(int(cuts - 1).bit_length() + 1 for cuts in self._counts)
        return searches + int(self._layout.depth.sum()) + len(self._layout.depth) + len(self._layout.sets.size)

    def scores(
        self,
        values: npt.NDArray[np.float32],
        *,
        columns: npt.ArrayLike | None = None,
        absent: float = np.nan,
        n_threads: int = 1,
    ) -> npt.NDArray[np.float64]:
        """Score the rows of ``values``, as `Predictor.scores` says; of several outputs, what the link makes of them."""
        table, where = self._table(values), self._columns(values, columns)
        out = np.full(len(table), self.forest.base_score, dtype=np.float64)

        def score(scratch: _Scratch, first: int, rows: int) -> None:
            self._score_tile(scratch, rows, out, first)

        self._in_turns(table, where, np.float32(absent), n_threads, score)
        return out

    def leaves(
        self,
        values: npt.NDArray[np.float32],
        *,
        columns: npt.ArrayLike | None = None,
        absent: float = np.nan,
        n_threads: int = 1,
    ) -> npt.NDArray[np.int32]:
        """Return the leaf that each row of ``values`` reaches in each tree, (n, n_trees).

        A leaf is a node of its tree, counted from its root, 0: the value of leaf i of tree t is
        ``forest.node_value[forest.tree_starts[t] + i]``.  Parameters and errors are those of `scores`.
        """
        table, where = self._table(values), self._columns(values, columns)
        numbered = self._numbered_leaves
        n_trees = len(self._layout.depth)
        out = np.empty((len(table), n_trees), dtype=np.int32)
        trees = np.arange(n_trees, dtype=np.int32)

        def find(scratch: _Scratch, first: int, rows: int) -> None:
            self._wrap(scratch, rows)
            found = np.empty(rows, dtype=np.float64)
            for t in range(n_trees):
                found.fill(0.0)
                numbered.add_trees(scratch.codes, rows, trees[t : t + 1], scratch.at, found, 0)
                out[first : first + rows, t] = found

        self._in_turns(table, where, np.float32(absent), n_threads, find)
        return out

    @cached_property
    def _numbered_leaves(self) -> TreeLayout:
        """The layout of a forest whose trees add the number of the leaf."""
        forest, n_trees = self.forest, len(self._layout.depth)
        number = np.arange(len(forest.node_feature)) - np.repeat(forest.tree_starts[:-1], np.diff(forest.tree_starts))
        numbered = replace(
            forest, node_value=number.astype(np.float64), tree_weights=np.ones(forest.n_trees), base_score=0.0
        )
        return choose_layout(numbered, n_trees, np.asarray(self.features, dtype=np.int64))

    def _in_turns(
        self, table: npt.NDArray[Any], columns: npt.NDArray[np.int64], absent: np.float32, n_threads: int, use: _Use
    ) -> None:
        """Call ``use`` with the codes of every tile of rows, shared among ``n_threads``."""

        def take(turn: int) -> None:
            scratch = self._scratch()
            with np.errstate(over="ignore"):  # a float64 beyond float32's range becomes infinite, which has a code
                values = np.ascontiguousarray(table[turn : turn + ROWS_OF_A_TURN], dtype=np.float32).view()
            values.flags.writeable = False  # as some callers' arrays are: a kernel is compiled for each kind
            for first in range(0, len(values), TILE):
                rows = min(TILE, len(values) - first)
                _kernels.bin_rows(values, first, rows, columns, absent, *self._search, scratch.codes)
                use(scratch, turn + first, rows)

        turns = range(0, len(table), ROWS_OF_A_TURN)
        for_each(turns, take, max(1, min(n_threads, len(turns))))

    def _scratch(self) -> _Scratch:
        code = self._layout.code
        codes = np.zeros((max(self._layout.n_slots, 1), TILE), dtype=code)
        return _Scratch(codes, np.empty(TILE, dtype=code), np.empty((self.forest.n_outputs, TILE), dtype=np.float64))

    def _score_tile(self, scratch: _Scratch, rows: int, out: npt.NDArray[np.float64], first: int) -> None:
        """Score the ``rows`` whose codes are in ``scratch`` into ``out[first:]``, which holds the base score."""
        codes, at, outputs = scratch
        self._wrap(scratch, rows)
        if self.forest.link == "identity":
            self._layout.add_trees(codes, rows, self._trees_of[0], at, out, first)
            return
        outputs.fill(self.forest.base_score)
        for trees, sums in zip(self._trees_of, outputs, strict=True):
            self._layout.add_trees(codes, rows, trees, at, sums, 0)
        _kernels.apply_link(self._ordinal, self._values, outputs, 0, rows, out[first : first + rows])

    def _wrap(self, scratch: _Scratch, rows: int) -> None:
        _tree_kernels.wrap_codes(scratch.codes, rows, self._layout.wrapped, len(self.features))

    @property
    def code_bytes(self) -> int:
        """Bytes per row of `codes_buffer`."""
        return len(self.features) * self._layout.code.itemsize

    def codes_buffer(self, n_rows: int) -> npt.NDArray[Any]:
        """Return a buffer for the codes of ``n_rows``, to fill by column with `take_column`.

        Its shape is (tiles, features, rows of a tile).

        A code takes one byte, or two if a feature or a tree is large.
        """
        shape = (-(-n_rows // TILE), len(self.features), TILE)
        n_bytes = math.prod(shape) * self._layout.code.itemsize
        if n_bytes < MAPPED:
            return np.empty(shape, dtype=self._layout.code)
        memory = mmap.mmap(
            -1, n_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        )  # unmapped with the last reference to it
        if hasattr(mmap, "MADV_HUGEPAGE"):
            memory.madvise(mmap.MADV_HUGEPAGE)
        return np.frombuffer(cast("Any", memory), dtype=self._layout.code).reshape(shape)

    def take_column(self, codes: npt.NDArray[Any], slot: int, first: int, values: npt.NDArray[np.float32]) -> None:
        """Write the codes of some values of one feature to ``codes``, as `Predictor.take_column` says."""
        if not 0 <= slot < codes.shape[1] or not 0 <= first <= first + len(values) <= codes.shape[0] * TILE:
            raise ValueError(f"no room for {len(values)} values of feature {slot} from row {first} on")
        values = np.ascontiguousarray(values, dtype=np.float32).view()
        values.flags.writeable = False  # like Arrow's arrays: a kernel is compiled for each kind
        _kernels.bin_column(values, first, slot, *self._search, codes)

    def scores_of_codes(self, codes: npt.NDArray[Any], n_rows: int) -> npt.NDArray[np.float64]:
        """Return the (``n_rows``,) scores, as `scores` does, once ``codes`` has the values of all features."""
        out = np.full(n_rows, self.forest.base_score, dtype=np.float64)
        scratch = self._scratch()
        for tile, first in enumerate(range(0, n_rows, TILE)):
            scratch.codes[: len(self.features)] = codes[tile]
            self._score_tile(scratch, min(TILE, n_rows - first), out, first)
        return out


class _Scratch(NamedTuple):
    """Scratch buffers for scoring a tile: codes (slots, TILE), leaves (TILE,), sums (outputs, TILE)."""

    codes: npt.NDArray[Any]
    at: npt.NDArray[Any]
    outputs: npt.NDArray[np.float64]


_Use = Callable[[_Scratch, int, int], None]
"""Called with codes, the first row of a tile and the number of its rows."""


def predict(
    forest: Forest,
    values: npt.NDArray[np.float32],
    *,
    n_rounds: int | None = None,
    start_round: int = 0,
    n_threads: int = 1,
) -> npt.NDArray[np.float64]:
    """Return the (n,) float64 scores of ``values`` (n, n_features): base + w1 * tree1 + w2 * tree2 + ... in this order.

    If the forest has several outputs, each is such a sum over its own trees, and the forest's link makes one score of
    them.  Features in float64 are rounded to float32 first; NaN is missing.  ``n_rounds`` uses this number of rounds
    only, from ``start_round`` on; without round 0 the base score is left out, too.  The scores have the same bits for
    any batch size and ``n_threads``.  For many batches of one model make a ``ForestPredictor`` once.

    Raises
    ------
    ValueError
        ``values`` is not a (n, n_features) table of floats.
    InputError
        The model has fewer rounds.
    """
    return ForestPredictor(forest, n_rounds=n_rounds, start_round=start_round).scores(values, n_threads=n_threads)
