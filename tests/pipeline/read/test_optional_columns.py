"""Labels, events, weights and offsets: every number comes through to its row, whatever file and order brought it."""

import json
import random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from rankmill.foundation.errors import DataRejected, InputError, MalformedLine
from rankmill.pipeline.cli import app
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.pipeline.ingest import ingest
from rankmill.pipeline.options import IngestOptions, ReadOptions
from rankmill.pipeline.read.column_roles import OPTIONAL
from rankmill.pipeline.read.open_source import open_source
from rankmill.pipeline.read.role_columns import read_finite
from rankmill.pipeline.statistics.describe_dataset import describe
from tests.refusals import refused, unnamed
from tests.written import files_in, write_rows

COLUMNS = ("label", "event", "weight", "offset")


def judgments(n, seed):
    """Rows of every optional column; documents come several times, at times with the same features and grade."""
    rng = random.Random(seed)
    weight_of = {}
    rows = []
    for _ in range(n):
        qid = f"q{rng.randrange(n // 10)}"
        rows.append(
            {
                "qid": qid,
                "doc_id": rng.choice(["", f"d{rng.randrange(5)}"]),
                "grade": rng.randrange(3),
                "label": rng.choice([-0.0, 0.0, 0.1, -2.5e-7, rng.gauss(0, 1)]),
                "event": rng.randrange(2),
                "weight": rng.choice([0.0, 1.0, rng.random()]),
                "offset": rng.choice([0.0, -3.25]),
                "query_weight": weight_of.setdefault(qid, rng.choice([0.0, 1.0, 1 / 3])),
                "x": rng.choice([0.0, 1.0]),
            }
        )
    return rows


def test_every_number_comes_to_its_row(tmp_path):
    rows = judgments(400, 1)
    options = IngestOptions(buckets=5, split={"train": 0.5, "valid": 0.5})
    ingest([write_rows(tmp_path / "all.csv", rows)], tmp_path / "all", options=options)
    dataset = Dataset.open(tmp_path / "all")
    assert dataset.optional_columns == COLUMNS
    narrow = ["qid", "doc_id", "grade", *COLUMNS, "x"]
    found = dataset.rows(None, narrow)
    assert [str(found.schema.field(name).type) for name in COLUMNS] == ["double", "uint8", "double", "double"]
    got = sorted(zip(*(found[name].to_pylist() for name in narrow), strict=True), key=repr)
    wanted = [tuple(0.0 + row[name] if name in COLUMNS else row[name] or None for name in narrow) for row in rows]
    assert got == sorted([(q, d, g or 0, *rest[:-1], rest[-1] or 0.0) for q, d, g, *rest in wanted], key=repr)
    weight_of = {row["qid"]: row["query_weight"] for row in rows}
    for split in (None, "train", "valid", "test"):  # the last one is empty
        queries, part = dataset.queries(split), dataset.rows(split, COLUMNS)
        assert queries.weights.dtype == np.float64
        assert queries.weights.tolist() == [weight_of[qid] for qid in queries.qid.to_pylist()]
        assert (len(part), part.schema.types) == (queries.n_rows, found.select(COLUMNS).schema.types)
    assert str(found.schema.field("grade").type) == "int32"


def test_a_dataset_without_them_says_nothing_of_them(tmp_path):
    (tmp_path / "in.txt").write_text("1 qid:1 1:1\n")
    ingest([tmp_path / "in.txt"], tmp_path / "out")
    manifest = json.loads((tmp_path / "out" / "_manifest.json").read_bytes())
    assert sorted(manifest["meaning"]) == ["absent", "index_base", "split"]
    assert not {"columns", "pairs", "goals", "categorical", "categories"} & manifest.keys()
    assert not (tmp_path / "out" / "_categories").exists()
    dataset = Dataset.open(tmp_path / "out")
    assert (dataset.optional_columns, dataset.goals, dict(dataset.vocabulary.texts)) == ((), {}, {})
    assert dataset.queries().weights is None
    for name in OPTIONAL:
        with refused(InputError, "column", f"'{name}'"):
            dataset.rows(None, [name])


# ---- labels and grades ---------------------------------------------------------------------------------------------


