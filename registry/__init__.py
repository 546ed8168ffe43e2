"""Versioned model bytes on disk: digests, aliases, history.  Knows nothing of trees."""
