"""Hashes, buckets and the sketch of queries against their slow twins."""

import math
import pickle
import random
import tracemalloc
from collections import Counter

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from rankmill.foundation.errors import DatasetFormatError, InputError
from rankmill.pipeline.cli import app
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.pipeline.dataset.manifest import SPLITS
from rankmill.pipeline.group import _kernels
from rankmill.pipeline.group import bucket as bucket_module
from rankmill.pipeline.group import sketch as module
from rankmill.pipeline.group.bucket import read_bucket
from rankmill.pipeline.group.query_splits import (
    SPLIT_SALT,
    buckets_of,
    hash_ids,
    parse_shares,
    parse_split_time,
    parts_of_folds,
    rule_of,
    splits_of,
)
from rankmill.pipeline.group.sketch import MAGIC, MOST_HASHES, SALT, Overlap, QuerySketch, overlap
from rankmill.pipeline.group.spill import SpillFile, padded, row_schema, spill_rows
from rankmill.pipeline.ingest import ingest
from rankmill.pipeline.options import IngestOptions, ReadOptions
from rankmill.pipeline.read.batch import BATCH_BYTES, RowBatch
from rankmill.pipeline.statistics.describe_dataset import describe
from tests import naive
from tests.refusals import refused


@given(st.lists(st.text(max_size=12), max_size=20), st.integers(0, 3))
@settings(max_examples=100, deadline=None)
def test_the_hash_of_an_id_is_the_written_one(names, skipped):
    ids = pa.array(names, pa.string()).slice(skipped)
    for salt in (0, SPLIT_SALT):
        assert hash_ids(ids, salt).tolist() == [naive.hash_of_id(name, salt) for name in names[skipped:]]


def test_known_hashes():
    assert hash_ids(pa.array(["", "10002"])).tolist() == [17665956581633026203, 13440057340273220851]


@given(st.integers(1, 7), st.integers(0, 9), st.integers(0, 2**32))
@settings(max_examples=50, deadline=None)
def test_the_digest_of_a_row_is_the_written_one(width, n, seed):
    rng = np.random.default_rng(seed)
    words = rng.integers(0, 2**32, (n, width), dtype=np.uint32)
    grade = rng.integers(0, 5, n, dtype=np.int32)
    out = np.empty((n, 2), dtype=np.uint64)
    _kernels.digest_rows(words, grade, out)
    assert [tuple(row) for row in out.tolist()] == [
        naive.digest_of_row(int(g), row) for g, row in zip(grade, words.tolist(), strict=True)
    ]


def test_shares_of_splits_are_met_and_independent_of_buckets():
    ids = pa.array([f"q{k}" for k in range(20000)])
    split = splits_of(ids, {"train": 0.8, "valid": 0.15, "test": 0.05})
    assert np.allclose(np.bincount(split) / len(split), [0.8, 0.15, 0.05], atol=0.01)
    table = np.zeros((3, 32))
    np.add.at(table, (split, buckets_of(ids, 32)), 1)
    assert np.allclose(table[0] / table.sum(axis=0), 0.8, atol=0.08)
    assert (splits_of(ids, {"test": 1.0}) == 2).all()
    assert (splits_of(ids, {"train": 1.0}) == 0).all()


def test_narrow_rows_are_widened_some_at_a_time(tmp_path):
    """A hundred thousand rows of one feature, 0.4 MB, would be 400 MB with all features."""
    n, width = 100_000, 1000
    file = SpillFile(tmp_path / "spill", 1, row_schema())
    for rows, features in ((n, 1), (1, width)):
        qid = pa.array([f"q{k % 100}" for k in range(rows)])
        values = np.ones((rows, features), dtype=np.float32)
        spill_rows(file, RowBatch(qid=qid, doc_id=None, grade=np.zeros(rows, dtype=np.int32), values=values), 0)
    spilled = file.finish()
    assert (spilled.width, spilled.rows.tolist()) == (width, [n + 1])
    tracemalloc.start()
    read = sum(len(rows) for rows, _ in padded(spilled, 0, width, 0.0))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert read == n + 1
    assert peak < 3 * BATCH_BYTES


