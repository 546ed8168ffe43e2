"""The options of ``rankmill run`` that choose stages.  Imports no numeric library."""

from __future__ import annotations

from rankmill.foundation.errors import InputError
from rankmill.foundation.options import option, options, spelled

STAGE_NAMES = ("clicks", "ingest", "bin", "naive", "train", "evaluate", "gate", "promote", "rerank", "report")
OF_CLICKS = ("clicks", "naive")  # only with [clicks]
WITHOUT_CLICKS = tuple(name for name in STAGE_NAMES if name not in OF_CLICKS)


@options
class StageChoice:
    """Which stages a run may execute.

    Attributes
    ----------
    first, last
        The first and the last stage.  Earlier stages must be complete; their output is used as it is.
    forced
        Stages to execute even if nothing has changed.

    Raises
    ------
    InputError
        A stage is unknown, the first comes after the last, or a forced stage is not between them.
    """

    first: str = option(
        default="",
        help=f"First stage to run ({', '.join(STAGE_NAMES)}).  Earlier stages must be complete; their output is used "
        "as it is.",
        flags=("--from",),
        metavar="STAGE",
        convert=lambda name: name or STAGE_NAMES[0],
    )
    last: str = option(
        default="",
        help="Last stage to run.",
        flags=("--until",),
        metavar="STAGE",
        convert=lambda name: name or STAGE_NAMES[-1],
    )
    forced: frozenset[str] = option(
        default=frozenset(),
        help="Run this stage even if nothing has changed; repeat for several.",
        flags=("--force",),
        metavar="STAGE",
        read=frozenset,
        repeat=True,
    )

    def check_together(self) -> None:
        """Raise InputError if stages are unknown or in the wrong order."""
        first, last, forced = map(spelled, ("first", "last", "forced"))
        for option_, names in ((first, [self.first]), (last, [self.last]), (forced, sorted(self.forced))):
            for name in names:
                if name not in STAGE_NAMES:
                    raise InputError(f"{option_} {name}: expected one of {', '.join(STAGE_NAMES)}")
        if STAGE_NAMES.index(self.first) > STAGE_NAMES.index(self.last):
            raise InputError(f"{first} {self.first} {last} {self.last}: {self.first} comes after {self.last}")
        if outside := [name for name in STAGE_NAMES if name in self.forced - {*self.stages}]:
            raise InputError(
                f"{forced} {outside[0]}: is not between {first} {self.first} and {last} {self.last}; leave one of "
                "them out"
            )

    @property
    def stages(self) -> tuple[str, ...]:
        """The stages from the first to the last."""
        return self.reached[STAGE_NAMES.index(self.first) :]

    @property
    def reached(self) -> tuple[str, ...]:
        """The stages up to the last one, with the earlier ones that are not executed."""
        return STAGE_NAMES[: STAGE_NAMES.index(self.last) + 1]
