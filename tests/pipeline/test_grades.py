"""What grades mean: the rules of words, of negative numbers and of no grade, against a plain reading of each cell."""

import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import InputError
from pipeline.sources.grades import GRADE_RULE, MAX_GRADE, UNKNOWN_GRADE, GradeRules, parse_words

WORDS = (("Perfect", 4), ("good", 2), ("BAD", 0), ("-2", 0), ("0.5", 1), ("7", 3), ("somewhat bad", 1))
CELLS = ["perfect", " GOOD ", "bad", "b a d", "Somewhat Bad", "-2", "-2.0", "-1", "0", "-0", "1", "2.0", "2.5", ".5"]
CELLS += ["0.5", "7", "07", "3", "9", "1e1", "inf", "x", "", " ", "nan", "NULL", None, "99999999999", "-3.5"]


def naive(cell, rules):
    """The grade of a cell, or None where it is bad."""
    nothing = UNKNOWN_GRADE if rules.unjudged == "keep" else 0 if rules.unjudged == "zero" else None
    word = "" if cell is None else cell.strip().lower()
    plain = word.replace("-", "", 1) if word.startswith("-") else word
    number = float(word) if plain and set(plain) <= set("0123456789.") else None
    for key, grade in rules.words:
        if word == key.strip().lower() or (
            number is not None and key.strip("-.0123456789") == "" and float(key) == number
        ):
            number, word = float(grade), None
            break
    if word in {"", "nan", "null"}:
        return nothing
    if number is None or number != int(number) or number > rules.highest:
        return None
    if number < 0:
        return {"reject": None, "zero": 0, "unjudged": nothing}[rules.negative]
    return int(number)


@given(
    st.lists(st.sampled_from(CELLS), max_size=12),
    st.sampled_from(["reject", "zero", "unjudged"]),
    st.sampled_from(["keep", "zero", "reject"]),
    st.sampled_from([(), WORDS, (("unknown", -1), *WORDS)]),
    st.sampled_from([4, 8, MAX_GRADE]),
)
def test_a_cell_is_read_by_the_map_then_by_its_sign_then_by_whether_it_is_there(
    cells, negative, unjudged, words, highest
):
    if negative == "reject":
        words = words[-len(WORDS) :]
    rules = GradeRules(words=words, negative=negative, unjudged=unjudged, highest=highest)
    grades, bad = rules.read_words(pa.array(cells, pa.string()))
    assert grades.dtype == np.int32
    assert [None if b else g for g, b in zip(grades.tolist(), bad.tolist(), strict=True)] == [
        naive(c, rules) for c in cells
    ]


@given(
    st.lists(
        st.one_of(
            st.sampled_from([-2.0, -1.0, -0.0, 0.5, 7.0, math.nan, math.inf, -math.inf]),
            st.integers(-5, 10),
            st.floats(),
        )
    ),
    st.sampled_from(["reject", "zero", "unjudged"]),
    st.sampled_from(["keep", "zero", "reject"]),
    st.booleans(),
)
def test_numbers_mean_what_the_same_numbers_mean_as_text(numbers, negative, unjudged, mapped):
    rules = GradeRules(words=WORDS if mapped else (), negative=negative, unjudged=unjudged, highest=9)
    numbers = [float(x) for x in numbers]
    grades, bad = rules.settle_numbers(np.array(numbers, dtype=np.float64))
    text = ["" if math.isnan(x) else f"{x:.400f}" if math.isfinite(x) else "inf" for x in numbers]
    told, told_bad = rules.read_words(pa.array(text, pa.string()))
    assert bad.tolist() == told_bad.tolist()
    assert grades[~bad].tolist() == told[~bad].tolist()


@pytest.mark.parametrize(
    ("found", "words", "message"),
    [
        ("-1", (), (GRADE_RULE, "--negative-grades zero|unjudged says what negative ones mean")),
        (-1.0, (), (GRADE_RULE, "--negative-grades zero|unjudged says what negative ones mean")),
        ("", (), (GRADE_RULE, "--unjudged keep|zero says what no grade means")),
        (None, WORDS[:1], (GRADE_RULE, "--unjudged keep|zero says what no grade means")),
        (math.nan, (), (GRADE_RULE, "--unjudged keep|zero says what no grade means")),
        ("good", (), (GRADE_RULE, "--grades good=1,bad=0 maps words to grades")),
        ("fine", WORDS[:2], ("a grade: one of Perfect=4, good=2, or a number", "")),
        ("1.5", (), (GRADE_RULE, "")),
        ("9", (), ("a grade up to 5", "")),
        (math.inf, (), (GRADE_RULE, "")),
    ],
)
def test_a_bad_grade_is_told_with_its_cure(found, words, message):
    assert GradeRules(words=words, highest=5).expected(found) == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("perfect", "--grades: expected perfect=4,good=2,bad=0, found 'perfect' in 'perfect'"),
        ("a=1,,b=2", "--grades: expected perfect=4,good=2,bad=0, found '' in 'a=1,,b=2'"),
        ("a=1,=2", "--grades: expected perfect=4,good=2,bad=0, found '=2' in 'a=1,=2'"),
        ("a=x", "--grades: expected perfect=4,good=2,bad=0, found 'a=x' in 'a=x'"),
        ("a=1, A =2", "--grades has 'A' twice (capitals and blanks around do not count)"),
        ("1=1,1.0=2", "--grades has '1.0' twice (capitals and blanks around do not count)"),
        ("a=6", "--grades maps 'a' to 6, above --max-grade 5"),
        ("a=-1", "--grades maps 'a' to -1: a grade is 0 or more; --negative-grades zero|unjudged gives negative ones a meaning"),
    ],
)  # fmt: skip
def test_a_map_that_is_none_is_refused(text, message):
    with pytest.raises(InputError) as caught:
        GradeRules(words=parse_words(text), highest=5)
    assert str(caught.value) == message


def test_policies_are_known_by_name():
    with pytest.raises(InputError, match="unknown value of --negative-grades 'zeros'; did you mean 'zero'"):
        GradeRules(negative="zeros")
    with pytest.raises(InputError, match="unknown value of --unjudged 'keeps'; did you mean 'keep'"):
        GradeRules(unjudged="keeps")
