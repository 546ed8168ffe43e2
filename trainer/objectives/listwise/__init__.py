"""Losses of whole lists, one file each, and shared code."""
