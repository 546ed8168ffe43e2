"""Layout of a dataset on disk: the schema of its manifest, and the names of its files.

Other programs read a dataset as a folder of Parquet files.  Only the shards of rows, in ``features``, have names that they take
for data: pandas, pyarrow and Spark pass over names that begin with ``_``.  Earlier versions wrote the other names without the
``_``; a dataset that has such a name keeps it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer

FORMAT = 1

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Count = Annotated[int, Field(ge=0)]
SplitName = Literal["train", "valid", "test"]
SPLITS: tuple[SplitName, ...] = ("train", "valid", "test")


GradesFrom = Literal["grade", "label", "nothing", "qrels"]
ColumnName = Literal["label", "event", "weight", "offset", "position", "query_weight", "time"]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)
    always_written: ClassVar[str] = (
        ""  # a field that older files have though it is its default; others are left out then
    )

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
    sizes: Digest | None = None  # of the file beside it that says how many rows each query has, if its lines do not


class ShardStatistics(_Strict):
    """What is known of a shard without reading it: ``statistics/<digest>.parquet``, a row a feature, and two counts."""

    digest: Digest
    size: Count
    one_document: Count  # queries of one document
    one_grade: Count  # queries of two or more documents that all have the same grade


class Shard(_Strict):
    """The rows and queries of one hash bucket."""

    bucket: Count
    rows: Count
    n_queries: Count
    features: Digest  # features/<digest>.parquet
    features_bytes: Count
    queries: Digest  # _queries/<digest>.parquet
    queries_bytes: Count
    statistics: ShardStatistics | None = None  # None: of an earlier version


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
    shards: list[PairShard]  # buckets that have pairs, ascending
    sources: list[SourceFile]  # sorted by name, then digest


class BinSet(_Strict):
    """The dataset's rows as bins: ``bins/<binspec>/<digest>.parquet``, one file a shard, in the order of the shards."""

    binspec: Digest
    max_bin: int = Field(ge=15, le=255)
    shards: list[Digest]


class JudgmentSet(_Strict):
    """The judgments that came in files of their own and gave the rows their grades."""

    judgments: Count  # that say a grade
    ungraded: Count  # that say that there is none
    without_row: Count  # of those with a grade: of a document that has no row
    repeated: Count  # documents judged more than once
    conflicting: Count  # of these: with different grades
    rejected: Count
    sources: list[SourceFile]  # sorted by name, then digest


class Repeats(_Strict):
    """Documents that had several rows with a grade."""

    documents: Count
    conflicting: Count  # of these: with different grades
    merged_rows: Count  # rows that went into another one of their document


class UnjudgedShard(_Strict):
    """The rows of one hash bucket that nobody has judged: ``_unjudged/<digest>.parquet``."""

    bucket: Count
    rows: Count
    digest: Digest
    size: Count


class SplitCount(_Strict):
    """Size of one split."""

    queries: Count
    rows: Count


class GradeCount(_Strict):
    """How many rows have a grade."""

    grade: Count
    rows: Count


class FoldChoice(_Strict):
    """One of K folds of cross-validation: which parts of the queries are which split (`rankmill.pipeline.grouping.query_splits`)."""

    folds: int = Field(ge=3)
    fold: int = Field(ge=1)


class Meaning(_Strict):
    """What the reader was told about the input: without it the numbers could not be read again."""

    absent: Literal["zero", "missing"]
    index_base: Literal[0, 1]
    split: dict[str, float] | None  # shares of a split by hash; None: see the other rules; by files if there is none
    labels: Literal["grade", "real"] = "grade"  # what the first number of a line of text was
    grades: dict[str, int] = {}  # the words that stood for grades
    negative_grades: Literal["reject", "zero", "unjudged"] = "reject"
    no_grade: Literal["keep", "zero", "reject"] = "keep"  # what it meant that a row had none
    time_column: str | None = None  # what the input called the column of times
    split_time: dict[SplitName, str] | None = None  # when valid and test begin, ISO 8601 in UTC
    folds: FoldChoice | None = None
    aggregate: Literal["mean", "median", "max", "majority", "latest"] | None = None  # what several judgments made
    n_features: int | None = None  # as the caller bounded it; text only
    max_grade: int | None = None  # as the caller bounded it
    grades_from: GradesFrom = "grade"  # a column, whole labels, all 0, judgments of their own


class Manifest(_Strict):
    """All of the manifest."""

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
    columns: list[ColumnName] = []  # optional ones that rows and queries have, in the order in which they are stored
    pairs: PairSet | None = None
    judgments: JudgmentSet | None = None
    repeats: Repeats | None = None
    unjudged: list[UnjudgedShard] = []  # buckets that have such rows, ascending

    @property
    def unjudged_rows(self) -> int:
        """Rows that are kept for re-ranking, apart from the others."""
        return sum(shard.rows for shard in self.unjudged)

    @property
    def unseen(self) -> tuple[SplitName, ...]:
        """The splits with queries that no training learns from, in order of preference: valid has at least decided when to stop."""
        held_out: tuple[SplitName, ...] = ("test", "valid")
        return tuple(name for name in held_out if name in self.splits and self.splits[name].queries)

    def to_bytes(self) -> bytes:
        """Return the canonical JSON: sorted keys, two spaces, one newline at the end."""
        return (json.dumps(self.model_dump(mode="json"), indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode()

    def data_digest(self) -> str:
        """Return the sha256 over the shard digests and the schema: it names the data, whatever files brought them."""
        digest = self.rows_digest()
        if self.pairs is None:
            return digest
        data = [digest, [[shard.bucket, shard.digest] for shard in self.pairs.shards]]
        return hashlib.sha256(json.dumps(data, separators=(",", ":")).encode()).hexdigest()

    def rows_digest(self) -> str:
        """Return the same but for the pairs: what bins depend on."""
        data = {
            "format": self.format,
            "features": self.features,
            "max_grade": self.max_grade,
            "buckets": self.buckets,
            "shards": [[shard.bucket, shard.features, shard.queries] for shard in self.shards],
        }
        return hashlib.sha256(json.dumps(data, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


MANIFEST_NAME = "_manifest.json"
FEATURES = "features"
QUERIES = "_queries"
STATISTICS = "_statistics"
PAIRS = "_pairs"
UNJUDGED = "_unjudged"  # rows to re-rank
BINS = "_bins"
REPLACED = "_replaced"  # shards of rows that the last change replaced, for readers that opened the dataset before
REJECTS_NAME = "_rejects.parquet"
PAIR_REJECTS_NAME = "_pair_rejects.parquet"
JUDGMENT_REJECTS_NAME = "_judgment_rejects.parquet"

T = TypeVar("T")


def earlier_name(name: str) -> str:
    """Return what earlier versions called ``name``."""
    return name.removeprefix("_")


def path_in(dataset: Path, name: str) -> Path:
    """Return the path of ``name`` in the folder ``dataset``: its earlier name if it is there by that name alone."""
    path, earlier = dataset / name, dataset / earlier_name(name)
    return earlier if not path.exists() and earlier.exists() else path


def read_even_if_replaced(shard: Path, read: Callable[[Path], T]) -> T:
    """Return ``read(shard)``; if the shard has been replaced since its dataset was opened, read it where it was moved to.

    Raises
    ------
    FileNotFoundError
        It is in neither place.
    """
    try:
        return read(shard)
    except FileNotFoundError:
        return read(shard.parent.parent / REPLACED / shard.name)
