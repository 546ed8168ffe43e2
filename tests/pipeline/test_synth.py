"""What is planted in the generated judgments, and that it is the same everywhere."""

import hashlib
import itertools
from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest

from rankmill.foundation.errors import InputError
from rankmill.pipeline import synth
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.pipeline.ingest import ingest
from rankmill.pipeline.options import SynthParameters
from rankmill.pipeline.synth import category_effects, generate, ideal_scores, write_synthetic
from tests import naive
from tests.refusals import refused


def everything(parameters):
    """Values (rows, features), grades and row offsets of all queries."""
    blocks = list(generate(parameters))
    sizes = np.concatenate([np.diff(block.starts) for block in blocks])
    values = np.concatenate([block.values for block in blocks], axis=1).T
    return values, np.concatenate([block.grades for block in blocks]), np.concatenate([[0], np.cumsum(sizes)])


def ndcg_at_10(scores, grades, starts):
    """Mean over the queries with something relevant."""
    discounts = 1 / np.log2(np.arange(2, 12))
    found = []
    for first, last in itertools.pairwise(starts):
        gains = 2.0 ** grades[first:last] - 1
        best = np.sort(gains)[::-1][:10]
        if best[0] > 0:
            ranked = gains[np.argsort(-scores[first:last], kind="stable")][:10]
            found.append((ranked @ discounts[: len(ranked)]) / (best @ discounts[: len(best)]))
    return float(np.mean(found))


@pytest.fixture(scope="module")
def sample():
    return everything(SynthParameters(queries=2000, documents_per_query=40, features=30, seed=5))


def test_the_bytes_are_these_on_every_machine(tmp_path):
    path = tmp_path / "judgments.txt"
    write_synthetic(path, SynthParameters(queries=20, documents_per_query=15, features=40, seed=3))
    assert (
        hashlib.sha256(path.read_bytes()).hexdigest()
        == "f97e20bd08eeec7c7bb499ca6b1221bb242257157946e6c915b614773360b8e3"
    )


def test_text_and_parquet_hold_the_same(tmp_path):
    parameters = SynthParameters(queries=30, documents_per_query=12, features=60, seed=9)
    text, table = tmp_path / "a.txt", tmp_path / "a.parquet"
    reports = [write_synthetic(path, parameters) for path in (text, table)]
    assert reports[0].grades == reports[1].grades
    columns = pq.read_table(table).to_pydict()
    lines = text.read_text().splitlines()
    assert reports[0].rows == len(lines) == len(columns["qid"])
    assert reports[0].queries == len(set(columns["qid"])) == 30
    for row, line in enumerate(lines):
        left, document = line.split(" #docid = ")
        grade, qid, *features = left.split()
        assert (columns["grade"][row], columns["qid"][row]) == (int(grade), qid.removeprefix("qid:"))
        assert columns["doc_id"][row] == document
        for number, feature in enumerate(features, start=1):
            index, value = feature.split(":")
            assert int(index) == number
            assert np.float32(value) == columns[f"f{number}"][row]
    assert len(set(columns["doc_id"])) == len(lines)


def test_lines_are_those_of_the_slow_twin(tmp_path):
    parameters = SynthParameters(queries=11, documents_per_query=5, features=25, seed=2)
    (block,) = generate(parameters)
    expected = []
    for q in range(11):
        for document, row in enumerate(range(block.starts[q], block.starts[q + 1]), start=1):
            grid = block.grid[:, row].tolist()
            expected.append(naive.letor_line(int(block.grades[row]), q + 1, document, grid, block.decimals.tolist()))
    write_synthetic(tmp_path / "x", parameters)
    assert (tmp_path / "x").read_text().splitlines() == expected


