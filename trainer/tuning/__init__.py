"""Searching for parameters: what is drawn, which trials go on, what came out."""
