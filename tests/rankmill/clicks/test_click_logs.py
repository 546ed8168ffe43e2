"""Click logs are read to the same result lists from every format, in any order of rows and files, and bad ones are
refused."""

from __future__ import annotations

import gzip
import json
import math
import random
from collections import Counter
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from pyarrow import feather

from rankmill.clicks import sorted_log
from rankmill.clicks.models.counts import count_clicks
from rankmill.clicks.options import ClickLogOptions
from rankmill.clicks.read_log import open_click_log
from rankmill.clicks.result_lists import LogBlock, LogInMemory
from rankmill.clicks.sorted_log import BYTES_A_ROW, RESIDENT, assemble, log_rows, sort_rows
from rankmill.foundation.errors import DataRejected, InputError, MalformedLine, MalformedRow
from rankmill.pipeline.group.query_splits import hash_ids
from rankmill.pipeline.read.batch import Quarantine
from tests import naive_clicks as naive
from tests.refusals import refused, unnamed


def some_rows(sessions: int = 300, seed: int = 0, *, dwell: bool = True) -> list[dict]:
    """Rows of lists of 1 to 6 documents, some of them shown again later, some with a second row for the click."""
    rng = random.Random(seed)
    rows = []
    for number in range(sessions):
        qid, policy = f"q{rng.choice((1, 2, 3, 10, 11))}", rng.choice(("old", "new"))
        for time in range(rng.choice((1, 1, 2))):
            documents = rng.sample([f"d{d}" for d in range(12)], rng.randint(2, 6))
            for position, doc_id in enumerate(documents, 1):
                row = {"session": f"s{number}", "qid": qid, "doc_id": doc_id, "position": position, "clicked": 0}
                row |= {"time": 1000 * number + time, "policy": policy}
                if dwell:
                    row["dwell"] = None
                rows.append(row)
                if rng.random() < 0.3:
                    rows.append(row | {"clicked": 1} | ({"dwell": rng.random()} if dwell else {}))
    rng.shuffle(rows)
    return rows


def write(path: Path, rows: list[dict]) -> Path:
    frame = pl.DataFrame(rows, infer_schema_length=None)
    match path.name.split(".", 1)[1]:
        case "csv":
            frame.write_csv(path)
        case "tsv":
            frame.write_csv(path, separator="\t")
        case "parquet":
            frame.write_parquet(path, row_group_size=100)
        case "arrow":
            feather.write_feather(frame.to_arrow(), path)
        case "jsonl":
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        case "csv.gz":
            path.write_bytes(gzip.compress(frame.write_csv().encode()))
    return path


def contents(blocks: list[LogBlock]) -> list:
    """All that is in the blocks, comparable."""
    return [
        (
            [array.tolist() for array in block.lists],
            block.queries.to_pylist(),
            block.documents.to_pylist(),
            block.document_start.tolist(),
            {name: [None if math.isnan(x) else x for x in column] for name, column in block.numbers.items()},
        )
        for block in blocks
    ]


def read(paths: list[Path], **options) -> list:
    with open_click_log(paths, ClickLogOptions(**options)) as log:
        return [log.policies, contents(list(log.blocks()))]


def lists_of(blocks: list[LogBlock], policies: tuple[str, ...]) -> Counter:
    """The lists as (query, policy, impressions)."""
    found = []
    for block in blocks:
        lists = block.lists
        queries, documents = block.queries.to_pylist(), block.documents.to_pylist()
        dwell = block.numbers.get("dwell", np.full(len(lists.rank), np.nan)).tolist()
        for k, query in enumerate(lists.query.tolist()):
            rows = range(lists.start[k], lists.start[k + 1])
            shown = tuple(
                (
                    int(lists.rank[i]),
                    documents[lists.document[i]],
                    int(lists.clicked[i]),
                    None if math.isnan(dwell[i]) else dwell[i],
                )
                for i in rows
            )
            found.append((queries[query], policies[lists.policy[k]], shown))
    return Counter(found)


