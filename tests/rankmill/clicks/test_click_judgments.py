"""Judgments from clicks against slow twins and the truth of simulated logs, and their way into a dataset."""

from __future__ import annotations

import itertools
import json

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from rankmill.cli import app
from rankmill.clicks.judge import judge_documents
from rankmill.clicks.options import ClickSimulation, JudgeOptions
from rankmill.clicks.preferences import block_pairs
from rankmill.clicks.result_lists import LogBlock, LogInMemory
from rankmill.clicks.simulate import EXAMINATION, QueriesToShow, simulate
from rankmill.clicks.write_judgments import write_judgments
from rankmill.foundation.errors import DataRejected, InputError
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.pipeline.ingest import ingest
from rankmill.pipeline.judgments.propensities import Propensities, write_propensities
from rankmill.pipeline.options import IngestOptions, ReadOptions
from tests import naive_clicks as naive
from tests.rankmill.clicks.test_click_models import in_two_blocks, log_of
from tests.refusals import refused

THETA = tuple((np.array(EXAMINATION) / EXAMINATION[0]).tolist())
PBM = Propensities(model="pbm", examination=THETA)
TRUST = Propensities(model="pbm", examination=THETA, trust=tuple(0.05 / (k + 1) for k in range(10)))


def lists_of(block: LogBlock, value: np.ndarray) -> list[tuple[list[int], list[int], list[float], int]]:
    lists = block.lists
    columns = [each.tolist() for each in (lists.document, lists.rank, value)]
    return [
        (*(column[a:b] for column in columns), q)
        for (a, b), q in zip(itertools.pairwise(lists.start.tolist()), lists.query.tolist(), strict=True)
    ]


@pytest.mark.parametrize("estimate", ["dctr", "pbm", "ips", "snips"])
@pytest.mark.parametrize("shrinkage", [0.0, 4.0])
def test_estimates_are_those_of_the_slow_twin(estimate, shrinkage):
    log = log_of(150, queries=8, swapped=0.3).log
    uses = estimate != "dctr"
    propensities = TRUST if uses else None
    options = JudgeOptions(estimate=estimate, shrinkage=shrinkage, clip=0.3)
    ((block, found),) = judge_documents(log, options, propensities)
    alpha = (lambda k: THETA[k - 1]) if uses else lambda _: 1.0
    beta = (lambda k: 0.05 / k) if propensities is TRUST else lambda _: 0.0
    wanted = naive.judged(lists_of(block, block.lists.clicked), estimate, alpha, beta, 0.3, shrinkage)
    shown = sorted(wanted)
    assert np.flatnonzero(~np.isnan(found.label)).tolist() == shown
    np.testing.assert_allclose(found.label[shown], [wanted[d][0] for d in shown], rtol=2e-5, atol=2e-6)
    np.testing.assert_allclose(found.variance[shown], [wanted[d][1] for d in shown], rtol=2e-4)
    assert ((found.weight[shown] > 0) & (found.weight[shown] < 1)).all()
    halves = [judged for _, judged in judge_documents(in_two_blocks(log), options, propensities)]
    for name in ("label", "weight"):
        np.testing.assert_array_equal(np.concatenate([getattr(half, name) for half in halves]), getattr(found, name))


@pytest.mark.parametrize(("propensities", "clip"), [(None, 0.1), (PBM, 0.1), (PBM, 0.6)])
def test_pairs_are_those_of_the_slow_twin(propensities, clip):
    log = log_of(200, queries=6, n_docs=12, swapped=0.4).log
    (block,) = log.in_memory
    options = JudgeOptions(form="pairs", clip=clip)
    found = block_pairs(block, options, propensities)
    weight = (lambda k: 1 / max(THETA[k - 1], clip)) if propensities else lambda _: 1.0
    wanted = naive.preferences(lists_of(block, block.lists.clicked), weight)
    got = {}
    for i, j, w, p in zip(*(column.tolist() for column in found), strict=True):
        assert p > 0.5 or (p == 0.5 and i < j)
        got[i, j], got[j, i] = w * p, w * (1 - p)
    got = {pair: weight for pair, weight in got.items() if weight > 0}
    assert got.keys() == wanted.keys()
    for pair, total in wanted.items():
        assert got[pair] == pytest.approx(total, rel=1e-5)


