"""What users import: Ranker, BinnedDataset, and how arrays and frames become rows."""
