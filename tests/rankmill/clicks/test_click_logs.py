"""Click logs are read to the same result lists from every format, in any order of rows and files, and bad ones are
refused."""

from __future__ import annotations

import gzip
import json
import random
from collections import Counter
from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from pyarrow import feather

from rankmill.clicks import sorted_log
from rankmill.clicks.models.counts import count_clicks
from rankmill.clicks.options import ClickLogOptions
from rankmill.clicks.read_log import open_click_log
from rankmill.clicks.result_lists import LogBlock, LogInMemory
from rankmill.clicks.sorted_log import BYTES_A_ROW, RESIDENT, ROWS, assemble, sort_rows
from rankmill.foundation.errors import DataRejected, InputError, MalformedLine, MalformedRow
from rankmill.pipeline.group.query_splits import hash_ids
from rankmill.pipeline.read.batch import Quarantine
from tests import naive_clicks as naive
from tests.refusals import refused, unnamed


def some_rows(sessions: int = 300, seed: int = 0) -> list[dict]:
    """Rows of lists of 1 to 6 documents, some of them shown again later, some with a second row for the click."""
    rng = random.Random(seed)
    rows = []
    for number in range(sessions):
        qid, policy = f"q{rng.choice((1, 2, 3, 10, 11))}", rng.choice(("old", "new"))
        for time in range(rng.choice((1, 1, 2))):
            documents = rng.sample([f"d{d}" for d in range(12)], rng.randint(2, 6))
            for position, doc_id in enumerate(documents, 1):
                row = {"session": f"s{number}", "qid": qid, "doc_id": doc_id, "position": position, "clicked": 0}
                row |= {"list": 1000 * number + time, "policy": policy}
                rows.append(row)
                if rng.random() < 0.3:
                    rows.append(row | {"clicked": 1})
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
        for k, query in enumerate(lists.query.tolist()):
            rows = range(lists.start[k], lists.start[k + 1])
            shown = tuple((int(lists.rank[i]), documents[lists.document[i]], int(lists.clicked[i])) for i in rows)
            found.append((queries[query], policies[lists.policy[k]], shown))
    return Counter(found)


def test_lists_are_those_of_the_slow_twin(tmp_path):
    rows = some_rows()
    expected, _ = naive.result_lists(rows, ("session", "qid", "list"))
    with open_click_log([write(tmp_path / "log.parquet", rows)]) as log:
        blocks = list(log.blocks())
        assert log.policies == ("new", "old")
        assert contents(list(log.blocks())) == contents(blocks)  # it can be read again
    assert lists_of(blocks, ("new", "old")) == Counter((key[1], *value) for key, value in expected.items())
    assert log.rows == len(rows)
    assert log.rows - log.merged == sum(len(shown) for _, shown in expected.values())
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
    rows = some_rows()
    cells = {name: [row[name] for row in rows] for name in ("qid", "doc_id", "position", "clicked")}
    session = pa.array([row["session"] for row in rows], pa.string())
    cells |= {"session": hash_ids(session), "within": [row["list"] for row in rows], "policy": [0] * len(rows)}
    batch = pa.record_batch([pa.array(cells[field.name], field.type) for field in ROWS], schema=ROWS)

    def blocks(memory: int, name: str) -> list[LogBlock]:
        folder = tmp_path / name
        folder.mkdir()
        ordered = sort_rows((batch[low : low + 97] for low in range(0, len(rows), 97)), folder, memory)
        return list(assemble(ordered, folder, ("",), 0, memory).blocks())

    def counts(found: list[LogBlock]) -> list:
        (counts,) = count_clicks(LogInMemory(tuple(found)), 6)
        return [getattr(counts, column).tolist() for column in ("document", "rank", "last", "shown", "clicked")]

    whole = blocks(RESIDENT + 10**9, "whole")
    largest = max(Counter(row["qid"] for row in rows).values())
    assert counts(blocks(RESIDENT + BYTES_A_ROW * largest, "divided")) == counts(whole)
    with refused(InputError, "query", f"{largest:,}", "memory"):
        blocks(RESIDENT + BYTES_A_ROW * (largest - 1), "too little")


