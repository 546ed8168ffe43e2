"""JSON lines: one object a line is one row."""
