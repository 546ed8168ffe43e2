"""The model's file format and structure checks: sound forests survive, everything else is refused by name."""

import json
import pickle
import struct
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankmill.foundation.errors import InputError, ModelFormatError
from rankmill.scorer.forest.forest import ARRAYS, Forest, compact_splits
from rankmill.scorer.forest.predict import ForestPredictor, predict
from rankmill.scorer.models import model_file
from tests import ROOT, naive
from tests.refusals import refused
from tests.scorer.forests import random_forest


def as_arguments(forest):
    return {f.name: getattr(forest, f.name) for f in fields(forest)}


@settings(deadline=None)
@given(
    st.integers(0, 2**32),
    st.sampled_from(["identity", "softmax_grade", "softmax_gain", "ordinal_grade", "ordinal_gain"]),
    st.integers(2, 5),
    st.integers(1, 3),
    st.integers(0, 3),
)
def test_bytes_and_back_of_several_outputs_and_trees_a_round(seed, link, n_outputs, sets, n_rounds):
    n_outputs = 1 if link == "identity" else n_outputs
    trees_a_round = n_outputs * sets
    shape = {"link": link, "n_outputs": n_outputs, "trees_a_round": trees_a_round}
    forest = random_forest(seed, n_trees=trees_a_round * n_rounds, max_leaves=4, **shape)
    data = forest.to_bytes()
    assert data[8] == (1 if (link, sets) == ("identity", 1) else 2)
    again = Forest.from_bytes(data)
    assert again == forest
    assert again.to_bytes() == data
    assert (again.link, again.n_outputs, again.trees_a_round, again.n_rounds) == (*shape.values(), n_rounds)
    assert pickle.loads(pickle.dumps(forest)) == forest
    if sets == 1:
        assert random_forest(seed, n_trees=n_outputs * n_rounds, max_leaves=4, link=link, n_outputs=n_outputs) == forest


def test_arrays_are_copied_and_read_only():
    weights = np.ones(6)
    forest = Forest(**(as_arguments(random_forest(0)) | {"tree_weights": weights}))
    weights[0] = 7.0
    assert forest.tree_weights[0] == 1.0
    for name, dtype in ARRAYS:
        array = getattr(forest, name)
        assert array.dtype == dtype
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0


def test_arrays_start_at_multiples_of_64_bytes():
    forest = random_forest(3)
    data = forest.to_bytes()
    position = 24 + struct.unpack_from("<Q", data, 16)[0]
    for name, dtype in ARRAYS:
        position += -position % 64
        length = len(getattr(forest, name))
        assert np.array_equal(np.frombuffer(data, dtype, length, position), getattr(forest, name))
        position += length * dtype.itemsize
    assert position + 32 == len(data)


def test_a_file_that_is_no_model_or_of_another_format(tmp_path):
    data = bytearray(random_forest(1).to_bytes())
    data[8] = 9
    path = tmp_path / "m.rankmill"
    path.write_bytes(data)
    with refused(ModelFormatError, "m.rankmill", "format 9", "1"):
        Forest.load(path)
    path.write_text("hello, this is text and longer than the shortest model could be, is it not? yes it is")
    with refused(ModelFormatError, "rankmill model", "RANKMILL"):
        Forest.load(path)
    with refused(InputError, "none.rankmill", "no such"):
        Forest.load(tmp_path / "none.rankmill")


def forged(header_change=None, **array_change):
    """Bytes with a right digest whose header or arrays were changed after the checks."""
    forest = random_forest(4)
    arrays = {name: np.array(array_change.get(name, getattr(forest, name))) for name, _ in ARRAYS}
    header = {
        name: getattr(forest, name)
        for name in ("base_score", "info", "link", "n_outputs", "objective", "parameters", "feature_names")
    }
    header["feature_names"] = list(header["feature_names"])
    header |= header_change or {}
    return model_file.encode(2 if "trees_a_round" in header else 1, header, arrays)


