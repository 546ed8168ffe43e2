"""A binned dataset is another way to give the same rows: the same model, however it was made."""

import pickle
import subprocess
import sys
import textwrap

import numpy as np
import polars as pl
import pytest

from rankmill import BinnedDataset, Ranker, cross_validate
from rankmill.foundation.errors import InputError, InvalidParameter, TrainingDataRejected
from rankmill.python import spilled_values
from tests.rankmill.python.small_ranker import small
from tests.rankmill.python.test_categorical_columns import OPTIONS, planted
from tests.refusals import refused
from tests.trainer.small_dataset import small_dataset


def bytes_of(ranker):
    return ranker.forest_.to_bytes()


@pytest.fixture
def no_binning(monkeypatch):
    """From here on nothing can be binned."""

    def stop():
        def refuse(*args, **options):
            raise AssertionError("binned again")

        for name in ("feature_table.matrix_bins", "array_rows.apply_bins", "spilled_values.apply_bins"):
            monkeypatch.setattr(f"rankmill.python.{name}", refuse)

    return stop


@pytest.mark.parametrize(
    ("column", "objective"), [("query_weight", ""), ("group", ""), ("label", "l2"), ("y", "l2"), ("pairs", "ranknet")]
)
def test_the_model_is_that_of_the_rows(arrays, column, objective, no_binning):
    X, y, qid = arrays
    rng = np.random.default_rng(1)
    given = {"qid": qid} | {
        "query_weight": {"query_weight": rng.uniform(size=40)[qid]},
        "group": {"qid": None, "group": [10] * 40},
        "pairs": {"pairs": [[10 * query, 10 * query + 3] for query in range(40)], "pair_weight": rng.uniform(size=40)},
        "y": {},
    }.get(column, {column: rng.uniform(size=400)})
    y = y + 0.5 if column == "y" else y
    more = {"objective": objective or None, "learn_from": "both" if column == "pairs" else ""}
    more |= {"stop_metric": "deviance"} if column == "y" else {}
    rankers = [small(**more, **own) for own in ({"max_leaves": 3}, {"max_leaves": 5}, {"rounds_by": "cv", "folds": 2})]
    expected = [bytes_of(ranker.fit(X, y, **given)) for ranker in rankers]
    folds = cross_validate(small(folds=2, **more), X, y, **given)
    binned = BinnedDataset(X, y, n_threads=1, **given)
    no_binning()
    assert [bytes_of(ranker.fit(binned)) for ranker in rankers] == expected
    assert cross_validate(small(folds=2, **more), binned) == folds
    assert bytes_of(rankers[0].fit(pickle.loads(pickle.dumps(binned)))) == expected[0]


def test_eval_sets_have_the_bins_of_their_reference(arrays, no_binning):
    X, y, qid = arrays
    learnt, held = qid < 30, qid >= 30
    parts = (X[held], y[held], qid[held])
    for refit in ("none", "all"):
        ranker = small(refit=refit)
        expected = bytes_of(ranker.fit(X[learnt], y[learnt], qid=qid[learnt], eval_set=parts))
        history = ranker.history_
        binned = BinnedDataset(X[learnt], y[learnt], qid=qid[learnt])
        watched = BinnedDataset(*parts[:2], qid=parts[2], reference=binned)
        assert bytes_of(ranker.fit(binned, eval_set=parts)) == expected
        assert bytes_of(ranker.fit(binned, eval_set=watched)) == expected
        assert ranker.history_ == history
        several = ranker.fit(binned, eval_set=(watched, parts), eval_names=["a", "b"])
        assert several.history_[0].metrics["a"] == several.history_[0].metrics["b"]
    other = BinnedDataset(X[held], y[held], qid=qid[held])
    with refused(InvalidParameter, "'valid'", "reference"):
        small().fit(binned, eval_set=other)
    with refused(InvalidParameter, "max_bin", "reference"):
        BinnedDataset(X, y, qid=qid, reference=binned, max_bin=20)
    no_binning()
    small().fit(binned, eval_set=[watched])


