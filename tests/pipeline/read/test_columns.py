"""Which column plays which part: whatever columns are called, the rows, shards and messages are those of the right
names."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from rankmill.foundation.errors import DataRejected, InputError, MalformedLine, MalformedRow
from rankmill.pipeline.cli import app
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.pipeline.ingest import ingest
from rankmill.pipeline.options import IngestOptions, ReadOptions
from rankmill.pipeline.read.column_roles import HABITS, OPTIONAL, PARTS, parse_columns
from rankmill.pipeline.read.columns import table_columns
from rankmill.pipeline.read.open_source import open_source
from tests.refusals import refused
from tests.written import data_of, some_rows, write_rows

NAMES = {
    "qid": "Query ID",
    "doc_id": "seite",
    "grade": "stars",
    "label": "dwell",
    "event": "died",
    "weight": "w",
    "offset": "base",
    "position": "shown_at",
    "query_weight": "qw",
}
COLUMNS = ("qid", "doc_id", "grade", "label", "event", "weight", "offset", "position", "query_weight", "x", "a.b")


def judgments(n, seed):
    numbers = [-1.5, 0.0, 0.1, 0.7, 3.0]
    return some_rows(
        n, seed, label=numbers, event=range(2), weight=numbers[1:], offset=numbers, position=[1, 2, 2**31 - 1],
        query_weight=[1.5], **{"a.b": numbers},
    )  # fmt: skip


def renamed(rows, called, more=None):
    """Return ``rows`` with columns renamed by ``called`` and ``more`` columns (name to cell) besides."""
    return [{called.get(name, name): cell for name, cell in row.items()} | (more or {}) for row in rows]


def test_names_of_columns_and_ignored_columns_do_not_change_the_bytes(tmp_path):
    rows = judgments(200, 1)
    ingest([write_rows(tmp_path / "plain.csv", rows)], tmp_path / "plain")
    assert Dataset.open(tmp_path / "plain").optional_columns == ("label", "event", "weight", "offset", "position")
    expected = data_of(tmp_path / "plain")
    more = {"title": "some text", "debug_a": "x", "debug_b": 1, "split": "train"}
    options = IngestOptions(read=ReadOptions(columns=NAMES, ignore=("title", "debug_*", "split")))
    for suffix in (".csv", ".parquet", ".jsonl"):
        out = tmp_path / f"out{suffix}"
        report = ingest([write_rows(tmp_path / f"in{suffix}", renamed(rows, NAMES, more))], out, options=options)
        assert data_of(out) == expected
        assert report.columns_guessed == {}


@given(
    st.sampled_from(HABITS["qid"]),
    st.sampled_from(HABITS["doc_id"]),
    st.sampled_from(HABITS["grade"]),
    st.sampled_from([str.upper, str.title, lambda name: name.replace("id", "_ID")]),
)
@settings(max_examples=4, deadline=None)
def test_habits_are_guessed_in_any_spelling_and_reported(tmp_path_factory, qid, doc_id, grade, spelled):
    folder = tmp_path_factory.mktemp("habits")
    rows = judgments(16, 2)
    for row in rows:
        del row["label"]
    called = {"qid": spelled(qid), "doc_id": spelled(doc_id), "grade": spelled(grade)}
    ingest([write_rows(folder / "plain.csv", rows)], folder / "plain")
    said = []
    report = ingest([write_rows(folder / "in.csv", renamed(rows, called))], folder / "out", say=said.append)
    assert data_of(folder / "out") == data_of(folder / "plain")
    assert report.columns_guessed == {part: name for part, name in called.items() if part != name}
    assert all(f"{part} from {name!r}" in said[0] for part, name in report.columns_guessed.items())
    assert len(said) == (report.columns_guessed != {})


def test_a_guess_is_one_line_on_stderr_and_a_key_of_the_json(tmp_path):
    (tmp_path / "in.csv").write_text("query_id,relevance,x\n1,1,2\n")
    command = ["ingest", str(tmp_path / "in.csv"), "--json", "-o"]
    reported = CliRunner().invoke(app, [*command, str(tmp_path / "a")])
    assert reported.stderr == "columns: qid from 'query_id', grade from 'relevance' (inferred; set with --columns)\n"
    assert json.loads(reported.stdout)["columns_guessed"] == {"qid": "query_id", "grade": "relevance"}
    reported = CliRunner().invoke(app, [*command, str(tmp_path / "b"), "--columns", "qid=query_id,grade=relevance"])
    assert reported.stderr == ""
    assert json.loads(reported.stdout)["columns_guessed"] == {}


@pytest.mark.parametrize(
    ("names", "options", "parts", "features"),
    [
        (["qid", "query", "grade", "x"], {}, {"qid": "qid", "grade": "grade"}, ("query", "x")),
        (["qid", "label", "rating"], {}, {"qid": "qid", "label": "label"}, ("rating",)),
        (["qid", "rating", "x"], {"ungraded": True}, {"qid": "qid", "grade": "rating"}, ("x",)),
        (["qid", "x"], {"ungraded": True}, {"qid": "qid"}, ("x",)),
        (["qid", "grade", "url", "x"], {"columns": {"doc_id": ""}}, {"qid": "qid", "grade": "grade"}, ("url", "x")),
        (["qid", "grade", "label", "x"], {"columns": {"grade": "label"}, "ignore": ("grade",)}, {"qid": "qid", "grade": "label"}, ("x",)),
        (["qid", "grade", "a", "b"], {"ignore": ("[a]*",)}, {"qid": "qid", "grade": "grade"}, ("b",)),
        (["query", "topic", "grade", "x"], {"ignore": ("topic",)}, {"qid": "query", "grade": "grade"}, ("x",)),
        (["doc_id", "url", "grade", "x"], {"columns": {"qid": "doc_id"}}, {"qid": "doc_id", "grade": "grade", "doc_id": "url"}, ("x",)),
        (["qid", "x", "rel"], {"grade_required": False}, {"qid": "qid", "grade": "rel"}, ("x",)),
        (["qid", "x", "rel", "weight"], {"grade_required": False, "known_features": frozenset({"rel"})}, {"qid": "qid"}, ("rel",)),
        (["qid", "x", "rel", "split"], {"grade_required": False, "known_features": frozenset({"rel", "z"})}, {"qid": "qid"}, ("rel",)),
        (["qid", "x", "y2", "split"], {"grade_required": False, "known_features": frozenset({"z"})}, {"qid": "qid"}, ("x", "y2")),
    ],
)  # fmt: skip
def test_a_part_is_as_given_then_by_its_own_name_then_guessed(tmp_path, names, options, parts, features):
    found = table_columns(tmp_path, names, ReadOptions(**options))
    assert found.column_of == parts
    assert found.features == features


BAD = [  # beside those of malformed/cases.toml
    ("qid,grade,url,item,x", {}, DataRejected, ("doc_id", "'url'", "'item'", "columns doc_id=url")),
    ("query id;grade;x", {"columns": {"qid": "query id"}, "delimiter": ","}, InputError, ("';'", "delimiter ;")),
    ("query id;x", {"columns": {"qid": "query id"}, "grade_required": False, "delimiter": ","}, InputError, ("';'", "delimiter ;")),
    ("qid,x", {"columns": {"grade": "rating"}, "grade_required": False}, InputError, ("'rating'", "leave out grade=rating")),
    ("query_ids,grade,x", {"columns": {"qid": "query_id"}}, InputError, ("'query_id'", "columns", "'query_ids'")),
    ("qid,q,grade,x", {"columns": {"qid": "q"}}, DataRejected, ("'qid'", "columns", "ignore qid")),
    ("qid,grade,weight,x", {"columns": {"weight": ""}}, DataRejected, ("'weight'", "columns", "ignore weight")),
    ("qid,grade,x", {"columns": {"grade": "x"}, "ignore": ("x",)}, InputError, ("'x'", "columns", "grade", "ignore")),
    ("qid,grade,x", {"ignore": ("g*",)}, DataRejected, ("'grade'", "columns grade=NAME")),
    ("qid,grade,x", {"ignore": ("x",)}, DataRejected, ("feature", "qid, grade")),
]  # fmt: skip


@pytest.mark.parametrize(("header", "options", "error", "message"), BAD)
def test_columns_that_cannot_be_resolved_are_named(tmp_path, header, options, error, message):
    path = tmp_path / "in.csv"
    path.write_text(f"{header}\n")
    with refused(error, path, message):
        open_source(path, options=ReadOptions(**options))


def test_all_files_call_a_part_alike_and_text_has_no_names(tmp_path):
    (tmp_path / "a.csv").write_text("query,rel,x\n1,1,1\n")
    (tmp_path / "b.csv").write_text("query,rating,x\n1,1,1\n")
    (tmp_path / "c.txt").write_text("1 qid:1 1:1\n")
    (tmp_path / "d.csv").write_text("rel,x,query,title\n1,1,1,t\n")
    a, b, c, d = (tmp_path / name for name in ("a.csv", "b.csv", "c.txt", "d.csv"))
    with refused(DataRejected, b, "'rating'", a, "'rel'", "rename"):
        ingest([a, b], tmp_path / "out")
    for options in (ReadOptions(columns={"qid": "query"}), ReadOptions(ignore=("x",))):
        with refused(InputError, "c.txt", "LETOR", "tables"):
            ingest([c], tmp_path / "out", options=IngestOptions(read=options))
    with refused(DataRejected, "column", "'title'"):
        ingest([a, d], tmp_path / "out")
    ingest([a, d], tmp_path / "out", options=IngestOptions(read=ReadOptions(ignore=("title", "nothing_*"))))


def test_bad_cells_are_named_by_the_column_of_the_file(tmp_path):
    rows, options = judgments(8, 3), IngestOptions(read=ReadOptions(columns=NAMES))
    rows[2]["position"] = 0
    for suffix, error, *facts in (
        (".csv", MalformedLine, "in.csv:4", "position", "'0'"),
        (".parquet", MalformedRow, "row 3", "'shown_at'", "position", "0"),
    ):
        path = write_rows(tmp_path / f"in{suffix}", renamed(rows, NAMES))
        with refused(error, *facts):
            ingest([path], tmp_path / "out", options=options)


def test_a_position_is_a_whole_number_of_one_or_more(tmp_path):
    bad = ["0", "1.5", "", "2147483648", "-1", "x"]
    (tmp_path / "in.csv").write_text("qid,grade,position,x\n" + "".join(f"1,1,{cell},1\n" for cell in ["3", *bad]))
    with refused(MalformedLine, "in.csv:3:5", "position"):
        ingest([tmp_path / "in.csv"], tmp_path / "out")
    ingest([tmp_path / "in.csv"], tmp_path / "out", options=IngestOptions(max_rejects=len(bad)))
    rejects = pq.read_table(tmp_path / "out" / "_rejects.parquet").to_pylist()
    assert [(reject["line"], reject["column"]) for reject in rejects] == [(3 + k, 5) for k in range(len(bad))]
    rows = Dataset.open(tmp_path / "out").rows(None, ["position"])
    assert rows["position"].to_pylist() == [3]
    assert str(rows.schema.field("position").type) == "int32"


def test_every_part_can_be_renamed_once():
    with refused(InputError, "columns", "'qid'", "twice"):
        parse_columns(["qid=a", "qid=b"])
    assert set(PARTS) == set(NAMES) == {"qid", "doc_id", "grade", *OPTIONAL}
    assert set(COLUMNS) == set(judgments(8, 0)[0])
    assert all(part.replace("_", "") in habits for part, habits in HABITS.items())
    assert np.unique([name for habits in HABITS.values() for name in habits], return_counts=True)[1].max() == 1