HEADERS = [
    ({"link": "softmax"}, ("link", "'softmax'", "identity, softmax_grade, softmax_gain, ordinal_grade")),
    ({"n_outputs": 5}, ("5", "identity", "1")),
    ({"n_outputs": 0}, ("0", "identity", "1")),
    ({"n_outputs": 3, "link": "softmax_grade"}, "model format 1"),
    ({"link": "ordinal_grade"}, "model format 1"),
    ({"trees_a_round": 1}, "model format 2"),
    ({"n_outputs": 2, "link": "softmax_gain", "trees_a_round": 0}, "model format 2"),
    ({"n_outputs": 2, "link": "softmax_gain", "trees_a_round": 3}, ("3 trees", "multiple")),
    ({"n_outputs": 2, "link": "softmax_gain", "trees_a_round": -2}, ("-2 trees", "multiple")),
    ({"n_outputs": 2, "link": "softmax_gain", "trees_a_round": 4}, ("6", "rounds of 4")),
    ({"trees_a_round": 12}, ("6", "rounds of 12")),
    ({"trees_a_round": 2.0}, ("trees_a_round", "type int")),
    ({"n_outputs": 1, "link": "softmax_gain", "trees_a_round": 1}, ("1", "softmax_gain", "2", "53")),
    ({"n_outputs": 0, "link": "ordinal_gain", "trees_a_round": 1}, ("0", "ordinal_gain", "1", "52")),
    ({"n_outputs": 10**30, "link": "ordinal_grade", "trees_a_round": 10**30}, ("ordinal_grade", "1", "1023")),
    ({"n_outputs": True}, ("n_outputs", "type int")),
    ({"base_score": 1}, ("base_score", "type float")),
    ({"feature_names": ["a", "a", "b", "c", "d"]}, ("features", "same name")),
    ({"feature_names": ["a", "", "b", "c", "d"]}, ("feature", "no name")),
    ({"feature_names": ["a"]}, ("cut_starts", "6", "1")),
    ({"feature_names": [1, 2, 3, 4, 5]}, ("feature", "no name")),
    ({"extra": 1}, ("header", "keys")),
    ({"parameters": [1]}, ("parameters", "type dict")),
]


def test_a_forged_header_is_refused():
    for change, message in HEADERS:
        with refused(ModelFormatError, message):
            Forest.from_bytes(forged(change))


def changed(array, index, value):
    out = np.array(array)
    out[index] = value
    return out


def structure_cases():
    f = random_forest(4)
    inner = int(np.flatnonzero(f.node_feature >= 0)[0])
    leaf = int(np.flatnonzero(f.node_feature < 0)[-1])
    yield {"node_feature": changed(f.node_feature, inner, 5)}, ("feature", "range")
    yield {"node_feature": changed(f.node_feature, inner, -2)}, ("feature", "range")
    yield {"node_cut": changed(f.node_cut, leaf, 0)}, "leaf"
    yield {"node_left": changed(f.node_left, leaf, 1)}, "leaf"
    yield {"node_gain": changed(f.node_gain, leaf, 1.0)}, "leaf"
    yield {"node_cut": changed(f.node_cut, inner, 7)}, ("cut", "range")
    yield {"node_cut": changed(f.node_cut, inner, -1)}, ("cut", "range")
    yield {"node_left": changed(f.node_left, inner, 0)}, "after"
    yield {"node_right": changed(f.node_right, inner, 2**31 - 1)}, "after"
    yield {"node_right": changed(f.node_right, inner, -1)}, "after"
    yield {"node_right": changed(f.node_right, inner, f.node_left[inner])}, "parent"
    yield {"node_missing_left": changed(f.node_missing_left, inner, 2)}, ("0", "1")
    yield {"node_value": changed(f.node_value, leaf, np.inf)}, ("node_value", "finite")
    yield {"node_gain": changed(f.node_gain, inner, np.nan)}, ("node_gain", "finite")
    yield {"tree_weights": changed(f.tree_weights, 0, np.nan)}, "tree_weights"
    yield {"node_rows": changed(f.node_rows, 0, -1)}, "negative count"
    yield {"tree_starts": changed(f.tree_starts, -1, f.tree_starts[-1] - 1)}, "tree_starts"
    yield {"tree_starts": changed(f.tree_starts, 1, 10**6)}, ("tree_starts", "ascending")
    yield {"tree_starts": changed(f.tree_starts, 0, 1)}, "tree_starts"
    yield {"tree_starts": changed(f.tree_starts, 1, 0)}, ("tree_starts", "ascending")
    yield {"cut_starts": changed(f.cut_starts, 1, 10**6)}, ("cut_starts", "ascending")
    yield {"cuts": f.cuts[::-1]}, ("cuts", "ascending")
    yield {"cuts": changed(f.cuts, 1, f.cuts[0])}, ("cuts", "ascending")
    yield {"cuts": changed(f.cuts, 0, np.nan)}, ("cut", "number")
    yield {"node_value": f.node_value[:-1]}, "node_value"
    yield {"tree_weights": f.tree_weights[:-1]}, "tree_starts"
    yield {"tree_starts": np.empty(0, np.int32)}, ("tree_starts", "0")


