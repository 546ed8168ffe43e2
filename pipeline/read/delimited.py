"""CSV and TSV.

The first line names ``qid``, ``grade``, perhaps ``doc_id`` and optional columns. All other columns are features.

Numbers are parsed with the grammar of LETOR text, so that a token is the same float32 in both formats.  Missing values
are empty cells, ``nan``, ``null`` and the marks of other tools.  ``true`` and ``false`` are 1 and 0, like booleans in
Parquet.
"""

from __future__ import annotations

from collections import Counter
from difflib import get_close_matches
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rankmill.foundation.cures import GRADE, spelled_with
from rankmill.foundation.errors import ColumnProblem
from rankmill.foundation.options import spelled
from rankmill.pipeline.arrow import as_array, parts_of
from rankmill.pipeline.options import DEFAULT_BLOCK_BYTES, ReadOptions
from rankmill.pipeline.read.batch import Problems, Quarantine, ReadTask, RowBatch, TableRows, shorten
from rankmill.pipeline.read.column_roles import OPTIONAL
from rankmill.pipeline.read.columnar import ColumnsOf, ParsedNumbers, TableSource
from rankmill.pipeline.read.columns import TableColumns
from rankmill.pipeline.read.delimited_text import DATABASE_BYTES, DelimitedRows, DelimitedText, Wanted
from rankmill.pipeline.read.grades import GradeRules
from rankmill.pipeline.read.role_columns import feature_numbers, read_floats
from rankmill.pipeline.read.times import are_dates, cure_of_dates

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping
    from pathlib import Path

    from rankmill.pipeline.read.blocks import Block


DELIMITERS = {"csv": ",", "tsv": "\t"}  # by format
_MOST_WORDS = 20  # grades in words that a message lists
_RARE = 0.05  # a smaller share of bad cells are mistakes in a good column
_WITH_COMMA = r"^\s*[+-]?\d*,\d+\s*$"
_GROUPED = r"^[-+]?[0-9]{1,3}([.][0-9]{3})+(,[0-9]+)?$"
"""A number with points between thousands, where the decimal sign is a comma."""
_THOUSANDS = r"^\s*[+-]?\d{1,3}(,\d{3})+\s*$"


