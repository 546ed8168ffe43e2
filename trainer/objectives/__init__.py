"""Objectives of the booster, one file each."""
