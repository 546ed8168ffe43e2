"""The one line about compilation comes when it is true, and once."""

from __future__ import annotations

from numba import njit

from trainer.compiling import MESSAGE, compilation_announced


def test_the_first_compilation_is_announced_and_no_other():
    said: list[str] = []

    @njit
    def one(x):
        return x + 1

    @njit
    def two(x):
        return x + 2

    with compilation_announced(said.append):
        assert said == []
        assert one(1) + two(1) == 5
        assert one(1.0) == 2.0  # another type: compiled again
    assert said == [MESSAGE]
    said.clear()
    with compilation_announced(said.append):
        assert one(1) == 2  # compiled already
    assert said == []
    assert two(1.0) == 3.0  # outside: nobody is told
    assert said == []
