"""Raw judgments into query-grouped, quantile-binned Parquet."""
