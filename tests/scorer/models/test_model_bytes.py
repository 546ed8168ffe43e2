"""No file makes a reader crash, walk outside its arrays or score wrongly: it is refused in one line, or it is a sound
model.

A model of every kind is damaged at every byte and at every length, and forests by forgers who seal their work with a
right digest.
"""

from __future__ import annotations

import hashlib
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankmill.foundation.errors import ModelFormatError
from rankmill.scorer import _kernels, _tree_kernels
from rankmill.scorer.forest.forest import ARRAYS, SETS, Forest
from rankmill.scorer.forest.layout import TreeLayout
from rankmill.scorer.forest.predict import ForestPredictor, predict
from rankmill.scorer.models import model_file
from rankmill.scorer.models.loading import Blend, read_model
from tests import ROOT, naive
from tests.refusals import refused
from tests.scorer.forest.test_predict import awkward_values
from tests.scorer.nets.test_net import drawn_net

GOLDEN = sorted((ROOT / "tests" / "scorer" / "golden").glob("*.rankmill"))
QUICK = [
    path for path in GOLDEN if path.stem in ("by_hand", "mcrank_gain", "sets_by_hand")
]  # a file of each format number
ROWS = np.float32([[np.nan, np.nan, np.nan], [0.3, -1.0, 2.0], [np.inf, np.nan, -np.inf], [-3e38, 0.0, 1e-45]])


def resealed(data):
    return data[:-32] + hashlib.sha256(data[:-32]).digest()


def damaged_kinds():
    forest, net = Forest.load(QUICK[0]), drawn_net(widths=(3,), transform="linear")
    blends = {
        f"a blend with {name}": Blend(parts=(part, forest), weights=np.array([1.0, 2.0]))
        for name, part in (("trees", forest), ("a net", net))
    }
    return {"trees": forest, "a net": net, **blends}


KINDS = {name: model.to_bytes() for name, model in damaged_kinds().items()}


def altered_is_refused(data, read=Forest.from_bytes):
    """Whether ``data`` is refused, and that in one line that names the file."""
    try:
        read(data, "some.rankmill")
    except ModelFormatError as error:
        line = str(error)
        assert line.startswith(("some.rankmill: ", "some.rankmill, part "))
        assert line.isprintable()
        assert len(line) < 1000
        return True
    return False


class Guarded(np.ndarray):
    """An array that has no elements before its first one; NumPy itself refuses those behind the last."""

    def __getitem__(self, index):
        self.check(index)
        return super().__getitem__(index)

    def __setitem__(self, index, value):
        self.check(index)
        super().__setitem__(index, value)

    def check(self, index):
        for part, size in zip(index if isinstance(index, tuple) else (index,), self.shape, strict=False):
            if (part.start or 0) > size if isinstance(part, slice) else part < 0:
                raise IndexError(part)


def guarded(kernel):
    """Return the kernel as plain Python on guarded arrays."""

    def call(*arguments):
        with np.errstate(over="ignore"):  # codes wrap round by design
            return kernel.py_func(*map(guarded_argument, arguments))

    def guarded_argument(given):
        if isinstance(given, tuple):
            parts = tuple(map(guarded_argument, given))
            return parts if type(given) is tuple else type(given)(*parts)
        return given.view(Guarded) if isinstance(given, np.ndarray) else given

    return call


def strip_of(blocks):
    """A strip of `rankmill.scorer._tree_kernels` in plain Python, on guarded arrays."""

    def strip(codes, first, start, stop, slot, split, at):
        for i in range(first, first + blocks * _tree_kernels.BLOCK):
            at[i] = 0
            for k in range(start, stop):
                bound, *parts = (each[k] for each in split)
                after_split = to_right_leaf if parts else with_bit
                at[i] = after_split(codes[slot[k], i] > bound, at[i], *parts)

    return strip


def to_right_leaf(right, leaf, first_leaf, right_leaf):
    return right_leaf if right and leaf == first_leaf else leaf


def with_bit(right, leaf):
    return 2 * leaf + right


def add_leaves(leaves, at, i, scores, place):
    for lane in range(_tree_kernels.LANES):
        scores[place + lane] += leaves[at[i + lane]]


