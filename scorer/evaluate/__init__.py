"""Metrics of a model or of a file of scores, and two systems compared."""