def test_rows_that_came_one_by_one_are_read_in_their_order(tmp_path, monkeypatch):
    file = SpillFile(tmp_path / "spill", 1, row_schema())
    for k in range(20):
        qid, doc_id = pa.array([f"q{k}"]), pa.array([f"d{k}"]) if k % 3 else None
        spill_rows(file, RowBatch(qid=qid, doc_id=doc_id, grade=None, values=np.full((1, 1), k, dtype=np.float32)), k)
    spilled = file.finish()
    whole = read_bucket(spilled, 0, 1, 0.0)
    assert whole.column("qid").to_pylist() == [f"q{k}" for k in range(20)]
    for most in (2, 3, 19, 20):
        monkeypatch.setattr(bucket_module, "_MOST_PARTS", most)
        assert read_bucket(spilled, 0, 1, 0.0) == whole
    sent = pickle.loads(pickle.dumps(spilled))  # to another process
    assert read_bucket(sent, 0, 1, 0.0) == whole


# ---- the sketch of queries trained on, against sets of their ids
# ---------------------------------------------------------

IDS = st.lists(st.text(max_size=6), max_size=40)


def naive_hashes(ids):
    return sorted({int(hash_ids(pa.array([each], pa.string()), SALT)[0]) for each in ids})


@settings(deadline=None)
@given(trained=IDS, asked=IDS)
def test_small_sets_are_counted_exactly(trained, asked):
    sketch = QuerySketch.of([trained])
    assert sketch.queries == len(set(trained))
    assert sketch.hashes.tolist() == naive_hashes(trained)
    shared = len(set(trained) & set(asked))
    assert overlap(sketch, asked) == Overlap(found=shared, looked_at=len(set(asked)), queries=len(set(asked)))
    assert overlap(sketch, asked).exact
    assert overlap(sketch, asked).estimate == shared


@settings(deadline=None)
@given(trained=IDS, asked=IDS, most=st.integers(1, 50), cut=st.integers(0, 40))
def test_cut_sketches_compare_only_hashes_below_the_cut(trained, asked, most, cut):
    trained = sorted(set(trained))
    sketch = QuerySketch.of([trained[:cut], trained[cut:]], most)
    assert sketch.queries == len(trained)
    assert sketch.hashes.tolist() == naive_hashes(trained)[:most]
    assert sketch.exact == (len(trained) <= most)
    found = overlap(sketch, pa.array(asked, pa.string()))
    last = math.inf if sketch.exact else naive_hashes(trained)[most - 1]
    looked_at = {h for h in naive_hashes(asked) if h <= last}
    assert found == Overlap(len(set(asked)), len(looked_at), len(looked_at & set(naive_hashes(trained))))
    assert found.found <= len(set(trained) & set(asked))


@settings(deadline=None)
@given(one=IDS, other=IDS, parts=st.integers(1, 5), seed=st.integers(0, 99))
def test_bytes_depend_on_the_set_alone(one, other, parts, seed):
    ids = sorted({*one, *other})
    shuffled = np.random.default_rng(seed).permutation(np.array([*ids, *ids], dtype=object)).tolist()
    whole = QuerySketch.of([ids])
    assert QuerySketch.of([shuffled[i::parts] for i in range(parts)]).to_bytes() == whole.to_bytes()
    assert QuerySketch.of([one]).union(QuerySketch.of([other])).to_bytes() == whole.to_bytes()
    again = QuerySketch.from_bytes(whole.to_bytes())
    assert again.to_bytes() == whole.to_bytes()
    assert (again.queries, again.exact) == (len(ids), True)