def count_below(value, before, begin, factor, table, steps, below):
    for i in range(_kernels.STRIP):
        with np.errstate(all="ignore"):
            place = (value[i] - begin) * factor
        place = min(place, np.float32(len(before) - 1)) if place > 0 else 0
        below[i] = before[int(place)]
        for step in range(steps - 1, -1, -1):
            below[i] += int(table[below[i] + (1 << step) - 1] < value[i]) << step


PLAIN = {
    "_strip": strip_of(_tree_kernels.BLOCKS),
    "_pair": strip_of(_tree_kernels.PAIR),
    "_block": strip_of(1),
    "_add_leaves": add_leaves,
}
"""What the intrinsics of the kernels do, which Python cannot call."""
KERNELS = (
    "pack_trees",
    "number_leaves",
    "wrap_codes",
    "walk_trees",
    "sweep_trees",
    "_look_up_sets",
    "_add_values",
)


def check_walk(forest):
    """Score some rows by kernels that look at every index, walked and swept, and by the plain walk: the same finite
    numbers."""
    more = np.tile(ROWS, (4, 1))
    with pytest.MonkeyPatch.context() as patch:
        for name, plain in {"bin_rows": guarded(_kernels.bin_rows), "_count_below": count_below}.items():
            patch.setattr(_kernels, name, plain)
        for name in KERNELS:
            patch.setattr(_tree_kernels, name, guarded(getattr(_tree_kernels, name)))
        for name, plain in PLAIN.items():
            patch.setattr(_tree_kernels, name, plain)
        predictor = ForestPredictor(forest)
        patch.setattr(TreeLayout, "most_walked", len(ROWS))
        scores = predictor.scores(ROWS)
        assert predictor.scores(more).tolist() == scores.tolist() * (len(more) // len(ROWS))
    assert np.all(np.isfinite(scores))
    assert scores.tobytes() == predict(forest, ROWS).tobytes()
    if forest.link == "identity":
        assert scores.tolist() == naive.predict(forest, ROWS)


def check_refused_or_sound(data, *, walk):
    if altered_is_refused(data):
        return
    forest = Forest.from_bytes(data)
    assert forest.to_bytes() == data
    assert np.all(np.isfinite(predict(forest, ROWS)))
    if walk:
        check_walk(forest)


@pytest.mark.parametrize("kind", KINDS)
def test_every_flipped_bit_is_refused(kind):
    data = bytearray(KINDS[kind])
    for i in range(len(data)):
        data[i] ^= 1 << i % 8
        assert altered_is_refused(bytes(data), read_model), i
        data[i] ^= 1 << i % 8


@pytest.mark.parametrize("kind", KINDS)
def test_every_truncation_and_every_extension_is_refused(kind):
    data = KINDS[kind]
    for i in range(0, len(data), 3 if kind == "trees" else 17):
        assert altered_is_refused(data[:i], read_model)
    for more in (b"\0", b"\n", bytes(32), bytes(64), data[-32:], data, b"RANKMILL"):
        assert altered_is_refused(data + more, read_model)
        assert altered_is_refused(more + data, read_model)
    assert altered_is_refused(resealed(data[:-32] + bytes(64) + data[-32:]), read_model)


def test_flipped_bits_of_a_blend_under_a_right_digest_are_refused_or_another_sound_model():
    data = bytearray(KINDS["a blend with trees"])
    for i in range(len(data) - 32):
        data[i] ^= 1 << i % 8
        sealed = resealed(bytes(data))
        assert altered_is_refused(sealed, read_model) or read_model(sealed).to_bytes() == sealed
        data[i] ^= 1 << i % 8


def flip_every_bit(path, bits):
    """Flip bits under a right digest; where one of the numbers that kernels follow has changed, walk with care."""
    data = bytearray(path.read_bytes())
    stored = parts_of(Forest.load(path))[2]
    arrays = len(data) - 32 - sum(-(-array.nbytes // 64) * 64 for array in stored.values())
    for i in range(len(data) - 32):
        for bit in bits:
            data[i] ^= 1 << bit
            check_refused_or_sound(resealed(bytes(data)), walk=i >= arrays and bit in (0, 7))
            data[i] ^= 1 << bit


def test_flipped_bits_under_a_right_digest_are_refused_or_another_sound_model():
    flip_every_bit(QUICK[0], (0,))


@pytest.mark.slow
@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_every_flipped_bit_under_a_right_digest_is_refused_or_another_sound_model(path):
    flip_every_bit(path, range(8))


def test_every_truncation_under_a_right_digest_is_refused():
    for path in QUICK:
        data = path.read_bytes()
        for i in range(33, len(data) - 32, 1 if path == QUICK[0] else 11):
            assert altered_is_refused(resealed(data[:i] + bytes(32)))


def parts_of(forest):
    """Header and arrays of a forest, to be forged."""
    names = ("base_score", "info", "link", "n_outputs", "objective", "parameters", "trees_a_round")
    header = {name: getattr(forest, name) for name in names} | {"feature_names": list(forest.feature_names)}
    number = forest.to_bytes()[8]
    if number == 1:
        del header["trees_a_round"]
    if number == 3:
        header["categories"] = forest.categories
    arrays = ARRAYS + SETS * (number == 3)
    return number, header, {name: np.array(getattr(forest, name)) for name, _ in arrays}


def sealed(number, text, arrays):
    """A file with this header, however wrong, and a right digest."""
    body = bytearray(struct.pack("<8sIIQ", b"RANKMILL", number, 0, len(text))) + text
    for array in arrays.values():
        body += bytes(-len(body) % 64) + array.tobytes()
    return resealed(bytes(body) + bytes(32))


@settings(deadline=None, max_examples=100)
@given(st.data())
def test_forged_arrays_are_refused_or_another_sound_model(data):
    number, header, arrays = parts_of(Forest.load(data.draw(st.sampled_from(GOLDEN))))
    for _ in range(data.draw(st.integers(1, 3))):
        name = data.draw(st.sampled_from(list(arrays)))
        array, dtype = arrays[name], arrays[name].dtype
        change = data.draw(st.sampled_from(["set", "copy", "drop", "double"]))
        if len(array) == 0:
            continue
        at, other = (data.draw(st.integers(0, len(array) - 1)) for _ in range(2))
        if change == "set" and dtype.kind == "f":
            array[at] = data.draw(st.floats(width=8 * dtype.itemsize))
        elif change == "set":
            bounds = np.iinfo(dtype)
            near = st.integers(int(max(bounds.min, -2)), 20)
            array[at] = data.draw(near | st.integers(int(bounds.min), int(bounds.max)))
        elif change == "copy":
            array[at] = array[other]
        elif change == "drop":
            arrays[name] = np.delete(array, at)
        else:
            arrays[name] = np.insert(array, at, array[other])
    check_refused_or_sound(model_file.encode(number, header, arrays), walk=True)


def test_headers_that_no_writer_writes_are_refused():
    number, header, arrays = parts_of(Forest.load(GOLDEN[0]))
    listed = [[name, array.dtype.str, len(array)] for name, array in arrays.items()]
    text = model_file.canonical_json({**header, "arrays": listed})
    assert not altered_is_refused(sealed(number, text, arrays))
    first = model_file.canonical_json(listed[0])
    other = {
        "key twice": text.replace(b'"link":', b'"link":"identity","link":'),
        "not a number": text.replace(b'"base_score":', b'"base_score":NaN,"x":'),
        "infinity": text.replace(b'"base_score":', b'"base_score":Infinity,"x":'),
        "too large a number": text.replace(b'"n_outputs":1', b'"n_outputs":1e999'),
        "too long a number": text.replace(b'"n_outputs":1', b'"n_outputs":1' + b"0" * 5000),
        "a blank": text.replace(b":", b": ", 1),
        "another order": text[:-1].replace(b'{"arrays":', b'{"z":', 1) + b',"arrays":[]}',
        "byte order mark": b"\xef\xbb\xbf" + text,
        "not UTF-8": text.replace(b"lambdamart", b"lambda\xff\xfe..", 1),
        "half a surrogate": text.replace(b"lambdamart", b"lambda\\ud800", 1),
        "escaped": text.replace(b"lambdamart", b"l\\u0061mbdamart", 1),
        "a list": b"[" + text + b"]",
        "nothing": b"{}",
        "null": b"null",
        "empty": b"",
        "a key more": text[:-1] + b',"zzz":1}',
        "a long key": text[:-1] + b',"zzz' + b"z" * 100_000 + b'":1}',
        "a key of lines": text[:-1] + b',"zzz\\n\\u001b[31m":1}',
        "a long link": text.replace(b'"identity"', b'"' + b"i" * 100_000 + b'"'),
        "another dtype": text.replace(first, first.replace(b"<f4", b"<f8")),
        "a pickled dtype": text.replace(first, first.replace(b"<f4", b"|O")),
        "big endian": text.replace(first, first.replace(b"<f4", b">f4")),
        "a fourth value": text.replace(first, first[:-1] + b",0]"),
        "no arrays": model_file.canonical_json({**header, "arrays": []}),
        "arrays in another order": model_file.canonical_json({**header, "arrays": listed[::-1]}),
        "an array twice": model_file.canonical_json({**header, "arrays": [listed[0], *listed]}),
        **{
            f"a length of {length!r}": text.replace(first, model_file.canonical_json([*listed[0][:2], length]))
            for length in (2**63, 2**64 - 1, 10**40, -1, -(2**63), True, None, "9", 9.0, [9])
        },
    }
    for kind, forged in other.items():
        assert forged != text, kind
        assert altered_is_refused(sealed(number, forged, arrays)), kind


def test_header_lengths_that_lie_are_refused():
    data = GOLDEN[0].read_bytes()
    reported = struct.unpack_from("<Q", data, 16)[0]
    for length in (0, 1, reported - 1, reported + 1, len(data), 2**26, 2**26 + 1, 2**31, 2**32, 2**63, 2**64 - 1):
        assert altered_is_refused(resealed(data[:16] + struct.pack("<Q", length) + data[24:]))


@pytest.mark.parametrize("around", ["[%b]", '{"a":%b}'])
def test_however_deep_the_header_nests_it_is_refused_or_read(around):
    """What is read has so few levels that nothing which walks it later runs out of stack."""
    number, header, arrays = parts_of(Forest.load(GOLDEN[0]))
    listed = [[name, array.dtype.str, len(array)] for name, array in arrays.items()]
    text = model_file.canonical_json({**header, "info": {"deep": "here"}, "arrays": listed})
    start, end = around.encode().split(b"%b")

    def nested(levels):
        return sealed(number, text.replace(b'"here"', start * levels + b"1" + end * levels), arrays)

    assert not altered_is_refused(nested(model_file.MAX_NESTING - 1))
    for levels in [model_file.MAX_NESTING, 150, 1000, 10_000, 1_000_000]:
        assert altered_is_refused(nested(levels))


def test_scores_that_could_overflow_are_refused():
    number, header, arrays = parts_of(Forest.load(GOLDEN[0]))
    leaf = int(np.flatnonzero(arrays["node_feature"] < 0)[0])
    arrays["node_value"][leaf] = 1e308
    with refused(ModelFormatError, "1e+308", "1e+300"):
        Forest.from_bytes(model_file.encode(number, header, arrays))
    arrays["tree_weights"][:] = 1e-100
    forest = Forest.from_bytes(model_file.encode(number, header, arrays))
    assert np.all(np.isfinite(predict(forest, awkward_values(forest, 200, 1))))
    with refused(ModelFormatError, "score"):
        Forest.from_bytes(model_file.encode(number, header | {"base_score": -1.7e308}, arrays))


def test_what_is_too_large_for_the_kernels_is_refused(monkeypatch):
    data = (ROOT / "tests" / "scorer" / "golden" / "best_first.rankmill").read_bytes()
    for cap, what in (
        ("MAX_FEATURES", "3 features"),
        ("MAX_TREES", "3 trees"),
        ("MAX_NODES", "21 nodes"),
        ("MAX_CUTS_OF_A_FEATURE", "4 cuts"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(f"rankmill.scorer.models.model_file.{cap}", 2)
            with refused(ModelFormatError, what, "2"):
                Forest.from_bytes(data)
    data = GOLDEN[0].read_bytes()
    monkeypatch.setattr(model_file, "MAX_HEADER_BYTES", struct.unpack_from("<Q", data, 16)[0] - 1)
    with refused(ModelFormatError, "header length"):
        Forest.from_bytes(data)
