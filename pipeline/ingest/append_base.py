"""The existing dataset of ``--append``: the options it prescribes, and the shards that are rewritten."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankmill.foundation.errors import DataRejected, InputError
from rankmill.foundation.options import spelled
from rankmill.foundation.process_memory import release_freed
from rankmill.foundation.storage.publish import file_digest
from rankmill.pipeline.dataset import Dataset
from rankmill.pipeline.dataset_manifest import PAIR_REJECTS_NAME, REJECTS_NAME, path_in
from rankmill.pipeline.ingest.manifest_builder import extended, with_pairs
from rankmill.pipeline.ingest.stored_input import (
    StoredCounts,
    StoredPairs,
    places_among,
    spread,
    stored_rows,
    unjudged_rows,
)
from rankmill.pipeline.options import ReadOptions
from rankmill.pipeline.rejects import read_rejects
from rankmill.pipeline.sources.files import format_of
from rankmill.pipeline.sources.jsonl.json_keys import naturally_sorted
from rankmill.pipeline.sources.letor import letor_name
from rankmill.pipeline.validate import sources_disagree
from rankmill.pipeline.vocabulary import less

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from rankmill.pipeline.dataset_manifest import Manifest, PairShard
    from rankmill.pipeline.grouping.bucket_rows import RowSpill
    from rankmill.pipeline.options import IngestOptions
    from rankmill.pipeline.query_spill import QuerySpill
    from rankmill.pipeline.sources.batch import Reject, Source
    from rankmill.pipeline.vocabulary import Tally, Vocabulary


OPTIONS_OF_READING = (
    "absent",
    "index_base",
    "labels",
    "n_features",
    "max_grade",
    "grades",
    "negative_grades",
    "unjudged",
    "time_column",
    "goals",
)
OPTIONS_OF_DATASET = ("split", "split_time", "folds", "fold", "split_prefix", "buckets")


def highest_allowed(manifest: Manifest) -> int | None:
    """Return the maximum grade with which the dataset was made; None: no maximum."""
    highest = max((count.grade for count in manifest.grades), default=0)
    # older manifests did not record it; it was given if no row has the highest grade
    return manifest.max_grade if manifest.max_grade > highest else manifest.meaning.max_grade


def as_made(manifest: Manifest, options: IngestOptions) -> IngestOptions:
    """Return ``options`` with :data:`OPTIONS_OF_READING` and :data:`OPTIONS_OF_DATASET` taken from the dataset."""
    meaning = manifest.meaning
    known = frozenset(manifest.features)
    folds, times = meaning.folds, meaning.split_time
    read = replace(
        options.read,
        absent=meaning.absent,
        index_base=meaning.index_base,
        labels=meaning.labels,
        n_features=meaning.n_features,
        max_grade=highest_allowed(manifest),
        grades=ReadOptions(grades=meaning.grades).words,
        negative_grades=meaning.negative_grades,
        unjudged=meaning.no_grade,
        time_column=meaning.time_column,
        goals=tuple(goal.name for goal in manifest.goals),
        categorical=(*manifest.categorical, *(name for name in options.read.categorical if name not in known)),
    )
    return replace(
        options,
        read=read,
        split=meaning.split,
        split_time=None if times is None else {str(split): time for split, time in times.items()},
        folds=None if folds is None else folds.folds,
        fold=None if folds is None else folds.fold,
        split_prefix=meaning.split_prefix,
        buckets=manifest.buckets,
    )


def options_for(path: Path, manifest: Manifest, options: IngestOptions, given: Collection[str] = ()) -> IngestOptions:
    """Return ``options`` with all options that the dataset at ``path`` prescribes.

    Parameters
    ----------
    path, manifest
        The dataset.
    options
        The caller's options.  Those equal to their default count as not given, unless their name is in ``given``.

    Raises
    ------
    InputError
        An option differs from that of the dataset.
    """
    made = as_made(manifest, options)
    for name in (letor_name(name) if name not in manifest.features else name for name in options.read.categorical):
        if name in manifest.features and name not in manifest.categorical:
            raise InputError(
                f"{path}: feature {name!r} is a number there, and {spelled('append')} keeps it; leave it out of"
                f" {spelled('categorical')}, or ingest all files again"
            )
    recorded, wanted = _values(made), _values(options)
    default = _values(type(options)())
    for name, value in wanted.items():
        if value != recorded[name] and (value != default[name] or name in given):
            option = spelled(name)
            raise InputError(
                f"{path}: was made {_option_text(option, recorded[name])}, and {spelled('append')} keeps its"
                f" options; leave {option} out, or ingest all files again"
            )
    return made


def _values(options: IngestOptions) -> Mapping[str, Any]:
    return {
        **{name: getattr(options.read, name) for name in OPTIONS_OF_READING},
        **{name: getattr(options, name) for name in OPTIONS_OF_DATASET},
    }


def _option_text(option: str, value: Any) -> str:
    """Format ``option`` as the caller gave it."""
    if value is None or value == ():
        return f"without {option}"
    if isinstance(value, (str, int)):
        return f"with {option} {value}"
    return f"with another {option}"


class Base:
    """An existing dataset to which rows are added.

    Attributes
    ----------
    dataset
        The dataset when it was opened.
    """

    def __init__(self, path: Path) -> None:
        """Open the dataset at ``path``; errors as in :meth:`rankmill.pipeline.dataset.Dataset.open`; InputError if rows cannot be added."""
        self.dataset = Dataset.open(path)
        self._check_settled()
        self._of_text = False  # whether the new files are text with numbered features
        self._replaced: dict[int, StoredCounts] = {}  # counts of the shards that are rewritten, by bucket

    def _check_settled(self) -> None:
        """Raise InputError if rows depend on judgments that the dataset does not store, or not in their original form."""
        manifest = self.manifest
        if manifest.meaning.aggregate is not None:
            made = f"with {spelled('aggregate')} {manifest.meaning.aggregate}: several judgments were combined into one"
        elif manifest.judgments is not None:
            made = f"with {spelled('qrels')}: its grades come from separate files of judgments"
        else:
            return
        raise InputError(
            f"{self.dataset.path}: was made {made}; {spelled('append')} cannot add rows to such a"
            " dataset; ingest all files again"
        )

    @property
    def manifest(self) -> Manifest:
        """The manifest of the dataset when it was opened."""
        return self.dataset.manifest

    @property
    def fields(self) -> tuple[str, ...]:
        """Which of ``grade`` and the optional columns the input of the dataset had, and the goals."""
        graded = ("grade",) if self.manifest.meaning.grades_from == "grade" else ()
        return (*graded, *self.manifest.columns, *self.dataset.goals)

    def options(self, options: IngestOptions) -> IngestOptions:
        """Return ``options`` with those that the dataset prescribes; InputError if they differ."""
        if options.overwrite:
            raise InputError(
                f"{spelled('append')} and {spelled('overwrite')}: a dataset can be extended or"
                " replaced, not both; use one of them"
            )
        return options_for(self.dataset.path, self.manifest, options)

    def check_judgments(self, qrels: Collection[object], options: IngestOptions) -> None:
        """Raise InputError if new judgments would apply to existing rows."""
        for option, wanted in ((spelled("qrels"), bool(qrels)), (spelled("aggregate"), options.aggregate is not None)):
            if wanted:
                raise InputError(
                    f"{spelled('append')} and {option}: a new judgment may belong to an existing row"
                    f" of {self.dataset.path}; ingest all files again"
                )

    def check_new(self, paths: Iterable[Path], companions: Collection[Path] = ()) -> None:
        """Raise InputError if a file is in the dataset already.

        The digest of a file is computed only if the dataset has a file of the same size.
        """
        pairs = [] if self.manifest.pairs is None else self.manifest.pairs.sources
        known = {(file.size, file.sha256): file.name for file in (*self.manifest.sources, *pairs)}
        sizes = {size for size, _ in known}
        for path in paths:
            size = path.stat().st_size
            if size in sizes:
                digest = file_digest(path)
                if (size, digest) in known:
                    name = known[size, digest]
                    called = "" if name == path.name else f", where it is called {name}"
                    raise InputError(
                        f"{path}: is in {self.dataset.path} already{called}; its rows would be"
                        " counted twice; leave the file out"
                    )
        named = {file.name for file in self.manifest.sources if file.sizes is not None}
        for path in companions:
            if path.name in named:
                raise InputError(
                    f"{path}: {self.dataset.path} has queries called {path.name}:1, .. of another file of that name; rename the file"
                )

    def check_columns(self, first: Source, options: IngestOptions) -> tuple[str, ...] | None:
        """Return the features if the files name them, None for LETOR text; errors if they do not match the dataset.

        Their order is that of the dataset.  Only JSON lines added to JSON lines may have new features, which are sorted in.
        """
        old, name = self.manifest.features, str(self.dataset.path)
        self._of_text = first.columns is None
        if first.columns is None:
            lowest = options.read.index_base
            if old != [f"f{index}" for index in range(lowest, lowest + len(old))]:
                raise InputError(
                    f"{first.path} and {name}: files with numbered features (LETOR text) cannot be"
                    " added to tables with named features"
                )
        elif self._is_of_json_lines(options) and set(old) < set(first.columns):
            old = list(naturally_sorted(first.columns))
        else:
            complaint = sources_disagree(tuple(old), name, first.columns, str(first.path))
            if complaint:
                raise DataRejected(complaint)
        complaint = sources_disagree(self.fields, name, first.fields, str(first.path), "columns besides the features")
        if complaint:
            raise DataRejected(complaint)
        return None if first.columns is None else tuple(old)

    def _is_of_json_lines(self, options: IngestOptions) -> bool:
        """Whether all files of the dataset were JSON lines, judging by their names."""
        return all(format_of(Path(file.name), options.format) == "jsonl" for file in self.manifest.sources)

    def check_categorical(self, categorical: Collection[str], where: str) -> None:
        """Raise DataRejected if a feature is ``categorical`` in the files ``where``, but a number in the dataset."""
        for name in self.manifest.features:
            if name in categorical and name not in self.manifest.categorical:
                raise DataRejected(
                    f"{where}: column {name!r} holds categories, but numbers in {self.dataset.path}; ingest all files"
                    f" again with {spelled('categorical')} {name}"
                )

    def add_categories(self, vocabulary: Vocabulary, tallies: dict[str, list[Tally]]) -> None:
        """Add the texts of the dataset to ``vocabulary``, and to ``tallies`` the rows of its shards that are kept."""
        stored = self.dataset.vocabulary
        vocabulary.add(stored.texts)
        for name, parts in tallies.items():
            if name in stored.tallies:
                parts.append(stored.tallies[name])
            parts.extend(less(tally) for counts in self._replaced.values() for tally in counts.tallies.get(name, ()))

    def labels_were_grades(self) -> bool:
        """Whether the grades of the dataset were taken from labels, or could be."""
        return self.manifest.meaning.grades_from == "label"

    def touched(self, new_rows: Collection[int], *, features: Sequence[str], labels_are_grades: bool) -> dict[int, int]:
        """Return the buckets whose shards must be rewritten, each with its number of rows.

        Parameters
        ----------
        new_rows
            Number of new rows of each bucket.
        features
            The features of the result.
        labels_are_grades
            Whether all labels, including new ones, can be grades.
        """
        everything = list(features) != self.manifest.features or labels_are_grades != self.labels_were_grades()
        sizes = [(shard.bucket, shard.rows) for shard in self.manifest.shards]
        sizes += [(shard.bucket, shard.rows) for shard in self.manifest.unjudged]
        found: dict[int, int] = {}
        for bucket, rows in sizes:
            if everything or bucket in new_rows:
                found[bucket] = found.get(bucket, 0) + rows
        return found

    def spilling(
        self,
        buckets: Collection[int],
        spill: RowSpill,
        first_source: int,
        *,
        features: Sequence[str],
        labels_are_grades: bool,
    ) -> Callable[[int], None]:
        """Return a function that spills the stored rows of a bucket, if it is one of ``buckets``, right before it is written.

        Their source is ``first_source`` plus the number of their split; unjudged rows have no split and use the first source.
        Several threads may call the function.
        """
        # omitted features of text have a defined value: the second pass fills up narrower rows with it
        place = None if self._of_text else places_among(features, self.manifest.features)
        graded = labels_are_grades or not self.labels_were_grades()
        shard_of = {shard.bucket: shard for shard in self.manifest.shards if shard.bucket in buckets}
        unjudged_of = {shard.bucket: shard for shard in self.manifest.unjudged if shard.bucket in buckets}

        def put(bucket: int) -> None:
            if bucket in shard_of:
                counts = StoredCounts()
                for split, rows in stored_rows(self.dataset, shard_of[bucket], counts, graded=graded):
                    spill.add(spread(rows, place, len(features)), first_source + split)
                self._replaced[bucket] = counts
            if bucket in unjudged_of:
                for rows in unjudged_rows(self.dataset, unjudged_of[bucket], spill.extras):
                    spill.add(spread(rows, place, len(features)), first_source)
            release_freed()  # the writer needs the memory of the reader

        return put

    def spill_pairs(self, buckets: Collection[int], spill: QuerySpill, number: int) -> StoredPairs:
        """Spill the stored pairs of ``buckets`` as source ``number``, and return that source."""
        stored = StoredPairs(self.dataset, buckets)
        for batch in stored.batches():
            spill.add(batch.stored(number))
        return stored

    def extended(self, made: Manifest, pairs: Sequence[PairShard], joined: Collection[int]) -> Manifest:
        """Return the manifest of all rows.

        Parameters
        ----------
        made
            Manifest of the written shards and of the new files.
        pairs
        Written shards of pairs, of the buckets ``joined``.
        """
        old = self.manifest
        bounded = highest_allowed(old) is not None
        found = extended(old, self._replaced.values(), made, bounded=bounded)
        return found.model_copy(update={"pairs": with_pairs(old.pairs, made.pairs, pairs, joined)})

    def with_rejects(self, rows: Sequence[Reject], pairs: Sequence[Reject]) -> tuple[list[Reject], list[Reject]]:
        """Return the malformed rows and pairs, old and new, in the order of their files."""
        counts = (self.manifest.rejected_rows, 0 if self.manifest.pairs is None else self.manifest.pairs.rejected)
        lists = []
        for name, count, new in zip((REJECTS_NAME, PAIR_REJECTS_NAME), counts, (rows, pairs), strict=True):
            old = read_rejects(path_in(self.dataset.path, name)) if count else []
            lists.append(sorted([*old, *new], key=lambda reject: reject.source))
        return lists[0], lists[1]
