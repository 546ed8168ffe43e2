"""From files to a dataset: every row once, in an order that the input's order does not change, whole or not at all."""

import json
import random

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from rankmill.foundation.errors import ConflictError, DataRejected, InputError, MalformedLine, TooManyRejects
from rankmill.foundation.options import spelled_for
from rankmill.pipeline.cli import app
from rankmill.pipeline.dataset import publish as publish_dataset
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.pipeline.ingest import ingest
from rankmill.pipeline.ingest import run_ingest as running
from rankmill.pipeline.options import IngestOptions, ReadOptions
from rankmill.pipeline.read.grades import GradeRules
from tests import naive, naive_text
from tests.refusals import refused
from tests.written import files_in


def rows_of(dataset):
    """Rows of a dataset in its order."""
    opened = Dataset.open(dataset)
    table = opened.rows(None, ["qid", "doc_id", "grade"])
    values = np.concatenate(list(opened.feature_batches(None)))
    columns = (table["qid"].to_pylist(), table["doc_id"].to_pylist(), table["grade"].to_pylist())
    return [(*keys, row.tobytes()) for *keys, row in zip(*columns, values, strict=True)]


def judgments(n, seed=0, width=6):
    """Lines of LETOR text: queries scattered, some documents without id, some rows there twice."""
    rng = random.Random(seed)
    lines = []
    for k in range(n):
        features = " ".join(
            f"{f}:{rng.choice(['0', '1', 'nan', repr(rng.random())])}" for f in range(1, width) if rng.random() < 0.8
        )
        name = f" # docid = d{rng.randrange(n // 2)}" if rng.random() < 0.7 else ""
        lines.append(f"{rng.randrange(4)} qid:{rng.randrange(n // 8)} {features} {width}:{k % 5}{name}\n")
    return lines + rng.sample(lines, n // 10)


small_line = st.builds(
    lambda grade, qid, features, doc_id: (
        f"{grade} qid:{qid} {' '.join(f'{f}:{x!r}' for f, x in features.items())}{doc_id}"
    ),
    st.integers(0, 4),
    st.sampled_from(["1", "2", "10", "é", "q-7"]),
    st.dictionaries(st.integers(1, 6), st.floats(width=32), max_size=4),
    st.sampled_from(["", " #docid = a", " #docid = b", " # docid=é"]),
)


@given(st.lists(small_line, min_size=1, max_size=25), st.integers(1, 40), st.booleans())
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_row_comes_through_once(tmp_path_factory, lines, buckets, missing):
    folder = tmp_path_factory.mktemp("round")
    text = "\n".join([*lines, "0 qid:last 1:1"])
    (folder / "rows.txt").write_text(text)
    absent = "missing" if missing else "zero"
    ingest(
        [folder / "rows.txt"], folder / "out", options=IngestOptions(buckets=buckets, read=ReadOptions(absent=absent))
    )
    parsed = naive_text.letor(text.encode(), GradeRules()).rows
    width = max(index for *_, features in parsed for index in features)
    expected = []
    for grade, qid, doc_id, features in parsed:
        values = np.full(width, np.nan if missing else 0.0, np.float32)
        for index, value in features.items():
            values[index - 1] = value
        expected.append((qid, doc_id, grade, values.tobytes()))
    found = rows_of(folder / "out")
    assert sorted(found, key=repr) == sorted(expected, key=repr)
    keys = [(naive.hash_of_id(qid) % buckets, qid.encode(), d is None, (d or "").encode()) for qid, d, *_ in found]
    assert keys == sorted(keys)


def test_mq2008(tmp_path, test_data):
    parts = [test_data / "mq2008" / f"S{k}.txt" for k in range(1, 6)]
    report = ingest(parts[:3], tmp_path / "mq", valid=[parts[3]], test=[parts[4]])
    dataset = Dataset.open(tmp_path / "mq")
    assert (dataset.manifest.queries, dataset.manifest.rows, len(dataset.feature_names)) == (784, 15211, 46)
    assert {name: count.queries for name, count in dataset.manifest.splits.items()} == {
        "train": 471,
        "valid": 157,
        "test": 156,
    }
    assert dataset.max_grade == 2
    first = next(row for row in rows_of(tmp_path / "mq") if row[1] == "GX008-86-4444840")
    assert first[0] == "10002"
    assert np.frombuffer(first[3], np.float32)[[0, 45]].tolist() == np.float32([0.007477, 0.007042]).tolist()
    assert "784 queries" in report.render()
    assert "features  46 (f1 .. f46), 0.0% of the values missing" in report.render()
    dataset.verify()


# ---- splits --------------------------------------------------------------------------------------------------------


def test_a_query_in_two_splits_is_refused(tmp_path):
    for name, text in (
        ("a", "1 qid:x 1:1\n1 qid:y 1:1\n"),
        ("b", "0 qid:z 1:1\n"),
        ("c", "0 qid:w 1:1\n1 qid:y 1:2\n"),
    ):
        (tmp_path / f"{name}.txt").write_text(text)
    a, b, c = (tmp_path / f"{name}.txt" for name in "abc")
    with refused(DataRejected, "'y'", "train", a, "test", c, "split"):
        ingest([a, b], tmp_path / "out", test=[c])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", "b.txt", "c.txt"]


# ---- what is refused -----------------------------------------------------------------------------------------------


def test_a_refusal_leaves_nothing(tmp_path):
    """What is said is in malformed/cases.toml."""
    path = tmp_path / "in.txt"
    path.write_text("1 qid:1 1:1\n1 1:1\n")
    with refused(MalformedLine, f"{path}:2:3"):
        ingest([path], tmp_path / "deep" / "out")
    with refused(InputError, "no input"):
        ingest([], tmp_path / "deep" / "out")
    assert [file.name for file in tmp_path.iterdir()] == ["in.txt"]


def test_progress_goes_up_to_all_bytes_and_all_documents(tmp_path):
    paths = [tmp_path / f"{name}.txt" for name in "abc"]
    for number, path in enumerate(paths):
        path.write_text("".join(judgments(30, number)))
    reported = {"reading": [(0, 0)], "writing": [(0, 0)]}
    options = IngestOptions(threads=3, block_size=500, buckets=5)
    report = ingest(paths, tmp_path / "out", options=options, progress=lambda stage, *at: reported[stage].append(at))
    for stage, total in (("reading", sum(p.stat().st_size for p in paths)), ("writing", report.manifest.rows)):
        done = [at for at, _ in reported[stage]]
        assert done == sorted(done)
        assert reported[stage][-1] == (total, total)
        assert len(done) > 2


def test_rejects_go_into_the_dataset_or_next_to_it(tmp_path):
    a, b = tmp_path / "a.txt", tmp_path / "b.txt"
    a.write_text("1 qid:1 1:1\n1 qid:1 1:1 x\n")
    b.write_text("-1 qid:2 1:1\n1 qid:2 1:1\n")
    report = ingest([b, a], tmp_path / "out", options=IngestOptions(max_rejects=2))
    table = pq.read_table(tmp_path / "out" / "_rejects.parquet")
    assert table.to_pylist() == [
        {"source": "a.txt", "line": 2, "column": 13, "reason": "expected index:value, found x", "text": "1 qid:1 1:1 x"},
        {"source": "b.txt", "line": 1, "column": 1, "reason": "expected a grade: a whole number, 0 or more, found -1", "text": "-1 qid:2 1:1"},
    ]  # fmt: skip
    assert report.manifest.rejected_rows == 2
    assert "rejected  2 rows" in report.render()
    with refused(TooManyRejects, f"{a}:2:13", "'x'", "max_rejects 1", tmp_path / "other.rejects.parquet"):
        ingest([b, a], tmp_path / "other", options=IngestOptions(max_rejects=1))
    beside = tmp_path / "other.rejects.parquet"
    assert pq.read_table(beside).equals(table)
    assert not (tmp_path / "other").exists()
    with spelled_for("command line"):
        ingest([b, a], tmp_path / "clean", options=IngestOptions(max_rejects=2))
    assert files_in(tmp_path / "clean", "*.parquet") == files_in(tmp_path / "out", "*.parquet")


# ---- whole or not at all -------------------------------------------------------------------------------------------


def test_what_is_in_the_way_is_left_alone(tmp_path):
    path = tmp_path / "in.txt"
    path.write_text("1 qid:1 1:1\n")
    (tmp_path / "file").write_text("x")
    with refused(InputError, "file", "folder"):
        ingest([path], tmp_path / "file")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "x").write_text("x")
    for overwrite in (False, True):
        with refused(InputError, "folder", "files"):
            ingest([path], tmp_path / "folder", options=IngestOptions(overwrite=overwrite))
    (tmp_path / "empty").mkdir()
    ingest([path], tmp_path / "empty")
    with refused(InputError, "dataset", "overwrite"):
        ingest([path], tmp_path / "empty")


