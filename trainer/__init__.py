"""Boosted trees for ranking: from binned rows to a forest."""
