"""The report of a run: what it says, that it says nothing else, and that nothing that it quotes can act."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from rankmill.cli import execute
from rankmill.foundation.errors import InputError
from rankmill.foundation.records import as_json
from rankmill.pipeline.statistics.dataset_drift import compare as drifted
from rankmill.registry.rendering import size_text
from rankmill.report import formatting
from rankmill.report.facts import Report
from rankmill.report.findings import title
from rankmill.report.page import markdown, page
from rankmill.report.provenance import drift_facts
from rankmill.report.report_files import to_bytes
from rankmill.report.subject import subject_of_work
from rankmill.scorer.evaluate.compare import Ranking, compare
from rankmill.scorer.evaluate.evaluate import evaluate
from tests.rankmill.report.report_case import HOSTILE, METRICS, Work, read_report
from tests.refusals import refused


@pytest.fixture(scope="module")
def work(two_versions) -> Work:
    return two_versions


@pytest.fixture(scope="module")
def facts(work: Work) -> Report:
    return work.report()


class Text(HTMLParser):
    """What a person reads on the page: the words outside of style and of the ticks of axes, and the attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self._silent = 0
        self._open: list[tuple[str, bool]] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        reported = dict(attrs)
        self.tags.append((tag, reported))
        quiet = tag in {"style", "head"} or "tick" in (reported.get("class") or "").split()
        if tag in {"meta", "link"}:  # they have no end
            return
        self._open.append((tag, quiet))
        self._silent += quiet

    def handle_endtag(self, tag):
        while self._open:
            name, quiet = self._open.pop()
            self._silent -= quiet
            if name == tag:
                break

    def handle_data(self, data):
        if not self._silent and data.strip():
            self.words.append(data)


def test_the_same_work_folder_gives_the_same_bytes(work: Work, facts, tmp_path: Path) -> None:
    first = {path.name: path.read_bytes() for path in (work.path / "report").iterdir()}
    assert set(first) == {"index.html", "report.json", "report.md"}
    elsewhere = tmp_path / "other"
    shutil.copytree(work.path, elsewhere / "work")
    shutil.copytree(work.registry, elsewhere / "registry")
    shutil.rmtree(elsewhere / "work" / "report")
    command = [
        "report",
        str(elsewhere / "work"),
        "--registry",
        str(elsewhere / "registry"),
        "-o",
        str(tmp_path / "out"),
    ]
    assert execute([*command, "--n-threads", "2"]) == 0
    again = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert again == first
    for data in first.values():
        assert str(work.path).encode() not in data


def test_the_page_and_the_text_are_made_of_the_json_alone(work: Work, facts) -> None:
    assert to_bytes(facts) == (work.path / "report" / "report.json").read_bytes()
    assert page(facts) == (work.path / "report" / "index.html").read_text()
    assert markdown(facts) == (work.path / "report" / "report.md").read_text()
    assert json.loads(to_bytes(facts))["title"] == title(facts)


def numbers_in(value) -> set[str]:
    """Every way in which a number of the JSON may be written, and the numbers in its words."""
    if isinstance(value, dict):
        return set().union(*map(numbers_in, value.values()), *map(numbers_in, value), set())
    if isinstance(value, list):
        return set().union(*map(numbers_in, value), {str(len(value))})
    if isinstance(value, str):
        shortened = value[:12] if re.fullmatch("[0-9a-f]{64}", value) else ""
        return set(re.findall(r"\d[\d,.]*\d|\d", f"{value} {shortened}"))
    if isinstance(value, bool) or value is None:
        return set()
    sizes = {size_text(value)} if value >= 0 else set()
    reported = {f"{abs(value):.{digits}f}" for digits in range(10)} | {
        f"{abs(100 * value):.{digits}f}" for digits in (0, 1)
    }
    reported |= {f"{abs(value):,}", formatting.short(value), *sizes}
    return set().union(*(re.findall(r"\d[\d,.]*\d|\d", text) for text in reported))


