"""Lists that share the text before the last character of their ids are in one split."""

from __future__ import annotations

import polars as pl
import pyarrow as pa
import pytest

from rankmill.foundation.errors import InputError
from rankmill.pipeline.dataset import Dataset
from rankmill.pipeline.grouping.query_splits import ByFold, ByShares
from rankmill.pipeline.ingest import ingest
from rankmill.pipeline.options import IngestOptions
from tests.refusals import refused


@pytest.mark.parametrize("rule", [{"split": {"train": 0.5, "valid": 0.25, "test": 0.25}}, {"folds": 4, "fold": 2}])
def test_all_lists_of_a_query_are_in_one_split(tmp_path, rule):
    lists = [f"{query}/{session}" for query in range(40) for session in range(query % 5 + 1)]
    rows = pl.DataFrame({"qid": lists}).join(
        pl.DataFrame({"doc_id": ["a", "b"], "grade": [0, 1], "f": [0.5, 2.0]}), how="cross"
    )
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