def test_unsound_arrays_are_refused_in_memory_and_on_disk():
    for arrays, message in structure_cases():
        with refused(ValueError, message):
            Forest(**(as_arguments(random_forest(4)) | arrays))
        with refused(ModelFormatError, "forged", message):
            Forest.from_bytes(forged(**arrays), "forged")


def test_a_wrong_dtype_that_would_lose_a_value_is_refused():
    arguments = as_arguments(random_forest(4))
    with refused(ValueError, "cuts", "float64", "float32"):
        Forest(**(arguments | {"cuts": arguments["cuts"].astype(np.float64) + 1e-12}))
    with pytest.raises(ValueError, match="tree_starts has 2 dimensions"):
        Forest(**(arguments | {"tree_starts": arguments["tree_starts"][None]}))
    assert Forest(**(arguments | {"tree_starts": arguments["tree_starts"].astype(np.int64)})) == random_forest(4)


def test_parameters_must_be_json_numbers_included():
    with pytest.raises(ValueError, match="not JSON compliant"):
        Forest(**(as_arguments(random_forest(4)) | {"parameters": {"x": float("inf")}}))


def test_truncated_keeps_only_the_cuts_it_uses():
    forest = random_forest(7, n_trees=8)
    for rounds in range(9):
        short = forest.truncated(rounds)
        assert short.n_trees == short.n_rounds == rounds
        used = set(zip(short.node_feature.tolist(), short.thresholds.tolist(), strict=True))
        kept = {
            (f, float(x))
            for f in range(short.n_features)
            for x in short.cuts[short.cut_starts[f] : short.cut_starts[f + 1]]
        }
        assert {pair for pair in used if pair[0] >= 0} == kept
        assert short.truncated(rounds) is short
    assert forest.truncated(8) is forest
    for rounds in (-1, 9):
        with refused(InputError, "n_rounds", "0..8"):
            forest.truncated(rounds)


def test_cuts_at_both_zeros_are_one():
    splits = compact_splits(np.int32([0, 0, -1, -1, -1]), np.float32([-0.0, 0.0, 0, 0, 0]), 1)
    assert splits["cuts"].tolist() == [0.0]
    assert not np.signbit(splits["cuts"][0])
    assert splits["cut_starts"].tolist() == [0, 1]
    assert splits["node_cut"].tolist() == [0, 0, -1, -1, -1]


def test_save_replaces_in_one_step_and_leaves_nothing_behind(tmp_path, monkeypatch):
    path = tmp_path / "m.rankmill"
    first, second = random_forest(1), random_forest(2)
    first.save(path)
    second.save(path)
    assert Forest.load(path) == second
    assert [p.name for p in tmp_path.iterdir()] == ["m.rankmill"]

    def broken(_descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", broken)
    with pytest.raises(OSError, match="No space"):
        first.save(path)
    assert Forest.load(path) == second
    assert [p.name for p in tmp_path.iterdir()] == ["m.rankmill"]


# ---- a stored model file of each kind gives the same forest, the same bytes back and the same scores -----------------
# What an old version wrote is never replaced.  A new kind of forest or format number gets a file, written by `Forest.save`, and
# beside it JSON of the format, the sha256, rows of values and their scores, all numbers as `float.hex` has them.

GOLDEN = sorted((ROOT / "tests" / "scorer" / "golden").glob("*.rankmill"))


def facts_of(path):
    reported = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    rows = np.array([[float.fromhex(x) for x in row] for row in reported["rows"]], dtype=np.float32)
    return reported, rows


def test_there_is_one_of_each_kind_and_format_number():
    assert {path.stem for path in GOLDEN} >= {
        *("best_first", "depth_first", "oblivious", "weighted", "mcrank", "mcrank_gain", "ordinal"),
        *("several_trees_a_round", "by_hand", "no_trees", "sets_by_hand"),
    }
    assert {facts_of(path)[0]["format"] for path in GOLDEN} == {1, 2, 3}


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_a_golden_file_is_read_and_written_again(path):
    data, (reported, _) = path.read_bytes(), facts_of(path)
    forest = Forest.from_bytes(data)
    assert (data[8], forest.sha256) == (reported["format"], reported["sha256"])
    assert forest.to_bytes() == data


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_a_golden_file_gives_the_scores_that_it_gave(path):
    forest, (reported, rows) = Forest.load(path), facts_of(path)
    assert [float(score).hex() for score in predict(forest, rows)] == reported["scores"]
    assert [float(ForestPredictor(forest).scores(row[None])[0]).hex() for row in rows] == reported["scores"]
    if forest.link == "identity":
        assert [score.hex() for score in naive.predict(forest, rows)] == reported["scores"]
