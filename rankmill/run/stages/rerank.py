"""The candidate lists, ranked by the version that stands."""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from rankmill.foundation.code_digest import code_digest
from rankmill.foundation.units import parse_size
from rankmill.pipeline.sources.columns import guesses_line
from rankmill.pipeline.sources.query_sizes import find_sizes
from rankmill.run.events import Artefact
from rankmill.run.records import CODE, Inputs, as_options
from rankmill.run.stage import Made, Say, Stage
from rankmill.run.work import told_version
from rankmill.scorer.first_stage import FirstStage
from rankmill.scorer.memory import MemoryPlan
from rankmill.scorer.model_service import ModelIdentity
from rankmill.scorer.opening import open_sources, read_options
from rankmill.scorer.predict import Predictor
from rankmill.scorer.rerank import rerank
from rankmill.scorer.scoring import check_first_rows

if TYPE_CHECKING:
    from rankmill.config import Rerank as Section
    from rankmill.registry import Version
    from rankmill.run.work import Work


class Rerank(Stage):
    """``[rerank] out`` in the work folder."""

    name = "rerank"

    @property
    def section(self) -> Section:
        """The section of the configuration, which is there."""
        assert self.work.config.rerank is not None  # noqa: S101 (`needless` has looked)
        return self.work.config.rerank

    @cached_property
    def files(self) -> tuple[Path, ...]:
        """The files of candidates; InputError if a pattern matches none."""
        return self.work.expand("rerank.candidates", self.section.candidates)

    def unasked(self) -> str | None:
        return None if self.work.config.rerank is not None else "the configuration has no [rerank]"

    @cached_property
    def runs(self) -> tuple[Path, ...]:
        """The TREC runs of a first stage, if there are any; InputError if a pattern matches none."""
        return self.work.expand("rerank.run", self.section.run) if self.section.run else ()

    def needless(self) -> str | None:
        nothing = "nothing is ranked, since no version stands yet"
        return self.unasked() or (None if standing(self.work) is not None else nothing)

    def inputs(self) -> Inputs:
        section, stands = self.section, standing(self.work)
        inputs = {
            CODE: code_digest("rankmill.pipeline", "rankmill.scorer"),
            "model": f"{stands} {stands.sha256}" if stands is not None else "",
            **as_options(
                out=section.out, format=section.format, columns=section.columns, top_k=section.top_k,
                absent=self.work.config.ingest.absent, index_base=self.work.config.ingest.index_base,
            ),
        }  # fmt: skip
        if self.runs:
            inputs |= as_options(lacking=section.lacking)
        inputs |= {f"run {self.work.named(path)}": self.work.digests.of(path) for path in self.runs}
        for path in self.files:
            for file in (path, find_sizes(path)):
                if file is not None:
                    inputs[f"candidates {self.work.named(file)}"] = self.work.digests.of(file)
        return inputs

    def doing(self) -> str:
        return f"{len(self.files)} files, by {standing(self.work)}"

    def reads(self) -> tuple[Artefact, ...]:
        stands = standing(self.work)
        return (
            *map(self.work.told_file, (*self.files, *self.runs)),
            *(() if stands is None else (told_version(stands),)),
        )

    def run(self, say: Say) -> Made:
        section, stands = self.section, standing(self.work)
        assert stands is not None  # noqa: S101 (`needless` has looked)
        out = self.work.path / section.out
        ranked = rerank(
            self.files,
            self.work.forest_of(stands),
            out,
            top_k=section.top_k,
            memory_limit=section.memory,
            input_format=section.format,
            absent=self.work.config.ingest.absent,
            index_base=self.work.config.ingest.index_base,
            columns=section.columns,
            run=self.runs,
            lacking=section.lacking,
            overwrite=True,
            identity=ModelIdentity(sha256=stands.sha256, name=stands.name, number=stands.number),
        )
        if ranked.columns_guessed:
            say(guesses_line(ranked.columns_guessed))
        if ranked.lacking:
            say(f"left out of the run, for want of a row of features: {ranked.lacking:,}")
        facts = json.loads(ranked.to_json()) | {"out": section.out}
        files = sorted(file for file in out.rglob("*") if file.is_file()) if out.is_dir() else [out]
        outputs = {self.work.inside(file): self.work.digests.of(file) for file in files}
        counted = {"rows": ranked.rows_written, "queries": ranked.queries}
        artefact = Artefact(kind="folder", name=self.work.named(out), facts=counted)
        return Made(outputs=outputs, facts=facts, artefacts=(artefact,))


def standing(work: Work) -> Version | None:
    """Return the version that is to rank: what the alias of ``[gate]``, or else ``[promote]``, means; without either, the candidate."""
    candidate, asked = work.candidate, work.config.gate or work.config.promote
    if asked is None:
        return candidate
    present = candidate.state.target(asked.alias)
    if present is None:
        return None
    return work.registry.resolve(f"{candidate.name}@{present}", bare="latest")


def try_candidates(work: Work, version: Version) -> None:
    """Raise, as re-ranking would, if a run cannot be read, or the first candidates of a file not be ranked by ``version``."""
    section = work.config.rerank
    if section is None:
        return
    forest = work.forest_of(version)
    options = read_options(
        forest,
        absent=work.config.ingest.absent,
        index_base=work.config.ingest.index_base,
        n_features=None,
        columns=section.columns,
    )
    sources = open_sources(list(work.expand("rerank.candidates", section.candidates)), section.format, options)
    if section.run:
        room = MemoryPlan.of(parse_size(section.memory, "memory")).run_bytes
        FirstStage.read(work.expand("rerank.run", section.run), room)
    check_first_rows(sources, Predictor(forest), options)
