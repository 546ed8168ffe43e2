"""The report as one HTML page and as Markdown, made with templates from the facts alone.

The page has no script and loads nothing from elsewhere, which its content security policy makes sure.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from rankmill.foundation.shown import few, shown
from rankmill.registry.rendering import size_text
from rankmill.report import charts, findings, formatting
from rankmill.report.charts import Difference

if TYPE_CHECKING:
    from collections.abc import Callable

    from jinja2 import Environment

    from rankmill.report.facts import Report

WIDE, PHONE = 820.0, 334.0  # width of a chart in pixels: the window decides which is shown
_SHOWN_METRICS = 12


def page(report: Report) -> str:
    """Return the page."""
    return shown(_rendered("page.html.jinja", report, chart=_charts(report)))


def markdown(report: Report) -> str:
    """Return the report as Markdown, for a pull request or a chat: the same text and figures, without charts."""
    return shown(re.sub(r"\n{3,}", "\n\n", _rendered("report.md.jinja", report)).strip()) + "\n"


def _rendered(template: str, report: Report, **others: Any) -> str:
    """Fill in ``template``; ``names`` are the titles of the lists of the rival and of the version."""
    names = ("before", "now") if report.present else ("by the feature", "by the model")
    return (
        _environment()
        .get_template(template)
        .render(f=report, says=findings, verdict=findings.verdict(report), names=names, **others)
    )


def plain(words: object) -> str:
    r"""Escape ``words`` for Markdown and HTML.

    >>> print(plain("<b> a|b"))
    &lt;b&gt; a\|b
    """
    text = " ".join(str(words).split())
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]#|~])", r"\\\1", text)


def named(words: object) -> Markup:
    """Return a name or an id for HTML, whose direction changes nothing around it."""
    return Markup("<bdi>{}</bdi>").format(words)


def code(words: object) -> str:
    """Return ``words`` as code in a cell of a Markdown table."""
    text = str(words).replace("`", "'").replace("|", "\\|")
    return f"`{' '.join(text.split())}`"


def fenced(command: str) -> str:
    """Return ``command`` as a block of code in Markdown."""
    return "```sh\n" + command.replace("```", "'''") + "\n```"


def _charts(report: Report) -> dict[str, Any]:
    """Draw every chart with facts, for a wide window and for a phone."""
    drawn: dict[str, Any] = {}
    if report.metrics is not None:
        rows = [
            Difference(formatting.metric_name(name), "", None, None)
            if found is None
            else Difference(
                formatting.metric_name(name),
                formatting.interval(found.interval, sign=True),
                found.difference,
                found.interval,
            )
            for name, found in list(report.metrics.against.candidate_less_this.items())[:_SHOWN_METRICS]
        ]
        drawn["differences"] = _both(
            lambda width: charts.differences(rows, width, what="Differences by metric", margin=report.margin)
        )
    if (queries := report.queries) is not None:
        drawn["gaps"] = _both(lambda width: charts.gaps(queries, width))
    parts = [
        (
            part,
            [
                Difference(
                    formatting.slice_name(row, part.by),
                    formatting.counted(row.n_queries, "query"),
                    row.difference.mean,
                    row.difference.interval,
                )
                for row in part.slices
            ],
        )
        for part in report.slices
        if part.slices
    ]
    everything = [row for _, rows in parts for row in rows]
    drawn["slices"] = [(part, _slices(rows, part.by, everything)) for part, rows in parts]
    if (learning := report.learning) is not None:
        drawn["curves"] = _both(lambda width: charts.curves(learning, width))
    if report.influence.features:
        drawn["influence"] = _both(lambda width: charts.influence(report.influence, width))
    return drawn


def _slices(rows: list[Difference], by: str, everything: list[Difference]) -> Markup:
    return _both(lambda width: charts.differences(rows, width, what=f"Differences by {by}", shared=everything))


def _both(draw: Callable[[float], Markup]) -> Markup:
    return Markup('<div class="wide">{}</div><div class="phone">{}</div>').format(draw(WIDE), draw(PHONE))


@cache
def _environment() -> Environment:
    """Return the templates, with automatic escaping; undefined names are errors."""
    from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

    environment = Environment(
        loader=PackageLoader("rankmill.report"),
        autoescape=select_autoescape(["html.jinja"]),  # the Markdown template calls the escape functions
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    tools = (
        formatting.metric_name, formatting.number, formatting.signed, formatting.count, formatting.counted,
        formatting.percent, formatting.short,
        formatting.interval, few, formatting.slice_name, formatting.slice_title, plain, code, fenced, named,
    )  # fmt: skip
    environment.filters |= {tool.__name__: tool for tool in tools} | {"size": size_text}
    return environment
