"""Turn other text on the stderr of a process that logs JSON into JSON lines.

Warnings, lines of libraries, the error that ends the process: a log collector reads all of stderr and fails at the first line that
is not JSON.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from typing import TextIO

from rankmill.run.log_lines import printable
from rankmill.run.plain_json import Clock, json_line, rfc3339

_LAST_WORDS = "rankmill: "


class JsonStderr(io.TextIOBase):
    """A text stream that writes every line to ``stream`` as a JSON object with ``event`` ``said``; lines written at once are one object.

    A line of the front door about what ended the process has ``level`` ``error`` and ``event`` ``error``.  Lines that are objects of
    JSON already go through `write_object`.

    Attributes
    ----------
    run_id
        Says which run the lines are of.
    """

    encoding = "utf-8"
    errors = "backslashreplace"

    def __init__(self, stream: TextIO, clock: Clock | None = None) -> None:
        super().__init__()
        self._stream = stream
        self._clock = clock or Clock()
        self.run_id: Callable[[], str | None] = lambda: None
        self._begun = ""

    def writable(self) -> bool:
        """Return True."""
        return True

    def isatty(self) -> bool:
        """Return False: nobody looks at bars here."""
        return False

    def fileno(self) -> int:
        """Return that of the stream."""
        return self._stream.fileno()

    def write(self, text: str) -> int:
        """Write the lines that ``text`` completes; what it begins waits for its end."""
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        lines, end, begun = (self._begun + text).rpartition("\n")
        self._begun = begun
        if end:
            self._write_lines(lines)
        return len(text)

    def flush(self) -> None:
        """Have the stream write what it holds."""
        self._stream.flush()

    def close(self) -> None:
        """Write a line that has no end yet; the stream stays open."""
        if self._begun:
            self.write("\n")
        super().close()

    def write_object(self, line: str) -> None:
        """Write ``line``, an object of JSON with its line feed."""
        self._stream.write(line)
        self._stream.flush()

    def _write_lines(self, lines: str) -> None:
        message = "\n".join(filter(None, map(printable, lines.split("\n"))))
        if not message:
            return
        last = message.startswith(_LAST_WORDS)
        record = {"ts": rfc3339(self._clock.now()), "level": "error" if last else "info"}
        record |= {"event": "error" if last else "said"}
        run_id = self.run_id()
        record |= {} if run_id is None else {"run_id": run_id}
        self.write_object(json_line(record | {"message": message.removeprefix(_LAST_WORDS)}))


def speak_json(clock: Clock | None = None) -> JsonStderr:
    """Make ``sys.stderr`` a `JsonStderr`, and return it; whoever runs the command line puts the former one back."""
    if isinstance(sys.stderr, JsonStderr):
        return sys.stderr
    stream = JsonStderr(sys.stderr, clock)
    sys.stderr = stream
    return stream
