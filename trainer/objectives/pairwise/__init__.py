"""Losses of pairs of documents, one file each, and what they share."""
