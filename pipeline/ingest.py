"""From judgments in files to a dataset: read, spill by query, sort, write, join pairs, publish.

Peak memory: see :mod:`pipeline.memory`; after the two passes the ids and the pairs of one bucket.  Disk: the spilled rows, four
bytes a value, and the dataset.  Neither what is in the bucket nor the memory bound nor the size of the blocks nor the number of
threads shows in what is written.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np

from pipeline.append.base import Base
from pipeline.cores import available_cores
from pipeline.dataset import Dataset
from pipeline.digests import SourceDigests
from pipeline.errors import DataRejected, InputError
from pipeline.group.shards import Layout, write_shards
from pipeline.group.spill import Spill
from pipeline.group.splits import name_of, rule_of
from pipeline.judgments.joining import check_times_and_labels, judgment_set, read_judgments, without_grades
from pipeline.judgments.opening import open_judgments
from pipeline.judgments.rules import check_aggregate
from pipeline.judgments.tally import Tally
from pipeline.manifest import SPLITS, GradeCount, Manifest, Meaning, Repeats, SourceFile, SplitCount, SplitName
from pipeline.memory import check_memory, reading_threads, release_freed, settle_malloc, writing_share
from pipeline.pairs.adding import pair_set, read_ids, read_pairs, sorted_files, source_files
from pipeline.pairs.join import PairSpill, join_pairs
from pipeline.pairs.opening import open_pairs
from pipeline.publish import staging_folder
from pipeline.reading import read_all
from pipeline.rejects import listing_rejects, write_rejects
from pipeline.replace import JUDGMENT_REJECTS_NAME, PAIR_REJECTS_NAME, REJECTS_NAME, check_destination, publish_dataset
from pipeline.report import IngestReport
from pipeline.sources.batch import DEFAULT_BLOCK_BYTES, Quarantine, ReadOptions
from pipeline.sources.columns import check_ignored, guesses_line, guesses_of, tables_disagree
from pipeline.sources.files import find_files
from pipeline.sources.jsonl.source import share_features
from pipeline.sources.letor import check_made_ids, companions_of
from pipeline.sources.opening import open_source
from pipeline.sources.optional import TYPES
from pipeline.statistics.stored import stored_statistics
from pipeline.validate import sources_disagree

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy.typing as npt

    from pipeline.group.shards import ShardSummary
    from pipeline.group.splits import ByTime, SplitRule
    from pipeline.judgments.batch import JudgmentSource
    from pipeline.judgments.rules import Aggregate
    from pipeline.judgments.settle import Settling
    from pipeline.manifest import ColumnName, FoldChoice, GradesFrom
    from pipeline.pairs.batch import PairSource
    from pipeline.sources.batch import RowBatch, Source

MAX_BUCKETS = 4096
HIGHEST_LABEL_AS_GRADE = 31  # whole labels above it are amounts: 2^grade - 1 of them would be all of a sum


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestOptions:
    """How to build a dataset.

    Attributes
    ----------
    format
        ``letor``, ``csv``, ``tsv``, ``parquet``, ``arrow``, ``jsonl``, ``run``; ``auto`` goes by each file's suffix.
    read
        What the input means.
    shares
        Shares of the splits, by hash of the query.
    split_time
        When the splits begin, by the times of ``read.time_column``.
    folds
        One of K folds, by hash of the query.  Without any of these three the splits are the files, as given.
    aggregate
        What several judgments of one document make (see :mod:`pipeline.judgments.rules`); None: rows are kept as they are, and
        files of judgments must not contradict each other.
    max_rejects
        Bad rows, judgments and pairs to put aside before giving up.
    buckets
        Number of shards.  A constant of the dataset: the order of its rows depends on it.
    memory
        Bound in bytes on the memory of the process; a bucket that does not fit is read several times.
    threads
        Threads to use, as far as the memory allows; 0: one for each core.
    block_bytes
        Text parsed at a time by each of them.
    overwrite
        Whether a dataset that is in the way is replaced.
    append
        Whether the rows are added to the dataset that is there, with the same bytes as one ingest of all files.  What it was
        made with holds, and options that differ from it are errors.
    """

    format: str = "auto"
    read: ReadOptions = ReadOptions()  # noqa: RUF009  frozen
    shares: Mapping[str, float] | None = None
    split_time: ByTime | None = None
    folds: FoldChoice | None = None
    aggregate: Aggregate | None = None
    max_rejects: int = 0
    buckets: int = 32
    memory: int = 2 * 10**9
    threads: int = 0
    block_bytes: int = DEFAULT_BLOCK_BYTES
    overwrite: bool = False
    append: bool = False

    def __post_init__(self) -> None:
        if self.rule is not None and self.split_time is not None and self.read.time_column is None:
            raise InputError("--split-time goes by a column of times; name it with --time-column")
        if self.aggregate is not None:
            check_aggregate(self.aggregate)
        if self.max_rejects < 0:
            raise InputError(f"--max-rejects must be 0 or more, got {self.max_rejects}")
        if not 1 <= self.buckets <= MAX_BUCKETS:
            raise InputError(f"--buckets must be in 1..{MAX_BUCKETS}, got {self.buckets}")
        check_memory(self.memory)
        if self.threads < 0:
            raise InputError(f"--threads must be 0 or more, got {self.threads}")
        if not 1 <= self.block_bytes <= 1 << 30:
            raise InputError(f"--block-size must be in 1 byte..1GiB, got {self.block_bytes}")

    @property
    def rule(self) -> SplitRule | None:
        """What says which split a query belongs to; None: the files."""
        return rule_of(self.shares, self.split_time, self.folds)

    @property
    def allowed_threads(self) -> int:
        """How many threads there may be."""
        return self.threads or available_cores()


@dataclass(frozen=True, slots=True)
class _Input:
    path: Path
    split: SplitName


def ingest(
    train: Sequence[str | os.PathLike[str]],
    out: Path,
    *,
    valid: Sequence[str | os.PathLike[str]] = (),
    test: Sequence[str | os.PathLike[str]] = (),
    pairs: Sequence[str | os.PathLike[str]] = (),
    qrels: Sequence[str | os.PathLike[str]] = (),
    options: IngestOptions | None = None,
    progress: Callable[[int, int], None] | None = None,
    say: Callable[[str], None] | None = None,
) -> IngestReport:
    """Build the dataset ``out`` from judgments in files and say what is in it.

    Parameters
    ----------
    train, valid, test
        The files of each split, folders of them and patterns (see :func:`pipeline.sources.files.find_files`), in any order.
        With ``options.rule`` all of them are given as ``train``.
    pairs
        Files with preference pairs of these judgments, likewise.
    qrels
        Files with judgments, which give the rows their grades; the rows' own are not used then.
    out
        The folder to make.
    options
        See :class:`IngestOptions`.
    progress
        Called with (bytes read, bytes in all) now and then.
    say
        Called with a line that a person should see before the data are read: what was guessed of the columns.

    Raises
    ------
    InputError
        A file is missing, options contradict each other, or ``out`` is in the way.
    DataRejected
        The data break a rule; nothing was written, but a list of the bad rows next to ``out`` if some were allowed.
    """
    started = time.perf_counter()
    options = IngestOptions() if options is None else options
    base = Base(out) if options.append else None
    if base is not None:
        base.check_judgments(qrels, options)
        options = base.options(options)
    inputs = _inputs(train, valid, test, options)
    check_destination(out, overwrite=options.overwrite or base is not None)
    settle_malloc()
    quarantine = Quarantine(options.max_rejects)
    read = replace(options.read, ungraded=options.read.ungraded or bool(pairs) or base is not None)
    if base is not None:
        read = replace(read, known_features=frozenset(base.manifest.features))
    if qrels:
        read = without_grades(read, timed=options.split_time is not None)
    sources = [open_source(given.path, options.format, read, quarantine) for given in inputs]
    share_features(sources, () if base is None else base.manifest.features)
    columns = _common_columns(sources, options, read)
    check_made_ids(sources)
    companions = companions_of(sources)
    judgment_files = sorted_files(find_files(qrels), [given.path for given in inputs])
    pair_files = sorted_files(find_files(pairs), [*(given.path for given in inputs), *judgment_files])
    judgment_sources = [open_judgments(path, options.read, quarantine) for path in judgment_files]
    pair_sources: list[PairSource] = [open_pairs(path, quarantine) for path in pair_files]
    if options.aggregate is not None:
        check_times_and_labels(options.aggregate, sources, judgment_sources, options.read.time_column)
    guessed = guesses_of(sources)
    for what, guess in (("", guessed), ("judgments: ", guesses_of(judgment_sources))):
        if guess and say is not None:
            say(what + guesses_line(guess))
    if base is not None:
        base.check_new([*(given.path for given in inputs), *pair_files], companions)
        columns = base.check_columns(sources[0], options)
    with (
        staging_folder(out) as staging,
        SourceDigests(
            [*(given.path for given in inputs), *pair_files, *companions.values(), *judgment_files]
        ) as digests,
        listing_rejects(out, quarantine),
    ):
        extras = tuple(name for name in sources[0].fields if name != "grade")
        spill = Spill(staging / "spill", options.buckets, extras)
        advance = _advance([*sources, *judgment_sources, *pair_sources], progress)
        rows = _Rows(spill, sources[0], options.read.max_grade)
        read_all(
            sources,
            columns,
            rows.add,
            quarantine,
            threads=reading_threads(options.memory, options.allowed_threads, options.block_bytes),
            block_bytes=options.block_bytes,
            advance=advance,
        )
        release_freed()
        rejected_rows = len(quarantine.rejects)
        names = [str(given.path) for given in inputs]
        splits = [SPLITS.index(given.split) for given in inputs]
        features = columns or sources[0].names(max(spill.width, 0 if base is None else len(base.manifest.features)))
        rows_of_bucket, again = spill.rows.copy(), None
        if base is not None:
            rows.labels_are_grades &= base.labels_were_grades()
            there = base.touched(
                np.flatnonzero(spill.rows), features=features, labels_are_grades=rows.labels_are_grades
            )
            again = base.spilling(
                there, spill, len(inputs), features=features, labels_are_grades=rows.labels_are_grades
            )
            for bucket, count in there.items():
                rows_of_bucket[bucket] += count
            names += [str(out)] * len(SPLITS)
            splits += range(len(SPLITS))
        if not features:
            raise DataRejected(f"{inputs[0].path}: no line has a feature")
        settling = _settling(judgment_sources, staging, options, lambda number, at: advance(len(sources) + number, at))
        rejected_judgments = len(quarantine.rejects) - rejected_rows
        if settling is not None and settling.with_label:
            extras = tuple(name for name in TYPES if name in {*extras, "label"})
        layout = Layout(
            features=features,
            absent=options.read.absent_value,
            rule=options.rule,
            source_split=splits,
            source_name=names,
            extras=extras,
            labels_are_grades=rows.labels_are_grades and not judgment_sources,
            settling=settling,
        )
        staged = staging / "dataset"
        staged.mkdir()
        pair_spill = PairSpill(staging / "pairs-spill", options.buckets)
        pairs_from = len(sources) + len(judgment_sources)
        read_pairs(pair_sources, pair_spill, options.block_bytes, lambda number, at: advance(pairs_from + number, at))
        buckets = np.flatnonzero(rows_of_bucket).tolist()
        joined = {*np.flatnonzero(pair_spill.pairs).tolist(), *buckets}
        if base is not None:
            pair_sources.append(base.spill_pairs(joined, pair_spill, len(pair_sources)))
        share = writing_share(
            options.memory,
            options.allowed_threads,
            row_group_bytes=layout.row_group_bytes,
            bucket_rows=int(rows_of_bucket.max()),
            row_bytes=4 * len(features),
            settling_bytes=0 if settling is None else settling.bytes_held(rows_of_bucket),
        )
        summaries = write_shards(
            spill, layout, staged, buckets, threads=share.threads, memory=share.values, before=again
        )
        shard_of = {} if base is None else {s.bucket: base.dataset.features_path(s) for s in base.manifest.shards}
        shard_of |= {
            summary.bucket: staged / "features" / f"{summary.shard.features}.parquet"
            for summary in summaries
            if summary.shard is not None
        }
        judged = sum((summary.judgments_tally for summary in summaries), Tally())
        if settling is not None:
            judged += settling.left_over({summary.bucket for summary in summaries})
        if not shard_of:
            raise DataRejected(_nothing_judged(judged))
        pair_shards = join_pairs(
            pair_spill,
            lambda bucket: read_ids(shard_of[bucket]) if bucket in shard_of else None,
            pair_sources,
            quarantine,
            staged,
        )
        found = digests.results()
        pairs_end = len(inputs) + len(pair_files)
        sizes_end = pairs_end + len(companions)
        sizes = {path: sha256 for path, (_, sha256) in zip(companions, found[pairs_end:sizes_end], strict=True)}
        files = [
            SourceFile(
                name=given.path.name,
                size=size,
                sha256=sha256,
                split=None if options.rule else given.split,
                sizes=sizes.get(given.path),
            )
            for given, (size, sha256) in zip(inputs, found[: len(inputs)], strict=True)
        ]
        grades_from: GradesFrom = "grade" if "grade" in sources[0].fields else "nothing"
        if judgment_files:
            grades_from = "qrels"
        elif rows.labels_are_grades:
            grades_from = "label"
        rows_and_judgments = rejected_rows + rejected_judgments
        row_rejects, pair_rejects = quarantine.rejects[:rejected_rows], quarantine.rejects[rows_and_judgments:]
        manifest = _manifest(
            features, cast("Sequence[ColumnName]", extras), summaries, files, options, rejected_rows, grades_from
        )
        if pair_files:
            described = pair_set(
                pair_shards, source_files(pair_files, found[len(inputs) : pairs_end]), len(pair_rejects)
            )
            manifest = manifest.model_copy(update={"pairs": described})
        if judgment_files:
            given_judgments = judgment_set(judged, source_files(judgment_files, found[sizes_end:]), rejected_judgments)
            manifest = manifest.model_copy(update={"judgments": given_judgments})
        if base is not None:
            manifest = base.extended(manifest, pair_shards, joined)
            row_rejects, pair_rejects = base.with_rejects(row_rejects, pair_rejects)
        for name, rejects in (
            (REJECTS_NAME, row_rejects),
            (JUDGMENT_REJECTS_NAME, quarantine.rejects[rejected_rows:rows_and_judgments]),
            (PAIR_REJECTS_NAME, pair_rejects),
        ):
            if rejects:
                write_rejects(staged / name, rejects)
        publish_dataset(
            staged,
            out,
            manifest,
            overwrite=options.overwrite or base is not None,
            grown_from=None if base is None else base.manifest,
        )
    return IngestReport(
        path=out,
        manifest=manifest,
        seconds=time.perf_counter() - started,
        added=None if base is None else manifest.rows - base.manifest.rows,
        read=files,
        columns_guessed=guessed,
        statistics=stored_statistics(Dataset(out, manifest)),
    )


def _inputs(
    train: Sequence[str | os.PathLike[str]],
    valid: Sequence[str | os.PathLike[str]],
    test: Sequence[str | os.PathLike[str]],
    options: IngestOptions,
) -> list[_Input]:
    """Return the input files in an order that does not depend on how they were given."""
    if options.rule is not None and (valid or test):
        raise InputError(
            f"{name_of(options.rule)} draws the splits by query; it cannot be combined with --valid or --test files"
        )
    if not (train or (options.append and (valid or test))):
        raise InputError("no input files")
    named = zip(SPLITS, (train, valid, test), strict=True)
    inputs = [_Input(path, split) for split, paths in named for path in find_files(paths)]
    seen: dict[Path, SplitName] = {}
    for given in inputs:
        count = len(seen)
        before = seen.setdefault(given.path.resolve(), given.split)
        if len(seen) == count:
            roles = "" if before == given.split else f", for {before} and for {given.split}"
            raise InputError(f"{given.path}: is given twice{roles}")
    return sorted(inputs, key=lambda given: (given.path.name, os.fspath(given.path)))


def _common_columns(sources: Sequence[Source], options: IngestOptions, read: ReadOptions) -> tuple[str, ...] | None:
    """Return the features' names if the files name them (their order is that of the first), None for LETOR text."""
    first = sources[0]
    for other in sources[1:]:
        if (first.columns is None) != (other.columns is None):
            raise InputError(
                f"{first.path} and {other.path}: text with numbered features cannot be mixed with tables with named ones"
            )
        if first.columns is not None and other.columns is not None:
            complaint = sources_disagree(first.columns, str(first.path), other.columns, str(other.path))
            complaint = complaint or sources_disagree(
                first.fields, str(first.path), other.fields, str(other.path), "columns besides the features"
            )
            if not complaint and first.table is not None and other.table is not None:
                complaint = tables_disagree(first.table, str(first.path), other.table, str(other.path))
            if complaint:
                raise DataRejected(complaint)
    tables = [source.table for source in sources if source.table is not None]
    if tables:
        check_ignored(options.read.ignore, tables)
    for option, given in (("--columns", options.read.columns), ("--ignore", options.read.ignore)):
        if given and not tables:
            raise InputError(f"{option} is for tables; {first.path} is LETOR text, whose columns have no names")
    if first.columns is None and read.time_column is not None and not read.time_optional:
        raise InputError(f"--time-column is for tables; {first.path} is LETOR text, whose columns have no names")
    if first.columns is not None and options.read.n_features is not None:
        raise InputError(f"--n-features is for LETOR text; {first.path} names its features")
    if first.columns is not None and options.read.labels != "grade":
        raise InputError(
            f"--labels is for LETOR text; {first.path} names its columns: labels go into one called 'label'"
        )
    return first.columns


