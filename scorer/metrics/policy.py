"""The conventions under which a metric is computed.  Tools differ in each of them, so every report states them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal, get_args

from scorer.errors import InputError

Gain = Literal["exp", "linear"]
Discount = Literal["log2"]
Ties = Literal["expected", "doc_id", "doc_id_descending", "pessimistic", "optimistic", "row_order"]
NothingRelevant = Literal["skip", "zero", "one"]

GAINS: tuple[str, ...] = get_args(Gain)
DISCOUNTS: tuple[str, ...] = get_args(Discount)
TIES: tuple[str, ...] = get_args(Ties)
NOTHING_RELEVANT: tuple[str, ...] = get_args(NothingRelevant)

_GAIN_FORMULA = {"exp": "2^grade - 1", "linear": "grade"}
_NOTHING_RELEVANT_WORDS = {"skip": "skipped", "zero": "counted as 0", "one": "counted as 1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How to compute metrics where conventions differ.

    Attributes
    ----------
    gain
        ``exp``: a document of grade y gains ``2^y - 1``; ``linear``: it gains ``y``.  A grade below 0, which some
        published judgments use for spam, gains nothing and is not relevant, as in trec_eval.
    discount
        ``log2``: rank r (from 1) counts ``1 / log2(r + 1)``.
    ties
        What documents of equal score count for.  ``expected``: the mean over all their orders, in closed form.
        ``doc_id``: ascending document id, the order that re-ranking writes.  ``doc_id_descending``: descending, the rule
        of trec_eval.  ``pessimistic``, ``optimistic``: worst or best grade first.  ``row_order``: as stored, which
        rewards a file that happens to be sorted by grade.
    nothing_relevant
        What a query without any relevant document counts: ``skip`` it, ``zero`` or ``one``.  DCG is no share of
        anything, so there ``one`` counts 0 as well.
    relevant_from
        Grade from which a document is relevant for ``map``, ``mrr`` and ``precision``; at least 1.
    max_grade
        Highest grade of the scale, not of the list at hand.  ``err`` needs it: a document of grade y satisfies the
        reader with probability ``(2^y - 1) / 2^max_grade``, whatever the gain is.

    Raises
    ------
    InputError
        A value is none of the above.
    """

    gain: Gain = "exp"
    discount: Discount = "log2"
    ties: Ties = "expected"
    nothing_relevant: NothingRelevant = "skip"
    relevant_from: int = 1
    max_grade: int | None = None

    def __post_init__(self) -> None:
        for what, value, known in (
            ("gain", self.gain, GAINS),
            ("discount", self.discount, DISCOUNTS),
            ("ties", self.ties, TIES),
            ("nothing_relevant", self.nothing_relevant, NOTHING_RELEVANT),
        ):
            if value not in known:
                raise InputError.unknown(f"value of {what}", str(value), known)
        if self.relevant_from < 1:
            raise InputError(f"relevant_from must be at least 1, got {self.relevant_from}")
        if self.max_grade is not None and not 1 <= self.max_grade <= 52:
            raise InputError(f"max_grade must be between 1 and 52, got {self.max_grade}")

    def describe(self) -> str:
        """One line for reports.

        >>> Policy(max_grade=4).describe()
        'gain exp (2^grade - 1), discount 1/log2(rank + 1), ties expected, nothing relevant skipped, relevant from grade 1, max grade 4'
        """
        parts = [
            f"gain {self.gain} ({_GAIN_FORMULA[self.gain]})",
            "discount 1/log2(rank + 1)",
            f"ties {self.ties}",
            f"nothing relevant {_NOTHING_RELEVANT_WORDS[self.nothing_relevant]}",
            f"relevant from grade {self.relevant_from}",
        ]
        if self.max_grade is not None:
            parts.append(f"max grade {self.max_grade}")
        return ", ".join(parts)

    def to_dict(self) -> dict[str, str | int | None]:
        """Return all fields by name, for a JSON report."""
        return asdict(self)
