"""Grades from qrels, rows of a document made one, unjudged rows separate: laws of whole datasets."""

import itertools
import json
import random

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from rankmill.foundation.errors import DataRejected, InputError
from rankmill.pipeline.cli import app
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.pipeline.dataset.sql import query_dataset
from rankmill.pipeline.group import shard_writer
from rankmill.pipeline.ingest import ingest
from rankmill.pipeline.memory_plans import MemoryShare
from rankmill.pipeline.options import AGGREGATES, IngestOptions, ReadOptions
from rankmill.pipeline.read.files import find_files
from rankmill.pipeline.statistics.describe_dataset import describe
from tests import naive_datasets
from tests.refusals import refused, unnamed
from tests.written import data_of

SHARES = {"train": 0.6, "valid": 0.2, "test": 0.2}
FEATURES = ("x", "z")


def some_rows(n_queries=12, seed=1):
    """{(qid, doc_id): (x, z)}."""
    rng = random.Random(seed)
    return {
        (f"q{q}", f"d{d}"): (rng.choice(["", "0.5", "-3"]), f"{rng.random():.3f}")
        for q in range(n_queries)
        for d in range(q % 5 + 1)
    }


def write_rows(path, rows, grades=None):
    """Rows as CSV: of each document once, or with each of its grades in a row of its own."""
    lines = []
    for (qid, doc_id), values in rows.items():
        given = [()] if grades is None else [(str(grade),) for grade in grades.get((qid, doc_id), [])]
        lines += [",".join([qid, doc_id, *grade, *values]) for grade in given]
    random.Random(len(lines)).shuffle(lines)
    header = ["qid", "doc_id", *([] if grades is None else ["grade"]), *FEATURES]
    path.write_text("\n".join([",".join(header), *lines]) + "\n")
    return path


def write_qrels(path, judgments):
    """TREC's form, or a table of judgments with their times."""
    if path.suffix == ".csv":
        path.write_text("qid,doc_id,grade,when\n" + "".join(",".join(map(str, each)) + "\n" for each in judgments))
    else:
        path.write_text("".join(f"{qid} 0 {doc_id} {grade}\n" for qid, doc_id, grade in judgments))
    return path


def some_judgments(rows, seed=2, *, conflicting=True):
    """Up to four judgments of most of the documents, and some of documents that have no row."""
    rng = random.Random(seed)
    known = [*rows, ("q1", "gone"), ("nobody", "d0"), ("nothing", "d1")]
    found = []
    for qid, doc_id in known:
        first = rng.randrange(5)
        grades = (0, 1, 2, 3, 4, 2**31 - 2, 2**31 - 1)
        times = range(rng.choice([0, 1, 1, 2, 4]))
        found += [(qid, doc_id, rng.choice(grades) if conflicting else first) for _ in times]
    rng.shuffle(found)
    return found


def table_of(dataset, columns=("qid", "doc_id", "grade")):
    return Dataset.open(dataset).rows(None, columns).to_pylist()


def unjudged_of(dataset):
    opened = Dataset.open(dataset)
    tables = [pq.read_table(opened.unjudged_path(shard)) for shard in opened.manifest.unjudged]
    return [row for table in tables for row in table.to_pylist()]


@pytest.mark.parametrize("how", [*AGGREGATES, None])
def test_a_dataset_of_qrels_is_that_of_rows_with_these_grades(tmp_path, how):
    rows, rng = some_rows(), random.Random(4)
    judgments = [(*judgment, rng.randrange(3)) for judgment in some_judgments(rows, conflicting=how is not None)]
    by_document = naive_datasets.by_document(judgments)
    answers = {document: naive_datasets.aggregate(given, how) for document, given in by_document.items()}
    options = IngestOptions(split=SHARES, buckets=5, aggregate=how, read=ReadOptions(time_column="when"))
    qrels = write_qrels(tmp_path / "qrels.csv", judgments)
    report = ingest([write_rows(tmp_path / "rows.csv", rows)], tmp_path / "joined", qrels=[qrels], options=options)

    grades = {document: [answers[document][0]] for document in rows if document in answers}
    plain = write_rows(tmp_path / "graded.csv", rows, grades)
    columns = ("qid", "doc_id", "grade")
    if how in {"mean", "median"}:  # rows with label and grade
        lines = plain.read_text().splitlines()
        labels = [str(answers[tuple(line.split(",")[:2])][1]) for line in lines[1:]]
        plain.write_text(
            "\n".join(f"{line},{label}" for line, label in zip(lines, ["label", *labels], strict=True)) + "\n"
        )
        columns = (*columns, "label")
    ingest([plain], tmp_path / "plain", options=IngestOptions(split=SHARES, buckets=5))
    joined, wanted = Dataset.open(tmp_path / "joined"), Dataset.open(tmp_path / "plain")
    assert joined.manifest.shards == wanted.manifest.shards
    assert joined.digest == wanted.digest
    assert table_of(tmp_path / "joined", columns) == table_of(tmp_path / "plain", columns)

    found = report.manifest.judgments
    assert found.judgments == len(judgments)
    assert found.without_row == sum((q, d) not in rows for q, d, *_ in judgments) > 0
    assert found.repeated == sum(len(given) > 1 for given in by_document.values()) > 0
    assert found.conflicting == sum(len({grade for grade, _ in given}) > 1 for given in by_document.values())
    assert {(row["qid"], row["doc_id"]) for row in unjudged_of(tmp_path / "joined")} == {
        d for d in rows if d not in answers
    }
    assert report.manifest.rows + report.manifest.unjudged_rows == len(rows)
    assert report.manifest.repeats is None


