"""Tables, read by DuckDB into Arrow."""