def test_a_union_with_a_cut_sketch_is_cut_where_both_are_complete(monkeypatch):
    monkeypatch.setattr(module, "MOST_HASHES", 100)
    many, few = [f"m{i}" for i in range(900)], [f"f{i}" for i in range(60)]
    cut = QuerySketch.of([many], 100)
    for both in (cut.union(QuerySketch.of([few])), QuerySketch.of([few]).union(cut)):
        assert both.hashes.tolist() == naive_hashes(many + few)[:100]
        assert not both.exact
        assert 900 <= both.queries <= 960
        found = overlap(both, few)
        assert found.found == found.looked_at < 60


def test_a_sample_of_many_queries_says_how_many_are_shared():
    trained = pa.array([f"q{i}" for i in range(100_000)])
    sketch = QuerySketch.of([trained])
    assert (sketch.queries, len(sketch.hashes), sketch.exact) == (100_000, MOST_HASHES, False)
    assert len(sketch.to_bytes()) == 16 + 8 * MOST_HASHES
    asked = [f"q{i}" for i in range(0, 100_000, 10)] + [f"x{i}" for i in range(30_000)]
    found = overlap(sketch, asked)
    assert abs(found.looked_at - 40_000 * MOST_HASHES / 100_000) < 5 * math.sqrt(40_000 * 0.25)
    assert abs(found.estimate - 10_000) < 5 * 40_000 * math.sqrt(0.25 * 0.75 / found.looked_at)
    assert overlap(sketch, [f"x{i}" for i in range(30_000)]).found == 0
    assert math.isnan(overlap(sketch, [next(i for i in asked if overlap(sketch, [i]).looked_at == 0)]).estimate)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"RMQUERY0" + bytes(8),
        MAGIC + bytes(7),
        MAGIC + (3).to_bytes(8, "little"),
        MAGIC + (1).to_bytes(8, "little") + bytes(16),
        MAGIC + (2).to_bytes(8, "little") + bytes(16),
        MAGIC + (1).to_bytes(8, "little") + bytes(9),
    ],
)
def test_other_bytes_are_refused(data):
    with refused(DatasetFormatError, "sketch"):
        QuerySketch.from_bytes(data)


# ---- splits by time and by fold: every query is in one split, and which one is said by the query alone ---------------

QUERY_IDS = pa.array([f"query {number}" for number in range(20_000)])


def split_of_queries(dataset):
    found = {}
    for shard in dataset.manifest.shards:
        table = pq.read_table(dataset.queries_path(shard), columns=["qid", "split"])
        found |= dict(zip(table["qid"].to_pylist(), table["split"].to_pylist(), strict=True))
    return found


# ---- time ----------------------------------------------------------------------------------------------------------


def write_times(path, days):
    """A table with a row for each (query, day)."""
    path.write_text("qid,seen,grade,x\n" + "".join(f"{qid},{day * 86400},1,{day}\n" for qid, day in days))
    return path


@pytest.mark.parametrize(("bounds", "valid", "test"), [("valid=1970-01-11,test=1970-01-21", 10, 20), ("test=1728000", 99, 20), ("valid=1970-01-11", 10, 99)])  # fmt: skip
def test_the_latest_row_decides_and_a_bound_belongs_to_what_it_begins(tmp_path, bounds, valid, test):
    rng = random.Random(bounds)
    days = [(f"q{rng.randrange(40)}", rng.randrange(30)) for _ in range(120)]
    days += [("at valid", 10), ("at test", 20), ("before", 9), ("long", 0), ("long", 29)]
    options = IngestOptions(read=ReadOptions(time_column="seen"), split_time=parse_split_time(bounds), buckets=3)
    rng.shuffle(days)
    files = [write_times(tmp_path / f"{part}.csv", days[part::3]) for part in range(3)]
    manifest = ingest(files, tmp_path / "out", options=options).manifest
    latest = Counter()
    for qid, day in days:
        latest[qid] = max(latest[qid], day)
    wanted = {qid: "test" if day >= test else "valid" if day >= valid else "train" for qid, day in latest.items()}
    dataset = Dataset.open(tmp_path / "out")
    assert split_of_queries(dataset) == wanted
    assert {name: count.queries for name, count in manifest.splits.items()} == Counter(wanted.values())
    assert all(source.split is None for source in manifest.sources)
    again = parse_split_time(",".join(f"{name}={text}" for name, text in manifest.meaning.split_time.items()))
    assert again == parse_split_time(bounds)
    assert "split by time, " in describe(dataset).render(120)


