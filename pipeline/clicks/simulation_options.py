"""The options of simulated click logs.  Nothing heavy is imported here: the command line reads this module."""

from __future__ import annotations

from typing import Literal, get_args

from rankmill.foundation.options import option, options

UserModelName = Literal["pbm", "cascade", "dcm", "ubm", "trust"]
Popularity = Literal["zipf", "equal"]
Logger = Literal["f1", "ideal", "random"]

MOST_RANKS = 1000  # of a result list

_PANEL = "Simulated clicks"


@options
class ClickSimulation:
    """Simulated users and the lists that they see; `rankmill.pipeline.clicks.simulate` says what each user model does."""

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
    logger: Logger = option(
        default="f1",
        help="Ranker whose lists were shown. f1: by this feature alone; ideal: by the hidden relevance; random: none.",
        choices=get_args(Logger),
        panel=_PANEL,
    )
