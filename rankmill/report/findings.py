"""The headings of the report: one sentence per section that says what its figures mean."""

from __future__ import annotations

import itertools

from rankmill.foundation.shown import few
from rankmill.report import Facts
from rankmill.report.click_section import click_finding
from rankmill.report.formatting import (
    count,
    counted,
    decimals,
    interval,
    metric_name,
    number,
    percent,
    signed,
    slice_name,
    slice_title,
)

_DIGITS = 3  # in headings


def findings_of(facts: Facts) -> dict[str, str]:
    """Return the heading of each section by its name."""
    headings = {
        "title": _title(facts),
        "recorded": _recorded(facts),
        "metrics": _metrics(facts),
        "queries": _queries(facts),
        "slices": _slices(facts),
        "lists": _lists(facts),
        "learning": _learning(facts),
        "noise": _noise(facts),
        "influence": _influence(facts),
        "dependence": _dependence(facts),
        "scores": _scores(facts),
        "gate": _gate(facts),
        "clicks": click_finding(facts.get("clicks")),
        "data": _data(facts),
        "drift": _drift(facts),
        "lineage": _lineage(facts),
        "commands": f"Reproduce{', inspect, or roll back' if facts['rollback'] else ' or inspect'}",
    }
    return {name: text for name, text in headings.items() if text}


def primary_difference(facts: Facts) -> Facts | None:
    """Return the comparison with the rival by the deciding metric, with ``name`` and ``kind`` of the rival.

    If the queries are unknown, return the one that the gate recorded.
    """
    metrics, bars = facts["metrics"], facts["verdict"]["bars"]
    if metrics is None:
        present = next((bar for bar in bars if bar["against"] == "baseline"), None)
        if present is not None and facts["present"] is None:
            return None  # judged against itself
        if present is not None:
            return {**present["found"], "name": facts["present"]["version"], "kind": "present"}
        return {**bars[-1]["found"], "name": bars[-1]["against"], "kind": bars[-1]["against"]} if bars else None
    for each in metrics["rankings"]:
        if each["name"] == metrics["rival"] and each["candidate_less_this"] is not None:
            found = each["candidate_less_this"][metrics["primary"]]
            return None if found is None else {**found, "name": each["name"], "kind": each["kind"]}
    return None


def metric_of(facts: Facts) -> str:
    """Return the deciding metric."""
    return str((facts["metrics"] or {}).get("primary") or facts["verdict"]["metric"])


def margin_of(facts: Facts) -> float | None:
    """Return the margin of the gate against the current version; None if it judged something else."""
    verdict, metrics = facts["verdict"], facts["metrics"]
    if facts["present"] is None or (metrics is not None and metrics["primary"] != verdict["metric"]):
        return None
    margin: float | None = verdict["margin"]
    return margin


def called(facts: Facts, kind: str, name: str) -> str:
    """Return the name of a ranking in a sentence."""
    if kind == "present":
        verdict = facts["verdict"]
        former = "the former " if verdict["outcome"] in {"promoted", "replaced"} else ""
        return f"{former}{verdict['alias']}"
    return {"row order": "the order of the rows", "best single feature": "the best single feature"}.get(kind, name)


def _title(facts: Facts) -> str:
    version = facts["model"]["version"]
    found = primary_difference(facts)
    if found is None and facts["metrics"] is None:
        measured = _held_out(facts)
        if measured is None:
            return f"{version} was trained; there are no held-out queries to evaluate it"
        name, mean = metric_name(measured["metric"]), number(measured["mean"])
        return (
            f"{version} was trained, but not compared with anything: {name} {mean} on the {measured['split']} queries"
        )
    if found is None:
        return f"{version} was trained; fewer than two held-out queries count, too few for an evaluation"
    other, metric = called(facts, found["kind"], found["name"]), metric_name(metric_of(facts))
    gap, (low, high), margin = found["difference"], found["interval"], margin_of(facts)
    digits = decimals([gap, low, high], _DIGITS, (0.0,) if margin is None else (0.0, -margin))
    if low > 0.0:
        return f"{version} beats {other} by {number(gap, digits)} {metric} ({interval([low, high], digits)})"
    if high < 0.0:
        text = f"{version} is worse than {other} by {number(-gap, digits)} {metric} ({interval([-high, -low], digits)})"
        return text if margin is None or low <= -margin else f"{text}, within the margin of {margin:g}"
    if found["wins"] + found["losses"] == 0:
        return f"{version} ranks every query as well as {other} does"
    limits = f"({interval([low, high], digits, sign=True)})"
    if margin is not None:
        verb = "is not" if low > -margin else "may be"
        return f"{version} {verb} worse than {other} by more than {margin:g} {metric}: {signed(gap, digits)} {limits}"
    order = _against_order(facts)
    if found["kind"] != "present" and order is not None and order["interval"][0] > 0.0:
        digits = decimals(order["interval"], _DIGITS)
        return (
            f"{version} beats the order of the rows by {number(order['difference'], digits)} {metric} "
            f"({interval(order['interval'], digits)}); no significant difference from {other}"
        )
    return f"No significant difference between {version} and {other}: {signed(gap, digits)} {metric} {limits}"


