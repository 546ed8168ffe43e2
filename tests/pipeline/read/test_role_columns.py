"""Columns beside ids, grades and features: labels, events, weights, offsets, goals and times, each number at its
row."""

import json
import random
from datetime import UTC, date, datetime, timedelta, timezone

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from rankmill.foundation.errors import DataRejected, InputError, MalformedLine, MalformedRow
from rankmill.pipeline.cli import app
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.pipeline.dataset.sql import query_dataset
from rankmill.pipeline.ingest import ingest
from rankmill.pipeline.options import IngestOptions, ReadOptions
from rankmill.pipeline.read.column_roles import OPTIONAL
from rankmill.pipeline.read.open_source import open_source
from rankmill.pipeline.read.role_columns import read_finite
from rankmill.pipeline.read.times import iso, times_of
from rankmill.pipeline.statistics.describe_dataset import describe
from rankmill.trainer.data.training_rows import read_columns
from rankmill.trainer.parameters import TrainParameters
from tests.refusals import refused
from tests.written import files_in, some_rows, write_rows

NUMBERS, GOALS = ("label", "event", "weight", "offset"), ("bought", "fresh")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
COLUMNS = {
    "label": [-0.0, 0.0, 0.1, -2.5e-7, 3.25],
    "event": range(2),
    "weight": [0.0, 1.0, 0.3],
    "offset": [0.0, -3.25],
    "bought": range(6),
    "fresh": range(3),
    "seen": [EPOCH + timedelta(microseconds=77**k) for k in range(8)],
}


def judgments(n=120, seed=1):
    """Rows of all these columns; a weight of each query."""
    rows, rng = some_rows(n, seed, **COLUMNS), random.Random(seed)
    weight_of = {row["qid"]: rng.choice([0.0, 1.0, 1 / 3]) for row in rows}
    return [row | {"query_weight": weight_of[row["qid"]]} for row in rows]


def options(*goals, block_size=1 << 20, aggregate=None, **read):
    return IngestOptions(
        buckets=3, block_size=block_size, aggregate=aggregate, read=ReadOptions(goals=goals or GOALS, **read)
    )


def ingested(folder, rows, name="a.csv", **given):
    ingest([write_rows(folder / name, rows)], folder / f"{name}.dataset", options=options(**given))
    return Dataset.open(folder / f"{name}.dataset")


def shards(dataset):
    return [(shard.bucket, shard.features, shard.queries) for shard in dataset.manifest.shards]


def times_in(dataset):
    found = {}
    for shard in dataset.manifest.shards:
        table = pq.read_table(dataset.queries_path(shard))
        assert table.schema.field("time").type == pa.timestamp("us", "UTC")
        found |= dict(zip(table["qid"].to_pylist(), table["time"].to_pylist(), strict=True))
    return found


def test_every_number_comes_to_its_row_whatever_the_file(tmp_path):
    rows, digests = judgments(), set()
    names = ["qid", "doc_id", "grade", *NUMBERS, *GOALS, "x"]
    weight_of, latest = (
        {row["qid"]: row["query_weight"] for row in rows},
        dict.fromkeys([r["qid"] for r in rows], EPOCH),
    )
    for row in rows:
        latest[row["qid"]] = max(latest[row["qid"]], row["seen"])
    for number, suffix in enumerate(("csv", "parquet", "jsonl", "arrow")):
        shuffled = random.Random(number).sample(rows, len(rows))
        files = [write_rows(tmp_path / f"{part}.{suffix}", shuffled[part::2]) for part in range(2)]
        given = IngestOptions(
            buckets=5, split={"train": 0.5, "valid": 0.5}, read=ReadOptions(goals=GOALS, time_column="seen")
        )
        manifest = ingest(files, tmp_path / suffix, options=given).manifest
        dataset = Dataset.open(tmp_path / suffix)
        digests.add(dataset.digest)
        assert (dataset.optional_columns, dataset.feature_names) == ((*NUMBERS, *GOALS), ("x",))
        assert dataset.goals == {name: max(row[name] for row in rows) for name in GOALS}
        for goal in manifest.goals:
            values = [row[goal.name] for row in rows]
            assert {count.grade: count.rows for count in goal.grades} == {y: values.count(y) for y in set(values)}
        found = dataset.rows(None, names)
        assert [str(found.schema.field(name).type) for name in NUMBERS] == ["double", "uint8", "double", "double"]
        wanted = [{name: row[name] + (0 if name in NUMBERS else type(row[name])()) for name in names} for row in rows]
        assert sorted(found.to_pylist(), key=repr) == sorted(
            [row | {"x": float(np.float32(row["x"]))} for row in wanted], key=repr
        )
        assert times_in(dataset) == latest
        for split in (None, "train", "valid", "test"):  # the last one is empty
            queries, part = dataset.queries(split), dataset.rows(split, NUMBERS)
            assert queries.weights.dtype == np.float64
            assert queries.weights.tolist() == [weight_of[qid] for qid in queries.qid.to_pylist()]
            assert (len(part), part.schema.types) == (queries.n_rows, found.select(NUMBERS).schema.types)
        training = read_columns(dataset, "train", TrainParameters())
        for name in GOALS:
            assert training.goals[name].tolist() == dataset.rows("train", [name]).column(0).to_pylist()
    assert len(digests) == 1
    (total,) = query_dataset(dataset, "SELECT sum(bought) AS n FROM features").column("n").to_pylist()
    assert total == sum(row["bought"] for row in rows)


