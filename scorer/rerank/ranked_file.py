"""The format of ranked lists on disk: schemas, file names and metadata.

In a folder only the shards have names that pandas, pyarrow and Spark read as data; they skip names that begin with
``_``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from rankmill.foundation.errors import InputError
from rankmill.pipeline.arrow import schema_of

RUN_TAG = "rankmill"
SUFFIXES = (".parquet", ".csv", ".tsv", ".run")
# fmt: off
_REFUSED = {  # suffixes of files; a folder may have any other
    ".txt", ".json", ".jsonl", ".ndjson", ".gz", ".bz2", ".xz", ".zst", ".lz4", ".zip", ".arrow", ".arrows",
    ".feather", ".ipc", ".pq", ".trec", ".letor", ".svm", ".svmlight", ".libsvm", ".xlsx", ".xls", ".ods",
    ".orc", ".avro", ".xml", ".html", ".db", ".sqlite", ".npy", ".pkl", ".h5",
}
# fmt: on
FORMAT = 1
MANIFEST = "_manifest.json"
SEVERAL = "ranked by several"  # the kind of a folder of folders, one for each model
GRADE_TABLE = "_grades.pq"  # in a folder; not .parquet, so that ``*.parquet`` means the shards alone
BESIDE = "grades.parquet"  # appended to the whole name of a single file
FACTS = "rankmill"  # key in a Parquet file's metadata: the facts that a folder has in its manifest
BELONGS = "rankmill.ranked"  # key in a side table's metadata: the digest of its ranked file


SCORED_ROW = schema_of(
    [
        ("qid", pa.string(), False),
        ("doc_id", pa.string(), True),
        ("score", pa.float64(), False),
        ("grade", pa.int32(), True),
        ("row", pa.int64(), False),
    ]
)
"""One candidate after scoring: ``row`` counts the rows of the whole input from 1.

In a part of the input it counts those of the part, and ``doc_id`` is null if the row has none."""


def scored_schema(goals: Sequence[str], *, alone: bool = False) -> pa.Schema:
    """Return the schema of scored rows with the grades of ``goals``; ``alone``: of these grades only."""
    return pa.schema([*([] if alone else SCORED_ROW), *(pa.field(name, pa.int32()) for name in goals)])


RANKED = schema_of(
    [
        ("qid", pa.string(), False),
        ("doc_id", pa.string(), False),
        ("score", pa.float64(), False),
        ("rank", pa.int32(), False),
        ("grade", pa.int32(), True),
    ]
)
"""One candidate after ranking: ``rank`` 1 is the best of its query; ``grade`` is null if unknown."""


def ranked_schema(kept: pa.Schema) -> pa.Schema:
    """Return the schema of lists with the further columns ``kept``."""
    return pa.schema([*RANKED, *kept])


GRADE_COUNTS = schema_of([("qid", pa.string(), False), ("grade", pa.int32(), False), ("count", pa.int64(), False)])
"""How often each known grade occurs in the whole list of a query."""


@dataclass(frozen=True, slots=True)
class RankedPart:
    """One finished file: its name, rows and queries.

    It also counts the rows whose document is above them in their query.
    """

    name: str
    rows: int
    queries: int
    repeated: int = 0


def checked_suffix(path: Path) -> str:
    """Return the suffix that decides the format, empty for a folder; InputError for an unknown one."""
    suffix = path.suffix.lower()
    if suffix in SUFFIXES:
        return suffix
    if suffix in _REFUSED:
        raise InputError(
            f"{path}: cannot write {suffix}; name a folder for Parquet shards, or one file with a suffix of "
            f"{', '.join(SUFFIXES)}"
        )
    return ""


def grades_path(out: Path) -> Path:
    """Return the path of the grade counts of ``out``: in its folder, or beside the file under its whole name."""
    return out.with_name(f"{out.name}.{BESIDE}") if checked_suffix(out) else out / GRADE_TABLE


def is_ranked_folder(folder: Path) -> bool:
    """Return whether the manifest of ``folder`` is one of ranked lists."""
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(manifest, dict) and manifest.get("kind") in {"ranked", SEVERAL}


def counts_belong_to(path: Path) -> str | None:
    """Return the digest of the ranked file that the side table ``path`` belongs to; None if it is no side table."""
    try:
        metadata = pq.read_schema(path).metadata or {}
    except (OSError, pa.ArrowInvalid):
        return None
    digest = metadata.get(BELONGS.encode())
    return None if digest is None else digest.decode(errors="replace")