def test_every_figure_of_the_page_and_of_the_text_is_in_the_json(work: Work, facts) -> None:
    known = numbers_in(json.loads(to_bytes(facts)))
    known |= {"95", "10", "12"}  # 95 % intervals, ranks up to 10
    found = facts.difference
    known |= {f"{100 * part / found.n_queries:.0f}" for part in (found.wins, found.ties, found.losses)}
    reported = Text(page(facts)).words
    assert len(reported) > 300
    for text in [*reported, *markdown(facts).splitlines()]:
        for figure in re.findall(r"\d[\d,.]*\d|\d", text):
            assert figure in known or figure.rstrip(",.") in known, (figure, text)


def test_means_are_those_of_evaluate(work: Work, facts) -> None:
    for each, version in zip(facts.metrics.rankings[:2], ("web@2", "web@1"), strict=True):
        assert each.name == version
        found = as_json(evaluate(work.dataset.path, model=work.forest(version), split="test", metrics=METRICS).record())
        assert as_json(each.metrics) == found["metrics"]
        if version == "web@2":
            assert as_json(facts.metrics.counts) == found["counts"]
            assert facts.metrics.policy == found["policy"]


def test_differences_are_those_of_compare(work: Work, facts) -> None:
    rankings = [Ranking(name=name, source=work.forest(name)) for name in ("web@1", "web@2")]
    found = as_json(compare(rankings, on=work.dataset.path, split="test", metrics=METRICS).record())
    (theirs,) = found["comparisons"]
    present = facts.metrics.rankings[1]
    assert present.kind == "present"
    for name, ours in as_json(present.candidate_less_this).items():
        expected = {key: value for key, value in theirs["metrics"][name].items() if key in ours}
        assert ours == expected | ({} if name == "ndcg@10" else {"worst": []})


def test_the_baselines_are_those_of_the_gate(first_version: Work, tmp_path: Path) -> None:
    facts = first_version.report(tmp_path / "out")
    assert facts.present is None
    assert facts.outcome == "promoted"
    assert facts.rollback is None
    assert facts.metrics.rival == "best single feature"
    bars = {each.name: each for each in facts.metrics.rankings[1:]}
    for comparison in facts.gate.comparisons:
        ours = bars[comparison.against]
        assert ours.words == comparison.words
        for metric, expected in comparison.metrics.items():
            found = ours.candidate_less_this[metric]
            assert (found.difference, found.interval) == (expected.difference, expected.interval)


def test_a_promoted_version_says_so_and_how_to_take_it_back(work: Work, facts) -> None:
    assert (facts.outcome, facts.present.version) == ("promoted", "web@1")
    assert facts.rollback == 'rankmill models rollback web --to 1 --registry "${RANKMILL_REGISTRY:-registry-data}"'
    assert facts.rollback.replace('"', "&#34;") in page(facts)
    assert facts.rollback in markdown(facts)
    assert title(facts).startswith("web@2 beats the former production by ")


def test_slices_share_the_queries_and_their_documents_out(work: Work, facts) -> None:
    for part in facts.slices:
        assert sum(row.n_queries for row in part.slices) == facts.metrics.counts.n_queries
        for row in part.slices:
            if row.difference.mean is not None:
                assert row.difference.mean == pytest.approx(row.candidate.mean - row.rival.mean, abs=1e-12)
    assert {part.by for part in facts.slices} == {"query_size", "n_relevant", "share_relevant"}


def test_the_histogram_counts_every_query_once(facts) -> None:
    counts, found = facts.queries.counts, facts.difference
    assert sum(counts) + found.ties == found.n_queries
    middle = len(counts) // 2
    assert (sum(counts[:middle]), sum(counts[middle:])) == (found.losses, found.wins)
    assert facts.queries.edges[middle] == 0.0


