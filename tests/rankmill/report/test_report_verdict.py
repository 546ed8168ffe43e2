"""What the top of a report says: never a rounded-off sign, never more than the gate has shown, and of which day."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankmill.report import formatting
from rankmill.report.facts import Report
from rankmill.report.findings import queries_heading, title, verdict
from rankmill.report.page import markdown, page
from tests.rankmill.report.report_case import Work

AMOUNT = st.floats(1e-8, 1.0) | st.floats(-1.0, -1e-8)


@pytest.fixture(scope="module")
def first(first_version: Work, tmp_path_factory) -> Report:
    """The facts of a first version that was promoted."""
    return first_version.report(tmp_path_factory.mktemp("report") / "out")


@pytest.fixture(scope="module")
def second(tmp_path_factory) -> Report:
    """The facts of a second version, promoted although it is hardly another model."""
    made = Work(tmp_path_factory.mktemp("second"))
    for rounds in (8, 9):
        version, _ = made.train(n_rounds=rounds)
        made.judge(version, margin=0.05)
    return made.report(date="2026-11-21")


def with_difference(report: Report, low: float, gap: float, high: float, margin: float | None = None) -> Report:
    """Return the facts of another interval of the metric that decides."""
    metrics = report.metrics
    found = replace(metrics.difference, difference=gap, interval=(low, high), wins=9)
    rankings = [
        replace(each, candidate_less_this={**each.candidate_less_this, metrics.primary: found})
        if each is metrics.against
        else each
        for each in metrics.rankings
    ]
    gate = report.gate if margin is None else replace(report.gate, margin=margin)
    return replace(report, metrics=replace(metrics, rankings=tuple(rankings)), gate=gate)


def figures(text: str) -> list[float]:
    return [
        float(found.replace(formatting.MINUS, "-")) for found in re.findall(rf"[+{formatting.MINUS}]?\d+\.\d+", text)
    ]


@given(st.lists(AMOUNT, min_size=2, max_size=2).map(sorted))
def test_both_ends_of_an_interval_keep_their_sign(ends: list[float]) -> None:
    reported = figures(formatting.interval(ends, 3, sign=True))
    assert [value > 0 for value in reported] == [value > 0 for value in ends]
    assert [value < 0 for value in reported] == [value < 0 for value in ends]


@given(AMOUNT)
def test_a_difference_keeps_its_sign(amount: float) -> None:
    text = formatting.signed(amount)
    assert text[0] == ("+" if amount > 0 else formatting.MINUS)
    assert figures(text)[0] != 0.0


@settings(max_examples=30)
@given(st.lists(AMOUNT, min_size=3, max_size=3).map(sorted))
def test_the_headline_says_on_which_side_of_nothing_the_interval_ends(second: Report, three: list[float]) -> None:
    low, gap, high = three
    reported = figures(title(with_difference(second, low, gap, high)).partition("@10")[2])[-2:]
    if high < 0.0:
        assert all(value > 0.0 for value in reported)  # "is worse by 0.1 (0.05 to 0.2)"
    else:
        assert [value > 0 for value in reported] == [low > 0, high > 0]


def test_an_end_beside_the_margin_is_not_rounded_onto_it(second: Report) -> None:
    words = title(with_difference(second, -0.00496, 0.001, 0.004, margin=0.005))
    assert f"({formatting.MINUS}0.00496 to +0.00400)" in words
    assert "is not worse than the former production by more than 0.005 NDCG@10" in words


def test_a_promotion_that_shows_no_gain_says_what_was_shown_and_is_not_green(second: Report) -> None:
    level = with_difference(second, -0.004, 0.001, 0.006, margin=0.005)
    reported = verdict(level)
    assert (reported.word, reported.look) == ("promoted: not worse by more than 0.005", "even")
    for text in (page(level), markdown(level)):
        assert "No significant difference" not in text
        assert "not worse" in text
    assert 'class="verdict even"' in page(level)
    better = with_difference(second, 0.001, 0.003, 0.006)
    assert verdict(better).look == "good"
    worse = with_difference(second, -0.004, -0.002, -0.001, margin=0.005)
    assert verdict(worse).look == "even"
    assert "worse than the former production by 0.002 NDCG@10 (0.001 to 0.004), within the margin of 0.005" in title(
        worse
    )


def test_a_version_that_is_not_promoted_for_want_of_queries_says_what_may_be(second: Report) -> None:
    changed = with_difference(second, -0.02, 0.001, 0.02, margin=0.005)
    words = title(replace(changed, outcome="not promoted", gate=replace(changed.gate, passed=False)))
    assert words.startswith("web@2 may be worse than production by more than 0.005 NDCG@10: +0.001 (")


def test_a_first_version_replaces_nothing_and_its_report_names_no_earlier_one(first: Report) -> None:
    assert first.present is None
    level = with_difference(first, -0.02, 0.01, 0.03)
    assert (verdict(level).word, verdict(level).look) == ("promoted as the first version", "even")
    assert re.match(r"web@1 beats the order of the rows by 0\.\d+ NDCG@10 \(.*\); no significant difference from the best "
                    r"single feature$", title(level))  # fmt: skip
    for text in (page(level), markdown(level)):
        visible = re.sub(r"<style>.*?</style>", "", text, flags=re.DOTALL)
        assert not re.findall("are unchanged|before|former|get better|got worse|[lL]ost most|old rank", visible)
    assert re.search(
        r"\d+% of the queries are ranked better than by the best single feature, \d+% worse", queries_heading(level)
    )


def test_the_logical_date_of_the_run_is_on_all_three(second: Report, first: Report) -> None:
    assert second.date == "2026-11-21"
    assert "run of 2026-11-21" in page(second)
    assert "run of 2026-11-21" in markdown(second)
    assert first.date is None
    assert "run of" not in page(first)


def test_the_report_made_again_has_the_date_of_the_run(tmp_path: Path, first_version: Work) -> None:
    shutil.copytree(first_version.path, tmp_path / "work")
    made = object.__new__(Work)
    made.path, made.store = tmp_path / "work", first_version.store
    for model, date in (("web@1", "2026-11-20"), ("web@9", None)):  # the latter of a run before
        record = {"facts": {"model": model, "date": "2026-11-20"}}
        (made.path / "stages" / "report.json").write_text(json.dumps(record))
        assert made.report().date == date
