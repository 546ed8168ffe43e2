"""Grow one tree from gradients and hessians."""
