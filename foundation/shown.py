r"""Text as people see it: characters that would move a cursor, hide text or turn its direction are shown as escapes.

Names of columns, files and models and ids come from anywhere.  What is printed goes through :class:`Shown`, pages of
reports through :func:`shown`; files that are data keep every byte.

>>> print(shown("a\x1b[31mb\u202ec"))
a\u001b[31mb\u202ec
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any, TextIO, cast

_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff"
    "\U000e0000-\U000e0fff]"
)


def shown(text: str) -> str:
    """Return ``text`` with non-printable characters as escapes of JSON, so that JSON stays the same.

    These are controls (but not line feeds and tabs), C1, and marks of direction.
    """
    return _HIDDEN.sub(lambda found: _escape(found[0]), text)


def shown_in_line(text: str) -> str:
    r"""Return a name or an id as :func:`shown`, also line feeds and tabs.

    >>> print(shown_in_line("a\nb"))
    a\nb
    """
    return shown(text).replace("\n", "\\n").replace("\t", "\\t")


def few(names: Sequence[str], most: int = 5) -> str:
    """List some names and count the others.

    >>> few(["a", "b", "c"], 2)
    'a, b and 1 more'
    """
    return ", ".join(names[:most]) + (f" and {len(names) - most:,} more" if len(names) > most else "")


def _escape(sign: str) -> str:
    return re.sub("....", r"\\u\g<0>", sign.encode("utf-16-be", "surrogatepass").hex())


class Shown:
    """A stream of text that writes what is :func:`shown`.

    Attributes
    ----------
    plain
        The stream below, for text with styles of our own.
    """

    def __init__(self, stream: TextIO) -> None:
        self.plain = stream
        self._own: set[str] = set()

    def write(self, text: str) -> int:
        """Write ``text``."""
        if not isinstance(text, str):  # Typer tries bytes to find out whether a stream takes them
            raise TypeError("expected text")
        self.plain.write(text if text.rstrip("\n") in self._own else shown(text))
        return len(text)

    def allow(self, text: str) -> None:
        """Write ``text``, which is our own, as it is."""
        self._own.add(text.rstrip("\n"))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.plain, name)


def unwrapped(stream: TextIO) -> TextIO:
    """Return the stream below ``stream`` if it is a `Shown`."""
    return stream.plain if isinstance(stream, Shown) else stream


@contextlib.contextmanager
def shown_on_streams() -> Iterator[None]:
    """Let stdout and stderr write what is :func:`shown` in this context."""
    out, err = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = cast("TextIO", Shown(out)), cast("TextIO", Shown(err))
    try:
        yield
    finally:
        sys.stdout, sys.stderr = out, err
