"""Slices: they are a partition of the queries, and each is what evaluating its queries alone gives."""

import bz2
import json
import math
import statistics

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from rankmill.foundation.errors import CandidatesRejected, InputError
from rankmill.scorer.cli import app
from rankmill.scorer.evaluate.evaluate import evaluate
from rankmill.scorer.metrics import parse_metric
from rankmill.scorer.rerank.rerank import rerank
from tests.refusals import refused
from tests.scorer.forests import random_forest
from tests.scorer.rerank.candidate_files import as_table, random_candidates, write_letor

METRICS = ["ndcg@3", "map", "concordance_micro"]


def scored(seed=1, n_queries=40):
    rng = np.random.default_rng(seed)
    rows = []
    for q in range(n_queries):
        market = ["de", "fr", "it", None][rng.integers(0, 4)]
        for d in range(rng.integers(1, 12)):
            price = float("nan") if rng.random() < 0.2 else round(float(rng.normal()), 2)
            rows.append((f"q{q:02}", f"d{d}", rng.normal(), int(rng.integers(0, 3)), market, q % 3, price))
    names = ("qid", "doc_id", "score", "grade", "market", "kind", "price")
    return pa.table(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)))


def values_by(table, name, key):
    found = {}
    for qid, value in zip(table["qid"].to_pylist(), table[name].to_pylist(), strict=True):
        found.setdefault(qid, []).append(value)
    return {qid: key(values) for qid, values in found.items()}


def check_against_each_alone(table, slices, of_query):
    """Every slice with the metrics, intervals and counts of an evaluation of its queries alone, and all of them a
    partition."""
    seen = set()
    for each in slices.slices:
        mine = {qid for qid, value in of_query.items() if belongs(value, each)}
        assert not mine & seen
        seen |= mine
        alone = table.filter(pc.is_in(table["qid"], value_set=pa.array(sorted(mine), pa.string())))
        found = evaluate(alone, metrics=METRICS)
        assert each.n_queries == len(mine)
        assert each.n_documents == alone.num_rows
        for metric, figure in each.metrics.items():
            expected = found.figures[metric]
            assert figure.mean == (None if expected.mean is None else pytest.approx(expected.mean, abs=1e-12))
            assert figure.n_queries == expected.n_queries
            if figure.interval is not None:
                assert figure.interval == pytest.approx(expected.interval, abs=1e-12)
    assert seen == set(of_query)


def belongs(value, each):
    if each.name == "missing" or value is None:
        return each.name == "missing" and value is None
    return each.limits[0] <= value <= each.limits[1] if each.limits else each.name == value


def lower_median(values):
    known = sorted(v for v in values if v is not None and not math.isnan(v))
    return statistics.median_low(known) if known else None


@pytest.mark.parametrize("by", ["market", "kind", "price", "query_size"])
def test_a_slice_is_what_its_queries_alone_would_be(by):
    table = scored()
    found = evaluate(table, metrics=METRICS, by=[by]).slices
    key = {"market": lambda values: values[0], "query_size": len}.get(by, lower_median)
    of_query = values_by(table, "qid" if by == "query_size" else by, key)
    check_against_each_alone(table, found[0], of_query)
    if by == "price":
        sizes = [each.n_queries for each in found[0].slices if each.limits]
        assert len(sizes) == 5
        assert max(sizes) - min(sizes) <= 2  # hardly any ties among the medians
        assert "5 quantile bins" in found[0].how
    if by == "kind":
        assert [each.name for each in found[0].slices] == ["0", "1", "2"]


def test_the_mix_of_grades_by_number_and_by_share():
    table = scored(2)
    number, share = evaluate(table, metrics=METRICS, by=["grade_mix"], relevant_from=2).slices
    counts = values_by(table, "grade", lambda ys: sum(y >= 2 for y in ys))
    assert sum(each.n_queries for each in number.slices) == len(counts)
    for each in number.slices:
        assert each.n_queries == sum(each.limits[0] <= n <= each.limits[1] for n in counts.values())
    shares = values_by(table, "grade", lambda ys: sum(y >= 2 for y in ys) / len(ys))
    for each in share.slices:
        assert each.n_queries == sum(each.limits[0] <= n <= each.limits[1] for n in shares.values())