def test_microseconds_count(tmp_path):
    times = parse_split_time("valid=2026-01-01T00:00:00.000001Z,test=2026-01-01T00:00:00.000002Z")
    rule = rule_of(times=times)
    start = rule.times["valid"] - 1
    assert rule.splits(pa.array(["a", "b", "c"]), np.array([start, start + 1, start + 2])).tolist() == [0, 1, 2]
    assert parse_split_time("valid=2026-01-01T01:00+01:00") == parse_split_time(" valid=2026-01-01 ")


def test_bounds_without_effect_are_errors():
    """Beside those of malformed/cases.toml."""
    for text, *facts in (
        ("2026-01-01", "name=time", "2026-01-01", "valid=2026-01-01,test=2026-02-01"),
        ("vald=2026-01-01", "split", "'vald'", "'valid'"),
        ("valid=5,valid=6", "'valid'", "twice"),
        ("valid=5,test=5", "valid", "before", "test"),
    ):
        with refused(InputError, *facts):
            parse_split_time(text)
    with refused(InputError, "split", "train", "0..1", "nan"):
        parse_shares("train=nan")


# ---- folds ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("folds", [3, 10])
def test_folds_turn_in_a_circle_and_each_part_is_valid_once_and_test_once(folds):
    part = parts_of_folds(QUERY_IDS, folds)
    sizes = np.bincount(part, minlength=folds)
    assert len(sizes) == folds
    assert (np.abs(sizes / len(QUERY_IDS) - 1 / folds) < 5 * np.sqrt(1 / folds / len(QUERY_IDS))).all()
    of_fold = {fold: rule_of(folds=folds, fold=fold).splits(QUERY_IDS, None) for fold in range(1, folds + 1)}
    for fold, split in of_fold.items():
        for number in range(folds):
            names = {SPLITS[code] for code in split[part == number]}
            first = fold - 1
            trained = {(first + k) % folds for k in range(folds - 2)}
            wanted = "train" if number in trained else "valid" if number == (first + folds - 2) % folds else "test"
            assert names == {wanted}
    splits = np.stack(list(of_fold.values()))
    for code, times in ((0, folds - 2), (1, 1), (2, 1)):
        assert (np.count_nonzero(splits == code, axis=0) == times).all()


def test_the_part_of_a_query_is_the_written_one():
    names = QUERY_IDS.to_pylist()[:200]
    for folds in (3, 5, 7, 1000):
        assert parts_of_folds(QUERY_IDS[:200], folds).tolist() == [naive.part_of_folds(name, folds) for name in names]


def test_parts_are_independent_of_shares():
    part, split = parts_of_folds(QUERY_IDS, 5), splits_of(QUERY_IDS, {"train": 0.5, "valid": 0.5})
    assert abs(np.mean(split[part == 0]) - 0.5) < 0.05


def test_a_fold_of_a_dataset_is_stable_as_data_grow(tmp_path):
    def made(queries, name, fold):
        file = tmp_path / f"{name}.txt"
        file.write_text("".join(f"{q % 3} qid:{q} 1:{q}\n" for q in queries))
        options = IngestOptions(folds=4, fold=fold, buckets=3)
        return ingest([file], tmp_path / f"{name}-{fold}", options=options).manifest, tmp_path / f"{name}-{fold}"

    _, few = made(range(50), "few", 2)
    manifest, many = made(range(120), "many", 2)
    few, many = split_of_queries(Dataset.open(few)), split_of_queries(Dataset.open(many))
    assert few.items() <= many.items()
    assert set(many.values()) == set(SPLITS)
    assert manifest.meaning.folds.model_dump() == {"folds": 4, "fold": 2}
    assert "split fold 2 of 4" in describe(Dataset.open(tmp_path / "many-2")).render(120)


