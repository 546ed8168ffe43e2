"""Parse grades: words, negative numbers and missing grades, with the same rules for tables, text and qrels.

Rules apply in this order: the map of words (which may contain numbers), negative numbers, missing grades.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, cast, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rankmill.foundation.cures import spelled_with
from rankmill.foundation.errors import InputError
from rankmill.foundation.options import spelled
from rankmill.pipeline.options import MAX_GRADE, NegativeGrades, ReadOptions, Unjudged, Words, check_words, word_key
from rankmill.pipeline.read._number_kernels import TRUTH

HIGHEST_LABEL_AS_GRADE = 31  # whole labels above are amounts, whose gain 2^grade - 1 would dominate every sum
STEEP = 5  # steps between two grades in use from which on the gain of the lower one, 1/32, is next to nothing
MOST_MAPPED = 8  # grades in a message
UNKNOWN_GRADE = -1  # the document is unjudged
GRADE_RULE = "a grade: a whole number, 0 or more"

_NOTHING = frozenset({"", "nan", "null"})
_NO_WORD = math.inf  # value of an unknown word: never a grade


def can_be_grades(label: npt.NDArray[np.float64], max_grade: int | None) -> npt.NDArray[np.bool_]:
    """Return which of ``label`` (n,) are whole numbers that may be grades: at most ``max_grade``, None: 31."""
    highest = HIGHEST_LABEL_AS_GRADE if max_grade is None else max_grade
    fitting: npt.NDArray[np.bool_] = (label >= 0) & (label <= highest) & (label == np.floor(label))
    return fitting


def note_on_gains(grades: Iterable[int], gain: str = "exp") -> str:
    """Return a note if some of the ``grades`` in use have almost no influence under exponential ``gain``.

    It is empty if there are none.

    >>> note_on_gains([0, 1, 2, 3, 4]), note_on_gains([0, 10]), note_on_gains([0, 10, 20, 30], "linear")
    ('', '', '')
    """
    used = sorted({int(grade) for grade in grades if grade > 0})
    gap, above = max(((high - low, high) for low, high in pairwise(used)), default=(0, 0))
    if gain != "exp" or gap < STEEP:
        return ""
    ranks = ",".join(f"{grade}={rank}" for rank, grade in enumerate(used[:MOST_MAPPED], start=1))
    ranks += ",.." if len(used) > MOST_MAPPED else ""
    return (
        f"a document of grade {above} gains {2**gap:,} times as much as one of grade {above - gap} (gain exp, 2^grade "
        f"- 1), so the higher grade alone decides; map the grades ({spelled('grades')} {ranks} when they are read), "
        f"or use {spelled('gain')} linear"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GradeRules:
    """How grades are read.

    Attributes
    ----------
    words
        Pairs of a word (or a number, as text) and its grade; case and surrounding blanks are ignored.  Other numbers
        are grades themselves.
    negative
        How to treat negative whole numbers: as an error (``reject``), grade 0 (``zero``), or unjudged (``unjudged``).
    unjudged
        How to treat missing grades: as unjudged (``keep``, :data:`UNKNOWN_GRADE`), grade 0 (``zero``), or an error
        (``reject``).
    highest
        Highest grade allowed.
    of_goals
        Whether these are grades of goals.
    other
        The rules of goals, if the grades of the rows themselves are ignored.

    Raises
    ------
    InputError
        A policy is unknown, a word occurs twice, or its grade is invalid.
    """

    words: Words = ()
    negative: NegativeGrades = "reject"
    unjudged: Unjudged = "reject"
    highest: int = MAX_GRADE
    of_goals: bool = False
    other: GradeRules | None = None

    def __post_init__(self) -> None:
        if self.negative not in get_args(NegativeGrades):
            raise InputError.unknown(f"value of {spelled('negative_grades')}", self.negative, get_args(NegativeGrades))
        if self.unjudged not in get_args(Unjudged):
            raise InputError.unknown(f"value of {spelled('unjudged')}", self.unjudged, get_args(Unjudged))
        check_words(self.words, self.negative, self.highest)

    @classmethod
    def of(cls, options: ReadOptions) -> GradeRules:
        """Return the rules in ``options``; for candidates grades are optional."""
        return cls(
            words=options.words,
            negative=options.negative_grades,
            unjudged=options.unjudged if options.grade_required else "keep",
            highest=options.highest_grade,
            other=None if options.of_goals is None else cls.of(options.of_goals),
        )

    @property
    def for_goals(self) -> GradeRules:
        """The rules by which goals are read."""
        return replace(self.other or self, of_goals=True)

    @property
    def maps_numbers(self) -> bool:
        """Whether a number may be mapped to another grade."""
        return any(isinstance(word_key(word), float) for word, _ in self.words)

    def read_words(self, words: pa.Array[Any]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.bool_]]:
        """Parse strings (n,), null or empty if there is no grade.

        Returns
        -------
        grades : (n,) int32
            :data:`UNKNOWN_GRADE` if unjudged; undefined where bad.
        bad : (n,) bool
            Which of them are invalid; :meth:`expected` says why.
        """
        codes, numbers = self._numbers(words)
        grades, bad = self._resolve(numbers)
        return grades[codes], bad[codes]

    def numbers(self, words: pa.Array[Any]) -> npt.NDArray[np.float64]:
        """Parse strings (n,) before policies apply: NaN for a missing grade, infinity for an invalid one."""
        codes, numbers = self._numbers(words)
        return numbers[codes]

    def _numbers(self, words: pa.Array[Any]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float64]]:
        """Return the index of each of ``words`` (n,) among the distinct ones, and the numbers of these."""
        coded = words.dictionary_encode()
        grade_of = {word_key(word): float(grade) for word, grade in self.words}
        known = [self._number(word, grade_of) for word in cast("list[str]", coded.dictionary.to_pylist())]
        return coded.indices.fill_null(len(known)).to_numpy(), np.array([*known, math.nan])  # the last one for null

    def resolve_numbers(self, numbers: npt.NDArray[np.float64]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.bool_]]:
        """Read numbers (n,), NaN if there is no grade; returns the same as :meth:`read_words`."""
        mapped = numbers
        for word, grade in self.words:
            key = word_key(word)
            if isinstance(key, float):
                mapped = np.where(numbers == key, float(grade), mapped)
        return self._resolve(mapped)

    def expected(self, found: str | float | None) -> tuple[str, str]:
        """Return what was expected instead of the invalid grade ``found``, and the cure or nothing."""
        key: str | float = "" if found is None else word_key(found) if isinstance(found, str) else found
        if (isinstance(key, str) and key in _NOTHING) or (isinstance(key, float) and math.isnan(key)):
            if self.of_goals:
                zero = spelled_with("unjudged", "zero")
                return GRADE_RULE, f"write 0 if there is none; to read empty cells as 0: {zero}"
            return GRADE_RULE, f"to accept rows without a grade: {spelled_with('unjudged', 'keep')} (or zero)"
        if isinstance(key, str) and self.words:
            return (
                f"a grade: one of {', '.join(f'{word}={grade}' for word, grade in self.words)}, or a number",
                f"correct it, or add it to {spelled('grades')}",
            )
        if isinstance(key, str):
            mapped = spelled_with("grades", {"good": 1, "bad": 0})
            return GRADE_RULE, f"{mapped} maps words to grades" if key[0].isalpha() else ""
        if key > self.highest and math.isfinite(key):
            return f"a grade up to {self.highest}", ""
        if key < 0 and key == np.floor(key) and math.isfinite(key):
            accepted = spelled_with("negative_grades", "zero")
            return GRADE_RULE, f"to accept negative grades: {accepted}{'' if self.of_goals else ' (or unjudged)'}"
        if self.of_goals:
            return GRADE_RULE, "cut amounts into a few levels, for example with ntile(4) in SQL"
        return GRADE_RULE, ""

    def _number(self, word: str, grade_of: dict[str | float, float]) -> float:
        key = word_key(word)
        if key in grade_of:
            return grade_of[key]
        if isinstance(key, float):
            return key
        return math.nan if key in _NOTHING else TRUTH.get(key, _NO_WORD)

    def _resolve(self, numbers: npt.NDArray[np.float64]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.bool_]]:
        """Apply the policies to mapped numbers."""
        nothing = np.isnan(numbers)
        with np.errstate(invalid="ignore"):
            whole = np.isfinite(numbers) & (numbers == np.floor(numbers))
        negative = whole & (numbers < 0)
        zero = np.zeros_like(nothing)
        if self.negative == "zero":
            zero |= negative
        elif self.negative == "unjudged":
            nothing |= negative
        if self.unjudged == "zero":
            zero |= nothing
        good = (whole & ~negative & (numbers <= self.highest)) | zero
        grades = np.where(good & ~zero, numbers, 0.0).astype(np.int32)
        if self.unjudged == "keep":
            grades[nothing] = UNKNOWN_GRADE
            good |= nothing
        return grades, ~good
