"""The registry in words and tables, for a person."""