@pytest.mark.parametrize(("how", "by_qrels"), [("mean", True), ("latest", True), (None, True), ("heaviest", False)])
def test_neither_order_nor_files_nor_memory_show(tmp_path, how, by_qrels, monkeypatch):
    rows, rng, seen = some_rows(20), random.Random(3), set()
    judgments = [(*judgment, rng.randrange(3)) for judgment in some_judgments(rows, conflicting=how is not None)]
    judgments = [(*each, *rows.get(each[:2], ())) for each in judgments if by_qrels or each[:2] in rows]
    for seed, (n_files, memory, threads) in enumerate([(1, 2 * 10**9, 1), (3, 512 * 10**6, 2), (2, 2 * 10**9, 2)]):
        rng = random.Random(seed)
        rng.shuffle(judgments)
        if seed == 1:  # too much to be held
            monkeypatch.setattr(shard_writer, "writing_share", lambda *_, **__: MemoryShare(2, 1))
        else:
            monkeypatch.undo()
        files = [tmp_path / f"{seed}-{k}.csv" for k in range(n_files)]
        for k, file in enumerate(files):
            if by_qrels:
                write_qrels(file, [each[:4] for each in judgments[k::n_files]])
            else:
                lines = [",".join(map(str, each)) + "\n" for each in judgments[k::n_files]]
                file.write_text("qid,doc_id,grade,when,x,z\n" + "".join(lines))
        options = IngestOptions(
            buckets=3, aggregate=how, read=ReadOptions(time_column="when"), memory=memory, threads=threads,
            block_size=rng.choice([20, 100]),
        )  # fmt: skip
        of_rows = files
        if by_qrels:
            shuffled = {document: rows[document] for document in rng.sample(sorted(rows), len(rows))}
            of_rows = [write_rows(tmp_path / f"rows-{seed}.csv", shuffled)]
        ingest(of_rows, tmp_path / str(seed), qrels=files if by_qrels else (), options=options)
        Dataset.open(tmp_path / str(seed)).verify()
        manifest, shards = data_of(tmp_path / str(seed), "judgments")
        seen.add((json.dumps(manifest), *sorted(shards)))
    assert len(seen) == 1


def test_unjudged_rows_are_candidates_in_the_order_of_the_dataset(tmp_path):
    rows = some_rows(30)
    judged = [(q, d, 1) for q, d in rows if q < "q2"]
    source = write_rows(tmp_path / "rows.csv", rows)
    with source.open("a") as file:
        file.write("q0,,7,7\nq0,,6,7\nq99,,5,5\n")
    report = ingest(
        [source], tmp_path / "out", qrels=[write_qrels(tmp_path / "q", judged)], options=IngestOptions(buckets=7)
    )
    opened = Dataset.open(tmp_path / "out")
    opened.verify()
    found = unjudged_of(tmp_path / "out")
    assert list(found[0]) == ["qid", "doc_id", "x", "z"]
    assert len(found) == report.manifest.unjudged_rows == len(rows) + 3 - len(judged)
    for shard in opened.manifest.unjudged:
        ids = pq.read_table(opened.unjudged_path(shard)).select(["qid", "doc_id"]).to_pylist()
        assert ids == sorted(ids, key=lambda row: (row["qid"], row["doc_id"] is None, row["doc_id"]))
    queries = set(opened.queries().qid.to_pylist())
    assert queries == {q for q, _, _ in judged}
    assert sorted(find_files([tmp_path / "out" / "_unjudged"])) == sorted(
        map(opened.unjudged_path, opened.manifest.unjudged)
    )

    # rows that a model is asked for are read as they are, and another ingest of them is the same again
    again = tmp_path / "again"
    everything = write_qrels(
        tmp_path / "all", [*judged, *((row["qid"], row["doc_id"], 1) for row in found if row["doc_id"])]
    )
    ingest([tmp_path / "out" / "_unjudged"], again, qrels=[everything], options=IngestOptions(buckets=7))
    assert Dataset.open(again).manifest.rows == len(rows) - len(judged)
    assert [row["doc_id"] for row in unjudged_of(again)] == [None] * 3