def test_the_file_adds_up_to_the_log_and_has_the_same_bytes_for_any_blocks(tmp_path):
    log = log_of(3000, swapped=0.2).log
    (block,) = log.in_memory
    for form in ("labels", "grades", "pairs"):
        options = JudgeOptions(form=form)
        one = write_judgments(log, tmp_path / f"{form}.parquet", options, PBM)
        two = write_judgments(in_two_blocks(log), tmp_path / f"{form}2.parquet", options, PBM)
        assert one.path.read_bytes() == two.path.read_bytes()
        assert (one.impressions, one.clicks, one.lists) == (len(block.lists.rank), block.lists.clicked.sum(), 3000)
    table = pl.read_parquet(tmp_path / "labels.parquet")
    assert table.select("impressions", "clicks").sum().row(0) == (len(block.lists.rank), block.lists.clicked.sum())
    assert len(table.unique(["qid", "doc_id"])) == len(table)


def test_grades_follow_thresholds(tmp_path):
    log = log_of(3000, swapped=0.2).log
    labels = write_judgments(log, tmp_path / "labels.parquet", JudgeOptions(), PBM)
    bounds = (0.2, 0.35, 0.6)
    every = write_judgments(log, tmp_path / "all.parquet", JudgeOptions(form="grades", thresholds=bounds), PBM)
    table = pl.read_parquet(every.path)
    assert table.drop("grade").equals(pl.read_parquet(labels.path))
    assert table["grade"].to_list() == [sum(label >= bound for bound in bounds) for label in table["label"]]
    halves = write_judgments(log, tmp_path / "half.parquet", JudgeOptions(form="grades", quantiles=(0.5,)), PBM)
    assert halves.per_grade == pytest.approx([halves.rows / 2] * 2, abs=10)  # some have equal labels


def test_documents_that_were_hardly_examined_are_judged_by_where_they_were_shown():
    """A label of `pbm` lies between the rate of its document and that of its ranks, nearer to the first the more it was
    examined."""
    error = {}
    for sessions in (300, 30_000):
        simulated = log_of(sessions, queries=30, swapped=0.1)
        ((block, judged),) = judge_documents(simulated.log, JudgeOptions(estimate="pbm"), PBM)
        document, rank, clicked = block.lists.document, block.lists.rank, block.lists.clicked
        theta, n = np.array(THETA)[rank - 1], len(judged.label)
        of_rank = np.bincount(rank, clicked) / np.maximum(np.bincount(rank, theta), 1e-9)
        examined, usual, clicks = (np.bincount(document, x, n) for x in (theta, theta * of_rank[rank], clicked))
        shown = judged.impressions > 0
        strength = examined[shown] * (1 / judged.weight[shown] - 1)
        np.testing.assert_allclose(strength, strength[0])  # of the log, the same for all documents
        wanted = (clicks[shown] + strength * usual[shown] / examined[shown]) / (examined[shown] + strength)
        np.testing.assert_allclose(judged.label[shown], wanted, rtol=1e-4)
        truth = simulated.relevance[shown] * EXAMINATION[0]
        error[sessions] = np.mean((judged.label[shown] - truth) ** 2) / np.var(truth)
    assert error[300] < 1  # with a click for each document better than the mean of all documents
    assert error[30_000] < 0.1


def test_variances_are_those_of_repeated_logs():
    found = {estimate: [] for estimate in ("ips", "pbm")}
    variance = {estimate: [] for estimate in found}
    for seed in range(150):
        grades = np.random.default_rng(1).integers(0, 5, 40).astype(np.int32)
        start = np.arange(0, 41, 8, dtype=np.int64)
        options = ClickSimulation(sessions=600, randomised=0.5, popularity="equal")
        simulated = simulate(QueriesToShow(start, grades), [grades.astype(float)], options, seed=seed)
        for estimate in found:
            judge = JudgeOptions(estimate=estimate, clip=0.001, shrinkage=1.0)
            ((_, judged),) = judge_documents(simulated.log, judge, PBM)
            found[estimate].append(judged.label)
            variance[estimate].append(judged.variance)
    truth = simulated.relevance * EXAMINATION[0]
    for estimate, labels in found.items():
        z2 = (np.array(labels) - truth) ** 2 / np.mean(variance[estimate], axis=0)
        assert np.mean(z2) == pytest.approx(1.0, abs=0.15), estimate
        if estimate != "pbm":  # unbiased: the mean of 150 logs
            bias = np.mean(labels, axis=0) - truth
            assert np.abs(bias / (np.std(labels, axis=0) / np.sqrt(150))).max() < 4


