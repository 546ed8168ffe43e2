"""Categorical features from raw files to a dataset: the same category is the same code, whatever the file, and nothing
is silent."""

import json
import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from rankmill.foundation.errors import DataRejected, InputError, MalformedLine, UnusableColumns
from rankmill.pipeline.bins import vocabulary
from rankmill.pipeline.bins.binning import bin_dataset, bin_plan, find_bins
from rankmill.pipeline.bins.categories import category_code, category_codes
from rankmill.pipeline.bins.spec import apply_bins
from rankmill.pipeline.bins.vocabulary import Vocabulary
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.pipeline.dataset.sql import query_dataset
from rankmill.pipeline.ingest import ingest
from rankmill.pipeline.options import IngestOptions, ReadOptions
from rankmill.pipeline.read import role_columns
from rankmill.pipeline.read.open_source import open_source
from tests.bins import bins_of
from tests.refusals import refused
from tests.written import files_in, write_rows

BRANDS = ("acme", "Acme", "été", "NA", "true", "17", "017", "0.5", None)
SHOPS = (1, 17, 2**24, 2**24 + 1, 2**40, None)
NAMED = ReadOptions(categorical=("brand", "shop"))


def some_rows(n=300, seed=1):
    rng = random.Random(seed)
    return [
        {
            "qid": f"q{i // 8}",
            "doc_id": f"d{i}",
            "grade": i % 3,
            "a": rng.random(),
            "brand": rng.choice(BRANDS),
            "shop": rng.choice(SHOPS),
        }
        for i in range(n)
    ]


def made(files, out, read=NAMED, **options):
    ingest([*map(str, files)], out, options=IngestOptions(read=read, buckets=4, **options))
    return Dataset.open(out)


def test_codes_are_those_of_the_texts_and_numbers_their_own(tmp_path):
    rows = some_rows()
    dataset = made([write_rows(tmp_path / "a.jsonl", rows)], tmp_path / "dataset")
    ids = dataset.rows(None, ("doc_id",)).column(0).to_pylist()
    of_row = {row["doc_id"]: row for row in rows}
    for name in ("brand", "shop"):
        texts = [None if (cell := of_row[doc][name]) is None else str(cell) for doc in ids]
        np.testing.assert_array_equal(dataset.feature_column(name), category_codes(texts))
    assert category_code("17") == 17.0 != category_code("017")
    assert category_code("16777217.0") == category_code("16777217") != 16777216.0


def test_the_vocabulary_has_every_category_with_its_rows(tmp_path):
    rows = some_rows()
    dataset = made([write_rows(tmp_path / "a.csv", rows)], tmp_path / "dataset")
    for name in ("brand", "shop"):
        counts = {}
        for row in rows:
            if row[name] is not None:
                counts[str(row[name])] = counts.get(str(row[name]), 0) + 1
        assert dict(dataset.vocabulary.most_frequent(name)) == counts
        codes = np.array([category_code(text) for text in counts], dtype=np.float32)
        assert dataset.vocabulary.named(name, codes) == tuple(counts)
    table = pq.read_table(tmp_path / "dataset" / "_categories").to_pylist()
    rows = [row["rows"] for row in table if row["feature"] == "brand"]
    assert rows == sorted(rows, reverse=True)


def test_dictionaries_are_categories_without_being_named_in_all_files(tmp_path):
    rows = [row | {"shop": i % 5} for i, row in enumerate(some_rows())]
    encoded = write_rows(tmp_path / "a.arrow", rows[:150], encoded=("brand", "shop"))
    plain = write_rows(tmp_path / "b.csv", rows[150:])
    dataset = made([encoded, plain], tmp_path / "dataset", ReadOptions(categorical=("brand",)))
    assert dataset.manifest.categorical == ["brand", "shop"]
    assert made([encoded, plain], tmp_path / "same", ReadOptions()).manifest == dataset.manifest
    with refused(UnusableColumns, "brand", "categorical brand"):
        made(
            [write_rows(tmp_path / "c.csv", [row | {"brand": "acme", "shop": "one"} for row in rows])],
            tmp_path / "none",
            ReadOptions(),
        )


