"""How wide the page is that a person reads."""

from __future__ import annotations

from shutil import get_terminal_size

LEAST_COLUMNS = 40


def page_width(elsewhere: int) -> int:
    """Return the columns of the terminal that stdout is, or those that ``COLUMNS`` says; ``elsewhere`` where neither is known."""
    return max(LEAST_COLUMNS, get_terminal_size((elsewhere, 24)).columns)
