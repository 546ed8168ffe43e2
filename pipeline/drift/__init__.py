"""How far the features of a dataset are from those of a former one, and whether chance alone would do that."""
