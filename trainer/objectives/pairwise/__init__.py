"""Losses of pairs of documents, one file each, and shared code."""
