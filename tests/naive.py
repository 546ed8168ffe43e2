"""Slow, obvious twins of the kernels: they say what is right."""
