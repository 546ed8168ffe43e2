"""Layout of a dataset on disk: the schema of its manifest, and the names of its files.

Other programs can read a dataset as a folder of Parquet files.  Names that begin with ``_`` are skipped by pandas,
pyarrow and Spark, so these only see the shards of rows in ``features``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer

FORMAT = 1
BINS_FORMAT: Literal[2] = 2

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Count = Annotated[int, Field(ge=0)]
SplitName = Literal["train", "valid", "test"]
SPLITS: tuple[SplitName, ...] = ("train", "valid", "test")


GradesFrom = Literal["grade", "label", "nothing", "qrels"]
ColumnName = Literal["label", "event", "weight", "offset", "position", "query_weight", "time"]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)
    always_written: ClassVar[str] = ""  # also if it is the default; other fields are omitted then

    @model_serializer(mode="wrap")
    def _without_defaults(self, handler: SerializerFunctionWrapHandler) -> Any:
        fields = type(self).model_fields
        return {
            name: value
            for name, value in handler(self).items()
            if name == self.always_written or getattr(self, name) != fields[name].default
        }


class SourceFile(_Strict):
    """One input file, by name and content; its path is deliberately left out."""

    always_written = "split"

    name: str
    size: Count
    sha256: Digest
    split: SplitName | None = None  # None: the hash of the query decides
    sizes: Digest | None = None  # digest of the companion file with the sizes of queries, if it has one


class ShardStatistics(_Strict):
    """Statistics of a shard: ``statistics/<digest>.parquet``, one row per feature, and two counts."""

    digest: Digest
    size: Count
    one_document: Count  # queries with one document
    one_grade: Count  # queries with two or more documents of the same grade


class Shard(_Strict):
    """The rows and queries of one hash bucket."""

    bucket: Count
    rows: Count
    n_queries: Count
    features: Digest  # features/<digest>.parquet
    features_bytes: Count
    queries: Digest  # _queries/<digest>.parquet
    queries_bytes: Count
    statistics: ShardStatistics


class PairShard(_Strict):
    """The pairs of the queries of one hash bucket: ``pairs/<digest>.parquet``."""

    bucket: Count
    pairs: Count
    digest: Digest
    size: Count


class PairSet(_Strict):
    """The preference pairs of a dataset."""

    pairs: Count
    rejected: Count
    shards: list[PairShard]  # buckets with pairs, ascending
    sources: list[SourceFile]  # sorted by name, then digest


class BinSet(_Strict):
    """A binned copy of the rows: ``_bins/<binspec>/<digest>.bins``, one file per split with rows."""

    always_written = "format"

    format: Literal[2] = BINS_FORMAT
    binspec: Digest
    max_bin: int = Field(ge=15, le=255)
    splits: dict[SplitName, Digest]
    max_bin_of: dict[str, int] = {}  # of features with another maximum


class CategorySet(_Strict):
    """The categorical features of a dataset, and their vocabulary: ``_categories/<digest>.parquet``."""

    features: list[str] = Field(min_length=1)  # in the order of the dataset
    digest: Digest
    size: Count


class JudgmentSet(_Strict):
    """Judgments from separate files, which determined the grades of the rows."""

    judgments: Count  # with a grade
    ungraded: Count  # without a grade
    without_row: Count  # with a grade, but of a document without a row
    repeated: Count  # documents judged more than once
    conflicting: Count  # of these: with different grades
    rejected: Count
    sources: list[SourceFile]  # sorted by name, then digest


class Repeats(_Strict):
    """Documents with several graded rows."""

    documents: Count
    conflicting: Count  # of these: with different grades
    merged_rows: Count  # rows merged into another row of their document


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """Counts for the judgments of some buckets; tallies can be added.

    Attributes
    ----------
    merged
        Rows that were merged into another row of the same document.
    repeated, conflicting
        Documents judged more than once, and those of them with different grades.
    judgments, ungraded
        Judgments from separate files, with and without a grade.
    without_row
        Judgments of documents without a row.
    rows_with_id
        Rows with a doc_id, if judgments are in separate files; ignored when tallies are compared.
    """

    merged: int = 0
    repeated: int = 0
    conflicting: int = 0
    judgments: int = 0
    ungraded: int = 0
    without_row: int = 0
    rows_with_id: int = field(default=0, compare=False)

    def __add__(self, other: Self) -> Self:
        return type(self)(**{name: getattr(self, name) + getattr(other, name) for name in self.__slots__})


class UnjudgedShard(_Strict):
    """The unjudged rows of one hash bucket: ``_unjudged/<digest>.parquet``."""

    bucket: Count
    rows: Count
    digest: Digest
    size: Count


class SplitCount(_Strict):
    """Size of one split."""

    queries: Count
    rows: Count


class GradeCount(_Strict):
    """Number of rows with a grade."""

    grade: Count
    rows: Count


class GoalGrades(_Strict):
    """The grades of a goal."""

    name: str
    max_grade: Count
    grades: list[GradeCount]


class FoldChoice(_Strict):
    """One of K folds of cross-validation (see `rankmill.pipeline.group.query_splits`)."""

    folds: int = Field(ge=3)
    fold: int = Field(ge=1)


class Meaning(_Strict):
    """The options with which the input was read; needed to read it again in the same way."""

    absent: Literal["zero", "missing"]
    index_base: Literal[0, 1]
    split: dict[str, float] | None  # shares of a split by hash; None: another rule, or by files
    labels: Literal["grade", "real"] = "grade"  # the first number of a LETOR line
    grades: dict[str, int] = {}  # words and their grades
    negative_grades: Literal["reject", "zero", "unjudged"] = "reject"
    no_grade: Literal["keep", "zero", "reject"] = "keep"  # how rows without a grade are treated
    time_column: str | None = None  # name of the column of times in the input
    split_time: dict[SplitName, str] | None = None  # start of valid and test, ISO 8601 in UTC
    folds: FoldChoice | None = None
    split_prefix: str = ""  # queries whose ids agree up to the last of this character are in one split
    aggregate: Literal["mean", "median", "max", "majority", "latest", "heaviest"] | None = (
        None  # how judgments of a document are combined
    )
    n_features: int | None = None  # given by the caller; text only
    max_grade: int | None = None  # given by the caller
    grades_from: GradesFrom = "grade"  # a column, whole labels, all 0, or separate judgments


class Manifest(_Strict):
    """The manifest of a dataset."""

    always_written = "bins"

    format: Literal[1]
    features: list[str] = Field(min_length=1)
    max_grade: Count
    buckets: int = Field(ge=1, le=65536)
    meaning: Meaning
    rows: Count
    queries: Count
    missing_values: Count
    grades: list[GradeCount]
    splits: dict[SplitName, SplitCount]
    shards: list[Shard]  # non-empty buckets, ascending
    sources: list[SourceFile]  # sorted by name, then digest
    rejected_rows: Count
    bins: list[BinSet] = []  # oldest first
    columns: list[ColumnName] = []  # optional columns of rows and queries, in stored order
    pairs: PairSet | None = None
    judgments: JudgmentSet | None = None
    repeats: Repeats | None = None
    unjudged: list[UnjudgedShard] = []  # buckets with unjudged rows, ascending
    categories: CategorySet | None = None
    goals: list[GoalGrades] = []  # sorted by name

    @property
    def categorical(self) -> list[str]:
        """The categorical features, in the order of the dataset."""
        return [] if self.categories is None else self.categories.features

    @property
    def unjudged_rows(self) -> int:
        """Number of unjudged rows, which are kept for re-ranking."""
        return sum(shard.rows for shard in self.unjudged)

    @property
    def unseen(self) -> tuple[SplitName, ...]:
        """The splits not used for learning, in order of preference.

        Valid comes last, as it decides when training stops.
        """
        held_out: tuple[SplitName, ...] = ("test", "valid")
        return tuple(name for name in held_out if name in self.splits and self.splits[name].queries)

    def files(self) -> Iterator[tuple[str, Digest, int]]:
        """Yield the folder, the digest and the size of each file except the bins."""
        for shard in self.shards:
            yield FEATURES, shard.features, shard.features_bytes
            yield QUERIES, shard.queries, shard.queries_bytes
            yield STATISTICS, shard.statistics.digest, shard.statistics.size
        for pairs in () if self.pairs is None else self.pairs.shards:
            yield PAIRS, pairs.digest, pairs.size
        for unjudged in self.unjudged:
            yield UNJUDGED, unjudged.digest, unjudged.size
        if self.categories is not None:
            yield CATEGORIES, self.categories.digest, self.categories.size

    def to_bytes(self) -> bytes:
        """Return the canonical JSON: sorted keys, two spaces, one newline at the end."""
        return (json.dumps(self.model_dump(mode="json"), indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode()

    def data_digest(self) -> str:
        """Return the sha256 over the shard digests and the schema.

        It identifies the data, not the files they came from.
        """
        digest = self.rows_digest()
        if self.pairs is None:
            return digest
        data = [digest, [[shard.bucket, shard.digest] for shard in self.pairs.shards]]
        return hashlib.sha256(json.dumps(data, separators=(",", ":")).encode()).hexdigest()

    def rows_digest(self) -> str:
        """Return the same digest without the pairs: bins depend on this one."""
        data: dict[str, Any] = {
            "format": self.format,
            "features": self.features,
            "max_grade": self.max_grade,
            "buckets": self.buckets,
            "shards": [[shard.bucket, shard.features, shard.queries] for shard in self.shards],
        }
        if self.categories is not None:
            data["categories"] = [self.categories.features, self.categories.digest]
        return hashlib.sha256(json.dumps(data, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


MANIFEST_NAME = "_manifest.json"
FEATURES = "features"
QUERIES = "_queries"
STATISTICS = "_statistics"
PAIRS = "_pairs"
UNJUDGED = "_unjudged"  # unjudged rows
CATEGORIES = "_categories"
BINS = "_bins"
REPLACED = "_replaced"  # shards replaced by the last change, for readers that opened the dataset before it
REJECTS_NAME = "_rejects.parquet"
PAIR_REJECTS_NAME = "_pair_rejects.parquet"
JUDGMENT_REJECTS_NAME = "_judgment_rejects.parquet"

T = TypeVar("T")


def read_even_if_replaced(shard: Path, read: Callable[[Path], T]) -> T:
    """Return ``read(shard)``; if the shard was replaced after the dataset was opened, read its old version.

    Raises
    ------
    FileNotFoundError
        The shard is missing.
    """
    try:
        return read(shard)
    except FileNotFoundError:
        return read(shard.parent.parent / REPLACED / shard.name)
