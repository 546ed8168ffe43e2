"""Generated judgments in memory, and judgments whose documents are in another order."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt

from rankmill.pipeline.options import SynthParameters
from rankmill.pipeline.synth import generate

Part = tuple[npt.NDArray[np.float32], npt.NDArray[np.int32], npt.NDArray[np.int64]]  # features, grades, starts
NOISE = SynthParameters().noise


def judgments(seed: int, queries: int, documents: int, features: int, noise: float = NOISE) -> Part:
    asked = SynthParameters(queries=queries, documents_per_query=documents, features=features, seed=seed, noise=noise)
    blocks = list(generate(asked))
    sizes = np.concatenate([np.diff(block.starts) for block in blocks])
    starts = np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)
    x = np.concatenate([block.values.T for block in blocks])
    return np.ascontiguousarray(x), np.concatenate([block.grades for block in blocks]), starts


def reordered(part: Part, seed: int) -> Part:
    """Return the part with the documents of every query in another order."""
    x, grades, starts = part
    rng = np.random.default_rng(seed)
    order = np.concatenate([a + rng.permutation(b - a) for a, b in pairwise(starts)])
    return x[order], grades[order], starts
