"""Training data: rows, bins, and what is read of a dataset."""
