"""Lines of CSV are the cells that Python's csv module finds, and numbers those that float() reads."""

import csv
import itertools

import numpy as np
import pyarrow as pa
import pytest

from rankmill.foundation.errors import DataRejected, InputError, MalformedLine, UnusableColumns
from rankmill.pipeline.options import ReadOptions
from rankmill.pipeline.read import delimited_text
from rankmill.pipeline.read.batch import Problems, Quarantine
from rankmill.pipeline.read.delimited import DelimitedSource
from rankmill.pipeline.read.delimited_text import DelimitedText
from rankmill.pipeline.read.open_source import open_source
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


# ---- as spreadsheets write them: other delimiters, decimal commas, single words among numbers ------------------------

PLAIN = "qid,grade,price,weight,x\na,1,12.50,0.5,3\nb,0,,2,-0.25\n"


def values_of(path, **options):
    source = open_source(path, "csv", ReadOptions(**options))
    return [(batch.values.tolist(), batch.extras["weight"].tolist()) for batch in source.batches()]


@pytest.mark.parametrize(("given", "written"), [(";", ";"), ("|", "|"), ("tab", "\t"), (" ", " ")])
def test_columns_may_be_separated_by_another_character(tmp_path, given, written):
    (tmp_path / "a.csv").write_text(PLAIN)
    (tmp_path / "b.csv").write_text(PLAIN.replace(",", written))
    with np.errstate(invalid="ignore"):
        assert str(values_of(tmp_path / "b.csv", delimiter=given)) == str(values_of(tmp_path / "a.csv"))


def test_numbers_may_have_a_decimal_comma(tmp_path):
    (tmp_path / "a.csv").write_text(PLAIN)
    (tmp_path / "b.csv").write_text(PLAIN.replace(",", ";").replace(".", ","))
    found = values_of(tmp_path / "b.csv", delimiter=";", decimal_comma=True)
    assert str(found) == str(values_of(tmp_path / "a.csv"))


def test_a_point_is_not_taken_for_a_decimal_point_where_numbers_have_a_comma(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("qid;grade;x\na;1;0,5\na;0;1.234,5\n")
    with pytest.raises(MalformedLine) as caught:
        list(open_source(path, "csv", ReadOptions(delimiter=";", decimal_comma=True)).batches())
    assert (caught.value.line, caught.value.found) == (3, "1.234,5")


@pytest.mark.parametrize("delimiter", ["", ";;", '"', "\n", "ü", "a", "."])
def test_a_delimiter_is_one_character_that_no_number_has(delimiter):
    with pytest.raises(InputError, match="delimiter"):
        ReadOptions(delimiter=delimiter)


@pytest.mark.parametrize(("suffix", "written"), [("csv", ";"), ("csv", "\t"), ("csv", "|"), ("tsv", ",")])
def test_another_delimiter_is_found_in_the_first_line(tmp_path, suffix, written):
    options = ReadOptions()
    usual, path = tmp_path / "usual.csv", tmp_path / f"a.{suffix}"
    usual.write_text(PLAIN)
    path.write_text(PLAIN.replace(",", written))
    with np.errstate(invalid="ignore"):
        found, expected = (list(open_source(each, each.suffix[1:], options).batches()) for each in (path, usual))
    assert [batch.qid.to_pylist() for batch in found] == [batch.qid.to_pylist() for batch in expected]
    assert str([batch.values.tolist() for batch in found]) == str([batch.values.tolist() for batch in expected])


def table(path, *, prices=("1.5",) * 100, grades=("1", "0") * 50, stock="yes"):
    rows = zip(grades, prices, strict=True)
    path.write_text(
        "qid,grade,price,stock\n" + "".join(f'q{i // 8},{g},"{p}",{stock}\n' for i, (g, p) in enumerate(rows))
    )
    return path


def problems_of(path, **options):
    with pytest.raises(UnusableColumns) as caught:
        open_source(path, "csv", ReadOptions(**options))
    return {problem.column: problem for problem in caught.value.problems}


def test_a_few_bad_cells_do_not_cost_the_column(tmp_path):
    found = problems_of(table(tmp_path / "a.csv", prices=["1.5"] * 97 + ["TBD", "?", "12 EUR"]))
    assert found["price"].options == (("--max-rejects", "3"),)
    assert found["stock"].options == (("--ignore", "stock"),)
    found = problems_of(table(tmp_path / "b.csv", prices=["1.5"] * 90 + ["TBD"] * 10))
    assert found["price"].options == (("--ignore", "price"),)


def test_candidates_are_offered_no_option_that_rerank_lacks(tmp_path):
    path = table(tmp_path / "a.csv", prices=["1.5"] * 99 + ["TBD"], stock="1")
    source = open_source(path, "csv", ReadOptions(grade_required=False, known_features=frozenset({"price"})))
    with pytest.raises(MalformedLine) as caught:
        list(source.batches())
    assert "empty" in caught.value.cure
    assert "reject" not in caught.value.cure
    assert "ignore" not in caught.value.cure


def test_decimal_commas_are_distinguished_from_thousands_and_words(tmp_path):
    found = problems_of(table(tmp_path / "a.csv", prices=["12,50", "3"] * 50))
    assert found["price"].options == (("--decimal-comma", ""),)
    found = problems_of(table(tmp_path / "b.csv", prices=["1,000", "12,000"] * 50))
    assert found["price"].options == (("--ignore", "price"),)
    # the only problem of the file, which the reader of the rows would report without the cure
    assert "--decimal-comma" in dict(
        problems_of(table(tmp_path / "c.csv", prices=["12,50"] * 100, stock="1"))["price"].options
    )


def test_points_of_thousands_are_named_where_the_decimal_sign_is_a_comma(tmp_path):
    for prices in (["1.184,69", "12,50"] * 50, ["1.204", "3"] * 50):
        found = problems_of(table(tmp_path / "a.csv", prices=prices), decimal_comma=True)
        assert "remove points" in found["price"].cure
    found = problems_of(table(tmp_path / "b.csv", prices=["TBD"] * 100), decimal_comma=True)
    assert "remove points" not in found["price"].cure


def test_a_misspelt_grade_is_not_offered_as_another_grade(tmp_path):
    grades = ["good", "bad"] * 48 + ["god", "good", "Best", "bad"]
    found = problems_of(table(tmp_path / "a.csv", grades=grades))["grade"]
    assert found.options == (("--grades", "good=?,bad=?,Best=?"),)
    assert "'god' is in 1 row" in found.cure
    assert "'good'" in found.cure


def test_a_word_that_is_no_grade_comes_with_a_cure(tmp_path):
    path = table(tmp_path / "a.csv", grades=["good", "bad"] * 49 + ["god", "bad"], stock="1")
    with pytest.raises(MalformedLine) as caught:
        list(open_source(path, "csv", ReadOptions(grades={"good": 1, "bad": 0})).batches())
    assert "grades" in caught.value.cure


def test_rows_that_may_be_left_out_are_no_problem_of_a_column(tmp_path):
    path = table(tmp_path / "a.csv", prices=["1.5"] * 98 + ["TBD", "?"], stock="1")
    quarantine = Quarantine(2)
    source = open_source(path, "csv", ReadOptions(), quarantine)
    assert sum(len(batch) for batch in source.batches()) == 98
    assert [reject.line for reject in quarantine.rejects] == [100, 101]
