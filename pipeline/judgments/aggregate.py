"""Several judgments of each document become one, as :mod:`pipeline.judgments.rules` says; their order does not matter."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from pipeline.judgments.rules import WITH_LABEL

if TYPE_CHECKING:
    from pipeline.judgments.rules import Aggregate

DOCUMENT = ("qid", "doc_id")


def aggregated(judgments: pl.LazyFrame, how: Aggregate | None) -> pl.LazyFrame:
    """Make one row of the judgments of each document.

    Parameters
    ----------
    judgments
        Columns qid, doc_id, grade (an integer, 0 or more) and, for ``latest``, time (an integer), in any order.
    how
        Which of `pipeline.judgments.rules.AGGREGATES`; None: the lowest grade, for where all are the same.

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