def test_refusals(tmp_path):
    log = log_of(50).log
    (block,) = log.in_memory
    with refused(InputError, "dctr", "propensities"):
        write_judgments(log, tmp_path / "x.parquet", JudgeOptions(estimate="dctr"), PBM)
    with refused(InputError, "snips", "propensities"):
        write_judgments(log, tmp_path / "x.parquet", JudgeOptions(estimate="snips"))
    assert write_judgments(log, tmp_path / "trusting.parquet", JudgeOptions(), TRUST).estimate == "pbm"
    (tmp_path / "trusting.parquet").unlink()
    silent = block.lists._replace(clicked=np.zeros_like(block.lists.clicked))
    nothing = LogInMemory((LogBlock(silent, block.queries, block.documents, block.document_start),))
    for form in ("labels", "pairs"):
        with refused(DataRejected, "no click"):
            write_judgments(nothing, tmp_path / "x.parquet", JudgeOptions(form=form))
    for given, fact in (
        ({"thresholds": (1.0,)}, "thresholds"),
        ({"form": "grades", "thresholds": (2.0, 1.0)}, "thresholds"),
        ({"form": "grades", "quantiles": (0.5, 1.5)}, "quantiles"),
        ({"form": "grades", "quantiles": (0.5,), "thresholds": (0.5,)}, "thresholds"),
        ({"form": "pairs", "estimate": "ips"}, "estimate"),
    ):
        with refused(InputError, fact):
            JudgeOptions(**given)
    (tmp_path / "d.parquet").mkdir()
    for name, fact in (("x.csv", "parquet"), ("d.parquet", "folder")):
        with refused(InputError, name, fact):
            write_judgments(log, tmp_path / name, overwrite=True)
    assert [path.name for path in tmp_path.rglob("*")] == ["d.parquet"]


def features_of(log: LogInMemory, tmp_path):
    (block,) = log.in_memory
    query = np.repeat(np.arange(len(block.queries)), np.diff(block.document_start))
    qid = block.queries.take(pa.array(query))
    path = tmp_path / "features.parquet"
    pq.write_table(pa.table({"qid": qid, "doc_id": block.documents, "f": np.arange(len(query), dtype=float)}), path)
    return path


def rows_of(folder) -> pl.DataFrame:
    dataset = Dataset.open(folder)
    paths = [dataset.features_path(shard) for shard in dataset.manifest.shards]
    return pl.concat([pl.read_parquet(path) for path in paths]).sort("qid", "doc_id")


def test_labels_grades_and_weights_arrive_in_the_dataset(tmp_path):
    log = log_of(2000, swapped=0.2).log
    features = features_of(log, tmp_path)
    for form in ("labels", "grades"):
        judged = tmp_path / f"{form}.parquet"
        write_judgments(log, judged, JudgeOptions(form=form), PBM)
        ingest([features], tmp_path / form, qrels=[judged])
        rows, wanted = rows_of(tmp_path / form), pl.read_parquet(judged).sort("qid", "doc_id")
        for name in ("qid", "doc_id", "label", "weight"):
            assert rows[name].to_list() == wanted[name].to_list(), name
        grades = wanted["grade"].to_list() if form == "grades" else [0] * len(rows)
        assert rows["grade"].to_list() == grades
        text = tmp_path / f"{form}.csv"
        wanted.write_csv(text)
        ingest([features], tmp_path / f"{form} of text", qrels=[text])
        assert rows_of(tmp_path / f"{form} of text").equals(rows)
    ingest(
        [features], tmp_path / "alone", qrels=[judged], options=IngestOptions(read=ReadOptions(columns={"label": ""}))
    )
    assert "label" not in rows_of(tmp_path / "alone").columns


def write_judged(path, rows, names):
    path.write_text("\n".join([",".join(names), *(",".join(map(str, row)) for row in rows)]) + "\n")
    return path


@pytest.fixture
def people_and_clicks(tmp_path):
    features = write_judged(tmp_path / "f.csv", [("q", d, i) for i, d in enumerate("abcd")], ("qid", "doc_id", "f"))
    people = tmp_path / "people.txt"
    people.write_text("q 0 a 3\nq 0 b 0\n")
    rows = [("q", "a", 1, 0.5), ("q", "b", 2, 0.25), ("q", "c", 2, 0.75)]
    return features, people, write_judged(tmp_path / "clicks.csv", rows, ("qid", "doc_id", "grade", "weight"))


