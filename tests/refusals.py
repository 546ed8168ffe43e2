"""What tests ask of a message: that it names the facts, in any order and in whatever words."""

import re
from contextlib import contextmanager

import pytest


def unnamed(text, *facts):
    """Return those of ``facts`` (values, places, options, key terms; tuples of them) that ``text`` does not name in
    full.

    >>> unnamed("a.tsv:2:13: expected a number, found 'x'; see --max-rejects", "a.tsv:2:13", "'x'", "max-rejects")
    []
    >>> unnamed("a.tsv:2:13: expected a number, found 'x'", "2:1", 13, 3, "numb", "y")
    ['2:1', '3', 'numb', 'y']
    """
    text += _in_words(text)
    single = [str(part) for fact in facts for part in (fact if isinstance(fact, tuple) else (fact,))]
    return [fact for fact in single if not re.search(_whole(fact), text)]


@contextmanager
def refused(kind, *facts):
    """Expect an error of ``kind`` with a message of one line that names all ``facts``; the wording is free.

    >>> with refused(ValueError, "depth", 0) as caught:
    ...     raise ValueError("depth must be 1 or more, got 0")
    >>> caught.value
    ValueError('depth must be 1 or more, got 0')
    """
    __tracebackhide__ = True
    with pytest.raises(kind) as caught:
        yield caught
    text = "; ".join([str(caught.value), *getattr(caught.value, "__notes__", ())])
    assert "\n" not in text, f"more than one line: {text!r}"
    assert not unnamed(text, *facts), f"not named: {', '.join(unnamed(text, *facts))}; the message: {text}"


def only_line(stderr):
    r"""Return the one line that a command wrote to ``stderr`` before it failed.

    >>> only_line("rankmill: no such file\n")
    'no such file'
    """
    assert stderr.startswith("rankmill: "), stderr
    assert stderr.index("\n") == len(stderr) - 1, stderr
    return stderr.removeprefix("rankmill: ")[:-1]


def _in_words(text):
    """Return the options of ``text`` that are spelled as Python in the words of a command line without dashes.

    >>> _in_words("to ignore it: ignore=['a'], columns={'qid': NAME}, grades={'good': 1, 'bad': 0}, max_rejects=N")
    ' ignore a columns qid=NAME grades good=1,bad=0 max_rejects N'
    """
    found = re.findall(r"\b([a-z_]+)=(?:\[(.*?)\]|\{(.*?)\}|('[^']*'|\w+))", text)
    said = (
        f" {name} {names or pairs.replace(': ', '=').replace(', ', ',') or word}" for name, names, pairs, word in found
    )
    return "".join(said).replace("'", "")


def _whole(fact):
    """Return the pattern of ``fact`` that is no part of a longer name or number."""
    number = bool(re.fullmatch(r"[\d.,]+", fact))
    before = r"(?<![\w/-])(?<!\d[.,])" if number else r"(?<!\w)" if fact[:1].isalnum() else ""
    after = r"(?!\w|[.,]\d)" if number else r"(?!\w)" if fact[-1:].isalnum() else ""
    return before + re.escape(fact) + after
