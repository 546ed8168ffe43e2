"""Splits by time and by fold: every query is in one split, and which one is said by the query alone."""

import random
from collections import Counter

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from rankmill.foundation.errors import InputError
from rankmill.pipeline.cli import app
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.pipeline.dataset.manifest import SPLITS
from rankmill.pipeline.group.query_splits import (
    parse_shares,
    parse_split_time,
    parts_of_folds,
    rule_of,
    splits_of,
)
from rankmill.pipeline.ingest import ingest
from rankmill.pipeline.options import IngestOptions, ReadOptions
from rankmill.pipeline.statistics.describe_dataset import describe
from tests import naive
from tests.refusals import refused

DAY = 86400 * 10**6
IDS = pa.array([f"query {number}" for number in range(20_000)])


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


def test_bounds_that_say_nothing_are_errors():
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
    part = parts_of_folds(IDS, folds)
    sizes = np.bincount(part, minlength=folds)
    assert len(sizes) == folds
    assert (np.abs(sizes / len(IDS) - 1 / folds) < 5 * np.sqrt(1 / folds / len(IDS))).all()
    of_fold = {fold: rule_of(folds=folds, fold=fold).splits(IDS, None) for fold in range(1, folds + 1)}
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
    names = IDS.to_pylist()[:200]
    for folds in (3, 5, 7, 1000):
        assert parts_of_folds(IDS[:200], folds).tolist() == [naive.part_of_folds(name, folds) for name in names]


def test_letor_has_the_same_folds():
    """MQ2008 (LETOR 4.0): Fold1 trains on S1, S2, S3, validates on S4 and tests on S5; Fold2 on S2, S3, S4; S5; S1."""
    part = parts_of_folds(IDS, 5)
    for fold, (valid, test) in {1: (4, 5), 2: (5, 1), 3: (1, 2), 4: (2, 3), 5: (3, 4)}.items():
        split = rule_of(folds=5, fold=fold).splits(IDS, None)
        assert set(part[split == 1] + 1) == {valid}
        assert set(part[split == 2] + 1) == {test}


def test_parts_say_nothing_about_shares():
    part, split = parts_of_folds(IDS, 5), splits_of(IDS, {"train": 0.5, "valid": 0.5})
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
