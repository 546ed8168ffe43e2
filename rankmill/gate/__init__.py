"""The gate of an alias: decide whether a candidate may replace the current version."""
