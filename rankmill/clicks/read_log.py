"""Read click logs: tables with a row for each document shown, of any format of the pipeline.

A row has ``qid``, ``doc_id``, ``position`` and ``clicked``, a ``session`` or the id of its ``list``, and may have a
``policy``.  A result list is what has the same session, query and list's id; without a session each list counts as one.

Rows of one list that agree in position and document are one impression, clicked if one of them was.  So a log may have
a row for the impression and one for each click.  A list contradicts itself if it has two documents at a position, a
document at two positions, or two policies.  Such lists are left out and count as malformed rows do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rankmill.clicks.options import ClickLogOptions
from rankmill.clicks.sorted_log import BYTES_A_ROW, ROWS, SortedLog, assemble, sort_rows
from rankmill.foundation.cures import NAME, spelled_with
from rankmill.foundation.errors import ColumnProblem, DataRejected, InputError, UnusableColumns, name_hint
from rankmill.foundation.options import spelled
from rankmill.foundation.process_memory import return_large_arrays
from rankmill.foundation.storage.publish import explain_errors
from rankmill.foundation.storage.staging import scratch_folder
from rankmill.pipeline.arrow import as_array
from rankmill.pipeline.group.query_splits import hash_ids
from rankmill.pipeline.options import ReadOptions
from rankmill.pipeline.read.batch import Quarantine
from rankmill.pipeline.read.column_roles import CLICK_NUMBERS, CLICK_PARTS, HABITS
from rankmill.pipeline.read.columns import TableColumns, guesses_line, guesses_of, tables_disagree, usual_name
from rankmill.pipeline.read.files import check_file, find_files, format_of, refuse_copies, with_rows
from rankmill.pipeline.read.open_source import open_table
from rankmill.pipeline.read.role_columns import read_parts

if TYPE_CHECKING:
    from os import PathLike

    from rankmill.pipeline.read.batch import TableRows
    from rankmill.pipeline.read.columnar import TableSource

MOST_POLICIES = 1000
_BLOCK_BYTES = 16 << 20
_SESSION_SALT, _LIST_SALT = 0x3C6EF372FE94F82B, 0x510E527FADE682D1
_REQUIRED = ("qid", "doc_id", "position", "clicked")
_HABITS = {
    "qid": (*HABITS["qid"], "userquery", "searchterm"),
    "doc_id": (*HABITS["doc_id"], "objectid"),
    "position": ("rank", "pos", "ordinal"),
    "clicked": ("click", "clicks", "isclicked", "isclick"),
    "session": ("sessionid", "visit", "visitid"),
    "list": ("listid", "resultlist", "resultlistid", "impressionid", "serpid"),
    "policy": ("ranker", "policyname"),
}
"""Usual names of these columns beside their own, in lower case without blanks and underscores."""


@contextmanager
def open_click_log(
    paths: Sequence[str | PathLike[str]],
    options: ClickLogOptions | None = None,
    *,
    quarantine: Quarantine | None = None,
    say: Callable[[str], None] | None = None,
    bytes_used: int = 0,
) -> Iterator[SortedLog]:
    """Yield the log in these files, folders and patterns, to be read several times.

    Its temporary folder is removed at the end.  The lists and their order depend on the rows alone, not on their order,
    the files, or the memory.

    Parameters
    ----------
    paths
        Files, folders and patterns.
    options
        How to read; ``memory`` bounds the process.
    quarantine
        Receives malformed rows; left out: a new one with the limit of the options.
    say
        Called with a line about inferred columns.
    bytes_used
        How much memory the user of a block takes for an impression; blocks are smaller if it is much.

    Raises
    ------
    InputError
        A file does not exist or is not a table, or a query does not fit in memory.
    DataRejected
        A column is missing, a row is malformed, a list contradicts itself (more of them than allowed), or there are no
        rows.
    """
    options = options or ClickLogOptions()
    quarantine = quarantine or Quarantine(options.max_rejects)
    files = with_rows(find_files(paths), options.format, say)
    refuse_copies(files)
    return_large_arrays()
    bytes_a_row = max(BYTES_A_ROW, bytes_used)
    with scratch_folder("clicks") as folder, explain_errors(folder, room_only=True):
        sources = [_opened(path, options, quarantine) for path in files]
        _check_alike(sources)
        guesses = guesses_of(source.roles for source in sources)
        if guesses and say is not None:
            say(guesses_line(guesses))
        policies: dict[str, int] = {}
        batches = (_rows(rows, policies) for source in sources for rows in source.table_rows(_BLOCK_BYTES))
        ordered = sort_rows(batches, folder, options.memory, bytes_a_row)
        if ordered is None:
            raise DataRejected(f"{files[0]}: the log has no rows, or none without a problem")
        left = options.max_rejects - len(quarantine.rejects)
        yield assemble(ordered, folder, tuple(policies) or ("",), left, options.memory, bytes_a_row)


def _opened(path: Path, options: ClickLogOptions, quarantine: Quarantine) -> TableSource:
    check_file(path)
    chosen = format_of(path, options.format)
    if chosen in {"letor", "run", "pairs"}:
        raise InputError(
            f"{path}: a click log is a table; name the file .csv, .tsv, .parquet, .arrow or .jsonl, or say which "
            f"format it has with {spelled('format')}"
        )
    read = ReadOptions(delimiter=options.delimiter)
    return open_table(path, chosen, read, quarantine, partial(_columns, options.columns))


def _check_alike(sources: Sequence[TableSource]) -> None:
    """Raise DataRejected if the files have different columns."""
    first = sources[0]
    for other in sources[1:]:
        problem = tables_disagree(first.roles, str(first.path), other.roles, str(other.path))
        if problem:
            raise DataRejected(problem)
        only = set(first.roles.column_of) ^ set(other.roles.column_of)
        if only:
            part = min(only)
            has, lacks = (first, other) if part in first.roles.column_of else (other, first)
            raise DataRejected(
                f"{lacks.path}: no column for {part}, which {has.path} has; all files of a log must have the same "
                f"columns; to ignore it: {spelled_with('columns', {part: ''})}"
            )


def _columns(
    assigned: Mapping[str, str],
    path: Path,
    header: Sequence[str],
    _: ReadOptions,
    look: Callable[[TableColumns], list[ColumnProblem]],
) -> TableColumns:
    """Assign roles to the columns of a table: those ``assigned``, then by name; other columns are ignored."""
    for part, name in assigned.items():
        if name and name not in header:
            hint = name_hint(name, header, f"the columns are: {', '.join(header)}")
            raise InputError(f"{path}: no column {name!r}, which {spelled('columns')} takes as {part}; {hint}")
    column_of = {part: assigned[part] for part in CLICK_PARTS if assigned.get(part)}
    free = [name for name in header if name not in column_of.values()]
    open_parts = [part for part in CLICK_PARTS if part not in assigned]
    column_of |= {part: part for part in open_parts if part in free}
    guessed = []
    for part in (part for part in open_parts if part not in column_of):
        found = [name for name in free if name not in column_of.values() and usual_name(name) in _HABITS[part]]
        if len(found) == 1:
            column_of[part] = found[0]
            guessed.append(part)
        elif found and part in _REQUIRED:
            which = " or ".join(map(repr, found))
            raise DataRejected(
                f"{path}: {part} could be column {which}; choose one: {spelled_with('columns', {part: found[0]})}"
            )
    missing = [part for part in _REQUIRED if part not in column_of]
    if missing:
        cure = "a click log has a row for each document shown, with qid, doc_id, position and clicked"
        raise DataRejected(
            f"{path}: no column {missing[0]!r}; {cure}; the columns are {', '.join(header)};"
            f" {spelled_with('columns', {missing[0]: NAME})} says which it is"
        )
    if "session" not in column_of and "list" not in column_of:
        raise DataRejected(
            f"{path}: no column identifies result lists: expected one with the session (visit), or with the id "
            "of the list or the time at which it was shown; if there is one, name it with "
            f"{spelled_with('columns', {'session': NAME})} or list=NAME"
        )
    counts = Counter(header)
    twice = [name for name in column_of.values() if counts[name] > 1]
    if twice:
        raise DataRejected(f"{path}: column {twice[0]!r} occurs twice; every column needs a unique name")
    columns = TableColumns({part: column_of[part] for part in CLICK_PARTS if part in column_of}, (), tuple(guessed))
    problems = [problem for problem in look(columns) if not problem.in_rows]
    if problems:
        raise UnusableColumns(path, tuple(problems))
    return columns


def _rows(rows: TableRows, policies: dict[str, int]) -> pa.RecordBatch:
    """Return the rows without a problem in the columns of a sorted log."""
    needed = [part for part in ("qid", "doc_id", "session", "list") if part in rows.columns]
    found = read_parts(rows.columns, rows.problems, needed=needed, numbers=CLICK_NUMBERS)
    rows.reject(rows.problems)
    keep = rows.problems.keep
    if not keep.all():
        places = as_array(np.flatnonzero(keep))
        found = {
            part: values[keep] if isinstance(values, np.ndarray) else values.take(places)
            for part, values in found.items()
        }
    n = len(found["position"])
    within = hash_ids(found["list"], _LIST_SALT) if "list" in found else np.zeros(n, dtype=np.uint64)
    cells = {
        "qid": found["qid"],
        "session": as_array(hash_ids(found["session"], _SESSION_SALT) if "session" in found else within),
        "within": as_array(within.view(np.int64)),
        "policy": as_array(_policy(found.get("policy"), n, policies)),
        "position": as_array(found["position"].astype(np.int32)),
        "doc_id": found["doc_id"],
        "clicked": as_array(found["clicked"].astype(np.uint8)),
    }
    return pa.record_batch([cells[name] for name in ROWS.names], schema=ROWS)


def _policy(names: Any, n: int, known: dict[str, int]) -> npt.NDArray[np.int32]:
    """Return the numbers of the policies, in the order in which they were first read; ``known`` grows."""
    if names is None or n == 0:
        return np.zeros(n, dtype=np.int32)
    encoded: Any = pc.fill_null(names, "").dictionary_encode()
    numbers = [known.setdefault(name, len(known)) for name in encoded.dictionary.to_pylist()]
    if len(known) > MOST_POLICIES:
        raise DataRejected(
            f"the log has more than {MOST_POLICIES:,} policies, such as {names[0].as_py()!r}; to ignore the column:"
            f" {spelled_with('columns', {'policy': ''})}"
        )
    found: npt.NDArray[np.int32] = np.array(numbers, dtype=np.int32)[encoded.indices.to_numpy()]
    return found
