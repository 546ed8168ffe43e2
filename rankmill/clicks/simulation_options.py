"""The options of simulated click logs.  Nothing heavy is imported here: the command line reads this module."""

from __future__ import annotations

from typing import Literal, get_args

from rankmill.foundation.errors import InputError
from rankmill.foundation.options import option, options, spelled

UserModelName = Literal["pbm", "cascade", "dcm", "ubm", "trust"]
Popularity = Literal["zipf", "equal"]
LOGGERS = ("f1", "ideal", "random")
RUN_SUFFIX = ".run"

MOST_RANKS = 1000  # of a result list

_PANEL = "Simulated clicks"


@options
class ClickSimulation:
    """Simulated users and the lists that they see; `rankmill.clicks.simulate` says what each user model does."""

    sessions: int = option(
        default=10_000, help="Number of sessions; each sees one result list.", least=1, most=1 << 40, panel=_PANEL
    )
    user_model: UserModelName = option(
        default="pbm", help="What simulated users do.", choices=get_args(UserModelName), panel=_PANEL
    )
    eta: float = option(
        default=1.0,
        help="Strength of position bias: the exponent of the examination probabilities. 0: none.",
        least=0,
        most=10,
        panel=_PANEL,
    )
    click_noise: float = option(
        default=0.1,
        help="Probability of a click on an examined document of grade 0.",
        least=0,
        below=1,
        panel=_PANEL,
    )
    list_length: int = option(
        default=10, help="Maximum number of documents shown.", least=1, most=MOST_RANKS, panel=_PANEL
    )
    randomised: float = option(
        default=0.0, help="Share of the sessions whose list is in random order.", least=0, most=1, panel=_PANEL
    )
    swapped: float = option(
        default=0.0,
        help="Share of the sessions in which two neighbours, drawn at random, are swapped.",
        least=0,
        most=1,
        panel=_PANEL,
    )
    popularity: Popularity = option(
        default="zipf",
        help="How often queries are asked. zipf: in proportion to 1, 1/2, 1/3, .. in a random order.",
        choices=get_args(Popularity),
        panel=_PANEL,
    )
    logger: str = option(
        default="f1",
        help="Ranker whose lists were shown. f1: by this feature alone; ideal: by the hidden relevance; random: none; or a TREC run"
        " of all these documents, such as rerank writes: lists.run.",
        metavar="f1|ideal|random|FILE.run",
        panel=_PANEL,
    )

    def check_together(self) -> None:
        """Raise InputError if the logging ranker is unknown."""
        if self.logger not in LOGGERS and not self.logger.endswith(RUN_SUFFIX):
            raise InputError.unknown(spelled("logger"), self.logger, (*LOGGERS, f"FILE{RUN_SUFFIX}"))
