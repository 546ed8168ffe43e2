"""One reader per file format; all of them yield the same batches of rows."""