@pytest.mark.parametrize("manifest", [b'{"format": 1, "fea', b"\xff\x00", b"{}"])
def test_a_dataset_with_a_damaged_manifest_is_replaced_only_if_asked(tmp_path, manifest):
    path, out = tmp_path / "in.txt", tmp_path / "out"
    path.write_text("1 qid:1 1:1\n")
    ingest([path], out)
    path.write_text("1 qid:1 1:2\n")
    (out / "_manifest.json").write_bytes(manifest)
    with refused(InputError, "overwrite"):
        ingest([path], out)
    ingest([path], out, options=IngestOptions(overwrite=True))
    Dataset.open(out).verify()
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "_manifest.json").write_bytes(manifest)
    with refused(InputError, "folder", "files"):
        ingest([path], tmp_path / "site", options=IngestOptions(overwrite=True))


def test_overwriting_swaps_the_manifest_and_keeps_the_former_shards_for_its_readers(tmp_path):
    path, out = tmp_path / "in.txt", tmp_path / "out"
    states = []
    for seed in range(3):
        path.write_text("".join(judgments(40, seed)))
        ingest([path], out, options=IngestOptions(overwrite=True, buckets=2))
        states.append(Dataset.open(out))
        states[-1].verify()
        for former in states[-2:]:
            former.verify()
    assert not states[0].features_path(states[0].manifest.shards[0]).exists()
    assert len(files_in(out / "features")) + len(files_in(out / "_queries")) == 6  # rows of now, queries of both
    assert len(list((out / "_replaced").iterdir())) == 2
    assert len(list((out / "_statistics").iterdir())) <= 4
    assert sorted(file.name for file in tmp_path.iterdir()) == ["in.txt", "out"]


