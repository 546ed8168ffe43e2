"""The report as Markdown, for a pull request or a chat: the same findings and figures, without the pictures."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from rankmill.report.findings import called, primary_difference
from rankmill.report.page import both_lists, outcome, recorded_note
from rankmill.report.words import (
    count,
    counted,
    few,
    interval,
    metric_name,
    number,
    percent,
    signed,
    size,
    slice_name,
    slice_title,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

_MOST_SLICES, _MOST_FEATURES, _MOST_WORST, _MOST_DOCUMENTS = 12, 10, 10, 10


def markdown(facts: dict[str, Any]) -> str:
    """Return the text."""
    found = facts["findings"]
    told = outcome(facts)
    day = f" (run of {safe(facts['date'])})" if facts["date"] else ""
    lines = [f"# {safe(found['title'])}", "", f"**{safe(told['word'].capitalize())}.** {safe(told['sentence'])}{day}"]
    lines += [f"- {safe(reason)}" for reason in facts["verdict"]["reasons"]]
    lines += ["", *(f"> {safe(note)}" for note in facts["notes"])]
    if facts["rollback"]:
        lines += ["", "Take the promotion back:", "", *_fenced(facts["rollback"])]
    for part in (_metrics, _recorded, _queries, _slices, _learning, _influence, _gate, _data, _drift, _lineage):
        lines += part(facts)
    lines += ["", f"## {safe(found['commands'])}"]
    for each in facts["commands"]:
        lines += ["", f"{safe(each['what'])}:", "", *_fenced(each["command"])]
    text = "\n".join(lines)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def safe(words: object) -> str:
    r"""Return ``words`` so that they mean themselves in Markdown and in HTML.

    >>> print(safe("<b> a|b"))
    &lt;b&gt; a\|b
    """
    text = " ".join(str(words).split())
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]#|~])", r"\\\1", text)


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """Lay out a table, the first column to the left and the others to the right."""
    line = ["| " + " | ".join(head) + " |", "|" + "|".join([" :-- ", *[" --: "] * (len(head) - 1)]) + "|"]
    return ["", *line, *("| " + " | ".join(str(cell) for cell in row) + " |" for row in rows), ""]


def _fenced(text: str) -> list[str]:
    return ["```sh", text.replace("```", "'''"), "```"]


def _code(words: object) -> str:
    text = str(words).replace("`", "'").replace("|", "\\|")
    return f"`{' '.join(text.split())}`"


def _heading(facts: dict[str, Any], name: str) -> list[str]:
    return ["", f"## {safe(facts['findings'][name])}"]


def _metrics(facts: dict[str, Any]) -> list[str]:
    metrics = facts["metrics"]
    if metrics is None:
        return []
    rankings = metrics["rankings"]
    rival = next(each for each in rankings if each["name"] == metrics["rival"])
    head = [
        "metric",
        *(safe(each["name"]) for each in rankings),
        f"difference to {safe(called(facts, rival['kind'], rival['name']))}",
    ]
    rows = []
    for name in rankings[0]["metrics"]:
        cells = [number(each["metrics"][name]["mean"]) for each in rankings]
        gap = rival["candidate_less_this"][name]
        told = (
            "too few queries"
            if gap is None
            else f"{signed(gap['difference'])} ({interval(gap['interval'], sign=True)})"
        )
        rows.append([safe(metric_name(name)), *cells, told])
    counts = metrics["counts"]
    words = f"{counted(counts['n_queries'], 'query')}, {counted(counts['n_documents'], 'document')} of the {metrics['split']} split ({metrics['seen']}); 95 % intervals. {metrics['convention']}."
    return [*_heading(facts, "metrics"), *table(head, rows), safe(words)]


def _recorded(facts: dict[str, Any]) -> list[str]:
    if "recorded" not in facts["findings"]:
        return []
    rows = [
        [safe(row["split"]), safe(metric_name(row["metric"])), number(row["mean"]), interval(row["interval"])]
        for row in facts["recorded"]
    ]
    lines = table(["queries", "metric", "mean", "95 % interval"], rows)
    return [*_heading(facts, "recorded"), *lines, safe(recorded_note(facts))]


def _queries(facts: dict[str, Any]) -> list[str]:
    found, primary = facts["queries"], primary_difference(facts)
    if found is None:
        return []
    lines = [
        *_heading(facts, "queries"), "",
        f"{count(found['wins'])} better, {count(found['ties'])} the same, {count(found['losses'])} worse.",
    ]  # fmt: skip
    worst = (primary or {}).get("worst") or []
    if worst:
        rows = [
            [safe(row["qid"]), number(row["other"]), number(row["candidate"]), signed(row["difference"])]
            for row in worst[:_MOST_WORST]
        ]
        lines += [
            *_heading(facts, "lists"),
            *table(["query", safe(found["rival"]), safe(found["candidate"]), "difference"], rows),
        ]
    if found["lost"]:
        each, names = found["lost"][0], both_lists(facts)
        rows = [
            [safe(row["doc_id"]), row["grade"], row["rank_before"], row["rank"]]
            for row in each["documents"][:_MOST_DOCUMENTS]
        ]
        lines += [
            "",
            f"The first ten of {safe(each['qid'])}, {safe(names[0])} and {safe(names[1])}:",
            *table(["document", "grade", *(f"rank {safe(each)}" for each in names)], rows),
        ]
    return lines


def _slices(facts: dict[str, Any]) -> list[str]:
    rows = [
        [safe(f"{slice_title(part['by'])}: {slice_name(row, part['by'])}"), count(row["n_queries"]), number(row["candidate"]["mean"]),
         number(row["rival"]["mean"]), signed(row["difference"]["mean"]), interval(row["difference"]["interval"], sign=True)]
        for part in facts["slices"]
        for row in part["slices"]
    ]  # fmt: skip
    if not rows:
        return []
    head = [
        "slice",
        "queries",
        safe(facts["model"]["version"]),
        safe(facts["metrics"]["rival"]),
        "difference",
        "95 % interval",
    ]
    return [*_heading(facts, "slices"), *table(head, rows)]


def _learning(facts: dict[str, Any]) -> list[str]:
    learning = facts["learning"]
    if learning is None:
        return []
    sets = list(learning["seeds"][0]["at_best"])
    rows = [
        [f"{run['seed']}{' (taken)' if run['chosen'] else ''}", run["best_round"], run["rounds_trained"],
         *(number(run["at_best"].get(name)) for name in sets)]
        for run in learning["seeds"]
    ]  # fmt: skip
    noise = facts["findings"].get("noise")
    lines = [*_heading(facts, "learning"), *table(["seed", "best round", "rounds trained", *map(safe, sets)], rows)]
    return [*lines, *([f"{safe(noise)}."] if noise else [])]


def _influence(facts: dict[str, Any]) -> list[str]:
    rows = [
        [safe(row["feature"]), percent(row["influence"]), percent(row["before"]), count(row["splits"])]
        for row in facts["influence"]["features"][:_MOST_FEATURES]
    ]
    if facts["influence"]["before"] is None:
        rows = [[row[0], row[1], row[3]] for row in rows]
    head = ["feature", "influence", *([] if facts["influence"]["before"] is None else ["before"]), "splits"]
    return [*_heading(facts, "influence"), *(table(head, rows) if rows else [])]


def _gate(facts: dict[str, Any]) -> list[str]:
    verdict = facts["verdict"]
    if verdict["gate"] is None:
        return []
    said = {"passed": "held", "failed": "**failed**", "told": "noted"}
    rows = [
        [safe(metric_name(verdict["metric"])), "passed" if bar["passed"] else "**failed**", safe(
            f"against {bar['words']}: {bar['asked']}; found {signed(bar['found']['difference'])} "
            f"({interval(bar['found']['interval'], sign=True)})"
        )] for bar in verdict["bars"]
    ]  # fmt: skip
    rows += [
        [safe(rail["name"]), said.get(rail["verdict"], "noted"), safe(rail["words"])] for rail in verdict["guardrails"]
    ]
    return [*_heading(facts, "gate"), *(table(["asked", "", "found"], rows) if rows else [])]


def _data(facts: dict[str, Any]) -> list[str]:
    data = facts["data"]
    if data["missing_values"] is None:
        sizes = [[each["name"], count(each["queries"]), count(each["rows"])] for each in data["splits"]]
        words = f"{counted(data['features'], 'feature')}. Grades, missing values and rejected rows are unknown here."
        return [*_heading(facts, "data"), *table(["split", "queries", "documents"], sizes), words]
    rows = [
        [each["name"], *(count(each[key]) for key in ("queries", "rows", "nothing_relevant", "one_grade"))]
        for each in data["splits"]
    ]
    words = f"{counted(data['features'], 'feature')}; {count(data['missing_values'])} values ({percent(data['missing_share'])}) missing; {counted(data['rejected_rows'], 'row')} rejected."
    return [
        *_heading(facts, "data"),
        *table(["split", "queries", "documents", "nothing relevant", "one grade"], rows),
        words,
        *(safe(remark) for remark in data["remarks"]),
    ]


def _drift(facts: dict[str, Any]) -> list[str]:
    drift = facts["drift"]
    if drift is None:
        return []
    rows = [
        [safe(row["name"]), number(row["psi"]), number(row["threshold"]), "drift" if row["alarm"] else ""]
        for row in drift["shown"]
    ]
    return [*_heading(facts, "drift"), *table(["feature", "PSI", "alarm above", ""], rows)]


def _lineage(facts: dict[str, Any]) -> list[str]:
    told = facts["lineage"]
    rows = [["model", _code(told["model_sha256"])]]
    rows += [
        [name, _code(told[key])]
        for name, key in (("dataset", "dataset_digest"), ("bins", "binspec_digest"), ("code", "code_digest"))
        if told[key]
    ]
    rows.append(["parameters", safe(", ".join(f"{name} = {value}" for name, value in told["parameters"].items()))])
    if told["source_files"]:
        names = [f"{each['name']} ({size(each['size'])})" for each in told["sources"]]
        rows.append(["sources", safe(few(names, 10))])
    return [*_heading(facts, "lineage"), *table(["", ""], rows)]
