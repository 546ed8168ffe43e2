"""Losses of single documents, one file each, and shared code."""
