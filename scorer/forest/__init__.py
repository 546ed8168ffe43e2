"""Trees: the trained forest, its layout for prediction, and the link from its outputs to a score."""
