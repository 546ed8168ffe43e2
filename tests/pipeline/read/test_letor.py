"""LETOR text beside what test_damaged_text compares with the slow reader and malformed/cases.toml says of messages."""

import bz2
import gzip
import random
from itertools import compress

import numpy as np
import pytest

from rankmill.foundation.errors import DataRejected, InputError, MalformedLine, TooManyRejects
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.pipeline.ingest import ingest
from rankmill.pipeline.options import IngestOptions, ReadOptions
from rankmill.pipeline.read.batch import Quarantine
from rankmill.pipeline.read.letor import LetorSource
from rankmill.pipeline.read.open_source import open_source
from rankmill.pipeline.read.trec_run import RunSource
from rankmill.scorer.rerank.candidate_sources import open_sources
from tests import naive
from tests.refusals import refused


def read(path, block_bytes=1 << 20, quarantine=None):
    """All rows of a file: grade, qid, doc_id, and the values that are not 0, by place."""
    rows = []
    for batch in LetorSource(path, ReadOptions(), quarantine).batches(block_bytes):
        doc_ids = [None] * len(batch) if batch.doc_id is None else batch.doc_id.to_pylist()
        for *keys, values in zip(batch.grade.tolist(), batch.qid.to_pylist(), doc_ids, batch.values, strict=True):
            rows.append((*keys, {f: float(values[f]) for f in np.flatnonzero(values)}))
    return rows


def test_a_million_short_lines_with_one_high_index_do_not_take_the_memory(tmp_path):
    path = tmp_path / "wide.txt"
    path.write_text("0 qid:1 65000:1\n" * 600)
    sizes = [batch.values.nbytes for batch in LetorSource(path, ReadOptions()).batches()]
    assert len(sizes) > 1
    assert max(sizes) <= 64 << 20


@pytest.mark.parametrize(("suffix", "packed"), [(".gz", gzip.compress), (".bz2", bz2.compress)])
def test_several_compressed_parts_are_one_text(tmp_path, suffix, packed):
    text = b"1 qid:7 1:0.5 2:1\n" * 50
    (tmp_path / f"a.txt{suffix}").write_bytes(packed(text[:500]) + packed(text[500:]))
    assert len(read(tmp_path / f"a.txt{suffix}", 100)) == 50


@pytest.mark.parametrize("seed", range(12))
def test_a_bad_row_leaves_no_trace_and_is_listed_in_the_order_of_the_file(tmp_path, seed):
    path, rng, third = tmp_path / "rows.txt", random.Random(seed), float(np.float32(0.30000001192092896))
    good = {
        "1 qid:1 1:1 # docid = a\n": (1, "1", "a", {0: 1.0}),
        "2 qid:2 1:0.5 3:0.30000001192092896\n": (2, "2", None, {0: 0.5, 2: third}),
        "0 qid:1 2:2 1:3 # docid = b\n": (0, "1", "b", {0: 3.0, 1: 2.0}),
    }
    bad = ["good qid:1 9:1 2:0.30000001192092896 # docid = c\n", "-1 qid:4 70:1\n", "3 qid:\n", "-x qid:1 8:1\n",
           "1 qid:2 9:1 1:0.30000001192092896 2:x\n"]  # fmt: skip
    lines = rng.choices(list(good), k=4) + bad
    rng.shuffle(lines)
    path.write_text("# c\n" + "".join(lines))
    wrong = [line in bad for line in lines]
    places = list(compress(range(2, 99), wrong))
    for block_bytes in (1, 60, 1 << 20):
        quarantine = Quarantine(limit=5)
        assert read(path, block_bytes, quarantine) == [good[line] for line in lines if line in good]
        assert [(r.source, r.line, r.text + "\n") for r in quarantine.rejects] == [
            ("rows.txt", *found) for found in zip(places, compress(lines, wrong), strict=True)
        ]
    with pytest.raises(MalformedLine, match=rf"rows.txt:{places[0]}:"):
        read(path)
    with refused(TooManyRejects, f"rows.txt:{places[0]}", "max_rejects 4"):
        read(path, quarantine=Quarantine(limit=4))


# ---- without qid: the sizes beside the text say which rows are of one query ------------------------------------------


