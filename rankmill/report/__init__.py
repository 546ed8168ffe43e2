"""The report of a run: what a person wants to know of a new version, as a page, as JSON and as Markdown."""
