"""The vocabulary of a dataset: the codes of its categories with their texts, and the number of rows with each.

Texts come from the files, counts from the shards as they are written.  So neither depends on the order of the rows, and
a dataset that was extended has the same vocabulary as one made at once.  A feature has at most 100,000 categories and
25 MB of texts, and all texts together have a limit that depends on the memory of the ingest.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rankmill.foundation.cures import spelled_with
from rankmill.foundation.errors import DataRejected, InputError
from rankmill.foundation.options import spelled
from rankmill.pipeline.arrow import schema_of
from rankmill.pipeline.bins.categories import code_name
from rankmill.pipeline.options import MOST_CATEGORIES

if TYPE_CHECKING:
    from typing import Self

MOST_TEXT_BYTES = 25 << 20  # of a feature
_SHOWN = 8  # features that a line lists
_A_CATEGORY = 250  # bytes of a text in a dict besides its letters, and of its counts
MOST_BYTES = MOST_CATEGORIES * _A_CATEGORY + MOST_TEXT_BYTES
"""Memory of the texts of a feature, at most."""
SCHEMA = schema_of(
    [
        ("feature", pa.string(), False),
        ("code", pa.float32(), False),
        ("text", pa.string(), False),
        ("rows", pa.int64(), False),
    ]
)

Codes = npt.NDArray[np.float32]
Tally = tuple[Codes, npt.NDArray[np.int64]]
"""Ascending codes (c,) and the number of rows with each (c,)."""
EMPTY: Codes = np.empty(0, dtype=np.float32)


def tally_of(values: Codes) -> Tally:
    """Count the codes among ``values`` (n,), NaN aside.

    >>> [part.tolist() for part in tally_of(np.array([2, np.nan, 1, 2], dtype=np.float32))]
    [[1.0, 2.0], [1, 2]]
    """
    present = values[~np.isnan(values)] + np.float32(0)  # -0.0 is 0.0
    codes, rows = np.unique(present, return_counts=True)
    return codes, rows.astype(np.int64)


def summed(tallies: Iterable[Tally]) -> Tally:
    """Return the sum of ``tallies``, which may be negative, without codes that no row has."""
    parts = [*tallies] or [tally_of(EMPTY)]
    codes, place = np.unique(np.concatenate([codes for codes, _ in parts]), return_inverse=True)
    rows = np.zeros(len(codes), dtype=np.int64)
    np.add.at(rows, place, np.concatenate([rows for _, rows in parts]))
    return codes[rows != 0], rows[rows != 0]


class Vocabulary:
    """The categories of some features: texts with their codes, and rows with each code.  Threads may add texts.

    Attributes
    ----------
    texts
        The code of each text that is not its own code, by feature.
    tallies
        The rows with each code, by feature.
    """

    def __init__(self, memory: int | None = None) -> None:
        """Begin without categories; their texts may take ``memory`` bytes."""
        self._memory = memory
        self.texts: dict[str, dict[str, float]] = {}
        self.tallies: dict[str, Tally] = {}
        self._bytes: Counter[str] = Counter()
        self._adding = threading.Lock()

    def add(self, categories: Mapping[str, Mapping[str, float]]) -> None:
        """Add the codes of texts, by feature.

        DataRejected if a feature has too many. InputError if they do not fit into memory.
        """
        with self._adding:
            for name, found in categories.items():
                known = self.texts.setdefault(name, {})
                new = {text: code for text, code in found.items() if text not in known}
                known.update(new)
                self._bytes[name] += sum(map(len, new))
                check_number(name, len(known))
                if self._bytes[name] > MOST_TEXT_BYTES:
                    raise _too_many(name, f"more than {MOST_TEXT_BYTES >> 20} MB of texts")
            if self._memory is not None and self.bytes_held > self._memory:
                raise InputError(
                    f"the texts of the categories take more than {self._memory >> 20} MB; increase "
                    f"{spelled('memory')}, or leave features of many categories out of {spelled('categorical')}"
                )

    def begin(self, features: Iterable[str]) -> None:
        """Begin to count the rows of these categorical ``features``."""
        self.tallies = {name: tally_of(EMPTY) for name in features}

    def count(self, tallies: Iterable[Tally]) -> None:
        """Add the number of rows with each code of each counted feature, in their order.

        DataRejected if a feature has too many.
        """
        with self._adding:
            for name, tally in zip(self.tallies, tallies, strict=True):
                self.tallies[name] = summed([self.tallies[name], tally])
                check_number(name, len(self.tallies[name][0]))

    @property
    def bytes_held(self) -> int:
        """Memory of the texts and their counts, at most."""
        return sum(len(texts) * _A_CATEGORY + self._bytes[name] for name, texts in self.texts.items())

    @property
    def clashes(self) -> dict[str, list[tuple[str, ...]]]:
        """The texts of a feature that have the same code by chance, by feature; empty if there are none."""
        found = {}
        for name, texts in self.texts.items():
            of_code: dict[float, list[str]] = {}
            for text, code in texts.items():
                of_code.setdefault(code, []).append(text)
            same = [tuple(sorted(of)) for of in of_code.values() if len(of) > 1]
            if same:
                found[name] = sorted(same)
        return found

    def names(self, feature: str) -> dict[float, str]:
        """Return the text of each code of ``feature``, without numbers, which are their own texts.

        Where two texts have the same code, the first one in alphabetical order stands for both.
        """
        return {code: text for text, code in sorted(self.texts.get(feature, {}).items(), reverse=True)}

    def named(self, feature: str, codes: Codes) -> tuple[str, ...]:
        """Return the texts of ``codes`` (n,) of ``feature``; empty if all are numbers."""
        names = self.names(feature)
        found = tuple(code_name(code, names) for code in codes.tolist())
        return found if any(code in names for code in codes.tolist()) else ()

    def most_frequent(self, feature: str) -> list[tuple[str, int]]:
        """Return the categories of ``feature`` with their rows, the most frequent first."""
        codes, rows = self.tallies.get(feature, tally_of(EMPTY))
        names = self.names(feature)
        order = np.argsort(-rows, kind="stable")
        return [(code_name(float(codes[k]), names), int(rows[k])) for k in order]

    def number(self, feature: str) -> int:
        """Return how many categories of ``feature`` some row has."""
        return len(self.tallies.get(feature, (EMPTY,))[0])

    def summary(self, features: Sequence[str]) -> str:
        """Return a line with the numbers of categories of the first ``features``."""
        counts = [f"{name} ({self.number(name):,})" for name in features[:_SHOWN]]
        more = f" and {len(features) - _SHOWN:,} more" if len(features) > _SHOWN else ""
        return ", ".join(counts) + more

    def table(self, features: Sequence[str]) -> pa.Table:
        """Return the vocabulary of ``features`` as a table, by feature, rows from many to few, and code.

        A text that no judged row has is listed with 0 rows; texts with the same code each have the rows of all.
        """
        columns: dict[str, list[object]] = {name: [] for name in SCHEMA.names}
        for feature in features:
            texts: dict[float, list[str]] = {}
            for text, code in self.texts.get(feature, {}).items():
                texts.setdefault(code, []).append(text)
            codes, counts = self.tallies.get(feature, tally_of(EMPTY))
            rows = dict.fromkeys(texts, 0) | dict(zip(codes.tolist(), counts.tolist(), strict=True))
            for code in sorted(rows, key=lambda code: (-rows[code], code)):
                for text in sorted(texts.get(code, ())) or [code_name(code)]:
                    for name, value in zip(SCHEMA.names, (feature, code, text, rows[code]), strict=True):
                        columns[name].append(value)
        return pa.Table.from_arrays([pa.array(columns[each.name], each.type) for each in SCHEMA], schema=SCHEMA)

    @classmethod
    def from_table(cls, table: pa.Table) -> Self:
        """Read what :meth:`table` returned."""
        found = cls()
        tallies: dict[str, dict[float, int]] = {}
        for feature, code, text, rows in zip(*(column.to_pylist() for column in table.columns), strict=True):
            if text != code_name(code):
                found.texts.setdefault(feature, {})[text] = code
            if rows:
                tallies.setdefault(feature, {})[code] = rows
        for feature, counts in tallies.items():
            codes = np.array(sorted(counts), dtype=np.float32)
            found.tallies[feature] = codes, np.array([counts[code] for code in codes.tolist()], dtype=np.int64)
        return found


def check_number(feature: str, number: int) -> None:
    """Raise DataRejected if ``number`` categories of ``feature`` are too many."""
    if number > MOST_CATEGORIES:
        raise _too_many(feature, f"more than {MOST_CATEGORIES:,} categories")


def _too_many(feature: str, what: str) -> DataRejected:
    return DataRejected(
        f"feature {feature!r} has {what}; its values are too different to be categories; leave it out of"
        f" {spelled('categorical')}, or out of the dataset with {spelled_with('ignore', [feature])}"
    )
