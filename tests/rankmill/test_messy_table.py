"""A table as people have it: every unusable column is named at once, and the command line that is suggested works."""

import csv
import io
import json
import random
import shlex
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rankmill.foundation.errors import UnusableColumns
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.pipeline.options import ReadOptions
from rankmill.pipeline.read.batch import Quarantine
from rankmill.pipeline.read.open_source import open_source
from tests.refusals import refused, unnamed

TEXT = ("query", "title", "price", "added")
FORMATS = ("csv.gz", "parquet", "jsonl")


def messy_rows():
    rng = random.Random(3)
    return [
        {
            "": row, "query": f"red shoes {row // 8}", "query_id": row // 8, "doc_id": f"d{row}",
            "title": f'Shoe "{row}", red', "price": f"${row}.50", "in_stock": rng.random() < 0.5, "added": "2026-01-02",
            "relevance": rng.randrange(3), "rating": 4.5, "bm25": rng.random(), "split": "train",
        }
        for row in range(160)
    ]  # fmt: skip


def write(path, rows):
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".jsonl":  # an object has no key without a name
        path.write_text("".join(json.dumps({k: v for k, v in row.items() if k}) + "\n" for row in rows))
    else:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([rows[0], *(row.values() for row in rows)])
        with pa.output_stream(path) as out:  # by the suffix it compresses
            out.write(text.getvalue().encode())
    return path


@pytest.mark.parametrize("suffix", FORMATS)
def test_one_message_names_all_and_the_suggested_command_works(tmp_path, monkeypatch, typed, suffix):
    monkeypatch.chdir(tmp_path)
    write(Path(f"messy.{suffix}"), messy_rows())
    said = typed.err(f"data ingest messy.{suffix} -o d", code=10)
    first, *each = said.splitlines()
    assert first.endswith("columns cannot be used as they are:")
    assert all(line.startswith(f"  ({number}) ") for number, line in enumerate(each[:-2], start=1))
    for name in (*TEXT, "split"):
        assert f"--ignore {name}" in said
    assert "to keep a column of categories: --categorical NAME" in said
    assert "--columns qid=query_id" in said
    typed(said.partition("all at once: rankmill ")[2])
    features = Dataset.open(Path("d")).manifest.features
    assert sorted(features) == ["bm25", "in_stock", "rating"]


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_columns_that_may_be_the_query_are_not_ignored_by_the_suggested_command(tmp_path, monkeypatch, typed, suffix):
    monkeypatch.chdir(tmp_path)
    keys = ("term", "sku", "name", "stars", "bm25", "split")
    rows = [dict(zip(keys, (f"t{row}", f"s{row}", "n", row % 3, row / 2, "a"), strict=True)) for row in range(8)]
    write(Path(f"shop.{suffix}"), rows)
    said = typed.err(f"data ingest shop.{suffix} -o d --columns grade=stars", code=10)
    assert not unnamed(said, "--columns qid=NAME", "do not hold numbers")
    named = said.partition("do not hold numbers: ")[2].partition(";")[0]
    assert sorted(named.split(", ")) == ["name", "sku", "term"]
    assert "name qid and doc_id with --columns" in said
    suggested = shlex.split(said.partition("all at once: rankmill ")[2])
    assert suggested[suggested.index("--ignore") + 1] == "split"
    assert suggested[suggested.index("--columns") + 1] == "grade=stars,qid=NAME"


@pytest.mark.parametrize("suffix", FORMATS)
def test_the_same_table_is_re_ranked_and_evaluated_without_options_for_columns_that_no_model_knows(
    tmp_path, monkeypatch, typed, suffix
):
    monkeypatch.chdir(tmp_path)
    write(Path("messy.csv"), messy_rows())
    options = "--ignore column_1,query,title,price,added,rating,split --columns qid=query_id --columns grade=relevance"
    for line in (f"data ingest messy.csv -o d {options}", "data bin d", "train d --name m --n-rounds 2 --max-leaves 4"):
        typed(line)
    path = write(Path(f"candidates.{suffix}"), messy_rows())
    ranked = typed.out(f"rerank {path} --model m@1 -o ranked --columns qid=query_id,grade=relevance")
    assert "160 candidates of 20 queries" in ranked
    typed(f"evaluate {path} --model m@1 --columns qid=query_id --columns grade=relevance")
    # what is ambiguous is reported at once here, too, with a command line that works
    said = typed.err(f"rerank {path} --model m@1 -o again", code=10)
    typed(said.partition("all at once: rankmill ")[2])
    # a feature of the model that holds words: there is nothing to ignore, but it is said at once
    broken = write(Path(f"broken.{suffix}"), [row | {"bm25": "high", "in_stock": "perhaps"} for row in messy_rows()])
    said = typed.err(f"rerank {broken} --model m@1 -o b --columns qid=query_id,grade=relevance", code=10)
    assert "'bm25'" in said
    assert "'in_stock'" in said
    assert "--ignore" not in said


def test_the_line_of_the_first_bad_cell_is_right_after_blank_and_ragged_lines(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text('qid,grade,a,b\n1,0,1,2\n\n1,0\n1,0,"x,y",2\n1,1,x,y\n1,1,x,y\n1,1,x,y\n')
    with refused(UnusableColumns, "'a'", "'x,y'", "line 5", "4 of 5") as caught:
        open_source(path)
    assert not unnamed(str(caught.value), "'b'", "'y'", "line 6", "3 of 5")
    # who allows so many bad rows has them quarantined
    assert open_source(path, "csv", ReadOptions(), Quarantine(5)).columns == ("a", "b")
