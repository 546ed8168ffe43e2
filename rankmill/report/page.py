"""The report as one HTML page and as Markdown, made with templates from the facts alone.

The page loads nothing from elsewhere.  Its only script adds buttons that copy digests; the content security policy of
the page allows only this script, by its hash.
"""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache, partial
from importlib import resources
from typing import TYPE_CHECKING, Any

from rankmill.foundation.shown import few, shown
from rankmill.registry.rendering import size_text
from rankmill.report import Facts, formatting, model_charts, query_charts
from rankmill.report.findings import called, margin_of, metric_of, primary_difference, rival_in
from rankmill.report.model_charts import Bar
from rankmill.report.query_charts import DifferenceRow

if TYPE_CHECKING:
    from collections.abc import Callable

    from jinja2 import Environment
    from markupsafe import Markup

WIDE, PHONE = 820.0, 334.0  # width of a chart in pixels: the window decides which is shown
SMALL_WIDE, SMALL_PHONE = 252.0, 158.0  # width of charts side by side

_SHOWN_METRICS = 12


def page(facts: Facts) -> str:
    """Return the page."""
    from markupsafe import Markup

    script = resources.files("rankmill.report").joinpath("templates/copy.js").read_text(encoding="utf-8")
    text = _rendered(
        "page.html.jinja",
        facts,
        chart=_charts(facts),
        deciding=metric_of(facts),
        rival=_rival(facts),
        script=Markup(script),  # noqa: S704 (our own file)
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )
    return shown(text)


def markdown(facts: Facts) -> str:
    """Return the report as Markdown, for a pull request or a chat: the same text and figures, without charts."""
    return shown(re.sub(r"\n{3,}", "\n\n", _rendered("report.md.jinja", facts)).strip()) + "\n"