@given(st.lists(st.floats(-1e38, 1e38), min_size=1, max_size=12))
@settings(max_examples=4, deadline=None)
def test_a_label_is_the_same_number_from_text_and_tables(tmp_path_factory, labels):
    folder = tmp_path_factory.mktemp("labels")
    rows = [{"qid": "q", "doc_id": f"d{k}", "label": label, "f1": float(k)} for k, label in enumerate(labels)]
    text = "".join(f"{label!r} qid:q 1:{k} #docid = d{k}\n" for k, label in enumerate(labels))
    (folder / "in.txt").write_text(text)
    ingest([folder / "in.txt"], folder / "text", options=IngestOptions(read=ReadOptions(labels="real")))
    assert json.loads((folder / "text" / "_manifest.json").read_bytes())["meaning"]["labels"] == "real"
    for suffix in (".csv", ".parquet"):
        ingest([write_rows(folder / f"in{suffix}", rows)], folder / suffix[1:])
        assert files_in(folder / suffix[1:], "*.parquet") == files_in(folder / "text", "*.parquet")
    found = Dataset.open(folder / "text").rows(None, ["doc_id", "label", "grade"])
    label_of = dict(zip(found["doc_id"].to_pylist(), found["label"].to_pylist(), strict=True))
    assert label_of == {f"d{k}": label for k, label in enumerate(labels)}


@given(
    st.lists(
        st.one_of(st.from_regex(r"[+-]?[0-9]*\.?[0-9]*([eE][+-]?[0-9]{1,3})?", fullmatch=True), st.text(max_size=4))
    )
)
@settings(max_examples=60, deadline=None)
def test_tokens_are_read_as_python_reads_them(tokens):
    def naive(token):
        try:
            number = float(token)
        except ValueError:
            return None
        plain = token.strip(" \t").isascii() and "_" not in token and token.strip(" \t") == token.strip()
        return number if np.isfinite(number) and plain else None

    found = read_finite(pa.array(tokens, pa.string())).tolist()
    assert [None if np.isnan(x) else x for x in found] == [naive(token) for token in tokens]


@pytest.mark.parametrize(
    ("labels", "max_grade", "grades"),
    [
        (["31", "2.0", "4"], None, [31, 2, 4]),
        (["0", "2.5", "4"], None, [0, 0, 0]),
        (["0", "-1", "4"], None, [0, 0, 0]),
        (["32", "0", "4"], None, [0, 0, 0]),
        (["32", "0", "4"], 40, [32, 0, 4]),
        (["3", "0", "1"], 2, [0, 0, 0]),
    ],
)
def test_whole_labels_of_all_rows_are_grades_too(tmp_path, labels, max_grade, grades):
    (tmp_path / "a.txt").write_text("".join(f"{x} qid:{k} 1:1\n" for k, x in enumerate(labels)))
    (tmp_path / "a.csv").write_text("qid,label,f1\n" + "".join(f"{k},{x},1\n" for k, x in enumerate(labels)))
    for file, reported in (("a.txt", "real"), ("a.csv", "grade")):
        out = tmp_path / f"{file}.out"
        ingest([tmp_path / file], out, options=IngestOptions(read=ReadOptions(labels=reported, max_grade=max_grade)))
        rows = Dataset.open(out).rows(None, ["qid", "grade", "label"])
        assert sorted(zip(*(rows[name].to_pylist() for name in rows.column_names), strict=True)) == [
            (str(k), grade, float(label)) for k, (grade, label) in enumerate(zip(grades, labels, strict=True))
        ]
    assert files_in(tmp_path / "a.txt.out", "*.parquet") == files_in(tmp_path / "a.csv.out", "*.parquet")


# ---- what is refused -----------------------------------------------------------------------------------------------

LABEL = "3.4e38"
BAD_CELLS = {
    "label": ("x", "", "nan", "inf", "-4e38", "1e999", "0x1"),
    "event": ("2", "0.5", ""),
    "weight": ("-0.1", " ", "inf"),
    "offset": ("1_5", ""),
    "query_weight": ("-1", "x"),
}
FACTS = {
    "label": LABEL,
    "event": (0, 1, "event"),
    "weight": (0, "weight"),
    "offset": LABEL,
    "query_weight": "query weight",
}


