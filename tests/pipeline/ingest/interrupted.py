"""A command in a process of its own, in which something happens at a chosen operation on a file.

Python calls an audit hook before it opens, renames, removes or makes a file.  So a test can stop a command at any such
operation, and count how many there are.  Used as ``python -m tests.pipeline.ingest.interrupted ACTION
PART NUMBER FOLDER COMMAND..``: ACTION happens at operation NUMBER below FOLDER, counted from 1 for the first one on a
path that has PART in it.
"""

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

from tests import ROOT

OPERATIONS = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "shutil.rmtree"}
BALLAST = "ballast"


def start(folder, arguments, *, action="none", part="", number=0, before=()):
    """Start ``rankmill ARGUMENTS``, with ``before`` in front of the whole command line."""
    script = [sys.executable, "-m", "tests.pipeline.ingest.interrupted", action, part, str(number), folder, *arguments]
    return subprocess.Popen(
        [*before, *map(str, script)], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def operations(folder, arguments, part=""):
    """Run ``rankmill ARGUMENTS`` to its end and return the paths it worked on, in order, from the first one with
    ``part``."""
    with start(folder, arguments, action="report", part=part) as process:
        out, err = process.communicate()
    assert process.returncode == 0, err
    return [line.removeprefix("path ") for line in out.splitlines() if line.startswith("path ")]


def fill(folder):
    """Leave no room on the disk."""
    with (folder / BALLAST).open("wb", buffering=0) as ballast:
        for size in (1 << 20, 1 << 12, 1):
            while True:
                try:
                    ballast.write(bytes(size))
                except OSError:
                    break


def act(action, folder):
    """Do what shall happen at the chosen operation."""
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif action == "end":
        os.kill(os.getpid(), signal.SIGTERM)
    elif action == "fill":
        fill(folder)
    elif action == "limit":  # Python has SIGXFSZ ignored, so that a write fails
        resource.setrlimit(resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))


def watch(action, part, number, folder):
    """Return the hook."""
    prefix = str(folder)
    seen = 0
    acted = False

    def hook(event, arguments):
        nonlocal seen, acted
        if acted or event not in OPERATIONS:
            return
        paths = [os.fsdecode(word) for word in arguments[:2] if isinstance(word, str | bytes | os.PathLike)]
        below = [path[len(prefix) :] for path in paths if path.startswith(prefix)]
        if not below or (not seen and not any(part in path for path in below)):
            return
        if action == "report":
            sys.stdout.write(f"path {below[0]}\n")  # in one piece: there are several threads
        seen += 1
        if seen == number:
            acted = True
            act(action, folder)

    return hook


if __name__ == "__main__":
    from rankmill.cli import main

    wanted, piece, place, below, *command = sys.argv[1:]
    sys.addaudithook(watch(wanted, piece, int(place), Path(below)))
    sys.argv[1:] = command
    main()
