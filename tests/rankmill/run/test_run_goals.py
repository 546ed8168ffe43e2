"""``rankmill run`` with goals: they are evaluated, gated and reported, and a version that gives one up is not
promoted."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl

from rankmill.cli import execute

CONFIG = """
[ingest]
sources = ["offers.csv"]
goals = ["bought"]
split = {train = 0.5, valid = 0.2, test = 0.3}
buckets = 2
[bin]
max_bin = 31
[train]
name = "shop"
n_rounds = 8
max_leaves = 4
preset = "defaults-1"
goals = {bought = WEIGHT}
[evaluate]
metrics = ["ndcg@10", "err@5:bought"]
[gate]
margin = 0.3
also = {"ndcg@10:bought" = 0.02, map = 0.9}
"""


def run(folder: Path, weight: float) -> int:
    (folder / "rankmill.toml").write_text(CONFIG.replace("WEIGHT", str(weight)))
    return execute(["run", str(folder / "rankmill.toml"), "--registry", str(folder / "registry")])


def test_each_objective_is_looked_after(tmp_path: Path, capsys) -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(1200, 3))
    columns = {"qid": [f"q{k // 10}" for k in range(1200)], "doc_id": [f"d{k}" for k in range(1200)]}
    columns |= {name: np.clip(np.round(x[:, f] + 1), 0, 3).astype(int) for f, name in enumerate(("grade", "bought"))}
    pl.DataFrame(columns | {f"x{f}": x[:, f] for f in range(3)}).write_csv(tmp_path / "offers.csv")
    run(tmp_path, 0.5)
    promote = ["models", "promote", "shop@1", "--force", "--reason", "first", "--registry", str(tmp_path / "registry")]
    execute(promote)
    capsys.readouterr()
    assert run(tmp_path, 0.0) == 11
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("rankmill: ")]
    assert "ndcg@10:bought against shop@1" in line
    gate = json.loads((tmp_path / "work" / "gate.json").read_text())
    (comparison,) = gate["comparisons"]
    assert comparison["passed"]
    assert {each["metric"]: each["passed"] for each in comparison["also"]} == {"map": True, "ndcg@10:bought": False}
    evaluation = json.loads((tmp_path / "work" / "evaluation.json").read_text())
    assert list(evaluation["metrics"]) == ["err@5:bought", "ndcg@10"]
    report = tmp_path / "work" / "report"
    (page,) = report.glob("*.html")
    (text,) = report.glob("*.md")
    for content in (page.read_text(), text.read_text()):
        assert "NDCG@10:bought" in content
        assert "must not be worse by more than 0.02" in content
        assert "All guardrails passed, but NDCG@10:bought did not" in content
    bars = json.loads((report / "report.json").read_text())["gate"]["comparisons"]
    assert [each["passed"] for each in bars[0]["also"]] == [True, False]
