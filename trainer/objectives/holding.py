"""How much memory the arrays of an object take, those of its parts included."""

from __future__ import annotations

from collections.abc import Mapping
from types import MethodType

import numpy as np

_OURS = "rankmill"


def bytes_held(owner: object, but_for: object = None) -> int:
    """Return the bytes of all arrays that ``owner`` holds, each once, without those that ``but_for`` holds too.

    Looks into attributes of our own classes, into mappings, tuples and lists, and at what methods are bound to; not into
    closures.

    >>> shared = np.zeros(10)
    >>> bytes_held((shared[2:], np.zeros(3), [shared]), but_for=[shared])
    24
    """
    seen: set[int] = set()
    _sum(but_for, seen)
    return _sum(owner, seen)


def _sum(thing: object, seen: set[int]) -> int:
    while isinstance(thing, np.ndarray) and isinstance(thing.base, np.ndarray):
        thing = thing.base
    if id(thing) in seen:
        return 0
    seen.add(id(thing))
    if isinstance(thing, np.ndarray):
        return thing.nbytes
    parts: list[object] = []
    if isinstance(thing, Mapping):
        parts = list(thing.values())
    elif isinstance(thing, tuple | list):
        parts = list(thing)
    elif isinstance(thing, MethodType):
        parts = [thing.__self__]
    elif type(thing).__module__.partition(".")[0] == _OURS:
        names = {name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ())}
        parts = [*getattr(thing, "__dict__", {}).values(), *(getattr(thing, name, None) for name in names)]
    return sum(_sum(part, seen) for part in parts)
