"""The log of a model and what it amounts to: changes, entries, the fold, and what an alias may mean next."""
