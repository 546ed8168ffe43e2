"""From judgments in files to a dataset: :func:`ingest`."""

from pipeline.ingest.options import IngestOptions
from pipeline.ingest.running import ingest

__all__ = ["IngestOptions", "ingest"]
