"""Numbers in text: the same float32 that Python's float() gives, bit for bit."""

import math
import random
import struct
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numba import njit

from rankmill.pipeline.options import ReadOptions
from rankmill.pipeline.read import _number_kernels as _kernels
from rankmill.pipeline.read.letor import LetorSource
from rankmill.pipeline.read.role_columns import feature_numbers, read_floats
from tests import naive


@njit(nogil=True)
def numbers_at(text, starts, values, verdicts, powers):
    for k in range(starts.shape[0]):
        verdicts[k], end, values[k] = _kernels.number_at(text, starts[k], 46, powers)
        if text[end] != 10:
            verdicts[k] = _kernels.MALFORMED


def read(tokens):
    """Values and verdicts of ``tokens`` by the kernel of LETOR text, the deferred ones resolved as its reader does."""
    lines = [f"{token}\n".encode() for token in tokens]
    text = np.frombuffer(b"".join(lines), dtype=np.uint8)
    starts = np.cumsum([0, *map(len, lines[:-1])]).astype(np.uint64)
    values, verdicts = np.empty(len(tokens), np.float32), np.empty(len(tokens), np.int64)
    numbers_at(text, starts, values, verdicts, _kernels.POWERS)
    with np.errstate(over="ignore"):
        for k in np.flatnonzero(verdicts == _kernels.DEFERRED):
            values[k] = np.float32(float(tokens[k]))
    return values, verdicts


def check(tokens):
    values, verdicts = read(tokens)
    cells, bad = read_floats(pa.array(tokens))
    with np.errstate(over="ignore"):
        cells = cells.astype(np.float32)
    for k, token in enumerate(tokens):
        expected = naive.number_of(token)
        if expected is None:
            assert verdicts[k] == _kernels.MALFORMED, token
            assert bad[k], token
        else:
            assert verdicts[k] != _kernels.MALFORMED, token
            assert not bad[k], token
            assert values[k].tobytes() == cells[k].tobytes() == expected.tobytes(), (token, values[k], cells[k])
    return verdicts


digits = st.text("0123456789", min_size=1, max_size=40)


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


def test_few_numbers_are_left_to_python():
    rng = random.Random(11)
    tokens = [repr(rng.expovariate(1) * 10 ** rng.randint(-12, 12)) for _ in range(20000)]
    assert np.count_nonzero(check(tokens) == _kernels.DEFERRED) <= 2


# ---- a million tokens, the hard ones among them ----------------------------------------------------------------------


def digits_of(rng, low, high):
    return str(rng.randrange(10 ** rng.randint(low, high)))


def plain_number(rng):
    """A number as data have it."""
    return rng.choice(("{:.6f}", "{:.3f}", "{:g}", "{!r}", "{:.1e}")).format(
        rng.expovariate(1) * 10 ** rng.randint(-3, 6)
    )


def long_number(rng):
    """17 to 25 digits, where a float64 has 17 at most, the point anywhere."""
    digits = str(rng.randrange(10**16, 10 ** rng.randint(17, 25)))
    place = rng.randint(0, len(digits))
    return f"{digits[:place]}.{digits[place:]}{rng.choice(('', '', f'e{rng.randint(-60, 60)}'))}"


def single(rng, low=1, high=0x7F7FFFFF):
    """A positive float32 of any size, as float."""
    return struct.unpack("f", struct.pack("I", rng.randint(low, high)))[0]


def near_half_of_float32(rng):
    """A midpoint between two float32, or a float64 or a few digits beside it."""
    low = single(rng)
    middle = (low + float(np.nextafter(np.float32(low), np.float32(np.inf)))) / 2
    kind = rng.randrange(4)
    if kind == 0:
        return f"{middle:.120e}"  # all its digits
    if kind == 1:
        return f"{math.nextafter(middle, rng.choice((0.0, math.inf))):.17g}"
    digits, exponent = f"{middle:.{rng.randint(17, 120)}e}".split("e")
    return f"{digits}{rng.choice(('0', '1', '5', '0000000001', '9'))}e{exponent}"


