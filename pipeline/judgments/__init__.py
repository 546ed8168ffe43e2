"""Judgments from separate files: read, combined per document, and joined to the rows."""