@pytest.mark.parametrize("step", ["write_shards", "join_pairs", "publish_dataset"])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failure_on_the_way_leaves_the_old_dataset_and_nothing_else(tmp_path, monkeypatch, step, error):
    path, pairs, out = tmp_path / "in.txt", tmp_path / "pairs.txt", tmp_path / "out"
    path.write_text("".join(judgments(40, 1)))
    ingest([path], out)
    before = files_in(out)
    path.write_text("1 qid:p 1:1 # docid = a\n0 qid:p 1:2 # docid = b\n")
    pairs.write_text("p a b\n")

    def fail(*_, **__):
        raise error

    monkeypatch.setattr(running, step, fail)
    with pytest.raises(type(error)):
        ingest([path], out, pairs=[pairs], options=IngestOptions(overwrite=True))
    assert files_in(out) == before
    assert sorted(file.name for file in tmp_path.iterdir()) == ["in.txt", "out", "pairs.txt"]


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("when", ["while rows are read", "at the rename"])
def test_of_two_that_write_one_dataset_one_wins_or_one_is_refused(tmp_path, monkeypatch, when, overwrite):
    out, mine, other = tmp_path / "out", tmp_path / "a.txt", tmp_path / "b.txt"
    for path, queries in ((mine, 40), (other, 50)):
        path.write_text(
            "".join(f"{doc % 2} qid:{path.stem}{query} 1:{doc}\n" for query in range(queries) for doc in range(3))
        )
    ingest([mine], tmp_path / "alone")
    publish, others = publish_dataset.publish_folder, []

    def rename(staged, to):
        interfere("at the rename")
        publish(staged, to)

    def interfere(now):
        if now == when and not others:
            others.append(True)
            ingest([other], out)

    monkeypatch.setattr(publish_dataset, "publish_folder", rename)
    options = IngestOptions(overwrite=overwrite)

    def run_it():
        ingest([mine], out, options=options, progress=lambda *_: interfere("while rows are read"))

    if overwrite:
        run_it()
        assert Dataset.open(out).manifest.data_digest() == Dataset.open(tmp_path / "alone").manifest.data_digest()
    else:
        with pytest.raises(ConflictError):
            run_it()
        assert Dataset.open(out).manifest.rows == 150
        with pytest.raises(InputError):  # a dataset that was there before is a mistake of the user
            ingest([mine], out)
    assert others
    assert not list(tmp_path.glob(".*"))


# ---- the command ---------------------------------------------------------------------------------------------------


def run(*arguments):
    return CliRunner().invoke(app, [*map(str, arguments)], prog_name="data", catch_exceptions=True)


def test_the_command_reports_in_words_and_in_json(tmp_path):
    path = tmp_path / "in.txt"
    path.write_text("2 qid:1 1:1\n0 qid:1 1:nan 2:3\n1 qid:2 2:1\n")
    result = run("ingest", path, "-o", tmp_path / "a", "--absent", "missing", "--buckets", 4, "--memory", "1GB")
    assert result.exit_code == 0, result.output
    assert "3 documents of 2 queries" in result.stdout
    assert "grades    0: 1 (33.3%), 1: 1 (33.3%), 2: 1 (33.3%)" in result.stdout
    assert "read      1 file, 42 bytes in " in result.stdout  # a small file without a rate
    assert "MB" not in result.stdout
    result = run("ingest", path, "-o", tmp_path / "b", "--json", "--block-size", "64KiB")
    facts = json.loads(result.stdout)
    assert (facts["rows"], facts["queries"], facts["features"], facts["missing_values"]) == (3, 2, 2, 1)
    assert facts["splits"] == {"train": {"queries": 2, "rows": 3}}
    assert facts["sources"][0]["name"] == "in.txt"
    assert str(tmp_path).encode() not in (tmp_path / "b" / "_manifest.json").read_bytes()  # nothing of this machine
