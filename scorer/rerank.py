"""Re-rank candidates of any number, in any order, in bounded memory.

Batches of input are scored and reduced to narrow rows (qid, doc_id, score, grade), which are sorted on disk and written
as ranked lists.  Everything is staged next to OUT and appears there in one step; what a killed run has staged is gone on with.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Literal, NamedTuple, TypedDict, Unpack

from rankmill.foundation.cores import available_cores
from rankmill.foundation.errors import InputError
from rankmill.foundation.records import canonical_json
from rankmill.foundation.storage.publish import file_digest
from rankmill.foundation.storage.staging import staging_folder
from rankmill.foundation.units import parse_size
from rankmill.pipeline.sources.batch import Format, ReadOptions, Source
from rankmill.pipeline.sources.columns import guesses_of
from rankmill.pipeline.sources.files import find_files
from rankmill.scorer import memory, ranked_file
from rankmill.scorer.first_stage import BYTES_OF_A_DOCUMENT, LACKING, FirstStage, Lacking
from rankmill.scorer.forest import Forest
from rankmill.scorer.journal import Journal, OfModel, Shard, run_key
from rankmill.scorer.memory import MB, MemoryPlan, peak_bytes
from rankmill.scorer.model_service import ModelIdentity
from rankmill.scorer.opening import open_sources, read_options, say, shared_options
from rankmill.scorer.predict import Predictor
from rankmill.scorer.progress import DocumentBar
from rankmill.scorer.ranked_file import MANIFEST, SEVERAL
from rankmill.scorer.replacing import replace_folder
from rankmill.scorer.scoring import Place, Scored, score_in_order
from rankmill.scorer.sorting import Spill
from rankmill.scorer.targets import check_apart, check_target, check_unchanged
from rankmill.scorer.writing import Lists, publish_file, write_lists

FORMAT = 1
SETTLED_ROWS = 1_000_000
"""After so many candidates what is known of them is settled on the disk: a later run need not score them again."""

PathLike = str | os.PathLike[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class RerankReport:
    """What was written where.  ``rows`` counts candidates, ``rows_written`` those among the first ``top_k``.

    ``columns_guessed`` says which columns of the candidates were guessed to be qid, doc_id and grade; ``lacking`` how many
    documents of a first stage's run had no row of features, and were dropped.
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
        """Return the report for a person."""
        kept = "" if self.top_k is None else f", {self.rows_written:,} among the first {self.top_k:,} of their query"
        lost = f"left out of the run, for want of a row of features: {self.lacking:,}\n" if self.lacking else ""
        return (
            f"re-ranked {self.rows:,} candidates of {self.queries:,} queries with {self.model}{kept}\n{lost}"
            f"wrote {self.out}"
            + (f" ({', '.join(self.files)})" if len(self.files) <= 8 else f" ({len(self.files)} files)")
        )