def test_only_the_unjudged_rows_of_today_are_those_of_the_dataset(tmp_path):
    rows = some_rows()
    source = write_rows(tmp_path / "rows.csv", rows)
    for number, n in enumerate((3, 9, 14)):
        qrels = write_qrels(tmp_path / f"q{number}", [(q, d, 1) for q, d in list(rows)[:n]])
        ingest([source], tmp_path / "out", qrels=[qrels], options=IngestOptions(buckets=2, overwrite=True))
        opened = Dataset.open(tmp_path / "out")
        assert find_files([tmp_path / "out" / "_unjudged"]) == sorted(
            map(opened.unjudged_path, opened.manifest.unjudged)
        )
    assert len(list((tmp_path / "out" / "_unjudged").iterdir())) <= 4
    ingest(
        [source],
        tmp_path / "out",
        qrels=[write_qrels(tmp_path / "q", [(q, d, 1) for q, d in rows])],
        options=IngestOptions(overwrite=True),
    )
    with refused(InputError, tmp_path / "out", "unjudged rows"):
        find_files([tmp_path / "out" / "_unjudged"])


@pytest.mark.parametrize("how", [*AGGREGATES, None])
def test_every_row_is_somewhere(tmp_path, how):
    """Rows in = judged + unjudged + merged + rejected, and each is where plain Python has it."""
    rng = random.Random(str(how))
    lines, rows, bad = [], [], 0
    for time in range(200):
        qid, doc_id = f"q{rng.randrange(9)}", rng.choice(["", "a", "b", "c"])
        x = rng.randrange(3) if not doc_id or how in {"latest", None} else len(qid + doc_id)
        grade = rng.choice(["", "0", "1", "3", "null", "x", "2147483646", "2147483647"])
        bad += grade == "x"
        lines.append(f"{qid},{doc_id},{grade},{x},{time}")
        if grade != "x":
            rows.append((qid, doc_id or None, int(grade) if grade.isdigit() else -1, float(x), time))
    source = tmp_path / "rows.csv"
    source.write_text("qid,doc_id,grade,x,when\n" + "\n".join(rng.sample(lines, len(lines))) + "\n")
    options = IngestOptions(aggregate=how, max_rejects=200, buckets=3, read=ReadOptions(time_column="when"))
    manifest = ingest([source], tmp_path / "out", options=options).manifest

    groups = {}
    for number, row in enumerate(rows):
        groups.setdefault(number if how is None or row[1] is None else row[:2], []).append(row)
    judged, unjudged = [], []
    for group in groups.values():
        known = [row for row in group if row[2] >= 0] or group
        qid, doc_id, _, x, _ = max(known, key=lambda row: row[4]) if how == "latest" else known[0]
        if known[0][2] >= 0:
            grade, label = naive_datasets.aggregate([(row[2], row[4]) for row in known], how)
            judged.append((qid, doc_id, grade, x) if label is None else (qid, doc_id, grade, x, label))
        else:
            unjudged.append((qid, doc_id, x))
    columns = ("qid", "doc_id", "grade", "x", *(["label"] if how in {"mean", "median"} else []))
    key = str
    assert sorted((tuple(row.values()) for row in table_of(tmp_path / "out", columns)), key=key) == sorted(
        judged, key=key
    )
    assert sorted((tuple(row.values()) for row in unjudged_of(tmp_path / "out")), key=key) == sorted(unjudged, key=key)
    known = [
        [row[2] for row in rows if row[:2] == document and row[2] >= 0]
        for document in {row[:2] for row in rows if row[1]}
    ]
    assert manifest.repeats.documents == sum(len(grades) > 1 for grades in known) > 0
    assert manifest.repeats.conflicting == sum(len(set(grades)) > 1 for grades in known) > 0
    assert manifest.meaning.aggregate == how
    merged = manifest.repeats.merged_rows
    assert (merged > 0) == (how is not None)
    assert manifest.rejected_rows == bad
    assert len(lines) == manifest.rows + manifest.unjudged_rows + merged + manifest.rejected_rows


