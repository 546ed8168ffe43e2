"""The section about clicks: what the log supports, the click model with its intervals, and the naive model beside."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rankmill.gate.learnt_from_clicks import clicks_of
from rankmill.run import CLICK_MODEL, CLICKS, DESCRIPTION, STAGES

if TYPE_CHECKING:
    from rankmill.registry import Version

CLICK_FILES = (
    ("click_stage", f"{STAGES}/{CLICKS}.json"),
    ("described", f"{CLICKS}/{DESCRIPTION}"),
    ("click_model", f"{CLICKS}/{CLICK_MODEL}"),
)
_MOST_RANKS = 20


def click_facts(found: Mapping[str, Any], version: Version) -> dict[str, Any] | None:
    """Return the facts in the files of a work folder, by the names above.

    None if ``version`` was not learnt from clicks.
    """
    said, stage, described = clicks_of(version), found["click_stage"], found["described"]
    if said is None or stage is None or described is None:
        return None
    model = (found["click_model"] or {}) if said.model else {}
    examination, low, high = (model.get(name) or [] for name in ("examination", "low", "high"))

    def at(values: list[float], place: int) -> float | None:
        return values[place] if place < len(values) else None

    return {
        **{name: stage["facts"][name] for name in ("why", "estimate", "judgments", "lists", "queries", "clicks")},
        "model": said.model,
        "naive": said.naive,
        "ranks": [
            {
                "rank": row["rank"],
                "impressions": row["impressions"],
                "rate": row["clicks"] / row["impressions"] if row["impressions"] else None,
                "examination": at(examination, row["rank"] - 1),
                "interval": None
                if at(low, row["rank"] - 1) is None
                else [at(low, row["rank"] - 1), at(high, row["rank"] - 1)],
            }
            for row in described["ranks"][:_MOST_RANKS]
        ],
    }


def click_finding(clicks: Mapping[str, Any] | None) -> str:
    """Return the heading of the section; empty without it."""
    if clicks is None:
        return ""
    return (
        f"Labels from clicks, corrected by {clicks['model']}"
        if clicks["model"]
        else "Labels from clicks, not corrected for position"
    )
