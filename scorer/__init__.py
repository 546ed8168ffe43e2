"""Trained forests: scoring, re-ranking, evaluation."""
