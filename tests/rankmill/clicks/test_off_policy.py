"""Off-policy evaluation against a slow twin and against the true values of rankings in simulated logs."""

from __future__ import annotations

import json

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from typer.testing import CliRunner

from rankmill.cli import app, execute
from rankmill.clicks.off_policy import ESTIMATORS, NotSupported, evaluate_off_policy, off_policy_difference
from rankmill.clicks.options import ClickSimulation, OffPolicyOptions
from rankmill.clicks.simulate import EXAMINATION, QueriesToShow, SimulatedLog, simulate
from rankmill.foundation.errors import DataRejected, InputError
from rankmill.foundation.records import as_json
from rankmill.pipeline.judgments.propensities import Propensities, write_propensities
from tests import naive_clicks as naive
from tests.rankmill.clicks.test_click_judgments import lists_of
from tests.rankmill.clicks.test_click_models import in_two_blocks
from tests.refusals import refused
from tests.scorer.forests import random_forest

THETA = np.array(EXAMINATION) / EXAMINATION[0]
PBM = Propensities(model="pbm", examination=tuple(THETA.tolist()))


class Case:
    """Queries of 8 documents, a logging ranker, and another one; half of the lists are in random order."""

    def __init__(self, queries: int = 12, n_docs: int = 8, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.start = np.arange(queries + 1, dtype=np.int64) * n_docs
        self.grades = rng.integers(0, 5, self.start[-1]).astype(np.int32)
        self.judged = QueriesToShow(self.start, self.grades)
        self.logger, self.other = (self.grades + rng.normal(0, scale, len(self.grades)) for scale in (3.0, 1.0))
        self.query = np.repeat(np.arange(queries), n_docs)

    def log(self, sessions: int, seed: int, **options: object) -> SimulatedLog:
        given = {"randomised": 0.5, "popularity": "equal"} | options
        return simulate(self.judged, [self.logger], ClickSimulation(sessions=sessions, **given), seed=seed)

    def table(self, scores: np.ndarray, keep: np.ndarray | slice = slice(None)) -> pa.Table:
        ids = self.judged.query_ids.take(pa.array(self.query)), self.judged.document_ids
        columns = {"qid": ids[0], "doc_id": ids[1], "score": np.asarray(scores, dtype=np.float64)}
        return pa.table(
            {k: pa.array(np.array(v.to_pylist() if hasattr(v, "to_pylist") else v)[keep]) for k, v in columns.items()}
        )

    def ranking(self, scores: np.ndarray) -> dict[int, list[int]]:
        return {
            q: sorted(np.flatnonzero(self.query == q).tolist(), key=lambda d: (-scores[d], d))
            for q in range(len(self.start) - 1)
        }

    def value(self, scores: np.ndarray, gamma: np.ndarray) -> float:
        """The expected clicks of a list, for queries that are asked equally often."""
        found = self.ranking(scores).values()
        return float(np.mean([sum(THETA[r] * gamma[d] for r, d in enumerate(docs)) for docs in found]))


@pytest.mark.parametrize("rank_weight", ["clicks", "dcg"])
def test_values_are_those_of_the_slow_twin(rank_weight):
    case = Case(5)
    log = case.log(60, 3, list_length=5).log
    (block,) = log.in_memory
    lists = lists_of(block, block.lists.clicked)
    options = OffPolicyOptions(clip=0.4, rank_weight=rank_weight, cutoff=4, shrinkage=2.0, min_overlap=0.0)
    weight = (lambda r: THETA[r - 1]) if rank_weight == "clicks" else lambda r: 1 / np.log2(r + 1)
    rows = [(d, k, v) for docs, ranks, values, _ in lists for d, k, v in zip(docs, ranks, values, strict=True)]
    mean = sum(v for *_, v in rows) / sum(THETA[k - 1] for _, k, _ in rows)

    def shrunken(document: int) -> float:
        mine = [(k, v) for d, k, v in rows if d == document]
        return (sum(v for _, v in mine) + 2 * mean) / (sum(THETA[k - 1] for k, _ in mine) + 2)

    rankings = {"a": case.table(case.logger), "b": case.table(case.other)}
    found = evaluate_off_policy(log, rankings, PBM, options)
    assert found == evaluate_off_policy(in_two_blocks(log), rankings, PBM, options)
    for estimator in ESTIMATORS:
        wanted = []
        for scores in (case.logger, case.other):
            cut = {q: docs[:4] for q, docs in case.ranking(scores).items()}
            alpha = lambda k: THETA[k - 1]  # noqa: E731
            wanted.append(naive.value_of(lists, cut, estimator, alpha, weight, 0.4, shrunken))
        got = [found.rankings[name].values[estimator].value for name in rankings]
        assert got == pytest.approx(wanted, rel=1e-4), estimator
        assert found.differences["b"][estimator].value == pytest.approx(wanted[1] - wanted[0], rel=1e-3, abs=1e-6)


def test_the_log_ranking_itself_is_worth_its_clicks():
    case = Case(10)
    log = case.log(4000, 1, randomised=0.0).log
    (block,) = log.in_memory
    found = evaluate_off_policy(log, {"same": case.table(case.logger)}, PBM)
    clicks = block.lists.clicked.sum() / len(block.lists.query)
    ranking = found.rankings["same"]
    for estimator in ("ips", "dr"):
        assert ranking.values[estimator].value == pytest.approx(clicks, rel=1e-4)
    assert (ranking.shown, ranking.overlap) == (1.0, 1.0)
    per_session = np.add.reduceat(block.lists.clicked, block.lists.start[:-1])
    low, high = ranking.values["ips"].interval
    assert high - low == pytest.approx(2 * 1.96 * per_session.std() / np.sqrt(4000), rel=0.15)


@pytest.mark.slow
def test_over_a_thousand_logs_ips_is_unbiased_and_intervals_cover(capsys):
    case, inside, values = Case(20), dict.fromkeys(("ips", "dr", "difference"), 0), []
    logs, truth = 1000, 0.0
    for seed in range(logs):
        simulated = case.log(600, seed)
        gamma = simulated.relevance * EXAMINATION[0]
        truth = case.value(case.other, gamma)
        production = case.value(case.logger, gamma)
        rankings = {"a": case.table(case.logger), "b": case.table(case.other)}
        report = evaluate_off_policy(simulated.log, rankings, PBM, OffPolicyOptions(clip=0.05))
        found = report.rankings["b"].values
        values.append([found[name].value for name in ("ips", "dr")])
        checked = (
            ("ips", found["ips"], truth),
            ("dr", found["dr"], truth),
            ("difference", report.differences["b"]["ips"], truth - production),
        )
        for name, estimated, true in checked:
            low, high = estimated.interval
            inside[name] += low <= true <= high
    mean, error = np.mean(values, axis=0), np.std(values, axis=0, ddof=1) / np.sqrt(logs)
    with capsys.disabled():
        print(
            f"\ntruth {truth:.5f}; mean of {logs} logs and standard error: ips {mean[0]:.5f} ({error[0]:.5f}), dr {mean[1]:.5f} ({error[1]:.5f})"
        )
        print("covered by 95 % intervals:", {name: f"{count / logs:.1%}" for name, count in inside.items()})
    assert abs(mean[0] - truth) < 3 * error[0]
    for count in inside.values():
        assert 0.93 <= count / logs <= 0.97


def test_the_gate_gets_which_ranking_is_better_or_why_not():
    case = Case(30)
    simulated = case.log(6000, 5)
    gamma = simulated.relevance * EXAMINATION[0]
    true = case.value(case.grades, gamma) - case.value(-case.grades, gamma)
    good, bad = case.table(case.grades), case.table(-case.grades)
    for unit in ("sessions", "queries"):
        record = off_policy_difference(simulated.log, good, bad, PBM, OffPolicyOptions(unit=unit))
        assert record.reason is None
        low, high = record.difference.interval
        assert 0 < low < true < high
        assert json.loads(json.dumps(as_json(record)))["difference"]["value"] == record.difference.value
    few = case.log(6000, 5, list_length=2, randomised=0.0)
    refusal = off_policy_difference(few.log, case.table(-case.logger), good, PBM, OffPolicyOptions(min_overlap=0.9))
    assert "candidate" in refusal.reason or "production" in refusal.reason
    assert "difference" not in as_json(refusal)


def test_what_the_log_does_not_support_is_said():
    case = Case(10)
    log = case.log(60, 1, list_length=3, randomised=0.0).log
    reverse = {"reverse": case.table(-case.logger)}
    with refused(NotSupported, "reverse", "min_overlap"):
        evaluate_off_policy(log, reverse, PBM)
    found = evaluate_off_policy(log, reverse, PBM, OffPolicyOptions(min_overlap=0.0)).rankings["reverse"]
    assert found.shown < 0.5
    assert found.values["ips"].value < found.values["dr"].value  # which takes them for average
    half = {"half": case.table(case.logger, case.query < 5)}
    report = evaluate_off_policy(log, half, PBM)
    assert (report.queries, report.queries_without_ranking) == (5, 5)
    with refused(NotSupported, "spell"):
        none = case.table(case.logger).set_column(0, "qid", pa.array(["x"] * len(case.query)))
        evaluate_off_policy(log, {"none": none}, PBM)
    twice = pa.concat_tables([case.table(case.logger)] * 2)
    with refused(DataRejected, "twice", "D01"):
        evaluate_off_policy(log, {"twice": twice}, PBM)
    with refused(InputError, "nameless", "doc_id"):
        evaluate_off_policy(log, {"nameless": case.table(case.logger).drop_columns(["doc_id"])}, PBM)


def test_the_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    runner = CliRunner()
    synth = ["data", "synth", "-o", "j.parquet", "--queries", "40", "--features", "12", "--clicks", "log.parquet"]
    assert runner.invoke(app, [*synth, "--sessions", "2000", "--randomised", "0.5"]).exit_code == 0
    assert runner.invoke(app, ["data", "ingest", "j.parquet", "-o", "ds"]).exit_code == 0
    random_forest(1).save(tmp_path / "m.rankmill")
    assert runner.invoke(app, ["rerank", "j.parquet", "--model", "m.rankmill", "-o", "new.parquet"]).exit_code == 0
    write_propensities(tmp_path / "p.json", PBM)
    pl.read_parquet("j.parquet").select("qid", "doc_id", score="f1").write_csv("old.csv")
    words = [
        "clicks",
        "evaluate",
        "log.parquet",
        "--propensities",
        "p.json",
        "--ranked",
        "old.csv",
        "--min-overlap",
        "0",
    ]
    by_list = json.loads(runner.invoke(app, [*words, "--ranked", "new.parquet", "--json"]).stdout)
    model = ["--model", "m.rankmill", "--on"]
    by_model = json.loads(runner.invoke(app, [*words, *model, "j.parquet", "--json"]).stdout)
    by_dataset = json.loads(runner.invoke(app, [*words, *model, "ds", "--json"]).stdout)
    assert by_list["rankings"]["new.parquet"] == by_model["rankings"]["m"] == by_dataset["rankings"]["m"]
    assert by_list["differences"]["new.parquet"]["dr"]["value"] != 0
    text = runner.invoke(app, [*words, "--ranked", "new.parquet"]).stdout
    assert "new.parquet - old.csv: ips" in text
    assert execute(words[:5]) == 2
    assert "no ranking given" in capsys.readouterr().err
    assert execute([*words[:7], "--ranked", "missing.csv"]) == 2
