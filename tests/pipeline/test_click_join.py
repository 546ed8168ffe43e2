"""Joining a log to features, and keeping the lists of a query in one split."""

from __future__ import annotations

import json

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from rankmill.cli import app, execute
from rankmill.foundation.errors import DataRejected, InputError
from rankmill.pipeline.clicks.join_features import join_features, list_ids
from rankmill.pipeline.dataset import Dataset
from rankmill.pipeline.grouping.query_splits import ByFold, ByShares
from rankmill.pipeline.ingest import ingest
from rankmill.pipeline.options import IngestOptions
from tests.pipeline.test_click_models import in_two_blocks, log_of
from tests.refusals import refused


def written_features(log, folder, drop=0):
    (block,) = log.in_memory
    query = np.repeat(np.arange(len(block.queries)), np.diff(block.document_start))
    rows = pl.DataFrame(
        {
            "qid": block.queries.take(pa.array(query)).to_pylist(),
            "doc_id": block.documents.to_pylist(),
            "grade": [0] * len(query),
            "f": np.arange(len(query), dtype=np.float32),
            "brand": [f"b{i % 3}" for i in range(len(query))],
        }
    )
    rows.sample(len(rows), shuffle=True, seed=1)[drop:].write_parquet(folder / "features.parquet")
    return folder / "features.parquet"


def by_hand(log, features):
    (block,) = log.in_memory
    lists, ids = block.lists, list_ids(block).to_pylist()
    documents, queries = block.documents.to_pylist(), block.queries.to_pylist()
    known = {(q, d): (f, b) for q, d, _, f, b in pl.read_parquet(features).iter_rows()}
    rows = []
    for number, (a, b) in enumerate(zip(lists.start[:-1], lists.start[1:], strict=True)):
        for i in range(a, b):
            document = documents[lists.document[i]]
            values = known.get((queries[lists.query[number]], document))
            if values is not None:
                rows.append((ids[number], document, int(lists.clicked[i]), int(lists.rank[i]), *values))
    return rows


def test_every_impression_has_its_features_in_the_order_of_the_log(tmp_path):
    log = log_of(400, queries=20, swapped=0.3).log
    features = written_features(log, tmp_path, drop=30)
    report = join_features(log, [features], tmp_path / "out.parquet")
    found = pl.read_parquet(tmp_path / "out.parquet")
    wanted = by_hand(log, features)
    assert found.columns == ["qid", "doc_id", "grade", "position", "f", "brand"]
    assert found.rows() == wanted
    assert (report.rows, report.clicks) == (len(wanted), sum(row[2] for row in wanted))
    assert report.lists == found["qid"].n_unique()
    (block,) = log.in_memory
    assert report.rows + report.without_features == len(block.lists.rank)
    assert report.without_features > 0
    join_features(in_two_blocks(log), [features], tmp_path / "two.parquet", memory=600 * 10**6)
    assert (tmp_path / "two.parquet").read_bytes() == (tmp_path / "out.parquet").read_bytes()


def test_the_second_list_of_a_session_has_another_id():
    log = log_of(30, queries=3).log
    (block,) = log.in_memory
    same = block.lists._replace(session=np.repeat(np.uint64(255), len(block.lists.session)))
    ids = list_ids(type(block)(same, block.queries, block.documents, block.document_start, {})).to_pylist()
    assert ids[:2] == ["Q1/00000000000000ff", "Q1/00000000000000ff-2"]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("rule", [{"split": {"train": 0.5, "valid": 0.25, "test": 0.25}}, {"folds": 4, "fold": 2}])