class DelimitedSource(TableSource):
    """A file of delimited text, plain or compressed."""

    def __init__(
        self,
        path: Path,
        delimiter: str,
        options: ReadOptions,
        quarantine: Quarantine | None = None,
        columns_of: ColumnsOf | None = None,
    ) -> None:
        super().__init__(path, quarantine)
        self._text = DelimitedText(path, delimiter, certain=options.delimiter is not None)
        self.delimiter = self._text.delimiter
        self.delimiter_guessed = self._text.guessed
        self.header = self._text.header
        self._rules = GradeRules.of(options)
        self._decimal_comma = options.decimal_comma
        self._use_columns(self._roles(self.header, options, columns_of, self._problems_of_values), self._rules)

    def tasks(self, block_bytes: int = DEFAULT_BLOCK_BYTES) -> Iterator[ReadTask]:
        """Yield a task for each block of the file."""
        spare: list[bytearray] = []
        wanted = self._text.wanted(self._texts, self._columns.features, decimal_comma=self._decimal_comma)
        for block in self._text.blocks(block_bytes, spare):
            yield ReadTask(partial(self._rows_of, block, wanted, spare), block.position)

    def batches(self, block_bytes: int = DEFAULT_BLOCK_BYTES) -> Iterator[RowBatch]:
        """Yield the rows in the order of the file."""
        for task in self.tasks(block_bytes):
            yield from task.rows()
            self.position = task.position

    def table_rows(self, block_bytes: int = DEFAULT_BLOCK_BYTES, *, again: bool = False) -> Iterator[TableRows]:
        """Yield the columns with a role, in the order of the file; ``place`` is the line number."""
        wanted = self._text.wanted(self._texts)
        for block in self._text.blocks(block_bytes):
            for rows in self._text.parse(block, wanted):
                yield self._table_rows(
                    self._with_points(rows.texts, self._columns),
                    rows.place,
                    partial(self._reject_rows, rows, again=again),
                )
            self.position = block.position

    @property
    def _texts(self) -> tuple[str, ...]:
        """Columns that are read as text."""
        return *self._columns.column_of.values(), *sorted(self._columns.categorical)

    def _rows_of(self, block: Block, wanted: Wanted, spare: list[bytearray]) -> Iterator[RowBatch]:
        for rows in self._text.parse(block, wanted):
            batch, problems = self._reader.rows(self._with_points(rows.texts, self._columns), self._numbers_of(rows))
            self._reject_rows(rows, problems)
            yield batch
        spare.append(block.data)

    def _numbers_of(self, rows: DelimitedRows) -> ParsedNumbers:
        """Return the features of ``rows``, with odd cells read by the rules for words."""
        odd = rows.odd
        numbers, wrong = feature_numbers(_with_point(odd.text) if self._decimal_comma else odd.text)
        rows.numbers[odd.row, odd.number] = numbers
        return ParsedNumbers(rows.numbers, self._bad_rows(odd.row[wrong], odd.number[wrong], len(rows)))

    def _bad_rows(
        self, row: npt.NDArray[np.int64], number: npt.NDArray[np.int64], n: int
    ) -> Iterator[tuple[str, npt.NDArray[np.bool_]]]:
        """Yield each feature with bad cells, and in which of ``n`` rows they are.

        Cell k is that of ``row[k]`` and feature ``number[k]``.
        """
        order = np.argsort(number, kind="stable")
        features, first = np.unique(number[order], return_index=True)
        for feature, begin, end in zip(features.tolist(), first, [*first[1:], len(row)], strict=False):
            bad = np.zeros(n, dtype=np.bool_)
            bad[row[order[begin:end]]] = True
            yield self._columns.features[feature], bad

    def _reject_rows(self, rows: DelimitedRows, problems: Problems, *, again: bool = False) -> None:
        self._text.report(rows, problems, self._quarantine, self._columns.column_of, ragged=not again)

    def _problems_of_values(self, columns: TableColumns) -> list[ColumnProblem]:
        """Return the columns whose values in the first rows do not match their role.

        A few bad cells are not a problem of the column: reading the rows reports them.
        """
        sample = self._text.sample()
        if sample is None:
            return []
        batch = sample.texts
        bad_cells = self._bad_cells(self._with_points(batch, columns), columns)
        filled = {name: np.diff(parts_of(batch.column(name))[0]) > 0 for name in bad_cells}
        bad_cells = {name: (what, bad & filled[name]) for name, (what, bad) in bad_cells.items() if bad.any()}
        if not bad_cells:
            return []
        share = {name: bad.sum() / max(1, filled[name].sum()) for name, (_, bad) in bad_cells.items()}
        rare = {name for name in bad_cells if share[name] <= _RARE}
        commas = {name for name in bad_cells.keys() - rare if self._has_commas(batch.column(name), bad_cells[name][1])}
        bad_rows = np.logical_or.reduce([bad for _, bad in bad_cells.values()])
        if (max(share.values()) <= 0.5 and not commas) or bad_rows.sum() <= self._quarantine.limit:
            return []
        n_rare = int(np.logical_or.reduce([bad_cells[name][1] for name in rare]).sum()) if rare else 0
        first_row = {name: int(np.argmax(bad)) for name, (_, bad) in bad_cells.items() if bad.any()}
        problems, dated = [], set[str]()
        grades = {columns.column_of.get(part) for part in columns.graded}
        for name, row in first_row.items():
            what, bad = bad_cells[name]
            cell, like_it = shorten(batch.column(name)[row].as_py()), f"{int(bad.sum()):,} of {len(bad):,} rows"
            reason = f"column {name!r} must hold {what}, found {cell!r} in line {sample.place[row]} ({like_it} like it)"
            options: tuple[tuple[str, str], ...]
            if name in grades and (name not in rare or not columns.of_judgments):
                cells = batch.column(name).filter(as_array(bad))
                cure, options = self._cure_of_grades(cells, columns, of_goal=name in columns.goals)
            elif name in commas:
                cure, options = (
                    f"to read 12,50 as 12.5: {spelled_with('decimal_comma', value=True)}",
                    (("--decimal-comma", ""),),
                )
            elif name in rare and columns.of_judgments:
                allowed = spelled_with("max_rejects", n_rare)
                cure = f"correct such cells or make them empty; to leave these rows out: {allowed}"
                options = (("--max-rejects", str(n_rare)),)
            else:
                cure, options = columns.cure_of(name), columns.ignoring(name)
                if are_dates(batch.column(name))[bad].all():
                    dated.add(name)
                    cure += f"; {cure_of_dates(self.path, name, of_judgments=columns.of_judgments)}"
            if self._decimal_comma and pc.any(pc.match_substring_regex(batch.column(name), _GROUPED)).as_py():
                cure = f"remove points that separate thousands; {cure}"
            problems.append(ColumnProblem(name, reason, cure, options, in_rows=name not in commas | dated))
        return problems

    def _with_points(self, batch: pa.RecordBatch, columns: TableColumns) -> pa.RecordBatch:
        """Return ``batch`` with decimal points in all numbers but grades, where the file has commas."""
        if self._decimal_comma:
            numbers = {*columns.features, *(name for part, name in columns.column_of.items() if part in OPTIONAL)}
            for name in numbers.intersection(batch.schema.names) - columns.categorical:
                place = batch.schema.get_field_index(name)
                batch = batch.set_column(place, name, _with_point(batch.column(place)))
        return batch

    @staticmethod
    def _has_commas(cells: pa.Array[Any], bad: npt.NDArray[np.bool_]) -> bool:
        """Return whether most of the ``bad`` (n,) ones of ``cells`` are numbers with a decimal comma."""
        cells = cells.filter(as_array(bad))
        commas, thousands = (
            pc.match_substring_regex(cells, form).to_numpy(zero_copy_only=False) for form in (_WITH_COMMA, _THOUSANDS)
        )
        return bool(2 * commas.sum() > len(cells)) and not thousands.all()

    def _bad_cells(self, batch: pa.RecordBatch, columns: TableColumns) -> dict[str, tuple[str, npt.NDArray[np.bool_]]]:
        """Yield what each column must contain, and which rows (n,) of ``batch`` violate it.

        Columns are grades, numbers and features.
        """
        found, counts = {}, Counter(self.header)
        for part, name in columns.column_of.items():
            if counts[name] == 1:
                if part in columns.graded:
                    rules = self._rules.for_goals if part in columns.goals else self._rules
                    found[name] = "grades", rules.read_words(batch.column(name))[1]
                elif part in OPTIONAL:
                    found[name] = "numbers", ~OPTIONAL[part].fits(read_floats(batch.column(name))[0])
        for name in columns.features:
            if counts[name] == 1 and name not in columns.categorical:
                found[name] = "numbers", feature_numbers(batch.column(name))[1]
        return found

    def _cure_of_grades(
        self, cells: pa.Array[Any], columns: TableColumns, *, of_goal: bool
    ) -> tuple[str, tuple[tuple[str, str], ...]]:
        """Return how to fix ``cells`` that are not grades, and the option for it."""
        if columns.cure_of_grade is not None and not of_goal:
            return columns.cure_of_grade, (("--columns", "grade="),)
        counts = Counter(cast("list[str]", pc.utf8_trim(cells, characters=" \t").to_pylist()))
        if len(counts) <= _MOST_WORDS and all(word[:1].isalpha() and not {*word} & set(",=") for word in counts):
            known = [*counts, *(word for word, _ in self._rules.words)]
            like = {word: _misspelt(word, known, counts) for word in counts}
            words = [word for word in counts if not like[word]]
            cure = (
                f"{spelled_with('grades', dict.fromkeys(words, GRADE))} maps words to grades; put a number for each ?"
            )
            options: tuple[tuple[str, str], ...] = (("--grades", ",".join(f"{word}=?" for word in words)),)
            for word, right in like.items():
                if right:
                    cure += (
                        f"; {word!r} is in {counts[word]:,} row{'s' * (counts[word] > 1)}: correct it if it means "
                        f"{right!r}"
                    )
            return cure, options
        return (self._rules.for_goals if of_goal else self._rules).expected(cells[0].as_py())[1], ()


