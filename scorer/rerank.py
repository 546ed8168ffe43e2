"""Re-rank candidates of any number, in any order, in bounded memory.

Batches of input are scored and reduced to narrow rows (qid, doc_id, score, grade), which are sorted on disk and written
as ranked lists.  Output is staged next to OUT and published atomically; a killed run is resumed.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Unpack

from rankmill.foundation.errors import InputError
from rankmill.foundation.options import made_from, spelled, takes_options_of
from rankmill.foundation.process_memory import beside_bytes, peak_bytes
from rankmill.foundation.records import canonical_json
from rankmill.foundation.storage.publish import file_digest
from rankmill.foundation.storage.staging import staging_folder
from rankmill.foundation.storage.url_arguments import takes_urls
from rankmill.pipeline.options import ReadOptions
from rankmill.pipeline.sources.batch import Source
from rankmill.pipeline.sources.columns import guesses_of
from rankmill.scorer.arguments import RerankArguments
from rankmill.scorer.candidate_sources import (
    PathLike,
    files_of,
    open_sources,
    paths_of,
    read_options,
    say,
    shared_options,
)
from rankmill.scorer.first_stage import BYTES_OF_A_DOCUMENT, FirstStage
from rankmill.scorer.journal import Journal, OfModel, RankedShard, run_key
from rankmill.scorer.memory import MB, MemoryPlan
from rankmill.scorer.model import Model
from rankmill.scorer.model_service import ModelIdentity
from rankmill.scorer.models import load_model_file, predictor_of
from rankmill.scorer.options import RerankOptions
from rankmill.scorer.predictor import Predictor
from rankmill.scorer.publish_ranked import check_apart, check_target, check_unchanged, replace_folder
from rankmill.scorer.ranked_file import FORMAT, MANIFEST, SEVERAL, checked_suffix
from rankmill.scorer.ranked_writer import RankedFacts, RankedFiles, publish_file, write_lists
from rankmill.scorer.scoring import InputPosition, Scored, ScoringLimits, score_in_order
from rankmill.scorer.sorting import ScoreSpill

CHECKPOINT_ROWS = 1_000_000
"""Number of candidates between checkpoints; a later run does not score candidates before a checkpoint again."""
_LARGE = 64 << 20  # bytes of candidates; the division of memory matters little to fewer


@dataclass(frozen=True, slots=True, kw_only=True)
class RerankReport:
    """The result of a re-ranking.  ``rows`` counts candidates, ``rows_written`` those in the top ``top_k``.

    ``columns_guessed``: the columns that were inferred to be qid, doc_id and grade.  ``lacking``: the number of documents of
    a first-stage run that had no row of features and were dropped.
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

    def to_json(self) -> str:
        """Return the report as one JSON object."""
        return json.dumps(asdict(self), sort_keys=True)

    def render(self) -> str:
        """Return the report as text."""
        kept = "" if self.top_k is None else f", {self.rows_written:,} in the top {self.top_k:,} of their query"
        lost = (
            f"documents of the run dropped, as they have no row of features: {self.lacking:,}\n" if self.lacking else ""
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

    Documents are ordered by score, highest first, ties by ascending doc_id (byte by byte), then by position in the input;
    queries by ascending qid.  A document without an id is named by its row number in the whole input, from 1.  The
    bytes written are the same for any memory, block size and number of threads.

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
        Another run wrote ``out`` meanwhile, and ``overwrite`` is false.
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

    The folder ``out`` gets a folder for each model, named by its key, with the files that `rerank` would write, and a manifest of
    its own.  Returns a report for each model.

    Raises
    ------
    InputError
        As `rerank`; ``out`` is the name of one file, a key is not a valid folder name, or the models were trained on data that was
        read in different ways.
    """
    for label in models:
        if not label or label.startswith(".") or "/" in label:
            raise InputError(f"{label!r} cannot be the name of a folder in {os.fspath(out)}; rename the model file")
    return _rerank(candidates, models, Path(out), made_from(RerankOptions, options), several=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Model:
    model: Model
    identity: ModelIdentity
    predictor: Predictor


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """Candidates, models, output and memory of a run, all checked before the first row is read."""

    target: Path
    several: bool
    models: Mapping[str, _Model]
    sources: Sequence[Source]
    reading: ReadOptions
    stage: FirstStage | None
    memory: MemoryPlan
    options: RerankOptions
    key: str

    @property
    def single(self) -> bool:
        """Whether OUT is one file."""
        return bool(checked_suffix(self.target))


def _make_plan(
    candidates: PathLike | Sequence[PathLike],
    models: Mapping[str, tuple[Model, ModelIdentity | None]],
    target: Path,
    options: RerankOptions,
    *,
    several: bool,
) -> _Plan:
    plan = MemoryPlan.of(options.memory).with_run(beside_bytes())
    paths, runs = files_of(paths_of(candidates)), files_of(paths_of(options.run))
    if options.lacking == "drop" and not runs:
        raise InputError(f"{spelled('lacking')} is for the documents of a run; name the run with {spelled('run')}")
    check_apart(target, [*paths, *runs])
    check_target(target, overwrite=options.overwrite, several=several)
    ranking = {
        label: _Model(
            model=model,
            identity=identity or ModelIdentity(sha256=model.sha256),
            predictor=predictor_of(model, n_rounds=options.n_rounds, start_round=options.start_round),
        )
        for label, (model, identity) in models.items()
    }
    plan = plan.with_models(sum(len(model.model.to_bytes()) for model in ranking.values()))
    reading = shared_options({label: read_options(options, model.model) for label, model in ranking.items()})
    sources = open_sources(paths, options.format, reading, announce=options.announce)
    stage = FirstStage.read(runs, plan.run_bytes) if runs else None
    if stage is not None:
        plan = plan.with_run(len(stage) * BYTES_OF_A_DOCUMENT)
    read_as = {each.name: getattr(reading, each.name) for each in fields(reading)}
    key = run_key(
        [*paths, *(sizes for source in sources if (sizes := getattr(source, "sizes_path", None)) is not None), *runs],
        {
            "format": FORMAT,
            "models": [[label, *asdict(model.identity).values()] for label, model in ranking.items()],
            "reading": repr(read_as | {"known_features": sorted(reading.known_features)}),
            "input_format": options.format,
            "n_rounds": options.n_rounds,
            "start_round": options.start_round,
            "top_k": options.top_k,
            "block_bytes": plan.block_bytes,
            "form": checked_suffix(target),
            "several": several,
            "runs": len(runs),
            "lacking": options.lacking,
        },
    )
    return _Plan(
        target=target, several=several, models=ranking, sources=sources, reading=reading, stage=stage, memory=plan,
        options=options, key=key,
    )  # fmt: skip


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
    plan = _make_plan(candidates, models, target, options, several=several)
    if options.announce and sum(source.path.stat().st_size for source in plan.sources) >= _LARGE:
        say(plan.memory.render())
    with _open_run(plan) as run:
        before = run.journal.place.all_rows
        if options.announce and before:
            say(f"resuming after {before:,} candidates of an earlier run; use {spelled('fresh')} to start over")
        if not run.journal.scored:
            run.score()
        written = run.write()
        check_unchanged(target, overwrite=options.overwrite)
        run.publish(written)
    if options.announce:
        seconds, scored = time.monotonic() - started, run.journal.place.all_rows - before
        rows = "candidates" if plan.stage is None else "rows"
        rate = f"{scored:,} {rows} in {seconds:,.1f} s ({scored / seconds:,.0f}/s)"
        say(f"{rate}, peak memory {peak_bytes() / MB:,.0f} MB")
    return [
        RerankReport(
            out=str(target / label if several else target),
            model=model.identity,
            rows=run.journal.place.ranked,
            rows_written=files.rows,
            queries=files.queries,
            top_k=options.top_k,
            files=files.names,
            columns_guessed=guesses_of(source.table for source in plan.sources),
            lacking=run.journal.lacking,
        )
        for (label, model), files in zip(plan.models.items(), written, strict=True)
    ]


@contextmanager
def _open_run(plan: _Plan) -> Iterator[_Run]:
    """Open a staging folder with a spill for each model; that of a killed run of the same ``plan`` is reused."""
    may_resume = not plan.options.fresh

    def resumable(folder: Path) -> bool:
        return may_resume and Journal.read(folder, plan.key) is not None

    with staging_folder(plan.target, resumable) as staging, ExitStack() as stack:
        may_resume = True  # from here on: keep the folder for a later run
        journal = Journal.read(staging, plan.key) or Journal(
            key=plan.key, models={each: OfModel() for each in plan.models}
        )
        spills = []
        for number, of_model in enumerate(journal.models.values()):
            folder = staging / f"spill-{number}"
            folder.mkdir(exist_ok=True)
            sort_bytes, n_threads = plan.memory.sort_bytes, plan.options.threads
            spill = ScoreSpill(folder, sort_bytes=sort_bytes, n_threads=n_threads, written=of_model.spilled)
            spills.append(stack.enter_context(spill))
        yield _Run(plan, staging, journal, spills)


@dataclass(frozen=True, slots=True)
class _Run:
    """One run of a plan: score, write, publish; an earlier run may have done part of each."""

    plan: _Plan
    staging: Path
    journal: Journal
    spills: Sequence[ScoreSpill]

    def score(self) -> None:
        """Score the input that the journal does not cover, with a checkpoint now and then."""
        plan, stage = self.plan, self.plan.stage

        def take(results: list[list[Scored]], place: InputPosition) -> None:
            for spill, parts in zip(self.spills, results, strict=True):
                for part in parts:
                    spill.write(part.rows, part.dropped)
            if place.all_rows - self.journal.place.all_rows >= CHECKPOINT_ROWS:
                self._checkpoint(place)

        if stage is not None:
            stage.restore_seen(self.journal.seen)
        n_threads = plan.memory.scoring_threads(plan.options.threads)
        limits = ScoringLimits(
            n_threads, plan.memory.block_bytes, plan.memory.columns_bytes(n_threads), plan.memory.best_bytes
        )
        predictors = [model.predictor for model in plan.models.values()]
        top_k, begin = plan.options.top_k, self.journal.place
        end = score_in_order(
            plan.sources, predictors, plan.reading, take, limits, top_k=top_k, begin=begin, stage=stage
        )
        if stage is not None:
            stage.check_seen(plan.options.lacking)
            self.journal.lacking = stage.lacking
        self.journal.scored = True
        self._checkpoint(end)

    def write(self) -> list[RankedFiles]:
        """Sort and write the lists of each model, after the shards that exist."""
        out = self.staging / "out"
        if self.plan.single:
            shutil.rmtree(out, ignore_errors=True)
        out.mkdir(exist_ok=True)
        return [
            self._write_model(out / label, model, self.journal.models[label], spill)
            for (label, model), spill in zip(self.plan.models.items(), self.spills, strict=True)
        ]

    def _write_model(self, folder: Path, model: _Model, of_model: OfModel, spill: ScoreSpill) -> RankedFiles:
        folder.mkdir(exist_ok=True)
        if of_model.dealt is None:
            of_model.dealt = spill.partition()
            self.journal.write(self.staging)
        of_model.keep_whole_shards(folder)

        def finished(shard: RankedShard) -> None:
            of_model.shards.append(shard)
            self.journal.write(self.staging)

        facts = RankedFacts(
            max_grade=model.model.info.get("max_grade"), model=model.identity, top_k=self.plan.options.top_k
        )
        spill.close_for_reading(of_model.dealt)
        rows, done = self.journal.place.ranked, list(of_model.shards)
        written = write_lists(spill, folder, self.plan.target, facts, rows=rows, done=done, finished=finished)
        spill.close()
        return written

    def publish(self, lists: Sequence[RankedFiles]) -> None:
        """Publish the output as OUT."""
        if self.plan.single:
            publish_file(lists[0], self.plan.target)
            return
        out = self.staging / "out"
        if self.plan.several:
            each = [{"label": label, "sha256": file_digest(out / label / MANIFEST)} for label in self.plan.models]
            (out / MANIFEST).write_bytes(canonical_json({"format": FORMAT, "kind": SEVERAL, "models": each}) + b"\n")
        shutil.rmtree(self.staging / "ready", ignore_errors=True)
        replace_folder(out, self.plan.target, self.staging)

    def _checkpoint(self, place: InputPosition) -> None:
        """Make the scores up to ``place`` durable."""
        for label, spill in zip(self.plan.models, self.spills, strict=True):
            self.journal.models[label].spilled = spill.checkpoint()
        stage = self.plan.stage
        self.journal.place = place
        self.journal.seen = "" if stage is None or self.journal.scored else stage.seen_as_text()
        self.journal.write(self.staging)
