"""Evaluate whatever there is: a ranked list on disk, a TREC run with judgments, or candidates with a model."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rankmill.foundation.cores import available_cores
from rankmill.foundation.errors import InputError
from rankmill.foundation.storage.publish import file_digest, write_atomically
from rankmill.pipeline.dataset import Dataset
from rankmill.pipeline.places import MANIFEST_NAME, path_in
from rankmill.pipeline.sources.batch import Format, ReadOptions, RowBatch, Source
from rankmill.pipeline.sources.columns import TableColumns
from rankmill.pipeline.sources.files import find_files
from rankmill.scorer.evaluate_scored import evaluate_scored
from rankmill.scorer.evaluation import Evaluation
from rankmill.scorer.forest import Forest
from rankmill.scorer.links import MAX_GAINED_GRADE
from rankmill.scorer.lists import read_grade_counts
from rankmill.scorer.metrics import DEFAULT_METRICS, Metric, parse_metric
from rankmill.scorer.metrics.conventions import OURS, Convention, named_convention
from rankmill.scorer.opening import open_sources, read_options
from rankmill.scorer.predict import Predictor
from rankmill.scorer.query_columns import column_of_candidates, column_of_dataset, column_of_scored
from rankmill.scorer.ranked_file import (
    BESIDE,
    FACTS,
    GRADE_TABLE,
    MANIFEST,
    SCORED_ROW,
    counts_belong_to,
    is_ranked_folder,
    side_file,
)
from rankmill.scorer.rerank import PathLike
from rankmill.scorer.scored_file import as_scored, read_scored
from rankmill.scorer.scoring import Place, Scored, ScoringLimits, score_in_order
from rankmill.scorer.seen import Scope, TrainedModel, scope_of, scope_of_candidates
from rankmill.scorer.slices import slices_of
from rankmill.scorer.trec import read_qrels

BLOCK_BYTES = 16 << 20
COLUMNS_BYTES = 64 << 20  # of a group of rows of Parquet, in a thread
BATCH_ROWS = 65_536


def evaluate(
    subject: PathLike | Sequence[PathLike] | pa.Table,
    *,
    model: Forest | PathLike | None = None,
    qrels: PathLike | None = None,
    metrics: Sequence[str | Metric] = DEFAULT_METRICS,
    split: str | None = None,
    trained: TrainedModel | None = None,
    convention: str = OURS,
    gain: str | None = None,
    discount: str | None = None,
    ties: str | None = None,
    ties_seed: int | None = None,
    nothing_relevant: str | None = None,
    relevant_from: int | None = None,
    max_grade: int | None = None,
    short_lists: str | None = None,
    map_normalisation: str | None = None,
    precision_normalisation: str | None = None,
    complete: bool = False,
    input_format: Format = "auto",
    absent: Literal["zero", "missing"] | None = None,
    index_base: Literal[0, 1] | None = None,
    n_features: int | None = None,
    columns: Mapping[str, str] | None = None,
    n_rounds: int | None = None,
    n_threads: int = 0,
    by: Sequence[str] = (),
    announce: bool = False,
) -> Evaluation:
    """Compute ranking metrics per query and on average.

    Parameters
    ----------
    subject
        Without ``model``: a scored list, as `rerank` writes it (a folder, .parquet, .tsv), a TREC run, or a table with
        the columns qid, score, and doc_id and grade where known.  What `rerank` kept of longer lists is evaluated with
        the grade counts of the whole lists.  With ``model``: files of candidates and folders of them, or the folder of one
        dataset.
    model
        The forest, or path of a model file, that scores the candidates.
    qrels
        TREC judgments; they rule over grades in the subject.
    metrics
        Such as "ndcg@10"; see `rankmill.scorer.metrics.parse_metric`.
    split
        The split of the dataset to evaluate on, or ``all``.  None: where the model was trained on this dataset, the split
        that it has not seen, ``test`` before ``valid``; else all of it.
    trained
        What the model was trained on, where more is known than it says itself; see `rankmill.scorer.seen`.
    convention
        Whose conventions: "rankmill" or a tool's, see `rankmill.scorer.metrics.conventions`.
    gain, discount, ties, ties_seed, nothing_relevant, relevant_from, max_grade, short_lists, map_normalisation, precision_normalisation
        What rules over the convention, see `rankmill.scorer.metrics.Policy`.  Where neither says ``max_grade``, it is that of
        the model's training data, else the highest grade there is.
    complete
        With qrels: judged queries that the run lacks count as well, with nothing retrieved.
    input_format, absent, index_base, n_features, columns
        How to read candidates (see `rerank`).
    by
        What to slice the queries by: ``query_size``, ``grade_mix``, or a column of the subject (see `rankmill.scorer.slices`).
    announce
        Tell on stderr what was guessed of the columns of candidates.
    n_rounds, n_threads
        Rounds of the model to use, threads to score with; None and 0: all.

    Raises
    ------
    InputError
        Something asked for is not there, a convention is unknown, or the model has seen all queries and no split is named.
    CandidatesRejected
        The scored list or the candidates cannot be used.
    """
    wanted = [metric if isinstance(metric, Metric) else parse_metric(metric) for metric in metrics]
    rules = named_convention(convention).but(
        gain=gain, discount=discount, ties=ties, ties_seed=ties_seed, nothing_relevant=nothing_relevant,
        relevant_from=relevant_from, max_grade=max_grade, short_lists=short_lists,
        map_normalisation=map_normalisation, precision_normalisation=precision_normalisation,
    )  # fmt: skip
    if complete and qrels is None:
        raise InputError("--complete counts judged queries that a run lacks: give the judgments with --qrels FILE")
    counts: Path | None = None
    scored: Path | pa.Table
    known_grade: int | None = None
    column: Callable[[str], pl.DataFrame]
    scope: Scope | None = None
    if model is not None:
        if isinstance(subject, pa.Table):
            raise InputError("a table of scores needs no model; leave the model out, or name files of candidates")
        forest = model if isinstance(model, Forest) else Forest.load(model)
        trained = trained or TrainedModel.of(forest)
        options = read_options(forest, absent=absent, index_base=index_base, n_features=n_features, columns=columns)
        dataset, scope = chosen_queries(_paths(subject), split, [trained])
        split = None if scope is None else scope.split
        predictor = Predictor(forest, n_rounds=n_rounds)
        sources: list[Source] = (
            open_sources(_files(_paths(subject)), input_format, options, announce=announce)
            if dataset is None
            else [DatasetSource(dataset, split, predictor.feature_names)]
        )
        scored = _scored_rows(sources, predictor, options, n_threads or available_cores())
        known_grade = _grade_or_none(forest.info.get("max_grade"))
        column = partial(_column_of_candidates, subject, split, input_format, options)
    elif split is not None:
        raise InputError("--split chooses a part of a dataset, which needs a model to be scored: give --model MODEL")
    elif isinstance(subject, pa.Table):
        scored = subject
        column = partial(column_of_scored, scored)
    else:
        scored = _one_path(subject)
        column = partial(column_of_scored, scored)
        counts, known_grade = recorded_facts(scored, with_counts=qrels is None)
    if any(metric.name == "err" for metric in wanted):
        rules = with_scale(rules, scored, qrels, known_grade, counts)
    found = evaluate_scored(
        scored,
        wanted,
        rules,
        qrels=None if qrels is None else Path(qrels),
        grade_counts=counts,
        complete=complete,
    )
    if scope is None and trained is not None:
        scope = scope_of_candidates([trained], found.qids)
    return replace(found, scope=scope, slices=tuple(part for name in by for part in slices_of(found, name, column)))


def recorded_facts(scored: Path, *, with_counts: bool) -> tuple[Path | None, int | None]:
    """Find what `rerank` recorded about a list: the grade counts of the whole lists, and the highest grade of the scale.

    Raises
    ------
    InputError
        ``with_counts``, and they are lacking where only the top was kept, or are those of another list.
    """
    facts = _recorded_facts(scored)
    return _grade_counts(scored, facts) if with_counts else None, _grade_or_none(facts.get("max_grade"))


def with_scale(
    rules: Convention,
    scored: Path | pa.Table,
    qrels: PathLike | None,
    known_grade: int | None,
    counts: Path | None = None,
) -> Convention:
    """Put the highest grade of the scale into ``rules`` that leave it open: the one known, else the highest there is.

    Where only the top of the lists was kept, ``counts`` knows of the rest.
    """
    if rules.policy.max_grade is not None:
        return rules
    highest = known_grade or _highest_grade(scored, None if qrels is None else Path(qrels), counts)
    if highest > MAX_GAINED_GRADE:
        raise InputError(
            f"metric err: found grade {highest}, grades of at most {MAX_GAINED_GRADE} say how likely a document satisfies; name "
            "other metrics with --metric"
        )
    return rules.but(max_grade=highest)


class DatasetSource:
    """A dataset, or one split of it, as a source of candidates; the narrow columns are held in memory."""

    def __init__(self, dataset: Dataset, split: str | None, features: Sequence[str]) -> None:
        self.path = dataset.path
        self.position = 0
        lacking = set(features) - set(dataset.feature_names)
        self.columns: tuple[str, ...] | None = dataset.feature_names if lacking else tuple(features)
        self.fields: tuple[str, ...] = ("grade",)
        self.table: TableColumns | None = None
        self._dataset, self._split = dataset, split
        self._size = dataset.path.stat().st_size  # what a bar takes for the size of the whole

    def names(self, width: int) -> tuple[str, ...]:  # noqa: ARG002
        """Return the names of the features; they are known beforehand."""
        return self.columns or ()

    def batches(self, block_bytes: int = BLOCK_BYTES) -> Iterator[RowBatch]:
        """Yield the rows in canonical order."""
        columns = self.columns or ()
        rows = self._dataset.rows(self._split, ("qid", "doc_id", "grade"))
        batch_rows = min(max(1, block_bytes // (4 * max(1, len(columns)))), BATCH_ROWS)
        at = 0
        for values in self._dataset.feature_batches(self._split, list(columns), batch_rows):
            part = rows.slice(at, len(values)).combine_chunks()
            at += len(values)
            self.position = self._size * at // rows.num_rows
            yield RowBatch(
                qid=_one_chunk(part["qid"]),
                doc_id=_one_chunk(part["doc_id"]),
                grade=part["grade"].to_numpy(),
                values=values,
            )


def write_per_query(evaluation: Evaluation, path: Path) -> None:
    """Write one row a query, qid and a column a metric (empty where the query is skipped), to .tsv, .csv or .parquet.

    Raises
    ------
    InputError
        The name ends in something else.
    """
    checked_per_query(path)
    values = [evaluation.values[metric] for metric in evaluation.metrics]
    names = [str(metric) for metric in evaluation.metrics]
    if path.suffix.lower() == ".parquet":
        columns = [pa.array(evaluation.qids, pa.string()), *(pa.array(v, from_pandas=True) for v in values)]
        sink = io.BytesIO()
        pq.write_table(pa.table(dict(zip(["qid", *names], columns, strict=True))), sink)
        data = sink.getvalue()
    else:
        page = io.StringIO()
        writer = csv.writer(page, delimiter="\t" if path.suffix.lower() == ".tsv" else ",", lineterminator="\n")
        writer.writerow(["qid", *names])
        for qid, *cells in zip(evaluation.qids, *(v.tolist() for v in values), strict=True):
            writer.writerow([qid, *("" if math.isnan(cell) else repr(cell) for cell in cells)])
        data = page.getvalue().encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, data)


def checked_per_query(path: Path) -> None:
    """Raise InputError unless ``path`` names a format that `write_per_query` knows."""
    if path.suffix.lower() not in {".tsv", ".csv", ".parquet"}:
        raise InputError(f"{path}: expected a name that ends in .tsv, .csv or .parquet for the values per query")


def chosen_queries(
    paths: Sequence[Path], split: str | None, models: Sequence[TrainedModel], qids: Sequence[str] = ()
) -> tuple[Dataset | None, Scope | None]:
    """Open the dataset that ``paths`` name and choose which of its queries are scored; (None, None) for files of candidates.

    Raises
    ------
    InputError, CandidatesRejected
        As `rankmill.scorer.seen.scope_of`; or ``split`` is given for files.
    """
    if (split is not None and len(paths) == 1 and paths[0].is_dir()) or names_dataset(paths):
        dataset = Dataset.open(paths[0])
        return dataset, scope_of(dataset, split, models, qids)
    if split is not None:
        raise InputError(f"--split chooses a part of a dataset; {', '.join(map(str, paths))} is not the folder of one")
    return None, None


def _scored_rows(sources: Sequence[Source], predictor: Predictor, options: ReadOptions, n_threads: int) -> pa.Table:
    """Return the rows of all ``sources`` with their scores, as ``SCORED_ROW``, in the order of the input."""
    rows: list[pa.RecordBatch] = []

    def take(results: list[list[Scored]], _: Place) -> None:
        rows.extend(part.rows for part in results[0])

    score_in_order(sources, [predictor], options, take, ScoringLimits(n_threads, BLOCK_BYTES, COLUMNS_BYTES))
    return pa.Table.from_batches(rows, SCORED_ROW)


def _column_of_candidates(
    subject: PathLike | Sequence[PathLike], split: str | None, input_format: Format, options: ReadOptions, name: str
) -> pl.DataFrame:
    paths = _paths(subject)
    if names_dataset(paths):
        return column_of_dataset(Dataset.open(paths[0]), split, name)
    return column_of_candidates(_files(paths), input_format, options, name)


def names_dataset(paths: Sequence[Path]) -> bool:
    """Whether ``paths`` are the folder of one dataset; another folder stands for the files of candidates in it."""
    return len(paths) == 1 and path_in(paths[0], MANIFEST_NAME).is_file() and not is_ranked_folder(paths[0])


def _files(paths: Sequence[Path]) -> list[Path]:
    return [file for path in paths for file in (find_files([path]) if path.is_dir() else [path])]


def _paths(subject: PathLike | Sequence[PathLike]) -> list[Path]:
    return [Path(subject)] if isinstance(subject, str) or not isinstance(subject, Sequence) else [*map(Path, subject)]


def _one_path(subject: PathLike | Sequence[PathLike]) -> Path:
    paths = _paths(subject)
    if len(paths) != 1:
        raise InputError(f"expected one scored list, got {len(paths)}; candidates need --model MODEL")
    return paths[0]


def _one_chunk(column: pa.ChunkedArray[Any]) -> Any:
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)


def _grade_or_none(value: object) -> int | None:
    return value if isinstance(value, int) and value >= 1 else None


def _recorded_facts(path: Path) -> dict[str, Any]:
    """Return what `rerank` recorded about the list at ``path``; nothing if it was not written by it, or is text."""
    try:
        if path.is_dir():
            manifest = side_file(path, MANIFEST)
            if not manifest.exists():  # each shard says the same of itself
                return _recorded_facts(min(path.glob("part-*.parquet"), default=manifest))
            facts = json.loads(manifest.read_bytes())
        elif path.suffix.lower() == ".parquet":
            facts = json.loads((pq.read_schema(path).metadata or {}).get(FACTS.encode(), b"{}"))
        else:
            return {}
    except (OSError, ValueError, pa.ArrowInvalid):
        return {}  # whoever reads the rows says what is wrong with it
    return facts if isinstance(facts, dict) else {}


def _grade_counts(path: Path, facts: dict[str, Any]) -> Path | None:
    """Find the grade counts that `rerank` left for a list of which it kept the top.

    InputError if they are lacking (the ideal lists would be those of the top, and the metrics too high), or are those
    of another list.
    """
    if not path.exists():
        return None
    counts = side_file(path, GRADE_TABLE) if path.is_dir() else path.with_name(f"{path.name}.{BESIDE}")
    if not counts.is_file():
        if facts.get("top_k") is not None and _has_grades(path):
            raise InputError(
                f"{path}: holds the first {facts['top_k']} of each query, but the grade counts of the whole lists, "
                f"{counts.name}, are not there; put them back, re-rank again, or give the judgments with --qrels FILE"
            )
        return None
    if not path.is_dir() and counts_belong_to(counts) != file_digest(path):
        raise InputError(f"{counts}: belongs to another version of {path.name}; re-rank again, or remove it")
    return counts


def _has_grades(path: Path) -> bool:
    """Whether any row of a Parquet list has a grade: one without has no grade counts either."""
    scored = read_scored(path)
    return "grade" in scored.column_names and scored["grade"].null_count < scored.num_rows


def _highest_grade(scored: Path | pa.Table, qrels: Path | None, counts: Path | None) -> int:
    if qrels:
        table = read_qrels(qrels)
    else:
        table = as_scored(scored, "scored table") if isinstance(scored, pa.Table) else read_scored(scored)
    if "grade" not in table.column_names:
        return 1  # there is nothing to evaluate; evaluate_scored says so
    tables = [table] if counts is None else [table, read_grade_counts(counts)]
    return max(1, *(pc.max(each["grade"]).as_py() or 1 for each in tables))
