"""Slow, obvious twins of the readers of text: every line by its definition, with the place of what is wrong in it.

Lines and columns count from 1, columns in characters.  None stands for a file that is refused as a whole: it is not
UTF-8 text, has a NUL byte, or a CR that ends no line.
"""

import json
import math
import re
from dataclasses import dataclass, field

import numpy as np

from tests import naive
from tests.naive import number_of

# ---- text and tables -------------------------------------------------------------------------------------------------

LARGEST = float(np.finfo(np.float32).max)
BLANKS = " \t"


@dataclass
class Read:
    """What a file says: the rows, and (line, column) of each bad line."""

    rows: list[tuple] = field(default_factory=list)
    bad: list[tuple[int, int]] = field(default_factory=list)


def lines_of(data, *, lone_cr=False):
    """Return the lines without their ends; None if the file is refused."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return None
    text = text.removeprefix("\ufeff")
    if "\0" in text or data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return None
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    return None if not lone_cr and any("\r" in line for line in lines) else lines


def words_of(line):
    """Return (column, word) of each word of ``line``."""
    return [(found.start() + 1, found.group()) for found in re.finditer("[^ \t]+", line)]


def comment_of(line):
    """The fields of a line of LETOR text, and its comment: a word that begins with ``#``, and what follows."""
    mark = re.search(r"(?:^|[ \t])#", line)
    return (line, "") if mark is None else (line[: mark.end() - 1], line[mark.end() :])


def number(word):
    """Return a finite number as float64, None if ``word`` is none."""
    if not re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", word, re.ASCII):
        return None
    return float(word) + 0.0 if math.isfinite(float(word)) else None


def grade(cell, rules):
    """Return the grade of a cell by rules with words, negative, unjudged and highest; -1 for none, None where it is
    bad."""
    nothing = {"keep": -1, "zero": 0, "reject": None}[rules.unjudged]
    word = "" if cell is None else cell.strip(BLANKS)
    value = float(word) if re.fullmatch(r"[+-]?\d+(\.\d*)?(e[+-]?\d+)?", word, re.ASCII | re.IGNORECASE) else None
    for key, mapped in rules.words:
        if key.casefold() == word.casefold() or (value is not None and key[-1].isdigit() and float(key) == value):
            value, word = float(mapped), "a number"
            break
    if word.lower() in {"", "nan", "null"}:
        return nothing
    value = {"true": 1.0, "false": 0.0}.get(word.lower(), value)
    if value is None or not math.isfinite(value) or value != math.floor(value) or value > rules.highest:
        return None
    if value < 0:
        return {"reject": None, "zero": 0, "unjudged": nothing}[rules.negative]
    return int(value)


def letor(data, rules, *, base=1, top=65535, real=False, name=None):
    """Read LETOR text, grades by ``rules``; a row is (grade or label, qid, doc_id or None, {index: value}).

    With the ``name`` of the file no line has ``qid:``, and every line with a row, good or bad, is a query by itself.
    """
    lines = lines_of(data)
    if lines is None:
        return None
    read = Read()
    for line_number, line in enumerate(lines, start=1):
        fields, comment = comment_of(line)
        words = words_of(fields)
        if not words:
            continue
        (column, first), *rest = words
        if real:
            target = number(first)
            good = target is not None and math.isfinite(number_of(first))
        else:
            target = grade(first, rules)
            good = target is not None
        if not good:
            read.bad.append((line_number, column))
            continue
        if name is not None:
            rest.insert(0, (0, f"qid:{name}:{1 + len(read.rows) + len(read.bad)}"))
        if not rest or not rest[0][1].startswith("qid:") or rest[0][1] == "qid:":
            read.bad.append((line_number, rest[0][0] if rest else len(fields) + 1))
            continue
        features = {}
        for column, word in rest[1:]:
            pair = re.fullmatch(r"(\d+):(.*)", word, re.ASCII)
            index = int(pair[1]) if pair else -1
            value = number_of(pair[2]) if pair else None
            if value is None or not base <= index <= top or index in features:
                read.bad.append((line_number, column))
                break
            features[index] = value
        else:
            named = re.match("[ \t]*docid[ \t]*=[ \t]*([^ \t]+)", comment, re.IGNORECASE)
            read.rows.append((target, rest[0][1][4:], named[1] if named else None, features))
    return read


