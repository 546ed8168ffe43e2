"""Hyperparameter search: search space, trials and results."""
