"""Losses of single documents, one file each, and what they share."""
