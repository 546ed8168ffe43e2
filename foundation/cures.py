"""Options and command lines as messages print them: they can be copied and run with any names in them.

>>> from rankmill.foundation.options import spelled_for
>>> with spelled_for("command line"):
...     print(spelled_with("ignore", ["price, $"]), spelled_with("columns", {"qid": "# qid"}))
...     print(spelled_with("ignore", ["--overwrite"]))
--ignore 'price, $' --columns 'qid=# qid'
--ignore=--overwrite
>>> with spelled_for("file"):
...     print(spelled_with("ignore", ["price, $"]), spelled_with("columns", {"qid": "# qid"}))
ignore = ["price, $"] columns = {qid = "# qid"}
>>> print(spelled_with("ignore", ["price, $"]), spelled_with("columns", {"qid": "# qid"}))
ignore=['price, $'] columns={'qid': '# qid'}
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rankmill.foundation.options import option_flag, spelled_in


class _Blank(str):
    """Stands for a value that only the reader knows; it is written without quotes."""

    __slots__ = ()
    __repr__ = str.__str__


N, NAME, SRC, OUT, FEATURES_FILE, GRADE = map(_Blank, ("N", "NAME", "SRC", "OUT", "FEATURES", "?"))
"""In place of a number, a name, files, and a grade."""

_BLANKS = re.compile(r"\s*,\s*")
_BARE_KEY = re.compile("[A-Za-z0-9_-]+")


def spelled_with(name: str, value: Any) -> str:
    """Return the option ``name`` with ``value`` as the caller would write it.

    That is on a command line, in a file or in Python.

    A list of names is one text with commas on a command line, or several options if a name has a comma itself.
    """
    place = spelled_in()
    if place == "command line":
        return shell_line(words_of(name, value))
    if isinstance(value, Iterable) and not isinstance(value, str | Mapping):
        value = list(value)
    return f"{name} = {_toml(value)}" if place == "file" else f"{name}={value!r}"


def words_of(name: str, value: Any) -> list[str]:
    """Return the words of a command line that give the option ``name`` the ``value``.

    >>> words_of("ignore", ["a", "b"]), words_of("ignore", ["a,b", "-c"]), words_of("decimal_comma", True)
    (['--ignore', 'a,b'], ['--ignore', 'a,b', '--ignore=-c'], ['--decimal-comma'])
    """
    flag = option_flag(name)
    if value is True:
        return [flag]
    if isinstance(value, Mapping):
        texts = _together([f"{key}={each}" for key, each in value.items()])
    elif isinstance(value, list | tuple):
        texts = _together([str(each) for each in value])
    else:
        texts = [str(value)]
    return [word for text in texts for word in ([f"{flag}={text}"] if text.startswith("-") else [flag, text])]


def _together(texts: list[str]) -> list[str]:
    return [",".join(texts)] if not any("," in text for text in texts) else texts


def command(*words: object) -> str:
    """Return the command line of rankmill with ``words``; a path is never taken for an option.

    >>> print(command("data", "bin", Path("-o x")))
    rankmill data bin './-o x'
    """
    texts = (f"./{word}" if isinstance(word, Path) and str(word).startswith("-") else str(word) for word in words)
    return " ".join(
        [
            "rankmill",
            *(text if isinstance(word, _Blank) else shell_word(text) for word, text in zip(words, texts, strict=True)),
        ]
    )


def shell_line(words: Iterable[str]) -> str:
    """Return ``words`` as a line for a shell.

    >>> print(shell_line(["rankmill", "data", "ingest", "a;touch x.csv"]))
    rankmill data ingest 'a;touch x.csv'
    """
    return " ".join(map(shell_word, words))


def shell_word(text: str) -> str:
    r"""Quote ``text`` as one word for a shell.

    A control character becomes an escape of bash and zsh, so that it is visible.

    >>> print(shell_word("$(x)"), shell_word("a\x1bb"))
    '$(x)' $'a\x1bb'
    """
    if text.isprintable():
        return shlex.quote(text)
    escapes = {"\\": "\\\\", "'": "\\'", "\n": "\\n", "\t": "\\t"}
    return "$'" + "".join(escapes.get(sign) or (sign if sign.isprintable() else _bytes(sign)) for sign in text) + "'"


def _bytes(sign: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in sign.encode("utf-8", "surrogateescape"))


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        pairs = (f"{key if _BARE_KEY.fullmatch(key) else _toml(key)} = {_toml(each)}" for key, each in value.items())
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    text = str(value) if isinstance(value, _Blank) else json.dumps(value, ensure_ascii=False)
    return "".join(sign if sign.isprintable() else f"\\U{ord(sign):08x}" for sign in text)


def named(texts: Iterable[str], known: Iterable[str]) -> tuple[str, ...]:
    """Return the names in the ``texts`` of an option: an exact name comes before what is between commas.

    Of ``a,b,c`` the longest parts that are ``known`` are names, whatever the blanks after commas; other parts are
    returned as they are, without blanks around them.

    >>> named(["price, $", "a,b,c"], ["price, $", "a,b", "c"]), named(["a, b_*"], [])
    (('price, $', 'a,b', 'c'), ('a', 'b_*'))
    """
    names = frozenset(known)
    loosely = {_BLANKS.sub(",", name): name for name in names}
    longest = 1 + max((name.count(",") for name in names), default=0)
    found: list[str] = []
    for text in texts:
        parts = text.split(",")
        while parts:
            for n in range(min(longest, len(parts)), 0, -1):
                part = ",".join(parts[:n])
                name = part if part in names else loosely.get(_BLANKS.sub(",", part).strip(), part.strip())
                if n == 1 or name in names:
                    found += [name] if name else []
                    del parts[:n]
                    break
    return tuple(dict.fromkeys(found))