# ---- what is refused -----------------------------------------------------------------------------------------------


def rejection(tmp_path, rows, *, qrels=None, **options):
    (tmp_path / "rows.csv").write_text(rows)
    given = []
    for name, text in (qrels or {}).items():
        (tmp_path / name).write_text(text)
        given.append(tmp_path / name)
    with pytest.raises((DataRejected, InputError)) as caught:
        ingest([tmp_path / "rows.csv"], tmp_path / "out", qrels=given, options=IngestOptions(**options))
    assert not (tmp_path / "out").exists()
    return str(caught.value).replace(f"{tmp_path}/", "")


ROWS = "qid,doc_id,x\nq,a,1\nq,b,2\n"


def test_judgments_that_cannot_be_used(tmp_path):
    """Beside those of malformed/cases.toml."""
    latest = {"aggregate": "latest", "read": ReadOptions(time_column="t")}
    for qrels, options, *facts in (
        ({"j": "z 0 a 1\nz 0 a 2\n"}, {"buckets": 50}, "'z'", "'a'", "1 and 2", "aggregate"),
        ({"j": "q 0 b 3\nq 0 c 1\nq 0 b 0\nq 0 c 0\nq 0 b 1\n"}, {}, "'q'", "'b'", "0, 1 and 3", *AGGREGATES),
        ({"j": "q 0 a 1\n"}, {"read": ReadOptions(unjudged="reject")}, "'q'", "'b'", "unjudged keep", "unjudged zero"),
        ({"j": "q 0 a 1\n"}, latest, "j", "times", "TREC", "table"),
        ({"j.csv": "qid,doc_id,grade,T\nq,a,1,1\n"}, latest, "j.csv", "'t'", "time_column", "latest"),
        ({"j": "q 0 a 7\n"}, {"read": ReadOptions(max_grade=4)}, "j:1:7", "4", "'7'"),
    ):
        assert not unnamed(rejection(tmp_path, ROWS, qrels=qrels, **options), *facts)


GRADED = "qid,doc_id,grade,x,z\n"


def test_rows_that_cannot_be_merged(tmp_path):
    for rows, how, *facts in (
        *(
            (GRADED + "".join(lines), how, "'q'", "'a'", "1 and 7", "feature 'z'", f"aggregate {how}", "latest")
            for lines in itertools.permutations(["q,a,1,1,1\n", "q,b,1,1,1\n", "q,a,2,1,7\n"])
            for how in ("mean", "max")
        ),
        (GRADED + "q,a,1,,1\nq,a,2,1,1\n", "mean", "1 and nan", "feature 'x'"),
        ("qid,doc_id,grade,weight,x\nq,a,1,1,1\nq,a,1,0.25,1\n", "max", "0.25 and 1", "column 'weight'"),
        (GRADED + "q,a,1,1,1\nq,a,2,1,1\n", "latest", "times", "time_column"),
        ("qid,doc_id,grade,label,x\nq,a,1,1,1\n", "median", "rows.csv", "labels"),
        ("qid,doc_id,label,x\nq,a,1,1\n", "max", "rows.csv", "no grades"),
    ):
        assert not unnamed(rejection(tmp_path, rows, aggregate=how), *facts)


def test_of_equal_times_the_higher_grade_is_the_latest_whole_row(tmp_path):
    rows = ["q,d,3,1,1,1\n", "q,d,0,2,2,2\n", "q,d,1,3,3,2\n", "q,d,,4,4,9\n"]
    read = ReadOptions(time_column="when", unjudged="keep")
    for number, lines in enumerate(itertools.permutations(rows)):
        (tmp_path / "a.csv").write_text("qid,doc_id,grade,x,z,when\n" + "".join(lines))
        options = IngestOptions(aggregate="latest", read=read)
        assert ingest([tmp_path / "a.csv"], tmp_path / str(number), options=options).manifest.repeats.merged_rows == 3
        found = table_of(tmp_path / str(number), ("grade", "x", "z"))
        assert found == [{"grade": 1, "x": 3.0, "z": 3.0}]


def test_rows_without_a_judgment_may_be_zero(tmp_path):
    source, qrels = write_rows(tmp_path / "a.csv", {("q", "a"): ("1", "1"), ("q", "b"): ("2", "2")}), tmp_path / "j"
    options = IngestOptions(read=ReadOptions(unjudged="zero"))
    ingest([source], tmp_path / "out", qrels=[write_qrels(qrels, [("q", "b", 2)])], options=options)
    assert [row["grade"] for row in table_of(tmp_path / "out")] == [0, 2]


