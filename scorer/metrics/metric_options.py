"""The conventions of metrics.  Tools differ in each of them, so every report states them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection
from typing import Literal, get_args

from rankmill.foundation.errors import InvalidParameter
from rankmill.foundation.options import option, options, spelled

Gain = str  # exp, linear, or table(g0,g1,..)
Discount = str  # log2, one_plus_log2, letor, or table(d1,d2,..)
Ties = Literal["expected", "doc_id", "doc_id_descending", "pessimistic", "optimistic", "row_order", "random"]
NothingRelevant = Literal["skip", "zero", "one"]
ShortLists = Literal["normal", "zero"]
MapNormalisation = Literal["R", "min(R,k)"]
PrecisionNormalisation = Literal["k", "min(k,n)"]

TIES: tuple[str, ...] = get_args(Ties)

_GAIN_FORMULA = {"exp": "exp (2^grade - 1)", "linear": "linear (grade)"}
_DISCOUNT_FORMULA = {
    "log2": "1/log2(rank + 1)",
    "one_plus_log2": "1/(1 + log2(rank))",
    "letor": "1/log2(max(rank, 2))",
}
_NOTHING_RELEVANT_WORDS = {"skip": "skipped", "zero": "counted as 0", "one": "counted as 1"}


@options
class Policy:
    """How to compute metrics where conventions differ.

    Attributes
    ----------
    gain
        ``exp``: a document of grade y gains ``2^y - 1``; ``linear``: it gains ``y``; ``table(0,1,3,7,15)``: the gains
        of grades 0, 1, ..  A grade below 0, which some published judgments use for spam, gains nothing and is not
        relevant, as in trec_eval.
    discount
        ``log2``: rank r (from 1) counts ``1 / log2(r + 1)``.  ``one_plus_log2``: ``1 / (1 + log2 r)``.  ``letor``:
        ranks 1 and 2 count 1, and rank r >= 3 counts ``1 / log2 r``.  ``table(1,0.5,0.25)``: the discounts of ranks 1,
        2, ..; ranks beyond its end count nothing.
    ties
        How documents of equal score count.  ``expected``: the mean over all their orders, in closed form.
        ``doc_id``: ascending document id, the order that `rerank` writes.  ``doc_id_descending``: descending, the rule
        of trec_eval.  ``pessimistic``, ``optimistic``: worst or best grade first.  ``row_order``: as stored, which
        rewards a file that happens to be sorted by grade.  ``random``: shuffled, keyed by ``ties_seed``, the number of
        the query and the place of the document by its id (by its row where there are no ids).
        A tie in ``concordance`` counts as half right (``expected``), wrong (``pessimistic``) or right (``optimistic``).
    nothing_relevant
        The value of a query without relevant documents: ``skip`` it, ``zero`` or ``one``.  DCG has no maximum of 1,
        so for DCG ``one`` counts 0 as well.
    max_grade
        Highest grade of the scale, not of the list.  ``err`` needs it: a document of grade y satisfies the
        reader with probability ``(2^y - 1) / 2^max_grade``, whatever the gain is.
    map_normalisation
        What the sum of precisions in ``map`` is divided by: ``R``, the number of relevant documents; ``min(R,k)``, how
        many of them fit above the cutoff.
    precision_normalisation
        What the hits in ``precision@k`` are divided by: ``k``, or ``min(k,n)`` in a list of n documents.

    Raises
    ------
    InvalidParameter
        A value is none of the above.
    """

    gain: Gain = option(
        default="exp",
        help="Gain of a grade y: exp (2^y - 1), linear (y), or a table such as table(0,1,3,7,15).",
        convert=lambda text: _checked_table("gain", text, _GAIN_FORMULA),
    )
    discount: Discount = option(
        default="log2",
        help="Discount of rank r in DCG: log2 (1/log2(r + 1)), one_plus_log2 (1/(1 + log2 r)), letor (1/log2(max(r, "
        "2))), or a table such as table(1,0.5,0.25).",
        convert=lambda text: _checked_table("discount", text, _DISCOUNT_FORMULA),
    )
    ties: Ties = option(
        default="expected",
        help="How to order documents with equal scores: expected (mean over all orders), doc_id, doc_id_descending, "
        "pessimistic, optimistic, row_order or random.",
        choices=TIES,
        metavar="NAME",
    )
    nothing_relevant: NothingRelevant = option(
        default="skip",
        help="How to treat queries without relevant documents: skip them, or count them as zero or one.",
        choices=get_args(NothingRelevant),
    )
    relevant_from: int = option(
        default=1,
        help="Lowest grade that is relevant for map, mrr, precision, recall, rbp and balanced_error.",
        least=1,
    )
    max_grade: int | None = option(
        default=None,
        help="Highest grade of the scale, for err.  Default: that of the convention, else of the model, else the "
        "highest in the data.",
        least=1,
        most=52,
    )
    short_lists: ShortLists = option(
        default="normal",
        help="How to treat queries with fewer than k documents in ndcg@k: normal, or zero (they count as 0).",
        choices=get_args(ShortLists),
    )
    map_normalisation: MapNormalisation = option(
        default="R",
        help="Divisor of the sum of precisions in map: R (relevant documents) or min(R,k).",
        choices=get_args(MapNormalisation),
    )
    precision_normalisation: PrecisionNormalisation = option(
        default="k",
        help="Divisor in precision@k: k, or min(k,n) in a list of n documents.",
        choices=get_args(PrecisionNormalisation),
    )
    ties_seed: int = option(default=0, help="Seed for random ties.", least=0, most=2**63 - 1)

    def describe(self) -> str:
        r"""Return one line for reports; rare conventions are named only if they apply.

        >>> print(*Policy(max_grade=4).describe().split(", "), sep="\n")
        gain exp (2^grade - 1)
        discount 1/log2(rank + 1)
        ties expected
        nothing relevant skipped
        relevant from grade 1
        max grade 4
        """
        parts = [
            f"gain {_GAIN_FORMULA.get(self.gain, self.gain)}",
            f"discount {_DISCOUNT_FORMULA.get(self.discount, self.discount)}",
            f"ties {self.ties}" + (f" (seed {self.ties_seed})" if self.ties == "random" else ""),
            f"nothing relevant {_NOTHING_RELEVANT_WORDS[self.nothing_relevant]}",
            f"relevant from grade {self.relevant_from}",
        ]
        if self.max_grade is not None:
            parts.append(f"max grade {self.max_grade}")
        if self.short_lists == "zero":
            parts.append("lists shorter than the cutoff of ndcg count 0")
        if self.map_normalisation != "R":
            parts.append(f"map divided by {self.map_normalisation}")
        if self.precision_normalisation != "k":
            parts.append(f"precision divided by {self.precision_normalisation}")
        return ", ".join(parts)


def table_of(text: str) -> tuple[float, ...] | None:
    """Return the numbers of ``table(..)``; None if ``text`` is a name.

    >>> table_of("table(0,1,2.5)")
    (0.0, 1.0, 2.5)

    Raises
    ------
    ValueError
        Something in the brackets is not a number.
    """
    if not (text.startswith("table(") and text.endswith(")")):
        return None
    return tuple(float(number) for number in text[len("table(") : -1].split(","))


def _checked_table(what: str, text: str, known: Collection[str]) -> str:
    """Return ``text`` in its canonical spelling.

    A gain table ascends from 0, a discount table falls and starts above 0.
    """
    example = "table(0,1,3,7,15)" if what == "gain" else "table(1,0.5,0.25)"
    if text in known:
        return text
    try:
        table = table_of(str(text))
    except ValueError:
        raise InvalidParameter(
            f"{spelled(what)} {text}: expected numbers between the brackets, such as {example}"
        ) from None
    if table is None:
        raise InvalidParameter.unknown(f"value of {spelled(what)}", str(text), (*known, example))
    if not all(math.isfinite(x) and x >= 0.0 for x in table):
        raise InvalidParameter(f"{spelled(what)} {text}: expected numbers of 0 or more, such as {example}")
    if what == "gain" and (table[0] != 0.0 or any(b < a for a, b in itertools.pairwise(table))):
        raise InvalidParameter(
            f"{spelled(what)} {text}: gains must start at 0, that of grade 0, and not fall, as in {example}"
        )
    if what == "discount" and (table[0] <= 0.0 or any(b > a for a, b in itertools.pairwise(table))):
        raise InvalidParameter(f"{spelled(what)} {text}: discounts must start above 0 and not rise, as in {example}")
    return f"table({','.join(repr(x + 0.0).removesuffix('.0') for x in table)})"
