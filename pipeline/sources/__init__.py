"""One reader a file format; all of them hand over the same batches of rows."""