def near_half_of_float64(rng):
    """Next to a midpoint between two float64, the lower of which is a midpoint between two float32: rounded twice."""
    low = single(rng, 0x00800000)
    middle = (low + float(np.nextafter(np.float32(low), np.float32(np.inf)))) / 2
    half = (Fraction(middle) + Fraction(math.nextafter(middle, rng.choice((0.0, math.inf))))) / 2
    with localcontext(prec=60):
        text = f"{Decimal(half.numerator) / Decimal(half.denominator):e}"
    digits, exponent = text.split("e")
    return f"{digits}{rng.choice(('', '0', '1', '00000001'))}e{exponent}"


def subnormal(rng):
    """A subnormal of float32 or float64, or next to the least of either."""
    if rng.random() < 0.5:
        return f"{single(rng, 1, 0x00800001):.{rng.choice((6, 9, 17, 40))}e}"
    tiny = struct.unpack("d", struct.pack("Q", rng.randint(1, 0x0010000000000001)))[0]
    return rng.choice(
        (repr(tiny), f"{rng.random()}e-45", f"{rng.random() * 10}e-{rng.randint(37, 46)}", f"{rng.random()}e-323")
    )


def with_zeros(rng):
    """Zeros before, after and inside, more than any of the digits that are kept."""
    zeros = "0" * rng.randint(1, 60)
    digits = digits_of(rng, 1, 12)
    return rng.choice(
        (
            f"{zeros}{digits}.{digits}{zeros}",
            f"0.{zeros}{digits}",
            f"{digits}{zeros}",
            f"{digits}{zeros}.{zeros}{digits}e-{rng.randint(0, 70)}",
            f"0.{zeros}{digits}e{rng.randint(0, 70)}",
            f"{zeros}e{rng.randint(-400, 400)}",
        )
    )


def huge_exponent(rng):
    """Exponents beyond every table, and those that just are in it."""
    digits = f"{digits_of(rng, 1, 20)}.{digits_of(rng, 1, 20)}"
    exponent = rng.choice(
        (rng.randint(-345, 330), rng.randint(-30, 45), rng.choice((-1, 1)) * 10 ** rng.randint(3, 30))
    )
    return f"{digits}{rng.choice('eE')}{exponent:{rng.choice(('', '+'))}d}"


def largest(rng):
    """Next to the largest float32: where it becomes infinite."""
    beyond = 3.4028235677973366e38  # half-way between the largest float32 and what would be the next one
    value = rng.choice((beyond, math.nextafter(beyond, 0.0), math.nextafter(beyond, math.inf), 3.4028234663852886e38))
    return rng.choice((repr(value), f"{value:.30f}", f"{value:.40e}", f"{value * (1 + rng.uniform(-1e-7, 1e-7))!r}"))


def whole_number(rng):
    """Powers of two and of ten, and their neighbours."""
    base = rng.choice((2 ** rng.randint(0, 140), 10 ** rng.randint(0, 45)))
    return str(base + rng.randint(-3, 3))


KINDS = (
    plain_number, long_number, near_half_of_float32, near_half_of_float64, subnormal, with_zeros, huge_exponent,
    largest,
    whole_number, plain_number,
)  # fmt: skip


@pytest.mark.parametrize("kind", range(len(KINDS)), ids=[kind.__name__ for kind in KINDS])
def test_many_numbers_have_the_bits_of_float(tmp_path, kind):
    rng = random.Random(kind)
    tokens = [rng.choice(("", "", "-", "+")) + KINDS[kind](rng).removeprefix("-") for _ in range(20_000)]
    values, verdicts = read(tokens)
    with np.errstate(over="ignore"):
        expected = np.array([float(token) for token in tokens]).astype(np.float32)
    assert not (verdicts == _kernels.MALFORMED).any()
    path = tmp_path / "numbers.txt"
    path.write_text("".join(f"0 qid:1 1:{token} 2:{token}\n" for token in tokens))
    columns = np.concatenate([batch.values for batch in LetorSource(path, ReadOptions()).batches()])
    for found in (
        values,
        feature_numbers(pa.array(tokens))[0],
        *np.ascontiguousarray(columns.T),
    ):  # of a cell, and of LETOR text within a line and at its end
        different = np.flatnonzero(found.view(np.uint32) != expected.view(np.uint32))
        assert not len(different), (tokens[different[0]], found[different[0]], expected[different[0]])
