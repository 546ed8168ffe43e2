"""The report's page as a person sees it: colours that can be read, and in a headless Chromium where there is one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import rankmill.report
from tests.browser import NAMES, Browser, find_browser

STYLE = Path(rankmill.report.__file__).parent / "templates" / "style.css"


def colours(theme: str) -> dict[str, str]:
    block = re.search(rf"macro {theme}\(\) %}}(.*?){{% endmacro", STYLE.read_text(), re.DOTALL)[1]
    return dict(re.findall(r"--([a-z0-9-]+): (#[0-9a-f]{6});", block))


def luminance(colour: str) -> float:
    """WCAG 2.2, relative luminance."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(first: str, second: str) -> float:
    low, high = sorted([luminance(first), luminance(second)])
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_words_stand_out_from_what_is_behind_them(theme: str) -> None:
    """4.5 for text and 3 for marks: WCAG 2.2, level AA."""
    c = colours(theme)
    pairs = [(name, "paper") for name in ("ink", "soft", "accent", "loss", "good")]
    pairs += [("ink", "panel"), ("soft", "panel"), *((name, f"{name}-soft") for name in ("good", "accent", "loss"))]
    pairs += [("on-light", f"grade-{i}") for i in range(3)] + [("on-dark", f"grade-{i}") for i in (3, 4)]
    for front, back in pairs:
        assert contrast(c[front], c[back]) >= 4.5, (theme, front, back)
    for mark in ("accent", "loss", "rival"):
        assert contrast(c[mark], c["paper"]) >= 3.0, (theme, mark)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    path = find_browser()
    if path is None:
        pytest.skip(f"no headless browser here: none of {', '.join(NAMES)} (Debian's package chromium)")
    with Browser(path, tmp_path_factory.mktemp("browser")) as opened:
        yield opened


@pytest.fixture(scope="module")
def report(two_versions, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("page") / "out"
    two_versions.report(out)
    return out / "index.html"


DRAWN = """[...document.querySelectorAll('svg.chart')].map(svg => {
  const box = svg.getBoundingClientRect();
  const marks = [...svg.querySelectorAll('line,rect,circle,path')].filter(m => {
    const b = m.getBoundingClientRect(); return b.width > 0 || b.height > 0; });
  return {width: box.width, height: box.height, marks: marks.length, label: svg.getAttribute('aria-label').length};
}).filter(s => s.width > 0)"""


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_the_charts_are_there_and_nothing_else_is_asked_for(browser, report, width: int, dark: bool) -> None:
    browser.open(report, width=width, dark=dark)
    drawn = browser.evaluate(DRAWN)
    assert len(drawn) >= 6
    for chart in drawn:
        assert chart["marks"] >= 1
        assert chart["height"] > 20
        assert chart["label"] > 10
    assert browser.requests == [report.absolute().as_uri()]
    assert browser.complaints == []
    paper = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    expected = colours("dark" if dark else "light")["paper"]
    assert paper == f"rgb({', '.join(str(int(expected[i : i + 2], 16)) for i in (1, 3, 5))})"


@pytest.mark.parametrize("width", [320, 390, 700, 1440])
def test_the_page_fits_the_window_and_cuts_no_table(browser, report, width: int) -> None:
    browser.open(report, width=width)
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    outside = browser.evaluate(
        f"[...document.querySelectorAll('main p, main h2, h1, svg.chart, pre, details')].filter(e => "
        f"e.getBoundingClientRect().right > {width} + 1).map(e => e.outerHTML.slice(0, 80))"
    )
    assert outside == []
    browser.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
    cut = browser.evaluate(
        "[...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth)"
        ".map(e => [e.getAttribute('aria-label'), e.scrollWidth, e.clientWidth])"
    )
    assert cut == []


def test_every_axis_has_two_numbers_or_more(browser, report) -> None:
    for width in (1280, 390):
        browser.open(report, width=width)
        rows = browser.evaluate(
            """[...document.querySelectorAll('svg.chart')].filter(s => s.getBoundingClientRect().width && s.querySelector('.axis-word'))
            .map(s => { const bottom = {}; for (const t of s.querySelectorAll('.tick[text-anchor=middle]'))
              bottom[t.getAttribute('y')] = (bottom[t.getAttribute('y')] || 0) + 1; return Object.values(bottom); })"""
        )
        assert len(rows) >= 5
        assert all(counts and max(counts) >= 2 for counts in rows), (width, rows)


def test_a_digest_is_short_and_full_on_hover(browser, report) -> None:
    browser.open(report)
    digests = browser.evaluate("[...document.querySelectorAll('code.digest')].map(e => [e.textContent, e.title])")
    assert len(digests) >= 5
    for shown, full in digests:
        assert re.fullmatch("[0-9a-f]{64}", full)
        assert shown == f"{full[:12]}\u2026"


def test_no_word_of_a_chart_lies_on_another_or_beside_the_drawing(browser, report) -> None:
    for width in (1280, 390):
        browser.open(report, width=width)
        found = browser.evaluate(
            """(() => { const out = [];
            for (const svg of document.querySelectorAll('svg.chart')) {
              const frame = svg.getBoundingClientRect(); if (!frame.width) continue;
              const words = [...svg.querySelectorAll('text')].map(t => [t.textContent, t.getBoundingClientRect()]);
              for (const [i, [word, a]] of words.entries()) {
                if (a.left < frame.left - 3 || a.right > frame.right + 3) out.push(['beside', word, a.left - frame.left, a.right - frame.right]);
                for (const [other, b] of words.slice(i + 1))
                  if (a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 4 && b.top < a.bottom - 4)
                    out.push(['on', word, other]);
              } } return out; })()"""
        )
        assert found == [], width
