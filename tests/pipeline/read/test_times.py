"""Times: every way to write one gives the same microsecond, and a query has the latest of its rows."""

import random
from datetime import UTC, date, datetime, timedelta, timezone

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given, settings
from hypothesis import strategies as st

from rankmill.foundation.errors import DataRejected, InputError, MalformedLine, MalformedRow
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.pipeline.ingest import ingest
from rankmill.pipeline.options import IngestOptions, ReadOptions
from rankmill.pipeline.read.open_source import open_source
from rankmill.pipeline.read.times import iso, times_of
from tests.refusals import refused
from tests.written import write_rows

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
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


# ---- through a dataset ---------------------------------------------------------------------------------------------


def judgments(n, seed):
    rng = random.Random(seed)
    return [
        {
            "qid": f"q{rng.randrange(n // 6)}",
            "doc_id": f"d{row}",
            "grade": rng.randrange(3),
            "seen": EPOCH + timedelta(microseconds=rng.randrange(10**15)),
            "x": rng.random(),
        }
        for row in range(n)
    ]


def times_in(dataset):
    found = {}
    for shard in dataset.manifest.shards:
        table = pq.read_table(dataset.queries_path(shard))
        assert table.schema.field("time").type == pa.timestamp("us", "UTC")
        found |= dict(zip(table["qid"].to_pylist(), table["time"].to_pylist(), strict=True))
    return found


def test_a_query_has_the_latest_time_of_its_rows_whatever_the_file(tmp_path):
    rows = judgments(120, 1)
    latest = {}
    for row in rows:
        latest[row["qid"]] = max(latest.get(row["qid"], EPOCH), row["seen"])
    options = IngestOptions(buckets=4, read=ReadOptions(time_column="seen"))
    seen = set()
    for number, suffix in enumerate(["csv", "parquet", "jsonl"]):
        out = tmp_path / f"out-{suffix}"
        shuffled = random.Random(number).sample(rows, len(rows))
        files = [write_rows(tmp_path / f"{part}.{suffix}", shuffled[part::2]) for part in range(2)]
        manifest = ingest(files, out, options=options).manifest
        dataset = Dataset.open(out)
        assert times_in(dataset) == latest
        assert dataset.feature_names == ("x",)
        assert dataset.optional_columns == ()
        assert manifest.columns == ["time"]
        assert manifest.meaning.time_column == "seen"
        assert pq.read_schema(dataset.features_path(manifest.shards[0])).names == ["qid", "doc_id", "grade", "x"]
        seen.add(dataset.digest)
    assert len(seen) == 1


def test_bad_times_have_a_place(tmp_path):
    options = ReadOptions(time_column="when")
    text = tmp_path / "in.csv"
    text.write_text("qid,when,grade,x\na,2026-01-01,1,2\na,2026-02-30,1,2\n")
    with refused(MalformedLine, "in.csv:3:3", "time", "'2026-02-30'"):
        list(open_source(text, options=options).batches())
    table = tmp_path / "in.parquet"
    columns = {"qid": ["a", "a"], "grade": [1, 1], "x": [2.0, 2.0]}
    pq.write_table(pa.table(columns | {"when": [date(2026, 1, 1), None]}), table)
    with refused(MalformedRow, "row 2", "'when'", "time"):
        list(open_source(table, options=options).batches())
    pq.write_table(pa.table(columns | {"when": [1, 10**12]}), table)
    with refused(MalformedRow, "row 2", "'when'", "time", "1000000000000"):
        list(open_source(table, options=options).batches())
    pq.write_table(pa.table(columns | {"when": [1.5, 2.5]}), table)
    with refused(DataRejected, "'when'", "ISO", "type"):
        open_source(table, options=options)
    with refused(DataRejected, "'wen'", "time_column", "'when'"):
        open_source(text, options=ReadOptions(time_column="wen"))
    with refused(InputError, "'grade'", "reserved"):
        open_source(text, options=ReadOptions(time_column="grade"))


def test_json_lines_have_times_as_text_or_as_seconds(tmp_path):
    file = tmp_path / "in.jsonl"
    file.write_text(
        '{"qid": "a", "when": 7, "grade": 1, "x": 2}\n{"qid": "b", "when": "1970-01-01T00:00:08Z", "grade": 1, "x": 2}\n'
    )
    options = ReadOptions(time_column="when")
    times = np.concatenate([batch.extras["time"] for batch in open_source(file, options=options).batches()])
    assert times.tolist() == [7_000_000, 8_000_000]
    for bad, found in (
        ('"soon"', "'soon'"),
        ("1.5", "'1.5'"),
        ("null", "nothing"),
        ("1700000000000", "'1700000000000'"),
    ):
        file.write_text(
            f'{{"qid": "a", "when": 7, "grade": 1, "x": 2}}\n{{"qid": "a", "when": {bad}, "grade": 1, "x": 2}}\n'
        )
        with refused(MalformedLine, "in.jsonl:2", "time", found):
            list(open_source(file, options=options).batches())


def test_rows_with_bad_times_are_quarantined(tmp_path):
    file = tmp_path / "in.csv"
    file.write_text("qid,when,grade,x\na,2026-01-01,1,2\na,soon,1,2\nb,7,0,1\n")
    options = IngestOptions(read=ReadOptions(time_column="when"), max_rejects=1)
    report = ingest([file], tmp_path / "out", options=options)
    assert (report.manifest.rows, report.manifest.rejected_rows) == (2, 1)
    assert times_in(Dataset.open(tmp_path / "out")) == {
        "a": datetime(2026, 1, 1, tzinfo=UTC),
        "b": EPOCH + timedelta(seconds=7),
    }
