"""Text without ``qid:``: the sizes beside it say which rows are of one query, whatever is quarantined on the way."""

import gzip
import random

import numpy as np
import pyarrow.parquet as pq
import pytest

from rankmill.foundation.errors import DataRejected, InputError, MalformedLine
from rankmill.pipeline.dataset import Dataset
from rankmill.pipeline.ingest import ingest
from rankmill.pipeline.options import IngestOptions, ReadOptions
from rankmill.pipeline.sources.batch import Quarantine
from rankmill.pipeline.sources.letor import LetorSource
from rankmill.scorer.candidate_sources import open_sources
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


@pytest.mark.parametrize("seed", range(20))
def test_lines_put_aside_are_rows_of_their_query(tmp_path, seed):
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


@pytest.mark.parametrize(
    ("lines", "sizes", "message"),
    [
        (["1 1:1"] * 3 + ["", "0 1:2", "0 1:3"], [1, 2], "{path}:5: more rows than query sizes: the sizes in {path}.query add up to 3, and this is the next row"),
        (["1 1:1"] * 3, [1, 1, 4, 2], "{path}.query:3: query sizes exceed the rows: {path} has 3 rows, but"
            " this query ends at row 6"),
        (["1 1:1"] * 3, [1, 2, 5, 1], "{path}.query:3: query sizes exceed the rows: {path} has 3 rows, but"
            " this query ends at row 8"),
        (["1 1:1"], [], "{path}:1: more rows than query sizes: the sizes in {path}.query add up to 0, and this is the next row"),
        (["1 1:1"], [0], "{path}.query:1:1: expected the number of rows of a query: a whole number, 1 or more, found '0'"),
        (["1 1:1"] * 2, [1, "1.0"], "{path}.query:2:1: expected the number of rows of a query: a whole number, 1 or more, found '1.0'"),
        (["1 1:1"] * 2, [1, "1 1"], "{path}.query:2:1: expected the number of rows of a query: a whole number, 1 or more, found '2 words'"),
        (["1 1:1"], [10**12], "{path}.query:1:1: expected the number of rows of a query: a whole number, 1 or more, found '1000000000000'"),
        (["1 1:1", "1 qid:3 1:1"], [2], "{path}:2:3: expected index:value, found 'qid:3'; no qid: here, because"
            " the first line has none"),
        (["1 0:1"], [1], "{path}:1:3: expected a feature index from 1, found '0:1'; if features are numbered from 0: index_base=0"),
        (["1 1:1"], None, "{path}:1:3: expected qid:ID after the grade, found '1:1'; every line must"
            " name its query, or a.txt.query (or .group) must have the sizes of all queries, one a line"),
        (["1 qid:3 1:1", "1 1:1"], [2], "{path}:2:3: expected qid:ID after the grade, found '1:1'; every line"
            " must name its query, or a.txt.query (or .group) must have the sizes of all queries, one a"
            " line"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("block_bytes", [1, 1 << 20])
def test_what_does_not_fit_is_named(tmp_path, lines, sizes, message, block_bytes):
    path = write(tmp_path / "a.txt", lines, sizes)
    with pytest.raises(DataRejected) as caught:
        read(path, block_bytes)
    assert str(caught.value) == message.format(path=path)


def test_files_that_cannot_be_told_apart_are_refused(tmp_path):
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
    folder = test_data / "lightgbm-rank"
    for split, name in (("train", "rank.train"), ("test", "rank.test")):
        lines = (folder / name).read_text().splitlines()
        sizes = [int(size) for size in (folder / f"{name}.query").read_text().split()]
        numbers = naive.query_numbers((folder / f"{name}.query").read_text(), len(lines))
        expected, width = [], 0
        for line, number in zip(lines, numbers, strict=True):
            grade, *entries = line.split()
            features = {int(entry.split(":")[0]): np.float32(float(entry.split(":")[1])) for entry in entries}
            width = max(width, *features)
            expected.append((int(grade), f"{name}:{number}", features))
        ingest([folder / name], tmp_path / name, options=IngestOptions(block_size=100_000))
        dataset = Dataset.open(tmp_path / name)
        assert (dataset.manifest.rows, dataset.manifest.queries) == (len(lines), len(sizes)), split
        assert len(dataset.feature_names) == width
        dense = [
            (qid, grade, np.array([features.get(k, 0) for k in range(1, width + 1)], np.float32).tobytes())
            for grade, qid, features in expected
        ]
        table = dataset.rows(None, ["qid", "grade"])
        values = np.concatenate(list(dataset.feature_batches(None)))
        found = zip(table["qid"].to_pylist(), table["grade"].to_pylist(), map(np.ndarray.tobytes, values), strict=True)
        assert sorted(found) == sorted(dense)
        queries = pq.read_table(tmp_path / name / "_queries")
        by_name = dict(zip(queries["qid"].to_pylist(), queries["n_docs"].to_pylist(), strict=True))
        assert by_name == {f"{name}:{number}": size for number, size in enumerate(sizes, start=1)}
    ingest([folder / "rank.*"], tmp_path / "both")
    both = Dataset.open(tmp_path / "both").manifest
    assert (both.rows, both.queries) == (3005 + 768, 201 + 50)