def test_rows_of_a_query_in_two_splits_are_no_more_hidden_by_merging(tmp_path):
    for name in ("a", "b"):
        (tmp_path / f"{name}.csv").write_text(GRADED + f"q{name},d,1,1,1\nq,d,1,1,1\n")
    with refused(DataRejected, "'q'", "train", "a.csv", "test", "b.csv"):
        ingest(
            [tmp_path / "a.csv"], tmp_path / "out", test=[tmp_path / "b.csv"], options=IngestOptions(aggregate="mean")
        )


# --------------------------------------------------------------------------------------------------


def test_what_is_counted_is_reported(tmp_path):
    rows = {("q", d): ("1", "2") for d in "abcd"}
    write_rows(tmp_path / "rows.csv", rows)
    qrels = write_qrels(tmp_path / "j", [("q", "a", 1), ("q", "a", 3), ("q", "b", 0), ("q", "z", 4)])
    with qrels.open("a") as file:
        file.write("q 0 c bad\n")
    command = [
        "ingest",
        str(tmp_path / "rows.csv"),
        "--qrels",
        str(qrels),
        "-o",
        str(tmp_path / "out"),
        "--max-rejects",
        "1",
    ]
    command += ["--aggregate", "mean"]
    shown = CliRunner().invoke(app, command)
    assert shown.exit_code == 0, shown.output
    assert not unnamed(shown.output, "4 judgments", "1 file", "1 of documents")
    assert not unnamed(shown.output, "1 document", "more than once", "1 of them")
    assert not unnamed(shown.output, "1 judgment", tmp_path / "out" / "_judgment_rejects.parquet")
    assert not unnamed(shown.output, "2 rows", tmp_path / "out" / "_unjudged")
    (listed,) = pq.read_table(tmp_path / "out" / "_judgment_rejects.parquet").to_pylist()
    assert (listed["source"], listed["line"], listed["column"], listed["text"]) == ("j", 5, 7, "q 0 c bad")
    facts = json.loads(CliRunner().invoke(app, [*command, "--overwrite", "--json"]).stdout)
    assert facts["unjudged_rows"] == 2
    assert {name: facts["judgments"][name] for name in ("judgments", "without_row", "repeated", "conflicting", "rejected")} == {
        "judgments": 4, "without_row": 1, "repeated": 1, "conflicting": 1, "rejected": 1,
    }  # fmt: skip
    assert table_of(tmp_path / "out", ["doc_id", "grade", "label"]) == [
        {"doc_id": "a", "grade": 2, "label": 2.0},
        {"doc_id": "b", "grade": 0, "label": 0.0},
    ]
    answer = query_dataset(Dataset.open(tmp_path / "out"), "SELECT doc_id, text FROM unjudged, judgment_rejects")
    assert sorted(zip(*answer.to_pydict().values(), strict=True)) == [("c", "q 0 c bad"), ("d", "q 0 c bad")]
    found = describe(Dataset.open(tmp_path / "out"))
    assert "2 rows without a judgment" in found.render()
    assert json.loads(found.to_json())["unjudged_rows"] == 2


# ---- TREC's own ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["qrels.test", "qrels.rel_level"])
def test_the_run_and_judgments_of_trec_eval(tmp_path, test_data, name):
    folder = test_data / "trec_eval"
    run = [line.split() for line in (folder / "results.test").read_text().splitlines()]
    judged = {(w[0], w[2]): int(w[3]) for w in map(str.split, (folder / name).read_text().splitlines())}
    options = IngestOptions(format="run", read=ReadOptions(negative_grades="unjudged"))
    report = ingest([folder / "results.test"], tmp_path / "out", qrels=[folder / name], options=options)
    wanted = {(w[0], w[2]): judged[w[0], w[2]] for w in run if judged.get((w[0], w[2]), -1) >= 0}
    found = {(row["qid"], row["doc_id"]): row["grade"] for row in table_of(tmp_path / "out")}
    assert found == wanted
    manifest = report.manifest
    assert manifest.rows == len(wanted)
    assert manifest.unjudged_rows == len(run) - len(wanted)
    graded = {document for document, grade in judged.items() if grade >= 0}
    assert manifest.judgments.judgments == len(graded)
    assert manifest.judgments.ungraded == len(judged) - len(graded)
    assert manifest.judgments.without_row == len(graded - {(w[0], w[2]) for w in run})
    scores = {(w[0], w[2]): np.float32(float(w[4])) for w in run}
    table = pl.DataFrame(Dataset.open(tmp_path / "out").rows(None, ["qid", "doc_id", "score"]))
    assert all(scores[q, d] == np.float32(s) for q, d, s in table.rows())
