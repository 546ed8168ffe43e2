"""Lines of CSV are the cells that Python's csv module finds, and numbers those that float() reads."""

import csv
import itertools

import numpy as np
import pyarrow as pa
import pytest

from rankmill.foundation.errors import DataRejected, MalformedLine
from rankmill.pipeline.options import ReadOptions
from rankmill.pipeline.read import delimited_text
from rankmill.pipeline.read.batch import Problems, Quarantine
from rankmill.pipeline.read.delimited import DelimitedSource
from rankmill.pipeline.read.delimited_text import DelimitedText
from rankmill.pipeline.read.quoted_cells import split_line
from tests import naive

ENDS = ("\n", "\r\n", "\r")


def rows_of(lines):
    """The cells of ``lines``, each parsed alone by the csv module, as far as they have two cells; then what stops it,
    if anything."""
    rows = []
    for number, line in enumerate(lines, 2):
        if not line:
            continue
        (cells,) = csv.reader([line + "\n"])
        if cells[-1].endswith("\n"):
            return rows, (number, line.index('"', sum(map(len, cells[:-1]))))
        if len(cells) != 2:
            return rows, (number, f"{len(cells)} cells")
        rows.append(tuple(cells))
    return rows, None


@pytest.mark.parametrize("end", ENDS)
def test_all_short_texts_have_the_cells_of_the_csv_module(tmp_path, end):
    path = tmp_path / "a.csv"
    for length in range(4):
        for letters in itertools.product('1",\n', repeat=length):
            text = "".join(letters)
            path.write_bytes(("a,b\n" + text).replace("\n", end).encode())
            expected, stopped = rows_of(text.split("\n"))
            found, error = [], None
            try:
                for batch in DelimitedText(path, ",").texts(["a", "b"]):
                    found += zip(*(column.to_pylist() for column in batch.columns), strict=True)
            except MalformedLine as raised:
                error = raised
            assert (None if error is None else error.line) == (None if stopped is None else stopped[0]), text
            if error is None:
                assert found == expected, text
            elif isinstance(stopped[1], str):
                assert error.found == stopped[1], text
            else:
                assert error.expected == "a cell that ends on its line", text


@pytest.mark.parametrize("delimiter", [",", "\t"])
def test_lines_with_quotes_and_blanks_have_the_cells_of_a_slow_twin(tmp_path, delimiter):
    lines = [
        "".join(letters) for length in range(1, 6) for letters in itertools.product('1" ' + delimiter, repeat=length)
    ]
    split = [split_line(line.encode(), delimiter.encode()) for line in lines]
    closed = [(line, [cell.decode() for _, cell in cells]) for line, cells in zip(lines, split, strict=True) if cells]
    path, quarantine = tmp_path / "a.csv", Quarantine(len(lines))
    path.write_text(f"a{delimiter}b\n" + "".join(line + "\n" for line, _ in closed))
    text, found, places = DelimitedText(path, delimiter), [], []
    for rows in itertools.chain.from_iterable(text.parse(block, text.wanted(["a", "b"])) for block in text.blocks()):
        text.report(rows, Problems(len(rows)), quarantine)
        found += zip(*(column.to_pylist() for column in rows.texts.columns), strict=True)
        places += rows.place.tolist()
    whole = [(number, tuple(cells)) for number, (_, cells) in enumerate(closed, 2) if len(cells) == 2]
    assert list(zip(places, found, strict=True)) == whole
    assert len(quarantine.rejects) == len(closed) - len(whole)


def test_a_wide_table_is_read_without_a_long_plan(tmp_path):
    names = [f"f{k}" for k in range(5_000)]
    path = tmp_path / "a.csv"
    path.write_text(",".join(["qid", "grade", *names]) + "\n" + ",".join(["q", "1", *map(str, range(5_000))]) + "\n")
    (batch,) = DelimitedSource(path, ",", ReadOptions()).batches()
    assert batch.values.tolist() == [[*range(5_000)]]


OTHERS = ["1_0", "1e1_0", "+-5", "nan(1)", "-NAN(x)", "5\x0b", "\x0c5", "0x10", "1e", "5f"]


@pytest.mark.parametrize("other", OTHERS)
def test_numbers_that_only_duckdb_reads_are_refused(tmp_path, other):
    path, quarantine = tmp_path / "a.csv", Quarantine(1)
    path.write_text(f"qid,grade,x,y\nq_1,1,2,3\nq_1,1,{other},4\n")
    (batch,) = DelimitedSource(path, ",", ReadOptions(), quarantine).batches()
    assert batch.values.tolist() == [[2, 3]]
    assert [(reject.line, reject.column) for reject in quarantine.rejects] == [(3, 7)]


