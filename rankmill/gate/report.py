"""The report of a gate as text.  It is made from the stored JSON alone, so what is shown later is what was decided on."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

from rankmill.foundation.terminal import page_width
from rankmill.scorer.evaluation import text_table

_PAGE, _WORST = 100, 5
_WIDE = 10_000  # where there is no terminal, a guardrail is one line


def render(report: dict[str, Any]) -> str:
    """Return ``report`` (`rankmill.gate.judging.judge`) for a person."""
    candidate = report["candidate"]["version"]
    counts = report["queries"]
    lines = [
        f"{candidate} on the split {report['split']} of dataset {report['dataset'][:12]}: {counts['queries']:,} queries, "
        f"{counts['documents']:,} documents"
    ]
    for comparison in report["comparisons"]:
        lines += ["", *_comparison(report, comparison, candidate)]
    lines += ["", *_guardrails(report), ""]
    lines += [f"note: {note}" for note in report["notes"]]
    convention, changed = report["convention"], ""
    if report["max_grade"] is not None:
        changed = f", max grade {report['max_grade']}"
    lines.append(f"conventions: {convention['name']} ({report['convention_sha256'][:12]}){changed}")
    verdict = "passed" if report["passed"] else "did not pass"
    lines.append(f"{candidate} {verdict}")
    lines += [f"  {reason}" for reason in report["reasons"]]
    return "\n".join(lines)


def asked(comparison: Mapping[str, Any], margin: float) -> str:
    """Return what a comparison asks of the candidate; reports of before have no ``rule``."""
    rule = comparison.get("rule") or ("better" if comparison["must_be_beaten"] else "not worse")
    words = {"better": "must be better", "not shown to be worse": "must not be significantly worse"}
    return words.get(rule, f"must not be worse by more than {margin:g}")


def _comparison(report: dict[str, Any], comparison: dict[str, Any], candidate: str) -> list[str]:
    title = f"against {comparison['words']}: {asked(comparison, report['margin'])} in {report['metric']}"
    other = report["baseline"]["version"] if report["baseline"] else comparison["against"]
    rows = []
    for name in sorted(comparison["metrics"], key=lambda metric: (metric != report["metric"], metric)):
        found = comparison["metrics"][name]
        if found is None:
            rows.append([name, *[""] * 8, "0"])
            continue
        low, high = found["interval"]
        effect = "" if found["effect_size"] is None else f"{found['effect_size']:+.3f}"
        rows.append(
            [
                name,
                f"{found['candidate']:.4f}",
                f"{found['other']:.4f}",
                f"{found['difference']:+.4f}",
                f"{low:+.4f} to {high:+.4f}",
                effect,
                *(f"{found[part]:,}" for part in ("wins", "ties", "losses", "n_queries")),
            ]
        )
    header = ["metric", candidate, other, "difference", "95 % interval", "effect", "wins", "ties", "losses", "queries"]
    page = min(_PAGE, page_width(_PAGE))
    lines = [*textwrap.wrap(title, page), text_table(header, rows)]
    worst = (comparison["metrics"][report["metric"]] or {"worst": []})["worst"][:_WORST]
    if worst:
        listed = ", ".join(f"{row['qid']} ({row['difference']:+.4f})" for row in worst)
        lines += textwrap.wrap(f"lost most in {report['metric']}: {listed}", page)
    return lines


def _guardrails(report: dict[str, Any]) -> list[str]:
    rows = [*report["guardrails"], *report.get("measured", [])]
    width = max(len(row["name"]) for row in rows)
    said = {"passed": "ok", "failed": "FAILED", "told": "-"}
    lines = []
    for row in rows:
        limit = row["limit"]
        bound = f" (limit {limit:g})" if isinstance(limit, int | float) and limit else ""
        label = f"{row['name']:<{width}}  {said[row['verdict']]:<6}  "
        words, indent = f"{row['words']}{bound}", " " * len(label)
        lines.append(textwrap.fill(words, page_width(_WIDE), initial_indent=label, subsequent_indent=indent))
    return lines