def test_all_lists_of_a_query_are_in_one_split(tmp_path, rule):
    log = log_of(500, queries=40).log
    features = written_features(log, tmp_path)
    join_features(log, [features], tmp_path / "out.parquet")
    rows = pl.read_parquet(tmp_path / "out.parquet").drop("brand")
    rows.write_parquet(tmp_path / "rows.parquet")
    options = IngestOptions(**rule, split_prefix="/")
    ingest([tmp_path / "rows.parquet"], tmp_path / "ds", options=options)
    dataset = Dataset.open(tmp_path / "ds")
    assert dataset.manifest.meaning.split_prefix == "/"
    queries = pl.concat([pl.read_parquet(dataset.queries_path(shard)) for shard in dataset.manifest.shards])
    splits = queries.with_columns(query=pl.col("qid").str.split("/").list.first())
    assert set(splits.group_by("query").agg(pl.col("split").n_unique())["split"]) == {1}
    assert splits["split"].n_unique() == 3
    made = options.rule.splits(pa.array(splits["query"].to_list()), None)  # the split of a query is that of its id
    assert [("train", "valid", "test")[s] for s in made] == splits["split"].cast(pl.String).to_list()


def test_rules_and_options_that_do_not_go_together():
    with refused(InputError, "split_prefix", "folds"):
        IngestOptions(split_prefix="/")
    with refused(InputError, "split_prefix", "one character"):
        IngestOptions(split_prefix="//", split={"train": 1.0})
    qids = pa.array(["a/1", "a", "x/y/2", "x/y/", "a\n/3", "a\n"])
    for rule in (ByShares({"train": 0.5, "test": 0.5}, "/"), ByFold(5, 1, "/")):
        one, two, three, four, five, six = rule.splits(qids, None).tolist()
        assert (one, three, five) == (two, four, six)


def test_refusals(tmp_path):
    log = log_of(50, queries=5).log
    features = written_features(log, tmp_path)
    rows, out = pl.read_parquet(features), tmp_path / "out.parquet"
    cases = {
        "twice": (pl.concat([rows, rows.tail(1)]), DataRejected, ("several",)),
        "nameless": (rows.drop("doc_id"), DataRejected, ("nameless.parquet", "doc_id")),
        "empty": (rows.select("qid", "doc_id"), DataRejected, ("feature",)),
        "other": (rows.with_columns(qid=pl.lit("x") + pl.col("doc_id")), DataRejected, ("spell",)),
    }
    for name, (table, kind, facts) in cases.items():
        table.write_parquet(tmp_path / f"{name}.parquet")
        with refused(kind, *facts):
            join_features(log, [tmp_path / f"{name}.parquet"], out)
    rows.drop("brand").with_columns(qid=pl.lit("more")).write_parquet(tmp_path / "more.parquet")
    with refused(DataRejected, "more.parquet", "features.parquet"):
        join_features(log, [features, tmp_path / "more.parquet"], out)
    rows.drop("brand").write_csv(tmp_path / "f.csv")
    with refused(InputError, "f.csv", "Parquet"):
        join_features(log, [tmp_path / "f.csv"], out)
    with refused(InputError, "memory"):
        join_features(log, [features], out, memory=300 * 10**6)
    assert not out.exists()


def test_the_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    runner = CliRunner()
    synth = ["data", "synth", "-o", "j.parquet", "--queries", "30", "--features", "12", "--clicks", "log.parquet"]
    assert runner.invoke(app, [*synth, "--sessions", "600"]).exit_code == 0
    words = ["clicks", "join", "log.parquet", "--features", "j.parquet", "-o", "out.parquet"]
    facts = json.loads(runner.invoke(app, [*words, "--json"]).stdout)
    assert facts["rows"] == pq.read_metadata("out.parquet").num_rows
    assert facts["features"] == 12
    log = pl.read_parquet("log.parquet")
    assert facts["lists"] == sum(n for n in log.group_by("qid").agg(pl.col("session").n_unique())["session"])
    shares = ["--split", "train=0.5,valid=0.5", "--split-prefix", "/"]
    assert runner.invoke(app, ["data", "ingest", "out.parquet", "-o", "ds", *shares]).exit_code == 0
    dataset = Dataset.open(tmp_path / "ds")
    stored = pl.read_parquet(dataset.features_path(dataset.manifest.shards[0]))
    assert {"position", "grade", "f12"} <= set(stored.columns)
    assert execute(words) == 2
    assert "--overwrite" in capsys.readouterr().err
