"""Adding the rows of new files to a dataset that is there: what it must be told, which shards change, what they become."""
