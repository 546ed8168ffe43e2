"""Bins: boundaries from samples of quantiles, rows as bins, and their layout on disk."""
