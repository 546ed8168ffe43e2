"""Where the files of a dataset lie.

Other programs read a dataset as a folder of Parquet files.  Only the shards of rows, in ``features``, have names that they take
for data: pandas, pyarrow and Spark pass over names that begin with ``_``.  Earlier versions wrote the other names without the
``_``; a dataset that has such a name keeps it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

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


def wherever(shard: Path, read: Callable[[Path], T]) -> T:
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
