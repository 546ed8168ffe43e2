"""Re-rank candidates of any number, in any order, in bounded memory.

Batches of input are scored and reduced to narrow rows (qid, doc_id, score, grade), which are sorted on disk and written
as ranked lists.  Everything is staged next to OUT and appears there in one step.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from pipeline.cores import available_cores
from pipeline.publish import file_digest, fsync_file, fsync_folder, staging_folder
from pipeline.sizes import parse_size
from pipeline.sources.batch import Format, ReadOptions, Source
from pipeline.sources.columns import guesses_line, guesses_of
from pipeline.sources.files import find_files
from scorer import memory, ranked_file
from scorer.errors import InputError
from scorer.forest import Forest
from scorer.memory import MemoryPlan
from scorer.model_file import canonical_json
from scorer.predict import Predictor
from scorer.progress import DocumentBar
from scorer.ranked_file import BELONGS, FACTS, GRADES, MANIFEST, counts_belong_to, grades_path, is_ranked_folder
from scorer.replacing import replace_folder, restore_replaced
from scorer.scoring import Place, Scored, score_in_order
from scorer.sorting import Spill

FORMAT = 1

PathLike = str | os.PathLike[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelIdentity:
    """Which model scored: its digest, and its place in a registry if it came from one."""

    sha256: str
    name: str | None = None
    number: int | None = None

    def __str__(self) -> str:
        return f"{self.name}@{self.number}" if self.name is not None else f"sha256 {self.sha256[:12]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RerankReport:
    """What was written where.  ``rows`` counts candidates, ``rows_written`` those among the first ``top_k``.

    ``columns_guessed`` says which columns of the candidates were guessed to be qid, doc_id and grade.
    """

    out: str
    model: ModelIdentity
    rows: int
    rows_written: int
    queries: int
    top_k: int | None
    files: tuple[str, ...]
    columns_guessed: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> str:
        """Return the report as one JSON object."""
        return json.dumps(asdict(self), sort_keys=True)

    def render(self) -> str:
        """Return the report for a person."""
        kept = "" if self.top_k is None else f", {self.rows_written:,} among the first {self.top_k:,} of their query"
        return (
            f"re-ranked {self.rows:,} candidates of {self.queries:,} queries with {self.model}{kept}\n"
            f"wrote {self.out}"
            + (f" ({', '.join(self.files)})" if len(self.files) <= 8 else f" ({len(self.files)} files)")
        )


def rerank(
    candidates: PathLike | Sequence[PathLike],
    model: Forest | PathLike,
    out: PathLike,
    *,
    top_k: int | None = None,
    memory_limit: int | str = memory.DEFAULT,
    input_format: Format = "auto",
    absent: Literal["zero", "missing"] | None = None,
    index_base: Literal[0, 1] | None = None,
    n_features: int | None = None,
    columns: Mapping[str, str] | None = None,
    n_rounds: int | None = None,
    n_threads: int = 0,
    overwrite: bool = False,
    identity: ModelIdentity | None = None,
    announce: bool = False,
) -> RerankReport:
    """Score ``candidates`` with ``model`` and write each query's documents in order to ``out``.

    Documents are ordered by score, highest first, ties by ascending doc_id (byte by byte), then by place in the input;
    queries by ascending qid.  A document without an id is named by its row number in the whole input, from 1.  The
    bytes written are the same for any memory, block size and number of threads.

    Parameters
    ----------
    candidates
        Files of candidates, in any format that judgments have; rows of one query may be scattered over them.  A folder stands for
        the files in it, and the folder ``unjudged`` of a dataset for those that the dataset has now.
    model
        A forest, or the path of a model file.
    out
        A folder of shards (part-00000.parquet, .. of whole queries, ``manifest.json``), or one file that ends in
        .parquet, .run (TREC) or .tsv.
    top_k
        Write only the first so many of each query, and beside them how often each grade occurs in the query's whole
        list (``grades.parquet``, or ``OUT.grades.parquet`` beside a single file OUT), so that an evaluation of the
        written part still knows the ideal list.
    memory_limit
        Bytes that the whole process may take, or a text such as "2GB"; at least 512 MB.
    absent, index_base, n_features
        How to read text (see `pipeline.sources.batch.ReadOptions`); None takes what the model was trained with.
    columns
        The columns of tables that are qid, doc_id and grade, by other names; what is left open is guessed.
    n_rounds
        Use only so many rounds of the model.
    n_threads
        Threads for scoring and sorting; 0 takes all cores.
    overwrite
        Replace an ``out`` that exists; a folder only if it is one of ranked lists.
    identity
        What to record about the model; its digest if left out.
    announce
        Print the memory plan on stderr, and before it what was guessed of the columns.

    Raises
    ------
    InputError
        A file is missing, ``out`` exists or is, or holds, one of the candidates, an option has no sense.
    CandidatesRejected
        The candidates lack what the model needs, or hold nothing.
    pipeline.errors.DataRejected
        The candidates break their format.
    """
    plan = MemoryPlan.of(parse_size(memory_limit, "--memory") if isinstance(memory_limit, str) else memory_limit)
    if top_k is not None and top_k < 1:
        raise InputError(f"--top-k must be 1 or more, got {top_k}")
    target = Path(out)
    paths = [file for path in _as_list(candidates) for file in _files_of(Path(path))]
    _check_apart(target, paths)
    _check_target(target, overwrite=overwrite)
    forest = model if isinstance(model, Forest) else Forest.load(model)
    options = read_options(forest, absent=absent, index_base=index_base, n_features=n_features, columns=columns)
    sources = open_sources(paths, input_format, options, announce=announce)
    predictor = Predictor(forest, n_rounds=n_rounds)
    known = identity or ModelIdentity(sha256=forest.sha256)
    threads = n_threads or available_cores()
    if announce:
        _say(plan.render())
    with staging_folder(target) as staging:
        private = staging / "spill"
        private.mkdir()
        with Spill(private, sort_bytes=plan.sort_bytes, n_threads=threads) as spill:
            total = sum(path.stat().st_size for path in paths)
            with (
                DocumentBar("scoring", total) as bar,
            ):

                def take(results: list[list[Scored]], place: Place, used: int) -> None:
                    for scored in results[0]:
                        spill.write(scored.rows, scored.dropped)
                    bar.update(place.all_rows, used)

                rows = score_in_order(
                    sources,
                    [predictor],
                    options,
                    take,
                    block_bytes=plan.block_bytes,
                    n_threads=plan.scoring_threads(threads),
                    top_k=top_k,
                )
            spill.close_for_reading()
            report = _write(spill, staging, target, known, forest, rows, top_k)
    return replace(report, columns_guessed=guesses_of(sources))


def read_options(
    forest: Forest,
    *,
    absent: Literal["zero", "missing"] | None,
    index_base: Literal[0, 1] | None,
    n_features: int | None,
    columns: Mapping[str, str] | None = None,
) -> ReadOptions:
    """Options for reading candidates of ``forest``: what is None is as in its training, else the reader's default.

    Grades mean what they meant in the judgments that it was trained on.
    """
    told: dict[str, Any] = {"absent": absent, "index_base": index_base}
    known: dict[str, Any] = {key: forest.info.get(key) if value is None else value for key, value in told.items()}
    known["negative_grades"] = forest.info.get("negative_grades")
    known = {key: value for key, value in known.items() if value is not None}
    words = forest.info.get("grades")
    return ReadOptions(
        grades=tuple((word, int(str(grade))) for word, grade in words.items()) if isinstance(words, dict) else (),
        n_features=n_features,
        grade_required=False,
        columns=columns or {},
        known_features=frozenset(forest.feature_names),
        **known,
    )


def open_sources(
    paths: Sequence[Path], input_format: Format, options: ReadOptions, *, announce: bool = False
) -> list[Source]:
    """Open each of ``paths``, and ``announce`` what was guessed of their columns.

    Raises
    ------
    InputError
        There is none, or columns are named for text that has none; that of the pipeline for one that is no file.
    """
    from pipeline.sources.jsonl.source import share_features
    from pipeline.sources.letor import check_made_ids
    from pipeline.sources.opening import open_source

    if not paths:
        raise InputError("no candidates: name at least one file")
    sources = [open_source(path, input_format, options) for path in paths]
    share_features(sources)
    check_made_ids(sources)
    unnamed = next((source.path for source in sources if source.table is None), None)
    if options.columns and unnamed is not None:
        raise InputError(f"--columns is for tables; {unnamed} is LETOR text, whose columns have no names")
    if announce and (guesses := guesses_of(sources)):
        _say(guesses_line(guesses))
    return sources


def _as_list(candidates: PathLike | Sequence[PathLike]) -> Sequence[PathLike]:
    return [candidates] if isinstance(candidates, (str, os.PathLike)) else candidates


def _files_of(path: Path) -> list[Path]:
    return find_files([path]) if path.is_dir() else [path]


def _say(line: str) -> None:
    import sys

    sys.stderr.write(f"{line}\n")


def _check_apart(target: Path, candidates: Sequence[Path]) -> None:
    """Refuse an ``OUT`` whose replacement would destroy what it was made from."""
    places = [target.resolve()]
    if ranked_file.checked_suffix(target):
        places.append(grades_path(target).resolve())
    for path in candidates:
        found = path.resolve()
        if any(found.is_relative_to(place) for place in places):
            raise InputError(
                f"{target}: {path} is a file of candidates, and would be lost; choose another name for OUT"
            )


def _check_target(target: Path, *, overwrite: bool) -> None:
    single = bool(ranked_file.checked_suffix(target))
    if not single:
        restore_replaced(target)
    if target.exists():
        if not overwrite:
            raise InputError(f"{target}: exists already; choose another name, or replace it with --overwrite")
        if single and target.is_dir():
            raise InputError(f"{target}: is a folder, a file was asked for; remove it or choose another name")
        if not single and not is_ranked_folder(target):
            raise InputError(f"{target}: is not a folder of ranked lists, so it is not replaced; choose another name")
    if single:
        _check_grades(grades_path(target), target, overwrite=overwrite)


def _check_grades(grades: Path, target: Path, *, overwrite: bool) -> None:
    """Refuse what is in the place of the side table of ``target``: it would be replaced, or taken for that table."""
    if not os.path.lexists(grades):
        return
    if counts_belong_to(grades) is None:
        raise InputError(
            f"{grades}: has the name of the grade counts of {target.name}, but is no such table, so it is not "
            "replaced; choose another name"
        )
    if not overwrite:
        raise InputError(
            f"{grades}: grade counts for {target.name} exist already; choose another name, or replace them with --overwrite"
        )


def _write(
    spill: Spill, staging: Path, target: Path, model: ModelIdentity, forest: Forest, rows: int, top_k: int | None
) -> RerankReport:
    single = bool(ranked_file.checked_suffix(target))
    folder = staging / "out"
    folder.mkdir()
    facts: dict[str, Any] = {
        "format": FORMAT,
        "kind": "ranked",
        "max_grade": forest.info.get("max_grade"),
        "model": asdict(model),
        "top_k": top_k,
    }
    metadata = {FACTS: canonical_json(facts).decode()}
    writer = ranked_file.open_writer(target, folder, metadata)
    try:
        with closing(spill.ranked(top_k)) as ranked:
            for batch in ranked:
                writer.write(batch)
        shards = writer.close()
    except BaseException:
        writer.abandon()
        raise
    listed = [asdict(shard) | {"sha256": file_digest(folder / shard.name)} for shard in shards]
    grades = grades_path(target) if single else folder / GRADES
    counted = None
    if top_k is not None:
        belongs = {BELONGS: listed[0]["sha256"]} if single else {}
        counted = ranked_file.write_grade_counts(folder / grades.name, spill.grade_counts(), metadata | belongs)
    report = RerankReport(
        out=str(target),
        model=model,
        rows=rows,
        rows_written=sum(shard.rows for shard in shards),
        queries=sum(shard.queries for shard in shards),
        top_k=top_k,
        files=tuple(shard.name for shard in shards) + (() if counted is None else (counted.name,)),
    )
    if single:
        _publish_file(folder, target, grades if counted is not None else None, stale=grades)
        return report
    facts |= {
        "grades": None if counted is None else {"name": GRADES, "sha256": file_digest(folder / GRADES)},
        "queries": report.queries,
        "rows": rows,
        "rows_written": report.rows_written,
        "shards": listed,
    }
    (folder / MANIFEST).write_bytes(canonical_json(facts) + b"\n")
    replace_folder(folder, target, staging)
    return report


def _publish_file(folder: Path, target: Path, grades: Path | None, *, stale: Path) -> None:
    """Put the ranked file in its place; between the steps it stands beside a side table that is not of it.

    Whoever reads it then is told so.  A new side table hence goes first, an old one that has no successor goes last.
    """
    for path in folder.iterdir():
        fsync_file(path)
    if grades is not None:
        (folder / grades.name).replace(grades)
        fsync_folder(target.parent)
    (folder / target.name).replace(target)
    fsync_folder(target.parent)
    if grades is None and os.path.lexists(stale):
        stale.unlink()
        fsync_folder(target.parent)
