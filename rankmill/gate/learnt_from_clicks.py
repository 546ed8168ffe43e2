"""What a version records about its clicks, and what a log says about rankings.

The record is the attachment ``clicks``.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rankmill.foundation.records import as_json, canonical_json, from_json, left_out

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from rankmill.clicks.options import ClickLogOptions
    from rankmill.gate.judging import ByClicks
    from rankmill.pipeline.judgments.propensities import Propensities
    from rankmill.registry import Version

CLICKS = "clicks"


def naive_name(name: str) -> str:
    """Return the name under which the naive model beside ``name`` is registered."""
    return f"{name}-naive"


@dataclass(frozen=True, slots=True, kw_only=True)
class LearntFromClicks:
    """How clicks became the labels of a version.

    Parameters
    ----------
    model
        The click model whose examination probabilities corrected them; None: they were not corrected.
    naive
        The version learnt from the same clicks and parameters without correction, such as ``web-naive@7``.
    judged
        The splits of its own dataset whose queries people judged.  Other splits have labels from clicks, which prove
        nothing about the correction.
    """

    model: str | None
    naive: str | None = left_out()
    judged: tuple[str, ...] = ()

    def to_bytes(self) -> bytes:
        """Return the attachment."""
        return canonical_json(as_json(self))


@dataclass(frozen=True, slots=True)
class ClickEvidence:
    """A click log, and the examination probabilities of its ranks.

    They allow comparing rankings that were not shown.
    """

    log: Sequence[Path]
    propensities: Propensities
    reading: ClickLogOptions | None = None

    @contextmanager
    def compared(self) -> Iterator[ByClicks]:
        """Open the log, and yield a function that compares two rankings."""
        from rankmill.clicks.off_policy import off_policy_difference
        from rankmill.clicks.read_log import open_click_log

        with open_click_log(self.log, self.reading) as log:
            yield lambda candidate, other: off_policy_difference(log, candidate, other, self.propensities)


def clicks_of(version: Version) -> LearntFromClicks | None:
    """Return what ``version`` says; None if it was not learnt from clicks."""
    data = version.attachment(CLICKS)
    return None if data is None else from_json(LearntFromClicks, data, f"{version}, {CLICKS}")
