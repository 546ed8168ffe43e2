"""rankmill: learning to rank with gradient-boosted trees, as a pipeline."""
