"""Build a dataset: first pass, second pass, pairs and manifest."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

from rankmill.foundation.cures import NAME, spelled_with
from rankmill.foundation.errors import DataRejected
from rankmill.foundation.options import spelled
from rankmill.foundation.process_memory import beside_bytes, release_freed
from rankmill.pipeline.bins.vocabulary import check_number, summed
from rankmill.pipeline.dataset.manifest import (
    CATEGORIES,
    FEATURES,
    JUDGMENT_REJECTS_NAME,
    PAIR_REJECTS_NAME,
    REJECTS_NAME,
    SPLITS,
    CategorySet,
)
from rankmill.pipeline.group.bucket_files import BucketFiles
from rankmill.pipeline.group.bucket_rows import RowSpill, spilled_schema
from rankmill.pipeline.group.query_spill import QuerySpill
from rankmill.pipeline.group.settled_bucket import Layout
from rankmill.pipeline.group.shard_writer import keep_table, share_of, write_shards
from rankmill.pipeline.ingest.collect_rows import RowFacts, collect_rows
from rankmill.pipeline.ingest.manifest_builder import described, pair_set, source_files
from rankmill.pipeline.ingest.read_rows import require_rows
from rankmill.pipeline.judgments.judgment_counts import Tally
from rankmill.pipeline.judgments.judgment_files import judgment_set, read_judgments, spilled_columns
from rankmill.pipeline.pairs.pair_files import read_pairs
from rankmill.pipeline.pairs.pair_join import SPILLED, join_pairs
from rankmill.pipeline.read.column_roles import TYPES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rankmill.pipeline.bins.vocabulary import Tally as Tallied
    from rankmill.pipeline.dataset.manifest import GradesFrom, Manifest, PairShard, SourceFile
    from rankmill.pipeline.group.shard_writer import ShardSummary
    from rankmill.pipeline.ingest.inputs import Inputs
    from rankmill.pipeline.ingest_report import Stage
    from rankmill.pipeline.judgments.aggregate import Settling
    from rankmill.pipeline.judgments.judgment_files import JudgmentFile
    from rankmill.pipeline.options import IngestOptions
    from rankmill.pipeline.pairs.pair_files import PairFile
    from rankmill.pipeline.read.batch import Quarantine, Reject, Source


class Building:
    """One ingest: call :meth:`read`, :meth:`write` and :meth:`join` in this order, then :meth:`manifest` and :meth:`rejects`.

    Attributes
    ----------
    staged
        Folder with the files of the dataset, without its manifest.
    files
        The manifest's entries of the files of rows, once :meth:`manifest` was called.
    """

    keeps_judgments = False  # in their spill, once they were used

    def __init__(
        self,
        inputs: Inputs,
        options: IngestOptions,
        quarantine: Quarantine,
        staging: Path,
        progress: Callable[[Stage, int, int], None] | None,
    ) -> None:
        """Begin in the folder ``staging``; ``progress`` is called with the stage, the amount done and the total."""
        self._inputs = inputs
        self._options = options
        self._quarantine = quarantine
        self._staging = staging
        self._progress = progress
        self._advance = _advance(inputs, progress)
        self.staged = staging / "dataset"
        self.staged.mkdir()
        self.files: list[SourceFile] = []

        self._spill: RowSpill
        self._facts = RowFacts.of(
            options, len(inputs.categorical), labels_are_grades=not inputs.graded and "label" in inputs.extras
        )
        self._settling: Settling | None = None
        self._pair_spill = QuerySpill(staging / "pairs-spill", options.buckets, SPILLED)
        self._rejected_rows = self._rejected_judgments = 0

        self._tallies: list[Tallied] = []  # of each categorical feature
        self._counting = threading.Lock()
        self._layout: Layout
        self._summaries: list[ShardSummary] = []
        self._judged = Tally()
        self._pair_shards: list[PairShard] = []

    @property
    def spilled_columns(self) -> tuple[str, ...]:
        """The optional columns and goals of the rows."""
        return (*self._inputs.extras, *self._inputs.goals)

    def read(self) -> None:
        """Read all files and spill rows, judgments and pairs by hash bucket of their query."""
        inputs, options = self._inputs, self._options
        self._spill, rows = self._read_rows()
        require_rows(inputs.sources, rows)
        release_freed()
        self._rejected_rows = len(self._quarantine.rejects)
        first = len(inputs.sources)
        self._settling = self._read_judgments(lambda number, at: self._advance(first + number, at))
        self._rejected_judgments = len(self._quarantine.rejects) - self._rejected_rows
        first += len(inputs.judgments)
        read_pairs(
            inputs.pairs, self._pair_spill, options.block_size, lambda number, at: self._advance(first + number, at)
        )

    def _read_rows(self) -> tuple[RowSpill, list[int]]:
        """Read the files of rows; return the spilled rows, and the number of those of each file."""
        inputs, options = self._inputs, self._options
        spill = RowSpill(BucketFiles(self._staging / "spill", options.buckets, spilled_schema(self.spilled_columns)))
        rows = collect_rows(
            inputs.sources,
            inputs.columns,
            spill,
            self._facts,
            self._quarantine,
            options,
            threads=options.allowed_threads,
            advance=self._advance,
        )
        return spill, rows

    def write(self) -> None:
        """Write the shards of all buckets with new rows; DataRejected if no row of the dataset has a grade."""
        inputs, options = self._inputs, self._options
        features = inputs.columns or inputs.sources[0].names(self._spill.width)
        if not features:
            raise DataRejected(f"{inputs.rows[0].path}: no row has a feature")
        names = [str(file.path) for file in inputs.rows]
        splits = [SPLITS.index(file.split) for file in inputs.rows]
        rows_of_bucket = self._spill.rows
        settling = self._settling
        extras = inputs.extras
        if settling is not None:
            extras = tuple(name for name in TYPES if name in {*extras, *settling.extras})
        self._layout = Layout(
            features=features,
            absent=options.read.absent_value,
            rule=options.rule,
            source_split=splits,
            source_name=names,
            extras=extras,
            goals=inputs.goals,
            labels_are_grades=self._facts.labels_are_grades and not inputs.judgments,
            settling=settling,
            categorical=self._categorical(features),
        )
        self._summaries = self._write_shards(rows_of_bucket, self._written(int(rows_of_bucket.sum())))
        self._judged = sum((summary.judgments_tally for summary in self._summaries), Tally())
        if settling is not None:
            self._judged += settling.left_over({summary.bucket for summary in self._summaries})
        if not self._shards():
            raise DataRejected(_nothing_judged(self._judged))

    def _write_shards(
        self,
        rows_of_bucket: npt.NDArray[np.int64],
        done: Callable[[int], None],
    ) -> list[ShardSummary]:
        """Write all buckets with rows; ``done`` as of `write_shards`."""
        share = share_of(
            self._options.memory - beside_bytes() - self._facts.vocabulary.bytes_held,
            self._options.allowed_threads,
            self._layout,
            rows_of_bucket,
            self._spill.id_bytes,
        )
        return write_shards(
            self._spill,
            self._layout,
            self.staged,
            np.flatnonzero(rows_of_bucket).tolist(),
            threads=share.threads,
            memory=share.values,
            done=done,
            count=self._count,
        )

    def join(self) -> None:
        """Join the pairs to the rows of their documents."""
        shards = self._shards()
        self._pair_shards = join_pairs(
            self._pair_spill,
            lambda bucket: (
                pq.read_table(shards[bucket], columns=["qid", "doc_id"], partitioning=None)
                if bucket in shards
                else None
            ),
            self._inputs.pairs,
            self._quarantine,
            self.staged,
        )

    def manifest(self, digests: Mapping[Path, tuple[int, str]]) -> Manifest:
        """Return the manifest of the dataset; ``digests`` has the size and the sha256 of every input file."""
        inputs, options = self._inputs, self._options
        self.files = inputs.row_files(digests, by_split=options.rule is None)
        grades_from: GradesFrom = "grade" if inputs.graded else "nothing"
        if inputs.judgments:
            grades_from = "qrels"
        elif self._facts.labels_are_grades:
            grades_from = "label"
        found = described(self._layout, self._summaries, self.files, options, self._rejected_rows, grades_from)
        if inputs.pairs:
            files = source_files(inputs.pairs, digests)
            rejected = len(self._quarantine.rejects) - self._rejected_rows - self._rejected_judgments
            pairs = pair_set(self._pair_shards, files, rejected)
            found = found.model_copy(update={"pairs": pairs})
        if inputs.judgments:
            files = source_files(inputs.judgments, digests)
            judgments = judgment_set(self._judged, files, self._rejected_judgments)
            found = found.model_copy(update={"judgments": judgments})
        if self._layout.categorical:
            found = found.model_copy(update={"categories": self._categories()})
        return found

    def rejects(self) -> dict[str, list[Reject]]:
        """Return the malformed rows, judgments and pairs, by name of the file that will list them."""
        ends = (self._rejected_rows, self._rejected_rows + self._rejected_judgments)
        found = self._quarantine.rejects
        rows, judgments, pairs = found[: ends[0]], found[ends[0] : ends[1]], found[ends[1] :]
        return {REJECTS_NAME: rows, JUDGMENT_REJECTS_NAME: judgments, PAIR_REJECTS_NAME: pairs}

    def _categorical(self, features: tuple[str, ...]) -> tuple[int, ...]:
        """Return the numbers of the categorical ``features``; DataRejected if one of them is missing."""
        for name in sorted(self._inputs.categorical):
            if name not in features:
                raise DataRejected(
                    f"{self._inputs.rows[0].path}: no row has the feature {name!r}, which {spelled('categorical')} names;"
                    f" the last one is {features[-1]!r}"
                )
        return tuple(number for number, name in enumerate(features) if name in self._inputs.categorical)

    def _categories(self) -> CategorySet:
        """Write the vocabulary, and return the manifest's entry."""
        features = [self._layout.features[number] for number in self._layout.categorical]
        tallies = {name: [self._tallies[place]] if self._tallies else [] for place, name in enumerate(features)}
        self._facts.vocabulary.count(tallies)
        digest, size = keep_table(
            self._facts.vocabulary.table(features), self._staging / "categories.parquet", self.staged / CATEGORIES
        )
        return CategorySet(features=features, digest=digest, size=size)

    def _count(self, tallies: Sequence[Tallied]) -> None:
        """Add the rows of a shard with each category, by categorical feature; called by several threads."""
        with self._counting:
            pairs = zip(self._tallies, tallies, strict=True) if self._tallies else ((tally,) for tally in tallies)
            self._tallies = [summed(pair) for pair in pairs]
            for number, (codes, _) in zip(self._layout.categorical, self._tallies, strict=True):
                check_number(self._layout.features[number], len(codes))

    def _read_judgments(self, done: Callable[[int, int], None]) -> Settling | None:
        """Read separate judgments; return how grades are determined, None if by each row alone."""
        sources, options = self._inputs.judgments, self._options
        if not sources and options.aggregate is None:
            return None
        from rankmill.pipeline.judgments.aggregate import Settling

        spill = None
        if sources:
            schema = spilled_columns(sources)
            spill = QuerySpill(self._staging / "judgments-spill", options.buckets, schema, keep=self.keeps_judgments)
            read_judgments(sources, spill, options.block_size, done)
            release_freed()
        return Settling(
            aggregate=options.aggregate,
            judgments=spill,
            unjudged=options.read.unjudged,
            goals=self._inputs.goals,
            labels_are_grades=bool(sources) and all(source.labels_are_grades for source in sources),
        )

    def _written(self, total: int) -> Callable[[int], None]:
        """Return a callback for the number of rows written of each shard."""
        done = 0
        adding = threading.Lock()

        def written(rows: int) -> None:
            nonlocal done
            with adding:
                done += rows
                if self._progress is not None:
                    self._progress("writing", done, total)

        return written

    def _shards(self) -> dict[int, Path]:
        """Return the files with the rows of the dataset, by bucket."""
        return {
            summary.bucket: self.staged / FEATURES / f"{summary.shard.features}.parquet"
            for summary in self._summaries
            if summary.shard is not None
        }