@pytest.mark.parametrize(
    ("how", "grades", "labels"),
    [
        ("heaviest", {"a": 3, "b": 0, "c": 2}, None),
        ("mean", {"a": 2, "b": 0, "c": 2}, {"a": 3.5 / 1.5, "b": 0.5 / 1.25, "c": 2.0}),
        ("median", {"a": 2, "b": 1, "c": 2}, {"a": 2.0, "b": 1.0, "c": 2.0}),
        ("max", {"a": 3, "b": 2, "c": 2}, None),
        ("majority", {"a": 1, "b": 0, "c": 2}, None),
    ],
)
def test_judgments_of_people_and_of_clicks_are_combined(people_and_clicks, tmp_path, how, grades, labels):
    features, people, clicks = people_and_clicks
    for order in ([people, clicks], [clicks, people]):
        ingest([features], tmp_path / "ds", qrels=order, options=IngestOptions(aggregate=how, overwrite=True))
        rows = {row["doc_id"]: row for row in rows_of(tmp_path / "ds").to_dicts()}
        assert {d: row["grade"] for d, row in rows.items()} == grades
        assert {d: row["weight"] for d, row in rows.items()} == {"a": 1.0, "b": 1.0, "c": 0.75}
        if labels is not None:
            assert {d: row["label"] for d, row in rows.items()} == pytest.approx(labels)
    with refused(DataRejected, "'a'", "aggregate"):
        ingest([features], tmp_path / "other", qrels=[people, clicks])


def test_qrels_with_labels_are_checked(people_and_clicks, tmp_path):
    features, people, _ = people_and_clicks
    names = ("qid", "doc_id", "label", "weight")
    real = write_judged(tmp_path / "real.csv", [("q", "a", 0.5, 1), ("q", "b", 0.25, 2)], names)
    with refused(InputError, "real.csv", "people.txt", "label"):
        ingest([features], tmp_path / "ds", qrels=[real, people])
    with refused(InputError, "majority", "labels"):
        ingest([features], tmp_path / "ds", qrels=[real], options=IngestOptions(aggregate="majority"))
    weighted = write_judged(tmp_path / "w.csv", [("q", "a", 1, 1)], ("qid", "doc_id", "f", "weight"))
    with refused(InputError, "weight", "w.csv", "real.csv"):
        ingest([weighted], tmp_path / "ds", qrels=[real])
    bad = write_judged(tmp_path / "bad.csv", [("q", "a", 0.5, -1)], names)
    with refused(DataRejected, "bad.csv:2", "weight"):
        ingest([features], tmp_path / "ds", qrels=[bad])
    twice = write_judged(tmp_path / "twice.csv", [("q", "a", 0.5, 1), ("q", "a", 0.25, 2)], names)
    with refused(DataRejected, "0.25 and 0.5", "aggregate"):
        ingest([features], tmp_path / "ds", qrels=[twice])
    ingest([features], tmp_path / "ds", qrels=[twice], options=IngestOptions(aggregate="heaviest"))
    assert rows_of(tmp_path / "ds")["label"].to_list() == [0.25]
    whole = write_judged(tmp_path / "whole.csv", [("q", "a", 2, 1), ("q", "b", 1, 0.5)], names)
    ingest([features], tmp_path / "whole", qrels=[whole])
    assert rows_of(tmp_path / "whole").select("grade", "label").rows() == [(2, 2.0), (1, 1.0)]


def test_the_command(tmp_path):
    runner = CliRunner()
    log, out = tmp_path / "log.parquet", tmp_path / "judged.parquet"
    synth = ["data", "synth", "-o", str(tmp_path / "j.parquet"), "--queries", "20", "--clicks", str(log)]
    assert runner.invoke(app, [*synth, "--sessions", "500"]).exit_code == 0
    write_propensities(tmp_path / "p.json", PBM)
    words = ["clicks", "judge", str(log), "--propensities", str(tmp_path / "p.json")]
    result = runner.invoke(app, [*words, "--as", "pairs", "-o", str(out), "--json"])
    assert result.exit_code == 0, result.stderr
    facts = json.loads(result.stdout)
    assert facts["form"] == "pairs"
    assert facts["rows"] == len(pl.read_parquet(out))
    j = str(tmp_path / "j.parquet")
    assert runner.invoke(app, ["data", "ingest", j, "--pairs", str(out), "-o", str(tmp_path / "ds")]).exit_code == 0
    assert Dataset.open(tmp_path / "ds").manifest.pairs.pairs == facts["rows"]
    result = runner.invoke(app, [*words, "-o", str(out)])
    assert (result.exit_code, "--overwrite" in str(result.exception)) == (1, True)
    text = runner.invoke(app, [*words, "--as", "grades", "-o", str(out), "--overwrite"]).stdout
    assert "(pbm)" in text
    assert "documents by grade" in text
