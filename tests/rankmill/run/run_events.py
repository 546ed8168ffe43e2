"""A run as calls of its log, and a clock that advances with every call."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

from rankmill.run.run_log import RunClock, RunLog
from rankmill.run.stage_facts import (
    BinFacts,
    DriftFacts,
    EvaluateFacts,
    GateFacts,
    IngestFacts,
    PromoteFacts,
    RankedBy,
    RerankFacts,
    TrainFacts,
)
from rankmill.scorer.evaluate.evaluation import Figure

RUN_ID = "0b5d3a76-6f0a-4f2b-9a3c-2f1f6f5c7a10"
NIGHT = datetime(2026, 11, 21, 2, 0, tzinfo=UTC)
SHA = "ab" * 32
INGESTED = IngestFacts(dataset=SHA, rows=1200, queries=60, features=12, rejected=1)
CONFIG, STAGES = Path("site/rankmill.toml"), ("ingest", "bin", "train", "evaluate", "gate", "promote", "rerank")
BEFORE = "not done yet"


class Reports:
    """The log of a run in ``folder`` whose clock advances by 1.5 s with every step, and its lines of text."""

    def __init__(self, folder: Path, *, day: date | None = None, run_id: str = RUN_ID) -> None:
        self.path, self.passed, self.lines = folder / "log.jsonl", 0.0, []
        clock = RunClock(now=lambda: NIGHT + timedelta(seconds=self.passed), seconds=lambda: self.passed)
        self.log = RunLog(folder, run_id, day, write=self.lines.append, clock=clock)

    def then(self, *steps: Callable[[RunLog], None]) -> Reports:
        for step in steps:
            step(self.log)
            self.passed += 1.5
        return self


def night() -> list[Callable[[RunLog], None]]:
    """A run in which every kind of event happens and everything works."""
    binned = BinFacts(
        binspec=SHA, max_bin=255, sampled_rows=None, drift=DriftFacts(against=SHA, psi_max=0.2, alarms=("f1",))
    )
    metrics = {
        "ndcg@10": Figure(mean=0.4125, interval=(0.4, 0.5), n_queries=9),
        "map": Figure(mean=None, interval=None, n_queries=0),
    }
    evaluated = EvaluateFacts(split="test", metrics=metrics, convention={}, policy={}, ideal="list", counts={})
    judged = GateFacts(
        alias="production", passed=True, carries=True, report_sha256=SHA,
        metric="ndcg@10", against="web@6", difference=0.01, interval=(-0.001, 0.021),
    )  # fmt: skip
    trained = TrainFacts(model="web@7", sha256=SHA, trees=12, rounds=12, train={}, valid={})
    ranked = RerankFacts(
        columns_guessed={}, files=("a.parquet",), lacking=0, model=RankedBy(name="web", number=7, sha256=SHA),
        out="ranked", queries=9, rows=106, rows_written=45, top_k=5,
    )  # fmt: skip
    promoted = PromoteFacts(model="web@7", moved={"production": "web@6"})
    return [
        lambda log: log.started(CONFIG, STAGES),
        lambda log: log.began("ingest", "ingest it", BEFORE),
        lambda log: log.done("ingest", INGESTED),
        lambda log: log.began("bin", "bin it", BEFORE),
        lambda log: log.done("bin", binned),
        lambda log: log.began("train", "web", "dataset is another"),
        lambda log: log.said("train", "compiling"),
        lambda log: log.done("train", trained),
        lambda log: log.began("evaluate", "evaluate it", BEFORE),
        lambda log: log.done("evaluate", evaluated),
        lambda log: log.began("gate", "gate it", BEFORE),
        lambda log: log.done("gate", judged),
        lambda log: log.began("promote", "promote it", BEFORE),
        lambda log: log.done("promote", promoted),
        lambda log: log.began("rerank", "rerank it", BEFORE),
        lambda log: log.done("rerank", ranked),
        lambda log: log.skipped("report", "nothing has changed"),
        lambda log: log.ended("done", 0, {"model": {"version": "web@7"}}),
    ]


def failed(error: BaseException, outcome: str, code: int) -> list[Callable[[RunLog], None]]:
    return [
        lambda log: log.started(CONFIG, STAGES),
        lambda log: log.began("ingest", "2 files", "asked for"),
        lambda log: log.failed("ingest", error),
        lambda log: log.ended(outcome, code),
    ]


def read_lines(path: Path) -> list[dict]:
    """The objects of a file of JSON lines, without an incomplete last line."""
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith(b"\n")]
