"""docs/formats/ and docs/metrics.md against the code: they speak of every field, column and suffix."""

import json
import re
from dataclasses import fields

import pyarrow.parquet as pq

from rankmill.pipeline.read import files
from rankmill.scorer.metrics.conventions import CONVENTIONS
from rankmill.scorer.metrics.metric import METRIC_NAMES
from rankmill.trainer.training_facts import Circumstances, TrainingFacts
from tests import ROOT
from tests.trainer.small_dataset import small_dataset

DOCS = ROOT / "docs"


def named_in(page):
    """What stands in backticks on a page, and the words of it."""
    spans = re.findall(r"`([^`\n]+)`", (DOCS / page).read_text(encoding="utf-8"))
    return {*spans, *(word for span in spans for word in re.findall(r"[\w.]+", span))}


def test_every_fact_of_a_version():
    facts = {each.name for kind in (TrainingFacts, Circumstances) for each in fields(kind)}
    assert facts - named_in("formats/version-facts.md") == set()


def test_every_file_column_and_key_of_a_dataset(tmp_path):
    dataset = small_dataset(tmp_path, queries=20)
    named = named_in("formats/dataset.md")
    for kind in ("features", "_queries", "_statistics"):
        columns = set(pq.read_schema(next((dataset.path / kind).iterdir())).names) - set(dataset.feature_names)
        assert columns - named == set(), kind
    keys = set(json.loads((dataset.path / "_manifest.json").read_text()))
    reported = (DOCS / "formats" / "dataset.md").read_text(encoding="utf-8")
    assert {key for key in keys - named if not re.search(rf"\b{key.split('_')[-1]}\b", reported)} == set()
    for place in dataset.path.iterdir():
        assert place.name in reported


def test_every_suffix_of_input():
    assert set(files.SUFFIXES) - {""} - named_in("formats/input.md") == set()


def test_every_metric_and_convention():
    named = named_in("metrics.md")
    assert set(METRIC_NAMES) - named == set()
    assert set(CONVENTIONS) - named == set()
