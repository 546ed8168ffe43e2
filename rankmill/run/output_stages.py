"""The stages rerank and report: ranked lists of candidates, and the pages about the run."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankmill.config import RANKED
from rankmill.foundation.options import values_of
from rankmill.foundation.storage.url_arguments import url_of
from rankmill.pipeline.read.columns import guesses_line
from rankmill.pipeline.read.query_sizes import find_sizes
from rankmill.registry.names import PRODUCTION
from rankmill.report.report_files import write_report
from rankmill.report.subject import subject_of_work
from rankmill.run import CLICK_MODEL, CLICKS, DESCRIPTION, DRIFT, EVALUATION, GATE, REPORT, TRAINING
from rankmill.run.gate_stages import result_of
from rankmill.run.stage import Inputs, Made, Say, Stage, as_options
from rankmill.run.stage_facts import RankedBy, ReportFacts, RerankFacts
from rankmill.scorer.models.identity import ModelIdentity
from rankmill.scorer.rerank.rerank import rerank

if TYPE_CHECKING:
    from rankmill.config import RerankSection
    from rankmill.foundation.storage.location import ObjectUrl
    from rankmill.registry import Version
    from rankmill.run.stage import StageRecord
    from rankmill.run.work import Work


class _StageWithUrl(Stage):
    """A stage whose output is uploaded if a URL was asked for."""

    @abstractmethod
    def _asked(self) -> str:
        """Return the path or URL in the configuration."""

    @property
    def _url(self) -> ObjectUrl | None:
        return url_of(self._asked())

    def fault(self, record: StageRecord) -> str | None:
        gone = self._url is not None and not self.work.copies.is_whole(self._url)
        return f"{self._url} is not complete" if gone else super().fault(record)


class RerankStage(_StageWithUrl):
    """Writes ``[rerank] out`` in the work folder."""

    name, facts, code = "rerank", RerankFacts, ("rankmill.pipeline", "rankmill.scorer")

    @property
    def section(self) -> RerankSection:
        """The section of the configuration; call it only if `skip_reason` is None."""
        assert self.work.config.rerank is not None  # noqa: S101 (`skip_reason` has checked it)
        return self.work.config.rerank

    @cached_property
    def files(self) -> tuple[Path, ...]:
        """The files of candidates; InputError if a pattern matches none."""
        return self.work.expand("rerank.candidates", self.section.candidates)

    def not_configured(self) -> str | None:
        return None if self.work.config.rerank is not None else "the configuration has no [rerank]"

    @cached_property
    def runs(self) -> tuple[Path, ...]:
        """The TREC runs of a first stage, if there are any; InputError if a pattern matches none."""
        return self.work.expand("rerank.run", self.section.run) if self.section.run else ()

    def skip_reason(self) -> str | None:
        nothing = "nothing is ranked, as no version is promoted yet"
        return self.not_configured() or (None if standing(self.work) is not None else nothing)

    def own_inputs(self) -> Inputs:
        section, stands = self.section, standing(self.work)
        inputs = {
            "model": f"{stands} {stands.sha256}" if stands is not None else "",
            **as_options(
                out=section.out if self._url is None else str(self._url), format=section.options.format,
                columns=section.options.columns, top_k=section.options.top_k,
                absent=self.work.config.ingest.options.read.absent,
                index_base=self.work.config.ingest.options.read.index_base,
            ),
        }  # fmt: skip
        if section.options.keep or section.options.grade_counts:
            inputs |= as_options(keep=[*section.options.keep], grade_counts=section.options.grade_counts)
        if section.options.delimiter or section.options.decimal_comma:
            inputs |= as_options(delimiter=section.options.delimiter, decimal_comma=section.options.decimal_comma)
        if self.runs:
            inputs |= as_options(lacking=section.options.lacking)
        inputs |= {f"run {self.work.named(path)}": self.work.digests.of(path) for path in self.runs}
        for path in self.files:
            for file in (path, find_sizes(path)):
                if file is not None:
                    inputs[f"candidates {self.work.named(file)}"] = self.work.digests.of(file)
        return inputs

    def doing(self) -> str:
        return f"{len(self.files)} files, by {standing(self.work)}"

    def run(self, say: Say) -> Made:
        section, stands = self.section, standing(self.work)
        assert stands is not None  # noqa: S101 (`skip_reason` has checked it)
        url = self._url
        out = self.work.path / (section.out if url is None else RANKED)
        read = self.work.config.ingest.options.read
        text: Any = {"absent": read.absent, "index_base": read.index_base}
        ranked = rerank(
            self.files,
            self.work.model_of(stands),
            out,
            **values_of(replace(section.options, run=self.runs, overwrite=True, **text)),
            identity=ModelIdentity(sha256=stands.sha256, name=stands.name, number=stands.number),
        )
        if ranked.columns_guessed:
            say(guesses_line(ranked.columns_guessed))
        if ranked.lacking:
            say(f"documents of the run dropped, as they have no row of features: {ranked.lacking:,}")
        if url is not None:
            self.work.copies.upload(out, url)
        facts = RerankFacts(
            columns_guessed=ranked.columns_guessed,
            files=ranked.files,
            lacking=ranked.lacking,
            model=RankedBy(name=ranked.model.name, number=ranked.model.number, sha256=ranked.model.sha256),
            out=section.out if url is None else str(url),
            queries=ranked.queries,
            rows=ranked.rows,
            rows_written=ranked.rows_written,
            top_k=ranked.top_k,
        )
        return Made(
            facts=facts,
            files=tuple(sorted(file for file in out.rglob("*") if file.is_file())) if out.is_dir() else (out,),
        )

    def _asked(self) -> str:
        return self.work.dated("rerank.out", self.section.out)


def standing(work: Work) -> Version | None:
    """Return the version for ranking.

    It is the target of the alias of ``[gate]``, else of ``[promote]``, else the candidate.
    """
    candidate, asked = work.candidate, work.config.gate or work.config.promote
    if asked is None:
        return candidate
    present = candidate.state.target(asked.alias)
    if present is None:
        return None
    return work.registry.resolve(f"{candidate.name}@{present}", bare="latest")


class ReportStage(_StageWithUrl):
    """Writes ``WORK/report``, also for a version that is not promoted."""

    name, facts, code = "report", ReportFacts, ("rankmill",)

    @property
    def alias(self) -> str:
        """The alias that the candidate was to take over."""
        promote = self.work.config.promote
        return self.work.alias or (PRODUCTION if promote is None else promote.alias)

    def own_inputs(self) -> Inputs:
        candidate, measured = self.work.candidate, self.work.config.evaluate
        moves = candidate.state.moves.get(self.alias, [])
        inputs = {
            "dataset": self.work.dataset().digest,
            "model": self.work.candidate_digests,
            f"alias {self.alias}": " ".join(str(move.version) for move in moves),
            **as_options(
                alias=self.alias,
                split=self.work.split,
                metrics=measured.metrics,
                by=self.work.config.report.by,
                **({"out": str(self._url)} if self._url else {}),
                **measured.conventions,
            ),
        }
        read = [EVALUATION, TRAINING, DRIFT]
        if self.work.config.clicks is not None:
            read += [f"{CLICKS}/{DESCRIPTION}", f"{CLICKS}/{CLICK_MODEL}"]
        if (result := result_of(self.work)) is not None:
            inputs["result of the gate"] = result.report_sha256
        else:
            read.append(GATE)  # of a configuration that had a gate
        for name in read:
            if (self.work.path / name).is_file():
                inputs[f"file {name}"] = self.work.digests.of(self.work.path / name)
        return inputs

    def doing(self) -> str:
        return f"{self.work.candidate}, in {self.work.named(self.work.path / REPORT)}"

    def run(self, say: Say) -> Made:
        day = None if self.work.day is None else self.work.day.isoformat()
        subject = subject_of_work(
            self.work.path, self.work.registry, self.work.config.report.by, alias=self.alias, date=day
        )
        paths = write_report(subject, self.work.path / REPORT)
        if self._url is not None:
            self.work.copies.upload(self.work.path / REPORT, self._url)
        return Made(
            facts=ReportFacts(
                title=paths.title,
                page=paths.page.relative_to(self.work.path).as_posix(),
                model=str(self.work.candidate),
                date=day,
            ),
            files=(paths.page, paths.facts, paths.markdown),
        )

    def _asked(self) -> str:
        return self.work.dated("report.out", self.work.config.report.out)
