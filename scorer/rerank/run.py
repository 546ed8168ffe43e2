"""One run of a re-ranking: its plan, all checked before the first row is read, and its phases score, write, publish."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from rankmill.foundation.errors import InputError
from rankmill.foundation.options import spelled
from rankmill.foundation.process_memory import beside_bytes
from rankmill.foundation.records import canonical_json
from rankmill.foundation.storage.publish import file_digest
from rankmill.foundation.storage.staging import staging_folder
from rankmill.pipeline.dataset.digests import FileState, states_of
from rankmill.pipeline.options import ReadOptions
from rankmill.pipeline.read.batch import Source
from rankmill.pipeline.read.files import refuse_copies
from rankmill.scorer.models.loading import predictor_of
from rankmill.scorer.models.model import Model
from rankmill.scorer.models.model_service import ModelIdentity
from rankmill.scorer.models.predictor import Predictor
from rankmill.scorer.options import RerankOptions
from rankmill.scorer.rerank.candidate_sources import (
    PathLike,
    files_of,
    open_sources,
    paths_of,
    read_options,
    shared_options,
)
from rankmill.scorer.rerank.first_stage import BYTES_OF_A_DOCUMENT, FirstStage
from rankmill.scorer.rerank.journal import Journal, OfModel, RankedShard, run_key
from rankmill.scorer.rerank.kept_columns import KeptColumns, appended
from rankmill.scorer.rerank.memory import MemoryPlan
from rankmill.scorer.rerank.publish import check_apart, check_target, replace_folder
from rankmill.scorer.rerank.ranked_file import FORMAT, MANIFEST, SEVERAL, checked_suffix
from rankmill.scorer.rerank.ranked_writer import RankedFacts, RankedFiles, publish_file, write_lists
from rankmill.scorer.rerank.scoring import InputPosition, Scored, ScoringLimits, score_in_order
from rankmill.scorer.rerank.sorting import NOTHING_KEPT, ScoreSpill

CHECKPOINT_ROWS = 1_000_000
"""Number of candidates between checkpoints; a later run does not score candidates before a checkpoint again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelToRank:
    """A model, laid out for prediction."""

    model: Model
    identity: ModelIdentity
    predictor: Predictor


@dataclass(frozen=True, slots=True, kw_only=True)
class RerankPlan:
    """Candidates, models, output and memory of a run, all checked before the first row is read."""

    target: Path
    several: bool
    models: Mapping[str, ModelToRank]
    sources: Sequence[Source]
    reading: ReadOptions
    stage: FirstStage | None
    memory: MemoryPlan
    options: RerankOptions
    key: str
    states: Mapping[Path, FileState]
    """The states of the files of candidates and runs before they are read."""
    kept: KeptColumns | None = None

    @property
    def single(self) -> bool:
        """Whether OUT is one file."""
        return bool(checked_suffix(self.target))


def make_plan(
    candidates: PathLike | Sequence[PathLike],
    models: Mapping[str, tuple[Model, ModelIdentity | None]],
    target: Path,
    options: RerankOptions,
    *,
    several: bool,
) -> RerankPlan:
    """Check everything, and return the plan; errors as `rankmill.scorer.rerank.rerank.rerank`."""
    plan = MemoryPlan.of(options.memory).with_run(beside_bytes())
    paths = files_of(paths_of(candidates), options.format, announce=options.announce)
    runs = files_of(paths_of(options.run), announce=options.announce)
    states = states_of([*paths, *runs])
    if options.lacking == "drop" and not runs:
        raise InputError(f"{spelled('lacking')} is for the documents of a run; name the run with {spelled('run')}")
    check_apart(target, [*paths, *runs])
    check_target(target, overwrite=options.overwrite, several=several)
    ranking = {
        label: ModelToRank(
            model=model,
            identity=identity or ModelIdentity(sha256=model.sha256),
            predictor=predictor_of(model, n_rounds=options.n_rounds, start_round=options.start_round),
        )
        for label, (model, identity) in models.items()
    }
    plan = plan.with_models(
        sum(len(model.model.to_bytes()) for model in ranking.values()),
        sum(model.predictor.table_bytes for model in ranking.values()),
    )
    reading = shared_options({label: read_options(options, model.model) for label, model in ranking.items()})
    sources = open_sources(paths, options.format, reading, announce=options.announce)
    refuse_copies(paths)
    kept = None
    if options.keep:
        word = spelled("keep")
        if checked_suffix(target) == ".run":
            raise InputError(
                f"{target}: a TREC run has no other columns, so {word} needs a folder, or a .parquet, .csv or .tsv file"
            )
        if options.cluster is not None:
            raise InputError(f"{word} does not work with {spelled('cluster')} yet; leave one of them out")
        kept = KeptColumns.of(options.keep, sources, options.format, reading)
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
            **({} if kept is None else {"keep": [str(field) for field in kept.schema]}),
            **({} if options.cluster is None else {"on_cluster": True}),  # with other files on the way
        },
    )
    return RerankPlan(
        target=target, several=several, models=ranking, sources=sources, reading=reading, stage=stage, memory=plan,
        options=options, key=key, states=states, kept=kept,
    )  # fmt: skip


@contextmanager
def open_run(plan: RerankPlan) -> Iterator[RerankRun]:
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
            kept = NOTHING_KEPT if plan.kept is None else plan.kept.schema
            spill = ScoreSpill(folder, sort_bytes=sort_bytes, n_threads=n_threads, written=of_model.spilled, kept=kept)
            spills.append(stack.enter_context(spill))
        yield RerankRun(plan, staging, journal, spills)


@dataclass(frozen=True, slots=True)
class RerankRun:
    """One run of a plan: score, write, publish; an earlier run may have done part of each."""

    plan: RerankPlan
    staging: Path
    journal: Journal
    spills: Sequence[ScoreSpill]

    def score(self) -> None:
        """Score the input that the journal does not cover, with a checkpoint now and then."""
        plan, stage, before = self.plan, self.plan.stage, self.journal.place.all_rows
        reader = None if plan.kept is None else plan.kept.reader(before)

        def take(results: list[list[Scored]], place: InputPosition) -> None:
            nonlocal before
            values = None if reader is None else reader.up_to(place.all_rows)
            for spill, parts in zip(self.spills, results, strict=True):
                for part in parts:
                    spill.write(part.rows if values is None else appended(part.rows, values, before), part.dropped)
            before = place.all_rows
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

    def _write_model(self, folder: Path, model: ModelToRank, of_model: OfModel, spill: ScoreSpill) -> RankedFiles:
        folder.mkdir(exist_ok=True)
        if of_model.dealt is None:
            of_model.dealt = spill.partition()
            self.journal.write(self.staging)
        of_model.keep_whole_shards(folder)

        def finished(shard: RankedShard) -> None:
            of_model.shards.append(shard)
            self.journal.write(self.staging)

        facts = self.facts_of(model)
        spill.close_for_reading(of_model.dealt)
        rows, done = self.journal.place.ranked, list(of_model.shards)
        written = write_lists(
            spill, folder, self.plan.target, facts, rows=rows, counted=self.counted, done=done, finished=finished
        )
        spill.close()
        return written

    @property
    def counted(self) -> bool:
        """Whether the counts of grades are written: beside a file of text only if asked for."""
        return checked_suffix(self.plan.target) in {"", ".parquet"} or self.plan.options.grade_counts

    def facts_of(self, model: ModelToRank) -> RankedFacts:
        """Return the metadata of the lists of ``model``."""
        top_k = self.plan.options.top_k
        return RankedFacts(max_grade=model.model.info.get("max_grade"), model=model.identity, top_k=top_k)

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
