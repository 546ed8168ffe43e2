"""Single instructions that Numba has no name for."""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from rankmill.foundation.kernels.vectors import WORD, first_of, same, vector_at


def _address(context, builder, signature, arguments):
    view = context.make_array(signature.args[0])(context, builder, value=arguments[0])
    return builder.gep(view.data, [context.cast(builder, arguments[1], signature.args[1], types.intp)])


def _prefetch(array, index, locality):
    signature = types.void(array, index)

    def codegen(context, builder, signature, arguments):
        byte, word = ir.IntType(8).as_pointer(), ir.IntType(32)
        address = builder.bitcast(_address(context, builder, signature, arguments), byte)
        kind = ir.FunctionType(ir.VoidType(), [byte, word, word, word])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(function, [address, word(0), word(locality), word(1)])
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def prefetch(typingctx, array, index):
    """Ask for the cache line of ``array[index]`` (1-d, contiguous); reads nothing, so any index is harmless."""
    return _prefetch(array, index, 3)


@intrinsic
def prefetch_to_second_level(typingctx, array, index):
    """Do as :func:`prefetch`, but leave the line in the second-level cache, which holds more of them."""
    return _prefetch(array, index, 2)


@intrinsic
def bits_of(typingctx, value):
    """Return the 64 bits of a float64 as an int64."""
    signature = types.int64(types.float64)

    def codegen(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.IntType(64))

    return signature, codegen


@intrinsic
def float_of(typingctx, value):
    """Return the float64 whose bits are those of an int64."""
    signature = types.float64(types.int64)

    def codegen(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.DoubleType())

    return signature, codegen


@intrinsic
def call_back(typingctx, address, what, count):
    """Call the C function at ``address`` with two int64; return its int64."""
    whole = types.int64
    signature = whole(whole, whole, whole)

    def codegen(context, builder, signature, arguments):
        word = ir.IntType(64)
        kind = ir.FunctionType(word, [word, word])
        function = builder.inttoptr(arguments[0], kind.as_pointer())
        return builder.call(function, arguments[1:])

    return signature, codegen


@intrinsic
def load_acquire(typingctx, array, index):
    """Return ``array[index]`` (int64); all that its writer wrote before storing it is visible afterwards."""
    signature = types.int64(array, index)

    def codegen(context, builder, signature, arguments):
        return builder.load_atomic(_address(context, builder, signature, arguments), "acquire", 8)

    return signature, codegen


@intrinsic
def store_release(typingctx, array, index, value):
    """Store an int64 in ``array[index]`` after everything that was written before."""
    signature = types.void(array, index, types.int64)

    def codegen(context, builder, signature, arguments):
        builder.store_atomic(arguments[2], _address(context, builder, signature, arguments), "release", 8)
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def highest_in_blocks(typingctx, array, blocks):
    """Return the maximum of the first ``blocks`` * 32 elements of ``array``; -inf if there are none.

    ``array`` is contiguous float64 without NaN.
    """
    signature = types.float64(array, types.intp)

    def codegen(context, builder, signature, arguments):
        kind = ir.VectorType(ir.DoubleType(), 32)
        data = first_of(context, builder, signature.args[0], arguments[0])
        highest = cgutils.alloca_once_value(builder, ir.Constant(kind, [float("-inf")] * 32))
        with cgutils.for_range(builder, arguments[1]) as loop:
            place = builder.mul(loop.index, ir.Constant(loop.index.type, 32))
            found, before = builder.load(vector_at(builder, data, place, kind), align=8), builder.load(highest)
            builder.store(builder.select(builder.fcmp_ordered(">", found, before), found, before), highest)
        found = builder.load(highest)
        for lanes in (16, 8, 4, 2, 1):
            halves = [
                builder.shuffle_vector(
                    found, found, ir.Constant(ir.VectorType(WORD, lanes), list(range(low, low + lanes)))
                )
                for low in (0, lanes)
            ]
            found = builder.select(builder.fcmp_ordered(">", *halves), *halves)
        return builder.extract_element(found, ir.Constant(WORD, 0))

    return signature, codegen


@intrinsic
def running_sums(typingctx, array, blocks, out):
    """Set out[i] to the sum of array[1 .. i], and out[0] to 0, for i below 8 * ``blocks``.

    Both are contiguous int64.  Eight sums at a time wait for one addition of those before, not for eight.
    """
    signature = types.void(array, types.intp, out)

    def codegen(context, builder, signature, arguments):
        kind = ir.VectorType(ir.IntType(64), 8)
        zeros = ir.Constant(kind, [0] * 8)
        source, target = (first_of(context, builder, signature.args[i], arguments[i]) for i in (0, 2))
        before = cgutils.alloca_once_value(builder, builder.sub(zeros, same(builder, builder.load(source), kind)))
        with cgutils.for_range(builder, arguments[1]) as loop:
            place = builder.mul(loop.index, ir.Constant(loop.index.type, 8))
            sums = builder.load(vector_at(builder, source, place, kind), align=8)
            for step in (1, 2, 4):
                lanes = ir.Constant(ir.VectorType(WORD, 8), [*range(8 - step, 8), *range(8, 16 - step)])
                sums = builder.add(sums, builder.shuffle_vector(zeros, sums, lanes))
            total = builder.shuffle_vector(sums, sums, ir.Constant(ir.VectorType(WORD, 8), [7] * 8))
            so_far = builder.load(before)
            builder.store(builder.add(sums, so_far), vector_at(builder, target, place, kind), align=8)
            builder.store(builder.add(so_far, total), before)
        return context.get_dummy_value()

    return signature, codegen