def test_a_query_may_fill_many_batches_of_sorted_rows(tmp_path, monkeypatch):
    rows = some_rows()
    expected, _ = naive.result_lists(rows, ("session", "qid", "list"))
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
        (LINES + "s2,q,a,1,0\ns2,q,a,2,0\n", ("'q'", "'a'", "positions 1 and 2", "list=NAME")),
    ],
)
def test_bad_logs_are_refused(tmp_path, text, facts):
    path = tmp_path / "log.csv"
    path.write_text(text)
    with refused(DataRejected, *facts), open_click_log([path]):
        pass


BAD_ROWS = {
    "s2,q,a,0,0": (8, "position", "0"),
    "s2,q,a,,0": (8, "position", "nothing"),
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
        assert log.rows == 2
    for (row, (column, *facts)), reject in zip(BAD_ROWS.items(), quarantine.rejects, strict=True):
        assert (reject.text, reject.column, unnamed(reject.reason, *facts)) == (row, column, [])
    typed = write(tmp_path / "log.parquet", [{"session": "s", "qid": "q", "doc_id": "a", "position": 0, "clicked": 0}])
    with refused(MalformedRow, f"{typed}", "row 1", "'position'", 0), open_click_log([typed]):
        pass


def test_contradictory_lists_count_as_malformed_rows(tmp_path):
    rows = some_rows(60)
    for row in rows:
        row["list"] = 0  # the lists of one session contradict each other
    expected, left_out = naive.result_lists(rows, ("session", "qid", "list"))
    assert left_out > 3
    path = write(tmp_path / "log.parquet", rows)
    with open_click_log([path], ClickLogOptions(max_rejects=left_out)) as log:
        assert log.left_out == left_out
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
        "list": "serp_id",
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
    rows = [{name: value for name, value in row.items() if name != "session"} for row in some_rows()]
    expected, _ = naive.result_lists(rows, ("qid", "list"))
    with open_click_log([write(tmp_path / "a.csv", rows)]) as log:
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


def test_the_query_of_the_docs_makes_a_log_of_ubi(tmp_path, monkeypatch):
    queries = [
        {"query_id": "1", "client_id": "c1", "user_query": "lamp", "query_response_hit_ids": ["a", "b", "c"]},
        {"query_id": "2", "client_id": "c1", "user_query": "lamp", "query_response_hit_ids": ["b", "a"]},
        {"query_id": "3", "client_id": None, "user_query": "sofa", "query_response_hit_ids": ["a"]},
        {"query_id": "4", "client_id": "c2", "user_query": "", "query_response_hit_ids": ["a"]},
    ]
    events = [
        {"query_id": query, "action_name": action, "event_attributes": {"object": {"object_id": doc_id}}}
        for query, action, doc_id in (
            ("1", "impression", "a"), ("1", "click", "b"), ("1", "click", "b"), ("2", "purchase", "a"), ("9", "click", "a"),
        )
    ]  # fmt: skip
    page = (Path(__file__).parents[3] / "docs/clicks.md").read_text()
    monkeypatch.chdir(tmp_path)
    write(Path("ubi_queries.jsonl"), queries)
    write(Path("ubi_events.jsonl"), events)
    duckdb.execute(page.partition("```sql\n")[2].partition("```")[0])
    with open_click_log(["log.parquet"]) as log:
        found = lists_of(list(log.blocks()), log.policies)
    lamp = (((1, "a", 0), (2, "b", 1), (3, "c", 0)), ((1, "b", 0), (2, "a", 1)))
    assert found == Counter({("lamp", "", lamp[0]): 1, ("lamp", "", lamp[1]): 1, ("sofa", "", ((1, "a", 0),)): 1})


@pytest.mark.slow
def test_ids_that_the_sort_cannot_hold_are_said_in_one_line(tmp_path):
    wide = "x" * 500
    lines = [f"{wide}{i // 5 % 200},{wide}{i},{i % 5 + 1},0,s{i // 5}" for i in range(120_000)]
    (tmp_path / "log.csv").write_text("\n".join(["qid,doc_id,position,clicked,session", *lines]))
    with refused(InputError, "memory"), open_click_log([tmp_path / "log.csv"], ClickLogOptions(memory=512 * 10**6)):
        pass
    with open_click_log([tmp_path / "log.csv"], ClickLogOptions(memory=4 * 10**9)) as log:
        assert log.rows == 120_000