def test_lists_are_ranked_as_the_models_score(work: Work, facts) -> None:
    from rankmill.scorer.forest.predict import ForestPredictor

    rows = work.dataset.rows("test", ("qid", "doc_id", "grade"))
    qids, ids = rows.column("qid").to_pylist(), rows.column("doc_id").to_pylist()
    names = list(work.dataset.feature_names)
    values = np.concatenate(list(work.dataset.feature_batches("test", names)))
    scores = []
    for version in ("web@2", "web@1"):
        predictor = ForestPredictor(work.forest(version))
        place = [names.index(name) for name in predictor.feature_names]
        scores.append(predictor.scores(values[:, place], columns=range(len(place))))
    each = facts.queries.lost[0]
    chosen = [i for i, qid in enumerate(qids) if qid == each.qid]
    for at, name in enumerate(("rank", "rank_before")):
        order = sorted(chosen, key=lambda i: (-scores[at][i], ids[i]))
        rank = {ids[i]: n for n, i in enumerate(order, start=1)}
        for row in each.documents:
            assert getattr(row, name) == rank[row.doc_id]
    lost = [row.difference for row in facts.queries.lost]
    assert lost == sorted(lost)
    assert [row.qid for row in facts.queries.lost] == [row.qid for row in facts.difference.worst[: len(lost)]]


def test_nothing_that_is_quoted_can_act(facts) -> None:
    """Whatever text is in the facts, it comes out as text: as many tags as before, none of them the quoted one."""
    keep = {"kind", "outcome", "verdict", "rival", "name", "primary", "metric", "deciding", "rule"}

    def hostile(value, key=""):
        if dataclasses.is_dataclass(value):
            return replace(
                value,
                **{each.name: hostile(getattr(value, each.name), each.name) for each in dataclasses.fields(value)},
            )
        if isinstance(value, dict):
            return {name: hostile(each, name) for name, each in value.items()}
        if isinstance(value, tuple):
            return tuple(hostile(each, key) for each in value)
        return HOSTILE if isinstance(value, str) and key not in keep else value

    quoted = hostile(facts)
    before, after = Text(page(facts)), Text(page(quoted))
    assert "<script" not in page(quoted)
    assert sum(HOSTILE in text for text in after.words) > 20
    assert len(after.tags) <= len(before.tags) + 40  # notes and remarks of which there is one each
    outside = re.sub(r"```.*?```|`[^`]*`", "", markdown(quoted), flags=re.DOTALL)
    assert "<script" not in outside


def test_the_page_asks_for_nothing_from_outside(work: Work, facts) -> None:
    text = page(facts)
    assert not re.findall(r"https?:|//[a-z]|@import|url\(", text)
    reported = Text(text)
    for tag, attributes in reported.tags:
        assert tag not in {"img", "iframe", "object", "embed", "base", "form", "script"}
        for name in ("src", "href", "action", "data", "xlink:href"):
            link = attributes.get(name)
            assert link is None or link.startswith("#") or link == "data:,"
    policy = next(a for tag, a in reported.tags if tag == "meta" and a.get("http-equiv"))
    assert policy["content"] == "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    assert len(text) < 1_000_000


def test_what_is_pointed_to_is_there(facts) -> None:
    reported = Text(page(facts))
    ids = [attributes["id"] for _, attributes in reported.tags if attributes.get("id")]
    assert len(ids) == len(set(ids))
    links = [attributes["href"] for tag, attributes in reported.tags if tag == "a"]
    assert len(links) >= 8
    assert {link.removeprefix("#") for link in links} <= set(ids)


def test_what_is_missing_is_left_out(facts) -> None:
    metrics = facts.metrics
    nobody = [replace(each, candidate_less_this=dict.fromkeys(each.candidate_less_this)) for each in metrics.rankings]
    none = {"metrics": None, "queries": None, "slices": (), "rollback": None}
    alone = replace(facts.lineage, changed={}, other=())
    shares = tuple(replace(each, before=None) for each in facts.influence.features)
    for changed in (
        none,
        {"metrics": replace(metrics, rankings=tuple(nobody)), "queries": None},
        {"learning": None, "noise": None},
        {"gate": None, "outcome": "registered"},
        {"present": None, "lineage": alone, "influence": replace(facts.influence, features=shares)},
        {"influence": replace(facts.influence, features=())},
    ):
        without = replace(facts, **changed)
        assert len(page(without)) > 15_000
        assert markdown(without).startswith("# web@2")


