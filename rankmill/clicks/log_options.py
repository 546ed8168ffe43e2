"""How to read a click log.  Nothing heavy is imported here: the command line reads this module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

from rankmill.foundation.errors import InputError
from rankmill.foundation.options import option_like, options, spelled
from rankmill.pipeline.options import IngestOptions, QueryOptions, ReadOptions

LogFormat = Literal["auto", "csv", "tsv", "parquet", "arrow", "jsonl"]


_PANEL = "Click log"


@options
class ClickLogOptions:
    """How to read a click log."""

    format: LogFormat = option_like(
        IngestOptions,
        "format",
        default="auto",
        help="Format of the files. auto: by suffix.",
        choices=get_args(LogFormat),
        panel=_PANEL,
    )
    columns: Mapping[str, str] = option_like(
        ReadOptions,
        "columns",
        default_factory=dict,
        help="Map columns of the log to their roles: qid=query,doc_id=url,session=visit; repeat for more.",
        panel=_PANEL,
    )
    delimiter: str | None = option_like(ReadOptions, "delimiter", default=None, panel=_PANEL)
    max_rejects: int = option_like(
        IngestOptions,
        "max_rejects",
        default=0,
        help="Maximum number of malformed rows and of contradictory result lists to leave out. One more is an error.",
        panel=_PANEL,
    )
    memory: int = option_like(QueryOptions, "memory", default="1GB", panel=_PANEL)

    def check_together(self) -> None:
        """Raise InputError if a role is unknown."""
        from rankmill.pipeline.read.column_roles import CLICK_PARTS

        for part in self.columns:
            if part not in CLICK_PARTS:
                raise InputError.unknown(f"role in {spelled('columns')}", part, CLICK_PARTS)
