"""One tree from gradients and curvatures."""
