"""Compiled functions that every package may use, and the cache that keeps compiled kernels between processes."""