def _settling(
    sources: Sequence[JudgmentSource], staging: Path, options: IngestOptions, done: Callable[[int, int], None]
) -> Settling | None:
    """Read judgments from files of their own; returns where grades come from, None for the rows alone."""
    if not sources and options.aggregate is None:
        return None
    from pipeline.judgments.settle import Settling
    from pipeline.judgments.spill import JudgmentSpill

    spill = JudgmentSpill(staging / "judgments-spill", options.buckets) if sources else None
    if spill is not None:
        read_judgments(sources, spill, options.block_bytes, done)
        release_freed()
    return Settling(aggregate=options.aggregate, judgments=spill, unjudged=options.read.unjudged)


def _nothing_judged(judgments: Tally) -> str:
    if not judgments.judgments:
        return (
            "no row has a grade: there is nothing to learn from; --qrels FILE names judgments, and with --pairs FILE the rows"
            " may all have grade 0: --unjudged zero"
        )
    alike = "; are the ids written alike in both?" if judgments.without_row == judgments.judgments else ""
    return (
        f"no row has a grade: of {judgments.judgments:,} judgments {judgments.without_row:,} are of documents (qid, doc_id)"
        f" that have no row{alike}"
    )


class _Rows:
    """What takes the rows that are read: they are spilled, and it is seen whether their labels can be grades."""

    def __init__(self, spill: Spill, source: Source, max_grade: int | None) -> None:
        self._spill = spill
        self._highest = HIGHEST_LABEL_AS_GRADE if max_grade is None else max_grade
        self.labels_are_grades = "grade" not in source.fields and "label" in source.fields

    def add(self, batch: RowBatch, source: int) -> None:
        """Take the rows of source number ``source``; several threads may call it."""
        if self.labels_are_grades and not _can_be_grades(batch.extras["label"], self._highest).all():
            self.labels_are_grades = False
        self._spill.add(batch, source)