def reports_to_json(out: PathLike, reports: Mapping[str, RerankReport]) -> str:
    """Return the ``reports`` of several models, by their labels, as one JSON object."""
    models = {label: asdict(report) for label, report in reports.items()}
    return json.dumps({"out": os.fspath(out), "models": models}, sort_keys=True)


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
    run: PathLike | Sequence[PathLike] = (),
    lacking: Lacking = "reject",
    n_rounds: int | None = None,
    n_threads: int = 0,
    overwrite: bool = False,
    fresh: bool = False,
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
        the files in it, and the folder ``_unjudged`` of a dataset for those that the dataset has now.
    model
        A forest, or the path of a model file.
    out
        A folder of shards (part-00000.parquet, .. of whole queries, ``_manifest.json``), or one file that ends in
        .parquet, .csv, .tsv or .run (TREC).
    top_k
        Write only the first so many of each query, and beside them how often each grade occurs in the query's whole
        list (``_grades.pq``, or ``OUT.grades.parquet`` beside a single file OUT), so that an evaluation of the
        written part still knows the ideal list.
    memory_limit
        Bytes that the whole process may take, or a text such as "2GB"; at least 512 MB.
    absent, index_base, n_features
        How to read text (see `rankmill.pipeline.sources.batch.ReadOptions`); None takes what the model was trained with.
    columns
        The columns of tables that are qid, doc_id and grade, by other names; what is left open is guessed.
    run
        TREC runs of a first stage, or folders of them: only the documents that they list are ranked, and written as if
        ``candidates`` had their rows alone.  A document may be in several runs, once in each; it must have one row.
    lacking
        What to do about documents of ``run`` without a row: "reject" them, or "drop" them and say how many.
    n_rounds
        Use only so many rounds of the model.
    n_threads
        Threads for scoring and sorting; 0 takes all cores.
    overwrite
        Replace an ``out`` that exists; a folder only if it is one of ranked lists.
    fresh
        Start over.  Else what a run with the same model, candidates and options was killed over is gone on with; the bytes
        are the same.
    identity
        What to record about the model; its digest if left out.
    announce
        Print the memory plan on stderr, and before it what was guessed of the columns.

    Raises
    ------
    InputError
        A file is missing or named twice, ``out`` exists or is, or holds, one of the candidates, an option has no sense, or
        ``run`` has more documents than there is memory for.
    ConflictError
        Another run has written ``out`` since this one began, and it is not to be replaced.
    CandidatesRejected
        The candidates lack what the model needs, or hold nothing; a document of ``run`` has no row, or two.
    rankmill.foundation.errors.DataRejected
        The candidates break their format.
    """
    forest = model if isinstance(model, Forest) else Forest.load(model)
    (report,) = _run(
        candidates, {"": (forest, identity)}, Path(out), top_k=top_k, memory_limit=memory_limit, n_rounds=n_rounds,
        input_format=input_format, absent=absent, index_base=index_base, n_features=n_features, columns=columns,
        run=run, lacking=lacking, n_threads=n_threads, overwrite=overwrite, fresh=fresh, announce=announce,
    )  # fmt: skip
    return report


class RerankOptions(TypedDict, total=False):
    """What `rerank` takes by name, but for the identity of the model."""

    top_k: int | None
    memory_limit: int | str
    input_format: Format
    absent: Literal["zero", "missing"] | None
    index_base: Literal[0, 1] | None
    n_features: int | None
    columns: Mapping[str, str] | None
    run: PathLike | Sequence[PathLike]
    lacking: Lacking
    n_rounds: int | None
    n_threads: int
    overwrite: bool
    fresh: bool
    announce: bool


def rerank_several(
    candidates: PathLike | Sequence[PathLike],
    models: Mapping[str, tuple[Forest, ModelIdentity | None]],
    out: PathLike,
    **options: Unpack[RerankOptions],
) -> list[RerankReport]:
    """Rank ``candidates`` by each of ``models``, and read them once.

    The folder ``out`` gets a folder for each model, named by its key, with the files that `rerank` would write, and a manifest of
    its own.  Returns a report for each model.

    Raises
    ------
    InputError
        As `rerank`; ``out`` is the name of one file, a key is no name of a folder, or the models were trained on text or grades that
        were read in different ways.
    """
    for label in models:
        if not label or label.startswith(".") or "/" in label:
            raise InputError(f"{label!r} is no name for a folder in {os.fspath(out)}; give the model file another name")
    return _run(candidates, models, Path(out), several=True, **options)


def _run(
    candidates: PathLike | Sequence[PathLike],
    models: Mapping[str, tuple[Forest, ModelIdentity | None]],
    target: Path,
    *,
    several: bool = False,
    top_k: int | None = None,
    memory_limit: int | str = memory.DEFAULT,
    input_format: Format = "auto",
    absent: Literal["zero", "missing"] | None = None,
    index_base: Literal[0, 1] | None = None,
    n_features: int | None = None,
    columns: Mapping[str, str] | None = None,
    run: PathLike | Sequence[PathLike] = (),
    lacking: Lacking = "reject",
    n_rounds: int | None = None,
    n_threads: int = 0,
    overwrite: bool = False,
    fresh: bool = False,
    announce: bool = False,
) -> list[RerankReport]:
    started = time.monotonic()
    plan = MemoryPlan.of(parse_size(memory_limit, "--memory") if isinstance(memory_limit, str) else memory_limit)
    if top_k is not None and top_k < 1:
        raise InputError(f"--top-k must be 1 or more, got {top_k}")
    paths = [file for path in _as_list(candidates) for file in _files_of(Path(path))]
    runs = [file for path in _as_list(run) for file in _files_of(Path(path))]
    if lacking not in LACKING:
        raise InputError.unknown("value of --lacking", lacking, LACKING)
    if lacking == "drop" and not runs:
        raise InputError("--lacking says what becomes of documents of a run; name it with --run")
    check_apart(target, [*paths, *runs])
    check_target(target, overwrite=overwrite, several=several)
    ranking = {
        label: _Model(forest, identity or ModelIdentity(sha256=forest.sha256), Predictor(forest, n_rounds=n_rounds))
        for label, (forest, identity) in models.items()
    }
    options = shared_options(
        {
            label: read_options(
                model.forest, absent=absent, index_base=index_base, n_features=n_features, columns=columns
            )
            for label, model in ranking.items()
        }
    )
    sources = open_sources(paths, input_format, options, announce=announce)
    stage = FirstStage.read(runs, plan.run_bytes) if runs else None
    if stage is not None:
        plan = plan.with_run(len(stage) * BYTES_OF_A_DOCUMENT)
    if announce:
        say(plan.render())
    told = {each.name: getattr(options, each.name) for each in fields(options)}
    key = run_key(
        [*paths, *(sizes for source in sources if (sizes := getattr(source, "sizes_path", None)) is not None), *runs],
        {
            "format": FORMAT,
            "models": [[label, *asdict(model.identity).values()] for label, model in ranking.items()],
            "reading": repr(told | {"known_features": sorted(options.known_features)}),
            "input_format": input_format,
            "n_rounds": n_rounds,
            "top_k": top_k,
            "block_bytes": plan.block_bytes,
            "form": ranked_file.checked_suffix(target),
            "several": several,
            "runs": len(runs),
            "lacking": lacking,
        },
    )
    taking_over = not fresh
    with (
        staging_folder(target, lambda folder: taking_over and Journal.read(folder, key) is not None) as staging,
        ExitStack() as stack,
    ):
        taking_over = True  # from here on it is about leaving the folder to a later run
        journal = Journal.read(staging, key) or Journal(key=key, models={label: OfModel() for label in ranking})
        if announce and journal.place.all_rows:
            say(
                f"going on after {journal.place.all_rows:,} candidates, which an earlier run scored; --fresh starts over"
            )
        scored_before = journal.place.all_rows
        threads = n_threads or available_cores()
        work = _Work(target, staging, ranking, journal, top_k, several, stage, lacking)
        for number, label in enumerate(ranking):
            folder = staging / f"spill-{number}"
            folder.mkdir(exist_ok=True)
            spill = Spill(folder, sort_bytes=plan.sort_bytes, n_threads=threads, written=journal.models[label].spilled)
            work.spills.append(stack.enter_context(spill))
        if not journal.scored:
            work.score(sources, options, plan, plan.scoring_threads(threads))
        lists = work.write()
        check_unchanged(target, overwrite=overwrite)
        work.publish(lists)
    if announce:
        seconds, scored = time.monotonic() - started, journal.place.all_rows - scored_before
        say(
            f"{scored:,} {'candidates' if stage is None else 'rows'} in {seconds:,.1f} s ({scored / seconds:,.0f}/s), peak memory {peak_bytes() / MB:,.0f} MB"
        )
    return [
        RerankReport(
            out=str(target / label if several else target),
            model=model.identity,
            rows=journal.place.ranked,
            rows_written=sum(file.rows for file in of_model.ranked),
            queries=sum(file.queries for file in of_model.ranked),
            top_k=top_k,
            files=of_model.names,
            columns_guessed=guesses_of(sources),
            lacking=journal.lacking,
        )
        for (label, model), of_model in zip(ranking.items(), lists, strict=True)
    ]


class _Model(NamedTuple):
    forest: Forest
    identity: ModelIdentity
    predictor: Predictor


@dataclass(frozen=True, slots=True)
class _Work:
    """One run over its staging folder: scoring, writing, publishing, each of which may have been begun by an earlier run."""

    target: Path
    staging: Path
    models: Mapping[str, _Model]
    journal: Journal
    top_k: int | None
    several: bool
    stage: FirstStage | None
    lacking: Lacking
    spills: list[Spill] = field(default_factory=list)

    def score(self, sources: Sequence[Source], options: ReadOptions, plan: MemoryPlan, n_threads: int) -> None:
        """Score what the journal does not have yet, and settle it on the disk now and then."""

        def take(results: list[list[Scored]], place: Place, used: int) -> None:
            for spill, parts in zip(self.spills, results, strict=True):
                for part in parts:
                    spill.write(part.rows, part.dropped)
            if place.all_rows - self.journal.place.all_rows >= SETTLED_ROWS:
                self._settle(place)
            bar.update(place.all_rows, used)

        begin = self.journal.place
        if self.stage is not None:
            self.stage.go_on(self.journal.seen)
        with DocumentBar("scoring", sum(source.path.stat().st_size for source in sources), done=begin.all_rows) as bar:
            end = score_in_order(
                sources, [model.predictor for model in self.models.values()], options, take,
                block_bytes=plan.block_bytes, columns_bytes=plan.columns_bytes(n_threads), bars_bytes=plan.bars_bytes,
                n_threads=n_threads, top_k=self.top_k, begin=begin,
                stage=self.stage,
            )  # fmt: skip
        if self.stage is not None:
            self.stage.check_seen(self.lacking)
            self.journal.lacking = self.stage.lacking
        self.journal.scored = True
        self._settle(end)

    def write(self) -> list[Lists]:
        """Sort and write the lists of each model, after the shards that are there."""
        out = self.staging / "out"
        if ranked_file.checked_suffix(self.target):
            shutil.rmtree(out, ignore_errors=True)
        out.mkdir(exist_ok=True)
        lists = []
        for (label, model), spill in zip(self.models.items(), self.spills, strict=True):
            folder = out / label
            folder.mkdir(exist_ok=True)
            of_model = self.journal.models[label]
            if of_model.dealt is None:
                of_model.dealt = spill.deal_out()
                self.journal.write(self.staging)
            of_model.keep_whole_shards(folder)

            def finished(shard: Shard, of_model: OfModel = of_model) -> None:
                of_model.shards.append(shard)
                self.journal.write(self.staging)

            facts = {
                "format": FORMAT,
                "kind": "ranked",
                "max_grade": model.forest.info.get("max_grade"),
                "model": asdict(model.identity),
                "top_k": self.top_k,
            }
            spill.close_for_reading(of_model.dealt)
            lists.append(
                write_lists(
                    spill, folder, self.target, facts, rows=self.journal.place.ranked, top_k=self.top_k,
                    done=list(of_model.shards), finished=finished,
                )
            )  # fmt: skip
            spill.close()
        return lists

    def publish(self, lists: Sequence[Lists]) -> None:
        """Put what was written in the place of OUT."""
        if ranked_file.checked_suffix(self.target):
            publish_file(lists[0], self.target)
            return
        out = self.staging / "out"
        if self.several:
            each = [{"label": label, "sha256": file_digest(out / label / MANIFEST)} for label in self.models]
            (out / MANIFEST).write_bytes(canonical_json({"format": FORMAT, "kind": SEVERAL, "models": each}) + b"\n")
        shutil.rmtree(self.staging / "ready", ignore_errors=True)
        replace_folder(out, self.target, self.staging)

    def _settle(self, place: Place) -> None:
        for label, spill in zip(self.models, self.spills, strict=True):
            self.journal.models[label].spilled = spill.settle()
        self.journal.place = place
        self.journal.seen = "" if self.stage is None or self.journal.scored else self.stage.seen_as_text()
        self.journal.write(self.staging)


def _as_list(candidates: PathLike | Sequence[PathLike]) -> Sequence[PathLike]:
    return [candidates] if isinstance(candidates, (str, os.PathLike)) else candidates


def _files_of(path: Path) -> list[Path]:
    return find_files([path]) if path.is_dir() else [path]
