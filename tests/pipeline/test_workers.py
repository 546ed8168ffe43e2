"""What several threads make of a list is what one makes of it."""

import threading
import time

import joblib
import numpy as np
import pytest

from rankmill.foundation.errors import DataRejected, MalformedLine, TooManyRejects
from rankmill.foundation.storage.staging import staging_folder
from rankmill.foundation.threads import ahead, in_order
from rankmill.pipeline.ingest.read_rows import read_all
from rankmill.pipeline.options import ReadOptions
from rankmill.pipeline.read import blocks as blocks_module
from rankmill.pipeline.read import letor as letor_module
from rankmill.pipeline.read.batch import Quarantine
from rankmill.pipeline.read.blocks import LineNumbers
from rankmill.pipeline.read.delimited import DelimitedSource
from rankmill.pipeline.read.letor import LetorSource
from tests.waiting import LIMIT


@pytest.mark.parametrize("threads", [1, 5])
def test_every_item_is_worked_on_once(threads):
    seen = []
    assert in_order(range(200), seen.append, threads) == []
    assert sorted(seen) == list(range(200))


@pytest.mark.parametrize("threads", [1, 5])
def test_the_first_failure_is_that_of_the_first_item_that_fails(threads):
    def work(item):
        if item in {7, 8, 9}:
            time.sleep((9 - item) * 0.01)  # the later one fails earlier
            raise ValueError(item)

    failures = in_order(range(100), work, threads)
    assert (failures[0].number, str(failures[0].error)) == (7, "7")


@pytest.mark.parametrize("backend", ["loky", "sequential"])
def test_threads_are_threads_whatever_the_caller_asked_of_joblib(backend):
    seen = []
    with joblib.parallel_config(backend):
        assert in_order(range(20), seen.append, 3) == []
    assert sorted(seen) == list(range(20))


def test_workers_within_workers_do_all_items_alone():
    def outer(_):
        seen = []
        assert in_order(range(20), seen.append, 3) == []
        return seen

    found = joblib.Parallel(n_jobs=2, require="sharedmem")(joblib.delayed(outer)(k) for k in range(3))
    assert found == [list(range(20))] * 3


def test_drawing_an_item_may_fail():
    def items():
        yield 1
        raise DataRejected("torn")

    failures = in_order(items(), lambda _: None, 3)
    assert [(f.number, str(f.error)) for f in failures] == [(1, "torn")]


def test_lines_are_numbered_whichever_thread_counts_first():
    numbers = LineNumbers()
    found = []
    waiting = threading.Thread(target=lambda: found.append(numbers.first_line(2)))
    waiting.start()
    numbers.report(1, 5)
    assert not found
    numbers.report(0, 3)
    waiting.join(LIMIT)
    assert found == [9]
    assert [numbers.first_line(number) for number in range(3)] == [1, 4, 9]


def text(rng, lines, bad=()):
    rows = [f"{rng.integers(3)} qid:{rng.integers(9)} 1:{rng.random():.4f} 2:{rng.integers(5)}\n" for _ in range(lines)]
    for line in bad:
        rows[line - 1] = f"1 qid:1 1:x{line}\n"
    return "".join(rows)


def rejects_and_error(paths, limit, threads, block_bytes):
    quarantine = Quarantine(limit)
    sources = [
        DelimitedSource(path, ",", ReadOptions(), quarantine)
        if path.suffix == ".csv"
        else LetorSource(path, ReadOptions(), quarantine)
        for path in paths
    ]
    message = ""
    try:
        read_all(
            sources, None, lambda *_: None, quarantine,
            threads=threads, block_bytes=block_bytes, advance=lambda *_: None,
        )  # fmt: skip
    except DataRejected as error:
        message = str(error)
    return [(r.source, r.line, r.column, r.reason, r.text) for r in quarantine.rejects], message


@pytest.mark.parametrize("limit", [0, 3, 7, 8])
def test_bad_rows_and_errors_are_those_of_one_thread(tmp_path, limit):
    rng = np.random.default_rng(5)
    paths = [tmp_path / name for name in ("a.txt", "b.txt", "c.txt")]
    for path, bad in zip(paths, [(3, 40, 41), (), (1, 2, 70, 99, 100)], strict=True):
        path.write_text(text(rng, 100, bad))
    paths[1].write_bytes(b"\xef\xbb\xbf" + paths[1].read_bytes())
    alone = rejects_and_error(paths, limit, 1, 1 << 20)
    assert len(alone[0]) == (0 if limit == 0 else min(limit + 1, 8))
    assert bool(alone[1]) == (limit < 8)
    for threads in (2, 4):
        for block_bytes in (64, 5000):
            assert rejects_and_error(paths, limit, threads, block_bytes) == alone
    with paths[2].open("ab") as file:
        file.write(b"1 qid:1 1:\xff\n")
    torn = {rejects_and_error(paths, 100, threads, 200)[1] for threads in (1, 2, 4) for _ in range(3)}
    assert torn == {
        f"{paths[2]}:101: not a text file: byte 0xFF is not UTF-8; convert the file to UTF-8, for example with: iconv -f cp1252 -t utf-8"
    }


