"""Several judgments of one document become one.

===========  ========================================================================================================
mean         arithmetic mean; the grade is it rounded to the next whole number, halves up
median       the middle one, or the mean of the two in the middle; the grade is it rounded, halves up
max          the highest grade
majority     the grade given most often; of several equally often the lowest
latest       the grade given last; of several at the same time the highest
===========  ========================================================================================================

Mean and median give a label besides, the number before it is rounded.  Nothing depends on the order of the judgments.
"""

from __future__ import annotations

from typing import Literal, get_args

import polars as pl

from pipeline.errors import InputError

Aggregate = Literal["mean", "median", "max", "majority", "latest"]
AGGREGATES: tuple[Aggregate, ...] = get_args(Aggregate)
WITH_LABEL = ("mean", "median")
DOCUMENT = ("qid", "doc_id")


def check_aggregate(how: str) -> Aggregate:
    """Return ``how``; InputError if it is none of :data:`AGGREGATES`."""
    for known in AGGREGATES:
        if how == known:
            return known
    raise InputError.unknown("value of --aggregate", how, AGGREGATES)


def aggregated(judgments: pl.LazyFrame, how: Aggregate | None) -> pl.LazyFrame:
    """Make one row of the judgments of each document.

    Parameters
    ----------
    judgments
        Columns qid, doc_id, grade (an integer, 0 or more) and, for ``latest``, time (an integer), in any order.
    how
        Which of :data:`AGGREGATES`; None: the lowest grade, for where all are the same.

    Returns
    -------
    polars.LazyFrame
        Columns qid, doc_id, grade (int32), judgments (how many there were), lowest and highest (of the grades), and
        label (float64) for ``mean`` and ``median``; one row a document, in no particular order.
    """
    grade = pl.col("grade")
    facts = (pl.len().alias("judgments"), grade.min().alias("lowest"), grade.max().alias("highest"))
    documents = judgments.group_by(DOCUMENT)
    if how in WITH_LABEL:
        middle = grade.median() if how == "median" else grade.cast(pl.Int64).sum() / pl.len()
        # grades are below 2^31: half of the sum of two is exact, and so is it plus a half
        twice = grade.median() * 2 if how == "median" else grade.cast(pl.Int64).sum() * 2
        n = pl.lit(1) if how == "median" else pl.len()
        rounded = (twice.cast(pl.Int64) + n.cast(pl.Int64)) // (2 * n.cast(pl.Int64))
        return documents.agg(rounded.cast(pl.Int32).alias("grade"), *facts, middle.cast(pl.Float64).alias("label"))
    if how == "majority":
        votes = judgments.group_by(*DOCUMENT, "grade").agg(pl.len().alias("votes"))
        return votes.group_by(DOCUMENT).agg(
            grade.sort_by("votes", "grade", descending=[True, False]).first().cast(pl.Int32).alias("grade"),
            pl.col("votes").sum().alias("judgments"),
            *facts[1:],
        )
    if how == "latest":
        chosen = grade.filter(pl.col("time") == pl.col("time").max()).max()
    else:
        chosen = grade.max() if how == "max" else grade.min()
    return documents.agg(chosen.cast(pl.Int32).alias("grade"), *facts)
