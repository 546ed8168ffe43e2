"""The report of a version: facts as one record, and a page and Markdown made of it."""
