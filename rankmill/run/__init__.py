"""Runs of a configuration: its stages, each executed once for the same input.

This module has the names of the files in a work folder.
"""

from __future__ import annotations

EVALUATION = "evaluation.json"
GATE = "gate.json"
DRIFT = "drift.json"
TRAINING = "model/training.json"
STAGES = "stages"
CACHE = "cache"  # objects of buckets
REPORT = "report"
CLICKS = "clicks"  # a folder with the next ones
DESCRIPTION, CLICK_MODEL = "describe.json", "click-model.json"
JUDGMENTS, NAIVE_JUDGMENTS, PEOPLE = "judgments.parquet", "naive.parquet", "people.parquet"
LAST_RUN, LAST_SUCCESS = "last_run.json", "last_success.json"
