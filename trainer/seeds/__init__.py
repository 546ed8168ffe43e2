"""One training with several seeds: which of the forests is taken, or their average, and how much chance there is in them."""
