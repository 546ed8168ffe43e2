"""The check of messages that the other tests rely on."""

from __future__ import annotations

import pytest

from rankmill.foundation.errors import DataRejected, InputError, MalformedLine
from tests.refusals import refused, unnamed


def refuse(error, kind, *facts):
    with refused(kind, *facts) as caught:
        raise error
    return caught.value


def test_the_words_between_the_facts_are_free():
    facts = ("a.tsv:3:1", "'x'", "--overwrite", 20)
    for text in ("a.tsv:3:1: found 'x' in 20 rows; use --overwrite", "--overwrite replaces 20 rows (a.tsv:3:1: 'x')"):
        assert str(refuse(InputError(text), InputError, *facts)) == text
        assert refuse(MalformedLine("a.tsv", 3, 1, "x", "20, or --overwrite"), DataRejected, *facts).line == 3


@pytest.mark.parametrize("fact", ["a.tsv:3:2", "'y'", "rows_", "overwrit", 2, 0])
def test_a_fact_that_the_message_lacks_fails(fact):
    with pytest.raises(AssertionError, match=f"not named: {fact}; the message: a.tsv:3:1"):
        refuse(InputError("a.tsv:3:1: found 'x' in 20 rows of 3.5 kB; use --overwrite"), InputError, "'x'", fact)


def test_another_class_or_none_fails():
    with pytest.raises(InputError, match=r"^a: 1$"):
        refuse(InputError("a: 1"), DataRejected, "a", 1)
    with pytest.raises(pytest.fail.Exception), refused(InputError):
        pass


def test_two_lines_fail():
    with pytest.raises(AssertionError, match="more than one line"):
        refuse(InputError("a: 1\nof 2"), InputError, "a", 1, 2)


def test_a_note_counts_as_part_of_the_message():
    error = InputError("a: 1")
    error.add_note("in b")
    refuse(error, InputError, "a", "b")


def test_a_number_in_a_path_or_in_a_longer_number_is_not_named():
    assert unnamed("/tmp/pytest-7/a8/9: 1,300 of 2.5", 7, 8, 9, 1, 300, 2, 5) == ["7", "8", "9", "1", "300", "2", "5"]
    assert unnamed("b/0.tsv:7:8, 9; 10.", "0.tsv", (7, 8), 9, 10, "7:8") == []
