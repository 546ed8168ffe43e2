"""What several threads make of a list is what one makes of it."""

import threading
import time

import numpy as np
import pytest

from pipeline.errors import DataRejected, MalformedLine, TooManyRejects
from pipeline.ingest import IngestOptions, ingest
from pipeline.ingest.reading import read_all
from pipeline.sources.batch import Quarantine, ReadOptions
from pipeline.sources.blocks import LineNumbers
from pipeline.sources.letor import LetorSource
from pipeline.workers import in_order


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_every_item_is_worked_on_once(threads):
    seen = []
    assert in_order(range(200), seen.append, threads) == []
    assert sorted(seen) == list(range(200))


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_the_first_failure_is_that_of_the_first_item_that_fails(threads):
    def work(item):
        if item in {7, 8, 9}:
            time.sleep((9 - item) * 0.01)  # the later one fails earlier
            raise ValueError(item)

    failures = in_order(range(100), work, threads)
    assert (failures[0].number, str(failures[0].error)) == (7, "7")


def test_drawing_an_item_may_fail():
    def items():
        yield 1
        raise DataRejected("torn")

    failures = in_order(items(), lambda _: None, 3)
    assert [(f.number, str(f.error)) for f in failures] == [(1, "torn")]


def test_lines_are_numbered_whoever_counts_first():
    numbers = LineNumbers()
    found = []
    waiting = threading.Thread(target=lambda: found.append(numbers.first_line(2)))
    waiting.start()
    numbers.report(1, 5)
    assert not found
    numbers.report(0, 3)
    waiting.join(5)
    assert found == [9]
    assert [numbers.first_line(number) for number in range(3)] == [1, 4, 9]


def text(rng, lines, bad=()):
    rows = [f"{rng.integers(3)} qid:{rng.integers(9)} 1:{rng.random():.4f} 2:{rng.integers(5)}\n" for _ in range(lines)]
    for line in bad:
        rows[line - 1] = f"1 qid:1 1:x{line}\n"
    return "".join(rows)


def rejects_and_error(paths, limit, threads, block_bytes):
    quarantine = Quarantine(limit)
    sources = [LetorSource(path, ReadOptions(), quarantine) for path in paths]
    message = ""
    try:
        read_all(
            sources, None, lambda *_: None, quarantine,
            threads=threads, block_bytes=block_bytes, advance=lambda *_: None,
        )  # fmt: skip
    except DataRejected as error:
        message = str(error)
    return [(r.source, r.line, r.column, r.reason, r.text) for r in quarantine.rejects], message


@pytest.mark.parametrize("limit", [0, 1, 3, 7, 8, 100])
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
        for block_bytes in (64, 300, 5000):
            assert rejects_and_error(paths, limit, threads, block_bytes) == alone
    with paths[2].open("ab") as file:
        file.write(b"1 qid:1 1:\xff\n")
    torn = {rejects_and_error(paths, 100, threads, 200)[1] for threads in (1, 2, 4) for _ in range(3)}
    assert torn == {f"{paths[2]}:101: not a text file: byte 0xFF is not UTF-8; convert the file to UTF-8"}


def test_an_error_in_the_first_part_wins_over_bad_rows_behind_it(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"1 qid:1 1:1 \0\n" + b"x\n" * 50)
    for threads in (1, 3):
        assert rejects_and_error([path], 10, threads, 16) == (
            [],
            f"{path}:1: not a text file: it has a NUL byte; give --format if it is a table",
        )


def test_a_quarantine_forgets_what_comes_after_the_error(tmp_path):
    quarantine = Quarantine(1)
    path = tmp_path / "a.txt"
    for number in (2, 0):
        with quarantine.part(number):
            quarantine.add(MalformedLine(path, number + 1, 1, "x", "a grade"), 1, "x")
    assert quarantine.full
    with pytest.raises(TooManyRejects, match=r"a.txt:1:1"):
        quarantine.settle()
    quarantine.settle(parts=1)
    assert [reject.line for reject in quarantine.rejects] == [1]


def test_the_dataset_does_not_depend_on_threads_or_memory(tmp_path):
    rng = np.random.default_rng(6)
    paths = [tmp_path / f"{number}.txt" for number in range(3)]
    for path in paths:
        path.write_text(text(rng, 400))
    digests = set()
    for threads, memory, block_bytes in ((1, 512, 1 << 20), (2, 512, 1000), (3, 4000, 200)):
        options = IngestOptions(
            shares={"train": 1.0}, threads=threads, memory=memory * 10**6, block_bytes=block_bytes, overwrite=True
        )
        digests.add(ingest(paths, tmp_path / "out", options=options).manifest.data_digest())
    assert len(digests) == 1
