"""Compiled functions that every room may use, and the cache that keeps compiled kernels between processes."""
