"""The phases of a re-ranking in one process: score, write, publish; an earlier run may have done part of each."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from rankmill.foundation.records import canonical_json
from rankmill.foundation.storage.publish import file_digest
from rankmill.foundation.storage.staging import staging_folder
from rankmill.scorer.rerank.journal import Journal, OfModel
from rankmill.scorer.rerank.kept_columns import KeptReader, appended
from rankmill.scorer.rerank.plan import RerankPlan
from rankmill.scorer.rerank.publish import replace_folder
from rankmill.scorer.rerank.ranked_file import FORMAT, MANIFEST, SEVERAL
from rankmill.scorer.rerank.score import InputPosition, Scored, ScoringLimits, Take, score_in_order
from rankmill.scorer.rerank.spill import ScoreSpill, partition, sorted_parts
from rankmill.scorer.rerank.write import RankedFiles, publish_file, write_lists

CHECKPOINT_ROWS = 1_000_000
"""Number of candidates between checkpoints; a later run does not score candidates before a checkpoint again."""


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


Scoring = Callable[[RerankPlan, Path, Take, InputPosition], InputPosition]
"""Scores the input from a position on: hands the results to ``Take``, and returns the final position."""


def score_here(plan: RerankPlan, _: Path, take: Take, begin: InputPosition) -> InputPosition:
    """Score the input in this process."""
    return score_in_order(
        plan.sources, [model.predictor for model in plan.models.values()], plan.reading, take,
        ScoringLimits.within(plan.memory, plan.options.threads), top_k=plan.options.top_k, begin=begin,
        stage=plan.stage,
    )  # fmt: skip


def score(plan: RerankPlan, staging: Path, journal: Journal, scoring: Scoring = score_here) -> None:
    """Score the input that the ``journal`` does not cover, with a checkpoint now and then."""
    stage, before = plan.stage, journal.place.all_rows
    reader = None if plan.kept is None else KeptReader(plan.kept, before)
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
        end = scoring(plan, staging, take, journal.place)
        if stage is not None:
            stage.check_seen(plan.options.lacking)
            journal.lacking = stage.lacking
        journal.scored = True
        checkpoint(end)


def write(plan: RerankPlan, staging: Path, journal: Journal) -> list[RankedFiles]:
    """Sort and write the lists of each model."""
    written = []
    for number, (label, model) in enumerate(plan.models.items()):
        spill, out, of_model = spill_folder(staging, number), output_folder(staging, label), journal.models[label]
        if of_model.dealt is None:
            of_model.dealt = partition(
                spill, of_model.spilled, plan.memory.sort_bytes, plan.kept_schema, top_k=plan.options.top_k,
                n_threads=plan.options.threads,
            )  # fmt: skip
            journal.write(staging)
        with sorted_parts(
            spill, of_model.spilled, of_model.dealt, sort_bytes=plan.memory.sort_bytes, n_threads=plan.options.threads,
            kept=plan.kept_schema,
        ) as rows:  # fmt: skip
            lists = write_lists(
                rows, out, plan.target, plan.facts_of(model), rows=journal.place.ranked, counted=plan.counted
            )
        written.append(lists)
    return written


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


def output_folder(staging: Path, label: str) -> Path:
    """Make the folder of the lists of a model again."""
    out = staging / "out" / label
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    return out
