"""Bins of columns that do not fit into memory: a sample of rows, and what is counted exactly besides."""
