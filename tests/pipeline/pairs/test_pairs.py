"""Preference pairs: each joins the rows of its two documents, or is quarantined with its place and the reason."""

import itertools
import json
import random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from rankmill.foundation.errors import DataRejected, TooManyRejects
from rankmill.pipeline.bins.binning import bin_dataset
from rankmill.pipeline.cli import app
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.pipeline.ingest import ingest
from rankmill.pipeline.options import IngestOptions
from rankmill.pipeline.statistics.describe_dataset import describe
from tests import naive_datasets
from tests.refusals import refused
from tests.written import files_in

SHARES = {"train": 0.5, "valid": 0.3, "test": 0.2}
COLUMNS = ("qid", "better", "worse", "weight", "probability")


def write_rows(path, n_queries=25, seed=1):
    """Judgments as CSV: documents d0, d1, .. of each query, some rows without an id."""
    rng = random.Random(seed)
    lines = [
        f"q{q},{f'd{d}' if rng.random() < 0.9 else ''},0,{rng.random()}"
        for q in range(n_queries)
        for d in range(q % 7 + 2)
    ]
    rng.shuffle(lines)
    path.write_text("\n".join(["qid,doc_id,grade,x", *lines]) + "\n")
    return path


def ids_of(path):
    """Ids of the documents of each query of such a file."""
    named = {}
    for line in path.read_text().splitlines()[1:]:
        qid, doc_id, *_ = line.split(",")
        named.setdefault(qid, []).extend([doc_id] * bool(doc_id))
    return {qid: ids for qid, ids in named.items() if len(ids) >= 2}


