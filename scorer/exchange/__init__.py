"""Forests to and from the model files of other tools.

Each module documents how the tool of its format compares and adds.

Ours: a value goes left if ``x <= cut``, both float32; a missing one as each node says; scores are float64 sums in the
order of the trees.  ``rankmill.scorer.exchange.formats`` finds the file of a format; docs/coming-from.md has all of it
in tables.
"""
