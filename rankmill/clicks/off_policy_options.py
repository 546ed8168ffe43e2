"""The options of off-policy evaluation and interleaving.  Nothing heavy is imported here: the command line reads this module."""

from __future__ import annotations

from typing import Literal, get_args

from rankmill.clicks.judge_options import DEFAULT_SHRINKAGE, ClickWeighting, JudgeOptions
from rankmill.foundation.options import group, option, option_like, options

RankWeight = Literal["clicks", "dcg"]
Unit = Literal["sessions", "queries"]


@options
class OffPolicyOptions:
    """How rankings are evaluated on a log of other rankings."""

    rank_weight: RankWeight = option(
        default="clicks",
        help="What a relevant document at a rank counts. clicks: its examination probability, so the value is expected"
        " clicks. dcg: 1 / log2(rank + 1).",
        choices=get_args(RankWeight),
    )
    cutoff: int = option(default=10, help="Deepest rank that counts.", least=1, most=1000)
    weighting: ClickWeighting = group(default_factory=ClickWeighting)
    shrinkage: float = option_like(
        JudgeOptions,
        "shrinkage",
        default=DEFAULT_SHRINKAGE,
        help="Impressions of an average document that are added to each one in the regression of dr.",
    )
    unit: Unit = option(
        default="sessions",
        help="What is drawn again for the 95 % intervals. queries: as if other queries could have been asked.",
        choices=get_args(Unit),
    )
    min_overlap: float = option(
        default=0.5,
        help="Refuse a ranking if the documents that the log has shown get less than this share of its rank weights.",
        least=0,
        most=1,
    )


@options
class InterleavingOptions:
    """How lists are interleaved."""

    length: int = option(default=10, help="Documents in a list.", least=1, most=64)
    drafts: int = option(
        default=20,
        help="Lists for each query; serve each session one of them at random, or by a hash of its id.",
        least=1,
        most=10_000,
    )
    seed: int = option(default=1, help="Seed of the coins.", least=0, most=2**63 - 1)