def _advance(
    sources: Sequence[Source | JudgmentSource | PairSource], progress: Callable[[int, int], None] | None
) -> Callable[[int, int], None]:
    """Return what tells ``progress`` that so many bytes of a source, given by number, are read and all before it."""
    sizes = [source.path.stat().st_size for source in sources]
    farthest = 0

    def advance(number: int, position: int) -> None:
        nonlocal farthest
        if progress is not None:
            farthest = max(farthest, sum(sizes[:number]) + position)  # threads finish out of order
            progress(farthest, sum(sizes))

    return advance


def _can_be_grades(label: npt.NDArray[np.float64], highest: int) -> npt.NDArray[np.bool_]:
    fitting: npt.NDArray[np.bool_] = (label >= 0) & (label <= highest) & (label == np.floor(label))
    return fitting


def _manifest(
    features: tuple[str, ...],
    columns: Sequence[ColumnName],
    summaries: Sequence[ShardSummary],
    files: list[SourceFile],
    options: IngestOptions,
    rejected: int,
    grades_from: GradesFrom,
) -> Manifest:
    grades: Counter[int] = sum((summary.grades for summary in summaries), Counter())
    queries: Counter[str] = sum((summary.queries for summary in summaries), Counter())
    rows: Counter[str] = sum((summary.rows for summary in summaries), Counter())
    tally = sum((summary.rows_tally for summary in summaries), Tally())
    return Manifest(
        format=1,
        features=list(features),
        max_grade=max(grades, default=0) if options.read.max_grade is None else options.read.max_grade,
        buckets=options.buckets,
        meaning=Meaning(
            absent=options.read.absent,
            index_base=options.read.index_base,
            split=None if options.shares is None else dict(options.shares),
            labels=options.read.labels,
            grades=dict(options.read.grades),
            negative_grades=options.read.negative_grades,
            no_grade=options.read.unjudged,
            time_column=options.read.time_column,
            split_time=None
            if options.split_time is None
            else cast("dict[SplitName, str]", options.split_time.bounds()),
            folds=options.folds,
            n_features=options.read.n_features,
            max_grade=options.read.max_grade,
            grades_from=grades_from,
            aggregate=options.aggregate,
        ),
        rows=rows.total(),
        queries=queries.total(),
        missing_values=sum(summary.missing_values for summary in summaries),
        grades=[GradeCount(grade=grade, rows=grades[grade]) for grade in sorted(grades)],
        splits={name: SplitCount(queries=queries[name], rows=rows[name]) for name in SPLITS if queries[name]},
        shards=[summary.shard for summary in summaries if summary.shard is not None],
        sources=sorted(files, key=lambda file: (file.name, file.sha256)),
        rejected_rows=rejected,
        columns=list(columns),
        repeats=None
        if tally == Tally()
        else Repeats(documents=tally.repeated, conflicting=tally.conflicting, merged_rows=tally.merged),
        unjudged=[summary.unjudged for summary in summaries if summary.unjudged is not None],
    )
