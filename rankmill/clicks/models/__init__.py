"""Models of what users examine and click, fitted to counts of a log."""
