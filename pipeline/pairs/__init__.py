"""Preference pairs: which of two documents of a query is better, read from files and joined to the rows."""
