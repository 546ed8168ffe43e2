"""Parts of intrinsics that work on vectors: the same value in every lane, and elements from many places at once."""

from __future__ import annotations

from llvmlite import ir
from numba.core import cgutils
from numba.core.errors import TypingError

INDEX, WORD = ir.IntType(64), ir.IntType(32)


def first_of(context, builder, kind, value):
    """Return the address of the first element of an array of type ``kind``, which must be contiguous."""
    if kind.layout != "C":
        raise TypingError("expected contiguous arrays")
    return context.make_array(kind)(context, builder, value=value).data


def vector_at(builder, data, place, kind):
    """Return the address of the vector of type ``kind`` that begins with element ``place`` of ``data``."""
    return builder.bitcast(builder.gep(data, [place]), kind.as_pointer())


def same(builder, value, kind):
    """Return a vector of type ``kind`` with ``value`` in every lane."""
    undefined = ir.Constant(kind, ir.Undefined)
    first = builder.insert_element(undefined, value, ir.Constant(WORD, 0))
    return builder.shuffle_vector(first, undefined, ir.Constant(ir.VectorType(WORD, kind.count), [0] * kind.count))


def gathered(builder, data, places, kind):
    """Return a vector of type ``kind`` with the elements ``places``, a vector of 64 bit integers, of ``data``.

    Elements have 4 or 8 bytes.
    """
    lanes = kind.count
    size, name = {
        ir.DoubleType(): (8, "f64"),
        ir.FloatType(): (4, "f32"),
        WORD: (4, "i32"),
    }[kind.element]
    of_lanes, addresses = ir.VectorType(INDEX, lanes), ir.VectorType(kind.element.as_pointer(), lanes)
    mask = ir.VectorType(ir.IntType(1), lanes)
    offsets = builder.shl(places, ir.Constant(of_lanes, [size.bit_length() - 1] * lanes))
    at = builder.add(same(builder, builder.ptrtoint(data, INDEX), of_lanes), offsets)
    gather = cgutils.get_or_insert_function(
        builder.module,
        ir.FunctionType(kind, [addresses, WORD, mask, kind]),
        f"llvm.masked.gather.v{lanes}{name}.v{lanes}p0",
    )
    every, undefined = ir.Constant(mask, [1] * lanes), ir.Constant(kind, ir.Undefined)
    return builder.call(gather, [builder.inttoptr(at, addresses), ir.Constant(WORD, size), every, undefined])
