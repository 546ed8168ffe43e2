"""Runs and judgments in text."""

import gzip

from rankmill.foundation.errors import DataRejected, InputError
from rankmill.scorer.scored_file import read_qrels, read_run, read_scored
from tests.refusals import refused

RUN = "1 Q0 d1 1 2.5 tag\n\n1\tQ0\td2\t2\t-1e3\ttag and words after it\r\n 2 Q0 é 1 inf tag\n"


def test_a_run_is_read_between_any_white_space(tmp_path):
    path = tmp_path / "a.run"
    path.write_text(RUN, encoding="utf-8", newline="")
    assert read_run(path).to_pydict() == {
        "qid": ["1", "1", "2"],
        "doc_id": ["d1", "d2", "é"],
        "score": [2.5, -1000.0, float("inf")],
    }
    with gzip.open(tmp_path / "a.run.gz", "wt", encoding="utf-8-sig", newline="") as file:  # and a byte-order mark
        file.write(RUN)
    assert read_scored(tmp_path / "a.run.gz").equals(read_run(path))


def test_judgments_may_be_negative(tmp_path):
    path = tmp_path / "qrels"
    text = "1 0 d1 2\n\n1\t0 d2 -1\r\n #2 x d1 0\n#2 x d2 +02147483647"
    path.write_text(text, newline="")
    wanted = {"qid": ["1", "1", "#2", "#2"], "doc_id": ["d1", "d2"] * 2, "grade": [2, -1, 0, 2**31 - 1]}
    assert read_qrels(path).to_pydict() == wanted
    with gzip.open(tmp_path / "qrels.gz", "wt") as file:
        file.write(text)
    assert read_qrels(tmp_path / "qrels.gz").equals(read_qrels(path))


def test_broken_runs_and_judgments_name_their_line(tmp_path):
    path, qrels = tmp_path / "a.run", "qid iteration doc_id grade"
    for read, text, *facts in (
        (read_run, b"1 Q0 d1 1 2.5\n", ":1:1", "qid Q0 doc_id rank score tag", "'5 words'"),
        (read_run, b"1 Q0 d1 1 2.5 t\n1 Q0 d2 2 high t\n", ":2:11", "'high'", "score"),
        (read_run, b"1 Q0 d1 1 nan t\n", ":1:11", "'nan'", "score"),
        (read_run, b"1 Q0 \xff 1 2.5 t\n", ":1", "0xFF", "UTF-8"),
        (read_run, b"\n \n", "'qid Q0 doc_id rank score tag'"),
        (read_qrels, b"1 0 d1\n", ":1:1", qrels, "'3 words'"),
        (read_qrels, b"\n 1 0 d1 1 x\n", ":2:2", qrels, "'5 words'"),
        (read_qrels, b"1 0 d1 0.5\n", ":1:8", "'0.5'", "grade"),
        (read_qrels, b"1 0 d0 1\n1 0 d1 4294967296\n", ":2:8", "'4294967296'", "grade"),
        (read_qrels, b"1 0 d1 -2147483648\n", ":1:8", "'-2147483648'", "grade"),
        (read_qrels, b"1 0 d0 1\n\0\n", ":2", "NUL"),
        (read_qrels, b"1 0 a 1\n2 0 a 1\n1 0 a 1\n", ":3", "'a'", "'1'", "line 1"),
        (read_qrels, b"", f"'{qrels}'"),
    ):
        path.write_bytes(text)
        with refused(DataRejected, path, *facts):
            read(path)


def test_a_missing_file_or_a_folder_is_the_callers_mistake(tmp_path):
    for read in (read_run, read_qrels):
        with refused(InputError, "no such file"):
            read(tmp_path / "none")
        with refused(InputError, "is a folder", "files"):
            read(tmp_path)