def test_a_dictionary_may_have_more_texts_than_rows(tmp_path):
    rows = some_rows()
    table = pa.Table.from_pylist(rows)
    place = table.schema.get_field_index("brand")
    more = pa.array(["never", *sorted({row["brand"] for row in rows if row["brand"] is not None}, reverse=True)])
    indices = pc.index_in(table["brand"].combine_chunks(), value_set=more)
    encoded = table.set_column(place, "brand", pa.DictionaryArray.from_arrays(indices, more))
    with pa.OSFile(str(tmp_path / "a.arrow"), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    with pa.OSFile(str(tmp_path / "b.arrow"), "wb") as file, pa.ipc.new_file(file, encoded.schema) as writer:
        writer.write_table(encoded)
    plain, other = (made([tmp_path / f"{name}.arrow"], tmp_path / name) for name in "ab")
    assert files_in(other.path, "*.parquet") == files_in(plain.path, "*.parquet")


def test_values_of_letor_text_are_their_own_codes(tmp_path):
    file = tmp_path / "a.txt"
    file.write_text("".join(f"{i % 3} qid:{i // 8} 1:{i} 2:{i % 5 + 0.5}\n" for i in range(80)))
    by_number = made([file], tmp_path / "a", ReadOptions(categorical=("2",)))
    by_name = made([file], tmp_path / "b", ReadOptions(categorical=("f2",)))
    assert by_number.manifest == by_name.manifest
    assert by_number.manifest.categorical == ["f2"]
    assert {text for text, _ in by_number.vocabulary.most_frequent("f2")} == {f"{k}.5" for k in range(5)}
    with refused(DataRejected, "f9", "categorical"):
        made([file], tmp_path / "c", ReadOptions(categorical=("9",)))


def test_an_unknown_name_is_refused(tmp_path):
    with refused(InputError, "categorical", "'brnad'", "'brand'"):
        made([write_rows(tmp_path / "a.csv", some_rows())], tmp_path / "d", ReadOptions(categorical=("brnad", "brand")))


def test_too_many_categories_are_refused_and_nothing_is_left(tmp_path, monkeypatch):
    monkeypatch.setattr(vocabulary, "MOST_CATEGORIES", 7)
    with refused(DataRejected, "'brand'", "7 categories", "categorical"):
        made([write_rows(tmp_path / "a.csv", some_rows())], tmp_path / "dataset")
    numbers = [row | {"shop": i} for i, row in enumerate(some_rows())]
    with refused(DataRejected, "'shop'", "7 categories"):
        made(
            [write_rows(tmp_path / "b.csv", numbers)],
            tmp_path / "dataset",
            ReadOptions(categorical=("shop",), ignore=("brand",)),
        )
    assert {path.name for path in tmp_path.iterdir()} == {"a.csv", "b.csv"}


def test_texts_that_take_too_much_memory_are_refused(tmp_path):
    words = Vocabulary(memory=1 << 20)
    words.add({"a": {f"text-{k}": 0.5 for k in range(3000)}})
    with refused(InputError, "1 MB", "memory", "categorical"):
        words.add({"b": {f"text-{k}": 0.5 for k in range(3000)}})


def test_texts_with_the_same_code_are_reported(tmp_path, monkeypatch):
    def code(text):
        return text, category_code("acme" if text == "Acme" else text)

    monkeypatch.setattr(role_columns, "_category", code)
    file = write_rows(tmp_path / "a.csv", some_rows())
    report = ingest([str(file)], tmp_path / "dataset", options=IngestOptions(read=NAMED))
    (line,) = [line for line in report.remarks if "same code" in line]
    assert "'Acme' and 'acme'" in line
    assert "brand (7), shop (5)" in report.render()
    texts = [
        row
        for row in pq.read_table(tmp_path / "dataset" / "_categories").to_pylist()
        if row["text"] in {"acme", "Acme"}
    ]
    assert len({(row["code"], row["rows"]) for row in texts}) == 1
    assert Dataset.open(tmp_path / "dataset").vocabulary.clashes == {"brand": [("Acme", "acme")]}


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet", "arrow"])
def test_candidates_are_read_with_the_categories_that_the_model_names(tmp_path, suffix):
    rows = some_rows()
    read = replace(NAMED, grade_required=False, known_features=frozenset({"a", "brand", "shop"}))
    source = open_source(write_rows(tmp_path / f"a.{suffix}", rows), options=read)
    values = np.concatenate([batch.values[:, source.columns.index("brand")] for batch in source.batches()])
    np.testing.assert_array_equal(values, category_codes([row["brand"] for row in rows]))


def test_codes_of_a_dataset_stay_codes(tmp_path):
    dataset = made([write_rows(tmp_path / "a.csv", some_rows())], tmp_path / "dataset")
    again = made(sorted((dataset.path / "features").glob("*.parquet")), tmp_path / "again")
    assert files_in(again.path / "features").keys() >= files_in(dataset.path / "features").keys()


def test_sql_joins_the_texts_of_categories(tmp_path):
    rows = some_rows()
    dataset = made([write_rows(tmp_path / "a.csv", rows)], tmp_path / "dataset")
    found = query_dataset(
        dataset, "SELECT doc_id, text FROM features LEFT JOIN categories ON feature = 'brand' AND code = brand"
    )
    assert dict(zip(*found.to_pydict().values(), strict=True)) == {row["doc_id"]: row["brand"] for row in rows}


def test_unjudged_rows_keep_their_texts(tmp_path):
    rows = [
        row | {"grade": None if i % 3 == 0 else 1, "brand": "rare" if i == 0 else "b"}
        for i, row in enumerate(some_rows())
    ]
    dataset = made([write_rows(tmp_path / "a.csv", rows)], tmp_path / "dataset")
    texts = "SELECT DISTINCT text FROM unjudged JOIN categories ON feature = 'brand' AND code = brand ORDER BY 1"
    assert query_dataset(dataset, texts).column("text").to_pylist() == ["b", "rare"]
    assert dict(dataset.vocabulary.most_frequent("brand")) == {"b": 200}


def codes_with_rows(dataset, name):
    """The categories of the train split, counted one by one."""
    values = dataset.feature_column(name, "train")
    return Counter(values[~np.isnan(values)].tolist())


@pytest.mark.parametrize(("most", "sampled_rows"), [(15, None), (255, 40)])
def test_bins_are_the_most_frequent_categories_of_train(tmp_path, most, sampled_rows):
    rng = random.Random(5)
    rows = [row | {"brand": f"b{int(rng.expovariate(0.1))}"} for row in some_rows(800)]
    dataset = made([write_rows(tmp_path / "a.csv", rows)], tmp_path / "dataset", split={"train": 0.8, "test": 0.2})
    plan = replace(bin_plan(dataset), sampled_rows=sampled_rows, columns=2)
    spec = bin_dataset(dataset, most, plan=plan, max_bin_of={"shop": 3})
    assert spec.categories.keys() == {"brand", "shop"}
    assert spec.max_bin_of == {"shop": 3}
    for bins in spec.features[1:]:
        counts = codes_with_rows(dataset, bins.name)
        limit = 2 if bins.name == "shop" else most - 1
        best = sorted(counts, key=lambda code: (-counts[code], code))[:limit]
        assert bins.edges.tolist() == sorted(best)
        assert bins.counts[1:-1].tolist() == [counts[code] for code in sorted(best)]
        assert bins.counts[-1] == sum(counts.values()) - sum(bins.counts[1:-1])
        assert [category_code(text) for text in bins.names] == bins.edges.tolist()
    again = Dataset.open(dataset.path)
    assert find_bins(again, most, sampled_rows, {"shop": 3}).digest == spec.digest == again.binspec().digest
    assert find_bins(again, most, sampled_rows) is None
    stored = bins_of(again, "train")
    values = np.concatenate(list(again.feature_batches("train")))
    np.testing.assert_array_equal(stored, apply_bins(values, spec))


def test_the_maximum_of_one_feature(tmp_path):
    """A wrong one is refused, and one that equals that of all features changes nothing."""
    dataset = made([write_rows(tmp_path / "a.csv", some_rows())], tmp_path / "dataset")
    for asked, *facts in (
        ({"brnad": 3}, "'brnad'", "'brand'"),
        ({"brand": 1}, "'brand'", "2 to 255"),
        ({"a": 256}, "'a'", "256"),
    ):
        with refused(InputError, "max_bin_of", *facts):
            bin_dataset(dataset, max_bin_of=asked)
    spec = bin_dataset(dataset, 20, max_bin_of={"a": 20})
    assert spec.digest == bin_dataset(Dataset.open(dataset.path), 20).digest
    assert b"max_bin_of" not in (dataset.path / "_manifest.json").read_bytes()
    assert "max_bin_of" not in spec.to_json()


@pytest.mark.parametrize("form", ["flat", "object"])
def test_json_lines_may_mix_texts_and_numbers(tmp_path, form):
    cells = ["17", 17, 17.0, "acme", 2**40, str(2**40), True, None, "", "0.5", 0.5, 2**63]
    lines = []
    for i, cell in enumerate(cells * 3):
        features = {"a": i, "brand": cell}
        row = {"qid": f"q{i // 4}", "doc_id": f"{i:03}", "grade": i % 2}
        lines.append(json.dumps(row | (features if form == "flat" else {"features": features})))
    (tmp_path / "a.jsonl").write_text("\n".join(lines) + "\n")
    dataset = made([tmp_path / "a.jsonl"], tmp_path / "dataset", ReadOptions(categorical=("brand",)))
    values = dict(zip(*(column.to_pylist() for column in dataset.rows(None, ("doc_id", "brand")).columns), strict=True))
    texts = ["17", "17", "17", "acme", str(2**40), str(2**40), "1", None, None, "0.5", "0.5", str(2**63)]
    np.testing.assert_array_equal([values[f"{i:03}"] for i in range(36)], category_codes(texts * 3))


def test_a_json_value_that_is_no_category_is_a_malformed_row(tmp_path):
    line = '{{"qid": "a", "grade": 1, "x": 1, "brand": {}}}\n'
    for cell, fact in (("[1]", "'brand'"), ('{"a": 1}', "category"), ("99999999999999999999", "2^64")):
        (tmp_path / "a.jsonl").write_text(line.format('"b"') + line.format(cell))
        with refused(MalformedLine, ":2:", fact):
            made([tmp_path / "a.jsonl"], tmp_path / "dataset", ReadOptions(categorical=("brand",)))


def test_a_time_is_no_category(tmp_path):
    table = pa.table({"qid": ["a", "a"], "grade": [0, 1], "x": [1.0, 2.0], "day": pa.array([1, 2], pa.timestamp("us"))})
    pq.write_table(table, tmp_path / "a.parquet")
    with refused(UnusableColumns, "'day'", "categories: text or whole numbers", "timestamp"):
        made([tmp_path / "a.parquet"], tmp_path / "dataset", ReadOptions(categorical=("day",)))


def test_a_column_named_as_category_is_no_id(tmp_path):
    (tmp_path / "a.csv").write_text("qid,grade,x,product\na,1,2,acme\na,0,3,other\n")
    dataset = made([tmp_path / "a.csv"], tmp_path / "dataset", ReadOptions(categorical=("product",)))
    assert dataset.manifest.features == ["x", "product"]