def test_a_dataset_without_them_does_not_mention_them(tmp_path):
    (tmp_path / "in.txt").write_text("1 qid:1 1:1\n")
    ingest([tmp_path / "in.txt"], tmp_path / "out")
    manifest = json.loads((tmp_path / "out" / "_manifest.json").read_bytes())
    assert sorted(manifest["meaning"]) == ["absent", "index_base", "split"]
    assert not {"columns", "pairs", "goals", "categorical", "categories"} & manifest.keys()
    assert not (tmp_path / "out" / "_categories").exists()
    dataset = Dataset.open(tmp_path / "out")
    assert (dataset.optional_columns, dataset.goals, dict(dataset.vocabulary.texts)) == ((), {}, {})
    assert dataset.queries().weights is None
    for name in OPTIONAL:
        with refused(InputError, "column", f"'{name}'"):
            dataset.rows(None, [name])


# ---- labels and grades ----------------------------------------------------------------------------------------------


@given(st.lists(st.floats(-1e38, 1e38), min_size=1, max_size=12))
@settings(max_examples=4, deadline=None)
def test_a_label_is_the_same_number_from_text_and_tables(tmp_path_factory, labels):
    folder = tmp_path_factory.mktemp("labels")
    rows = [{"qid": "q", "doc_id": f"d{k}", "label": label, "f1": float(k)} for k, label in enumerate(labels)]
    text = "".join(f"{label!r} qid:q 1:{k} #docid = d{k}\n" for k, label in enumerate(labels))
    (folder / "in.txt").write_text(text)
    ingest([folder / "in.txt"], folder / "text", options=IngestOptions(read=ReadOptions(labels="real")))
    assert json.loads((folder / "text" / "_manifest.json").read_bytes())["meaning"]["labels"] == "real"
    for suffix in (".csv", ".parquet"):
        ingest([write_rows(folder / f"in{suffix}", rows)], folder / suffix[1:])
        assert files_in(folder / suffix[1:], "*.parquet") == files_in(folder / "text", "*.parquet")
    found = Dataset.open(folder / "text").rows(None, ["doc_id", "label", "grade"])
    label_of = dict(zip(found["doc_id"].to_pylist(), found["label"].to_pylist(), strict=True))
    assert label_of == {f"d{k}": label for k, label in enumerate(labels)}


@given(
    st.lists(
        st.one_of(st.from_regex(r"[+-]?[0-9]*\.?[0-9]*([eE][+-]?[0-9]{1,3})?", fullmatch=True), st.text(max_size=4))
    )
)
@settings(max_examples=60, deadline=None)
def test_tokens_are_read_as_python_reads_them(tokens):
    def naive(token):
        try:
            number = float(token)
        except ValueError:
            return None
        plain = token.strip(" \t").isascii() and "_" not in token and token.strip(" \t") == token.strip()
        return number if np.isfinite(number) and plain else None

    found = read_finite(pa.array(tokens, pa.string())).tolist()
    assert [None if np.isnan(x) else x for x in found] == [naive(token) for token in tokens]