def preferences(judged, n, seed):
    """Pairs of documents that are there; the same ones again, and the other way round."""
    rng = random.Random(seed)
    named = ids_of(judged)
    pairs = []
    for _ in range(n):
        qid = rng.choice(sorted(named))
        better, worse = rng.sample(named[qid], 2)
        pairs.append((qid, better, worse, rng.choice([0.0, 1.0, rng.random()]), rng.choice([0.0, 0.5, 1.0])))
    return pairs + rng.sample(pairs, n // 4) + [(q, w, b, *rest) for q, b, w, *rest in rng.sample(pairs, n // 4)]


def write_pairs(path, pairs):
    if path.suffix == ".parquet":
        columns = zip(*pairs, strict=True)
        pq.write_table(pa.table(dict(zip(COLUMNS, map(list, columns), strict=True))), path)
    elif path.suffix == ".csv":
        lines = [",".join(map(str, pair)) for pair in pairs]
        path.write_text("\n".join([",".join(COLUMNS), *lines]) + "\n")
    else:
        path.write_text(
            "# qid better worse weight probability\n\n" + "".join("\t ".join(map(str, p)) + "\r\n" for p in pairs)
        )
    return path


def found_in(dataset, split=None):
    pairs = dataset.pairs(split)
    columns = (pairs.better, pairs.worse, pairs.weight, pairs.probability)
    return list(zip(*(column.tolist() for column in columns), strict=True)), pairs.starts.tolist()


def rows_of(dataset, split=None):
    table = dataset.rows(split, ["qid", "doc_id"])
    return list(zip(table["qid"].to_pylist(), table["doc_id"].to_pylist(), strict=True))


@pytest.fixture
def judged(tmp_path):
    return write_rows(tmp_path / "rows.csv")


def test_pairs_join_their_rows_whatever_brings_them(tmp_path, judged):
    wanted = preferences(judged, 300, 2)
    options = IngestOptions(split=SHARES, buckets=5)
    ingest([judged], tmp_path / "all", pairs=[write_pairs(tmp_path / "all.txt", wanted)], options=options)
    dataset = Dataset.open(tmp_path / "all")
    dataset.verify()
    assert dataset.manifest.pairs.pairs == len(wanted)
    for split in (None, "train", "valid", "test"):
        rows = rows_of(dataset, split)
        there = {qid for qid, _ in rows}
        pairs, starts, refused = naive_datasets.joined(rows, [pair for pair in wanted if pair[0] in there])
        assert found_in(dataset, split) == (pairs, starts)
        assert not refused
        assert len(dataset.pairs(split)) == len(pairs) > 0

    files = files_in(tmp_path / "all", "*.parquet")
    assert any(name.startswith("_pairs/") for name in files)
    for seed, (suffix, n_files, block, memory) in enumerate(
        [(".txt", 3, 64, 512 * 10**6), (".csv", 2, 200, 2 * 10**9), (".parquet", 4, 1, 512 * 10**6)]
    ):
        shuffled = random.Random(seed).sample(wanted, len(wanted))
        parts = [write_pairs(tmp_path / f"{seed}-{k}{suffix}", shuffled[k::n_files]) for k in range(n_files)]
        options = IngestOptions(split=SHARES, buckets=5, block_size=block, memory=memory)
        ingest([judged], tmp_path / f"out-{seed}", pairs=parts[::-1], options=options)
        assert files_in(tmp_path / f"out-{seed}", "*.parquet") == files
        assert Dataset.open(tmp_path / f"out-{seed}").digest == dataset.digest


def test_what_a_kernel_gets_is_of_one_kind(tmp_path, judged):
    (tmp_path / "p.txt").write_text("q9 d0 d1\n")
    (tmp_path / "rows.csv").write_text("qid,doc_id,grade,x\nq9,d0,0,1\nq9,d1,0,1\nq8,d0,0,1\n")
    ingest([judged], tmp_path / "out", pairs=[tmp_path / "p.txt"])
    dataset = Dataset.open(tmp_path / "out")
    for split, n_pairs, n_queries in ((None, 1, 2), ("train", 1, 2), ("test", 0, 0)):
        pairs = dataset.pairs(split)
        kinds = {"better": "int32", "worse": "int32", "weight": "float64", "probability": "float64", "starts": "int64"}
        for name, dtype in kinds.items():
            column = getattr(pairs, name)
            assert column.dtype == dtype
            assert column.flags.c_contiguous
            assert column.flags.writeable
        assert (len(pairs), len(pairs.starts)) == (n_pairs, n_queries + 1)
    assert (pairs.weight.tolist(), pairs.starts.tolist()) == ([], [0])
    assert found_in(dataset)[0][0][2:] == (1.0, 1.0)
    ingest([judged], tmp_path / "none")
    assert Dataset.open(tmp_path / "none").pairs("train") is None


def test_where_pairs_say_what_is_better_grades_may_be_left_out(tmp_path):
    (tmp_path / "p.txt").write_text("q d0 d1\n")
    (tmp_path / "rows.csv").write_text("qid,doc_id,x\nq,d0,1\nq,d1,2\n")
    (tmp_path / "zero.csv").write_text("qid,doc_id,grade,x\nq,d0,0,1\nq,d1,0,2\n")
    for name in ("rows", "zero"):
        ingest([tmp_path / f"{name}.csv"], tmp_path / name, pairs=[tmp_path / "p.txt"])
    assert files_in(tmp_path / "rows", "*.parquet") == files_in(tmp_path / "zero", "*.parquet")
    with refused(DataRejected, "column", "'grade'"):
        ingest([tmp_path / "rows.csv"], tmp_path / "out")


# ---- what is refused -----------------------------------------------------------------------------------------------

# beside those of malformed/cases.toml
TEXT = [
    ("q1 d0 d1\n  q1 d9 d1\n", (":2:6", "'q1'", "'d9'")),
    ("#q1 d0 d1\n", (":1:1", "comment", "'#q1'", "blank", "CSV")),
]
TABLES = [
    ("qid,better,worse,worse\n", ("'worse'", "twice")),
    ("qid,better,worse\n,d0,d1\n", (":2:1", "query")),
    ("worse,qid,better\nd0,q1,\n", (":2:7", "better")),
    ("qid,better,worse\nq1,d0,\n", (":2:7", "worse")),
    ("qid,better,worse,weight\nq1,d0,d1,\n", (":2:10", "weight", "1")),
    ("worse,qid,better\nd0,q1,d1\nd1,qx,d0\n", (":3:4", "query", "'qx'")),
]
SMALL = "qid,doc_id,grade,x\nq1,d0,0,1\nq1,d1,0,2\nq1,d2,0,3\nq1,d2,0,4\nq2,,0,5\n"


@pytest.mark.parametrize("name", ["p.txt", "p.csv"])
def test_a_bad_pair_is_named_and_nothing_is_written(tmp_path, name):
    (tmp_path / "rows.csv").write_text(SMALL)
    path = tmp_path / name
    for text, message in TEXT if name == "p.txt" else TABLES:
        path.write_text(text)
        with refused(DataRejected, path, message):
            ingest([tmp_path / "rows.csv"], tmp_path / "out", pairs=[path])
        assert sorted(file.name for file in tmp_path.iterdir()) == [name, "rows.csv"]


@pytest.mark.parametrize("suffix", [".txt", ".parquet"])
def test_the_first_pairs_that_do_not_fit_are_quarantined_in_the_order_of_the_files(tmp_path, judged, suffix):
    rng = random.Random(4)
    good = preferences(judged, 60, 3)
    wrong = [(rng.choice(["q3", "zz"]), ids_of(judged)["q3"][0], f"none{k}", 1.0, 1.0) for k in range(9)]
    pairs = rng.sample(good + wrong, len(good) + len(wrong))
    half = len(pairs) // 2
    files = [
        write_pairs(tmp_path / f"{name}{suffix}", part) for name, part in (("b", pairs[half:]), ("a", pairs[:half]))
    ]
    wrong_pairs = [pair for pair in pairs if pair in wrong]
    seen = set()
    for block in (20, 1 << 20):
        out = tmp_path / f"out-{block}"
        ingest([judged], out, pairs=files, options=IngestOptions(max_rejects=9, block_size=block, buckets=7))
        dataset = Dataset.open(out)
        assert (dataset.manifest.pairs.rejected, dataset.manifest.rejected_rows) == (9, 0)
        assert found_in(dataset)[0] == naive_datasets.joined(rows_of(dataset), good)[0]
        assert not (out / "_rejects.parquet").exists()
        listed = pq.read_table(out / "_pair_rejects.parquet").to_pylist()
        words = [pair[0] if pair[0] == "zz" else pair[2] for pair in wrong_pairs]
        assert [word in reject["reason"] for word, reject in zip(words, listed, strict=True)] == [True] * 9
        assert [reject["source"] for reject in listed] == sorted(reject["source"] for reject in listed)
        seen.add((out / "_pair_rejects.parquet").read_bytes())

        with pytest.raises(DataRejected) as first:
            ingest([judged], tmp_path / "no", pairs=files, options=IngestOptions(block_size=block))
        assert words[0] in str(first.value)
        with refused(TooManyRejects, first.value, "max_rejects 8", tmp_path / "no.rejects.parquet"):
            ingest([judged], tmp_path / "no", pairs=files, options=IngestOptions(max_rejects=8, block_size=block))
        beside = tmp_path / "no.rejects.parquet"
        assert pq.read_table(beside).to_pylist() == listed
        assert not (tmp_path / "no").exists()
    assert len(seen) == 1


def test_rows_and_pairs_share_one_bound_and_have_lists_of_their_own(tmp_path):
    (tmp_path / "rows.csv").write_text(SMALL + "q1,d3,-1,1\n")
    (tmp_path / "p.txt").write_text("q1 d0 d3\nq1 d0 d1\nq1 d0\n")
    ingest([tmp_path / "rows.csv"], tmp_path / "out", pairs=[tmp_path / "p.txt"], options=IngestOptions(max_rejects=3))
    listed = {
        name: pq.read_table(tmp_path / "out" / f"_{name}.parquet")["reason"].to_pylist()
        for name in ("rejects", "pair_rejects")
    }
    assert listed == {
        "rejects": ["expected a grade: a whole number, 0 or more, found -1"],
        "pair_rejects": [
            "expected qid better worse [weight [probability]], found 2 words",
            "expected a document of query 'q1', found d3",
        ],
    }
    with pytest.raises(TooManyRejects):
        ingest(
            [tmp_path / "rows.csv"], tmp_path / "no", pairs=[tmp_path / "p.txt"], options=IngestOptions(max_rejects=2)
        )
    (tmp_path / "p.txt").write_text("q1 d0 d7\n")
    ingest([tmp_path / "rows.csv"], tmp_path / "old", options=IngestOptions(max_rejects=1))
    before = files_in(tmp_path / "old")
    for out, overwrite in (("no", False), ("old", True)):
        options = IngestOptions(max_rejects=2, overwrite=overwrite)
        with refused(DataRejected, "p.txt", "pair", "1"):
            ingest([tmp_path / "rows.csv"], tmp_path / out, pairs=[tmp_path / "p.txt"], options=options)
    assert files_in(tmp_path / "old") == before


# ---- a dataset that is there ---------------------------------------------------------------------------------------


def test_bins_stay_when_only_the_pairs_are_others(tmp_path, judged):
    path = write_pairs(tmp_path / "p.txt", preferences(judged, 30, 8))
    ingest([judged], tmp_path / "out")
    bin_dataset(Dataset.open(tmp_path / "out"), 20)
    bins = Dataset.open(tmp_path / "out").manifest.bins
    options = IngestOptions(overwrite=True, max_rejects=1)
    ingest([judged], tmp_path / "out", pairs=[path], options=options)
    assert Dataset.open(tmp_path / "out").manifest.bins == bins != []
    ingest(
        [judged],
        tmp_path / "out",
        pairs=[write_pairs(tmp_path / "p.txt", [("q5", "d0", "gone", 1, 1), *preferences(judged, 9, 9)])],
        options=options,
    )
    assert Dataset.open(tmp_path / "out").manifest.bins == bins
    assert (tmp_path / "out" / "_pair_rejects.parquet").exists()
    ingest([judged], tmp_path / "out", options=options)
    assert Dataset.open(tmp_path / "out").pairs() is None
    assert Dataset.open(tmp_path / "out").manifest.bins == bins
    assert not (tmp_path / "out" / "_pair_rejects.parquet").exists()


# ---- the commands --------------------------------------------------------------------------------------------------


def test_commands_report_pairs(tmp_path, judged):
    wanted = preferences(judged, 50, 10)
    path = write_pairs(tmp_path / "p.txt", wanted)
    run = CliRunner()
    reported = run.invoke(
        app, ["ingest", str(judged), "--pairs", str(path), "-o", str(tmp_path / "out"), "--split", "train=0.5,test=0.5"]
    )
    assert f"\n  pairs     {len(wanted)} from 1 file\n" in reported.stdout, reported.output
    dataset = Dataset.open(tmp_path / "out")
    found = describe(dataset)
    for split in found.splits:
        pairs, starts = found_in(dataset, split.name)
        assert (split.pairs.pairs, split.pairs.contradicted) == (len(pairs), naive_datasets.contradicted(pairs))
        assert split.pairs.queries == sum(b > a for a, b in itertools.pairwise(starts))
    assert sum(split.pairs.contradicted for split in found.splits) > 0
    shown = run.invoke(app, ["describe", str(tmp_path / "out")]).stdout
    assert "pairs that another contradicts" in shown
    assert f"\npairs     p.txt ({path.stat().st_size:,} bytes)" in shown
    assert (
        json.loads(run.invoke(app, ["describe", str(tmp_path / "out"), "--json"]).stdout)["splits"][0]["pairs"]["pairs"]
        > 0
    )


def test_contradictions_are_counted_as_they_are_defined():
    from rankmill.pipeline.pairs.stored_pairs import PreferencePairs

    rng = np.random.default_rng(1)
    for n in (0, 1, 2, 5, 30):
        better = rng.integers(0, 6, n).astype(np.int32)
        worse = ((better + rng.integers(1, 6, n)) % 6).astype(np.int32)
        pairs = PreferencePairs(better, worse, np.ones(n), np.ones(n), np.array([0, n]))
        assert pairs.contradicted() == naive_datasets.contradicted(
            list(zip(better.tolist(), worse.tolist(), strict=True))
        )
