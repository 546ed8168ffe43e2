"""Ranking metrics, their conventions and their kernels."""
