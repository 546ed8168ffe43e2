"""Statistics of features and drift; the counts are stored in one small file per shard."""
