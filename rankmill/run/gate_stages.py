"""The stages gate and promote: judge the candidate, and move the alias to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rankmill.foundation.errors import ConfigError, InputError
from rankmill.foundation.options import values_of
from rankmill.foundation.records import as_json, canonical_json
from rankmill.foundation.storage.publish import write_atomically
from rankmill.gate.learnt_from_clicks import ClickEvidence
from rankmill.gate.recording import GateResult, earlier_holders, gate, gate_in, stored_result
from rankmill.pipeline.judgments.propensities import read_propensities
from rankmill.pipeline.options import ReadOptions
from rankmill.registry import Version
from rankmill.registry.model_state import State
from rankmill.registry.names import PRODUCTION
from rankmill.run import CLICK_MODEL, CLICKS, GATE
from rankmill.run.stage import Inputs, Made, Say, Stage, as_options
from rankmill.run.stage_facts import GateFacts, PromoteFacts
from rankmill.scorer.metrics.conventions import OURS, named_convention
from rankmill.scorer.models.loading import predictor_of
from rankmill.scorer.options import CandidateOptions
from rankmill.scorer.rerank.candidate_sources import open_sources, read_options
from rankmill.scorer.rerank.first_stage import FirstStage
from rankmill.scorer.rerank.memory import MemoryPlan
from rankmill.scorer.rerank.score import check_first_rows

if TYPE_CHECKING:
    from rankmill.config import GateSection, RerankSection
    from rankmill.pipeline.dataset.dataset import Dataset
    from rankmill.pipeline.read.batch import Source
    from rankmill.run.stage import StageRecord
    from rankmill.run.work import Work


class GateStage(Stage):
    """Adds a gate result to the registry's log, and writes its report to ``WORK/gate.json``."""

    name, facts, code = "gate", GateFacts, ("rankmill.pipeline", "rankmill.scorer", "rankmill.gate")

    @property
    def rules(self) -> GateSection:
        """The section of the configuration; call it only if `skip_reason` is None."""
        assert self.work.config.gate is not None  # noqa: S101 (`skip_reason` has checked it)
        return self.work.config.gate

    def not_configured(self) -> str | None:
        return None if self.work.config.gate is not None else "the configuration has no [gate]"

    def skip_reason(self) -> str | None:
        if (why := self.not_configured()) is not None:
            return why
        candidate, alias = self.work.candidate, self.rules.alias
        if candidate.state.target(alias) == candidate.number:
            return f"{candidate} is {alias} already"
        return taken_back(self.work, alias)

    def own_inputs(self) -> Inputs:
        rules, candidate, measured = self.rules, self.work.candidate, self.work.config.evaluate
        present = candidate.state.standing(rules.alias)
        earlier = earlier_holders(self.work.registry, candidate, rules.options)
        policy = self.work.registry.policy(candidate.state, rules.alias)
        dataset = self.work.dataset()
        return {
            "dataset": dataset.digest,
            "model": self.work.candidate_digests,
            "the present version": "none" if present is None else f"{candidate.name}@{present}",
            **({"earlier versions": ", ".join(map(str, earlier))} if earlier else {}),
            **self._clicks(),
            **as_options(
                **values_of(rules.options), split=split_for(rules, dataset),
                policy=None if policy is None else policy.model_dump(), **measured.conventions,
            ),
        }  # fmt: skip

    def _clicks(self) -> Inputs:
        """Return the digests of the log that the gate uses."""
        evidence = click_evidence(self.work)
        if evidence is None:
            return {}
        found = {f"log {self.work.named(path)}": self.work.digests.of(path) for path in evidence.log}
        return {**found, "click model": self.work.digests.of(self.work.path / CLICKS / CLICK_MODEL)}

    def doing(self) -> str:
        return f"{self.work.candidate} before {self.rules.alias}, on {split_for(self.rules, self.work.dataset())}"

    def run(self, say: Say) -> Made:
        rules, measured, dataset = self.rules, self.work.config.evaluate, self.work.dataset()
        given = measured.convention != OURS or bool(
            measured.policy
        )  # otherwise the policy of the alias may require one
        result = gate(
            self.work.registry,
            str(self.work.candidate),
            dataset,
            split_for(rules, dataset),
            asked=rules.options,
            convention=named_convention(measured.convention).but(**measured.policy) if given else None,
            clicks=click_evidence(self.work),
            reason="rankmill run",
        )
        path = self.work.path / GATE
        write_atomically(path, canonical_json(as_json(result.report)) + b"\n")
        comparison = result.report.comparisons[0]
        found = comparison.decisive(result.report.metric)
        return Made(
            facts=GateFacts(
                alias=rules.alias,
                passed=result.passed,
                carries=result.carries,
                report_sha256=result.report_sha256,
                metric=result.report.metric,
                against=comparison.against,
                difference=found.difference,
                interval=found.interval,
            ),
            files=(path,),
        )

    def fault(self, record: StageRecord) -> str | None:
        newest = self.work.candidate.gates.get(self.rules.alias)
        if newest is None:
            return "the registry has no result of it"
        if gate_in(newest).report != record.facts.report_sha256:
            return "the registry has a later result, by other rules"
        return super().fault(record)


def click_evidence(work: Work) -> ClickEvidence | None:
    """Return the log of ``[clicks]`` with its click model; None without, or if the log supports no correction."""
    section, path = work.config.clicks, work.path / CLICKS / CLICK_MODEL
    if section is None or work.facts.clicks is None or work.facts.clicks.model is None:
        return None
    return ClickEvidence(work.expand("clicks.sources", section.sources), read_propensities(path), section.reading)