def _against_order(facts: Facts) -> Facts | None:
    """Return the comparison with the order of the rows by the deciding metric."""
    metrics, bars = facts["metrics"], facts["verdict"]["bars"]
    if metrics is None:
        return next((bar["found"] for bar in bars if bar["against"] == "row order"), None)
    order = next((each for each in metrics["rankings"] if each["kind"] == "row order"), None)
    found: Facts | None = None if order is None else order["candidate_less_this"][metrics["primary"]]
    return found


def _held_out(facts: Facts) -> Facts | None:
    """Return the first metric measured in training on held-out queries, from the most informative split."""
    for split in ("test", "valid", "holdout", "cv"):
        for row in facts["recorded"]:
            if row["split"] == split:
                found: Facts = row
                return found
    return None


def _recorded(facts: Facts) -> str:
    if facts["metrics"] is not None or not facts["recorded"]:
        return ""
    return "What the training measured"


def _metrics(facts: Facts) -> str:
    metrics = facts["metrics"]
    if metrics is None:
        return ""
    rival = rival_in(metrics)
    found = {name: each for name, each in rival["candidate_less_this"].items() if each is not None}
    better = [name for name, each in found.items() if each["interval"][0] > 0.0]
    worse = [name for name, each in found.items() if each["interval"][1] < 0.0]
    other = called(facts, rival["kind"], rival["name"])
    if found and len(better) == len(found):
        return f"Better than {other} by " + ("every metric" if len(found) > 1 else metric_name(better[0]))
    if worse and len(worse) == len(found):
        return f"Worse than {other} by " + ("every metric" if len(found) > 1 else metric_name(worse[0]))
    parts = []
    if better:
        parts.append(f"better by {_listed(better)}")
    if worse:
        parts.append(f"worse by {_listed(worse)}")
    if not parts:
        return f"No metric differs significantly from {other}"
    return f"Against {other}: {', '.join(parts)}" + (
        ", no significant difference in the rest" if len(better) + len(worse) < len(found) else ""
    )


def _listed(metrics: list[str]) -> str:
    return few([metric_name(name) for name in metrics], 3)


def _queries(facts: Facts) -> str:
    found = facts["queries"]
    if found is None:
        return ""
    won, lost, tied = (percent(found[part] / found["n_queries"], 0) for part in ("wins", "losses", "ties"))
    if facts["present"] is None:
        other = _rival(facts)
        return f"{won} of the queries are ranked better than by {other}, {lost} worse, {tied} equally well"
    return f"{won} of the queries improve, {lost} get worse, {tied} are unchanged"


def rival_in(metrics: Facts) -> Facts:
    """Return the ranking that the version is compared with."""
    found: Facts = next(each for each in metrics["rankings"] if each["name"] == metrics["rival"])
    return found


def _rival(facts: Facts) -> str:
    """Return the name of the rival of a first version, in a sentence."""
    rival = rival_in(facts["metrics"])
    return called(facts, rival["kind"], rival["name"])


def _slices(facts: Facts) -> str:
    if not facts["slices"]:
        return ""
    rows = [(part["by"], row) for part in facts["slices"] for row in part["slices"]]
    lost = [(by, row) for by, row in rows if (row["difference"]["interval"] or [0.0, 0.0])[1] < 0.0]
    won = [(by, row) for by, row in rows if (row["difference"]["interval"] or [0.0, 0.0])[0] > 0.0]
    if lost:
        by, row = min(lost, key=lambda each: each[1]["difference"]["mean"])
        at = f"{slice_title(by)} {slice_name(row, by)}"
        gap = signed(row["difference"]["mean"], _DIGITS)
        return f"It loses in {counted(len(lost), 'slice')} of {len(rows)}, most at {at} ({gap})"
    if len(won) == len(rows):
        return "It wins in every slice of the queries"
    if won:
        return f"It loses in no slice, and wins in {len(won)} of {len(rows)}"
    return "No slice differs significantly"


def _lists(facts: Facts) -> str:
    found = facts["queries"]
    if found is None:
        return ""
    if not found["lost"]:
        return "No query got worse" if facts["present"] else f"No query is ranked worse than by {_rival(facts)}"
    worst = found["lost"][0]
    if facts["present"] is None:
        return (
            f"The query furthest behind {_rival(facts)}: {number(worst['candidate'], 2)} against "
            f"{number(worst['rival'], 2)} {metric_name(found['metric'])}"
        )
    return (
        f"The query that lost most fell from {number(worst['rival'], 2)} to {number(worst['candidate'], 2)} "
        f"{metric_name(found['metric'])}"
    )


