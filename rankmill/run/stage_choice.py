"""The names of the stages of a run, in their order.  Imports no numeric library."""

from __future__ import annotations

STAGE_NAMES = ("clicks", "ingest", "bin", "naive", "train", "evaluate", "gate", "promote", "rerank", "report")
WITHOUT_CLICKS = tuple(name for name in STAGE_NAMES if name not in ("clicks", "naive"))
"""The stages of a run without ``[clicks]``."""