@pytest.mark.parametrize("name", BAD_CELLS)
def test_a_bad_cell_is_named_by_line_and_column_and_nothing_is_written(tmp_path, name):
    path, cells = tmp_path / "bad.tsv", BAD_CELLS[name]
    path.write_text(f"qid\tgrade\t{name}\tx\n1\t0\t1\t5\n" + "".join(f"1\t0\t{cell}\t5\n" for cell in cells))
    with refused(MalformedLine, f"{path}:3:5", repr(cells[0]), FACTS[name]):
        ingest([path], tmp_path / "out")
    assert [file.name for file in tmp_path.iterdir()] == ["bad.tsv"]
    ingest([path], tmp_path / "out", options=IngestOptions(max_rejects=len(cells)))
    rejects = pq.read_table(tmp_path / "out" / "_rejects.parquet").to_pylist()
    assert [(reject["line"], reject["column"]) for reject in rejects] == [(3 + k, 5) for k in range(len(cells))]
    assert [unnamed(reject["reason"], FACTS[name]) for reject in rejects] == [[] for _ in cells]
    assert len(Dataset.open(tmp_path / "out").rows()) == 1


def test_a_bad_value_of_parquet_is_named_by_row_and_column(tmp_path):
    path = tmp_path / "bad.parquet"
    for name, column, *facts in (
        ("label", [1.0, None], "row 2", LABEL),
        ("label", [1.0, float("inf")], "row 2", LABEL, "inf"),
        ("event", [1, 3], "row 2", 1, 0, 3),
        ("weight", [0.0, -2.0], "row 2", 0, -2),
        ("offset", ["1", "2"], "string"),
    ):
        pq.write_table(pa.table({"qid": ["1", "1"], "grade": [0, 0], name: column, "x": [1.0, 2.0]}), path)
        with refused(DataRejected, path, repr(name), *facts):
            ingest([path], tmp_path / "out")
        assert not (tmp_path / "out").exists()


def test_files_bring_the_same_columns(tmp_path):
    a, b, c, d = (tmp_path / f"{name}.csv" for name in "abcd")
    a.write_text("qid,grade,weight,x\n1,0,1,1\n")
    b.write_text("qid,grade,x\n1,0,1\n")
    c.write_text("qid,label,x\n1,0.5,1\n")
    d.write_text("qid,grade,label,x\n1,0,0.5,1\n")
    for files, message in (
        ([a, b], (b, "'weight'", a)),
        ([b, a], (b, "'weight'", a)),
        ([c, d], (d, "'grade'", c)),
    ):
        with refused(DataRejected, message):
            ingest(files, tmp_path / "out")


def test_candidates_pass_over_what_only_judgments_have(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("qid,weight,label,x\n1,-5,hm,2\n")
    pq.write_table(pa.table({"qid": ["1"], "weight": ["?"], "x": [2.0]}), tmp_path / "a.parquet")
    for file in (path, tmp_path / "a.parquet"):
        source = open_source(file, options=ReadOptions(grade_required=False))
        (batch,) = source.batches()
        assert source.columns == ("x",)
        assert (batch.values.tolist(), dict(batch.extras), batch.grade) == ([[2.0]], {}, None)


# ---- the commands --------------------------------------------------------------------------------------------------


def test_commands_tell_of_them(tmp_path):
    rows = judgments(60, 3)
    write_rows(tmp_path / "in.csv", rows)
    run = CliRunner()
    reported = run.invoke(app, ["ingest", str(tmp_path / "in.csv"), "-o", str(tmp_path / "out")])
    assert "\n  besides   label, event, weight, offset, query_weight\n" in reported.stdout
    dataset = Dataset.open(tmp_path / "out")
    (split,) = describe(dataset).splits
    for name in COLUMNS:
        column = [float(row[name]) for row in rows]
        spread = split.columns[name]
        assert (spread.minimum, spread.maximum) == (min(column), max(column))
        assert spread.mean == pytest.approx(sum(column) / len(column), rel=1e-12)
    reported = json.loads(run.invoke(app, ["describe", str(tmp_path / "out"), "--json"]).stdout)
    assert list(reported["splits"][0]["columns"]) == [*COLUMNS, "query_weight"]
    shown = run.invoke(app, ["describe", str(tmp_path / "out")]).stdout
    assert "event, min / mean / max" in shown
    (tmp_path / "in.txt").write_text("0.25 qid:1 1:1\n-3 qid:1 1:2\n")
    reported = run.invoke(
        app, ["ingest", str(tmp_path / "in.txt"), "-o", str(tmp_path / "real"), "--labels", "real", "--json"]
    )
    assert json.loads(reported.stdout)["columns"] == ["label"]