@pytest.mark.parametrize("bad", ["x,q,1", "1,q"])
@pytest.mark.parametrize("limit", [1, 4])
def test_bad_rows_of_several_tables_are_listed_once(tmp_path, limit, bad):
    paths = [tmp_path / name for name in ("a.csv", "b.csv")]
    for path in paths:
        path.write_text("grade,qid,f1\n" + (f"1,q,1.{'0' * 150}\n" * 100 + f"{bad}\n") * 2)  # each line is a block
    for threads in (1, 3):
        found, message = rejects_and_error(paths, limit, threads, 1)
        expected = [(path.name, line) for path in paths for line in (102, 203)]
        assert [reject[:2] for reject in found] == expected[: limit + 1]
        assert ("more bad rows than" in message) == (limit < 4)


def test_blocks_after_a_long_line_are_no_longer_than_those_before(tmp_path):
    path, spare = tmp_path / "a.txt", []
    path.write_text("a line\n" * 50 + "#" * 10000 + "\n" + "a line\n" * 5000)
    sizes = []
    for block in blocks_module.unchecked_blocks(path, 100, spare):
        sizes.append(len(block.data))
        spare.append(block.data)
    assert 10000 < max(sizes) < 30000
    assert max(sizes[:3] + sizes[-10:]) <= 300


@pytest.mark.parametrize("grouped", [False, True])
def test_pieces_of_a_block_are_read_as_the_block_is(tmp_path, monkeypatch, grouped):
    rng = np.random.default_rng(7)
    lines = text(rng, 60, (3, 40, 41)).replace("qid:1 1:x40", "qid:1 1:1 # " + "long " * 2000).splitlines()
    lines = [line + " 7:1" * int(rng.integers(3) == 0) for line in lines]
    path = tmp_path / "a.txt"
    if grouped:
        lines = [" ".join(word for word in line.split(" ") if not word.startswith("qid:")) for line in lines]
        path.with_name("a.txt.query").write_text("7\n" * 8 + "4\n")
    path.write_text("\n".join(lines))

    def rows():
        quarantine = Quarantine(5)
        source = LetorSource(path, ReadOptions(), quarantine)
        found = [
            (qid, grade, *np.flatnonzero(values), *values[values != 0])
            for batch in source.batches()
            for qid, grade, values in zip(batch.qid.to_pylist(), batch.grade.tolist(), batch.values, strict=True)
        ]
        return found, quarantine.rejects

    whole = rows()
    assert len(whole[0]) + len(whole[1]) == 60
    for most in (1, 7, 59):
        monkeypatch.setattr(letor_module, "_MOST_LINES", most)
        assert rows() == whole


def test_an_error_in_the_first_part_wins_over_bad_rows_behind_it(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"1 qid:1 1:1 \0\n" + b"x\n" * 50)
    for threads in (1, 3):
        assert rejects_and_error([path], 10, threads, 16) == (
            [],
            f"{path}:1: not a text file: it has a NUL byte; give format if it is a table",
        )


def test_a_quarantine_forgets_what_comes_after_the_error(tmp_path):
    quarantine = Quarantine(1)
    path = tmp_path / "a.txt"
    for number in (2, 0):
        with quarantine.part(number):
            quarantine.add(MalformedLine(path, number + 1, 1, "x", "a grade"), 1, "x")
    assert quarantine.full
    with pytest.raises(TooManyRejects, match=r"a.txt:1:1"):
        quarantine.sort()
    quarantine.sort(parts=1)
    assert [reject.line for reject in quarantine.rejects] == [1]


def test_a_block_whose_lines_could_not_be_counted_blocks_no_thread(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("1 qid:1 1:1\n" * 3 + "x\n" + "1 qid:1 1:1\n" * 3)
    first, second, *_ = blocks_module.unchecked_blocks(tmp_path / "a.txt", 40)
    counted = blocks_module.count_lines

    def failing(text):
        raise MemoryError

    monkeypatch.setattr(blocks_module, "count_lines", failing)
    with pytest.raises(MemoryError):
        first.check()
    monkeypatch.setattr(blocks_module, "count_lines", counted)
    second.check()
    found = []
    asking = threading.Thread(target=lambda: found.append(second.first_line), daemon=True)
    asking.start()
    asking.join(LIMIT)
    assert found


def test_folders_that_an_ingest_makes_survive_a_power_failure(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr("rankmill.foundation.storage.staging.fsync_folder", synced.append)
    with staging_folder(tmp_path / "a" / "b" / "out"):
        assert set(synced) == {tmp_path, tmp_path / "a"}


def test_the_next_item_is_made_while_the_last_is_used_and_no_later_one():
    made = []

    def items():
        try:
            for i in range(5):
                made.append(i)
                yield i
            raise ValueError("no more")
        finally:
            made.append("closed")

    source = items()
    found = []

    def use(item):
        found.append(item)
        assert set(made) <= {*range(item + 2), "closed"}

    with pytest.raises(ValueError, match="no more"):
        list(map(use, ahead(source)))
    assert found == list(range(5))
    made.clear()
    source = items()
    taken = ahead(source)
    assert next(taken) == 0
    taken.close()
    source.close()  # which it could not while an item is made
    assert made == [0, 1, "closed"]
    assert list(ahead(iter([]))) == []
