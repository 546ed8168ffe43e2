"""The page of ratios: a slowdown is said, and only where no turn reaches the page before."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.ratios import Run, last_of, page, ratios_of


def page_of(ratios: list[float], machine: str = "one", **more: list[float]) -> dict[str, Any]:
    found = {"name": "training", "peer": "LightGBM", "script": "train", "ratios": ratios, **more}
    facts: dict[str, Any] = {"date": "2026-01-01", "versions": {}, "command": "c", "missing": []}
    return facts | {"machine": machine, "ratios": {"t": found}}


def test_a_page_says_what_is_slower_than_all_turns_of_the_page_before():
    before = page_of([2.0, 2.2, 2.4])
    assert "slower" in page(page_of([1.7, 1.8, 1.9]), before)
    assert "slower" not in page(page_of([1.7, 1.8, 2.1]), before)
    assert "slower" not in page(page_of([3.0]), before)
    assert "2.20 (2.00 to 2.40)" in page(page_of([3.0]), before)
    assert "slower" not in page(page_of([0.1]), None)


def test_processor_time_decides_where_both_pages_have_it():
    before = page_of([2.0, 2.2], cpu=[2.0, 2.1])
    assert "slower" in page(page_of([3.0], cpu=[1.9]), before)
    assert "slower" not in page(page_of([1.0], cpu=[2.0]), before)
    assert "slower" in page(page_of([1.0]), before)


def test_ratios_are_of_two_runs_of_a_turn():
    turns = [[Run(2.0, 4.0, 0.5), Run(4.0, 12.0, 0.75)], [Run(1.0, 2.0, 0.5), Run(3.0, 2.0, 0.25)]]
    assert ratios_of(turns, 1) == {"ratios": [2.0, 3.0], "cpu": [3.0, 1.0], "ndcg": [0.5, 0.5]}
    assert ratios_of([[Run(2.0), Run(1.0)]], 1) == {"ratios": [0.5]}


def test_a_page_is_compared_with_the_last_of_the_same_machine(tmp_path: Path):
    history = tmp_path / "history.jsonl"
    assert last_of(history, "one") is None
    pages = [page_of([1.0]), page_of([2.0]), page_of([3.0], "another")]
    history.write_text("".join(json.dumps(each) + "\n" for each in pages), encoding="utf-8")
    assert last_of(history, "one") == pages[1]
    assert last_of(history, "third") is None