def database_bytes_of(sources: Iterable[object]) -> int:
    """Return what DuckDB takes of memory in each thread that reads ``sources``."""
    return DATABASE_BYTES if any(isinstance(source, DelimitedSource) for source in sources) else 0


def delimiter_lines(sources: Iterable[object]) -> Iterator[str]:
    """Yield a line about each delimiter found in the first lines of ``sources``.

    It names the first file with that delimiter.
    """
    guessed = [source for source in sources if isinstance(source, DelimitedSource) and source.delimiter_guessed]
    for source in {source.delimiter: source for source in reversed(guessed)}.values():
        yield f"{source.path}: cells end at {source.delimiter!r} (inferred; set with {spelled('delimiter')})"


def _with_point(cells: pa.Array[Any]) -> pa.Array[Any]:
    """Return numbers with a decimal comma as numbers with a point; those with a point become words."""
    return pc.replace_substring(pc.replace_substring(cells, ".", "point"), ",", ".")


def _misspelt(word: str, words: Collection[str], counts: Mapping[str, int]) -> str:
    """Return the one of ``words`` that the rare ``word`` seems to mean; empty if it is not rare, or like none.

    >>> [_misspelt(word, ["good", "god", "fair"], {"good": 90, "god": 1, "fair": 3}) for word in ("god", "fair")]
    ['good', '']
    """
    if not word.isalpha() or counts[word] > _RARE * sum(counts.values()):
        return ""
    others = [
        other for other in words if abs(len(other) - len(word)) < 2 and counts.get(other, np.inf) > 5 * counts[word]
    ]
    return next(iter(get_close_matches(word, others, n=1, cutoff=0.75)), "")
