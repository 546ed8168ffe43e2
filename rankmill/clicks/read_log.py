"""Read click logs: tables with a row for each document shown, of any format of the pipeline.

A row has ``qid``, ``doc_id``, ``position`` and ``clicked``, and may have ``session``, ``list``, ``time``, ``policy``,
``propensity``, ``dwell`` and ``converted``.  Rows with the same list's id are one result list. Without an id, the same
session, query and time make a list; times must be those at which lists were shown. Without a session each list counts
as one.

Rows of one list that agree in position and document are one impression, clicked if one of them was. So a log may have a
row for the impression and one for each click.  A list contradicts itself if it has two documents at a position, a
document at two positions, or two policies. Such lists are left out, and count as malformed rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rankmill.clicks.log_columns import FURTHER, list_columns, log_columns
from rankmill.clicks.options import ClickLogOptions
from rankmill.clicks.read_ubi import is_ubi, ubi_rows
from rankmill.clicks.sorted_log import LogTotals, SortedLog, assemble, log_rows, sort_rows
from rankmill.foundation.cures import spelled_with
from rankmill.foundation.errors import DataRejected, InputError
from rankmill.foundation.kernels.randoms import random_bits_of
from rankmill.foundation.options import spelled
from rankmill.foundation.process_memory import return_large_arrays
from rankmill.foundation.storage.publish import explain_errors
from rankmill.foundation.storage.staging import scratch_folder
from rankmill.pipeline.arrow import as_array
from rankmill.pipeline.group.query_splits import hash_ids
from rankmill.pipeline.options import ReadOptions
from rankmill.pipeline.read.batch import Quarantine
from rankmill.pipeline.read.column_roles import CLICK_NUMBERS
from rankmill.pipeline.read.columns import guesses_of, tables_disagree
from rankmill.pipeline.read.files import check_file, find_files, format_of, refuse_copies, with_rows
from rankmill.pipeline.read.open_source import open_table
from rankmill.pipeline.read.role_columns import read_parts
from rankmill.pipeline.read.times import TIME

if TYPE_CHECKING:
    from os import PathLike

    from rankmill.pipeline.read.batch import TableRows
    from rankmill.pipeline.read.columnar import TableSource

MOST_POLICIES = 1000
_BLOCK_BYTES = 16 << 20
_SESSION_SALT, _LIST_SALT = 0x3C6EF372FE94F82B, 0x510E527FADE682D1


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

    Its temporary folder is removed at the end.

    The lists and their order depend on the rows alone, not on their order, the files, or the memory.

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
    with scratch_folder("clicks") as folder, explain_errors(folder, room_only=True):
        if is_ubi(files):
            ordered = _sorted(
                files[0], ubi_rows(files, options.memory, folder, say), ("converted",), folder, options.memory
            )
            yield assemble(ordered, folder, ("",), ("converted",), options.max_rejects, options.memory)
            return
        reader = _LogReader(files, options, quarantine)
        guesses = reader.guesses
        if guesses and say is not None:
            named = ", ".join(f"{part} from {column!r}" for part, column in guesses.items())
            say(f"columns: {named} (inferred; set with {spelled('columns')})")
        ordered = _sorted(files[0], reader.rows(), reader.numbers, folder, options.memory)
        left = options.max_rejects - len(quarantine.rejects)
        log = assemble(ordered, folder, reader.policies, reader.numbers, left, options.memory, bytes_used)
        _check_times(files[0], reader.list_columns, log.totals)
        yield log


def _sorted(path: Path, rows: Iterator[pa.RecordBatch], numbers: Sequence[str], folder: Path, memory: int) -> Path:
    ordered = sort_rows(rows, numbers, folder, memory)
    if ordered is None:
        raise DataRejected(f"{path}: the log has no rows, or none without a problem")
    return ordered


def _check_times(path: Path, of_list: Sequence[str], totals: LogTotals) -> None:
    """Raise DataRejected if times seem to be those of clicks, so that they divide lists."""
    if "time" in of_list and 2 * totals.divided > totals.several:
        raise DataRejected(
            f"{path}: times differ within what looks like one result list ({totals.divided:,} of {totals.several:,} "
            "times that a session saw several documents of a query); a list needs the time at which it was shown: to "
            "read the rows of a session and a query as one list, ignore the times with "
            f"{spelled_with('columns', {'time': ''})}"
        )


class _LogReader:
    """Reads the rows of all files."""

    def __init__(self, files: Sequence[Path], options: ClickLogOptions, quarantine: Quarantine) -> None:
        self._options, self._quarantine = options, quarantine
        self._sources = [self._open(path) for path in files]
        self._check_alike()
        first = self._sources[0].roles
        self.list_columns = list_columns(files[0], first)
        self.numbers = tuple(name for name in FURTHER if name in first.column_of)
        self.guesses = guesses_of(source.roles for source in self._sources)
        self._policies: dict[str, int] = {}

    @property
    def policies(self) -> tuple[str, ...]:
        """Names of the policies, in the order in which they were first read."""
        return tuple(self._policies) or ("",)

    def rows(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows of all files without a problem."""
        for source in self._sources:
            for rows in source.table_rows(_BLOCK_BYTES):
                yield self._read(rows)

    def _open(self, path: Path) -> TableSource:
        check_file(path)
        chosen = format_of(path, self._options.format)
        if chosen in {"letor", "run", "pairs"}:
            raise InputError(
                f"{path}: a click log is a table; name the file .csv, .tsv, .parquet, .arrow or .jsonl, or say which "
                f"format it has with {spelled('format')}"
            )
        read = ReadOptions(delimiter=self._options.delimiter)
        return open_table(path, chosen, read, self._quarantine, log_columns(self._options.columns))

    def _check_alike(self) -> None:
        """Raise DataRejected if the files have different columns."""
        first = self._sources[0]
        for other in self._sources[1:]:
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

    def _read(self, rows: TableRows) -> pa.RecordBatch:
        columns = rows.columns
        needed = [part for part in ("qid", "doc_id", "session", "list") if part in columns]
        found = read_parts(columns, rows.problems, needed=needed, numbers=CLICK_NUMBERS)
        rows.reject(rows.problems)
        keep = rows.problems.keep
        if not keep.all():
            places = as_array(np.flatnonzero(keep))
            found = {
                part: values[keep] if isinstance(values, np.ndarray) else values.take(places)
                for part, values in found.items()
            }
        n = len(found["position"])
        session, within = self._identity(found, n)
        return log_rows(
            self.numbers,
            qid=found["qid"],
            doc_id=found["doc_id"],
            session=session,
            within=within,
            policy=self._policy(found.get("policy"), n),
            position=found["position"].astype(np.int32),
            clicked=found["clicked"].astype(np.uint8),
            **{name: found[name] for name in self.numbers},
        )

    def _identity(self, found: dict[str, Any], n: int) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
        """Return the hash of the session, and what tells its lists of a query apart."""
        within = np.zeros(n, dtype=np.int64)
        if "list" in found:
            within = hash_ids(found["list"], _LIST_SALT).view(np.int64)
        elif TIME in found:
            within = found[TIME]
        if "session" in found:
            return hash_ids(found["session"], _SESSION_SALT), within
        if "list" in found:
            return within.view(np.uint64), within
        return random_bits_of(hash_ids(found["qid"], _SESSION_SALT), within.view(np.uint64)), within

    def _policy(self, names: Any, n: int) -> npt.NDArray[np.int32]:
        """Return the numbers of the policies, in the order in which they were first read."""
        if names is None or n == 0:
            return np.zeros(n, dtype=np.int32)
        encoded: Any = pc.fill_null(names, "").dictionary_encode()
        numbers = [self._policies.setdefault(name, len(self._policies)) for name in encoded.dictionary.to_pylist()]
        if len(self._policies) > MOST_POLICIES:
            raise DataRejected(
                f"the log has more than {MOST_POLICIES:,} policies, such as {names[0].as_py()!r}; to ignore the column:"
                f" {spelled_with('columns', {'policy': ''})}"
            )
        found: npt.NDArray[np.int32] = np.array(numbers, dtype=np.int32)[encoded.indices.to_numpy()]
        return found
