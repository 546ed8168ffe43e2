"""Re-rank candidates of any number, in any order, in bounded memory.

Batches of input are scored and reduced to narrow rows (qid, doc_id, score, grade), which are sorted on disk and written
as ranked lists.  Output is staged next to OUT and published atomically; a killed run is resumed.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Unpack

from rankmill.foundation.errors import InputError
from rankmill.foundation.options import made_from, spelled, takes_options_of
from rankmill.foundation.process_memory import peak_bytes
from rankmill.foundation.storage.url_arguments import takes_urls
from rankmill.pipeline.dataset.digests import refuse_changed
from rankmill.pipeline.read.columns import guesses_of
from rankmill.scorer.arguments import RerankArguments
from rankmill.scorer.models.identity import ModelIdentity
from rankmill.scorer.models.loading import load_model_file
from rankmill.scorer.models.model import Model
from rankmill.scorer.options import RerankOptions
from rankmill.scorer.rerank import run
from rankmill.scorer.rerank.candidate_sources import PathLike, say
from rankmill.scorer.rerank.memory import MB
from rankmill.scorer.rerank.plan import make_plan
from rankmill.scorer.rerank.publish import check_unchanged
from rankmill.scorer.rerank.run import open_staging

_LARGE = 64 << 20  # bytes of candidates; the division of memory matters little to fewer


@dataclass(frozen=True, slots=True, kw_only=True)
class RerankReport:
    """The result of a re-ranking.  ``rows`` counts candidates, ``rows_written`` those in the top ``top_k``.

    ``columns_guessed``: the columns that were inferred to be qid, doc_id and grade.  ``lacking``: the number of
    documents of a first-stage run that had no row of features and were dropped.  ``repeated`` is the number of written
    documents that are above in the same list already, as the candidates have them several times.  Of a list of more
    than four million, the first ones are compared.  ``lacks_counts``: the top k of judged candidates is in one file
    without counts of the grades below.
    """

    out: str
    model: ModelIdentity
    rows: int
    rows_written: int
    queries: int
    top_k: int | None
    files: tuple[str, ...]
    columns_guessed: Mapping[str, str] = field(default_factory=dict)
    lacking: int = 0
    repeated: int = 0
    lacks_counts: bool = False

    def to_json(self) -> str:
        """Return the report as one JSON object."""
        return json.dumps(asdict(self), sort_keys=True)

    def render(self) -> str:
        """Return the report as text."""
        kept = "" if self.top_k is None else f", {self.rows_written:,} in the top {self.top_k:,} of their query"
        lost = (
            f"documents of the run dropped, as they have no row of features: {self.lacking:,}\n" if self.lacking else ""
        )
        if self.repeated:
            lost += f"documents that the candidates have more than once for a query: {self.repeated:,} listed again\n"
        if self.lacks_counts:
            lost += (
                "to evaluate these lists, give the judgments with --qrels, or rank again with "
                f"{spelled('grade_counts')}: the grades below"
                " the top are not in the file\n"
            )
        files = ", ".join(self.files) if len(self.files) <= 8 else f"{len(self.files)} files"
        inside = "" if self.files == (Path(self.out).name,) else f" ({files})"  # OUT may be the one file
        return (
            f"re-ranked {self.rows:,} candidates of {self.queries:,} queries with {self.model}{kept}\n{lost}"
            f"wrote {self.out}{inside}"
        )


def reports_to_json(out: PathLike, reports: Mapping[str, RerankReport]) -> str:
    """Return the ``reports`` of several models, by their labels, as one JSON object."""
    models = {label: asdict(report) for label, report in reports.items()}
    return json.dumps({"out": os.fspath(out), "models": models}, sort_keys=True)


@takes_urls
@takes_options_of(RerankOptions)
def rerank(
    candidates: PathLike | Sequence[PathLike],
    model: Model | PathLike,
    out: PathLike,
    *,
    identity: ModelIdentity | None = None,
    **options: Unpack[RerankArguments],
) -> RerankReport:
    """Score ``candidates`` with ``model`` and write each query's documents in order to ``out``.

    Documents are ordered by score, highest first, ties by ascending doc_id (byte by byte), then by position in the
    input; queries by ascending qid.  A document without an id is named by its row in the whole input, from 1: ``(row
    12)``.  The bytes written are the same for any memory, block size and number of threads.

    Parameters
    ----------
    candidates
        Files of candidates, in any format that judgments have; rows of a query may be in several files.  A folder means
        the files in it; the folder ``_unjudged`` of a dataset means those that the dataset has now.
    model
        A model, or the path of a model file.
    out
        A folder of shards (part-00000.parquet, .. of whole queries, ``_manifest.json``), or one file that ends in
        .parquet, .csv, .tsv or .run (TREC).
    identity
        The identity of the model to record; default: its digest.
    **options
        How to re-rank, such as ``top_k=100``: all of `rankmill.scorer.options.RerankOptions`.

    Raises
    ------
    InputError
        A file is missing or given twice, ``out`` exists or overlaps with the candidates, an option is invalid, or
        ``run`` has more documents than fit into memory.
    ConflictError
        Another run wrote ``out`` meanwhile, and ``overwrite`` is false; or workers were lost, and the same call
        resumes.
    ClusterUnavailable
        The scheduler of ``cluster`` does not answer, or has no workers.
    CandidatesRejected
        The candidates lack features of the model or are empty; a document of ``run`` has no row, or two.
    rankmill.foundation.errors.DataRejected
        The candidates are malformed.
    """
    model = model if isinstance(model, Model) else load_model_file(model)
    (report,) = _rerank(
        candidates, {"": (model, identity)}, Path(out), made_from(RerankOptions, options), several=False
    )
    return report


@takes_urls
@takes_options_of(RerankOptions)
def rerank_several(
    candidates: PathLike | Sequence[PathLike],
    models: Mapping[str, tuple[Model, ModelIdentity | None]],
    out: PathLike,
    **options: Unpack[RerankArguments],
) -> list[RerankReport]:
    """Rank ``candidates`` with each of ``models``, reading them once.

    The folder ``out`` gets a folder for each model, named by its key, with the files that `rerank` would write, and a
    manifest of its own.  Returns a report for each model.

    Raises
    ------
    InputError
        As `rerank`; ``out`` is the name of one file, a key is not a valid folder name, or the models were trained on
        data that was read in different ways.
    """
    for label in models:
        if not label or label.startswith(".") or "/" in label:
            raise InputError(f"{label!r} cannot be the name of a folder in {os.fspath(out)}; rename the model file")
    return _rerank(candidates, models, Path(out), made_from(RerankOptions, options), several=True)


def _rerank(
    candidates: PathLike | Sequence[PathLike],
    models: Mapping[str, tuple[Model, ModelIdentity | None]],
    target: Path,
    options: RerankOptions,
    *,
    several: bool,
) -> list[RerankReport]:
    """Rank ``candidates`` by all ``models``; ``several`` writes a folder for each."""
    started = time.monotonic()
    plan = make_plan(candidates, models, target, options, several=several)
    if options.announce and sum(source.path.stat().st_size for source in plan.sources) >= _LARGE:
        say(plan.memory.render())
    with open_staging(plan) as (staging, journal):
        scoring: run.Scoring = run.score_here
        if options.cluster is not None:
            from rankmill.scorer.rerank import on_cluster

            on_cluster.check(plan)
            journal.write(staging)
            scoring = on_cluster.score
        before = journal.place.all_rows
        if options.announce and before:
            say(f"resuming after {before:,} candidates of an earlier run; use {spelled('fresh')} to start over")
        if not journal.scored:
            run.score(plan, staging, journal, scoring)
        written = run.write(plan, staging, journal)
        refuse_changed(plan.states)
        check_unchanged(target, overwrite=options.overwrite)
        run.publish(plan, staging, written)
    if options.announce:
        seconds, scored = time.monotonic() - started, journal.place.all_rows - before
        rows = "candidates" if plan.stage is None else "rows"
        rate = f"{scored:,} {rows} in {seconds:,.1f} s ({scored / seconds:,.0f}/s)"
        say(f"{rate}, peak memory {peak_bytes() / MB:,.0f} MB")
    return [
        RerankReport(
            out=str(target / label if several else target),
            model=model.identity,
            rows=journal.place.ranked,
            rows_written=files.total("rows"),
            queries=files.total("queries"),
            top_k=options.top_k,
            files=files.names,
            columns_guessed=guesses_of(source.table for source in plan.sources),
            lacking=journal.lacking,
            repeated=files.total("repeated"),
            lacks_counts=files.lacks_counts,
        )
        for (label, model), files in zip(plan.models.items(), written, strict=True)
    ]