def _learning(facts: Facts) -> str:
    learning = facts["learning"]
    if learning is None:
        return ""
    runs = learning["seeds"]
    chosen = next((run for run in runs if run["chosen"]), runs[0])
    if chosen["best_round"] is None:
        return f"{counted(chosen['rounds_trained'], 'round')} were trained"
    if learning["averaged"]:
        return f"The average of {len(runs)} seeds, each up to its best round"
    text = f"Round {count(chosen['best_round'])} of {count(chosen['rounds_trained'])} was best"
    if chosen["best_round"] == chosen["rounds_trained"]:
        text = f"All {count(chosen['rounds_trained'])} rounds were kept"
    text += f" for seed {chosen['seed']}, one of {len(runs)}" if len(runs) > 1 else ""
    return text + ("; then the model was trained again with the valid split" if learning["refit"] else "")


def _noise(facts: Facts) -> str:
    """Compare the difference with the noise floor."""
    noise, found = facts["noise_floor"], primary_difference(facts)
    if noise is None:
        return ""
    text = (
        f"Seeds alone move {metric_name(noise['metric'])} by {number(noise['deviation'])} (standard deviation of "
        f"{len(noise['seeds'])} trainings on the {noise['split']} split)"
    )
    if found is None or found["kind"] != "present":
        return text
    twice = abs(found["difference"]) > 2.0 * noise["deviation"]
    return f"{text}; the difference is {'more' if twice else 'not more'} than twice that"


def _influence(facts: Facts) -> str:
    found = facts["influence"]
    rows = found["features"]
    if not rows:
        return (
            "A model that is not of trees alone has no gains to share"
            if found["n_used"]
            else "The model uses no features"
        )
    first = rows[0]
    text = f"{first['feature']} leads with {percent(first['influence'], 0)} of the gains"
    if len(rows) > 5:
        text += f"; five features make up {percent(sum(row['influence'] for row in rows[:5]), 0)}"
    return text


def _dependence(facts: Facts) -> str:
    if not facts["dependence"]:
        return ""
    moved = [
        (max(row["candidate"]["outputs"]) - min(row["candidate"]["outputs"]), row["feature"])
        for row in facts["dependence"]
        if row["candidate"]["outputs"]
    ]
    if not moved:
        return ""
    span, feature = max(moved)
    return f"Of the leading features, {feature} changes the score most: by {number(span, 2)}"


def _scores(facts: Facts) -> str:
    found = facts["scores"]
    if found is None:
        return ""
    medians = [row["median"] for row in found["grades"] if row["median"] is not None]
    if len(medians) < 2:
        return "Distribution of the scores"
    if all(a < b for a, b in itertools.pairwise(medians)):
        return "Scores rise with the grade"
    return "Scores do not rise with every grade"


def _gate(facts: Facts) -> str:
    verdict = facts["verdict"]
    if verdict["gate"] is None:
        return ""
    failed = [rail["name"] for rail in verdict["guardrails"] if rail["verdict"] == "failed"]
    if failed:
        return f"Failed checks of the gate: {few(failed)}"
    worse = [each["metric"] for bar in verdict["bars"] for each in bar.get("also", []) if not each["passed"]]
    if worse and all(bar["passed"] for bar in verdict["bars"]):
        return f"All guardrails passed, but {_listed(worse)} did not"
    if not verdict["gate"]:
        return "All guardrails passed, but the metric did not"
    return "The gate and all guardrails passed"


def _data(facts: Facts) -> str:
    data = facts["data"]
    rejected = data["rejected_rows"]
    if data["documents"] is None:
        return "The data are unknown"
    text = f"{counted(data['documents'], 'document')} of {counted(data['queries'], 'query')}"
    if rejected is None:
        return text
    return text + (f", {counted(rejected, 'row')} rejected" if rejected else ", none rejected")


def _drift(facts: Facts) -> str:
    drift = facts["drift"]
    if drift is None:
        return ""
    if not drift["alarms"]:
        return "Nothing drifted since the former dataset"
    return (
        f"{len(drift['alarms'])} of {drift['n_features'] + 1} drifted, appeared or disappeared since the former "
        "dataset: " + few(drift["alarms"], 3)
    )


def _lineage(facts: Facts) -> str:
    differs = facts["lineage"]["differs_from_present"]
    if differs is None:
        return "Where the version comes from"
    parts = [
        *([] if differs["same_data"] else ["other data"]),
        *([] if differs["same_code"] else ["other code"]),
        *([] if differs["same_features"] else ["other features"]),
    ]
    if differs["parameters"]:
        parts.append(
            f"{counted(len(differs['parameters']), 'parameter')} changed ({few(list(differs['parameters']), 3)})"
        )
    present = facts["present"]["version"]
    return f"What differs from {present}: {', '.join(parts)}" if parts else f"Trained in the same way as {present}"
