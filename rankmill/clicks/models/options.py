"""The options of fits of click models.  Nothing heavy is imported here: the command line reads this module."""

from __future__ import annotations

from typing import Literal, get_args

from rankmill.foundation.options import option, options

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
        help="Stop when no examination probability changes by this share in a step, or the log-likelihood by a hundred times this.",
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
