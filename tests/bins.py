"""The bins of a split of a dataset, row by row."""

import numpy as np

from rankmill.trainer.data.layout import BlockedBins


def bins_of(dataset, split, digest=None):
    """Return the bins (n_rows, n_features) of ``split``; ``digest`` is that of the edges (None: the newest)."""
    blocked = BlockedBins(dataset.bin_words(split, digest), dataset.binspec(digest).n_bins)
    return np.concatenate([np.empty((0, blocked.n_features), np.uint8), *blocked.batches(np.arange(blocked.n_rows))])
