"""Charts as inline SVG: no script, colours from the page's style sheet, words for those who do not see them.

Drawn here and not by a library: docs/report.md has the figures.
"""
