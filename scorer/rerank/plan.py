"""The plan of a re-ranking: candidates, models, output and memory, all checked before the first row is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

import pyarrow as pa

from rankmill.foundation.errors import InputError
from rankmill.foundation.options import spelled
from rankmill.foundation.process_memory import beside_bytes
from rankmill.pipeline.dataset.digests import FileState, states_of
from rankmill.pipeline.options import ReadOptions
from rankmill.pipeline.read.batch import Source
from rankmill.pipeline.read.files import refuse_copies
from rankmill.scorer.models.identity import ModelIdentity
from rankmill.scorer.models.loading import predictor_of
from rankmill.scorer.models.model import Model, Predictor
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
from rankmill.scorer.rerank.journal import run_key
from rankmill.scorer.rerank.kept_columns import KeptColumns
from rankmill.scorer.rerank.memory import MemoryPlan
from rankmill.scorer.rerank.publish import check_distinct, check_target
from rankmill.scorer.rerank.ranked_file import FORMAT, checked_suffix
from rankmill.scorer.rerank.spill import (
    NOTHING_KEPT,
)
from rankmill.scorer.rerank.write import RankedFacts


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

    @property
    def key_facts(self) -> dict[str, object]:
        """What must be equal, besides the files, for a later run to resume this one."""
        read_as = {each.name: getattr(self.reading, each.name) for each in fields(self.reading)}
        asked = ("format", "n_rounds", "start_round", "top_k", "lacking")
        return {
            "format": FORMAT,
            "models": [[label, *asdict(model.identity).values()] for label, model in self.models.items()],
            "reading": repr(read_as | {"known_features": sorted(self.reading.known_features)}),
            "options": [getattr(self.options, name) for name in asked],
            "block_bytes": self.memory.block_bytes,
            "form": checked_suffix(self.target),
            "several": self.several,
            "keep": [str(field) for field in self.kept_schema],
            "on_cluster": self.options.cluster is not None,  # with other files on the way
        }


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
    check_distinct(target, [*paths, *runs])
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
    kept = _kept(target, sources, reading, options) if options.keep else None
    stage = FirstStage.read(runs, plan.run_bytes) if runs else None
    if stage is not None:
        plan = plan.with_run(len(stage) * BYTES_OF_A_DOCUMENT)
    sizes = [path for source in sources if (path := getattr(source, "sizes_path", None)) is not None]
    found = RerankPlan(
        target=target, several=several, models=ranking, sources=sources, reading=reading, stage=stage, memory=plan,
        options=options, key="", states=states, kept=kept,
    )  # fmt: skip
    return replace(found, key=run_key([*paths, *sizes, *runs], found.key_facts | {"runs": len(runs)}))


def _kept(target: Path, sources: Sequence[Source], reading: ReadOptions, options: RerankOptions) -> KeptColumns:
    word = spelled("keep")
    if checked_suffix(target) == ".run":
        raise InputError(
            f"{target}: a TREC run has no other columns, so {word} needs a folder, or a .parquet, .csv or .tsv file"
        )
    if options.cluster is not None:
        raise InputError(f"{word} does not work with {spelled('cluster')} yet; leave one of them out")
    return KeptColumns.of(options.keep, sources, options.format, reading)
