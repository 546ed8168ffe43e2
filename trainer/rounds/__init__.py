"""Boosting rounds: sampling, stopping, measuring, checkpoints and results."""
