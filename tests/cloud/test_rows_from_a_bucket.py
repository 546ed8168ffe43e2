"""Files of rows from a bucket in memory, whose parts come in any order: the same bytes as from a disk."""

from __future__ import annotations

import gzip
import time
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from rankmill.cli import execute
from rankmill.foundation.storage import fetching, local_copies
from rankmill.foundation.storage.bucket import StoreError
from tests.cloud.test_paths_in_a_bucket import SPLIT, call, inputs, model
from tests.foundation.storage.test_local_copies import ROOT, Bucket
from tests.written import files_in

__all__ = ["inputs", "model"]


FORMATS: dict[str, Callable[[pl.DataFrame, Path], None]] = {
    "parquet": lambda table, path: table.write_parquet(path, row_group_size=100),
    "csv.gz": lambda table, path: path.write_bytes(gzip.compress(table.write_csv().encode())) and None,
}


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """Parts are small and come in any order."""
    made = Bucket()
    made.before_part = lambda number: time.sleep(number % 7 / 1000)
    monkeypatch.setattr(local_copies, "open_bucket", lambda url: made)
    monkeypatch.setattr(fetching, "PART", 700)
    monkeypatch.setattr(fetching, "PAUSES", ())
    return made


@pytest.mark.parametrize("form", ["parquet", "csv.gz"])
def test_rows_are_the_same(form: str, bucket: Bucket, inputs: Path, model: Path, tmp_path: Path) -> None:
    table = pl.read_parquet(inputs / "candidates" / "c.parquet")
    (tmp_path / "in").mkdir()
    for number, rows in enumerate((table[:300], table[300:])):
        path = tmp_path / "in" / f"{number}.{form}"
        FORMATS[form](rows, path)
        bucket.put(ROOT / "in" / path.name, path.read_bytes())
    for source, out in ((tmp_path / "in", "disk"), (str(ROOT / "in"), "bucket")):
        call("rerank", source, "-m", model, "-o", tmp_path / out / "lists")
        call("data", "ingest", source, "-o", tmp_path / out / "dataset", *SPLIT)
    assert files_in(tmp_path / "bucket") == files_in(tmp_path / "disk")


@pytest.mark.parametrize("form", ["parquet"])
def test_a_store_that_fails_is_no_damaged_file(
    form: str, bucket: Bucket, inputs: Path, model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    FORMATS[form](pl.read_parquet(inputs / "candidates" / "c.parquet"), tmp_path / f"rows.{form}")
    bucket.put(ROOT / f"c.{form}", (tmp_path / f"rows.{form}").read_bytes())
    for most in (0, 3):

        def fail(number: int, most: int = most) -> None:
            if number > most:
                raise StoreError(ROOT / f"c.{form}", "a made error")

        bucket.parts, bucket.before_part = 0, fail
        out = str(tmp_path / f"{most}")
        for words in (["rerank", f"{ROOT}/c.{form}", "-m", str(model)], ["data", "ingest", f"{ROOT}/c.{form}"]):
            bucket.parts = 0
            assert execute([*words, "-o", out]) == 74
            assert f"rankmill: {ROOT}/c.{form}: a made error\n" in capfd.readouterr().err
            assert not Path(out).exists()
