"""Categories of text from raw files through a dataset and a model to rankings of other raw files: no option needs to be
given again."""

import json
from dataclasses import replace

import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as pq
import pytest

from rankmill.cli import execute
from rankmill.foundation.errors import CandidatesRejected
from rankmill.gate.rankings import scores_of
from rankmill.pipeline.bins.binning import bin_dataset
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.pipeline.ingest import ingest
from rankmill.pipeline.options import IngestOptions, ReadOptions, SynthParameters
from rankmill.pipeline.synth import write_synthetic
from rankmill.scorer.evaluate.evaluate import evaluate
from rankmill.scorer.forest.forest import Forest
from rankmill.scorer.inspect.documents import read_documents
from rankmill.scorer.models.loading import predictor_of
from rankmill.scorer.options import Selection
from tests.refusals import refused
from tests.scorer.forests import random_forest
from tests.trainer.fixed import fixed


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    file = tmp_path_factory.mktemp("synth") / "all.parquet"
    write_synthetic(file, SynthParameters(queries=120, documents_per_query=15, features=10, categorical=(10, 60)))
    return pq.read_table(file)


@pytest.fixture(scope="module")
def candidates(table, tmp_path_factory):
    """The same candidates in files of every kind, some of them with a category that no model knows."""
    folder = tmp_path_factory.mktemp("candidates")
    new = [None if row == 3 else "new" if row % 7 == 0 else text for row, text in enumerate(table["c1"].to_pylist())]
    place = table.schema.get_field_index("c1")
    table = table.set_column(place, "c1", pa.array(new)).drop(["grade"])
    plain = table.set_column(table.schema.get_field_index("c2"), "c2", table["c2"].cast(pa.string()))
    pq.write_table(table, folder / "dictionaries.parquet")
    pq.write_table(plain, folder / "text.parquet", row_group_size=200)
    arrow_csv.write_csv(plain, folder / "a.csv", arrow_csv.WriteOptions(quoting_style="none"))
    with pa.OSFile(str(folder / "a.arrow"), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    rows = [{key: cell for key, cell in row.items() if cell is not None} for row in plain.to_pylist()]
    (folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return sorted(folder.iterdir())


COMMON = "--n-rounds 6 --preset defaults-1 --max-leaves 4"


@pytest.fixture(scope="module")
def project(table, tmp_path_factory):
    """A folder with a dataset of the table and a model of it, base@1."""
    folder = tmp_path_factory.mktemp("project")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        pq.write_table(table, "judgments.parquet")
        for command in (
            "data ingest judgments.parquet -o dataset --split train=0.6,valid=0.2,test=0.2",
            "data bin dataset --max-bin-of c2=20",
            f"train dataset --name base {COMMON}",
        ):
            assert execute(command.split()) == 0
    return folder


def test_rankings_are_the_same_from_every_file(project, candidates, tmp_path, typed, monkeypatch):
    monkeypatch.chdir(project)
    forest = Forest.load(typed.json("models show base@1")["model_path"])
    assert forest.categories.keys() == {"c1", "c2"}
    assert {text.partition("-")[0] for text in forest.categories["c2"]} == {"c2"}
    ranked = set()
    for number, file in enumerate(candidates):
        typed(f"rerank {file} -m base@1 -o {tmp_path}/{number}.csv")
        ranked.add((tmp_path / f"{number}.csv").read_bytes())
    assert len(ranked) == 1


def test_slices_by_a_category_are_named_by_its_text(table, tmp_path, typed, monkeypatch):
    monkeypatch.chdir(tmp_path)
    of_query = pa.array([f"c{int(qid) % 3}" for qid in table["qid"].to_pylist()])
    rows = table.append_column("country", of_query)
    pq.write_table(rows, "judgments.parquet")
    typed("data ingest judgments.parquet -o dataset --categorical country --split train=0.5,test=0.5")
    typed("data bin dataset")
    typed("train dataset --name web --n-rounds 3 --preset defaults-1")
    with pa.OSFile("a.arrow", "wb") as file, pa.ipc.new_file(file, rows.schema) as writer:
        writer.write_table(rows)
    for subject in ("dataset", "a.arrow", "judgments.parquet"):
        (slices,) = typed.json(f"evaluate {subject} -m web@latest --by country")["slices"]
        assert {each["name"] for each in slices["slices"]} == {"c0", "c1", "c2"}


@pytest.mark.parametrize("text", [False, True])
def test_a_feature_that_is_categorical_in_one_of_model_and_data_is_refused(text, tmp_path):
    rows = [{"qid": f"{i // 5}", "doc_id": str(i), "grade": i % 3, "c1": i % 7, "x": i / 9} for i in range(200)]
    pq.write_table(
        pa.Table.from_pylist([row | {"c1": f"c{row['c1']}"} if text else row for row in rows]), tmp_path / "d.parquet"
    )
    read = ReadOptions(categorical=("c1",) if text else ())
    ingest([tmp_path / "d.parquet"], tmp_path / "d", options=IngestOptions(read=read, split={"train": 1.0}))
    bin_dataset(Dataset.open(tmp_path / "d"))
    dataset = Dataset.open(tmp_path / "d")
    kinds = ("categorical in the data", "a number in") if text else ("a number in the data", "categorical in")

    def model(categorical):
        forest = random_forest(3, n_features=2, n_trees=9, categorical=categorical, names=["c1", "x"])
        return replace(forest, parameters=fixed().as_dict())

    def uses(forest):
        return [
            (CandidatesRejected, lambda: evaluate(dataset.path, model=forest, split="all", metrics=["ndcg@10"])),
            (CandidatesRejected, lambda: read_documents([dataset.path], predictor_of(forest), Selection(split="all"))),
            (CandidatesRejected, lambda: scores_of(dataset, "train", [forest], ["the candidate"])),
        ]

    for error, use in uses(model(int(not text))):
        with refused(error, "'c1'", *kinds):
            use()
    evaluate(dataset.path, model=model(int(text)), split="all", metrics=["ndcg@10"])
    scores_of(dataset, "train", [model(int(text))], ["the candidate"])
    unused = random_forest(3, n_features=2, n_trees=0, categorical=int(not text), names=["c1", "x"])
    evaluate(dataset.path, model=unused, split="all", metrics=["ndcg@10"])  # nothing compares it


def test_seeds_on_top_of_a_base_with_categories_are_averaged(project, typed, monkeypatch):
    monkeypatch.chdir(project)
    typed(f"train dataset --name web {COMMON} --base-model base@1 --seeds 1,2 --choose average")
    assert "c1" in Forest.load(typed.json("models show web")["model_path"]).categories
