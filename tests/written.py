"""Rows in files of every kind, and the bytes of the files in a folder."""

import csv
import json
import random

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import feather


def some_rows(n, seed=1, **columns):
    """Return ``n`` rows of about n / 8 queries: qid, doc_id, grade, what is drawn from ``columns``, and a feature x."""
    rng = random.Random(seed)
    return [
        {"qid": f"q{rng.randrange(max(n // 8, 1))}", "doc_id": f"d{k}", "grade": rng.randrange(4)}
        | {name: rng.choice(cells) for name, cells in columns.items()}
        | {"x": rng.random()}
        for k in range(n)
    ]


def write_rows(
    path,
    rows,
    names=None,
    *,
    group=50,
    encoded=(),
):
    """Write the columns ``names`` (None: all) of ``rows`` in the format of the suffix; return ``path``.

    None is an empty cell, or no key of an object but the first.  Row groups and batches have ``group`` rows, the
    columns ``encoded`` of tables are dictionaries.
    """
    names = list(rows[0]) if names is None else names
    if path.suffix in {".csv", ".tsv"}:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, delimiter="," if path.suffix == ".csv" else "\t", lineterminator="\n")
            writer.writerow(names)
            writer.writerows([_as_text(row[name]) for name in names] for row in rows)
    elif path.suffix == ".txt":  # LETOR text has no names, but qid, doc_id and grade
        with path.open("w", encoding="utf-8") as file:
            for row in rows:
                numbers = [row[name] for name in names if name not in {"qid", "doc_id", "grade"}]
                values = " ".join(f"{k}:{'nan' if x is None else repr(x)}" for k, x in enumerate(numbers, start=1))
                named = f" # docid = {row['doc_id']}" if row["doc_id"] else ""
                file.write(f"{row['grade']} qid:{row['qid']} {values}{named}\n")
    elif path.suffix == ".jsonl":
        objects = [
            {name: row[name] for name in names if row[name] is not None or not number}
            for number, row in enumerate(rows)
        ]
        path.write_text("".join(json.dumps(each, default=_as_text) + "\n" for each in objects), encoding="utf-8")
    else:
        table = pa.table({name: [row[name] for row in rows] for name in names})
        for name in encoded:
            table = table.set_column(table.schema.get_field_index(name), name, table[name].dictionary_encode())
        if path.suffix == ".parquet":
            pq.write_table(table, path, row_group_size=group)
        else:
            feather.write_feather(table, str(path), chunksize=group)
    return path


def _as_text(cell):
    return cell.isoformat() if hasattr(cell, "isoformat") else cell


def files_in(folder, pattern="*"):
    """Return the content of the files below ``folder`` that match, by their paths there."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob(pattern) if path.is_file()}


def data_of(dataset, *but):
    """Return the manifest of a dataset without its sources and the keys ``but``, and its files of rows."""
    manifest = json.loads((dataset / "_manifest.json").read_bytes())
    return {key: value for key, value in manifest.items() if key not in {"sources", *but}}, files_in(
        dataset, "*.parquet"
    )