TOKENS = ["1", "-2.50", "+3e2", ".5", "7.", "", '""', '"1.5"', '" 1 "', " 2\t", "nan", '"null"', "-inf", "TRUE", "n/a", "0.1" + "0" * 30]  # fmt: skip
BAD = ["x", "1 2", "--1", '"1""2"', "1,5", '"1"2x']


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_cells_are_numbers_wherever_they_stand(tmp_path, end):
    path = tmp_path / "a.tsv"
    rng = np.random.default_rng(3)
    words = {"true": 1.0, "n/a": np.nan, "": np.nan}
    rows = [[str(token) for token in rng.choice(TOKENS, 3)] for _ in range(500)]
    # a tab in a cell needs quotes in this file
    rows = [[f'"{token}"' if "\t" in token else token for token in row] for row in rows]
    path.write_text("qid\tgrade\tx\ty\tz\n" + "".join("\t".join(["q", "1", *row]) + end for row in rows), newline="")
    (batch,) = DelimitedSource(path, "\t", ReadOptions()).batches()
    for row, values in zip(rows, batch.values, strict=True):
        for token, value in zip(row, values, strict=True):
            word = token.strip('"').strip(" \t").lower()
            expected = np.float32(words[word]) if word in words else naive.number_of(word)
            assert value.tobytes() == np.float32(expected).tobytes(), token


@pytest.mark.parametrize("bad", BAD)
def test_a_bad_cell_is_named_and_takes_only_its_row(tmp_path, bad):
    path = tmp_path / "a.csv"
    path.write_text(f"qid;grade;x;y\nq;1;2;3\nq;1;4;{bad}\nq;1;5;6\n")
    quarantine = Quarantine(1)
    (batch,) = DelimitedSource(path, ";", ReadOptions(), quarantine).batches()
    assert batch.values.tolist() == [[2, 3], [5, 6]]
    (reject,) = quarantine.rejects
    assert (reject.line, reject.column, reject.text) == (3, 7, f"q;1;4;{bad}")


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("block_bytes", [1, 7, 64, 1 << 20])
def test_rows_do_not_depend_on_blocks_or_line_ends(tmp_path, monkeypatch, end, block_bytes):
    path, rng = tmp_path / "a.csv", np.random.default_rng(4)
    monkeypatch.setattr(delimited_text, "_MOST_LINES", 5)
    lines = [f'"d,{k}",{rng.integers(100)}' if k % 7 else "" for k in range(60)]
    path.write_bytes(end.join(["doc,x", *lines]).encode())
    text = DelimitedText(path, ",")
    found = []
    for block in text.blocks(block_bytes):
        for rows in text.parse(block, text.wanted(["doc"], ["x"])):
            found += zip(rows.place.tolist(), rows.texts["doc"].to_pylist(), rows.numbers[:, 0].tolist(), strict=True)
    expected = [(k, *next(csv.reader([line]))) for k, line in enumerate(lines, 2) if line]
    assert found == [(place, doc, float(x)) for place, doc, x in expected]


def test_columns_that_are_not_wanted_are_skipped(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text('a,b,b,c\n1,"x""y",3,4\n,z,7,8\n')
    text = DelimitedText(path, ",")
    (block,) = text.blocks()
    (rows,) = text.parse(block, text.wanted(["b"], ["c", "a"]))
    assert rows.texts.equals(pa.record_batch({"b": ['x"y', "z"]}))
    np.testing.assert_array_equal(rows.numbers, np.float32([[4, 1], [8, np.nan]]))


def test_a_second_pass_sees_the_rows_behind_ragged_lines_that_filled_the_quarantine(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("qid,grade,x\nq,1,1\nq,1\nq,1,2\nq\nq,1,3\n")
    quarantine = Quarantine(2)
    source = DelimitedSource(path, ",", ReadOptions(), quarantine)
    for again in (False, True):
        found = []
        for rows in source.table_rows(again=again):
            rows.reject(rows.problems)
            found += rows.place.tolist()
        assert found == [2, 4, 6]
    assert [reject.line for reject in quarantine.rejects] == [3, 5]


def test_a_decimal_comma_is_none_where_it_ends_cells(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text('qid,grade,a,b\nq,1,3,4\nq,1,,5\nq,1,"1,5",-"2"\nq,1,2,3,4\n')
    quarantine = Quarantine(2)
    (batch,) = DelimitedSource(path, ",", ReadOptions(decimal_comma=True), quarantine).batches()
    np.testing.assert_array_equal(batch.values, np.float32([[3, 4], [np.nan, 5]]))
    assert [(reject.line, reject.column) for reject in quarantine.rejects] == [(4, 11), (5, 1)]


def test_the_first_bad_line_is_named_whatever_is_wrong_with_it(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("qid,grade,x\n" + "q,1,1\n" * 100 + "q,1,oops\nq,1\n")
    with pytest.raises(MalformedLine) as raised:
        list(DelimitedSource(path, ",", ReadOptions()).batches())
    assert (raised.value.line, raised.value.found) == (102, "oops")


def test_a_ragged_line_does_not_hide_a_column_of_words(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("qid,grade,x\nq,1\n" + "q,good,bad\n" * 100)
    with pytest.raises(DataRejected, match="grades"):
        DelimitedSource(path, ",", ReadOptions(), Quarantine(3))
