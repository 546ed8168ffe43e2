"""Nets that score documents: their inputs, layers, scores and files."""