@pytest.mark.parametrize(
    ("labels", "max_grade", "grades"),
    [
        (["31", "2.0", "4"], None, [31, 2, 4]),
        (["0", "2.5", "4"], None, [0, 0, 0]),
        (["0", "-1", "4"], None, [0, 0, 0]),
        (["32", "0", "4"], None, [0, 0, 0]),
        (["32", "0", "4"], 40, [32, 0, 4]),
        (["3", "0", "1"], 2, [0, 0, 0]),
    ],
)
def test_whole_labels_of_all_rows_are_grades_too(tmp_path, labels, max_grade, grades):
    (tmp_path / "a.txt").write_text("".join(f"{x} qid:{k} 1:1\n" for k, x in enumerate(labels)))
    (tmp_path / "a.csv").write_text("qid,label,f1\n" + "".join(f"{k},{x},1\n" for k, x in enumerate(labels)))
    for file, reported in (("a.txt", "real"), ("a.csv", "grade")):
        out = tmp_path / f"{file}.out"
        ingest([tmp_path / file], out, options=IngestOptions(read=ReadOptions(labels=reported, max_grade=max_grade)))
        rows = Dataset.open(out).rows(None, ["qid", "grade", "label"])
        assert sorted(zip(*(rows[name].to_pylist() for name in rows.column_names), strict=True)) == [
            (str(k), grade, float(label)) for k, (grade, label) in enumerate(zip(grades, labels, strict=True))
        ]
    assert files_in(tmp_path / "a.txt.out", "*.parquet") == files_in(tmp_path / "a.csv.out", "*.parquet")


def test_candidates_pass_over_what_only_judgments_have(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("qid,weight,label,x\n1,-5,hm,2\n")
    pq.write_table(pa.table({"qid": ["1"], "weight": ["?"], "x": [2.0]}), tmp_path / "a.parquet")
    for file in (path, tmp_path / "a.parquet"):
        source = open_source(file, options=ReadOptions(grade_required=False))
        (batch,) = source.batches()
        assert source.columns == ("x",)
        assert (batch.values.tolist(), dict(batch.extras), batch.grade) == ([[2.0]], {}, None)


def test_commands_report_them(tmp_path):
    rows, run = [{name: x for name, x in row.items() if name != "seen"} for row in judgments(60, 3)], CliRunner()
    write_rows(tmp_path / "in.csv", rows)
    words = ["ingest", str(tmp_path / "in.csv"), "-o", str(tmp_path / "out"), "--goals", "bought,fresh"]
    assert "\n  besides   label, event, weight, offset, query_weight" in run.invoke(app, words).stdout
    found = describe(Dataset.open(tmp_path / "out"))
    (split,) = found.splits
    for name in NUMBERS:
        column, spread = [float(row[name]) for row in rows], split.columns[name]
        assert (spread.minimum, spread.maximum) == (min(column), max(column))
        assert spread.mean == pytest.approx(sum(column) / len(column), rel=1e-12)
    for name in GOALS:
        values = [row[name] for row in rows]
        assert split.goals[name] == {grade: values.count(grade) for grade in sorted(set(values))}
    assert "bought 5" in found.render()
    reported = json.loads(run.invoke(app, ["describe", str(tmp_path / "out"), "--json"]).stdout)["splits"][0]
    assert list(reported["columns"]) == [*NUMBERS, "query_weight"]
    assert reported["goals"]["fresh"]["0"] == [row["fresh"] for row in rows].count(0)
    assert "event, min / mean / max" in run.invoke(app, ["describe", str(tmp_path / "out")]).stdout
    (tmp_path / "in.txt").write_text("0.25 qid:1 1:1\n-3 qid:1 1:2\n")
    words = ["ingest", str(tmp_path / "in.txt"), "-o", str(tmp_path / "real"), "--labels", "real", "--json"]
    assert json.loads(run.invoke(app, words).stdout)["columns"] == ["label"]


# ---- goals ------------------------------------------------------------------------------------------------------------


def goal_rows(n=120):
    return some_rows(n, 1, bought=range(6), fresh=range(3))


def test_a_row_with_a_grade_needs_its_goals_unless_empty_means_zero(tmp_path):
    rows = goal_rows(8)
    rows[3]["bought"] = None
    with refused(DataRejected, "a.csv:5", "grade", "unjudged zero"):
        ingested(tmp_path, rows)
    zero = ingested(tmp_path, rows, unjudged="zero")
    found = zero.rows(None, ["doc_id", "bought"]).to_pylist()
    assert {"doc_id": "d3", "bought": 0} in found
    rows[3]["grade"] = None
    kept = ingested(tmp_path, rows, "a.jsonl")
    assert kept.manifest.unjudged_rows == 1
    assert "bought" not in pq.read_schema(kept.unjudged_path(kept.manifest.unjudged[0])).names


def test_words_and_limits_of_grades_hold_for_goals(tmp_path):
    rows = goal_rows(30)
    names = ["none", "cart", "sale"]
    worded = [row | {"fresh": names[row["fresh"]]} for row in rows]
    words = {name: grade for grade, name in enumerate(names)}
    assert shards(ingested(tmp_path, worded, grades=words)) == shards(ingested(tmp_path, rows, "a.parquet"))
    assert ingested(tmp_path, rows, "nested.jsonl", max_grade=9).goals == {"bought": 9, "fresh": 9}
    with refused(DataRejected, "bought", 4):
        ingested(tmp_path, rows, "a.arrow", max_grade=4)


@pytest.mark.parametrize("how", ["mean", "majority", "latest"])
def test_goals_of_merged_rows_are_combined_like_grades(tmp_path, how):
    rng = np.random.default_rng(3)
    rows = [
        {"qid": f"q{k % 4}", "doc_id": f"d{k % 8}", "grade": grade, "bought": goal, "x": k % 8, "seen": k}
        for k, (grade, goal) in enumerate(rng.integers(0, 5, (60, 2)).tolist())
    ]
    swapped = [row | {"grade": row["bought"], "bought": row["grade"]} for row in rows]
    tables = []
    for number, some in enumerate((rows, swapped)):
        file = write_rows(tmp_path / f"{number}.csv", some)
        given = options("bought", aggregate=how, time_column="seen")
        ingest([file], tmp_path / str(number), options=given)
        table = Dataset.open(tmp_path / str(number)).rows(None, ["doc_id", "grade", "bought"])
        tables.append({row["doc_id"]: (row["grade"], row["bought"]) for row in table.to_pylist()})
    assert tables[0] == {doc: goal[::-1] for doc, goal in tables[1].items()}


def test_goals_beside_judgments_in_files(tmp_path):
    rows = goal_rows(40)
    plain = ingested(tmp_path, rows)
    qrels = tmp_path / "qrels.txt"
    qrels.write_text("".join(f"{row['qid']} 0 {row['doc_id']} {row['grade']}\n" for row in rows))
    file = write_rows(tmp_path / "rows.jsonl", [{k: v for k, v in row.items() if k != "grade"} for row in rows])
    ingest([file], tmp_path / "joined", qrels=[qrels], options=options())
    assert shards(Dataset.open(tmp_path / "joined")) == shards(plain)
    write_rows(file, [{k: v for k, v in row.items() if k not in {"grade", "fresh"}} | {"fresh": -1} for row in rows])
    with refused(DataRejected, "rows.jsonl:1", -1, "negative_grades zero"):
        ingest([file], tmp_path / "refused", qrels=[qrels], options=options())


def test_names_that_a_metric_could_not_spell_are_refused():
    """Beside those of malformed/cases.toml."""
    for name in ("a b", "a:b", "", "Weight"):
        with refused(InputError, "goals", repr(name)):
            ReadOptions(goals=(name,))


def test_a_goal_may_have_any_name_that_is_not_reserved(tmp_path):
    names = ("bought", "source", "width", "values", "digest", "high", "document", "place")  # some are ours inside
    rows = [row | dict.fromkeys(names, row["bought"]) for row in goal_rows()]
    ingest([write_rows(tmp_path / "a.csv", rows)], tmp_path / "out", options=options(*names, ignore=("fresh",)))
    plain, *others = Dataset.open(tmp_path / "out").rows("train", names).columns
    assert all(other.equals(plain) for other in others)


# ---- times ------------------------------------------------------------------------------------------------------------

MOMENTS = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30))
ZONES = st.integers(-23 * 60 - 59, 23 * 60 + 59).map(lambda minutes: timezone(timedelta(minutes=minutes)))


