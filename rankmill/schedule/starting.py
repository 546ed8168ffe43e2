"""The command that a schedule begins: taken from its own command line, and checked before the first moment comes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from hashlib import sha256
from typing import TYPE_CHECKING

from rankmill.foundation.errors import ConfigError, InputError

if TYPE_CHECKING:
    import typer

_CHECK = """
import sys
sys.path[:] = sys.argv[2:]
from pathlib import Path
from rankmill.config_file import read_config
from rankmill.foundation.errors import ConfigError, InputError
try:
    read_config(Path(sys.argv[1]))
except (ConfigError, InputError) as error:
    sys.exit(str(error))
"""


@dataclass(frozen=True, slots=True)
class RunCommand:
    """``rankmill run`` with everything but the date."""

    arguments: tuple[str, ...]
    config: str
    log_json: bool

    @classmethod
    def parse(cls, context: typer.Context) -> RunCommand:
        """Read what the command line of the schedule holds for ``run``, by the rules of ``run``.

        Raises
        ------
        click.UsageError
            ``rankmill run`` has no such option or value.
        InputError
            The option makes no sense in a schedule.
        """
        root = context.find_root()
        command = root.command.commands["run"]  # type: ignore[attr-defined]  # the root is a group
        parsed = command.make_context("run", list(context.args), parent=root).params
        for name in ("date", "plan"):
            if parsed.get(name):
                raise InputError(f"--{name} is not for a schedule: each run has the date of its moment")
        return cls(tuple(context.args), os.fspath(parsed["config"]), parsed.get("log") == "json")

    def for_date(self, day: date) -> Sequence[str]:
        """Return the arguments of ``rankmill`` for the run of ``day``."""
        return ["run", *self.arguments, "--date", day.isoformat()]

    def check(self) -> None:
        """Read the configuration in a process of its own: this one stays small until it ends.

        Raises
        ------
        ConfigError
            It breaks a rule, which the first run would only say in the night.
        """
        done = subprocess.run(  # noqa: S603  # our own interpreter
            [sys.executable, "-c", _CHECK, self.config, *sys.path], stderr=subprocess.PIPE, text=True, check=False
        )
        if done.returncode:
            raise ConfigError(done.stderr.strip())


def keyed_delay(most: int, key: str) -> int:
    """Return 0 to ``most`` seconds, the same for the same ``key`` on the same host."""
    digest = sha256(f"{socket.gethostname()}\0{key}".encode("utf-8", "surrogateescape")).digest()
    return int.from_bytes(digest[:8], "big") % (most + 1)
