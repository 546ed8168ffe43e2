"""Candidates for tests, in every format that the scorer reads, and the order they belong in."""

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from rankmill.foundation.kernels.elementary import exp_precise
from rankmill.scorer.rerank import score as scoring
from tests import naive_links


def random_candidates(seed, n_rows=300, n_queries=12, n_features=5, nameless=0.0):
    """Rows of (grade, qid, doc_id or None, values); few distinct values, so that many scores tie."""
    rng = np.random.default_rng(seed)
    values = rng.choice(np.float32([-2, -1, -0.25, 0.5, 1, 2, np.nan]), size=(n_rows, n_features))
    rows = []
    for i in range(n_rows):
        doc_id = None if rng.random() < nameless else f"D{int(rng.integers(10**6))}é{i}"
        rows.append((int(rng.integers(0, 5)), f"q{int(rng.integers(n_queries))}", doc_id, values[i]))
    return rows


def as_text(value):
    return "nan" if np.isnan(value) else f"{value:g}"


def write_letor(path, rows, base=1):
    with path.open("w", encoding="utf-8") as file:
        for grade, qid, doc_id, values in rows:
            features = " ".join(f"{i + base}:{as_text(x)}" for i, x in enumerate(values))
            comment = "" if doc_id is None else f" #docid = {doc_id}"
            file.write(f"{grade} qid:{qid} {features}{comment}\n")
    return path


def scored_infinite_in_two_files(folder, monkeypatch):
    """Write four files of 100 candidates; the scores of row 57 of the third and of row 2 of the fourth become
    infinite."""
    original = scoring._scores

    def scores(predictor, batch, layout, absent):
        return np.where(
            batch.qid.to_numpy(zero_copy_only=False) == "bad", np.inf, original(predictor, batch, layout, absent)
        )

    monkeypatch.setattr(scoring, "_scores", scores)
    rows = [random_candidates(number, n_rows=100) for number in range(4)]
    rows[2][57] = (1, "bad", *rows[2][57][2:])
    rows[3][2] = (1, "bad", *rows[3][2][2:])
    return [write_letor(folder / f"{number}.txt", part) for number, part in enumerate(rows)]


def as_table(rows, names=None):
    columns = {
        "qid": pa.array([row[1] for row in rows], pa.string()),
        "doc_id": pa.array([row[2] for row in rows], pa.string()),
        "grade": pa.array([row[0] for row in rows], pa.int32()),
    }
    n_features = len(rows[0][3])
    for i in range(n_features):
        name = names[i] if names else f"f{i + 1}"
        columns[name] = pa.array([float(row[3][i]) for row in rows], pa.float32(), from_pandas=True)
    return pa.table(columns)


def write_parquet(path, rows, **options):
    pq.write_table(as_table(rows, **options), path)
    return path


def write_csv(path, rows):
    delimiter = "\t" if path.suffix == ".tsv" else ","
    pacsv.write_csv(as_table(rows), path, pacsv.WriteOptions(delimiter=delimiter))
    return path


def ranked(forest, rows, top_k=None):
    """Return (qid, doc_id, score, rank, grade) as re-ranking must write them."""
    scores = naive_links.predict(forest, [row[3] for row in rows], exp_precise)
    listed = [
        (qid, doc_id if doc_id is not None else f"(row {i + 1})", score + 0.0, i, grade)
        for i, ((grade, qid, doc_id, _), score) in enumerate(zip(rows, scores, strict=True))
    ]
    listed.sort(key=lambda row: (row[0].encode(), -row[2], row[1].encode(), row[3]))
    out, rank, last = [], 0, None
    for qid, doc_id, score, _, grade in listed:
        rank = rank + 1 if qid == last else 1
        last = qid
        if top_k is None or rank <= top_k:
            out.append((qid, doc_id, score, rank, grade))
    return out


def read_ranked(path):
    """Rows of a ranked .parquet file or folder, as `ranked` gives them."""
    files = sorted(path.glob("part-*.parquet")) if path.is_dir() else [path]
    table = pa.concat_tables([pq.read_table(file, partitioning=None) for file in files])
    return [tuple(row[name] for name in ("qid", "doc_id", "score", "rank", "grade")) for row in table.to_pylist()]


def tree_of(path):
    """Bytes of every file under ``path``, by name."""
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
    return {str(file.relative_to(path.parent)): file.read_bytes() for file in files}