def test_without_held_out_queries_there_is_a_report_of_the_model_and_the_data(tmp_path: Path) -> None:
    made = Work(tmp_path, split={"train": 1.0})
    version, reported = made.train()
    made.trained_here(version, {"seeds": [reported]})
    facts = made.report()
    assert (facts.metrics, facts.slices, facts.gate) == (None, (), None)
    assert facts.learning.seeds[0].chosen
    assert title(facts) == "web@1 was trained; there are no held-out queries to evaluate it"


def test_a_report_says_whether_the_model_has_learnt_from_the_valid_split(facts, tmp_path: Path) -> None:
    made = Work(tmp_path)
    version, reported = made.train(refit="all")
    made.trained_here(version, {"seeds": [reported]})
    for each, learnt in ((facts, False), (made.report(), True)):
        assert each.learning.refit == learnt
        for text in (page(each), markdown(each)):
            assert ("again with the valid split" in text) == learnt


def test_curves_that_differ_by_rounding_only_are_drawn(facts) -> None:
    runs = [
        replace(
            run,
            curves={name: tuple(1.0 - 2e-16 * (i % 2) for i, _ in enumerate(row)) for name, row in run.curves.items()},
        )
        for run in facts.learning.seeds
    ]
    assert "chart" in page(replace(facts, learning=replace(facts.learning, seeds=tuple(runs))))


def test_drift_is_shown_where_it_was_looked_for(work: Work, facts) -> None:
    found = json.loads(drifted(work.dataset, work.dataset).to_json())
    changed = replace(facts, drift=drift_facts(found))
    assert changed.drift.alarms == ()
    assert "<h2>Nothing drifted</h2>" in page(changed)
    assert drift_facts(found | {"against": None, "grades": None, "features": []}) is None


def test_a_column_slices_the_queries(work: Work, tmp_path: Path, capsys) -> None:
    out = tmp_path / "out"
    code = execute(["report", str(work.path), "--registry", str(work.registry), "-o", str(out), "--by", "f1", "--json"])
    assert code == 0
    assert read_report(out / "report.json").slices[-1].by == "f1"
    assert json.loads(capsys.readouterr().out) == json.loads((out / "report.json").read_bytes())


def test_mistakes_are_one_line(work: Work, tmp_path: Path, capsys) -> None:
    def say(*arguments: str) -> tuple[int, str]:
        code = execute(["report", *arguments, "--registry", str(work.registry)])
        return code, capsys.readouterr().err

    code, line = say(str(tmp_path / "nowhere"))
    assert (code, line.count("\n")) == (2, 1)
    assert "no such folder" in line
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    code, line = say(str(work.path), "-o", str(tmp_path / "mine"))
    assert code == 2
    assert "is a folder with other files" in line
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.tex"]
    code, line = say(str(work.path), "-o", str(tmp_path / "new"), "--by", "positoin")
    assert (code, line.count("\n")) == (2, 1)
    assert "did you mean 'position'?" in line
    assert not (tmp_path / "new").exists()
    code, line = say("web@9", "--on", str(work.dataset.path))
    assert (code, line.count("\n")) == (2, 1)
    assert "web has no version 9" in line


def test_a_folder_without_a_version_says_what_to_do(work: Work, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    shutil.copytree(work.path / "dataset", tmp_path / "work" / "dataset")
    with refused(InputError, "version", "trained"):
        subject_of_work(tmp_path / "work", work.store)


def test_a_model_is_reported_on_any_dataset(work: Work, facts, tmp_path: Path, monkeypatch) -> None:
    """The same figures as in the report of the run, without its learning curves."""
    monkeypatch.chdir(tmp_path)
    assert execute(["report", "web", "--on", str(work.dataset.path), "--registry", str(work.registry)]) == 0
    found = read_report(tmp_path / "web@2.report" / "report.json")
    assert found.learning is None
    assert (found.metrics, found.queries, found.slices, found.gate) == (
        facts.metrics,
        facts.queries,
        facts.slices,
        facts.gate,
    )