def test_the_order_of_rows_changes_no_bit_and_files_say_what_tables_say(tmp_path):
    table = scored(3)
    by = ["market", "kind", "price"]
    expected = evaluate(table, metrics=METRICS[:1], by=by).to_json()
    shuffled = table.take(pa.array(np.random.default_rng(0).permutation(table.num_rows)))
    assert evaluate(shuffled, metrics=METRICS[:1], by=by).to_json() == expected
    pq.write_table(table, tmp_path / "s.parquet")
    (tmp_path / "folder").mkdir()
    pq.write_table(table.slice(0, 50), tmp_path / "folder" / "a.parquet")
    pq.write_table(table.slice(50), tmp_path / "folder" / "b.parquet")
    plain = table.set_column(6, "price", pc.if_else(pc.is_nan(table["price"]), None, table["price"]))
    pacsv.write_csv(plain, tmp_path / "s.csv")
    for name in ("s.parquet", "folder", "s.csv"):
        assert evaluate(tmp_path / name, metrics=METRICS[:1], by=by).to_json() == expected, name


def test_many_texts_leave_the_rarest_together():
    table = scored(4, 60)
    named = table.set_column(4, "market", table["qid"])
    (found,) = evaluate(named, metrics=METRICS, by=["market"]).slices
    assert len(found.slices) == 20
    assert found.slices[-1].name == "41 other values"
    assert found.slices[-1].n_queries == 41
    assert "the 19 of most queries" in found.how


def test_candidates_and_what_rerank_kept_of_them_have_the_same_slices(tmp_path):
    rows = random_candidates(1)
    write_letor(tmp_path / "c.txt", rows)
    forest = random_forest(5, n_trees=20, max_leaves=12, info={"max_grade": 4})
    by = ["query_size", "grade_mix"]
    how = {"metrics": ["ndcg@3", "err@3"], "ties": "doc_id", "by": by}
    whole = evaluate(tmp_path / "c.txt", model=forest, **how)
    rerank(tmp_path / "c.txt", forest, tmp_path / "top", top_k=3)
    kept = evaluate(tmp_path / "top", **how)
    assert kept.slices == whole.slices
    assert len(whole.slices[0].slices) > 1


@pytest.mark.parametrize("name", ["c.txt", "c[1].csv", "c.csv.bz2", "c.parquet"])
def test_columns_of_candidates(tmp_path, name):
    rows = random_candidates(2)
    forest = random_forest(5, n_trees=3, max_leaves=4, info={"max_grade": 4})
    table = pl.DataFrame(as_table(rows)).with_columns(
        market=pl.when(pl.col("qid").str.ends_with("1")).then(pl.lit("one"))
    )
    if name == "c.txt":
        write_letor(tmp_path / name, rows)
    elif name == "c.parquet":
        table.write_parquet(tmp_path / name)
    else:
        data = table.write_csv().encode()
        (tmp_path / name).write_bytes(bz2.compress(data) if name == "c.csv.bz2" else data)
        (tmp_path / "c1.csv").write_text("qid,market\n")  # which the name c[1].csv would match as a pattern
    found = evaluate(tmp_path / name, model=forest, metrics=["ndcg"], by=["f1"])
    assert sum(each.n_queries for each in found.slices[0].slices) == len(found.qids)
    if name != "c.txt":
        (market,) = evaluate(tmp_path / name, model=forest, metrics=["ndcg"], by=["market"]).slices
        assert {each.name: each.n_queries for each in market.slices} == {"one": 2, "missing": 10}


def test_what_cannot_be_sliced_by_is_refused(tmp_path):
    table = scored()
    with refused(InputError, "'market'"):
        evaluate(table, by=["markte"])
    with refused(CandidatesRejected, "by doc_id", "'d0'"):
        evaluate(table, by=["doc_id"])
    with refused(InputError, "by tags", "List"):
        evaluate(table.append_column("tags", [[["a"]] * table.num_rows]), by=["tags"])
    (tmp_path / "r.run").write_text("q Q0 d 1 1.0 t\n")
    (tmp_path / "qrels").write_text("q 0 d 1\n")
    with refused(InputError, "TREC", "columns"):
        evaluate(tmp_path / "r.run", qrels=tmp_path / "qrels", by=["price"])


def test_the_command(tmp_path):
    pq.write_table(scored(), tmp_path / "s.parquet")
    call = ["evaluate", str(tmp_path / "s.parquet"), "--metric", "ndcg@3", "--by", "market", "--by", "query_size"]
    text = CliRunner().invoke(app, call).stdout
    assert "\n market " in text
    assert "slices          query_size: documents of the query; " in text
    report = json.loads(CliRunner().invoke(app, [*call, "--json"]).stdout)
    assert [each["by"] for each in report["slices"]] == ["market", "query_size"]
    assert str(parse_metric("ndcg@3")) in report["slices"][0]["slices"][0]["metrics"]
