"""``@inner_kernel`` compiles a kernel that only other kernels call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rankmill.foundation.kernels.compiling import kernel


def inner_kernel(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Do as `kernel`, without the code that takes apart the arguments of a call from Python.

    For a kernel with named tuples of arrays this code is longer than the kernel, and takes longer to compile.

    >>> @inner_kernel
    ... def twice(x):
    ...     return x + x
    >>> @kernel
    ... def four_times(x):
    ...     return twice(twice(x))
    >>> four_times(21)
    84
    >>> twice(21)
    Traceback (most recent call last):
    TypeError: twice is called by other kernels only
    """
    if function is None:
        return lambda f: inner_kernel(f, **options)
    compiled = kernel(function, no_cpython_wrapper=True, no_cfunc_wrapper=True, **options)
    if compiled is not function:  # unless NUMBA_DISABLE_JIT is set

        def keep(found: Any) -> None:
            """Keep compiled code for kernels, and hide it from Python, which would call a missing function."""
            compiled.overloads[tuple(found.signature.args)] = found

        def refuse(*_: Any, **__: Any) -> None:
            raise TypeError(f"{function.__name__} is called by other kernels only")

        compiled.add_overload, compiled._compile_for_args = keep, refuse  # noqa: SLF001
    return compiled
