"""Convert all other text on stderr to JSON lines, for a process that logs JSON.

A log collector reads all of stderr and fails at the first line that is not JSON, such as a warning, output of a library, or the
final error.
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
    """A text stream that writes lines to ``stream`` as JSON objects with ``event`` ``said``; lines of one write are one object.

    The final error line of the command has ``level`` ``error`` and ``event`` ``error``.  Lines that are JSON objects already are
    written with `write_object`.

    Attributes
    ----------
    run_id
        The run of the lines.
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
        """Return False, so that no progress bars are shown."""
        return False

    def fileno(self) -> int:
        """Return the descriptor of the stream."""
        return self._stream.fileno()

    def write(self, text: str) -> int:
        """Write the lines that ``text`` completes; an incomplete line is buffered."""
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        lines, end, begun = (self._begun + text).rpartition("\n")
        self._begun = begun
        if end:
            self._write_lines(lines)
        return len(text)

    def flush(self) -> None:
        """Flush the stream."""
        self._stream.flush()

    def close(self) -> None:
        """Write an incomplete line; the stream stays open."""
        if self._begun:
            self.write("\n")
        super().close()

    def write_object(self, line: str) -> None:
        """Write ``line``, a JSON object with a line feed."""
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
    """Replace ``sys.stderr`` by a `JsonStderr` and return it; `rankmill.cli` restores the old one."""
    if isinstance(sys.stderr, JsonStderr):
        return sys.stderr
    stream = JsonStderr(sys.stderr, clock)
    sys.stderr = stream
    return stream