def test_training_is_resumed_and_searched(arrays):
    X, y, qid = arrays
    binned = BinnedDataset(X, y, qid=qid)
    half = small(n_rounds=4).fit(binned)
    assert bytes_of(small().fit(binned, resume=half)) == bytes_of(small().fit(X, y, qid=qid))
    assert bytes_of(small().fit(X, y, qid=qid, resume=half)) == bytes_of(small().fit(X, y, qid=qid))


def pieces_of(sizes, *columns):
    """Consecutive pieces of so many rows."""
    ends = np.cumsum(sizes)
    return [
        tuple(column[first:last] for column in columns)
        for first, last in zip(ends - sizes, ends, strict=True)
    ]  # fmt: skip


@pytest.mark.parametrize("size", [7, 100])
def test_pieces_of_any_size_make_the_same_bins(arrays, size, monkeypatch, tmp_path):
    monkeypatch.setattr(spilled_values, "_CHUNK_BYTES", 16 * 11)  # eleven rows
    X, y, qid = arrays
    X = X.copy()
    X[::5, 1] = np.nan
    X[:, 2] = np.round(X[:, 2])
    names = np.array([f"q{number:03}" for number in qid])
    weight = np.random.default_rng(3).uniform(size=400)
    expected = bytes_of(small().fit(X, y, qid=names, sample_weight=weight))
    sizes = [size] * (400 // size) + ([400 % size] if 400 % size else [])
    pieces = [
        (x, grades, {"qid": ids, "sample_weight": w}) for x, grades, ids, w in pieces_of(sizes, X, y, names, weight)
    ]
    for given in (pieces, iter(pieces), lambda: iter(pieces), pieces[::-1]):
        assert bytes_of(small().fit(BinnedDataset.from_pieces(given, scratch=tmp_path))) == expected
    assert not list(tmp_path.iterdir())


def test_pieces_of_frames_have_categories(monkeypatch):
    columns, y, qid = planted()
    frame = pl.DataFrame(columns)
    expected = bytes_of(small(**OPTIONS).fit(frame, y, qid=qid))
    options = {**OPTIONS, "categorical": None}
    binned = BinnedDataset(frame, y, qid=qid, categorical=["shop"])
    assert bytes_of(small(**options).fit(binned)) == expected
    monkeypatch.setattr(spilled_values, "_CHUNK_BYTES", 64 * 16)
    for size in (50, 600):
        sizes = [size] * (600 // size)
        pieces = pieces_of(sizes, frame.with_columns(qid=qid), y)
        in_pieces = BinnedDataset.from_pieces(pieces, categorical=["shop"], n_threads=2)
        assert bytes_of(small(**options).fit(in_pieces)) == expected
    held, held_y, held_qid = planted(20, seed=1)
    held["brand"][3] = "only held"
    watched = BinnedDataset.from_pieces([(pl.DataFrame(held), held_y, held_qid)], reference=binned)
    history = small(**options).fit(binned, eval_set=watched).history_
    assert history == small(**OPTIONS).fit(frame, y, qid=qid, eval_set=(pl.DataFrame(held), held_y, held_qid)).history_


def test_pieces_that_do_not_fit_together_are_refused():
    for pieces, facts in (
        ([], "no pieces"),
        ([(np.zeros((2, 1)), [0, 1])], "either qid"),
        ([(np.zeros((2, 1)), [0], [0, 0])], ("piece 0", "y", "(2,)", "(1,)")),
        ([(np.zeros((2, 1)), [0, 1], [0, 0]), (np.zeros((2, 2)), [0, 1], [0, 0])], ("piece 1", "2 features")),
        ([(np.zeros((2, 1)), [0, 1], [0, 0]), (np.zeros((2, 1)), [0, 1], {"group": [2]})], ("piece 1", "qid", "group")),
        ([(np.zeros((2, 1)), [0, 1], {"qid": [0, 0], "pairs": [[0, 1]]})], ("piece 0", "pairs", "pieces")),
        ([(np.zeros((2, 1)), [0, 1], {"qid": [0, 0], "wait": [0, 1]})], ("piece 0", "'wait'", "sample_weight")),
        ([(np.zeros((2, 1)), [0, 1], [0, 0]), (np.zeros((2, 1)), [0, 1], ["a", "b"])], ("int", "str")),
        ([np.zeros((2, 1))], ("piece 0", "(X, y, qid)")),
    ):
        with refused((InvalidParameter, TrainingDataRejected), facts):
            BinnedDataset.from_pieces(pieces)


def test_single_features_may_have_fewer_bins(arrays):
    X, y, qid = arrays
    options = {"max_bin": 40, "max_bin_of": {"f1": 3, "f2": 200}}
    ranker = small(**options).fit(X, y, qid=qid)
    binned = BinnedDataset(X, y, qid=qid, **options)
    assert [len(feature.edges) + 1 for feature in binned.binned.binspec.features] == [40, 3, 200, 40]
    in_pieces = BinnedDataset.from_pieces([(X, y, qid)], **options)
    assert bytes_of(small().fit(binned)) == bytes_of(small().fit(in_pieces)) == bytes_of(ranker)
    assert bytes_of(ranker) != bytes_of(small(max_bin=40).fit(X, y, qid=qid))
    for wrong, facts in (({"f9": 3}, "'f9'"), ({"f1": 1}, ("'f1'", "2 to 255")), ({"f1": 2.5}, "2.5")):
        with refused(InputError, "max_bin_of", facts):
            small(max_bin_of=wrong).fit(X, y, qid=qid)


def test_what_the_dataset_has_cannot_be_given_again(arrays):
    X, y, qid = arrays
    binned = BinnedDataset(X, y, qid=qid)
    for given in ({"y": y}, {"qid": qid}, {"sample_weight": y}):
        with refused(InvalidParameter, next(iter(given)), "BinnedDataset"):
            small().fit(binned, **given)
    for options in ({"max_bin": 20}, {"categorical": [0]}, {"max_bin_of": {"f0": 20}}):
        with refused(InvalidParameter, next(iter(options)), "BinnedDataset"):
            small(**options).fit(binned)
    alike = {"max_bin": 20, "max_bin_of": {"f0": 10}, "categorical": [1]}
    again = BinnedDataset(np.abs(np.round(X)), y, qid=qid, **alike)
    loaded = Ranker.from_model(small(**alike).fit(again).forest_)
    assert loaded.categorical == ["f1"]
    loaded.fit(again)
    with refused(InvalidParameter, "base_model", "offset"):
        small().fit(binned, base_model=small().fit(binned))
    with refused(TrainingDataRejected, "labels", "grades"):
        small().fit(BinnedDataset(X, y + 0.5, qid=qid))
    with refused(InvalidParameter, "'max_bins'"):
        BinnedDataset(X, y, qid=qid, max_bins=20)
    with refused(InvalidParameter, "BinnedDataset needs either qid"):
        BinnedDataset(X, y)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return small_dataset(tmp_path_factory.mktemp("binned"), queries=60).path


def test_many_categories_are_encoded_alike(tmp_path, typed):
    rng = np.random.default_rng(5)
    category = rng.integers(0, 300, 1500)
    frame = pl.DataFrame({"n": rng.normal(size=1500).astype(np.float32), "shop": category})
    y, qid = rng.integers(0, 2, 300)[category] + rng.integers(0, 2, 1500), np.repeat(np.arange(150), 10)
    frame.with_columns(qid=qid, grade=y).write_csv(tmp_path / "rows.csv")
    path = tmp_path / "web"
    typed(f"data ingest {tmp_path}/rows.csv -o {path} --categorical shop --split train=0.6,valid=0.2,test=0.2")
    typed(f"data bin {path}")
    sha256 = typed.json(f"train {path} --name web --registry {tmp_path}/r --n-rounds 9")["sha256"]
    train, valid = BinnedDataset.open(path), BinnedDataset.open(path, "valid")
    forest = Ranker(n_rounds=9, verbose=0).fit(train, eval_set=valid).forest_
    assert forest.sha256 == sha256
    assert "encoded_splits" in forest.info
    expected = bytes_of(Ranker(n_rounds=9, verbose=0, categorical=["shop"]).fit(frame, y, qid=qid))
    pieces = pieces_of([700, 800], frame, y, qid)
    for binned in (
        BinnedDataset(frame, y, qid=qid, categorical=np.array([1])),
        BinnedDataset.from_pieces(pieces, categorical=[1]),
    ):
        assert bytes_of(Ranker(n_rounds=9, verbose=0).fit(binned)) == expected


@pytest.mark.parametrize("preset", ["defaults-1", "auto-1"])
def test_a_folder_makes_the_model_of_the_command_line(dataset, preset, tmp_path, typed):
    command = f"train {dataset} --name web --registry {tmp_path}/r --preset {preset} --n-rounds 9"
    train, valid = BinnedDataset.open(dataset), BinnedDataset.open(dataset, "valid")
    ranker = Ranker(preset=preset, n_rounds=9, verbose=0).fit(train, eval_set=valid)
    assert ranker.forest_.sha256 == typed.json(command)["sha256"]
    assert list(ranker.feature_names_in_) == list(train.binned.feature_names)
    with refused(InputError, "split", "'tset'", "'test'"):
        BinnedDataset.open(dataset, "tset")


@pytest.mark.slow
def test_memory_holds_no_matrix_of_all_values():
    rows, features, at_once = 400_000, 100, 10_000
    code = f"""
        import numpy as np
        from rankmill import BinnedDataset
        from rankmill.foundation.process_memory import peak_bytes, return_large_arrays

        def piece(number):
            rng = np.random.default_rng(number)
            X = rng.normal(size=({at_once}, {features})).astype(np.float32)
            return X, rng.integers(0, 5, {at_once}), number * 1000 + np.arange({at_once}) // 10

        return_large_arrays()
        BinnedDataset.from_pieces([piece(0)], n_threads=2)  # compiles and imports
        before = peak_bytes()
        binned = BinnedDataset.from_pieces((piece(n) for n in range({rows // at_once})), n_threads=2)
        print(peak_bytes() - before)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True)
    grown, values = int(done.stdout), 4 * rows * features
    assert grown < 0.6 * values  # of 160 MB; the bins take 45 MB, and 70 bytes a row 28 MB


def test_a_folder_has_the_bins_and_the_trees_of_the_same_frame(tmp_path, typed):
    columns, y, qid = planted()
    brands = {None: None, "echo": "16777217.0", "fern": "017"}  # a number in two spellings, and no number
    columns["brand"] = [brands.get(name, name) for name in columns["brand"]]
    frame = pl.DataFrame(columns).with_columns(pl.col("new").cast(pl.Int8))
    frame.with_columns(qid=qid, grade=y).write_csv(tmp_path / "rows.csv")
    typed(f"data ingest {tmp_path}/rows.csv -o {tmp_path}/web --categorical brand,shop --split train=1")
    typed(f"data bin {tmp_path}/web --max-bin-of brand=6")
    stored = BinnedDataset.open(tmp_path / "web")
    binned = BinnedDataset(frame, y, qid=qid, categorical=["shop"], max_bin_of={"brand": 6})
    assert stored.binned.binspec.to_json() == binned.binned.binspec.to_json()
    options = {**OPTIONS, "categorical": None, "objective": "l2"}
    one, other = (small(**options).fit(given).forest_ for given in (stored, binned))
    assert one.categories == other.categories
    for name in ("node_feature", "node_cut", "cuts", "set_starts", "set_members"):
        assert np.array_equal(getattr(one, name), getattr(other, name))
