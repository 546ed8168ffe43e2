"""Numbers in text: the same float32 that Python's float() gives, bit for bit."""

import random
import struct

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipeline.sources import _kernels
from tests import naive


def read(tokens):
    """Values and verdicts of ``tokens``, the deferred ones settled as the readers do."""
    text = np.frombuffer("".join(f"{token}\n" for token in tokens).encode(), dtype=np.uint8)
    values, verdicts = np.empty(len(tokens), np.float32), np.empty(len(tokens), np.int64)
    _kernels.parse_cells(text, values, verdicts, _kernels.POWERS)
    with np.errstate(over="ignore"):
        for k in np.flatnonzero(verdicts == _kernels.DEFERRED):
            values[k] = np.float32(float(tokens[k]))
    return values, verdicts


def check(tokens):
    values, verdicts = read(tokens)
    for token, value, verdict in zip(tokens, values, verdicts, strict=True):
        expected = naive.number_of(token)
        if expected is None:
            assert verdict == _kernels.MALFORMED, token
        else:
            assert verdict != _kernels.MALFORMED, token
            assert value.tobytes() == expected.tobytes(), (token, value, expected)
    return verdicts


digits = st.text("0123456789", min_size=1, max_size=40)
plain = st.builds(
    lambda sign, whole, fraction, exponent: f"{sign}{whole}{fraction}{exponent}",
    st.sampled_from(["", "-", "+"]),
    digits,
    st.one_of(st.just(""), digits.map(lambda text: f".{text}"), st.just(".")),
    st.one_of(
        st.just(""),
        st.integers(-340, 340).map(lambda e: f"e{e}"),
        st.integers(-30, 30).map(lambda e: f"E{e:+}"),
    ),
)


@given(st.lists(st.one_of(plain, st.floats().map(repr), st.floats(width=32).map(repr)), min_size=1, max_size=30))
@settings(max_examples=300, deadline=None)
def test_numbers_have_the_bits_of_float(tokens):
    check(tokens)


@given(
    st.lists(
        st.text("0123456789.eE+-infatyNuUlL_x ", min_size=1, max_size=12).map(str.strip).filter(bool),
        min_size=1,
        max_size=20,
    )
)
@example(["1_0", "0x1", "1e", "1e+", ".", "-", "+.", "..", "1.2.3", "--1", "nane", "infi", "nul", "1 2", "e5", "NULLL"])
@example(
    [
        "nan",
        "NaN",
        "-nan",
        "NULL",
        "null",
        "inf",
        "-INF",
        "Infinity",
        "+infinity",
        "1.",
        ".5",
        "-.5e-3",
        "00012",
        "1e400",
    ]
)
@settings(max_examples=300, deadline=None)
def test_what_is_a_number_is_the_grammar(tokens):
    check(tokens)


def halves(rng, n):
    """Decimal texts of, and next to, midpoints between neighbouring float32: where rounding is hardest."""
    for _ in range(n):
        low = struct.unpack("f", struct.pack("I", rng.randrange(1, 0x7F7FFFFF)))[0]
        high = float(np.nextafter(np.float32(low), np.float32(np.inf)))
        middle = (low + high) / 2
        for value in (middle, float(np.nextafter(middle, 0)), float(np.nextafter(middle, 1e39))):
            yield from (repr(value), f"{value:.20e}", f"{value:.60e}")


def test_midpoints_between_float32_round_to_even():
    tokens = list(halves(random.Random(7), 3000))
    deferred = check(tokens) == _kernels.DEFERRED
    assert deferred.any(), "no token was hard enough to test the way back to float()"


def test_few_numbers_are_left_to_python():
    rng = random.Random(11)
    tokens = [repr(rng.expovariate(1) * 10 ** rng.randint(-12, 12)) for _ in range(20000)]
    assert np.count_nonzero(check(tokens) == _kernels.DEFERRED) <= 2


@pytest.mark.slow
def test_a_million_numbers():
    rng = random.Random(3)
    for _ in range(20):
        tokens = [
            f"{rng.choice(('', '-'))}{rng.randrange(10 ** rng.randint(1, 25))}.{rng.randrange(10 ** rng.randint(1, 25))}"
            f"{rng.choice(('', f'e{rng.randint(-60, 60)}'))}"
            for _ in range(50000)
        ]
        check(tokens)


def test_blanks_around_a_cell_and_empty_cells():
    values, verdicts = read([" 1.5\t", "", "  ", "2"])
    assert verdicts.tolist() == [_kernels.NUMBER, _kernels.MISSING, _kernels.MISSING, _kernels.NUMBER]
    assert values[[0, 3]].tolist() == [1.5, 2.0]
    assert np.isnan(values[1:3]).all()
