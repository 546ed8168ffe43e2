"""A dataset with two goals that contradict each other, for the tests of sweeps."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rankmill.pipeline.bins.binning import bin_dataset
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.pipeline.ingest import ingest
from rankmill.pipeline.options import IngestOptions, ReadOptions

N_QUERIES, DOCUMENTS = 90, 12


def written(folder, seed=3):
    """Write a table with the grade, the goals ``bought`` and ``fresh``, and four features; return its path.

    The grade rises with x0, ``bought`` falls with it and rises with x1, ``fresh`` rises with x2.
    """
    rng = np.random.default_rng(seed)
    n = N_QUERIES * DOCUMENTS
    x = rng.normal(size=(n, 4)).astype(np.float32)
    noise = 0.3 * rng.normal(size=(3, n))
    columns = {
        "qid": [f"q{k // DOCUMENTS}" for k in range(n)],
        "doc_id": [f"d{k}" for k in range(n)],
        "grade": np.digitize(x[:, 0] + 0.3 * x[:, 2] + noise[0], [0.0, 1.0]),
        "bought": np.digitize(x[:, 1] - x[:, 0] + noise[1], [0.5, 1.5]),
        "fresh": np.digitize(x[:, 2] + noise[2], [1.0]),
        **{f"x{k}": x[:, k] for k in range(4)},
    }
    folder.mkdir(exist_ok=True)
    pq.write_table(pa.table(columns), folder / "rows.parquet")
    return folder / "rows.parquet"


def dataset_with_goals(folder, *goals, split=None):
    """Return a binned dataset of :func:`written` with these goals."""
    options = IngestOptions(
        buckets=3,
        split=split or {"train": 0.5, "valid": 0.3, "test": 0.2},
        read=ReadOptions(goals=goals or ("bought", "fresh"), absent="missing"),
    )
    ingest([written(folder)], folder / "dataset", options=options)
    bin_dataset(Dataset.open(folder / "dataset"), 31)
    return Dataset.open(folder / "dataset")