def pairs(data):
    """Read pairs as text; a row is (qid, better, worse, weight, probability)."""
    lines = lines_of(data)
    if lines is None:
        return None
    read = Read()
    for line_number, line in enumerate(lines, start=1):
        words = words_of(line)
        marked = bool(words) and words[0][1].startswith("#")
        if not words or (marked and (words[0][1] == "#" or not 3 <= len(words) <= 5)):
            continue
        if marked or not 3 <= len(words) <= 5:
            read.bad.append((line_number, words[0][0]))
            continue
        ids = [word for _, word in words[:3]]
        numbers = [number(word) for _, word in words[3:]]
        wrong = 2 if ids[1] == ids[2] else None
        for place, (found, highest) in enumerate(zip(numbers, (LARGEST, 1.0), strict=False), start=3):
            if wrong is None and (found is None or not 0 <= found <= highest):
                wrong = place
        if wrong is not None:
            read.bad.append((line_number, words[wrong][0]))
        else:
            read.rows.append((*ids, *numbers, *[1.0] * (2 - len(numbers))))
    return read


WORDS = {"": np.nan, "na": np.nan, "n/a": np.nan, "#n/a": np.nan, "<na>": np.nan, "none": np.nan, "true": 1, "false": 0}


def feature(cell):
    """Return the number that stands in a table as a feature, or what a word there means; None where it is neither."""
    word = cell.lower()
    return np.float32(WORDS[word]) if word in WORDS else number_of(cell)


def delimited(data, delimiter, rules):
    """Read a table without quotes whose columns are qid, doc_id, grade and features; a row is (qid, doc_id or None,
    grade, values)."""
    lines = lines_of(data, lone_cr=True)
    if lines is None:
        return None
    read = Read()
    width = len(lines[0].split(delimiter))
    for line_number, line in enumerate(lines[1:], start=2):
        if not line:
            continue
        cells = line.split(delimiter)
        places = [1 + sum(len(cell) + 1 for cell in cells[:k]) for k in range(len(cells))]
        if len(cells) != width:
            read.bad.append((line_number, 1))
            continue
        qid, doc_id, cell, *values = (cell.strip(BLANKS) for cell in cells)
        numbers = [feature(cell) for cell in values]
        target = grade(cell, rules)
        if not qid:
            read.bad.append((line_number, 1))
        elif target is None:
            read.bad.append((line_number, places[2]))
        elif None in numbers:
            read.bad.append((line_number, places[3 + numbers.index(None)]))
        else:
            read.rows.append((qid, doc_id or None, target, np.array(numbers, np.float32).tobytes()))
    return read


# ---- JSON lines, by Python's own reader ------------------------------------------------------------------------------

PARTS = {"qid", "doc_id", "grade"}
Row = tuple[str, str | None, int, dict[str, np.float32]]


def natural(name):
    """What names are sorted by: numbers in them as numbers."""
    return [int(part) if part.isdigit() else part for part in re.split("([0-9]+)", name)]


def parse(text):
    """Rows of the good lines, and the numbers of the bad ones; features beside the ids or in an object."""
    objects = [(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip(" \t\r")]
    read = [(number, _object(line)) for number, line in objects]
    nested = any(found is not None and isinstance(found.get("features"), dict) for _, found in read)
    rows, bad = [], []
    for number, found in read:
        row = None if found is None else _row(found, nested=nested)
        if row is None:
            bad.append(number)
        else:
            rows.append(row)
    return rows, bad


def _object(line):
    try:
        found = json.loads(line, object_pairs_hook=_once)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _once(pairs):
    if len({key for key, _ in pairs}) < len(pairs):
        raise ValueError("a key occurs twice")
    return dict(pairs)


def _row(found, *, nested):
    qid, doc_id, grade = (found.get(part) for part in ("qid", "doc_id", "grade"))
    features = found.get("features") if nested else {key: x for key, x in found.items() if key not in PARTS}
    if not isinstance(features, dict) or not all(x is None or isinstance(x, (int, float)) for x in features.values()):
        return None
    for cell in (qid, doc_id):
        if not (cell is None or isinstance(cell, str) or (isinstance(cell, int) and not isinstance(cell, bool))):
            return None
    if qid in (None, "") or not _is_number(grade) or grade != int(grade) or not 0 <= grade < 2**31:
        return None
    values = {key: naive.number_of(repr(float(x))) for key, x in features.items() if x is not None}
    return str(qid), None if doc_id in (None, "") else str(doc_id), int(grade), values


def _is_number(cell):
    return isinstance(cell, (int, float)) and not isinstance(cell, bool)
