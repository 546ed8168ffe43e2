"""What the files of a work folder are called, by those who write them and those who read them.  Loads nothing."""

from __future__ import annotations

EVALUATION = "evaluation.json"
GATE = "gate.json"
DRIFT = "drift.json"
TRAINING = "model/training.json"
STAGES = "stages"
REPORT = "report"
LAST_RUN, LAST_SUCCESS = "last_run.json", "last_success.json"
