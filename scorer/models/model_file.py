"""Model files: their bytes, and the checks that make their arrays safe to follow.

A file is magic, format number, JSON header, aligned arrays, and the sha256 of all of it.

Layout, little-endian::

    0    8 bytes   magic  b"RANKMILL"
    8    u32       format number (one of FORMATS)
    12   u32       zero
    16   u64       length of the JSON header in bytes
    24   header    canonical JSON: sorted keys, no blanks, UTF-8, no NaN
         zeros     up to the next multiple of 64
         arrays    each raw and C-contiguous, each starting at a multiple of 64, zeros between them
    -32  32 bytes  sha256 of everything before

The header's key ``arrays`` lists ``[name, dtype, length]`` in the order of the bytes; offsets follow from the lengths,
so two arrays cannot overlap; ``rankmill.scorer.forest.forest`` says which arrays there are.
Formats 1 to 3 are forests, written in the lowest that can express them; ``rankmill.scorer.forest.forest`` says what
needs 2 or 3.  Format 4 is a net (``rankmill.scorer.nets.net``), format 5 a blend (``rankmill.scorer.models.loading``).

The kernels do not check bounds, so all nodes of all trees are checked here.  Each check returns the first fault in
words, or None.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from rankmill.foundation.errors import ModelFormatError
from rankmill.foundation.records import canonical_json, other_format

MAGIC = b"RANKMILL"
FORMATS = (1, 2, 3, 4, 5)
NET, BLEND = 4, 5
ALIGNMENT = 64
DIGEST_BYTES = 32
MAX_HEADER_BYTES = 64 * 1024 * 1024
MAX_NESTING = 64  # levels of lists and mappings, below any recursion limit
MAX_FOUND = 400  # characters of a quoted value
_PREFIX = struct.Struct("<8sIIQ")

MAX_FEATURES = 1 << 20
MAX_TREES = 1 << 20
MAX_NODES = 1 << 28
MAX_DEPTH = 65_535  # splits on the way to a leaf: those of the deepest tree that training can grow
MAX_CUTS_OF_A_FEATURE = 65_534  # a bin code, missing included, must fit 16 bits
MAX_SCORE = 1e300  # bound of the score of any document, so that no sum on the way overflows into infinity or NaN

Array: TypeAlias = npt.NDArray[Any]
Arrays: TypeAlias = Mapping[str, Array]
"""The arrays of a model by name."""
ArrayTypes: TypeAlias = Sequence[tuple[str, np.dtype[Any]]]
"""Names and dtypes of arrays, in the order of the bytes."""
Header: TypeAlias = Mapping[str, type]
"""Types of the values of a header by key."""


def is_model_file(path: Path) -> bool:
    """Return whether the file at ``path`` begins with the magic of model files."""
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def nesting(value: object) -> int:
    """Return how many levels of lists and mappings ``value`` has, itself included; 0 for anything else.

    >>> nesting({"a": [1, {"b": 2}]}), nesting("text")
    (3, 0)
    """
    depth, level = 0, [value]
    while containers := [item for item in level if isinstance(item, dict | list)]:
        depth += 1
        level = [part for item in containers for part in (item.values() if isinstance(item, dict) else item)]
    return depth


def shortened(found: object) -> str:
    """Return ``found`` as one line, shortened to fit a message.

    >>> shortened(ValueError("two lines" + chr(10) + "of it"))
    'two lines of it'
    """
    text = " ".join(str(found).split())
    return text if len(text) <= MAX_FOUND else f"{text[:MAX_FOUND]}.."


def encode(number: int, header: Mapping[str, object], arrays: Arrays, magic: bytes = MAGIC) -> bytes:
    """Build the bytes of format ``number`` from the ``header`` (without ``arrays``) and one-dimensional ``arrays``.

    Another ``magic`` (8 bytes) is for files of this layout that are no models, such as checkpoints of nets.
    """
    listed = [[name, array.dtype.newbyteorder("<").str, len(array)] for name, array in arrays.items()]
    text = canonical_json({**header, "arrays": listed})
    parts: list[bytes | memoryview] = [_PREFIX.pack(magic, number, 0, len(text)), text]
    length = _PREFIX.size + len(text)
    for array in arrays.values():
        values = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).view(np.uint8)
        parts += [bytes(-length % ALIGNMENT), values.data]
        length += -length % ALIGNMENT + len(values)
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return b"".join([*parts, digest.digest()])


def format_number(data: bytes, where: str, magic: bytes = MAGIC) -> int:
    """Return the format number of a model file.

    ModelFormatError, beginning with ``where``, for any other file or an unknown format.
    """
    if len(data) < _PREFIX.size + DIGEST_BYTES:
        raise ModelFormatError(f"{where}: expected a rankmill model, found only {len(data)} bytes")
    found, number, _, _ = _PREFIX.unpack_from(data)
    if found != magic:
        raise ModelFormatError(
            f"{where}: not a rankmill model: the first bytes are {found!r}, expected {magic!r}; "
            "rankmill convert FILE --from lightgbm (or xgboost) reads models of other tools"
        )
    if number not in FORMATS:
        raise ModelFormatError(other_format(f"{where}: model", number, FORMATS[-1], "train again", first=FORMATS[0]))
    return int(number)


def decode(
    data: bytes, where: str, kind: str, formats: Mapping[int, tuple[Header, ArrayTypes]], magic: bytes = MAGIC
) -> tuple[int, dict[str, Any], dict[str, Array]]:
    """Split ``data`` into format number, header and arrays.

    ``formats`` are those of a ``kind`` of model, such as "a forest", by number: the keys of the header with their
    types, and the arrays with theirs.  Every length is checked before anything is read through it.  The arrays are
    read-only views of ``data``.

    Raises
    ------
    ModelFormatError
        Not a model file, of an unknown format or another kind, truncated, changed, or with unexpected bytes; the
        message begins with ``where``.
    """
    number = format_number(data, where, magic)
    if number not in formats:
        raise ModelFormatError(f"{where}: model format number {number} is not that of {kind}")
    _, _, zero, header_bytes = _PREFIX.unpack_from(data)
    if hashlib.sha256(memoryview(data)[:-DIGEST_BYTES]).digest() != data[-DIGEST_BYTES:]:
        raise ModelFormatError(f"{where}: the model is damaged or cut short: its sha256 does not match its bytes")
    end = len(data) - DIGEST_BYTES
    if zero != 0 or header_bytes > min(MAX_HEADER_BYTES, end - _PREFIX.size):
        raise ModelFormatError(f"{where}: the model's header length {header_bytes} does not fit its {len(data)} bytes")
    types, expected = formats[number]
    header = _header(data[_PREFIX.size : _PREFIX.size + header_bytes], where)
    lengths = _lengths(header.pop("arrays", None), where, expected, number)
    _check_types(header, types, where)
    arrays: dict[str, Array] = {}
    position = _PREFIX.size + header_bytes
    for (name, dtype), length in zip(expected, lengths, strict=True):
        start = position + -position % ALIGNMENT
        stop = start + length * dtype.itemsize
        if stop > end or any(data[position:start]):
            raise ModelFormatError(
                f"{where}: array {name!r} of {shortened(length)} values does not fit the model's bytes"
            )
        arrays[name] = np.frombuffer(data, dtype=dtype, count=length, offset=start)
        position = stop
    if position != end:
        raise ModelFormatError(f"{where}: {end - position} bytes too many after the last array")
    return number, header, arrays


def _header(text: bytes, where: str) -> dict[str, object]:
    try:
        header = json.loads(text)
        same = isinstance(header, dict) and canonical_json(header) == text
    except (ValueError, RecursionError) as error:
        raise ModelFormatError(f"{where}: the model's header is not JSON: {shortened(error)}") from error
    if not same:
        raise ModelFormatError(f"{where}: the model's header is not canonical JSON")
    return dict(header)


def _check_types(header: Mapping[str, object], types: Header, where: str) -> None:
    if set(header) != set(types):
        raise ModelFormatError(
            f"{where}: the model's header has the keys {shortened(sorted(header))}, expected {sorted(types)}"
        )
    for key, kind in types.items():
        if type(header[key]) is not kind:
            raise ModelFormatError(f"{where}: {key} in the model's header is not of type {kind.__name__}")


def _lengths(listed: object, where: str, expected: ArrayTypes, number: int) -> list[int]:
    names = [[name, dtype.newbyteorder("<").str] for name, dtype in expected]
    if (
        not isinstance(listed, list)
        or not all(isinstance(item, list) and len(item) == 3 for item in listed)
        or [item[:2] for item in listed] != names
    ):
        raise ModelFormatError(f"{where}: the model's arrays are not those of format {number}")
    lengths = [item[2] for item in listed]
    for name, length in zip(names, lengths, strict=True):
        if type(length) is not int or length < 0:
            raise ModelFormatError(f"{where}: array {name[0]!r} has length {shortened(repr(length))}")
    return lengths


def rounds_fault(n_trees: int, n_outputs: int, trees_a_round: int) -> str | None:
    """Return a line that says why the trees are not whole rounds of whole sets of outputs; None if they are."""
    if not 1 <= trees_a_round <= MAX_TREES or trees_a_round % n_outputs:
        return f"{trees_a_round} trees a round, expected a multiple of the outputs, of which there are {n_outputs}"
    if n_trees % trees_a_round:
        return f"{n_trees} trees, expected whole rounds of {trees_a_round}"
    return None


def array_fault(arrays: Arrays, n_features: int, categorical: Collection[int] = ()) -> str | None:
    """Return what is wrong with the ``arrays`` of a forest in one line, or None if all is sound.

    It has ``n_features``; ``categorical`` are the positions of those that are categorical.
    """
    of_sets = np.zeros(n_features, dtype=np.bool_)
    of_sets[list(categorical)] = True
    return (
        _sizes(arrays, n_features)
        or _cuts(arrays)
        or _starts("tree_starts", arrays["tree_starts"], len(arrays["node_feature"]), 1)
        or _starts("set_starts", arrays["set_starts"], len(arrays["set_members"]), 1)
        or _nodes(arrays, n_features, of_sets)
        or _sets(arrays, of_sets)
        or _numbers(arrays)
    )


def _sizes(arrays: Arrays, n_features: int) -> str | None:
    size = {name: len(array) for name, array in arrays.items()}
    n_nodes, n_trees = size["node_feature"], size["tree_weights"]
    for name in ("node_cut", "node_missing_left", "node_left", "node_right", "node_value", "node_gain", "node_rows"):
        if size[name] != n_nodes:
            return f"{name} has {size[name]} entries, node_feature has {n_nodes}"
    if size["cut_starts"] != n_features + 1:
        return f"cut_starts has {size['cut_starts']} entries for {n_features} features"
    if size["set_starts"] == 0:
        return "set_starts is empty"
    if size["tree_starts"] != n_trees + 1:
        return f"tree_starts has {size['tree_starts']} entries for {n_trees} trees"
    if n_features > MAX_FEATURES:
        return f"{n_features} features, at most {MAX_FEATURES} are allowed"
    if n_trees > MAX_TREES:
        return f"{n_trees} trees, at most {MAX_TREES} are allowed"
    if n_nodes > MAX_NODES:
        return f"{n_nodes} nodes, at most {MAX_NODES} are allowed"
    return None


def _starts(name: str, starts: npt.NDArray[np.int32], total: int, least: int) -> str | None:
    """Check that ``starts`` runs from 0 to ``total`` with steps of ``least`` or more."""
    if starts[0] != 0 or starts[-1] != total:
        return f"{name} runs from {starts[0]} to {starts[-1]}, expected 0 to {total}"
    if np.any(np.diff(starts.astype(np.int64)) < least):
        return f"{name} is not ascending"
    return None


def _cuts(arrays: Arrays) -> str | None:
    cuts, starts = arrays["cuts"], arrays["cut_starts"]
    found = _starts("cut_starts", starts, len(cuts), 0)
    if found is not None:
        return found
    counts = np.diff(starts)
    if np.any(counts > MAX_CUTS_OF_A_FEATURE):
        return f"a feature has {counts.max()} cuts, at most {MAX_CUTS_OF_A_FEATURE} are allowed"
    if np.any(np.isnan(cuts)):
        return "a cut is not a number"
    # Cuts of one feature must ascend; neighbours from two features are not compared.
    ascending = cuts[1:] > cuts[:-1]
    inner = np.ones(max(len(cuts) - 1, 0), dtype=np.bool_)
    borders = starts[1:-1]
    inner[borders[(borders > 0) & (borders < len(cuts))] - 1] = False
    if not np.all(ascending[inner]):
        return "the cuts of a feature are not ascending"
    return None


def _nodes(arrays: Arrays, n_features: int, of_sets: npt.NDArray[np.bool_]) -> str | None:
    feature, node_cut, missing_left = arrays["node_feature"], arrays["node_cut"], arrays["node_missing_left"]
    left, right = arrays["node_left"], arrays["node_right"]
    n_nodes = len(feature)
    starts = arrays["tree_starts"].astype(np.int64)
    sizes = np.diff(starts)
    start = np.repeat(starts[:-1], sizes)
    size = np.repeat(sizes, sizes)
    local = np.arange(n_nodes) - start
    if np.any((feature < -1) | (feature >= n_features)):
        return "a node's feature is out of range"
    leaf = feature == -1
    absent = (node_cut == -1) & (left == -1) & (right == -1)
    if not np.all(absent[leaf]) or np.any(missing_left[leaf]) or np.any(arrays["node_gain"][leaf]):
        return "a leaf has a cut, children or a gain"
    inner = ~leaf
    if np.any(missing_left > 1):
        return "a node's missing_left is neither 0 nor 1"
    by_set = of_sets[feature[inner]]
    counts = np.where(by_set, len(arrays["set_starts"]) - 1, np.diff(arrays["cut_starts"])[feature[inner]])
    cut = node_cut[inner]
    if np.any((cut < 0) | (cut >= counts)):
        return "a node's cut is out of range"
    parents = np.zeros(n_nodes, dtype=np.int64)
    for child in (left[inner], right[inner]):
        if np.any((child <= local[inner]) | (child >= size[inner])):
            return "a node's child does not come after it in the same tree"
        parents += np.bincount(start[inner] + child, minlength=n_nodes)
    if not np.array_equal(parents, (local > 0).astype(np.int64)):
        return "a node has no parent or more than one"
    return _depth(arrays)


def _depth(arrays: Arrays) -> str | None:
    """Check the depth of trees; only those of very many nodes can be too deep."""
    feature, starts = arrays["node_feature"], arrays["tree_starts"].astype(np.int64)
    for tree in np.flatnonzero(np.diff(starts) > 2 * MAX_DEPTH + 1).tolist():
        start, level, depth = starts[tree], starts[tree : tree + 1], 0
        while len(level := level[feature[level] >= 0]):
            level = start + np.concatenate([arrays["node_left"][level], arrays["node_right"][level]])
            depth += 1
            if depth > MAX_DEPTH:
                return f"tree {tree} is deeper than {MAX_DEPTH} levels"
    return None


def _sets(arrays: Arrays, of_sets: npt.NDArray[np.bool_]) -> str | None:
    """Check the sets of categories that nodes send left."""
    feature, starts, members = arrays["node_feature"], arrays["set_starts"], arrays["set_members"].astype(np.int64)
    if np.any(np.diff(members)[np.setdiff1d(np.arange(len(members) - 1), starts[1:-1] - 1)] <= 0):
        return "the categories of a set are not ascending"
    by_set = (feature >= 0) & of_sets[feature]
    greatest = members[starts[1:] - 1]  # no set is empty
    known = np.diff(arrays["cut_starts"])[feature[by_set]]
    if np.any(greatest[arrays["node_cut"][by_set]] >= known):
        return "a set has a category that its feature lacks"
    if not np.all(np.isfinite(arrays["cuts"][np.repeat(of_sets, np.diff(arrays["cut_starts"]))])):
        return "a category is not finite"
    return None


def _numbers(arrays: Arrays) -> str | None:
    for name in ("node_value", "node_gain", "tree_weights"):
        if not np.all(np.isfinite(arrays[name])):
            return f"{name} has a value that is not finite"
    if np.any(arrays["node_rows"] < 0):
        return "node_rows has a negative count"
    return None
