"""The gate before an alias: is a candidate fit to take the place of the version that the alias means now."""