def result_of(work: Work) -> GateResult | None:
    """Return the newest gate result of the candidate.

    None if there is none, or if it may have been promoted by force.
    """
    if work.alias is None or work.alias not in work.candidate.gates:
        return None
    result = stored_result(work.registry, str(work.candidate), work.alias)
    holds = work.candidate.state.target(work.alias) == work.candidate.number
    return None if holds and not result.carries else result


def taken_back(work: Work, alias: str) -> str | None:
    """Return a message if ``alias`` pointed to the candidate and was moved away again; None otherwise."""
    candidate = work.candidate
    moves = candidate.state.moves.get(alias, [])
    had = max((at for at, move in enumerate(moves) if move.version == candidate.number), default=None)
    if had is None or had == len(moves) - 1:
        return None
    entry = candidate.state.entries[moves[had + 1].entry - 1]
    if entry.change.op not in {"rollback", "unset", "force"}:  # these are never done by a run
        return None
    cure = f"rankmill models promote {candidate} --alias {alias} promotes it again"
    return f"{candidate} was rolled back from {alias} in entry {entry.number} of the log, by {entry.actor}; {cure}"


def split_for(rules: GateSection, dataset: Dataset) -> str:
    """Return the split for the comparison; InputError if it has no queries."""
    held_out = [name for name in dataset.manifest.unseen if rules.split in {None, name}]
    if not held_out:
        what = "neither a test nor a valid split" if rules.split is None else f"no {rules.split} split"
        raise InputError(f"[gate]: {dataset.path} has {what} to compare on; create one with [ingest] split")
    return held_out[0]


def refuse_protected(work: Work) -> None:
    """Raise ConfigError before the training if ``[promote]`` names a protected alias."""
    if work.config.promote is None:
        return
    store, alias, name = work.registry, work.config.promote.alias, work.config.name
    if store.exists():
        state = store.state(name) if name in store.names() else State()
        protected = store.policy(state, alias) is not None
    else:  # the training will create it with the defaults
        protected = alias == PRODUCTION
    if protected:
        raise ConfigError(
            f"[promote]: {alias} is protected in {store.root}: it moves only to versions that passed the gate; "
            "use the section [gate] instead of [promote]"
        )


class PromoteStage(Stage):
    """Adds an entry to the registry's log for each alias that moves to the candidate.

    The registry decides, not a record: the alias is moved once, and not again after it was moved back.
    """

    name, facts = "promote", PromoteFacts

    @property
    def aliases(self) -> list[str]:
        """The aliases that the candidate may take over and does not have yet."""
        config, candidate = self.work.config, self.work.candidate
        configured = [] if config.promote is None else [config.promote.alias]
        if config.gate is not None and self._passed():
            configured.append(config.gate.alias)
        return [
            alias
            for alias in configured
            if candidate.state.target(alias) != candidate.number and taken_back(self.work, alias) is None
        ]

    def not_configured(self) -> str | None:
        return None if self._named() else "the configuration has neither [gate] nor [promote]"

    def skip_reason(self) -> str | None:
        if (why := self.not_configured()) is not None:
            return why
        candidate = self.work.candidate
        if self.aliases:
            return None
        held = [alias for alias in self._named() if candidate.state.target(alias) == candidate.number]
        if held:
            return f"{candidate} is {' and '.join(held)} already"
        back = next((reason for alias in self._named() if (reason := taken_back(self.work, alias))), None)
        return back or f"{candidate} did not pass the gate against the current version"

    def _passed(self) -> bool:
        """Whether the newest gate result is about the candidate and the current version of the alias, and passed."""
        result = result_of(self.work)
        if result is None or not result.carries:
            return False
        return result.baseline == self.work.candidate.state.standing(result.alias)

    def _named(self) -> list[str]:
        config = self.work.config
        return [section.alias for section in (config.promote, config.gate) if section is not None]

    def own_inputs(self) -> Inputs:
        candidate = self.work.candidate
        return {"model": f"{candidate} {candidate.sha256}"} | {
            f"alias {alias}": str(candidate.state.target(alias)) for alias in self._named()
        }

    def doing(self) -> str:
        return f"{self.work.candidate} becomes {' and '.join(self.aliases)}"

    def run(self, say: Say) -> Made:
        candidate = self.work.candidate
        try_candidates(self.work, candidate)  # never promote a version that cannot rank today's candidates
        moved = {}
        for alias in self.aliases:
            before = candidate.state.target(alias)
            self.work.registry.promote(
                candidate.name, candidate.number, alias=alias, expect=before, reason="rankmill run"
            )
            moved[alias] = None if before is None else f"{candidate.name}@{before}"
        return Made(facts=PromoteFacts(model=str(candidate), moved=moved))

    def fault(self, record: StageRecord) -> str | None:
        return "the alias points to another version"


def try_candidates(work: Work, version: Version) -> None:
    """Raise the error of re-ranking for an unreadable TREC run, or if ``version`` cannot rank the first candidates."""
    section = work.config.rerank
    if section is None:
        return
    model = work.model_of(version)
    ingest = work.config.ingest.options.read
    reading = CandidateOptions(
        absent=ingest.absent, index_base=ingest.index_base, columns=section.options.columns,
        delimiter=section.options.delimiter, decimal_comma=section.options.decimal_comma,
    )  # fmt: skip
    options = read_options(reading, model)
    check_first_rows(_open_candidates(work, section, options), predictor_of(model), options)


def _open_candidates(work: Work, section: RerankSection, options: ReadOptions) -> list[Source]:
    sources = open_sources(list(work.expand("rerank.candidates", section.candidates)), section.options.format, options)
    if section.run:
        room = MemoryPlan.of(section.options.memory).run_bytes
        FirstStage.read(work.expand("rerank.run", section.run), room)
    return sources
