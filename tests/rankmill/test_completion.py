"""Shell completion, as bash and zsh ask for it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("line", "found"),
    [("rankmill doc", "doctor"), ("rankmill models prom", "promote"), ("rankmill train --max-l", "--max-leaves")],
)
def test_commands_and_options_are_completed(line: str, found: str) -> None:
    asked = {
        "bash": {"_RANKMILL_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))},
        "zsh": {"_RANKMILL_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": line},
    }
    for shell, variables in asked.items():
        command = [sys.executable, "-c", "import sys; sys.argv = ['rankmill']; from rankmill.cli import main; main()"]
        done = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, check=False)
        assert found in done.stdout.split() or f'"{found}"' in done.stdout, shell
        assert done.stderr == ""
