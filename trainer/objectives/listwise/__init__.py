"""Losses of whole lists, one file each, and what they share."""
