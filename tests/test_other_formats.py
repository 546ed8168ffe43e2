"""A file of another format number is refused in one line that says which rankmill reads it; nothing guesses what it
might mean."""

from __future__ import annotations

import json
import shutil
import struct

import pyarrow.parquet as pq
import pytest

import rankmill
from rankmill.foundation.errors import RankmillError
from rankmill.pipeline.bins.binning import bin_dataset
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.pipeline.ingest import ingest
from rankmill.pipeline.judgments.propensities import Propensities, read_propensities, write_propensities
from rankmill.pipeline.statistics.drift_reference import DriftReference
from rankmill.scorer.evaluate.evaluate import evaluate
from rankmill.scorer.models.loading import load_model_file
from rankmill.scorer.rerank.rerank import rerank
from rankmill.trainer.tuning.trials import TrialStore
from tests.refusals import refused
from tests.scorer.forests import random_forest
from tests.scorer.rerank.candidate_files import random_candidates, write_letor


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("formats")
    (folder / "rows.txt").write_text("".join(f"{i % 3} qid:{i // 4} 1:{i} 2:{i % 5}\n" for i in range(40)))
    ingest([folder / "rows.txt"], folder / "dataset")
    bin_dataset(Dataset.open(folder / "dataset"))
    DriftReference.of(Dataset.open(folder / "dataset")).write(folder / "drift.parquet")
    forest = random_forest(1)
    forest.save(folder / "model.rankmill")
    rerank(write_letor(folder / "candidates.txt", random_candidates(1)), forest, folder / "ranked")
    write_propensities(folder / "propensities.json", Propensities(model="pbm", examination=(1.0, 0.5)))
    TrialStore.begin(folder / "search", {"format": 1})
    return folder


def of_json(path, number):
    data = json.loads(path.read_bytes())
    path.write_text(json.dumps({**data, "format": number}))


def of_model(path, number):
    data = bytearray(path.read_bytes())
    data[8:12] = struct.pack("<I", number)
    path.write_bytes(data)


def of_bins(path, number):
    data = json.loads(path.read_bytes())
    data["bins"][0]["format"] = number
    path.write_text(json.dumps(data))


def of_metadata(path, number):
    table = pq.read_table(path)
    facts = {
        key: value.replace(b'"format": 1', f'"format": {number}'.encode())
        for key, value in table.schema.metadata.items()
    }
    pq.write_table(table.replace_schema_metadata(facts), path)


FILES = {
    "dataset/_manifest.json": (of_json, lambda at: Dataset.open(at / "dataset")),
    "dataset/_manifest.json of bins": (of_bins, lambda at: Dataset.open(at / "dataset")),
    "dataset/_bins/*/binspec.json": (of_json, lambda at: Dataset.open(at / "dataset").binspec()),
    "drift.parquet": (of_metadata, lambda at: DriftReference.read(at / "drift.parquet")),
    "model.rankmill": (of_model, lambda at: load_model_file(at / "model.rankmill")),
    "ranked/_manifest.json": (of_json, lambda at: evaluate(at / "ranked")),
    "propensities.json": (of_json, lambda at: read_propensities(at / "propensities.json")),
    "search/search.json": (of_json, lambda at: TrialStore.begin(at / "search", {"format": 1})),
}


@pytest.mark.parametrize("name", FILES)
def test_another_format_number_is_refused_in_one_line(made, tmp_path, name):
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    change, read = FILES[name]
    read(tmp_path)
    (path,) = tmp_path.glob(name.split()[0])
    whole = path.read_bytes()
    for number in (0, 9):
        path.write_bytes(whole)
        change(path, number)
        later = [f"the version after {rankmill.__version__} that wrote it"] if number > 1 else []
        with refused(
            RankmillError, str(tmp_path), f"format {number}", f"rankmill {rankmill.__version__} reads", *later
        ):
            read(tmp_path)
