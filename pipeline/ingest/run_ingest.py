"""From judgments in files to a dataset: read, spill by query, sort, write, join pairs, publish.

Peak memory: see :mod:`rankmill.pipeline.memory_plans`; after the two passes, the ids and the pairs of one bucket.  Disk: the spilled
rows, four bytes per value, and the dataset.  The bytes of the dataset do not depend on the memory limit, the block size or the
number of threads.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from rankmill.foundation.cluster.workers import open_cluster
from rankmill.foundation.process_memory import return_large_arrays
from rankmill.foundation.storage.staging import staging_folder
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.pipeline.dataset.digests import SourceDigests
from rankmill.pipeline.dataset.publish import check_destination, publish_dataset
from rankmill.pipeline.ingest.build_dataset import build_dataset
from rankmill.pipeline.ingest.inputs import check_for_cluster, open_inputs
from rankmill.pipeline.ingest_report import IngestReport
from rankmill.pipeline.options import IngestOptions
from rankmill.pipeline.read.batch import Quarantine
from rankmill.pipeline.read.columns import guesses_line, guesses_of, index_line
from rankmill.pipeline.read.delimited import delimiter_lines
from rankmill.pipeline.read.rejects import listing_rejects
from rankmill.pipeline.statistics.feature_statistics import statistics_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from rankmill.foundation.cluster.workers import Cluster
    from rankmill.pipeline.dataset.manifest import SplitName
    from rankmill.pipeline.ingest.inputs import Given
    from rankmill.pipeline.ingest_report import Stage


def ingest(
    train: Given,
    out: Path,
    *,
    valid: Given = (),
    test: Given = (),
    pairs: Given = (),
    qrels: Given = (),
    options: IngestOptions | None = None,
    cluster: Cluster | None = None,
    progress: Callable[[Stage, int, int], None] | None = None,
    say: Callable[[str], None] | None = None,
) -> IngestReport:
    """Build the dataset ``out`` from judgments in files and return a report.

    Parameters
    ----------
    train, valid, test
        The files of each split, folders of them and patterns (see :func:`rankmill.pipeline.read.files.find_files`), in any order.
        With ``options.rule`` all files are given as ``train``.
    pairs
        Files with preference pairs of these judgments.
    qrels
        Files with judgments, which replace the grades of the rows.
    out
        The folder to create.
    options
        See :class:`IngestOptions`.
    cluster
        An open cluster, instead of ``options.cluster``.
    progress
        Called from time to time with ``"reading"``, bytes read and total bytes, later with ``"writing"``, documents written and total.
    say
        Called with a line about inferred columns, before the data are read, and about each lost worker of a cluster.

    Raises
    ------
    InputError
        A file is missing, options contradict each other, or ``out`` exists.
    DataRejected
        The data are invalid; nothing was written except, if rejects were allowed, a list of the malformed rows next to ``out``.
    ConflictError
        Too many workers of ``options.cluster`` were lost.
    ClusterUnavailable
        Its scheduler does not answer, or has no workers.
    """
    started = time.perf_counter()
    return_large_arrays()
    options = IngestOptions() if options is None else options
    check_destination(out, overwrite=options.overwrite)
    quarantine = Quarantine(options.max_rejects)
    rows: dict[SplitName, Given] = {"train": train, "valid": valid, "test": test}
    inputs = open_inputs(rows, qrels, pairs, options, quarantine, say)
    where = options.cluster if cluster is None else cluster
    if where is not None:
        check_for_cluster(inputs)
    of_judgments = guesses_of(source.table for source in inputs.judgments)
    for what, guessed in (("", inputs.guessed), ("judgments: ", of_judgments)):
        if guessed and say is not None:
            say(what + guesses_line(guessed))
    if inputs.index and say is not None:
        say(index_line(inputs.index))
    if say is not None:
        for line in delimiter_lines(inputs.sources):
            say(line)
    with (
        staging_folder(out) as staging,
        ExitStack() as stack,
        SourceDigests(inputs.paths) as digests,
        listing_rejects(out, quarantine),
    ):
        if where is not None:
            cluster = stack.enter_context(open_cluster(where, say or (lambda _: None)))
        manifest, files = build_dataset(inputs, options, quarantine, staging, digests.results, progress, cluster)
        publish_dataset(staging / "dataset", out, manifest, overwrite=options.overwrite)
    made = Dataset(out, manifest)
    return IngestReport(
        path=out,
        manifest=manifest,
        seconds=time.perf_counter() - started,
        read=files,
        columns_guessed=inputs.guessed,
        statistics=statistics_of(made),
        vocabulary=made.vocabulary,
        empty_files=len(inputs.empty),
    )