def microseconds(moment):
    return (moment - EPOCH) // timedelta(microseconds=1)


@given(MOMENTS, ZONES, st.sampled_from("T "), st.sampled_from(["", " ", "\t"]))
@settings(max_examples=100, deadline=None)
def test_text_is_read_as_datetime_reads_it(moment, zone, between, blank):
    zoned = moment.replace(tzinfo=UTC)
    texts = {
        moment.isoformat(between): microseconds(zoned),
        moment.isoformat(between) + "Z": microseconds(zoned),
        moment.replace(tzinfo=zone).isoformat(between): microseconds(moment.replace(tzinfo=zone)),
        moment.date().isoformat(): microseconds(datetime.combine(moment.date(), datetime.min.time(), UTC)),
        str(microseconds(zoned) // 10**6): microseconds(zoned) // 10**6 * 10**6,
        iso(microseconds(zoned)): microseconds(zoned),
    }
    times, good = times_of(pa.array([blank + text + blank for text in texts]))
    assert good.all(), list(texts)
    assert times.tolist() == list(texts.values())


@given(st.lists(MOMENTS, max_size=5))
@settings(max_examples=50, deadline=None)
def test_columns_with_a_type_mean_the_same(moments):
    wanted = [microseconds(moment.replace(tzinfo=UTC)) for moment in moments]
    for unit, step in (("s", 10**6), ("ms", 10**3), ("us", 1)):
        for kind in (pa.timestamp(unit), pa.timestamp(unit, "Europe/Oslo")):
            counts = pa.array([time // step for time in wanted], pa.int64())
            times, good = times_of(counts.cast(pa.timestamp(unit)).view(kind))
            assert good.all()
            assert times.tolist() == [time // step * step for time in wanted]
    near = [max(-(2**62) // 1000, min(time, 2**62 // 1000)) for time in wanted]
    times, good = times_of(pa.array([time * 1000 + 999 for time in near], pa.int64()).cast(pa.timestamp("ns")))
    assert good.all()
    assert times.tolist() == near
    day = 86400 * 10**6
    for kind in (pa.date32(), pa.date64()):
        assert times_of(pa.array([m.date() for m in moments], kind))[0].tolist() == [t // day * day for t in wanted]
    for kind in (pa.int64(), pa.string(), pa.large_string(), pa.string_view()):
        seconds = pa.array([time // 10**6 for time in wanted], pa.int64()).cast(kind)
        assert times_of(seconds)[0].tolist() == [time // 10**6 * 10**6 for time in wanted]


NO_TIMES = ["", None, "yesterday", "2026-13-01", "2026-02-30", "2026-1-1", "20260101T0800", "01.02.2026", "1.5", "nan"]
NO_TIMES += ["2026-01-01T24:00:00", "2026-01-01T08", "2026-01-01T08:00:60", "2026-01-01T08:00:00+25:00", "0000-01-01"]
NO_TIMES += ["1700000000000", "1e9", "--5", "9999-12-31T23:00:00-02:00", "0001-01-01T00:00:00+02:00"]


def test_what_is_no_time_is_distinguished_from_its_neighbours():
    texts = [text for bad in NO_TIMES for text in (bad, "5", "2026-01-01T00:00:01Z")]
    times, good = times_of(pa.array(texts))
    assert good.tolist() == [False, True, True] * len(NO_TIMES)
    assert (times[::3] == 0).all()


def test_counts_that_are_no_seconds_are_no_times():
    for column in (
        pa.array([1_700_000_000_000], pa.int64()),
        pa.array([2**64 - 1], pa.uint64()),
        pa.array([2**63 - 1], pa.int64()),
        pa.array([-(2**63)], pa.int64()),
        pa.array([2**63 - 1], pa.int64()).cast(pa.timestamp("us")),
        pa.array([None], pa.date32()),
        pa.array([None], pa.uint64()),
    ):
        assert times_of(column)[1].tolist() == [False]
    assert times_of(pa.array([5, 2**64 - 1, 7], pa.uint64()))[0].tolist() == [5 * 10**6, 0, 7 * 10**6]
    last = 253402300799
    assert times_of(pa.array([last, last + 1]))[1].tolist() == [True, False]


@pytest.mark.parametrize(
    ("column", "facts"),
    [
        ([date(2026, 1, 1), None], ("row 2", "time")),
        ([1, 10**12], ("row 2", "time", "1000000000000")),
        ([1.5, 2.5], ("ISO", "type")),
    ],
)
def test_what_is_no_time_in_parquet_is_named(tmp_path, column, facts):
    pq.write_table(
        pa.table({"qid": ["a", "a"], "grade": [1, 1], "x": [2.0, 2.0], "when": column}), tmp_path / "a.parquet"
    )
    with refused((MalformedRow, DataRejected), "a.parquet", "'when'", *facts):
        list(open_source(tmp_path / "a.parquet", options=ReadOptions(time_column="when")).batches())


def test_json_lines_have_times_as_text_or_as_seconds(tmp_path):
    file, line = tmp_path / "in.jsonl", '{{"qid": "a", "when": {}, "grade": 1, "x": 2}}\n'
    file.write_text(line.format(7) + line.format('"1970-01-01T00:00:08Z"'))
    with refused(InputError, "'grade'", "reserved"):
        open_source(file, options=ReadOptions(time_column="grade"))
    read = ReadOptions(time_column="when")
    times = np.concatenate([batch.extras["time"] for batch in open_source(file, options=read).batches()])
    assert times.tolist() == [7_000_000, 8_000_000]
    for bad, found in (
        ('"soon"', "'soon'"),
        ("1.5", "'1.5'"),
        ("null", "nothing"),
        ("1700000000000", "'1700000000000'"),
    ):
        file.write_text(line.format(7) + line.format(bad))
        with refused(MalformedLine, "in.jsonl:2", "time", found):
            list(open_source(file, options=read).batches())
