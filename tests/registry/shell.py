"""``rankmill models`` of the registry alone, as tests type it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from rankmill.registry.cli import app


class Shell:
    """``rankmill models`` on one registry."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def __call__(self, *words: str) -> str:
        result = CliRunner().invoke(app, words, env={"RANKMILL_REGISTRY": str(self.root)})
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == 0, result.output
        return result.stdout

    def json(self, *words: str) -> Any:
        return json.loads(self(*words, "--json"))