def test_lists_are_those_of_the_slow_twin(tmp_path):
    rows = some_rows()
    expected, _ = naive.result_lists(rows, ("session", "qid", "time"))
    with open_click_log([write(tmp_path / "log.parquet", rows)]) as log:
        blocks, totals = list(log.blocks()), log.totals
        assert log.policies == ("new", "old")
        assert contents(list(log.blocks())) == contents(blocks)  # it can be read again
    assert lists_of(blocks, ("new", "old")) == Counter((key[1], *value) for key, value in expected.items())
    assert totals.rows == len(rows)
    assert totals.impressions == totals.rows - totals.merged == sum(len(shown) for _, shown in expected.values())
    assert totals.clicks == sum(clicked for _, shown in expected.values() for _, _, clicked, _ in shown)
    assert (totals.lists, totals.deepest) == (len(expected), 6)
    sessions = [h for block in blocks for h in block.lists.session.tolist()]
    assert len(set(sessions)) == 300
    for block in blocks:
        for q in range(len(block.queries)):
            ids = block.documents.to_pylist()[block.document_start[q] : block.document_start[q + 1]]
            assert ids == sorted(set(ids), key=str.encode)
        order = list(zip(block.lists.query.tolist(), block.lists.session.tolist(), strict=True))
        assert order == sorted(order)


def test_every_format_and_order_gives_the_same_lists(tmp_path):
    rows = some_rows()
    expected = read([write(tmp_path / "log.csv", rows)])
    for name in ("a.tsv", "b.parquet", "c.arrow", "d.jsonl", "e.csv.gz"):
        assert read([write(tmp_path / name, rows)]) == expected, name
    folder = tmp_path / "days"
    folder.mkdir()
    shuffled = rows.copy()
    random.Random(1).shuffle(shuffled)
    for day in range(3):
        write(folder / f"{'cab'[day]}.{('csv', 'parquet', 'jsonl')[day]}", shuffled[day::3])
    assert read([folder]) == expected
    assert read([str(folder / "*")], memory="512MB") == expected


def test_memory_decides_which_queries_are_together_but_no_result(tmp_path):
    rows = some_rows(dwell=False)
    cells = {name: [row[name] for row in rows] for name in ("qid", "doc_id", "session", "time", "position", "clicked")}
    qid, doc_id, session = (pa.array(cells[name], pa.string()) for name in ("qid", "doc_id", "session"))
    columns = {"within": pa.array(cells["time"]), "policy": pa.array([0] * len(rows), pa.int32())}
    columns |= {"position": pa.array(cells["position"], pa.int32()), "clicked": pa.array(cells["clicked"], pa.uint8())}
    batch = log_rows((), qid=qid, doc_id=doc_id, session=hash_ids(session), **columns)

    def blocks(memory: int, name: str) -> list[LogBlock]:
        folder = tmp_path / name
        folder.mkdir()
        ordered = sort_rows((batch[low : low + 97] for low in range(0, len(rows), 97)), (), folder, memory)
        return list(assemble(ordered, folder, ("",), (), 0, memory).blocks())

    def counts(found: list[LogBlock]) -> list:
        (counts,) = count_clicks(LogInMemory(tuple(found)), 6)
        return [getattr(counts, column).tolist() for column in ("document", "rank", "last", "shown", "clicked")]

    whole = blocks(RESIDENT + 10**9, "whole")
    shown = {(row["qid"], row["session"], row["time"], row["position"]) for row in rows}
    largest = max(Counter(qid for qid, *_ in shown).values())
    assert counts(blocks(RESIDENT + BYTES_A_ROW * largest, "divided")) == counts(whole)
    with refused(InputError, "query", f"{largest:,}", "memory"):
        blocks(RESIDENT + BYTES_A_ROW * (largest - 1), "too little")


