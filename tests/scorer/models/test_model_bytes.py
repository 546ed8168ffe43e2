"""No file makes a reader crash, walk outside its arrays or score wrongly: it is refused in one line, or it is a sound
model.

A model of every kind is damaged at every byte and at every length, and forests by forgers who seal their work with a
right digest.
"""

import hashlib
import json
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankmill.foundation.errors import ModelFormatError, RankmillError
from rankmill.foundation.kernels.elementary import exp_precise
from rankmill.foundation.records import canonical_json
from rankmill.scorer.exchange.formats import read_from, write_as
from rankmill.scorer.forest.forest import ARRAYS, SETS, Forest
from rankmill.scorer.forest.predict import predict
from rankmill.scorer.models import model_file
from rankmill.scorer.models.loading import Blend, predictor_of, read_model
from rankmill.scorer.nets.net import ARRAYS as NET_ARRAYS
from rankmill.scorer.nets.net import HEADER as NET_HEADER
from tests import ROOT, naive, naive_links, naive_nets
from tests.refusals import refused
from tests.scorer.exchange.exchange_cases import rows_for
from tests.scorer.forest.test_predict import awkward_values
from tests.scorer.forests import random_forest
from tests.scorer.nets.test_net import drawn_net, drawn_values

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


def check_refused_or_sound(data):
    """A file that is read scores rows, walked and swept, as the plain walk does, which looks at every place that it
    goes to."""
    if altered_is_refused(data):
        return
    forest = Forest.from_bytes(data)
    assert forest.to_bytes() == data
    scores = predict(forest, ROWS)
    assert np.all(np.isfinite(scores))
    assert predict(forest, np.tile(ROWS, (400, 1))).tobytes() == np.tile(scores, 400).tobytes()
    assert scores.tolist() == naive_links.predict(forest, ROWS, exp_precise)


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
    data = bytearray(path.read_bytes())
    for i in range(len(data) - 32):
        for bit in bits:
            data[i] ^= 1 << bit
            check_refused_or_sound(resealed(bytes(data)))
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
    check_refused_or_sound(model_file.encode(number, header, arrays))


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


# ---- models of which some values are wrong ---------------------------------------------------------------------------

WHOLE = [-1, 0, 1, 2, 7, 31, 32, 33, 255, 65_535, 2**24, 2**24 + 1, 2**31, 2**32, 2**63 - 1, -(2**63), 2**64]
WORDS = [*map(str, WHOLE), "1e300", "nan", "inf", "", "x", "1.5"]
VALUES = [*WHOLE, 1.5, 1e300, None, True, "x", [], {}]


def with_sets(seed):
    """A forest that splits by sets of categories."""
    return random_forest(seed, n_features=4, n_trees=3, max_leaves=8, categorical=2, missing_right=True)


def changed(values, rng, others):
    """The list with one value replaced, left out, added or moved."""
    at, other = (int(rng.integers(0, max(1, len(values)))) for _ in range(2))
    new = others[int(rng.integers(0, len(others)))]
    kind = int(rng.integers(0, 5))
    if kind == 3 or not values:
        return [*values[:at], new, *values[at:]]
    if kind == 4:
        values[at], values[other] = values[other], values[at]
        return values
    return [*values[:at], *[new] * (kind < 2), *values[at + 1 :]]


def mutated_lightgbm(forest, rng):
    lines = write_as("lightgbm", forest).data.decode().split("\n")
    keys = ("cat_boundaries=", "cat_threshold=", "threshold=", "decision_type=", "num_cat=", "split_feature=")
    places = [i for i, line in enumerate(lines) if line.startswith(keys)]
    at = places[int(rng.integers(0, len(places)))]
    key, _, words = lines[at].partition("=")
    lines[at] = f"{key}={' '.join(changed(words.split(), rng, WORDS))}"
    return "\n".join(lines).encode()


def mutated_xgboost(forest, rng):
    model = json.loads(write_as("xgboost", forest).data)
    trees = model["learner"]["gradient_booster"]["model"]["trees"]
    keys = [f"categories{of}" for of in ("", "_nodes", "_segments", "_sizes")] + ["split_type", "split_indices"]
    key, tree = keys[int(rng.integers(0, len(keys)))], trees[int(rng.integers(0, len(trees)))]
    tree[key] = changed(tree[key], rng, VALUES)
    return json.dumps(model).encode()


