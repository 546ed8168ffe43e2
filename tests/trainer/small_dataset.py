"""A small binned dataset with a train, a valid and a test split."""

from rankmill.pipeline.bins.binning import bin_dataset
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.pipeline.ingest import ingest
from rankmill.pipeline.options import IngestOptions, SynthParameters
from rankmill.pipeline.synth import write_synthetic
from tests.trainer.fixed import fixed

SHARES = {"train": 0.6, "valid": 0.2, "test": 0.2}
# draws of queries, so that seeds differ in more than how ties are broken
SMALL = fixed(n_rounds=12, max_leaves=4, learning_rate=0.3, early_stopping_rounds=4, query_fraction=0.6)


def small_dataset(folder, shares=None, queries=100):
    """Write judgments into ``folder``, and a dataset of them; without ``shares`` it has no split."""
    text = folder / "judgments.txt"
    write_synthetic(text, SynthParameters(queries=queries, documents_per_query=8, features=10, seed=5))
    ingest([text], folder / "d", options=IngestOptions(buckets=3, split=(SHARES if shares is None else shares) or None))
    bin_dataset(Dataset.open(folder / "d"), 31)
    return Dataset.open(folder / "d")
