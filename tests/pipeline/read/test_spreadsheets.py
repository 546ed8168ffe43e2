"""Tables as spreadsheets write them: other delimiters, decimal commas, single words among numbers and misspelt grades."""

from __future__ import annotations

import numpy as np
import pytest

from rankmill.foundation.errors import InputError, MalformedLine, UnusableColumns
from rankmill.pipeline.options import ReadOptions
from rankmill.pipeline.read.batch import Quarantine
from rankmill.pipeline.read.open_source import open_source

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
    # the only problem of the file, which the reader of the rows would tell without the cure
    assert "--decimal-comma" in dict(
        problems_of(table(tmp_path / "c.csv", prices=["12,50"] * 100, stock="1"))["price"].options
    )


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
