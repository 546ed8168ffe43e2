"""What all shards of a dataset have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rankmill.pipeline.group.splits import SplitRule
    from rankmill.pipeline.judgments.settle import Settling

ROW_GROUP_BYTES = 64 << 20  # decoded; a group has the largest power of two of rows that fits, so 32 to 64 MiB
_ROW_GROUP_ROWS = 1 << 20  # at most


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What all shards of a dataset have in common.

    Attributes
    ----------
    features
        Names of the columns.
    absent
        Value of the features that a narrower row leaves out.
    rule
        What says which split a query belongs to; None where the files do.
    source_split, source_name
        For each input file its split (index into SPLITS) and its name for messages.
    extras
        Optional columns of the dataset.
    labels_are_grades
        Whether the grades are to be taken from the labels, all of which are whole numbers.
    settling
        Where grades come from; None: each row has its own.
    """

    features: tuple[str, ...]
    absent: float
    rule: SplitRule | None
    source_split: Sequence[int]
    source_name: Sequence[str]
    extras: tuple[str, ...] = ()
    labels_are_grades: bool = False
    settling: Settling | None = None

    @property
    def row_group_rows(self) -> int:
        """Rows of a row group: a function of the number of features alone."""
        fitting = max(1, ROW_GROUP_BYTES // (4 * len(self.features)))
        return int(min(1 << (fitting.bit_length() - 1), _ROW_GROUP_ROWS))

    @property
    def row_group_bytes(self) -> int:
        """Bytes of the values of a row group."""
        return 4 * len(self.features) * self.row_group_rows