def _rendered(template: str, facts: Facts, **others: Any) -> str:
    return (
        _environment()
        .get_template(template)
        .render(
            f=facts,
            found=facts["findings"],
            primary=primary_difference(facts),
            outcome=outcome(facts),
            called=called,
            names=both_lists(facts),
            recorded_note=recorded_note(facts),
            **others,
        )
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
    from markupsafe import Markup

    return Markup("<bdi>{}</bdi>").format(words)


def code(words: object) -> str:
    """Return ``words`` as code in a cell of a Markdown table."""
    text = str(words).replace("`", "'").replace("|", "\\|")
    return f"`{' '.join(text.split())}`"


def fenced(command: str) -> str:
    """Return ``command`` as a block of code in Markdown."""
    return "```sh\n" + command.replace("```", "'''") + "\n```"


def outcome(facts: Facts) -> dict[str, str]:
    """Return the verdict in one or two words and as a sentence, and its style."""
    verdict, version = facts["verdict"], facts["model"]["version"]
    alias, present = verdict["alias"], (facts["present"] or {}).get("version")
    instead = f"{present} stays {alias}" if present else f"{alias} is not set"
    texts = {
        "promoted": (
            "promoted",
            f"{version} is {alias}" + (f", in place of {present}." if present else ", the first."),
            "good",
        ),
        "not promoted": ("not promoted", f"{instead}.", "bad"),
        "passed": ("passed, not promoted", f"The version passed the gate, but {alias} does not point to it.", "plain"),
        "replaced": ("was promoted", f"It was {alias} before; {alias} points to another version now.", "plain"),
    }
    word, sentence, look = texts[verdict["outcome"]]
    if verdict["outcome"] == "promoted" and verdict["gate"] is False:
        word, look = "promoted by force", "bad"
    elif verdict["outcome"] == "promoted":
        word, look = _promoted(facts)
    if verdict["outcome"] == "not promoted" and verdict["gate"] is None:
        word, sentence, look = "registered", f"It has no gate result, and it is not {alias}.", "plain"
    return {"word": word, "sentence": sentence, "look": look}


def recorded_note(facts: Facts) -> str:
    """Return a note about the figures measured in training."""
    splits = {row["split"] for row in facts["recorded"]}
    known = ["from the manifest of the version"]
    known += ["the model was trained on the train queries, so their mean is too high"] * ("train" in splits)
    known += ["the valid queries may have decided how many trees are kept, so their mean may be too high"] * (
        "valid" in splits
    )
    text = "; ".join(known)
    return f"{text[0].upper()}{text[1:]}."


def both_lists(facts: Facts) -> tuple[str, str]:
    """Return the titles of the lists of the rival and of the version.

    They are "before" and "now", unless the version is the first.
    """
    return ("before", "now") if facts["present"] else ("by the feature", "by the model")


def _promoted(facts: Facts) -> tuple[str, str]:
    """Return the label of the promotion, and its style: good only if the version is significantly better."""
    found, margin = primary_difference(facts), margin_of(facts)
    if found is None:
        return "promoted", "plain"
    low = found["interval"][0]
    if low > 0.0:
        return "promoted", "good"
    if facts["present"] is None:
        return "promoted as the first version", "even"
    return ("promoted" if margin is None or low <= -margin else f"promoted: not worse by more than {margin:g}"), "even"


def _rival(facts: Facts) -> str:
    """Return the name of the rival."""
    metrics, found = facts["metrics"], primary_difference(facts)
    if metrics is None:
        return "" if found is None else str(found["name"])
    each = rival_in(metrics)
    return str(each["name"]) if each["kind"] == "present" else called(facts, each["kind"], each["name"])


def _charts(facts: Facts) -> Facts:
    """Draw every chart with facts, for a wide window and for a phone."""
    drawn: Facts = {}
    metrics = facts["metrics"]
    if metrics is not None:
        drawn["levels"] = _both(partial(query_charts.levels, metrics))
        against = rival_in(metrics)["candidate_less_this"]
        rows = [
            DifferenceRow(formatting.metric_name(name), "", None, None)
            if found is None
            else DifferenceRow(
                formatting.metric_name(name),
                formatting.interval(found["interval"], sign=True),
                found["difference"],
                found["interval"],
            )
            for name, found in list(against.items())[:_SHOWN_METRICS]
        ]
        limits = query_charts.limits_of(rows)
        margin = facts["verdict"]["margin"] if facts["present"] else None
        drawn["differences"] = _both(
            partial(query_charts.forest, rows, what="Differences by metric", limits=limits, margin=margin)
        )
    if facts["queries"] is not None:
        drawn["shares"] = _both(partial(query_charts.shares, facts["queries"]))
        drawn["gaps"] = _both(partial(query_charts.gaps, facts["queries"]))
        top = max(facts["data"]["max_grade"], 1)
        for what in ("lost", "gained"):
            drawn[what] = [
                query_charts.moves(each["documents"], top, both_lists(facts)) for each in facts["queries"][what]
            ]
    drawn["slices"] = _slices(facts)
    if facts["learning"] is not None:
        drawn["curves"] = _both(partial(model_charts.curves, facts["learning"]))
    if facts["influence"]["features"]:
        drawn["influence"] = _both(partial(model_charts.influence, facts["influence"]))
    if facts["dependence"]:
        drawn["dependence"] = [
            _both(partial(model_charts.dependence, row), SMALL_WIDE, SMALL_PHONE) for row in facts["dependence"]
        ]
    if facts["scores"] is not None:
        drawn["scores"] = _both(partial(model_charts.scores, facts["scores"]))
    if facts["data"]["missing_values"] is not None:
        drawn["grades"] = _both(partial(query_charts.grades, facts["data"]["splits"]))
    missing = [
        Bar(row["feature"], row["share"], formatting.percent(row["share"])) for row in facts["data"]["most_missing"]
    ]
    if missing:
        drawn["missing"] = _both(partial(model_charts.bars, missing, what="Share of missing values"))
    if facts["drift"] is not None:
        drift = [
            Bar(row["name"], row["psi"], formatting.number(row["psi"], 3), row["threshold"], row["alarm"])
            for row in facts["drift"]["shown"]
        ]
        drawn["drift"] = _both(partial(model_charts.bars, drift, what="Population stability index"))
    return drawn


def _slices(facts: Facts) -> list[tuple[Facts, Markup]]:
    """Draw the differences of all slices with a common axis."""
    parts = [
        (part, [_slice_row(row, part["by"]) for row in part["slices"]]) for part in facts["slices"] if part["slices"]
    ]
    drawn = [row for _, rows in parts for row in rows]
    limits, labels = query_charts.limits_of(drawn), query_charts.label_width(drawn)
    return [
        (
            part,
            _both(
                partial(query_charts.forest, rows, what=f"Differences by {part['by']}", limits=limits, labels=labels)
            ),
        )
        for part, rows in parts
    ]


def _slice_row(row: Facts, by: str) -> DifferenceRow:
    gap, note = row["difference"], formatting.counted(row["n_queries"], "query")
    return DifferenceRow(formatting.slice_name(row, by), note, gap["mean"], gap["interval"])


def _both(draw: Callable[[float], Markup], wide: float = WIDE, phone: float = PHONE) -> Markup:
    from markupsafe import Markup

    return Markup('<div class="wide">{}</div><div class="phone">{}</div>').format(draw(wide), draw(phone))


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
        formatting.interval, few, formatting.option_name, formatting.untested, formatting.slice_name,
        formatting.slice_title, plain, code, fenced, named,
    )  # fmt: skip
    environment.filters |= {tool.__name__: tool for tool in tools} | {"size": size_text}
    return environment
