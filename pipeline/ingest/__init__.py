"""From judgments in files to a dataset: :func:`ingest`."""

from rankmill.pipeline.ingest.running import ingest
from rankmill.pipeline.options import IngestOptions

__all__ = ["IngestOptions", "ingest"]