# ---- one rule at a time ------------------------------------------------------------------------------------------


def test_rules_do_not_mix(tmp_path):
    shares, times, folds = {"split": {"train": 1.0}}, {"split_time": {"valid": "5"}}, {"folds": 3, "fold": 1}
    assert IngestOptions().rule is None
    for one, other in ((shares, times), (shares, folds), (times, folds)):
        with refused(InputError, "assigned"):
            IngestOptions(read=ReadOptions(time_column="seen"), **one, **other)
    with refused(InputError, "time_column"):
        IngestOptions(**times)
    file = tmp_path / "in.txt"
    file.write_text("1 qid:1 1:1\n")
    with refused(InputError, "folds", "valid or test"):
        ingest([file], tmp_path / "out", valid=[file], options=IngestOptions(folds=3, fold=1))


def test_the_command_takes_them(tmp_path):
    file = write_times(tmp_path / "in.csv", [(f"q{day}", day) for day in range(30)])
    by_time = ["--time-column", "seen", "--split-time", "valid=1970-01-11,test=1970-01-21"]
    for number, options in enumerate([by_time, ["--folds", "5", "--fold", "3"]]):
        out = tmp_path / f"out-{number}"
        found = CliRunner().invoke(app, ["ingest", str(file), "-o", str(out), *options, "--json"])
        assert found.exit_code == 0, found.output
        assert set(Dataset.open(out).manifest.splits) == set(SPLITS)


# ---- lists of one query that share the text before the last character of their ids ---------------------------------


@pytest.mark.parametrize("rule", [{"split": {"train": 0.5, "valid": 0.25, "test": 0.25}}, {"folds": 4, "fold": 2}])
def test_all_lists_of_a_query_are_in_one_split(tmp_path, rule):
    lists = [f"{query}/{session}" for query in range(40) for session in range(query % 5 + 1)]
    rows = pl.DataFrame({"qid": lists}).join(
        pl.DataFrame({"doc_id": ["a", "b"], "grade": [0, 1], "f": [0.5, 2.0]}), how="cross"
    )
    rows.write_parquet(tmp_path / "rows.parquet")
    options = IngestOptions(**rule, split_prefix="/")
    ingest([tmp_path / "rows.parquet"], tmp_path / "ds", options=options)
    dataset = Dataset.open(tmp_path / "ds")
    assert dataset.manifest.meaning.split_prefix == "/"
    queries = pl.concat([pl.read_parquet(dataset.queries_path(shard)) for shard in dataset.manifest.shards])
    splits = queries.with_columns(query=pl.col("qid").str.split("/").list.first())
    assert set(splits.group_by("query").agg(pl.col("split").n_unique())["split"]) == {1}
    assert splits["split"].n_unique() == 3
    made = options.rule.splits(pa.array(splits["query"].to_list()), None)  # the split of a query is that of its id
    assert [("train", "valid", "test")[s] for s in made] == splits["split"].cast(pl.String).to_list()


def test_rules_and_options_that_do_not_go_together():
    with refused(InputError, "split_prefix", "folds"):
        IngestOptions(split_prefix="/")
    with refused(InputError, "split_prefix", "one character"):
        IngestOptions(split_prefix="//", split={"train": 1.0})
    qids = pa.array(["a/1", "a", "x/y/2", "x/y/", "a\n/3", "a\n"])
    for rule in (rule_of({"train": 0.5, "test": 0.5}, prefix="/"), rule_of(folds=5, fold=1, prefix="/")):
        one, two, three, four, five, six = rule.splits(qids, None).tolist()
        assert (one, three, five) == (two, four, six)
