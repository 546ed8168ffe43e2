"""Pipes and devices are named as such, without opening them; secrets of URLs are in no message."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rankmill.cli import execute
from rankmill.foundation.errors import InputError, RankmillError, without_secrets
from rankmill.foundation.storage.location import location
from rankmill.foundation.storage.publish import publish_file, publish_folder, write_atomically
from rankmill.foundation.storage.special_files import refuse_special
from rankmill.foundation.storage.staging import staging_folder
from tests.refusals import only_line, refused

ROWS = "qid,doc_id,grade,x\nq,a,1,2\nq,b,0,1\n"


@pytest.fixture
def pipe(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe.csv")
    Path("rows.csv").write_text(ROWS)
    return "pipe.csv"


@pytest.mark.parametrize(
    "command",
    [
        "data ingest pipe.csv -o d",
        "data ingest rows.csv --qrels pipe.csv -o d",
        "data ingest rows.csv --pairs pipe.csv -o d",
        "data ingest rows.csv -o pipe.csv",
        "data ingest rows.csv -o pipe.csv --overwrite",
        "evaluate pipe.csv",
        "evaluate rows.csv --qrels pipe.csv",
        "clicks describe pipe.csv",
        "run pipe.csv",
    ],
)
def test_a_pipe_is_named_at_once(pipe, capsys, command):
    assert execute(command.split()) == 2
    assert f"{pipe}: is a pipe" in only_line(capsys.readouterr().err)


def test_no_device_is_replaced_or_read():
    null = Path("/dev/null")
    with refused(InputError, "/dev/null", "device"), staging_folder(null):
        raise AssertionError
    for write in (
        lambda: write_atomically(null, b"x"),
        lambda: publish_file(null, null),
        lambda: publish_folder(null, null),
    ):
        with refused(InputError, "/dev/null", "device"):
            write()
    assert null.is_char_device()
    refuse_special(Path("/dev/null/nothing"))
    refuse_special(Path(__file__))


SECRET = "X-Amz-Date=20260101T00:00:00Z&X-Amz-Signature=5ECRE7"


@pytest.mark.parametrize("scheme", ["s3", "https"])
def test_no_message_has_the_secrets_of_a_url(tmp_path, monkeypatch, capsys, scheme):
    monkeypatch.chdir(tmp_path)
    Path("rows.csv").write_text(ROWS)
    Path("run.toml").write_text(f'model = "web"\n[ingest]\nsources = ["{scheme}://host/a.csv?{SECRET}"]\n')
    url = f"{scheme}://host/rows.csv?{SECRET}"
    for command in (
        ["data", "ingest", url, "-o", "d"],
        ["data", "ingest", "rows.csv", "-o", url.replace("rows.csv", "d")],
        ["data", "ingest", "rows.csv", "--qrels", url, "-o", "d"],
        ["evaluate", url],
        ["rerank", "rows.csv", "-m", url, "-o", "x.csv"],
        ["models", "list", "--registry", url],
        ["run", "run.toml", "--plan"],
    ):
        execute(command)
        out, err = capsys.readouterr()
        assert "5ECRE7" not in out + err
        assert not [
            path
            for path in tmp_path.rglob("*")
            if path.is_file() and path.name != "run.toml" and b"5ECRE7" in path.read_bytes()
        ]


@pytest.mark.parametrize("scheme", ["s3", "gs", "az", "https", "http", "abfss"])
def test_no_error_of_a_location_has_its_secrets(scheme):
    for url in (f"{scheme}://host/rows.csv?{SECRET}", f"{scheme}://me:5ECRE7@host/x"):
        with pytest.raises(RankmillError) as caught:
            location(url)
        assert "5ECRE7" not in repr(caught.value)


def test_what_is_no_secret_stays():
    for text in (
        "s3://b/day-?.csv: no object matches",
        "a.csv:1:2: expected x?=y",
        "why? a=b",
        "https://host/page#part",
    ):
        assert without_secrets(text) == text
    assert (
        without_secrets("s3://b/a?s=1,s3://b/b?s=2: and 'http://me:pw@h:80/x?t=1'")
        == "s3://b/a,s3://b/b: and 'http://h:80/x'"
    )


def test_a_process_substitution_is_a_pipe():
    program = "from rankmill.pipeline.read.files import check_file; from pathlib import Path; import sys; check_file(Path(sys.argv[1]))"
    code = f"{sys.executable} -c '{program}' <(echo 1)"
    found = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=False)
    assert "is a pipe" in found.stderr
