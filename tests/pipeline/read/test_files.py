"""Which files a name, a folder or a pattern means."""

import bz2
import gzip
import io
import itertools
import lzma
import os
import zipfile

import polars as pl
import pyarrow as pa
import pytest
from pyarrow import orc
from typer.testing import CliRunner

from rankmill.cli import execute
from rankmill.clicks.read_log import open_click_log
from rankmill.foundation.errors import DataRejected, InputError, RankmillError
from rankmill.pipeline.cli import app
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.pipeline.dataset.manifest import MANIFEST_NAME
from rankmill.pipeline.ingest import ingest
from rankmill.pipeline.options import IngestOptions, ReadOptions
from rankmill.pipeline.read.files import find_files, format_of
from rankmill.scorer.evaluate.scored_file import read_qrels, read_scored
from rankmill.scorer.rerank.candidate_sources import files_of
from tests.refusals import only_line, refused, unnamed

LINE = "1 qid:{} 1:0.5\n"
TREE = """
day/a.txt day/b.txt.gz day/c.csv day/part-00000 day/X.TSV day/rank.train day/rank.train.query
day/rank.train.group.gz day/.hidden.txt day/_SUCCESS day/notes.md day/LICENSE day/Readme.dat day/sub/d.txt
day/sub/deep/e.txt day/sub/deep/.more/f.txt only/notes.md odd[1].txt odd1.txt
"""


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A folder of judgments with everything in it that may stand beside them; the current folder."""
    for name in TREE.split():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(LINE.format(name))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def names(*given, root=None):
    return [str(path) for path in find_files(given, root)]


def test_a_folder_is_the_files_of_rows_directly_in_it(tree):
    expected = ["day/X.TSV", "day/a.txt", "day/b.txt.gz", "day/c.csv", "day/part-00000", "day/rank.train"]
    assert names("day") == names("day/") == expected
    assert names("day", root=tree) == [str(tree / name) for name in expected]


def test_patterns_match_files_only_and_no_companions(tree):
    assert names("day/*.txt") == ["day/a.txt"]
    assert names("day/**/*.txt") == ["day/a.txt", "day/sub/d.txt", "day/sub/deep/e.txt"]
    assert names("day/rank*") == ["day/rank.train"]
    assert names("day/[ab].*", "day/?.csv") == ["day/a.txt", "day/b.txt.gz", "day/c.csv"]
    assert names("day/s*/*") == ["day/sub/d.txt"]
    assert names(f"{tree}/day/*.txt", root=tree / "day") == [f"{tree}/day/a.txt"]


def test_what_is_there_is_no_pattern(tree):
    assert names("odd[1].txt") == ["odd[1].txt"]
    assert names("odd[12].txt") == ["odd1.txt"]
    assert names("day/rank.train.query") == ["day/rank.train.query"]
    (tree / "c[1]*").mkdir()
    (tree / "c[1]*" / "x.txt").touch()
    assert names("c[1]*") == ["c[1]*/x.txt"]
    assert names("*.txt", root=tree / "c[1]*") == [f"{tree}/c[1]*/x.txt"]


def test_order_and_overlap_do_not_matter(tree):
    (tree / "link.txt").symlink_to("day/a.txt")
    given = ["day", "day/*.txt", "day/a.txt", "link*"]
    found = {tuple(names(*order)) for order in itertools.permutations(given)}
    assert found == {tuple(names("day"))}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("gone.txt", ("gone.txt", "no such file")),
        ("gone/*.txt", "'gone/*.txt'"),
        ("day/s[u]b", ("'day/s", "[u]")),
        ("day/*.query", "'day/*.query'"),
    ],
)
def test_what_means_nothing_is_an_error(tree, given, message):
    with refused(InputError, message):
        find_files(["day", given])


def test_the_command_takes_folders_and_patterns_for_every_split(tmp_path, monkeypatch):
    for name in ("train/a.txt", "train/b.txt", "later/v.txt", "later/t.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(LINE.format(name))
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(
        app, ["ingest", "train", "--valid", "later/v*", "--test", "*/t.txt", "-o", "one"], catch_exceptions=False
    )
    assert result.exit_code == 0
    ingest(["train/b.txt", "train/a.txt"], tmp_path / "two", valid=["later/v.txt"], test=["later/t.txt"])
    assert Dataset.open(tmp_path / "one").manifest == Dataset.open(tmp_path / "two").manifest
    with refused(InputError, "later/v.txt", "train", "valid"):
        ingest(["**/*.txt"], tmp_path / "three", valid=["later/v.txt"])
    with refused(InputError, "train/a.txt", "twice"):
        ingest(["train/a.txt", "train/a.txt"], tmp_path / "three")


def test_a_dataset_is_no_folder_of_rows(tmp_path):
    rows = tmp_path / "rows.csv"
    rows.write_text("qid,grade,x\nq,1,0.5\nq,,0.7\n")
    ingest([rows], tmp_path / "some")
    with refused(InputError, "some/_unjudged", "--split"):
        find_files([tmp_path / "some"])
    assert len(find_files([tmp_path / "some" / "_unjudged"])) == 1
    with refused(InputError, "unjudged", "some/_unjudged"):
        find_files([tmp_path / "some" / "unjudged"])
    rows.write_text("qid,grade,x\nq,1,0.5\n")
    ingest([rows], tmp_path / "all")
    with refused(InputError, "all", "re-rank"):
        find_files([tmp_path / "all"])


def test_json_is_json_lines_but_for_a_manifest(tmp_path):
    for name in ("a.json", "b.json.gz", "manifest.json"):
        (tmp_path / name).write_text('{"qid": "q", "grade": 1, "x": 0.5}\n')
    assert names(tmp_path) == [f"{tmp_path}/a.json", f"{tmp_path}/b.json.gz"]
    found = ingest([tmp_path / "a.json"], tmp_path / "out").manifest
    assert (found.rows, found.features) == (1, ["x"])
    assert {format_of(tmp_path / name) for name in ("a.json", "b.json.gz")} == {"jsonl"}


QRELS = "q 0 d 1\n"
PAIRS = "q d e\n"
ROWS = "1 qid:q 1:0.5 #docid = d\n0 qid:q 1:0.7 #docid = e\n"


@pytest.mark.parametrize("role", ["train", "valid", "qrels", "pairs"])
def test_two_files_with_the_same_bytes_are_refused(tmp_path, role):
    contents = {"train": ROWS, "valid": ROWS, "qrels": QRELS, "pairs": PAIRS}
    rows, one, other = (tmp_path / name for name in ("rows.txt", "one.txt", "other.txt"))
    rows.write_text(ROWS.replace("qid:q", "qid:q ") + "0 qid:z 1:1\n")
    one.write_text(contents[role])
    other.write_text(contents[role])
    given = {"train": [rows], role: [rows, one, other] if role == "train" else [one, other]}
    with refused(InputError, one, other, "same bytes"):
        ingest(**given, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_copy_for_another_split_is_refused_and_another_file_of_the_same_size_is_not(tmp_path):
    one, other = tmp_path / "one.txt", tmp_path / "other.txt"
    for path in (one, other):
        path.write_text(ROWS)
    with refused(InputError, "same bytes"):
        ingest([one], tmp_path / "out", valid=[other])
    other.write_text(ROWS.replace("qid:q", "qid:r"))
    assert ingest([one], tmp_path / "out", valid=[other]).manifest.rows == 4


def test_a_judgment_file_may_have_the_bytes_of_a_file_of_another_kind(tmp_path):
    rows, judged = tmp_path / "rows.csv", tmp_path / "judged.csv"
    for path in (rows, judged):
        path.write_text("qid,doc_id,grade,x\nq,d,1,0.5\n")
    assert ingest([rows], tmp_path / "out", qrels=[judged]).manifest.judgments.judgments == 1


def test_a_name_that_is_no_text_is_refused_in_one_line(tmp_path, monkeypatch, capsys):
    odd = tmp_path / os.fsdecode(b"caf\xe9")
    try:
        odd.mkdir()
    except OSError:
        pytest.skip("the file system knows text only")
    (odd / "a.txt").write_text(LINE.format(1))
    facts = rf"{tmp_path}/caf\xe9/a.txt", "UTF-8"
    for given in (str(odd / "a.txt"), str(odd), f"{tmp_path}/c*/a.txt"):
        with refused(InputError, facts):
            find_files([given])
    assert execute(["data", "ingest", f"{tmp_path}/c*/*", "-o", str(tmp_path / "out")]) == 2
    assert not unnamed(only_line(capsys.readouterr().err), facts)
    assert execute(["data", "bin", str(odd)]) == 2
    err = capsys.readouterr().err
    assert not unnamed(only_line(err), rf"{tmp_path}/caf\xe9", "UTF-8")


# ---- files without rows: skipped in every role, an error only if nothing is left -------------------------------------

TABLE = pl.DataFrame({"qid": ["q1", "q1", "q2"], "doc_id": ["a", "b", "a"], "grade": [1, 0, 2], "x": [0.5, 1.5, 2.5]})
EMPTY = {
    "csv": ["", "\n", "qid,doc_id,grade,x\n", "qid,doc_id,grade,x", "qid,x\r\n\r\n", "\ufeffqid,doc_id\n"],
    "jsonl": ["", "\n \n"],
    "txt": ["", "\n", "# nothing today\n"],
    "parquet": [TABLE.clear()],
    "arrow": [TABLE.clear()],
}


def write(path, content):
    if isinstance(content, str):
        path.write_text(content, encoding="utf-8", newline="")
    else:
        writers = {"csv": content.write_csv, "jsonl": content.write_ndjson, "parquet": content.write_parquet}
        writers.get(path.suffix[1:], content.write_ipc)(path)
    return path


def full(suffix):
    return "1 qid:q1 1:0.5 #docid = a\n0 qid:q1 1:1.5 #docid = b\n" if suffix == "txt" else TABLE


CASES = [(name, each) for name, contents in EMPTY.items() for each in contents]


@pytest.mark.parametrize(("number", "suffix", "content"), [(number, *case) for number, case in enumerate(CASES)])
def test_the_dataset_is_that_of_the_files_with_rows(tmp_path, number, suffix, content):
    folder = tmp_path / "parts"
    folder.mkdir()
    part = write(folder / f"b.{suffix}", full(suffix))
    ingest([part], tmp_path / "alone")
    for name in ("a", "c"):  # with the same bytes
        write(folder / f"{name}.{suffix}", content)
    (folder / f"d.{suffix}").touch()
    paths = ([folder], [f"{folder}/*.{suffix}"], sorted(folder.iterdir()))[number % 3]
    said = []
    report = ingest(paths, tmp_path / "d", say=said.append)
    assert report.to_json()["empty_files"] == 3
    assert (tmp_path / "d" / MANIFEST_NAME).read_bytes() == (tmp_path / "alone" / MANIFEST_NAME).read_bytes()
    assert len(said) == 1
    assert "3 of 4 files" in said[0]
    assert files_of([folder]) == [part]


@pytest.mark.parametrize("suffix", EMPTY)
def test_nothing_is_left_if_all_are_empty(tmp_path, suffix):
    for number, content in enumerate(EMPTY[suffix]):
        write(tmp_path / f"{number}.{suffix}", content)
    (tmp_path / f"z.{suffix}").touch()
    for read in (lambda: ingest([tmp_path], tmp_path / "d"), lambda: files_of([tmp_path])):
        with refused(DataRejected, "no rows"):
            read()


def test_each_split_needs_rows_of_its_own(tmp_path):
    rows, empty = write(tmp_path / "a.csv", TABLE), write(tmp_path / "b.csv", "qid,doc_id,grade,x\n")
    with refused(DataRejected, "b.csv", "no rows"):
        ingest([rows], tmp_path / "d", valid=[empty])


def test_what_is_compressed_is_looked_into(tmp_path):
    for name, text in (("a.csv.gz", ""), ("b.csv.gz", "qid,grade,x\n"), ("c.csv.gz", "qid,grade,x\nq,1,2\n")):
        with gzip.open(tmp_path / name, "wt") as file:
            file.write(text)
    assert ingest([tmp_path], tmp_path / "d").manifest.rows == 1


def test_a_damaged_file_is_not_an_empty_one(tmp_path):
    write(tmp_path / "a.csv", TABLE)
    for name in ("b.parquet", "b.arrow", "b.csv.gz"):
        (tmp_path / name).write_bytes(b"nothing of the kind")
        with refused(DataRejected, name):
            ingest([tmp_path / "a.csv", tmp_path / name], tmp_path / "d")
    with refused(DataRejected, "c.csv"):
        ingest([tmp_path / "a.csv", write(tmp_path / "c.csv", "qid,grade,x\n,,\n")], tmp_path / "d")


def test_judgments_pairs_and_clicks_are_read_without_their_empty_parts(tmp_path):
    rows = write(tmp_path / "rows.csv", TABLE)
    contents = {
        "qrels": ("q1 0 a 1\nq1 0 b 0\n", "", "\n"),
        "pairs": ("q1 a b\n", "", "# none\n"),
        "clicks": (
            "qid,doc_id,list,position,clicked\nq1,a,l,1,1\nq1,b,l,2,0\n",
            "qid,doc_id,list,position,clicked\n",
            "",
        ),
    }
    for role, texts in contents.items():
        (tmp_path / role).mkdir()
        for number, text in enumerate(texts):
            write(tmp_path / role / f"{number}.{'csv' if role == 'clicks' else 'txt'}", text)
    said = []
    report = ingest([rows], tmp_path / "d", qrels=[tmp_path / "qrels"], pairs=[tmp_path / "pairs"], say=said.append)
    assert report.to_json()["empty_files"] == 4
    assert report.manifest.pairs.pairs == 1
    assert [line.split(",")[0] for line in said] == ["skipped 2 of 3 files"] * 2
    with open_click_log([tmp_path / "clicks"], say=said.append) as log:
        assert log.rows == 2
    assert len(said) == 3


def test_the_format_that_is_given_decides_what_a_header_is(tmp_path):
    for name, text in (("a.dat", "qid,grade,x\nq,1,2\n"), ("b.dat", "qid,grade,x\n")):
        (tmp_path / name).write_text(text)
    assert ingest([tmp_path], tmp_path / "d", options=IngestOptions(format="csv")).manifest.rows == 1


# ---- the first bytes show the delimiter, and another format or compression than the name says ------------------------

TABLE_TEXT = "qid,doc_id,grade,x\nq1,a,1,0.5\nq1,b,0,1.5\n"
DELIMITER_OF = {"csv": ",", "tsv": "\t"}
DELIMITERS = [",", ";", "\t", "|"]


@pytest.mark.parametrize("delimiter", DELIMITERS)
@pytest.mark.parametrize("suffix", ["csv", "tsv"])
def test_the_first_line_shows_the_delimiter_in_every_role(tmp_path, delimiter, suffix):
    def write(name, text):
        path = tmp_path / f"{name}.{suffix}"
        path.write_text(text.replace(",", delimiter))
        return path

    rows, plain = write("rows", TABLE_TEXT), tmp_path / "plain.csv"
    plain.write_text(TABLE_TEXT)
    qrels = write("qrels", "qid,doc_id,grade\nq1,a,2\nq1,b,1\n")
    pairs = write("pairs", "qid,better,worse\nq1,a,b\n")
    scored = write("scored", "qid,doc_id,score\nq1,a,0.5\n")
    said = []
    ingest([rows], tmp_path / "d", say=said.append)
    assert [f"{rows}: cells end at {delimiter!r}" in line for line in said] == [True] * (
        delimiter != DELIMITER_OF[suffix]
    )
    ingest([plain], tmp_path / "e")
    columns = ("qid", "doc_id", "grade", "x")
    assert (
        Dataset.open(tmp_path / "d").rows("train", columns).equals(Dataset.open(tmp_path / "e").rows("train", columns))
    )
    assert ingest([rows], tmp_path / "f", qrels=[qrels], pairs=[pairs]).manifest.pairs.pairs == 1
    assert sorted(each.grade for each in Dataset.open(tmp_path / "f").manifest.grades) == [1, 2]
    assert read_qrels(qrels)["grade"].to_pylist() == [2, 1]
    assert read_scored(scored).to_pylist() == [{"qid": "q1", "doc_id": "a", "score": 0.5}]


def test_a_delimiter_that_is_given_is_meant(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(TABLE_TEXT.replace(",", ";"))
    with refused(RankmillError, "a.csv", "';'"):
        ingest([path], tmp_path / "d", options=IngestOptions(read=ReadOptions(delimiter=",")))


def packed(kind):
    if kind == "zip":
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("rows.csv", TABLE_TEXT)
        return file.getvalue()
    if kind == "ORC":
        file = io.BytesIO()
        orc.write_table(pa.table({"qid": ["q"], "grade": [1], "x": [0.5]}), file)
        return file.getvalue()
    data = TABLE_TEXT.encode()
    by_arrow = {"zstd": "zstd", "lz4": "lz4"}
    if kind in by_arrow:
        sink = pa.BufferOutputStream()
        with pa.CompressedOutputStream(sink, by_arrow[kind]) as out:
            out.write(data)
        return sink.getvalue().to_pybytes()
    return {"gzip": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}[kind](data)


SUFFIX_OF = {"gzip": ".gz", "bz2": ".bz2", "zstd": ".zst", "lz4": ".lz4"}
SUFFIXED = ["a.csv", "a.txt", "a.jsonl", "a.parquet", "a.arrow", "a.csv.gz", "a.csv.zst", "a.csv.bz2", "a.csv.lz4"]


@pytest.mark.parametrize("kind", ["gzip", "bz2", "zstd", "lz4", "xz", "zip", "ORC"])
def test_a_file_under_a_wrong_name_is_named_for_what_it_is(tmp_path, kind):
    data = packed(kind)
    for name in SUFFIXED:
        path = tmp_path / name
        path.write_bytes(data)
        if kind in SUFFIX_OF and name.endswith(SUFFIX_OF[kind]):
            assert ingest([path], tmp_path / f"d{name}").manifest.rows == 2
            continue
        with refused(RankmillError, path, kind):
            ingest([path], tmp_path / "d")
        if name.startswith("a.csv") or name == "a.txt":
            with refused(RankmillError, path, kind):
                read_scored(path)


@pytest.mark.parametrize("name", ["a.csv.xz", "a.orc", "a.avro", "a.csv.lzma"])
def test_suffixes_that_are_not_read_are_named_with_the_way_out(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(packed("xz"))
    with refused(RankmillError, path, "decompress it" if name.startswith("a.csv") else "Parquet"):
        ingest([path], tmp_path / "d")
    assert find_files([path]) == [path]
