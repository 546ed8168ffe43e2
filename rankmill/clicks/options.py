"""The options of click logs, click models, judgments, evaluation, interleaving and simulated users.

Nothing heavy is imported here: the command line reads this module.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Literal, get_args

from rankmill.foundation.errors import InputError
from rankmill.foundation.options import option, option_like, options, spelled
from rankmill.pipeline.options import IngestOptions, QueryOptions, ReadOptions

_LOG, _GRADES, _SIMULATED = "Click log", "Grades", "Simulated clicks"

LogFormat = Literal["auto", "csv", "tsv", "parquet", "arrow", "jsonl"]


@options
class ClickLogOptions:
    """How to read a click log."""

    format: LogFormat = option_like(
        IngestOptions,
        "format",
        default="auto",
        help="Format of the files. auto: by suffix.",
        choices=get_args(LogFormat),
        panel=_LOG,
    )
    columns: Mapping[str, str] = option_like(
        ReadOptions,
        "columns",
        default_factory=dict,
        help="Map columns of the log to their roles: qid=query,doc_id=url,session=visit; repeat for more.",
        panel=_LOG,
    )
    delimiter: str | None = option_like(ReadOptions, "delimiter", default=None, panel=_LOG)
    max_rejects: int = option_like(
        IngestOptions,
        "max_rejects",
        default=0,
        help="Maximum number of malformed rows and of contradictory result lists to leave out. One more is an error.",
        panel=_LOG,
    )
    memory: int = option_like(QueryOptions, "memory", default="1GB", panel=_LOG)

    def check_together(self) -> None:
        """Raise InputError if a role is unknown."""
        from rankmill.pipeline.read.column_roles import CLICK_PARTS

        for part in self.columns:
            if part not in CLICK_PARTS:
                raise InputError.unknown(f"role in {spelled('columns')}", part, CLICK_PARTS)


ClickModelName = Literal["dctr", "pbm", "cascade", "dcm", "ubm", "trust", "allpairs", "randomised"]

CLICK_MODELS: tuple[ClickModelName, ...] = get_args(ClickModelName)
DEEPEST = 200  # rank: counts are kept for each rank and rank of the last click above


@options
class ClickFitOptions:
    """How click models are fitted."""

    ranks: int | None = option(
        default=None, help="Deepest rank to fit; left out: the deepest of the log.", least=1, most=DEEPEST
    )
    policy: str | None = option(
        default=None, help="Ranking policy whose lists were in random order, for the model randomised."
    )
    held_out: float = option(default=0.2, help="Share of the sessions to compare models on, by hash.", above=0, below=1)
    replicates: int = option(
        default=50, help="Bootstrap samples of sessions for the 95 % intervals; 0: no intervals.", least=0, most=10_000
    )
    tolerance: float = option(
        default=1e-6,
        help="Stop when no examination probability changes by this share in a step, or the log-likelihood by a "
        "hundred times this.",
        above=0,
        below=1,
        on_command_line=False,
    )
    max_steps: int = option(default=20_000, help="Maximum number of steps of a fit.", least=10, on_command_line=False)


@options
class ClickModelChoice:
    """Which click model."""

    model: ClickModelName = option(
        default="pbm",
        help="Click model. randomised needs --policy; trust is affine: users also click without reason.",
        choices=CLICK_MODELS,
    )


ClickEstimate = Literal["dctr", "pbm", "ips", "snips"]
JudgmentForm = Literal["labels", "grades", "pairs"]

DEFAULT_SHRINKAGE = 10.0  # of estimates for which it does not follow from the log


def _numbers(texts: Iterable[str]) -> tuple[float, ...]:
    """Read texts such as ``0.1,0.3``.

    >>> _numbers(["0.1, 0.3"])
    (0.1, 0.3)
    """
    pieces = [piece.strip() for text in texts for piece in text.split(",")]
    try:
        return tuple(map(float, pieces))
    except ValueError:
        raise InputError(f"expected numbers such as 0.1,0.3, found {','.join(pieces)!r}") from None


@options
class JudgeOptions:
    """How judgments are made from clicks."""

    form: JudgmentForm = option(
        default="labels",
        help="labels: an estimate for each document. grades: also a grade. pairs: preference pairs.",
        choices=get_args(JudgmentForm),
        flags=("--as",),
    )
    estimate: ClickEstimate | None = option(
        default=None,
        help="How relevance is estimated. Default: pbm with --propensities, else dctr.",
        choices=get_args(ClickEstimate),
    )
    clip: float = option(
        default=0.1,
        help="Examination probabilities below this are taken as this, so that no click counts more than 1 / clip.",
        above=0,
        most=1,
    )
    shrinkage: float | None = option(
        default=None,
        help="Number of impressions of an average document that are added to each one by dctr and pbm."
        " Default: 10; for pbm estimated from the log.",
        least=0,
        most=1e9,
    )
    thresholds: tuple[float, ...] = option(
        default=(),
        help="Lowest estimates of grade 1, 2, ..: 0.1,0.3,0.6.",
        metavar="LABEL,..",
        read=_numbers,
        repeat=True,
        convert=tuple,
        panel=_GRADES,
    )
    quantiles: tuple[float, ...] = option(
        default=(),
        help="Shares of the documents below grade 1, 2, ..; without thresholds 0.5,0.75,0.9,0.97.",
        metavar="SHARE,..",
        read=_numbers,
        repeat=True,
        convert=tuple,
        panel=_GRADES,
    )

    def check_together(self) -> None:
        """Raise InputError if values do not go together."""
        for name, numbers in (("thresholds", self.thresholds), ("quantiles", self.quantiles)):
            if numbers and self.form != "grades":
                raise InputError(f"{spelled(name)} applies to {spelled('form')} grades; leave it out")
            if any(not low < high for low, high in pairwise(numbers)):
                raise InputError(f"{spelled(name)} must ascend, got {','.join(map(str, numbers))}")
        if any(not 0.0 < share < 1.0 for share in self.quantiles):
            raise InputError(
                f"{spelled('quantiles')} must be between 0 and 1, got {','.join(map(str, self.quantiles))}"
            )
        if self.thresholds and self.quantiles:
            raise InputError(f"{spelled('thresholds')} and {spelled('quantiles')}: use one of the two")
        if self.form == "pairs" and self.estimate is not None:
            raise InputError(f"{spelled('estimate')} does not apply to {spelled('form')} pairs; leave it out")


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
    clip: float = option_like(JudgeOptions, "clip", default=0.1)
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


UserModelName = Literal["pbm", "cascade", "dcm", "ubm", "trust"]
Popularity = Literal["zipf", "equal"]
LOGGERS = ("f1", "ideal", "random")
RUN_SUFFIX = ".run"

MOST_RANKS = 1000  # of a result list


@options
class ClickSimulation:
    """Simulated users and the lists that they see; `rankmill.clicks.simulate` says what each user model does."""

    sessions: int = option(
        default=10_000, help="Number of sessions; each sees one result list.", least=1, most=1 << 40, panel=_SIMULATED
    )
    user_model: UserModelName = option(
        default="pbm", help="What simulated users do.", choices=get_args(UserModelName), panel=_SIMULATED
    )
    eta: float = option(
        default=1.0,
        help="Strength of position bias: the exponent of the examination probabilities. 0: none.",
        least=0,
        most=10,
        panel=_SIMULATED,
    )
    click_noise: float = option(
        default=0.1,
        help="Probability of a click on an examined document of grade 0.",
        least=0,
        below=1,
        panel=_SIMULATED,
    )
    list_length: int = option(
        default=10, help="Maximum number of documents shown.", least=1, most=MOST_RANKS, panel=_SIMULATED
    )
    randomised: float = option(
        default=0.0, help="Share of the sessions whose list is in random order.", least=0, most=1, panel=_SIMULATED
    )
    swapped: float = option(
        default=0.0,
        help="Share of the sessions in which two neighbours, drawn at random, are swapped.",
        least=0,
        most=1,
        panel=_SIMULATED,
    )
    popularity: Popularity = option(
        default="zipf",
        help="How often queries are asked. zipf: in proportion to 1, 1/2, 1/3, .. in a random order.",
        choices=get_args(Popularity),
        panel=_SIMULATED,
    )
    logger: str = option(
        default="f1",
        help="Ranker whose lists were shown. f1: by this feature alone; ideal: by the hidden relevance; random: none; "
        "or a TREC run of all these documents, such as rerank writes: lists.run.",
        metavar="f1|ideal|random|FILE.run",
        panel=_SIMULATED,
    )

    def check_together(self) -> None:
        """Raise InputError if the logging ranker is unknown."""
        if self.logger not in LOGGERS and not self.logger.endswith(RUN_SUFFIX):
            raise InputError.unknown(spelled("logger"), self.logger, (*LOGGERS, f"FILE{RUN_SUFFIX}"))
