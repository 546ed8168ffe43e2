"""``rankmill run`` with ``[clicks]``: from a log to a gated model, the naive model beside it, and logs that support
nothing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import polars as pl
import pytest

from rankmill import Ranker
from rankmill.cli import execute
from rankmill.clicks.off_policy import Estimated, OffPolicyDifference, RankingValue
from rankmill.clicks.options import ClickSimulation
from rankmill.clicks.simulate import generated_queries, write_click_log
from rankmill.gate.guardrails import Guardrail, clicks_of_log
from rankmill.gate.learnt_from_clicks import CLICKS, LearntFromClicks, clicks_of
from rankmill.gate.recording import naive_beside
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.pipeline.options import SynthParameters
from rankmill.pipeline.synth import write_synthetic
from rankmill.registry import Registry, Version
from tests.refusals import only_line, unnamed

CONFIG = """
[clicks]
sources = ["log.parquet"]
replicates = 2
ranks = 5
[ingest]
sources = ["rows.parquet"]
test = ["people.parquet"]
[train]
name = "web"
n_rounds = 6
[evaluate]
metrics = ["ndcg@10"]
[gate]
"""
JUDGED = 40  # queries from here on are judged by people


def write_project(folder: Path, *, swapped: float) -> Path:
    generated = SynthParameters(queries=70, documents_per_query=10, features=10)
    write_synthetic(folder / "all.parquet", generated)
    judged, scores = generated_queries(generated, "f1")
    options = ClickSimulation(sessions=6000, swapped=swapped, list_length=5, popularity="equal")
    write_click_log(folder / "log.parquet", judged, scores, options)
    rows = pl.read_parquet(folder / "all.parquet")
    by_people = pl.col("qid").cast(pl.Int64) > JUDGED
    rows.filter(~by_people).drop("grade").write_parquet(folder / "rows.parquet")
    rows.filter(by_people).write_parquet(folder / "people.parquet")
    (folder / "rankmill.toml").write_text(CONFIG)
    return folder


def run(project: Path, *options: str) -> int:
    return execute(["run", str(project / "rankmill.toml"), "--registry", str(project / "registry"), *options])


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    project = write_project(tmp_path_factory.mktemp("clicks"), swapped=0.4)
    assert run(project, "--until", "promote") == 0
    return project


@pytest.fixture
def project(done: Path, tmp_path: Path) -> Path:
    shutil.copytree(done, tmp_path / "p")
    return tmp_path / "p"


def test_people_judge_the_test_queries_and_clicks_the_others(done: Path) -> None:
    folder = done / "work/clicks"
    clicked, people = (pl.read_parquet(folder / name) for name in ("judgments.parquet", "people.parquet"))
    assert clicked["qid"].cast(pl.Int64).max() == JUDGED == people["qid"].cast(pl.Int64).min() - 1
    dataset = Dataset.open(done / "work/dataset")
    table = pl.from_arrow(dataset.rows("test", ("qid", "doc_id", "grade", "weight")))
    truth = pl.read_parquet(done / "people.parquet").select("qid", "doc_id", "grade")
    assert table.drop("weight").sort("qid", "doc_id").equals(truth.sort("qid", "doc_id"), null_equal=True)
    assert (table["weight"] == 1).all()
    learnt = pl.from_arrow(dataset.rows("train", ("qid", "doc_id", "label", "weight")))
    joined = learnt.join(clicked, on=["qid", "doc_id"], suffix="_clicks")
    assert joined.height == learnt.height == clicked.height
    assert (joined["label"] - joined["label_clicks"]).abs().max() < 1e-6


def test_the_version_names_its_naive_model_and_the_gate_compares_them(done: Path, capsys) -> None:
    store = Registry(done / "registry")
    web, naive = store.resolve("web@1"), store.resolve("web-naive@1")
    assert web.sha256 != naive.sha256
    said = clicks_of(web)
    assert said is not None
    assert (said.naive, said.judged) == ("web-naive@1", ("test",))
    described = json.loads((done / "work/clicks/describe.json").read_text())
    assert said.model == described["recommended"]["model"]
    assert naive.attachment(CLICKS) is None
    assert web.manifest["parameters"] == naive.manifest["parameters"]

    gate = json.loads((done / "work/gate.json").read_text())
    (against,) = (row for row in gate["comparisons"] if row["against"] == "naive model")
    assert "web-naive@1" in against["words"]
    assert against["metrics"]["ndcg@10"]["n_queries"] == gate["comparisons"][0]["metrics"]["ndcg@10"]["n_queries"]

    # measured by hand, the same comparison; the naive model alone has none
    for model, wanted in (("web@1", True), ("web-naive@1", False)):
        on = ["--on", str(done / "work/dataset"), "--registry", str(done / "registry")]
        execute(["models", "gate", model, *on, "--alias", "staging", "--json"])
        rivals = json.loads(capsys.readouterr().out)["report"]["comparisons"]
        assert ("naive model" in [row["against"] for row in rivals]) == wanted


def test_nothing_is_done_twice_and_a_new_log_only_what_follows(project: Path, capsys) -> None:
    assert run(project, "--plan", "--json") == 0
    stages = {row["stage"]: row["what"] for row in json.loads(capsys.readouterr().out)["plan"]}
    assert list(stages)[:4] == ["clicks", "ingest", "bin", "naive"]
    assert {stages[name] for name in ("clicks", "ingest", "bin", "naive", "train", "evaluate")} == {"skip"}

    (project / "work/clicks/naive.parquet").unlink()
    assert run(project, "--plan", "--json") == 0
    assert "is missing" in json.loads(capsys.readouterr().out)["plan"][0]["why"]
    assert run(project, "--until", "train", "--json") == 0
    captured = capsys.readouterr()
    assert "ingest: skipped" in captured.err  # the judgments came out the same
    summary = json.loads(captured.out)
    assert (summary["model"]["version"], summary["naive"]["model"]) == ("web@1", "web-naive@1")
    assert summary["clicks"]["model"] in summary["clicks"]["why"]


def test_a_log_without_swaps_is_not_corrected_and_the_run_says_so(tmp_path: Path, capsys) -> None:
    project = write_project(tmp_path, swapped=0.0)
    assert run(project, "--until", "gate") == 0
    captured = capsys.readouterr()
    assert captured.err.count("the log supports no correction, so that labels are click-through rates: ") == 1
    assert "naive: skipped, the labels are not corrected" in captured.err
    assert "supports no correction" in captured.out
    assert not (project / "work/clicks/click-model.json").exists()
    assert Registry(project / "registry").names() == ["web"]
    notes = json.loads((project / "work/gate.json").read_text())["notes"]
    assert any("web@1 was learnt from clicks without correction" in note for note in notes)


def test_mistakes_are_found_before_the_run(tmp_path: Path, capsys) -> None:
    for more, facts in (
        ('form = "pairs"\n', ("[clicks]", "form", "pairs")),
        ('form = "grades"\nthresholds = [0.1]\n', ("thresholds", "quantiles")),
        ('estimate = "dctr"\n', ("estimate", "dctr")),
        ('sources2 = ["x"]\n', ("sources2", "clicks")),
        ("", ("[gate]", "people", "ingest.test")),
        ('columns = {qid = "q", page = "url"}\n', ("[clicks]", "page")),
    ):
        text = CONFIG.replace("ranks = 5\n", f"ranks = 5\n{more}")
        (tmp_path / "rankmill.toml").write_text(text if more else text.replace('test = ["people.parquet"]\n', ""))
        assert run(tmp_path) == 2
        assert not unnamed(only_line(capsys.readouterr().err), *facts)
        assert [path.name for path in tmp_path.iterdir()] == ["rankmill.toml"]


def test_the_gate_asks_the_clicks_of_the_log_too(done: Path, capsys) -> None:
    rails = {row["name"]: row for row in json.loads((done / "work/gate.json").read_text())["guardrails"]}
    found = rails["clicks, against web-naive@1"]
    assert found["verdict"] in {"passed", "failed", "noted"}
    low, high = found["value"]["interval"]
    assert low <= found["value"]["difference"] <= high
    assert found["value"]["effective_clicks"] > 0

    # by hand: the same figures; one option alone is refused; users who never saw these queries say nothing
    on = ["--on", str(done / "work/dataset"), "--registry", str(done / "registry")]
    gate = ["models", "gate", "web@1", *on, "--json"]
    model = ["--propensities", str(done / "work/clicks/click-model.json")]
    execute([*gate, "--alias", "by-hand", "--log", str(done / "log.parquet"), *model])
    again = {row["name"]: row for row in json.loads(capsys.readouterr().out)["report"]["guardrails"]}
    assert again["clicks, against web-naive@1"] == found
    assert execute([*gate, *model]) == 2
    assert not unnamed(only_line(capsys.readouterr().err), "--log", "--propensities", "together")
    log = pl.read_parquet(done / "log.parquet").filter(pl.col("qid").cast(pl.Int64) <= JUDGED)
    log.write_parquet(done / "others.parquet")
    execute([*gate, "--alias", "others", "--log", str(done / "others.parquet"), *model])
    again = {row["name"]: row for row in json.loads(capsys.readouterr().out)["report"]["guardrails"]}
    assert again["clicks, against web-naive@1"]["verdict"] == "noted"
    assert "the log does not say" in again["clicks, against web-naive@1"]["words"]


def test_clicks_refuse_only_what_is_worth_significantly_less() -> None:
    def judged(difference: float, half: float, effective: float = 500.0) -> Guardrail:
        value = RankingValue(values={}, effective_clicks=effective, shown=1.0, overlap=1.0, clipped=0.0)
        estimated = Estimated(value=difference, interval=(difference - half, difference + half))
        found = OffPolicyDifference(difference=estimated, candidate=value)
        return clicks_of_log("web@1", found)

    assert [judged(*case).verdict for case in ((0.1, 0.05), (-0.1, 0.2), (-0.1, 0.05))] == [
        "passed",
        "passed",
        "failed",
    ]
    assert not unnamed(judged(-0.1, 0.05).reason, "clicks, against web@1", "-0.1000", "-0.1500 to -0.0500", "500")
    assert judged(-0.1, 0.05, effective=99.0).verdict == "noted"
    refused = clicks_of_log("web@1", OffPolicyDifference(reason="it is too short"))
    assert (refused.verdict, refused.words) == ("noted", "the log does not say: it is too short")


def test_a_version_that_is_worse_than_its_naive_model_is_refused(done: Path, tmp_path: Path, capsys) -> None:
    store = Registry(tmp_path / "registry")
    better = train_small(done, store, "good", LearntFromClicks(model=None))
    bad = train_small(done, store, "web", LearntFromClicks(model="pbm", naive=str(better)), upside_down=True)
    on = ["--on", str(done / "work/dataset"), "--registry", str(tmp_path / "registry")]
    assert execute(["models", "gate", str(bad), *on, "--json"]) == 11
    report = json.loads(capsys.readouterr().out)["report"]
    (row,) = (row for row in report["comparisons"] if row["against"] == "naive model")
    assert not row["passed"]
    assert not unnamed(row["reasons"][0], "ndcg@10", str(better), "significantly worse", "--margin")
    assert row["metrics"]["ndcg@10"]["difference"] < 0
    # on its own queries, whose labels are from clicks, the two are not compared
    said = clicks_of(bad)
    assert said is not None
    naive, remarks = naive_beside(store, bad, True, "test")
    assert naive is None
    assert not unnamed(remarks[0], "test", "clicks", str(better))
    store_without = Registry(tmp_path / "other")
    alone = train_small(done, store_without, "web", LearntFromClicks(model="pbm", naive="gone@1"))
    assert not unnamed(naive_beside(store_without, alone, False, "test")[1][0], "gone@1", "removed")


def train_small(
    done: Path, store: Registry, name: str, said: LearntFromClicks, *, upside_down: bool = False
) -> Version:
    """Train on the true grades of the judged queries (or on their negative), and register the model with what it says
    of clicks."""
    rows = pl.read_parquet(done / "people.parquet").sort("qid", "doc_id")
    features = [column for column in rows.columns if column.startswith("f")]
    grades = rows["grade"].to_numpy()
    target = grades.max() - grades if upside_down else grades
    ranker = Ranker(objective="l2", n_rounds=5).fit(rows.select(features), target, qid=rows["qid"].to_numpy())
    manifest = {"features": features, "dataset_digest": None, "parameters": {}, "metrics": {}}
    return store.register(name, ranker.forest_.to_bytes(), manifest=manifest, attachments={CLICKS: said.to_bytes()})