def test_a_query_may_fill_many_batches_of_sorted_rows(tmp_path, monkeypatch):
    rows = some_rows()
    expected, _ = naive.result_lists(rows, ("session", "qid", "time"))
    monkeypatch.setattr(sorted_log, "_BATCH_ROWS", 64)
    monkeypatch.setattr(sorted_log, "_BLOCK_ROWS", 100)
    with open_click_log([write(tmp_path / "log.parquet", rows)]) as log:
        blocks = list(log.blocks())
        assert lists_of(blocks, log.policies) == Counter((key[1], *value) for key, value in expected.items())
    assert [len(block.queries) for block in blocks] == [1] * 5


LINES = "session,qid,doc_id,position,clicked\ns1,q,a,1,0\ns1,q,b,2,1\n"


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("session,qid,doc_id,position,clicked\n", ("log.csv", "no rows")),
        (
            "session,qid,doc_id,clicked\ns,q,a,1\n",
            ("log.csv", "'position'", "columns", "session, qid, doc_id, clicked"),
        ),
        ("qid,doc_id,position,clicked\nq,a,1,0\n", ("log.csv", "session", "list", "time", "columns")),
        ("session,qid,doc_id,pos,rank,clicked\ns,q,a,1,1,0\n", ("log.csv", "position", "'pos'", "'rank'")),
        (LINES + "s2,q,a,1,0\ns2,q,b,1,0\n", ("'q'", "'a'", "'b'", "position 1", "list=NAME")),
        (LINES + "s2,q,a,1,0\ns2,q,a,2,0\n", ("'q'", "'a'", "positions 1 and 2", "time=NAME")),
        ("session,time,qid,doc_id,position,clicked\ns,1,q,a,1,0\ns,2,q,b,2,1\n", ("log.csv", "times", "time=")),
    ],
)
def test_bad_logs_are_refused(tmp_path, text, facts):
    path = tmp_path / "log.csv"
    path.write_text(text)
    with refused(DataRejected, *facts), open_click_log([path]):
        pass


BAD_ROWS = {
    "s2,q,a,0,0": (8, "position", "0"),
    "s2,q,a,,0": (8, "position", "nothing", "clicked or not"),
    "s2,q,a,1.5,0": (8, "position", "1.5"),
    "s2,q,a,top,0": (8, "position", "top"),
    "s2,q,a,1,2": (10, "clicked", "2"),
    "s2,q,a,1,yes": (10, "yes"),
    "s2,,a,1,0": (4, "query"),
    ",q,a,1,0": (1, "session"),
    "s2,q,,1,0": (6, "document"),
    "s2,q,a,1": (1, "4 cells", "5 cells"),
}


