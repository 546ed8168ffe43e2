"""Products of matrices: against NumPy, and the same bits for any rows around, any share of work and any width of
vectors."""

import hashlib
import itertools
import os
import subprocess
import sys

import numpy as np
import pytest

from rankmill.foundation.kernels.dense import PANEL, add_products, dense, from_panels, in_panels

SHAPES = [(1, 1, 1), (5, 3, 40), (13, 7, 32), (30, 300, 70), (257, 136, 96), (530, 20, 33)]


def product(x, weights, bias):
    panels = in_panels(weights)
    out = np.full((len(x), len(panels) * PANEL), np.nan, dtype=np.float32)
    padded = np.zeros(out.shape[1], dtype=np.float32)
    padded[: len(bias)] = bias
    dense(x, panels, padded, 0, len(x), out)
    assert not out[:, len(bias) :].any()
    return out[:, : len(bias)]


def drawn(shape, seed=0):
    n, k, m = shape
    rng = np.random.default_rng(seed)
    return [rng.normal(size=each).astype(np.float32) for each in ((n, k), (k, m), (m,), (n, m))]


@pytest.mark.parametrize("shape", SHAPES)
def test_products_are_those_of_numpy(shape):
    x, weights, bias, _ = drawn(shape)
    exact = x.astype(np.float64) @ weights + bias
    assert product(x, weights, bias) == pytest.approx(exact, abs=1e-5 * np.sqrt(shape[1]) + 1e-6)


def test_each_term_is_rounded_once():
    """1 + (1 + e)(1 - e) - 1 - 1 is -e^2 only if products are not rounded before they are added."""
    e = np.float32(2.0**-13)
    x = np.array([[1, 1 + e]], dtype=np.float32)
    weights = np.array([[-1], [1 - e]], dtype=np.float32)
    assert product(x, weights, np.zeros(1, np.float32))[0, 0] == -e * e


@pytest.mark.parametrize("shape", SHAPES)
def test_a_row_does_not_depend_on_the_others(shape):
    x, weights, bias, _ = drawn(shape)
    together = product(x, weights, bias)
    order = np.random.default_rng(2).permutation(len(x))
    assert np.array_equal(product(x[order], weights, bias), together[order])
    for row in range(min(len(x), 15)):
        assert np.array_equal(product(x[row : row + 1], weights, bias)[0], together[row])


@pytest.mark.parametrize("shape", SHAPES)
def test_the_gradient_of_weights_does_not_depend_on_who_computes_it(shape):
    x, weights, _, y = drawn(shape)
    n, k = x.shape
    m = y.shape[1]
    padded = np.zeros((n, -(-m // PANEL) * PANEL), dtype=np.float32)
    padded[:, :m] = y
    whole, shared = np.zeros_like(in_panels(weights)), np.zeros_like(in_panels(weights))
    add_products(x, padded, n, 0, k, whole)
    cuts = [0, k // 3, k // 2, k]
    for first, last in itertools.pairwise(cuts):
        add_products(x, padded, n, first, last, shared)
    assert np.array_equal(whole, shared)
    assert from_panels(whole, m) == pytest.approx(x.T.astype(np.float64) @ y, abs=1e-4 * np.sqrt(n))


def test_panels_hold_the_matrix():
    matrix = np.arange(70 * 45, dtype=np.float32).reshape(70, 45)
    assert np.array_equal(from_panels(in_panels(matrix), 45), matrix)
    out = np.zeros((-(-70 // PANEL), 45, PANEL), dtype=np.float32)
    in_panels(matrix.T, out)
    assert np.array_equal(from_panels(out, 70), matrix.T)


def digest_of_products():
    found = []
    for shape in SHAPES:
        x, weights, bias, y = drawn(shape)
        out = np.zeros_like(in_panels(weights))
        padded = np.pad(y, ((0, 0), (0, -y.shape[1] % PANEL)))
        add_products(x, padded, len(x), 0, x.shape[1], out)
        found += [product(x, weights, bias).tobytes(), out.tobytes()]
    return hashlib.sha256(b"".join(found)).hexdigest()


@pytest.mark.slow  # compiles again
@pytest.mark.parametrize("features", ["+avx2,+fma", "+sse4.2"])
def test_bits_do_not_depend_on_the_instructions(features, tmp_path):
    """Vectors of eight floats and none that multiply and add in one step: the same bits as on this CPU."""
    if not sys.platform.startswith("linux") or os.uname().machine != "x86_64":
        pytest.skip("names features of x86-64")
    code = "from tests.trainer.nets.test_dense import digest_of_products as d; print(d())"
    named = {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": features, "NUMBA_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **named}, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == digest_of_products()
