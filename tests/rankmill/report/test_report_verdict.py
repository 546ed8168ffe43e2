"""What the top of a report says: never a rounded-off sign, never more than the gate has shown, and of which day."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankmill.report import formatting
from rankmill.report.findings import findings_of
from rankmill.report.page import markdown, outcome, page
from rankmill.report.report_files import write_report
from rankmill.report.subject import Known
from tests.rankmill.report.report_case import Work

AMOUNT = st.floats(1e-8, 1.0) | st.floats(-1.0, -1e-8)


def report_of(made: Work, out: Path) -> dict:
    return json.loads(write_report(made.path, made.registry, out=out, n_threads=1).facts.read_bytes())


@pytest.fixture(scope="module")
def first(first_version: Work, tmp_path_factory) -> dict:
    """The facts of a first version that was promoted."""
    return report_of(first_version, tmp_path_factory.mktemp("report") / "out")


@pytest.fixture(scope="module")
def second(tmp_path_factory) -> dict:
    """The facts of a second version, promoted although it is hardly another model."""
    made = Work(tmp_path_factory.mktemp("second"))
    for rounds in (8, 9):
        version, _ = made.train(n_rounds=rounds)
        made.judge(version, margin=0.05)
    known = Known(date="2026-11-21")
    return json.loads(write_report(made.path, made.registry, known=known, n_threads=1).facts.read_bytes())


def with_difference(facts: dict, low: float, gap: float, high: float, margin: float | None = None) -> dict:
    """Return the facts of another interval of the metric that decides."""
    changed = json.loads(json.dumps(facts))
    metrics = changed["metrics"]
    rival = next(each for each in metrics["rankings"] if each["name"] == metrics["rival"])
    rival["candidate_less_this"][metrics["primary"]] |= {"difference": gap, "interval": [low, high], "wins": 9}
    if margin is not None:
        changed["verdict"]["margin"] = margin
    changed["findings"] = findings_of({name: each for name, each in changed.items() if name != "findings"})
    return changed


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
def test_the_headline_says_on_which_side_of_nothing_the_interval_ends(second: dict, three: list[float]) -> None:
    low, gap, high = three
    title = with_difference(second, low, gap, high)["findings"]["title"]
    reported = figures(title.partition("@10")[2])[-2:]
    if high < 0.0:
        assert all(value > 0.0 for value in reported)  # "is worse by 0.1 (0.05 to 0.2)"
    else:
        assert [value > 0 for value in reported] == [low > 0, high > 0]


def test_an_end_beside_the_margin_is_not_rounded_onto_it(second: dict) -> None:
    title = with_difference(second, -0.00496, 0.001, 0.004, margin=0.005)["findings"]["title"]
    assert f"({formatting.MINUS}0.00496 to +0.00400)" in title
    assert "is not worse than the former production by more than 0.005 NDCG@10" in title


def test_a_promotion_that_shows_no_gain_says_what_was_shown_and_is_not_green(second: dict) -> None:
    level = with_difference(second, -0.004, 0.001, 0.006, margin=0.005)
    reported = outcome(level)
    assert (reported["word"], reported["look"]) == ("promoted: not worse by more than 0.005", "even")
    for text in (page(level), markdown(level)):
        assert "No significant difference" not in text
        assert "not worse" in text
    assert 'class="verdict even"' in page(level)
    better = with_difference(second, 0.001, 0.003, 0.006)
    assert outcome(better)["look"] == "good"
    worse = with_difference(second, -0.004, -0.002, -0.001, margin=0.005)
    assert outcome(worse)["look"] == "even"
    assert (
        "worse than the former production by 0.002 NDCG@10 (0.001 to 0.004), within the margin of 0.005"
        in (worse["findings"]["title"])
    )


def test_a_version_that_is_not_promoted_for_want_of_queries_says_what_may_be(second: dict) -> None:
    changed = with_difference(second, -0.02, 0.001, 0.02, margin=0.005)
    changed["verdict"] |= {"outcome": "not promoted", "gate": False}
    title = findings_of({name: each for name, each in changed.items() if name != "findings"})["title"]
    assert title.startswith("web@2 may be worse than production by more than 0.005 NDCG@10: +0.001 (")


def test_a_first_version_replaces_nothing_and_its_report_speaks_of_no_before(first: dict) -> None:
    assert first["present"] is None
    level = with_difference(first, -0.02, 0.01, 0.03)
    assert outcome(level) | {"sentence": ""} == {
        "word": "promoted as the first version",
        "look": "even",
        "sentence": "",
    }
    assert re.match(r"web@1 beats the order of the rows by 0\.\d+ NDCG@10 \(.*\); no significant difference from the best "
                    r"single feature$", level["findings"]["title"])  # fmt: skip
    for text in (page(level), markdown(level)):
        visible = re.sub(r"<style>.*?</style>", "", text, flags=re.DOTALL)
        assert not re.findall("are unchanged|before|former|get better|got worse|[lL]ost most|old rank", visible)
    found = level["findings"]
    assert re.search(
        r"\d+% of the queries are ranked better than by the best single feature, \d+% worse", found["queries"]
    )


def test_a_guardrail_that_was_not_checked_says_so_in_a_column_with_a_heading(second: dict) -> None:
    assert next(rail["verdict"] for rail in second["verdict"]["guardrails"] if rail["name"] == "drift") == "noted"
    text = markdown(second)
    assert "| asked | verdict | found |" in text
    assert re.search(r"^\| drift \| not checked \|", text, re.M)
    row = re.search(r"<td>drift</td>.*?</tr>", page(second), re.S)
    assert row is not None
    assert ">not checked</span>" in row[0]
    assert ">noted<" not in row[0]


def test_the_logical_date_of_the_run_is_on_all_three(second: dict, first: dict) -> None:
    assert second["date"] == "2026-11-21"
    assert "run of 2026-11-21" in page(second)
    assert "run of 2026-11-21" in markdown(second)
    assert first["date"] is None
    assert "run of" not in page(first)


def test_the_report_made_again_has_the_date_of_the_run(first_version: Work, tmp_path: Path) -> None:
    shutil.copytree(first_version.path, work := tmp_path / "work")
    (work / "stages").mkdir()
    for model, date in (("web@1", "2026-11-20"), ("web@9", None)):  # the latter of a run before
        record = {"facts": {"model": model, "date": "2026-11-20"}}
        (work / "stages" / "report.json").write_text(json.dumps(record))
        assert json.loads(write_report(work, first_version.registry).facts.read_bytes())["date"] == date
