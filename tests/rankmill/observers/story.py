"""Runs as events, and a clock that stands where it is set: what the tests of the observers tell them."""

from __future__ import annotations

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

RUN_ID = "0b5d3a76-6f0a-4f2b-9a3c-2f1f6f5c7a10"
NIGHT = datetime(2026, 11, 21, 2, 0, tzinfo=UTC)
STAGES = ("ingest", "bin", "train", "evaluate", "gate", "promote", "rerank")
SHA = "ab" * 32


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


def stage(name: str, facts: dict[str, Any] | None = None, **artefacts: tuple[Artefact, ...]) -> list[Event]:
    return [
        StageStarted(stage=name, why="not done yet", doing=f"{name} it", inputs=artefacts.get("inputs", ())),
        StageDone(stage=name, facts=facts or {}, outputs=artefacts.get("outputs", ())),
    ]


COLUMNS = [{"name": "qid", "type": "string"}, {"name": "bm25", "type": "float32"}]
DATASET = Artefact(kind="dataset", name="work/dataset", digest=SHA, facts={"rows": 1200, "queries": 60})
MODEL = Artefact(kind="model", name="web@7", digest=SHA, facts={"bytes": 4096})


def night(folder: Path = Path("site"), *, passed: bool = True, exit_code: int = 0) -> list[Event]:
    """A run in which every kind of event happens and everything works."""
    source = Artefact(kind="file", name="judgments/a.txt", digest=SHA, facts={"bytes": 10, "rows": 1201})
    made = Artefact(
        kind="dataset", name="work/dataset", digest=SHA, facts={**DATASET.facts, "columns": COLUMNS, "bytes": 2048}
    )
    compared = {"metric": "ndcg@10", "against": "web@6", "difference": 0.01, "interval": [-0.001, 0.021]}
    return [
        started(folder, logical_date=date(2026, 11, 21)),
        *stage(
            "ingest",
            {"rows": 1200, "queries": 60, "features": 12, "rejected": 1, "dataset": SHA},
            inputs=(source,), outputs=(made,),
        ),
        StageSkipped(stage="bin", why="nothing has changed"),
        StageStarted(stage="train", why="dataset is another", doing="web", inputs=(DATASET,)),
        StageSaid(stage="train", line="compiling"),
        StageDone(stage="train", facts={"model": "web@7", "sha256": SHA, "rounds": 12}, outputs=(MODEL,)),
        *stage("evaluate", {"split": "test", "metrics": {"ndcg@10": {"mean": 0.4125, "n_queries": 9}, "map": {"mean": None}}}),
        *stage("gate", {"alias": "production", "passed": passed, **compared, "drift": {"psi_max": 0.2, "alarms": ["f1"]}}),
        *(stage("promote", {"model": "web@7", "moved": {"production": "web@6"}}) if passed else []),
        *stage("rerank", {"rows": 106, "rows_written": 45, "queries": 9, "out": "ranked"}),
        RunEnded(outcome="done" if passed else "gate not passed", exit_code=exit_code, facts={"model": {"version": "web@7"}}),
    ]  # fmt: skip


def failed(error: BaseException, *, stopped: bool = False, code: int = 74) -> list[Event]:
    return [
        started(),
        StageStarted(stage="ingest", why="asked for", doing="2 files"),
        StageFailed(stage="ingest", error=error, stopped=stopped),
        RunEnded(outcome="stopped" if stopped else "drift" if code == 12 else "failed", exit_code=code),
    ]
