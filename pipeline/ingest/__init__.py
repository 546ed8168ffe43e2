"""From judgments in files to a dataset: :func:`ingest`."""

from rankmill.pipeline.ingest.options import IngestOptions
from rankmill.pipeline.ingest.running import ingest

__all__ = ["IngestOptions", "ingest"]
