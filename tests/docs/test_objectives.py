"""docs/objectives.md and docs/objectives/ against the code: names, defaults, criteria, and whether the examples run."""

import doctest
import re
from dataclasses import fields
from typing import get_args

from rankmill.clicks.off_policy import ESTIMATORS
from rankmill.clicks.options import CLICK_MODELS, ClickEstimate, UserModelName
from rankmill.scorer.metrics.metric import METRIC_NAMES
from rankmill.trainer.objectives.registry import objective_class
from rankmill.trainer.objectives.spelling import OBJECTIVES
from rankmill.trainer.parameters import BOOSTINGS, BOOTSTRAPS, CRITERIA, GROWTHS, ROUNDS_BY
from tests import ROOT

DOCS = ROOT / "docs"
TEXT = (DOCS / "objectives.md").read_text(encoding="utf-8")
SECTIONS = [(DOCS / "objectives" / name).read_text(encoding="utf-8") for name in ("documents.md", "pairs-and-lists.md")]


def sections():
    """The text below every heading that names objectives, by each of the names."""
    found = {}
    for page in SECTIONS:
        for part in re.split(r"^(?=#{2,3} )", page, flags=re.MULTILINE):
            heading, _, text = part.partition("\n")
            found |= dict.fromkeys(re.findall(r"`(\w+)`", heading), text)
    return found


def line(name, begin):
    lines = [part for part in re.split(r"^- ", sections()[name], flags=re.MULTILINE) if part.startswith(begin)]
    assert len(lines) == 1, f"{name}: expected one line '- {begin} ..', found {len(lines)}"
    return lines[0]


def named(written):
    """The names in backticks that a list begins with."""
    first = re.match(r"[A-Za-z]+: ((?:`[\w*]+`(?:, )?)+)", written)
    assert first, written
    return re.findall(r"`(\w+)", first[1])


def test_every_objective_has_a_section_and_a_row_and_there_are_no_others():
    assert set(sections()) == set(OBJECTIVES)
    rows = {name: row for row in TEXT.splitlines() for name in re.findall(r"^\| \[`(\w+)`\]", row)}
    assert set(rows) == set(OBJECTIVES)
    for name, row in rows.items():
        assert set(objective_class(name).splits.criteria) == set(re.findall(r"`(\w+)\*?`", row.split("|")[4])), name


def test_a_section_has_every_option_with_its_default_and_no_other_and_the_criteria():
    for name in OBJECTIVES:
        kind = objective_class(name)
        options = {field.name: field.default for field in fields(kind.Options)}
        written = line(name, "Options:")
        for option, default in options.items():
            shown = str(default).lower() if isinstance(default, bool) else str(default)
            assert f"`{option}={shown}`" in written, f"{name}: expected `{option}={shown}` among its options"
        assert set(re.findall(r"`(\w+)=", written)) == set(options), name
        assert options or "none" in written
        criteria = line(name, "Criteria:")
        assert named(criteria) == list(kind.splits.criteria), name
        assert ("`ole*`" in criteria) == (kind.splits.additive and "ole" in kind.splits.criteria), name


def test_the_examples_run():
    result = doctest.testfile(str(DOCS / "objectives" / "your-own.md"), module_relative=False)
    assert result.attempted > 5
    assert result.failed == 0


def test_the_methods_pages_have_every_method():
    def named(*pages):
        text = "".join((DOCS / page).read_text(encoding="utf-8") for page in pages)
        return set(re.findall(r"`([a-z_0-9]+)(?:\(\w\))?(?:@k)?`", text))

    methods = {*OBJECTIVES, *CRITERIA, *GROWTHS, *BOOSTINGS, *BOOTSTRAPS, *ROUNDS_BY} - {"none"}
    assert methods - named("methods.md", "objectives/criteria.md") == set()
    assert set(METRIC_NAMES) - named("methods/metrics.md") == set()
    clicks = {*CLICK_MODELS, *get_args(ClickEstimate), *ESTIMATORS, *get_args(UserModelName)}
    assert clicks - named("methods/clicks.md") == set()
