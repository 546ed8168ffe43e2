"""Runs as events, and a clock that stands where it is set: what the tests of the observers tell them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

from rankmill.run.events import (
    Artefact,
    Event,
    RunEnded,
    RunStarted,
    StageDone,
    StageFailed,
    StageSaid,
    StageSkipped,
    StageStarted,
)
from rankmill.run.plain_json import Clock
from rankmill.run.stage_facts import (
    BinFacts,
    DriftFacts,
    EvaluateFacts,
    Facts,
    GateFacts,
    IngestFacts,
    ModelPlace,
    PromoteFacts,
    RankedBy,
    RerankFacts,
    RunSummary,
    TrainFacts,
)
from rankmill.scorer.evaluate.evaluation import Figure

RUN_ID = "0b5d3a76-6f0a-4f2b-9a3c-2f1f6f5c7a10"
NIGHT = datetime(2026, 11, 21, 2, 0, tzinfo=UTC)
STAGES = ("ingest", "bin", "train", "evaluate", "gate", "promote", "rerank")
SHA = "ab" * 32
SUMMARY = RunSummary(model=ModelPlace(version="web@7", sha256=SHA, registry="registry", aliases=()))


@dataclass
class Ticking:
    """A clock of which a second passes whenever somebody asks how late it is."""

    passed: float = 0.0
    clock: Clock = field(init=False)

    def __post_init__(self) -> None:
        self.clock = Clock(now=lambda: NIGHT + timedelta(seconds=self.passed), seconds=lambda: self.passed)

    def tell(self, observer: Any, events: Iterator[Event] | list[Event]) -> None:
        for event in events:
            observer(event)
            self.passed += 1.5


def started(folder: Path = Path("site"), **others: Any) -> RunStarted:
    given = {"run_id": RUN_ID, "config": folder / "rankmill.toml", "work": folder / "work", "stages": STAGES}
    return RunStarted(**(given | others))


INGESTED = IngestFacts(dataset="ab" * 32, rows=1200, queries=60, features=12, rejected=1)


def stage(name: str, facts: Facts = INGESTED, **artefacts: tuple[Artefact, ...]) -> list[Event]:
    return [
        StageStarted(stage=name, why="not done yet", doing=f"{name} it", inputs=artefacts.get("inputs", ())),
        StageDone(stage=name, facts=facts, outputs=artefacts.get("outputs", ())),
    ]


DATASET = Artefact(kind="dataset", name="work/dataset", digest=SHA, facts={"rows": 1200, "queries": 60})
MODEL = Artefact(kind="model", name="web@7", digest=SHA, facts={"bytes": 4096})


def night(folder: Path = Path("site"), *, passed: bool = True, exit_code: int = 0) -> list[Event]:
    """A run in which every kind of event happens and everything works."""
    source = Artefact(kind="file", name="judgments/a.txt", digest=SHA, facts={"bytes": 10, "rows": 1201})
    made = Artefact(kind="dataset", name="work/dataset", digest=SHA, facts={**DATASET.facts, "bytes": 2048})
    drift = DriftFacts(against="cd" * 32, psi_max=0.2, alarms=("f1",))
    metrics = {
        "ndcg@10": Figure(mean=0.4125, interval=(0.4, 0.5), n_queries=9),
        "map": Figure(mean=None, interval=None, n_queries=0),
    }
    judged = GateFacts(
        alias="production", passed=passed, carries=passed, report_sha256=SHA,
        metric="ndcg@10", against="web@6", difference=0.01, interval=(-0.001, 0.021),
    )  # fmt: skip
    trained = TrainFacts(model="web@7", sha256=SHA, trees=12, rounds=12, train={}, valid={})
    ranked = RerankFacts(
        columns_guessed={}, files=("a.parquet",), lacking=0, model=RankedBy(name="web", number=7, sha256=SHA), out="ranked",
        queries=9, rows=106, rows_written=45, top_k=5,
    )  # fmt: skip
    evaluated = EvaluateFacts(split="test", metrics=metrics, convention={}, policy={}, ideal="list", counts={})
    return [
        started(folder, logical_date=date(2026, 11, 21)),
        *stage(
            "ingest",
            INGESTED,
            inputs=(source,), outputs=(made,),
        ),
        *stage("bin", BinFacts(binspec=SHA, max_bin=255, sampled_rows=None, drift=drift)),
        StageStarted(stage="train", why="dataset is another", doing="web", inputs=(DATASET,)),
        StageSaid(stage="train", line="compiling"),
        StageDone(stage="train", facts=trained, outputs=(MODEL,)),
        *stage("evaluate", evaluated),
        *stage("gate", judged),
        *(stage("promote", PromoteFacts(model="web@7", moved={"production": "web@6"})) if passed else []),
        *stage("rerank", ranked),
        StageSkipped(stage="report", why="nothing has changed"),
        RunEnded(outcome="done" if passed else "gate not passed", exit_code=exit_code, facts=SUMMARY),
    ]  # fmt: skip


def failed(error: BaseException, *, stopped: bool = False, code: int = 74) -> list[Event]:
    return [
        started(),
        StageStarted(stage="ingest", why="asked for", doing="2 files"),
        StageFailed(stage="ingest", error=error, stopped=stopped),
        RunEnded(outcome="stopped" if stopped else "drift" if code == 12 else "failed", exit_code=code),
    ]


def read_lines(path: Path) -> list[dict]:
    """The objects of a file of JSON lines, without a last line that is torn."""
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith(b"\n")]
