"""Trained candidates: by dataset, by seeds, by features, blended or combined, with their facts."""
