"""From judgments in files to a dataset: :func:`ingest`."""

from rankmill.pipeline.ingest.run_ingest import ingest
from rankmill.pipeline.options import IngestOptions

__all__ = ["IngestOptions", "ingest"]
