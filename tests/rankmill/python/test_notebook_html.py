"""What notebooks show of our objects: the numbers that the objects hold, escaped, without anything from outside."""

from __future__ import annotations

from html.parser import HTMLParser

import numpy as np
import polars as pl
import pytest

from rankmill import Dataset, Ranker, evaluate
from rankmill.cli import execute
from rankmill.foundation.notebook_html import MOST_ROWS, HtmlTable, ShareCell, card
from rankmill.scorer.evaluate.compare import Ranking, compare

TAGS = "div style p b i span table caption thead tbody tr th td"
EVIL = "<script>alert('x')</script>&"


class Page(HTMLParser):
    """Reads HTML strictly: every tag is closed in its order; keeps the text of every cell and all attributes."""

    def __init__(self, html):
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.words: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        self.tags.add(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1] != "style":
            self.words.append(data)


def page_of(thing):
    html = thing._repr_html_()
    page = Page(html)
    assert page.tags <= {*TAGS.split()}
    assert {name for name, _ in page.attributes} <= {"class", "style", "colspan"}
    assert "http" not in html
    assert "url(" not in html
    assert html.count("<tr>") <= 60
    return page


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("notebook")
    rng = np.random.default_rng(0)
    features = pl.DataFrame(rng.normal(size=(300, 14)), schema=[f"f{i}" for i in range(14)])
    grades = np.clip(np.round(features["f0"].to_numpy() + 1), 0, 4).astype(int)
    rows = features.with_columns(qid=np.repeat(np.arange(30), 10), grade=grades)
    rows.write_csv(folder / "judgments.csv")
    arguments = ["data", "ingest", folder / "judgments.csv", "-o", folder / "set", "--split", "train=0.7,test=0.3"]
    assert execute([*map(str, arguments)]) == 0
    return folder


@pytest.fixture(scope="module")
def ranker(place):
    rows = pl.read_csv(place / "judgments.csv").rename({"f0": EVIL})
    X = rows.drop("grade")
    old, new = X["qid"].to_numpy() < 20, X["qid"].to_numpy() >= 20
    y = rows["grade"].to_numpy()
    return Ranker(n_rounds=8, max_leaves=5).fit(
        X.filter(old), y[old], eval_set=(X.filter(new), y[new]), eval_metrics="map"
    )


def test_a_ranker_shows_its_metrics_and_its_features(ranker, tmp_path):
    page = page_of(ranker)
    assert EVIL in page.words
    best = ranker.history_[ranker.best_round_ - 1].metrics
    for metrics in best.values():
        for name, value in metrics.items():
            assert name in page.words
            assert f"{value:.4f}" in page.words
    assert f"{ranker.feature_importances_.max():.1%}" in page.words
    assert repr(ranker) in page.words
    assert "not fitted" in page_of(Ranker()).words
    ranker.save(tmp_path / "model.rankmill")
    assert any("model.rankmill" in word for word in page_of(Ranker.load(tmp_path / "model.rankmill")).words)


def test_a_forest_shows_its_most_important_features_first(ranker):
    forest = ranker.forest_
    page = page_of(forest)
    assert page.words.index(EVIL) < min(page.words.index(name) for name in page.words if name.startswith("f1"))
    assert f"{forest.n_trees:,}" in page.words
    assert forest.sha256[:12] in page.words
    assert forest.sha256[:12] in repr(forest)


def test_an_evaluation_and_a_comparison_show_their_means(place):
    dataset = Dataset.open(place / "set")
    train = dataset.rows("train", ("qid", *dataset.feature_names))
    grades = dataset.rows("train", ["grade"])["grade"]
    small, large = (Ranker(n_rounds=n, max_leaves=4).fit(train, grades).forest_ for n in (1, 6))
    metrics = ["ndcg@10", "map"]
    found = evaluate(dataset.path, model=large, split="test", metrics=metrics, by=["f1"])
    page = page_of(found)
    for metric, mean in found.means.items():
        assert f"{mean:.4f}" in page.words
        assert f"{metric} {mean:.4f}" in repr(found)
    for each in found.slices[0].slices:
        assert each.name in page.words
    both = [Ranking(name=EVIL, source=small), Ranking(name="large", source=large)]
    compared = compare(both, on=dataset.path, split="test", metrics=metrics)
    page = page_of(compared)
    assert EVIL in page.words
    for difference in compared.differences[1].values():
        assert difference is not None
        assert f"{difference.difference:+.4f}" in page.words
    assert "large with" in repr(compared)


def test_a_dataset_shows_its_splits_and_grades(place):
    dataset = Dataset.open(place / "set")
    page = page_of(dataset)
    known = dataset.manifest
    assert page.words.index("train") < page.words.index("test")
    for size in known.splits.values():
        assert f"{size.queries:,}" in page.words
    for count in known.grades:
        assert f"{count.rows / known.rows:.1%}" in page.words
    assert "30 queries" in repr(dataset)


def test_long_tables_are_cut_and_shares_are_bars():
    table = HtmlTable(["name", "share"], [[f"row {i}", ShareCell(i / 100)] for i in range(25)])
    html = card("title", {"a": EVIL}, [table], ["a note"])
    page = Page(html)
    assert f"row {MOST_ROWS - 1}" in page.words
    assert f"row {MOST_ROWS}" not in page.words
    assert "and 15 more" in page.words
    assert EVIL in page.words
    assert "<script" not in html
    assert "* 0.0900)" in html