def test_blocks_do_not_change_the_bytes(monkeypatch):
    parameters = SynthParameters(queries=50, documents_per_query=9, features=20)
    whole = everything(parameters)
    monkeypatch.setattr(synth, "_BLOCK_CELLS", 700)
    assert len(list(generate(parameters))) > 10
    for one, other in zip(whole, everything(parameters), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_query_is_the_same_among_few_and_many_and_with_other_features():
    values, grades, starts = everything(SynthParameters(queries=40, features=33, seed=8))
    fewer, fewer_grades, fewer_starts = everything(SynthParameters(queries=15, features=33, seed=8))
    np.testing.assert_array_equal(fewer_starts, starts[:16])
    np.testing.assert_array_equal(fewer, values[: starts[15]])
    np.testing.assert_array_equal(fewer_grades, grades[: starts[15]])
    narrow, narrow_grades, _ = everything(SynthParameters(queries=40, features=12, seed=8))
    np.testing.assert_array_equal(narrow, values[:, :12])
    np.testing.assert_array_equal(narrow_grades, grades)


def test_ideal_scores_are_the_formula(sample):
    values = sample[0][:500]
    expected = [naive.hidden_relevance([0.0, *row]) for row in values[:, :10].astype(float).tolist()]
    np.testing.assert_allclose(ideal_scores(values), expected, rtol=1e-12, atol=1e-12)


def test_grades_follow_the_hidden_relevance_and_the_ceiling_is_as_documented(sample):
    values, grades, starts = sample
    ceiling = ndcg_at_10(ideal_scores(values), grades, starts)
    assert ceiling == pytest.approx(0.80, abs=0.015)
    assert ndcg_at_10(np.zeros(len(values)), grades, starts) == pytest.approx(0.29, abs=0.015)
    single = max(ndcg_at_10(values[:, f], grades, starts) for f in range(30))
    assert 0.4 < single < 0.55
    assert np.all(np.diff([ideal_scores(values)[grades == g].mean() for g in range(5)]) > 0)


def test_queries_of_one_document(tmp_path):
    report = write_synthetic(tmp_path / "a.txt", SynthParameters(queries=7, documents_per_query=1, features=10))
    assert report.rows == report.queries == 7


def test_impossible_parameters_and_names_are_refused(tmp_path):
    for name, value, *facts in (
        ("queries", 0, "1 .. 1099511627776", 0),
        ("features", 9, "10 .. 100000", 9),
        ("seed", -1, 0),
        ("noise", float("nan"), "[0, 1000]", "nan"),
        *(("categorical", numbers, "2 to 100,000") for numbers in ((1,), (100_001,), (10, 0))),
    ):
        with refused(InputError, name, *facts):
            SynthParameters(**{name: value})
    with refused(InputError, "'.csv'", ".parquet", ".txt"):
        write_synthetic(tmp_path / "a.csv", SynthParameters())
    with refused(InputError, "a.txt", ".parquet"):  # text cannot hold categories
        write_synthetic(tmp_path / "a.txt", PLANTED)
    assert not list(tmp_path.iterdir())


def test_what_is_there_is_not_replaced_unasked(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("mine")
    with refused(InputError, path, "exists", "overwrite"):
        write_synthetic(path, SynthParameters(queries=5))
    assert path.read_text() == "mine"
    with refused(InputError, "folder", "file"):
        write_synthetic(tmp_path, SynthParameters(queries=5), overwrite=True)


PLANTED = SynthParameters(queries=300, documents_per_query=20, features=12, seed=4, categorical=(10, 200))


def test_categories_are_added_and_change_nothing_else(tmp_path):
    plain = replace(PLANTED, categorical=())
    both = [next(iter(generate(parameters))) for parameters in (PLANTED, plain)]
    np.testing.assert_array_equal(both[0].grid, both[1].grid)
    np.testing.assert_array_equal(both[0].starts, both[1].starts)
    assert both[1].categories.shape == (0, both[1].grid.shape[1])
    report = write_synthetic(tmp_path / "a.parquet", PLANTED)
    table = pq.read_table(tmp_path / "a.parquet")
    assert table.column_names[-2:] == ["c1", "c2"]
    assert "12 features and 2 of categories" in report.render()
    assert len(set(table["c1"].to_pylist())) == 10
    write_synthetic(tmp_path / "b.parquet", plain)
    assert pq.read_table(tmp_path / "b.parquet").drop(["grade"]).equals(table.drop(["grade", "c1", "c2"]))


def test_planted_categories_are_skewed_and_have_effects():
    blocks = list(generate(replace(PLANTED, queries=3000)))
    places = np.concatenate([block.categories for block in blocks], axis=1)
    grades = np.concatenate([block.grades for block in blocks])
    for numbers, found, effects in zip(PLANTED.categorical, places, category_effects(PLANTED), strict=True):
        assert found.min() == 0
        assert found.max() == numbers - 1
        share = np.bincount(found, minlength=numbers) / len(found)
        expected = np.diff(np.sqrt(np.arange(numbers + 1) / numbers))
        np.testing.assert_allclose(share, expected, atol=0.005)
        means = np.bincount(found, weights=grades, minlength=numbers) / np.maximum(1, share * len(found))
        assert np.corrcoef(means, effects)[0, 1] > 0.8
    np.testing.assert_allclose(np.bincount(grades) / len(grades), synth.SHARES, atol=0.01)
    values = np.concatenate([block.values for block in blocks], axis=1).T
    starts = np.concatenate([[0], np.cumsum(np.concatenate([np.diff(block.starts) for block in blocks]))])
    hidden = ideal_scores(values)
    known = hidden + sum(effects[of] for effects, of in zip(category_effects(PLANTED), places, strict=True))
    assert ndcg_at_10(known, grades, starts) > ndcg_at_10(hidden, grades, starts) + 0.03


def test_effects_do_not_depend_on_size_or_seed():
    more = replace(PLANTED, queries=7, seed=99, categorical=(20, 200, 3))
    for one, other in zip(category_effects(PLANTED), category_effects(more), strict=False):
        np.testing.assert_array_equal(one, other[: len(one)])


def test_planted_categories_are_ingested_without_being_named(tmp_path):
    write_synthetic(tmp_path / "a.parquet", PLANTED)
    ingest([str(tmp_path / "a.parquet")], tmp_path / "dataset")
    dataset = Dataset.open(tmp_path / "dataset")
    assert dataset.manifest.categorical == ["c1", "c2"]
    assert {text for text, _ in dataset.vocabulary.most_frequent("c1")} == {f"c1-{k}" for k in range(10)}
