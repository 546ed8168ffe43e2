"""One run of a re-ranking: its plan, all checked before the first row is read, and its phases score, write, publish."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import pyarrow as pa

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
from rankmill.scorer.rerank.sorting import (
    NOTHING_KEPT,
    DealtPart,
    ScoreSpill,
    Spilled,
    partition,
    parts_of,
    sorted_parts,
)

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

    @property
    def counted(self) -> bool:
        """Whether the counts of grades are written: beside a file of text only if asked for."""
        return checked_suffix(self.target) in {"", ".parquet"} or self.options.grade_counts

    @property
    def kept_schema(self) -> pa.Schema:
        """The columns that are copied into the lists."""
        return NOTHING_KEPT if self.kept is None else self.kept.schema

    def facts_of(self, model: ModelToRank) -> RankedFacts:
        """Return the metadata of the lists of ``model``."""
        top_k = self.options.top_k
        return RankedFacts(max_grade=model.model.info.get("max_grade"), model=model.identity, top_k=top_k)


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
def open_staging(plan: RerankPlan) -> Iterator[tuple[Path, Journal]]:
    """Open a staging folder with its journal; those of a killed run of the same ``plan`` are reused."""
    may_resume = not plan.options.fresh

    def resumable(folder: Path) -> bool:
        return may_resume and Journal.read(folder, plan.key) is not None

    with staging_folder(plan.target, resumable) as staging:
        may_resume = True  # from here on: keep the folder for a later run
        new = Journal(key=plan.key, models={each: OfModel() for each in plan.models})
        yield staging, Journal.read(staging, plan.key) or new


def score(plan: RerankPlan, staging: Path, journal: Journal) -> None:
    """Score the input that the ``journal`` does not cover, with a checkpoint now and then."""
    stage, before = plan.stage, journal.place.all_rows
    reader = None if plan.kept is None else plan.kept.reader(before)
    with ExitStack() as stack:
        spills = []
        for number, of_model in enumerate(journal.models.values()):
            spill_folder(staging, number).mkdir(exist_ok=True)
            spill = ScoreSpill(spill_folder(staging, number), of_model.spilled, plan.kept_schema)
            spills.append(stack.enter_context(closing(spill)))

        def checkpoint(place: InputPosition) -> None:
            for of_model, spill in zip(journal.models.values(), spills, strict=True):
                of_model.spilled = spill.checkpoint()
            journal.place = place
            journal.seen = "" if stage is None or journal.scored else stage.seen_as_text()
            journal.write(staging)

        def take(results: list[list[Scored]], place: InputPosition) -> None:
            nonlocal before
            values = None if reader is None else reader.up_to(place.all_rows)
            for spill, parts in zip(spills, results, strict=True):
                for part in parts:
                    spill.write(part.rows if values is None else appended(part.rows, values, before), part.dropped)
            before = place.all_rows
            if place.all_rows - journal.place.all_rows >= CHECKPOINT_ROWS:
                checkpoint(place)

        if stage is not None:
            stage.restore_seen(journal.seen)
        predictors = [model.predictor for model in plan.models.values()]
        end = score_in_order(
            plan.sources, predictors, plan.reading, take, ScoringLimits.within(plan.memory, plan.options.threads),
            top_k=plan.options.top_k, begin=journal.place, stage=stage,
        )  # fmt: skip
        if stage is not None:
            stage.check_seen(plan.options.lacking)
            journal.lacking = stage.lacking
        journal.scored = True
        checkpoint(end)


def write(plan: RerankPlan, staging: Path, journal: Journal) -> list[RankedFiles]:
    """Sort and write the lists of each model, after the shards that exist."""
    written = []
    for number, (label, model) in enumerate(plan.models.items()):
        spill, out, of_model = spill_folder(staging, number), output_folder(plan, staging, label), journal.models[label]
        if of_model.dealt is None:
            of_model.dealt = partition(spill, of_model.spilled, plan.memory.sort_bytes, plan.kept_schema)
            journal.write(staging)
        of_model.keep_whole_shards(out)

        def finished(shard: RankedShard, of_model: OfModel = of_model) -> None:
            of_model.shards.append(shard)
            journal.write(staging)

        parts, done = parts_of(spill, of_model.spilled, of_model.dealt), list(of_model.shards)
        written.append(
            write_parts(plan, spill, out, model, parts, of_model.spilled, journal, done=done, finished=finished)
        )
    return written


def write_parts(
    plan: RerankPlan,
    folder: Path,
    out: Path,
    model: ModelToRank,
    parts: Sequence[DealtPart],
    spilled: Spilled,
    journal: Journal,
    **progress: Any,
) -> RankedFiles:
    """Sort and write ``parts``, the lists of one model, to ``out``; the sort spills to ``folder``."""
    sort_bytes, n_threads = plan.memory.sort_bytes, plan.options.threads
    with sorted_parts(
        folder, parts, spilled, sort_bytes=sort_bytes, n_threads=n_threads, kept=plan.kept_schema
    ) as found:
        rows, counted = journal.place.ranked, plan.counted
        return write_lists(found, out, plan.target, plan.facts_of(model), rows=rows, counted=counted, **progress)


def publish(plan: RerankPlan, staging: Path, lists: Sequence[RankedFiles]) -> None:
    """Publish the output as OUT."""
    if plan.single:
        publish_file(lists[0], plan.target)
        return
    out = staging / "out"
    if plan.several:
        each = [{"label": label, "sha256": file_digest(out / label / MANIFEST)} for label in plan.models]
        (out / MANIFEST).write_bytes(canonical_json({"format": FORMAT, "kind": SEVERAL, "models": each}) + b"\n")
    shutil.rmtree(staging / "ready", ignore_errors=True)
    replace_folder(out, plan.target, staging)


def spill_folder(staging: Path, number: int) -> Path:
    """Return the folder of the scored rows of a model, by its number."""
    return staging / f"spill-{number}"


def output_folder(plan: RerankPlan, staging: Path, label: str) -> Path:
    """Make the folder of the lists of a model; one file is written anew."""
    out = staging / "out"
    if plan.single:
        shutil.rmtree(out, ignore_errors=True)
    (out / label).mkdir(parents=True, exist_ok=True)
    return out / label