def write_sizes(path, lines, sizes, suffix=".query", end="\n"):
    path.write_bytes("".join(f"{line}{end}" for line in lines).encode())
    if sizes is not None:
        path.with_name(path.name + suffix).write_text("".join(f"{size}{end}" for size in sizes))
    return path


def rows_by_sizes(path, block_bytes=1 << 20, quarantine=None, **options):
    """Grade, qid, doc_id and the first value of every row."""
    rows = []
    for batch in LetorSource(path, ReadOptions(**options), quarantine).batches(block_bytes):
        doc_ids = [None] * len(batch) if batch.doc_id is None else batch.doc_id.to_pylist()
        rows += zip(batch.grade.tolist(), batch.qid.to_pylist(), doc_ids, batch.values[:, 0].tolist(), strict=True)
    return rows


@pytest.mark.parametrize("suffix", [".query", ".group", ".query.gz"])
def test_queries_are_called_by_file_and_number(tmp_path, suffix):
    path = write_sizes(tmp_path / "rank.train", ["1 1:5", "# c", "", "0 1:6 # docid = a", "2", "0 1:8"], None)
    sizes = b"1\n\n  2 \n1"
    path.with_name(f"rank.train{suffix}").write_bytes(gzip.compress(sizes) if suffix.endswith("gz") else sizes)
    expected = [
        (1, "rank.train:1", None, 5),
        (0, "rank.train:2", "a", 6),
        (2, "rank.train:2", None, 0),
        (0, "rank.train:3", None, 8),
    ]
    assert [rows_by_sizes(path, size) for size in (1, 9, 1000)] == [expected] * 3
    packed = tmp_path / "rank.train.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    assert rows_by_sizes(packed) == expected


@pytest.mark.parametrize("seed", range(6))
def test_quarantined_lines_are_rows_of_their_query(tmp_path, seed):
    rng = random.Random(seed)
    sizes = [rng.choice([1, 1, 2, 3, 40]) for _ in range(rng.randrange(1, 30))]
    lines, rows = [], []
    for row, number in enumerate(naive.query_numbers(" ".join(map(str, sizes)), sum(sizes))):
        lines += rng.choices(["", "# nothing", "\t"], k=rng.choice([0, 0, 1]))
        if rng.random() < 0.1:
            lines.append(rng.choice(["x 1:1", "1 1:1 1:2", "1 2:a", "-1 1:3"]))
        else:
            lines.append(f"{row % 5} 1:{row}")
            rows.append((row % 5, f"a.txt:{number}", None, row))
    path = write_sizes(tmp_path / "a.txt", lines, sizes, end=rng.choice(["\n", "\r\n"]))
    assert rows_by_sizes(path, rng.choice([1, 30, 1 << 20]), Quarantine(limit=1000)) == rows


def test_files_that_cannot_be_distinguished_are_refused(tmp_path):
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
    paths = [
        write_sizes(tmp_path / folder / "a.txt", ["1 1:1", f"0 {k}:2"], [2]) for k, folder in ((2, "one"), (3, "two"))
    ]
    with refused(InputError, "one/a.txt", "two/a.txt", "ids"):
        ingest(paths, tmp_path / "out")
    with refused(InputError, "one/a.txt", "two/a.txt", "ids"):
        open_sources(paths, "auto", ReadOptions(grade_required=False))
    write_sizes(paths[0], ["1 1:1"], [1], ".group")
    with refused(InputError, "a.txt.query", "a.txt", "a.txt.group"):
        LetorSource(paths[0], ReadOptions())


def test_sizes_are_part_of_what_a_dataset_was_made_of(tmp_path):
    lines = ["1 1:1", "0 1:2", "2 1:3"]
    path = write_sizes(tmp_path / "a.txt", lines, [2, 1])
    ingest([path], tmp_path / "one")
    named = write_sizes(tmp_path / "b.txt", [line.replace(" ", f" qid:a.txt:{k} ", 1) for line, k in zip(lines, (1, 1, 2), strict=True)], None)  # fmt: skip
    ingest([named], tmp_path / "named")
    one, other = Dataset.open(tmp_path / "one"), Dataset.open(tmp_path / "named")
    assert one.digest == other.digest
    assert one.manifest.sources[0].sizes is not None
    assert '"sizes"' not in (tmp_path / "named" / "_manifest.json").read_text()
    write_sizes(path, lines, [1, 2])
    ingest([path], tmp_path / "two")
    two = Dataset.open(tmp_path / "two").manifest.sources[0]
    assert (two.sha256, two.sizes != one.manifest.sources[0].sizes) == (one.manifest.sources[0].sha256, True)


