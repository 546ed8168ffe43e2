"""The report of a run or a version: facts as one JSON object, and a page and Markdown rendered from it."""

from __future__ import annotations

from typing import Any, TypeAlias

Facts: TypeAlias = dict[str, Any]
"""The facts of a report or a part of them, as in ``report.json``; docs/report.md lists all keys."""
