"""Folders of table formats (Delta, Iceberg, Hudi).

Their log lists the valid files, so the files are not read by themselves.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from rankmill.foundation.errors import InputError

_MARKS = {
    "_delta_log": ("a Delta table", "DuckDB: COPY (FROM delta_scan({!r})) TO 'rows.parquet'"),
    "metadata": ("an Iceberg table", "DuckDB: COPY (FROM iceberg_scan({!r})) TO 'rows.parquet'"),
    ".hoodie": ("a Hudi table", "Spark: spark.read.format('hudi').load({!r}).write.parquet('rows')"),
}
"""What a folder with such a folder in it is, and how to write its current rows."""
_OF_ICEBERG = re.compile(r".+\.metadata\.json(\.gz)?")


def refuse_table_format(path: Path) -> None:
    """Raise InputError if ``path`` is a folder of a table format, or in one."""
    for folder in (path, *path.absolute().parents):
        for mark in _MARKS:
            if os.path.lexists(folder / mark) and (mark != "metadata" or _has_metadata(folder / mark)):
                raise InputError(_message(str(path), str(folder), mark))


def refuse_listed(listed: Iterable[str], chosen: Iterable[str], above: str) -> None:
    """Raise InputError if one of the ``chosen`` names is in a folder of a table format.

    The ``listed`` names show such folders.

    >>> refuse_listed(["t/_delta_log/0.json", "t/a.parquet", "b.parquet"], ["b.parquet"], "s3://bucket")
    """
    roots = {}
    for name in listed:
        *folders, last = name.split("/")
        for place, mark in enumerate(folders):
            if mark in _MARKS and (mark != "metadata" or (place == len(folders) - 1 and _OF_ICEBERG.fullmatch(last))):
                roots["/".join(folders[:place])] = mark
    for name in chosen:
        for root, mark in roots.items():
            if not root or name.startswith(f"{root}/"):
                raise InputError(_message(f"{above}/{name}", f"{above}/{root}".rstrip("/"), mark))


def _has_metadata(folder: Path) -> bool:
    try:
        return any(_OF_ICEBERG.fullmatch(name) for name in os.listdir(folder))  # noqa: PTH208  names only
    except OSError:  # it is a file, or not ours to read
        return False


def _message(path: str, folder: str, mark: str) -> str:
    what, cure = _MARKS[mark]
    shown = "is" if folder == path else f"is part of {folder},"
    return (
        f"{path}: {shown} {what}, whose log says which of its files count, so that they are not read by themselves;"
        f" write its current rows to other files, for example with {cure.format(folder)}"
    )
