"""``rankmill report NAME@VERSION``: a report of what the registry holds, honest about what it does not."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import pytest

from rankmill.cli import execute
from rankmill.report.model_charts import dependence
from rankmill.report.page import markdown, page
from tests.rankmill.report.report_case import Work
from tests.refusals import only_line

UNKNOWN = ("metrics", "queries", "slices", "learning", "scores", "drift", "date")


@pytest.fixture(scope="module")
def work(tmp_path_factory) -> Work:
    """web@1 is plainly trained; web@2 has passed the gate and is production; web@3 has not passed it."""
    made = Work(tmp_path_factory.mktemp("registered"))
    made.train()
    second, _ = made.train(n_rounds=16)
    made.judge(second)
    third, _ = made.train(n_rounds=2, max_leaves=2)
    made.judge(third)
    return made


def report(work: Work, reference: str, out: Path, *options: str) -> dict:
    assert execute(["report", reference, "--registry", str(work.registry), "-o", str(out), *options]) == 0
    assert sorted(path.name for path in out.iterdir()) == ["index.html", "report.json", "report.md"]
    facts = json.loads((out / "report.json").read_bytes())
    assert page(facts) == (out / "index.html").read_text()
    assert markdown(facts) == (out / "report.md").read_text()
    return facts


def test_a_plain_training_has_a_report_of_what_is_known(work: Work, tmp_path: Path) -> None:
    facts = report(work, "web@1", tmp_path / "out")
    version = work.store.resolve("web@1", bare="latest")
    assert facts["lineage"]["model_sha256"] == version.sha256
    assert {name: facts[name] for name in UNKNOWN} == dict.fromkeys(UNKNOWN) | {"slices": []}
    measured = {(row["split"], row["metric"]): row["mean"] for row in facts["recorded"]}
    assert measured == {
        (split, metric): mean for split, means in version.manifest["metrics"].items() for metric, mean in means.items()
    }
    sizes = {each["name"]: (each["queries"], each["rows"]) for each in facts["data"]["splits"]}
    assert sizes == {name: (count.queries, count.rows) for name, count in work.dataset.manifest.splits.items()}
    assert facts["influence"]["features"]
    assert facts["dependence"]
    mean = measured["valid", "ndcg@10"]
    assert facts["findings"]["title"] == (
        f"web@1 was trained, but not compared with anything: NDCG@10 {mean:.4f} on the valid queries"
    )
    for text in (page(facts), markdown(facts)):
        assert "unknown here" in text
        assert f"{mean:.4f}" in text
        assert "Registered" in text.replace("registered", "Registered")
        assert "rankmill run" not in text
        assert "WORK" not in text


def test_the_verdict_of_a_version_is_the_one_its_gate_recorded(work: Work, tmp_path: Path) -> None:
    facts = report(work, "web@production", tmp_path / "out")
    gate = work.store.gate_report("web", work.store.resolve("web@2", bare="latest").gates["production"].number)
    single = gate["comparisons"][1]["metrics"]["ndcg@10"]
    assert facts["model"]["version"] == "web@2"
    assert (facts["verdict"]["outcome"], facts["verdict"]["gate"]) == ("promoted", True)
    assert facts["verdict"]["bars"][1]["found"]["interval"] == single["interval"]
    assert facts["findings"]["title"].startswith("web@2 beats the best single feature by ")
    text = page(facts)
    assert f"The gate judged it on {single['n_queries']} queries of the test split" in text
    assert 'class="verdict good"' in text
    failed = report(work, "web@latest", tmp_path / "third")
    assert failed["verdict"]["outcome"] == "not promoted"
    assert failed["present"]["version"] == "web@2"
    assert failed["verdict"]["reasons"][0] in markdown(failed).replace("\\", "")
    assert failed["findings"]["title"].startswith("web@3 is worse than production by ")


def test_the_same_registry_gives_the_same_bytes(work: Work, tmp_path: Path, monkeypatch) -> None:
    report(work, "web@2", tmp_path / "one")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert execute(["report", "web@2", "--registry", str(work.registry)]) == 0
    for path in (tmp_path / "one").iterdir():
        assert (tmp_path / "here" / "web@2.report" / path.name).read_bytes() == path.read_bytes()


def test_a_folder_comes_before_a_model_of_the_same_name(work: Work, tmp_path: Path, monkeypatch, capsys) -> None:
    (tmp_path / "web").mkdir()
    monkeypatch.chdir(tmp_path)
    assert execute(["report", "web", "--registry", str(work.registry)]) != 0
    assert "web/dataset" in capsys.readouterr().err


def test_a_curve_shows_every_step_where_the_spread_of_the_rows_is_unknown() -> None:
    """Below the first point and above the last but one, too, where half of the score may be."""
    curve = {"points": [0.1, 0.4, 0.9], "outputs": [-1.0, 0.5, 2.0], "missing": 0.0, "asked_for": True}
    row = {"feature": "f1", "influence": 1.0, "candidate": curve, "before": None, "values": None}
    path = re.search(r'<path class="line main" d="M([^"]*)"', str(dependence(row, 252.0)))[1]
    corners = [tuple(map(float, corner.split())) for corner in path.split("L")]
    flat = [stop[0] - start[0] for start, stop in itertools.pairwise(corners) if start[1] == stop[1]]
    assert len(flat) == 3
    assert min(flat) > 5.0


def test_a_categorical_feature_has_a_dot_for_each_category() -> None:
    def curve(**outputs):
        return {"categories": [*outputs], "outputs": [*outputs.values()], "missing": 0.0, "asked_for": True}

    row = {"feature": "f<1>", "influence": 1.0, "candidate": curve(acme=1.0, zeta=-3.0, other=2.0)}
    row |= {"before": None, "values": None}
    drawn = str(dependence(row, 252.0))
    anchors = set(re.findall(r'<text [^>]*text-anchor="(\w+)"', drawn))  # "start" is what is meant without one
    assert anchors
    assert anchors <= {"middle", "end"}
    assert drawn.count("<circle") == 3
    assert drawn.index(">other<") < drawn.index(">acme<") < drawn.index(">zeta<")
    assert "f&lt;1&gt;" in drawn
    row["before"] = curve(acme=0.5, beta=1.0)
    assert str(dependence(row, 252.0)).count("<circle") == 4
    row["before"] = {"points": [0.1, 0.4], "outputs": [-1.0, 0.5], "missing": 0.0, "asked_for": True}
    assert str(dependence(row, 252.0)) == drawn
    row["candidate"], row["before"] = row["before"], row["candidate"]
    assert "line main" in str(dependence(row, 252.0))
    many = curve(**{f"c{i}": float(i) for i in range(30)})
    assert "20 more categories" in str(dependence({**row, "candidate": many, "before": None}, 252.0))


def test_a_mistake_is_one_line(work: Work, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    for arguments, line in (
        (("web@9",), "web has no version 9"),
        (("wep@1",), "wep@1: no such folder, and no such model in the registry"),
        (("web@1", "--by", "f1"), "--by: the registry has no queries of web@1"),
    ):
        assert execute(["report", *arguments, "--registry", str(work.registry)]) == 2
        assert line in only_line(capsys.readouterr().err)
    assert list(tmp_path.iterdir()) == []
