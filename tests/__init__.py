"""Tests: a folder for each folder of sources, with the same name."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
