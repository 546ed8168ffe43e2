"""Shell completion, as bash and zsh ask for it."""

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("shell", "line", "found"),
    [("bash", "rankmill models prom", "promote"), ("zsh", "rankmill train --max-l", "--max-leaves")],
)
def test_commands_and_options_are_completed(shell, line, found):
    asked = {"COMP_WORDS": line, "COMP_CWORD": str(line.count(" ")), "_TYPER_COMPLETE_ARGS": line}
    command = [sys.executable, "-c", "import sys; sys.argv = ['rankmill']; from rankmill.cli import main; main()"]
    environment = os.environ | asked | {"_RANKMILL_COMPLETE": f"complete_{shell}"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert found in done.stdout.split() or f'"{found}"' in done.stdout
    assert done.stderr == ""
