"""Every width the trainer uses, and why."""

from __future__ import annotations

import numpy as np

BIN = np.uint8  # 0 is "missing", 1..255 are value bins
WORD = np.uint64  # eight bins of one row, read by one load
PACKED = np.int64  # gradient in the high, curvature in the low 32 bits: one add a (row, feature)
ROW = np.int32  # row numbers inside one training set
SCORE = np.float64  # scores, gradients before rounding, leaf values: bits must not depend on the order of sums
EDGE = np.float32  # bin edges, so that every exported threshold compares exactly

BINS_A_FEATURE = 256  # stride of one feature in a histogram; a bin is one byte
MOST_ROWS = 2**30  # beyond, the mean |gradient| would have less than a step of a packed sum
BLOCK_WIDTH = 16  # features that share a block: 16 histograms of 2 KiB stay in a 32 KiB L1 cache
