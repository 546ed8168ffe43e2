"""Where a bar is shown: on a real terminal that can move the cursor, and nowhere else."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest

SHOW = """
from rankmill.foundation.progress import TerminalBar
with TerminalBar("{task.description}", "", None) as bar:
    bar._progress.add_task("reading", total=2, completed=1)
"""


@pytest.mark.parametrize(
    ("terminal", "variables", "shown"),
    [
        (True, {}, True),
        (True, {"JPY_PARENT_PID": "1"}, False),  # !rankmill in a notebook
        (False, {}, False),
        (False, {"FORCE_COLOR": "1"}, False),  # set by many build servers, and in every kernel of Jupyter
    ],
)
def test_a_bar_needs_a_real_terminal(terminal: bool, variables: dict[str, str], shown: bool) -> None:
    ours = {"FORCE_COLOR", "NO_COLOR", "JPY_PARENT_PID", "TTY_COMPATIBLE", "TTY_INTERACTIVE"}
    outside = {key: value for key, value in os.environ.items() if key not in ours}
    reader, writer = pty.openpty() if terminal else os.pipe()
    command = [sys.executable, "-c", SHOW]
    subprocess.run(command, env=outside | {"TERM": "xterm"} | variables, stderr=writer, check=True)
    if not terminal:
        os.close(writer)
    else:
        os.write(writer, b".")  # a pty whose other end is closed cannot be read to its end
    text = os.read(reader, 10_000).decode()
    os.close(reader)
    if terminal:
        os.close(writer)
    assert ("reading" in text) == shown
