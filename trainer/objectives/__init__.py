"""Losses that the booster can follow, one file each."""
