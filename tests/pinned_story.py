"""Makes one of everything that the commands write, small and from generated data, and prints the sha256 of each.

``python -m tests.pinned_story FOLDER`` makes it all in FOLDER, which must not be there, and prints the digests as
JSON.  ``tests/test_pinned_bytes.py`` compares them with those in ``tests/golden/17/digests.json``.

The digests of Parquet files hold for one version of pyarrow, the one in ``locks/runtime.txt``; what a dataset *means*
is pinned separately, as `contents`.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import sys
from contextlib import redirect_stderr, redirect_stdout
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import polars as pl

from rankmill.cli import execute

SPLIT = ("--split", "train=0.6,valid=0.2,test=0.2")
FEW = ("--buckets", 4)
TREES = ("--preset", "defaults-1", "--max-leaves", 5, "--min-rows-in-leaf", 5)
SMALL = ("--n-rounds", 3, *TREES, "--n-threads", 2)
MODELS: dict[str, tuple[str, tuple[Any, ...]]] = {  # name -> dataset, options
    "lambdamart": ("letor", ("--lambda-l2", 1.0)),
    "oblivious": ("letor", ("--grow", "oblivious", "--max-depth", 3)),
    "sampled": ("letor", ("--query-fraction", 0.7, "--row-fraction", 0.8, "--feature-fraction", 0.6)),
    "ole": ("letor", ("--criterion", "ole", "--grow", "breadth_first")),
    "ranknet": ("csv", ("--objective", "ranknet", "--learn-from", "both")),
    "quantile": ("jsonl", ("--objective", "quantile(alpha=0.8)", "--grow", "depth_first")),
    "monotone": ("parquet", ("--objective", "l2", "--step-search", "line", "--monotone", "f1:1")),
    "listnet": ("letor", ("--objective", "listnet", "--metric", "err@5")),
}
UNSTABLE = {"seconds", "bytes_per_second", "megabytes_per_second", "peak_rss", "code_digest", "libraries"}
OF_THE_DAY = {"time", "host", "actor", "txid", "prev", "sha256", "code_digest", "libraries", "python"}


def run(*command: object) -> str:
    """Run one command and return what it prints on stdout; with ``--json`` that is one object."""
    out, reported = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(reported):
        code = execute([str(word) for word in command])
    if code:
        raise AssertionError(f"rankmill {' '.join(map(str, command))} ended with {code}: {reported.getvalue()}")
    return out.getvalue()


def write_inputs() -> None:
    """The same generated rows as LETOR text, CSV, JSON lines and Parquet, and pairs and judgments of them."""
    run("data", "synth", "-o", "rows.txt", "--queries", 50, "--docs-per-query", 12, "--features", 12, "--seed", 5)
    run("data", "synth", "-o", "synth.parquet", "--queries", 20, "--docs-per-query", 8, "--features", 11, "--seed", 6)
    names = [f"f{number}" for number in range(1, 13)]
    rows = []
    for number, line in enumerate(Path("rows.txt").read_text(encoding="utf-8").splitlines()):
        values, document = line.split(" #docid = ")
        grade, qid, *cells = values.split()
        features: list[str | None] = [cell.split(":")[1] for cell in cells]
        if number % 7 == 0:
            features[number % 12] = None  # missing
        rows.append((qid[4:], document, int(grade), 0.5 + number % 3, 1_700_000_000 + 3600 * number, features))
    with Path("rows.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["qid", "doc_id", "grade", "weight", "seen", *names])
        for q, d, g, w, t, f in rows:
            writer.writerow([q, d, g, w, t, *("" if x is None else x for x in f)])
    with Path("rows.jsonl").open("w", encoding="utf-8", newline="") as file:
        for q, d, g, w, t, f in rows:
            numbers = {name: None if x is None else float(x) for name, x in zip(names, f, strict=True)}
            file.write(json.dumps({"qid": q, "doc_id": d, "grade": g, "weight": w, "seen": t} | numbers) + "\n")
    columns = {"qid": [r[0] for r in rows], "doc_id": [r[1] for r in rows], "grade": [r[2] for r in rows]}
    numbers_of = [[None if x is None else float(x) for x in r[5]] for r in rows]
    values_of = {name: pl.Series([r[k] for r in numbers_of], dtype=pl.Float32) for k, name in enumerate(names)}
    pl.DataFrame(columns | values_of).write_parquet("rows.parquet")
    lines, judged = ["qid,better,worse,weight"], []
    for first, second in pairwise(rows):
        if first[0] == second[0] and first[2] != second[2]:
            better, worse = (first, second) if first[2] > second[2] else (second, first)
            lines.append(f"{better[0]},{better[1]},{worse[1]},{1 + len(lines) % 2}")
    Path("pairs.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    for number, row in enumerate(rows):
        if number % 5:  # the others are unjudged
            judged.append(f"{row[0]} 0 {row[1]} {row[2]}")
            if number % 11 == 0:
                judged.append(f"{row[0]} 0 {row[1]} {(row[2] + 1) % 5}")
    Path("all.qrels").write_text("".join(f"{row[0]} 0 {row[1]} {row[2]}\n" for row in rows), encoding="utf-8")
    Path("judged.qrels").write_text("\n".join([*judged, "1 0 nobody-has-it 2"]) + "\n", encoding="utf-8")


def make_datasets() -> None:
    """A dataset of each format and each way to split."""
    run("data", "ingest", "rows.txt", "-o", "letor", *SPLIT)
    run("data", "ingest", "rows.csv", "-o", "csv", "--pairs", "pairs.csv", "--time-column", "seen",
        "--split-time", "valid=2023-12-02,test=2023-12-06", *FEW)  # fmt: skip
    run("data", "ingest", "rows.jsonl", "-o", "jsonl", "--ignore", "seen", "--folds", 5, "--fold", 2, *FEW)
    run("data", "ingest", "rows.parquet", "-o", "parquet", *SPLIT, *FEW)
    run("data", "ingest", "rows.csv", "--qrels", "judged.qrels", "--aggregate", "max", "--ignore", "seen", "-o",
        "qrels", *SPLIT, *FEW)  # fmt: skip
    for name in ("letor", "csv", "jsonl", "parquet", "qrels"):
        run("data", "bin", name, "--max-bin", 31)
    run("data", "bin", "letor", "--max-bin", 15)  # a second one, the newest
    run("data", "bin", "letor", "--max-bin", 31)


def make_models() -> None:
    """A model of each kind in one registry, aliases, a bundle of a version, a search and its table."""
    for name, (dataset, options) in MODELS.items():
        reported = json.loads(
            run("train", dataset, "--name", name, "--registry", "registry", *SMALL, *options, "--json")
        )
        stored = Path("registry/blobs", name, reported["sha256"])
        Path("models").mkdir(exist_ok=True)
        Path("models", f"{name}.rankmill").write_bytes(stored.read_bytes())
    run("train", "letor", "--name", "lambdamart", "--registry", "registry", *TREES, "--resume", "lambdamart@1",
        "--n-rounds", 5, "--lambda-l2", 1.0)  # fmt: skip
    run("models", "promote", "lambdamart@1", "--registry", "registry", "--force", "--reason", "first")
    run("models", "export", "lambdamart@1", "-o", "version.tar", "--registry", "registry")
    run("tune", "letor", "-o", "tuning", "--vary", "learning_rate=0.05..0.3:log", "--trials", 2, "--repeat", 0,
        "--compare-by", "valid", "--workers", 1, "--n-rounds", 3, *TREES)  # fmt: skip


def make_ranked() -> None:
    """Ranked lists in each format, and what the commands report of them and of the datasets."""
    model = ("--registry", "registry", "--model", "lambdamart@1")
    for out in ("ranked", "ranked.parquet", "ranked.csv", "ranked.run"):
        run("rerank", "rows.txt", *model, "-o", out, "--top-k", 6, "--grade-counts")
    reports = {
        "evaluate_ranked": ("evaluate", "ranked.parquet"),
        "evaluate_run": ("evaluate", "ranked.run", "--qrels", "all.qrels", "--convention", "trec"),
        "evaluate_model": ("evaluate", "letor", *model, "--by", "query_size", "--by", "grade_mix"),
        "compare": ("compare", "lambdamart@1", "lambdamart@2", "--on", "letor", "--registry", "registry"),
        "cv": ("cv", "letor", "--folds", 3, *SMALL),
        "importance": ("inspect", "influence", "lambdamart@1", "--registry", "registry"),
        "drift": ("data", "describe", "jsonl", "--against", "letor"),
        "query": ("data", "query", "letor", "SELECT shard, row, qid, f1 FROM features ORDER BY ALL LIMIT 9"),
        **{f"describe_{name}": ("data", "describe", name) for name in ("letor", "csv", "qrels")},
    }
    Path("reports").mkdir()
    for name, command in reports.items():
        content = without(json.loads(run(*command, "--json")), UNSTABLE)
        Path("reports", f"{name}.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    for name in ("letor", "qrels"):
        Path("reports", f"describe_{name}.txt").write_text(run("data", "describe", name), encoding="utf-8")


def make(folder: Path) -> None:
    """Make all of it in ``folder``, the working folder meanwhile, so that no path is in what is written."""
    before = Path.cwd()
    folder.mkdir(parents=True)
    os.chdir(folder)
    try:
        with patch.dict(os.environ, {"LOGNAME": "operator"}), patch("socket.gethostname", return_value="trainer-1"):
            write_inputs()
            make_datasets()
            make_models()
            make_ranked()
    finally:
        os.chdir(before)


def without(content: Any, names: set[str]) -> Any:
    """Return JSON ``content`` without the fields ``names``, at any depth."""
    if isinstance(content, dict):
        return {key: without(value, names) for key, value in content.items() if key not in names}
    return [without(part, names) for part in content] if isinstance(content, list) else content


def digests(folder: Path) -> dict[str, str]:
    """Return artefact -> sha256: of a file, or of the names and digests of the files below a folder."""
    found: dict[str, str] = {}
    datasets = ("letor", "csv", "jsonl", "parquet", "qrels")
    parts = [part for dataset in datasets for part in sorted((folder / dataset).iterdir())]
    files = [path for path in sorted(folder.iterdir()) if path.is_file()]
    for path in (*files, *parts, *sorted((folder / "models").iterdir()), *sorted((folder / "reports").iterdir())):
        if path.name != "version.tar":  # holds the log entry, which says when and by which code
            found[path.relative_to(folder).as_posix()] = digest_of(path)
    found["ranked"] = digest_of(folder / "ranked")
    for name in ("table.json", "winner.toml"):
        found[f"tuning/{name}"] = digest_of(folder / "tuning" / name)
    for path in sorted((folder / "tuning").rglob("*-*.json")):
        trial = without(json.loads(path.read_text(encoding="utf-8")), {"search"})  # a key that holds that of the code
        found[path.relative_to(folder).as_posix()] = _sha256(json.dumps(trial, sort_keys=True).encode())
    for path in sorted((folder / "registry/models").rglob("*.json")):
        entry = without(json.loads(path.read_text(encoding="utf-8")), OF_THE_DAY)
        manifest = entry["entry"]["change"].pop("manifest", None)  # its digest depends on the digest of the code
        entry["entry"]["change"].pop("attachments", None)  # the machine's libraries
        entry["entry"]["change"].pop("report", None)
        if manifest is not None:
            stored = folder / "registry/blobs" / path.parent.parent.name / manifest
            entry["manifest"] = without(json.loads(stored.read_text(encoding="utf-8")), OF_THE_DAY - {"sha256"})
        found[path.relative_to(folder).as_posix()] = _sha256(json.dumps(entry, sort_keys=True).encode())
    return found


def contents(folder: Path) -> dict[str, str]:
    """Return for each dataset the sha256 over its rows as text, in stored order: the same for any writer of Parquet."""
    found = {}
    for dataset in ("letor", "csv", "jsonl", "parquet", "qrels"):
        shards = sorted(
            (json.loads((folder / dataset / "_manifest.json").read_text(encoding="utf-8")))["shards"],
            key=lambda shard: int(shard["bucket"]),
        )
        rows = pl.concat(pl.read_parquet(folder / dataset / "features" / f"{s['features']}.parquet") for s in shards)
        found[dataset] = _sha256(rows.write_csv(float_precision=9).encode())
    return found


def digest_of(path: Path) -> str:
    """Return the sha256 of a file, or of the names and digests of the files below a folder."""
    if path.is_file():
        return _sha256(path.read_bytes())
    files = sorted(file for file in path.rglob("*") if file.is_file())
    return _sha256("".join(f"{file.relative_to(path).as_posix()} {digest_of(file)}\n" for file in files).encode())


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


if __name__ == "__main__":
    target = Path(sys.argv[1]).absolute()
    make(target)
    sys.stdout.write(json.dumps({"bytes": digests(target), "rows": contents(target)}, indent=1) + "\n")
