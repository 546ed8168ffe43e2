"""From judgments in files to a dataset: :func:`ingest`."""

from pipeline.ingest.building import HIGHEST_LABEL_AS_GRADE
from pipeline.ingest.options import IngestOptions
from pipeline.ingest.running import ingest

__all__ = ["HIGHEST_LABEL_AS_GRADE", "IngestOptions", "ingest"]
