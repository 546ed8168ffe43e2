"""A dataset on disk: its manifest, its shards, how it is published and read."""