def _advance(inputs: Inputs, progress: Callable[[Stage, int, int], None] | None) -> Callable[[int, int], None]:
    """Return a callback that reports to ``progress`` the bytes read of a file, given by number, plus all files before it."""
    sources: list[Source | JudgmentFile | PairFile] = [*inputs.sources, *inputs.judgments, *inputs.pairs]
    sizes = [source.path.stat().st_size for source in sources]
    farthest = 0

    def advance(number: int, position: int) -> None:
        nonlocal farthest
        if progress is not None:
            farthest = max(farthest, sum(sizes[:number]) + position)  # threads may finish out of order
            progress("reading", farthest, sum(sizes))

    return advance


def _nothing_judged(judgments: Tally) -> str:
    if not judgments.judgments:
        return (
            f"no row has a grade, so there is nothing to learn; give judgments with {spelled('qrels')}"
            f" FILE, or pairs with {spelled('pairs')} FILE and {spelled('unjudged')} zero"
        )
    if not judgments.rows_with_id:
        return (
            f"no row has a grade: {judgments.judgments:,} judgments name documents by (qid, doc_id),"
            " but no row has a document id; add a column doc_id, or name the column with"
            f" {spelled_with('columns', {'doc_id': NAME})} (in LETOR text: #docid = X)"
        )
    alike = "; check that both spell the ids alike" if judgments.without_row == judgments.judgments else ""
    return (
        f"no row has a grade: of {judgments.judgments:,} judgments {judgments.without_row:,} name"
        f" documents (qid, doc_id) that have no row{alike}"
    )
