"""Runs of a configuration: its stages, each executed once for the same input.

Below are the names of files in a work folder, for those who write them and those who read them.
"""

from __future__ import annotations

EVALUATION = "evaluation.json"
GATE = "gate.json"
DRIFT = "drift.json"
TRAINING = "model/training.json"
STAGES = "stages"
REPORT = "report"
LAST_RUN, LAST_SUCCESS = "last_run.json", "last_success.json"