def test_bad_rows_have_a_place_and_can_be_left_out(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text(LINES + "\n".join(BAD_ROWS) + "\n")
    with refused(MalformedLine, f"{path}:4:8", "position", "'0'"), open_click_log([path]):
        pass
    quarantine = Quarantine(len(BAD_ROWS))
    with open_click_log([path], ClickLogOptions(max_rejects=len(BAD_ROWS)), quarantine=quarantine) as log:
        assert log.totals.rows == 2
    for (row, (column, *facts)), reject in zip(BAD_ROWS.items(), quarantine.rejects, strict=True):
        assert (reject.text, reject.column, unnamed(reject.reason, *facts)) == (row, column, [])
    typed = write(tmp_path / "log.parquet", [{"session": "s", "qid": "q", "doc_id": "a", "position": 0, "clicked": 0}])
    with refused(MalformedRow, f"{typed}", "row 1", "'position'", 0), open_click_log([typed]):
        pass


def test_contradictory_lists_count_as_malformed_rows(tmp_path):
    rows = some_rows(60)
    for row in rows:
        row["time"] = 0  # lists of one session that were shown at different times contradict each other
    expected, left_out = naive.result_lists(rows, ("session", "qid", "time"))
    assert left_out > 3
    path = write(tmp_path / "log.parquet", rows)
    with open_click_log([path], ClickLogOptions(max_rejects=left_out)) as log:
        assert log.totals.left_out == left_out
        assert lists_of(list(log.blocks()), log.policies) == Counter(
            (key[1], *value) for key, value in expected.items()
        )
    fewer = ClickLogOptions(max_rejects=left_out - 1)
    with refused(DataRejected, "contradicts", "max_rejects", left_out - 1), open_click_log([path], fewer):
        pass


def test_columns_have_usual_or_given_names(tmp_path):
    expected = read([write(tmp_path / "log.csv", some_rows())])
    names = {
        "session": "visit_id",
        "qid": "Query",
        "doc_id": "url",
        "position": "rank",
        "clicked": "is_clicked",
        "time": "timestamp",
    }
    renamed = [{names.get(name, name): value for name, value in row.items()} | {"x": 1} for row in some_rows()]
    reported: list[str] = []
    path = write(tmp_path / "renamed.csv", renamed)
    with open_click_log([path], say=reported.append) as log:
        assert contents(list(log.blocks())) == expected[1]
    assert "session from 'visit_id'" in reported[0]
    odd = [{"p" if name == "rank" else name: value for name, value in row.items()} for row in renamed]
    assert read([write(tmp_path / "odd.csv", odd)], columns={"position": "p"}) == expected
    with refused(InputError, "odd.csv", "'q'", "position"):
        read([tmp_path / "odd.csv"], columns={"position": "q"})
    with refused(InputError, "'rank'", "columns"):
        ClickLogOptions(columns={"rank": "p"})


def test_lists_without_sessions(tmp_path):
    rows = some_rows(dwell=False)
    with_list = [
        {k: v for k, v in row.items() if k not in {"session", "time"}} | {"list": f"{row['session']}{row['time']}"}
        for row in rows
    ]
    without = [{k: v for k, v in row.items() if k != "session"} for row in rows]
    for name, of_lists, alike in (("a.csv", with_list, ("qid", "list")), ("b.csv", without, ("qid", "time"))):
        expected, _ = naive.result_lists(of_lists, alike)
        with open_click_log([write(tmp_path / name, of_lists)]) as log:
            blocks = list(log.blocks())
            assert lists_of(blocks, log.policies) == Counter((key[0], *value) for key, value in expected.items())
            assert len({h for block in blocks for h in block.lists.session.tolist()}) == len(expected)


def test_words_for_clicks(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text(LINES.replace(",0\n", ",False\n").replace(",1\n", ",True\n"))
    lines = tmp_path / "log.jsonl"
    rows = [
        {"session": "s1", "qid": "q", "doc_id": d, "position": p, "clicked": p == 2} for d, p in (("a", 1), ("b", 2))
    ]
    write(lines, rows)
    plain = tmp_path / "plain.csv"
    plain.write_text(LINES)
    assert read([path]) == read([lines]) == read([plain])


def test_a_log_is_a_table(tmp_path):
    path = tmp_path / "log.txt"
    path.write_text(LINES)
    with refused(InputError, "log.txt", "format"), open_click_log([path]):
        pass
    assert read([path], format="csv")
    other = tmp_path / "other.csv"
    other.write_text(LINES.replace("session", "visit"))
    with refused(DataRejected, "session", "'visit'"), open_click_log([path, other], ClickLogOptions(format="csv")):
        pass


UBI_QUERIES = [
    {
        "query_id": "1",
        "client_id": "c1",
        "user_query": "lamp",
        "query_response_hit_ids": ["a", "b", "c"],
        "application": "x",
    },
    {"query_id": "2", "client_id": "c1", "user_query": "lamp", "query_response_hit_ids": ["b", "a"]},
    {"query_id": "3", "client_id": None, "user_query": "sofa", "query_response_hit_ids": []},
    {"query_id": "4", "client_id": "c2", "user_query": "", "query_response_hit_ids": ["a"]},
]
UBI_EVENTS = [
    {"query_id": query, "action_name": action, "event_attributes": {"object": {"object_id": doc_id}, "position": {"ordinal": k, "x": 1}}}
    for query, action, doc_id, k in (
        ("1", "impression", "a", 1), ("1", "click", "b", 2), ("1", "click", "b", 2), ("2", "purchase", "a", 2),
        ("2", "click", "z", 9),
        ("3", "impression", "s", 1), ("3", "impression", "t", 2), ("3", "click", "t", 2), ("9", "click", "a", 1),
    )
]  # fmt: skip
UBI_LISTS = [
    ("lamp", ((1, "a", 0, 0.0), (2, "b", 1, 0.0), (3, "c", 0, 0.0))),
    ("lamp", ((1, "b", 0, 0.0), (2, "a", 1, 1.0))),
    ("sofa", ((1, "s", 0, 0.0), (2, "t", 1, 0.0))),
]


@pytest.mark.parametrize("suffix", ["jsonl", "parquet", "csv"])
def test_logs_of_ubi(tmp_path, suffix):
    for name, rows in (("ubi_queries", UBI_QUERIES), ("ubi_events", UBI_EVENTS)):
        shown = [
            {
                key: json.dumps(value) if suffix == "csv" and isinstance(value, (dict, list)) else value
                for key, value in row.items()
            }
            for row in rows
        ]
        write(tmp_path / f"{name}.{suffix}", shown)
    reported: list[str] = []
    with open_click_log([tmp_path], say=reported.append) as log:
        blocks = list(log.blocks())
    found = []
    for block in blocks:
        documents, queries = block.documents.to_pylist(), block.queries.to_pylist()
        for k, query in enumerate(block.lists.query.tolist()):
            rows = range(block.lists.start[k], block.lists.start[k + 1])
            columns = (block.lists.rank, block.lists.document, block.lists.clicked, block.numbers["converted"])
            cells = [[column[i].item() for column in columns] for i in rows]
            found.append(
                (queries[query], tuple((rank, documents[d], clicked, sold) for rank, d, clicked, sold in cells))
            )
    assert sorted(found) == sorted(UBI_LISTS)
    assert len({session for block in blocks for session in block.lists.session.tolist()}) == 2
    assert "1 queries without text" in reported[0]


def test_bad_logs_of_ubi(tmp_path):
    queries = write(tmp_path / "ubi_queries.jsonl", UBI_QUERIES)
    with refused(InputError, "ubi_queries.jsonl", "ubi_events*"), open_click_log([queries]):
        pass
    events = write(tmp_path / "ubi_events.parquet", [{"query_id": "1", "action_name": "click"}])
    with refused(DataRejected, "ubi_events.parquet", "'event_attributes'"), open_click_log([queries, events]):
        pass
    other = tmp_path / "log.csv"
    other.write_text(LINES)
    with refused(InputError, "log.csv", "ubi_queries*"), open_click_log([queries, other]):
        pass
    broken = tmp_path / "ubi_events.jsonl"
    broken.write_text('{"query_id": 1,\n')
    with refused(DataRejected, "UBI"), open_click_log([queries, broken]):
        pass


@pytest.mark.slow
def test_ids_that_the_sort_cannot_hold_are_said_in_one_line(tmp_path):
    wide = "x" * 500
    lines = [f"{wide}{i // 5 % 200},{wide}{i},{i % 5 + 1},0,s{i // 5}" for i in range(120_000)]
    (tmp_path / "log.csv").write_text("\n".join(["qid,doc_id,position,clicked,session", *lines]))
    with refused(InputError, "memory"), open_click_log([tmp_path / "log.csv"], ClickLogOptions(memory=512 * 10**6)):
        pass
    with open_click_log([tmp_path / "log.csv"], ClickLogOptions(memory=4 * 10**9)) as log:
        assert log.totals.rows == 120_000