def test_real_labels_and_a_bad_one(tmp_path):
    path = write_sizes(tmp_path / "a.txt", ["0.5 1:1", "x 1:2", "-3 1:3"], [1, 2])
    (batch,) = LetorSource(path, ReadOptions(labels="real"), Quarantine(limit=1)).batches()
    assert batch.qid.to_pylist() == ["a.txt:1", "a.txt:2"]
    assert batch.extras["label"].tolist() == [0.5, -3]
    with pytest.raises(MalformedLine):
        rows_by_sizes(path, labels="real")


def test_lightgbm_rank(tmp_path, test_data):
    file = test_data / "lightgbm-rank" / "rank.test"
    lines, sizes = file.read_text().splitlines(), file.with_name("rank.test.query").read_text()
    manifest = ingest([file], tmp_path / "out", options=IngestOptions(block_size=100_000)).manifest
    assert (manifest.rows, manifest.queries) == (len(lines), len(sizes.split())) == (768, 50)
    dense = []
    for line, number in zip(lines, naive.query_numbers(sizes, len(lines)), strict=True):
        grade, *entries = line.split()
        values = np.zeros(len(manifest.features), np.float32)
        for index, value in (entry.split(":") for entry in entries):
            values[int(index) - 1] = float(value)
        dense.append((f"rank.test:{number}", int(grade), values.tobytes()))
    dataset = Dataset.open(tmp_path / "out")
    table, values = dataset.rows(None, ["qid", "grade"]), np.concatenate(list(dataset.feature_batches(None)))
    found = zip(table["qid"].to_pylist(), table["grade"].to_pylist(), map(np.ndarray.tobytes, values), strict=True)
    assert sorted(found) == sorted(dense)


# ---- a TREC run: its scores and ranks are features -------------------------------------------------------------------

CANDIDATES = ReadOptions(grade_required=False)
TEXT = "q1 Q0 d1 1 2.5 mine\n\n q2\tQ0  d1 0 -1e-3 mine and more\r\nq1 0 d2 2 .1 #x"
ROWS = [("q1", "d1", 2.5, 1), ("q2", "d1", -1e-3, 0), ("q1", "d2", 0.1, 2)]


def rows_of_run(path, block_bytes=1 << 20, quarantine=None, options=CANDIDATES):
    rows = []
    for batch in open_source(path, "auto", options, quarantine).batches(block_bytes):
        assert batch.grade is None
        rows += zip(batch.qid.to_pylist(), batch.doc_id.to_pylist(), *batch.values.T.tolist(), strict=True)
    return rows


@pytest.mark.parametrize("block_bytes", [1, 25, 1 << 20])
def test_rows_come_through_as_written(tmp_path, block_bytes):
    expected = [(qid, doc_id, float(np.float32(score)), rank) for qid, doc_id, score, rank in ROWS]
    (tmp_path / "a.run").write_text(TEXT)
    (tmp_path / "a.run.gz").write_bytes(gzip.compress(TEXT.encode()))
    assert rows_of_run(tmp_path / "a.run", block_bytes) == rows_of_run(tmp_path / "a.run.gz", block_bytes) == expected
    source = open_source(tmp_path / "a.run", options=CANDIDATES)
    assert (source.columns, source.names(2), source.fields) == (("score", "rank"), ("score", "rank"), ())


def test_without_judgments_a_run_cannot_be_learnt_from(tmp_path):
    path = tmp_path / "a.run"
    path.write_text(TEXT)
    with refused(DataRejected, "a.run", "grades", "qrels FILE"):
        ingest([path], tmp_path / "out")
    with refused(InputError, "time_column", "tables"):
        RunSource(path, ReadOptions(ungraded=True, time_column="when"))
    ingest([path], tmp_path / "out", options=IngestOptions(read=ReadOptions(ungraded=True)))
    assert Dataset.open(tmp_path / "out").feature_names == ("score", "rank")
