"""Products of float32 matrices whose bits depend on nothing but the numbers.

Every element of a result is one chain of fused multiply-adds, rounded once each, in a fixed order of the terms.  So a
row has the same bits in any batch, for any number of threads and any width of vectors; a fused multiply-add is the same
on every CPU (IEEE 754), in hardware or not.  That leaves the tile to be chosen for speed: some rows times some columns
are held in registers.

Matrices of weights are stored in panels, ``[panel][k][PANEL]``, so that a tile reads memory in order.  Columns past the
last of a matrix are zeros.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from rankmill.foundation.kernels.compiling import kernel

PANEL = 32  # columns of a panel: two vectors of 16 floats
LANES = 16  # floats of a vector; where the CPU has narrower ones, several make up one


def _has_wide_registers() -> bool:
    """Return whether the CPU that Numba compiles for has 32 registers of 16 floats."""
    name, features = os.environ.get("NUMBA_CPU_NAME"), os.environ.get("NUMBA_CPU_FEATURES")
    if features:
        return "+avx512f" in features
    if name:
        return name in {"x86-64-v4", "skylake-avx512", "icelake-server", "sapphirerapids", "znver4", "znver5"}
    return bool(llvm.get_host_cpu_features().get("avx512f", False))


WIDE = _has_wide_registers()
ROWS, VECTORS = (12, 2) if WIDE else (6, 1)  # of a tile: 24 of 32 wide registers, or 12 of 16 of half the width


def _tile_of(rows: int, vectors: int, x_row: int) -> Callable[..., Any]:
    """Return an intrinsic for a tile of ``rows`` x (16 * ``vectors``); ``x_row`` is the distance of its rows in ``x``.

    The distance is a constant, so that all rows are read through one register of addresses.
    """

    @intrinsic
    def tile(typingctx, start, start_at, x, x_at, y, y_at, out, out_at, n):
        signature = types.void(start, start_at, x, x_at, y, y_at, out, out_at, n)

        def codegen(context, builder, signature, arguments):
            index, vector = ir.IntType(64), ir.VectorType(ir.FloatType(), LANES)
            undefined = ir.Constant(vector, ir.Undefined)
            same = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
            fma = cgutils.get_or_insert_function(
                builder.module, ir.FunctionType(vector, [vector] * 3), f"llvm.fma.v{LANES}f32"
            )
            start, x, y, out = (
                context.make_array(signature.args[i])(context, builder, value=arguments[i]).data for i in (0, 2, 4, 6)
            )

            def numbers(i, count):
                return [
                    context.cast(builder, value, kind, types.intp)
                    for value, kind in zip(
                        cgutils.unpack_tuple(builder, arguments[i], count), signature.args[i], strict=True
                    )
                ]

            start_first, start_row = numbers(1, 2)
            x_first, x_term = numbers(3, 2)
            y_first, y_term = numbers(5, 2)
            out_first, out_row = numbers(7, 2)
            n = context.cast(builder, arguments[8], signature.args[8], types.intp)

            def place(data, *parts):
                at = parts[0]
                for part in parts[1:]:
                    at = builder.add(at, part)
                return builder.gep(data, [at])

            def vector_at(data, *parts):
                return builder.bitcast(place(data, *parts), vector.as_pointer())

            def whole(number):
                return ir.Constant(index, number)

            before = builder.block
            sums = [
                builder.load(vector_at(start, start_first, builder.mul(start_row, whole(i)), whole(v * LANES)), align=4)
                for i in range(rows)
                for v in range(vectors)
            ]
            loop, done = builder.append_basic_block("terms"), builder.append_basic_block("done")
            before = builder.block
            builder.cbranch(builder.icmp_signed(">", n, whole(0)), loop, done)
            builder.position_at_end(loop)
            t = builder.phi(index)
            held = [builder.phi(vector) for _ in sums]
            t.add_incoming(whole(0), before)
            for phi, value in zip(held, sums, strict=True):
                phi.add_incoming(value, before)
            x_now, y_now = (
                builder.add(x_first, builder.mul(t, x_term)),
                builder.add(y_first, builder.mul(t, y_term)),
            )
            right = [builder.load(vector_at(y, y_now, whole(v * LANES)), align=4) for v in range(vectors)]
            following = []
            for i in range(rows):
                cell = builder.load(place(x, x_now, whole(i * x_row)), align=4)
                left = builder.shuffle_vector(
                    builder.insert_element(undefined, cell, ir.Constant(ir.IntType(32), 0)), undefined, same
                )
                following += [builder.call(fma, [left, right[v], held[i * vectors + v]]) for v in range(vectors)]
            t_next = builder.add(t, whole(1))
            t.add_incoming(t_next, loop)
            for phi, value in zip(held, following, strict=True):
                phi.add_incoming(value, loop)
            builder.cbranch(builder.icmp_signed("<", t_next, n), loop, done)
            builder.position_at_end(done)
            for number, (first, last) in enumerate(zip(sums, following, strict=True)):
                i, v = divmod(number, vectors)
                result = builder.phi(vector)
                result.add_incoming(first, before)
                result.add_incoming(last, loop)
                following[number] = result
            for number, result in enumerate(following):
                i, v = divmod(number, vectors)
                builder.store(
                    result, vector_at(out, out_first, builder.mul(out_row, whole(i)), whole(v * LANES)), align=4
                )
            return context.get_dummy_value()

        return signature, codegen

    tile.__doc__ = (
        "out[i][v] = start[i][v] + the sum over t < n, in order, of x[i][t] y[t][v]; places are (first, "
        "step of i, step of t)."
    )
    return tile


_FEWER = ROWS // 3
_COPIED = 256  # terms of a sum for which rows are copied side by side
_DISTANCE = (
    _COPIED + LANES
)  # of copied rows; not a power of two, which would put all of them into a few sets of the cache
_of_rows = _tile_of(ROWS, VECTORS, _DISTANCE)
_of_fewer_rows = _tile_of(_FEWER, VECTORS, _DISTANCE)
_of_one_row = _tile_of(1, VECTORS, _DISTANCE)
_of_inputs = _tile_of(ROWS, VECTORS, 1)
_of_fewer_inputs = _tile_of(_FEWER, VECTORS, 1)
_of_one_input = _tile_of(1, VECTORS, 1)
_STEP = VECTORS * LANES


@kernel(allocates=True)
def dense(x, weights, bias, first, last, out):
    """out[r] = bias + x[r] @ weights, for the rows first <= r < last.

    ``x`` (n, n_inputs or more) float32, ``weights`` (n_panels, n_inputs, PANEL), ``bias`` (n_panels * PANEL,), ``out``
    (n, n_panels * PANEL).  The terms of a sum are added to the bias in the order of the inputs.
    """
    n_panels, n = weights.shape[0], weights.shape[1]
    out_row = out.shape[1]
    panels, results = weights.reshape(-1), out.reshape(-1)
    copied = np.empty(ROWS * _DISTANCE, dtype=np.float32)
    r = first
    while r < last:
        rows = ROWS if last - r >= ROWS else _FEWER if last - r >= _FEWER else 1
        for k in range(0, n, _COPIED):
            terms = min(_COPIED, n - k)
            for i in range(rows):
                for t in range(terms):
                    copied[i * _DISTANCE + t] = x[r + i, k + t]
            for column in range(0, n_panels * PANEL, _STEP):
                of_weights = ((column // PANEL) * n + k) * PANEL + column % PANEL
                write = r * out_row + column
                start, begin = (bias, (column, 0)) if k == 0 else (results, (write, out_row))
                if rows == ROWS:
                    _of_rows(
                        start, begin, copied, (0, 1), panels, (of_weights, PANEL), results, (write, out_row), terms
                    )
                elif rows == _FEWER:
                    _of_fewer_rows(
                        start, begin, copied, (0, 1), panels, (of_weights, PANEL), results, (write, out_row), terms
                    )
                else:
                    _of_one_row(
                        start, begin, copied, (0, 1), panels, (of_weights, PANEL), results, (write, out_row), terms
                    )
        r += rows


@kernel
def add_products(x, y, n_rows, first, last, out):
    """out[k] += the sum over r < n_rows, in order, of x[r, k] y[r], for the inputs first <= k < last.

    ``x`` (n, n_inputs or more) float32, ``y`` (n, n_panels * PANEL), ``out`` (n_panels, n_inputs, PANEL).
    """
    n_panels, n = out.shape[0], out.shape[1]
    x_row, y_row = x.shape[1], y.shape[1]
    cells, right, results = x.reshape(-1), y.reshape(-1), out.reshape(-1)
    for begin in range(0, n_rows, _BLOCK):
        length = min(_BLOCK, n_rows - begin)
        for column in range(0, n_panels * PANEL, _STEP):
            k = first
            while k < last:
                place = ((column // PANEL) * n + k) * PANEL + column % PANEL
                at, read, of_y = (place, PANEL), (begin * x_row + k, x_row), (begin * y_row + column, y_row)
                if last - k >= ROWS:
                    _of_inputs(results, at, cells, read, right, of_y, results, at, length)
                    k += ROWS
                elif last - k >= _FEWER:
                    _of_fewer_inputs(results, at, cells, read, right, of_y, results, at, length)
                    k += _FEWER
                else:
                    _of_one_input(results, at, cells, read, right, of_y, results, at, length)
                    k += 1


_BLOCK = 256  # rows whose cells stay in the cache while they meet all columns; a chain goes on from block to block


def in_panels(matrix: npt.NDArray[np.float32], out: npt.NDArray[np.float32] | None = None) -> npt.NDArray[np.float32]:
    """Return ``matrix`` (n_inputs, n_outputs) in panels, (n_panels, n_inputs, PANEL); in ``out`` if it is given.

    >>> in_panels(np.ones((2, 33), dtype=np.float32)).shape
    (2, 2, 32)
    """
    n, width = matrix.shape
    if out is None:
        out = np.zeros((-(-width // PANEL), n, PANEL), dtype=np.float32)
    for p in range(len(out)):
        part = matrix[:, p * PANEL : (p + 1) * PANEL]
        out[p, :, : part.shape[1]] = part
    return out


def from_panels(panels: npt.NDArray[np.float32], n_outputs: int) -> npt.NDArray[np.float32]:
    """Return the matrix (n_inputs, n_outputs) that is stored in ``panels``: the reverse of :func:`in_panels`."""
    return np.ascontiguousarray(panels.transpose(1, 0, 2).reshape(panels.shape[1], -1)[:, :n_outputs])
