"""Text without ``qid:``: the sizes beside it say which rows are of one query, whatever is quarantined on the way."""

import gzip
import random

import numpy as np
import pytest

from rankmill.foundation.errors import InputError, MalformedLine
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.pipeline.ingest import ingest
from rankmill.pipeline.options import IngestOptions, ReadOptions
from rankmill.pipeline.read.batch import Quarantine
from rankmill.pipeline.read.letor import LetorSource
from rankmill.scorer.rerank.candidate_sources import open_sources
from tests import naive
from tests.refusals import refused


def write(path, lines, sizes, suffix=".query", end="\n"):
    path.write_bytes("".join(f"{line}{end}" for line in lines).encode())
    if sizes is not None:
        path.with_name(path.name + suffix).write_text("".join(f"{size}{end}" for size in sizes))
    return path


def read(path, block_bytes=1 << 20, quarantine=None, **options):
    """Grade, qid, doc_id and the first value of every row."""
    rows = []
    for batch in LetorSource(path, ReadOptions(**options), quarantine).batches(block_bytes):
        doc_ids = [None] * len(batch) if batch.doc_id is None else batch.doc_id.to_pylist()
        rows += zip(batch.grade.tolist(), batch.qid.to_pylist(), doc_ids, batch.values[:, 0].tolist(), strict=True)
    return rows


@pytest.mark.parametrize("suffix", [".query", ".group", ".query.gz"])
def test_queries_are_called_by_file_and_number(tmp_path, suffix):
    path = write(tmp_path / "rank.train", ["1 1:5", "# c", "", "0 1:6 # docid = a", "2", "0 1:8"], None)
    sizes = b"1\n\n  2 \n1"
    path.with_name(f"rank.train{suffix}").write_bytes(gzip.compress(sizes) if suffix.endswith("gz") else sizes)
    expected = [
        (1, "rank.train:1", None, 5),
        (0, "rank.train:2", "a", 6),
        (2, "rank.train:2", None, 0),
        (0, "rank.train:3", None, 8),
    ]
    assert [read(path, size) for size in (1, 9, 1000)] == [expected] * 3
    packed = tmp_path / "rank.train.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    assert read(packed) == expected


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
    path = write(tmp_path / "a.txt", lines, sizes, end=rng.choice(["\n", "\r\n"]))
    assert read(path, rng.choice([1, 30, 1 << 20]), Quarantine(limit=1000)) == rows


def test_files_that_cannot_be_distinguished_are_refused(tmp_path):
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
    paths = [write(tmp_path / folder / "a.txt", ["1 1:1", f"0 {k}:2"], [2]) for k, folder in ((2, "one"), (3, "two"))]
    with refused(InputError, "one/a.txt", "two/a.txt", "ids"):
        ingest(paths, tmp_path / "out")
    with refused(InputError, "one/a.txt", "two/a.txt", "ids"):
        open_sources(paths, "auto", ReadOptions(grade_required=False))
    write(paths[0], ["1 1:1"], [1], ".group")
    with refused(InputError, "a.txt.query", "a.txt", "a.txt.group"):
        LetorSource(paths[0], ReadOptions())


def test_sizes_are_part_of_what_a_dataset_was_made_of(tmp_path):
    lines = ["1 1:1", "0 1:2", "2 1:3"]
    path = write(tmp_path / "a.txt", lines, [2, 1])
    ingest([path], tmp_path / "one")
    named = write(tmp_path / "b.txt", [line.replace(" ", f" qid:a.txt:{k} ", 1) for line, k in zip(lines, (1, 1, 2), strict=True)], None)  # fmt: skip
    ingest([named], tmp_path / "named")
    one, other = Dataset.open(tmp_path / "one"), Dataset.open(tmp_path / "named")
    assert one.digest == other.digest
    assert one.manifest.sources[0].sizes is not None
    assert '"sizes"' not in (tmp_path / "named" / "_manifest.json").read_text()
    write(path, lines, [1, 2])
    ingest([path], tmp_path / "two")
    two = Dataset.open(tmp_path / "two").manifest.sources[0]
    assert (two.sha256, two.sizes != one.manifest.sources[0].sizes) == (one.manifest.sources[0].sha256, True)


def test_real_labels_and_a_bad_one(tmp_path):
    path = write(tmp_path / "a.txt", ["0.5 1:1", "x 1:2", "-3 1:3"], [1, 2])
    (batch,) = LetorSource(path, ReadOptions(labels="real"), Quarantine(limit=1)).batches()
    assert batch.qid.to_pylist() == ["a.txt:1", "a.txt:2"]
    assert batch.extras["label"].tolist() == [0.5, -3]
    with pytest.raises(MalformedLine):
        read(path, labels="real")


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