@pytest.mark.parametrize(("source", "mutated"), [("lightgbm", mutated_lightgbm), ("xgboost", mutated_xgboost)])
def test_mutated_splits_by_sets_are_refused_or_sound(source, mutated):
    rng, read = np.random.default_rng(5), 0
    for number in range(60):
        data = mutated(with_sets(number % 8), rng)
        try:
            forest = read_from(source, data, "m").forest
        except RankmillError as error:
            assert str(error).startswith("m")  # noqa: PT017 - either way is right
            assert "\n" not in str(error)  # noqa: PT017
            continue
        read += 1
        rows = rows_for(forest, number, n_rows=20)
        assert predict(forest, rows).tolist() == naive.predict(forest, rows)
        assert read_model(forest.to_bytes()) == forest
    assert 8 < read < 55


@pytest.mark.parametrize("key", ["categories_segments", "categories_sizes"])
@pytest.mark.parametrize("value", [2**63 - 1, 2**62, -(2**63), -1])
def test_segments_of_categories_beyond_their_list_are_refused(key, value):
    """Their sum overflowed, and was taken for a place in the list."""
    model = json.loads(write_as("xgboost", with_sets(1)).data)
    for tree in model["learner"]["gradient_booster"]["model"]["trees"]:
        tree[key] = [value] * len(tree[key])
    with refused(ModelFormatError, "m.json", "categories"):
        read_from("xgboost", json.dumps(model).encode(), "m.json")


def test_a_split_by_no_category_is_refused():
    model = json.loads(write_as("xgboost", with_sets(1)).data)
    tree = next(t for t in model["learner"]["gradient_booster"]["model"]["trees"] if t["categories_sizes"])
    tree["categories_sizes"] = [0] * len(tree["categories_sizes"])
    with refused(ModelFormatError, "m.json", "set of categories", "none"):
        read_from("xgboost", json.dumps(model).encode(), "m.json")


def crafted(net, rng):
    """The file of ``net`` with a right digest, and a wrong value, length, width or dtype."""
    _, header, arrays = model_file.decode(net.to_bytes(), "m", "a net", {model_file.NET: (NET_HEADER, NET_ARRAYS)})
    arrays = {name: array.copy() for name, array in arrays.items()}
    listed = {name: [name, array.dtype.str, len(array)] for name, array in arrays.items()}
    name = list(arrays)[int(rng.integers(0, len(arrays)))]
    array, kind = arrays[name], rng.integers(0, 6)
    if kind == 0:
        key = sorted(header)[int(rng.integers(0, len(header)))]
        header[key] = VALUES[int(rng.integers(0, len(VALUES)))]
    elif kind == 1:
        header["widths"] = changed(header["widths"], rng, VALUES)
    elif kind == 2:
        listed[name][int(rng.integers(1, 3))] = [*VALUES, "<f8", "<f4", "|O", ">i4"][
            int(rng.integers(0, len(VALUES) + 4))
        ]
    elif kind == 3 or not len(array):
        arrays[name] = np.resize(array, int(rng.integers(0, len(array) + 3))).astype(array.dtype)
        listed[name][2] = len(arrays[name])
    else:
        odd = [0, 1, 2, 127, 128, 129, -1, 2**31 - 1, -(2**31)]
        if array.dtype.kind == "f":
            odd = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, 3e38, -3e38, 1e20]
        array[int(rng.integers(0, len(array)))] = odd[int(rng.integers(0, len(odd)))]
    text = canonical_json({**header, "arrays": list(listed.values())})
    data = struct.pack("<8sIIQ", b"RANKMILL", model_file.NET, 0, len(text)) + text
    for each in arrays.values():
        data += bytes(-len(data) % model_file.ALIGNMENT) + each.tobytes()
    data = data[: int(rng.integers(24, len(data)))] if rng.random() < 0.05 else data
    return data + hashlib.sha256(data).digest()


@pytest.mark.parametrize(
    "options", [{}, {"transform": "log1p", "activation": "tanh"}, {"transform": "linear", "widths": ()}]
)
def test_crafted_nets_are_refused_or_sound(options):
    net, rng, read = drawn_net(**options), np.random.default_rng(9), 0
    values = np.concatenate([drawn_values(9), np.full((1, 5), -3e38, dtype=np.float32)])
    for _ in range(60):
        data = crafted(net, rng)
        try:
            found = read_model(data, "m")
        except ModelFormatError as error:
            assert "\n" not in str(error)  # noqa: PT017 - either way is right
            continue
        read += 1
        assert found.to_bytes() == data
        rows = np.resize(values, (10, found.n_features))
        scores = predictor_of(found).scores(rows)
        assert np.all(np.isfinite(scores))
        if found.score_bound < 1e6:
            expected = [naive_nets.score_of(row, found) for row in rows]
            assert scores == pytest.approx(expected, abs=1e-3 * max(1.0, found.score_bound))
    assert 5 < read < 55
