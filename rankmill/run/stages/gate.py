"""The candidate before the alias that it is to take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rankmill.foundation.code_digest import code_digest
from rankmill.foundation.errors import InputError
from rankmill.foundation.storage.publish import write_atomically
from rankmill.gate.recording import GateResult, gate, gate_in, stored_result
from rankmill.registry.manifest import canonical_json
from rankmill.registry.names import PRODUCTION
from rankmill.run.events import Artefact
from rankmill.run.names import GATE
from rankmill.run.records import CODE, Inputs, as_options
from rankmill.run.stage import Made, Say, Stage
from rankmill.run.work import told_version
from rankmill.scorer.metrics.conventions import OURS, named_convention

if TYPE_CHECKING:
    from rankmill.config import Gate as Rules
    from rankmill.pipeline.dataset import Dataset
    from rankmill.run.records import Record
    from rankmill.run.work import Work


class Gate(Stage):
    """A result of the gate in the registry's log, and ``WORK/gate.json`` with its report."""

    name = "gate"

    @property
    def rules(self) -> Rules:
        """The section of the configuration, which is there."""
        assert self.work.config.gate is not None  # noqa: S101 (`needless` has looked)
        return self.work.config.gate

    def unasked(self) -> str | None:
        return None if self.work.config.gate is not None else "the configuration has no [gate]"

    def needless(self) -> str | None:
        if (why := self.unasked()) is not None:
            return why
        candidate, alias = self.work.candidate, self.rules.alias
        if candidate.state.target(alias) == candidate.number:
            return f"{candidate} is {alias} already"
        return taken_back(self.work, alias)

    def inputs(self) -> Inputs:
        rules, candidate, measured = self.rules, self.work.candidate, self.work.config.evaluate
        present = candidate.state.standing(rules.alias)
        policy = self.work.registry.policy(candidate.state, rules.alias)
        former = self.work.former_dataset
        dataset = self.work.dataset()
        return {
            CODE: code_digest("rankmill.pipeline", "rankmill.scorer", "rankmill.gate"),
            "dataset": dataset.digest,
            "model": f"{candidate} {candidate.sha256} {candidate.manifest_sha256}",
            "the present version": "none" if present is None else f"{candidate.name}@{present}",
            **({} if former is None else {"former dataset": former.digest}),
            **as_options(
                alias=rules.alias, metric=rules.metric, margin=rules.margin, split=split_for(rules, dataset),
                policy=None if policy is None else policy.model_dump(), **rules.limits, **measured.conventions,
            ),
        }  # fmt: skip

    def doing(self) -> str:
        return f"{self.work.candidate} before {self.rules.alias}, on {split_for(self.rules, self.work.dataset())}"

    def reads(self) -> tuple[Artefact, ...]:
        return (self.work.told_dataset(), told_version(self.work.candidate))

    def run(self, say: Say) -> Made:
        rules, measured, dataset = self.rules, self.work.config.evaluate, self.work.dataset()
        given = measured.convention != OURS or bool(measured.options)  # else it is the alias that may ask for one
        result = gate(
            self.work.registry,
            str(self.work.candidate),
            dataset,
            split_for(rules, dataset),
            alias=rules.alias,
            metric=rules.metric,
            margin=rules.margin,
            convention=named_convention(measured.convention).but(**measured.options) if given else None,
            against=self.work.former_dataset,
            reason="rankmill run",
            **rules.limits,
        )
        path = self.work.path / GATE
        write_atomically(path, canonical_json(result.report) + b"\n")
        digest = self.work.digests.of(path)
        return Made(
            outputs={GATE: digest},
            facts={
                "alias": rules.alias,
                "passed": result.passed,
                "carries": result.carries,
                "report_sha256": gate_in(result.entry).report,
                **_difference(result.report),
            },
            artefacts=(self.work.told_file(path),),
        )

    def fault(self, record: Record) -> str | None:
        newest = self.work.candidate.gates.get(self.rules.alias)
        if newest is None:
            return "the registry has no result of it"
        if gate_in(newest).report != record.facts.get("report_sha256"):
            return "the registry has a later result, by other rules"
        return super().fault(record)


def _difference(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return how far the candidate is from what it was compared with first, by the metric that decides."""
    comparison, metric = report["comparisons"][0], report["metric"]
    found = comparison["metrics"][metric]
    return {
        "metric": metric,
        "against": comparison["against"],
        "difference": found["difference"],
        "interval": found["interval"],
    }


def result_of(work: Work) -> GateResult | None:
    """Return the newest result of the candidate at the gate; None if there is none, or it may have been forced in."""
    if work.alias is None or work.alias not in work.candidate.gates:
        return None
    result = stored_result(work.registry, str(work.candidate), work.alias)
    holds = work.candidate.state.target(work.alias) == work.candidate.number
    return None if holds and not result.carries else result


def taken_back(work: Work, alias: str) -> str | None:
    """Say that the candidate had ``alias`` and somebody took it away again; None if nobody did."""
    candidate = work.candidate
    moves = candidate.state.moves.get(alias, [])
    had = max((at for at, move in enumerate(moves) if move.version == candidate.number), default=None)
    if had is None or had == len(moves) - 1:
        return None
    entry = work.registry.entry(candidate.name, moves[had + 1].entry)
    if entry.change.op not in {"rollback", "unset", "force"}:  # only people do any of these
        return None
    cure = f"rankmill models promote {candidate} --alias {alias} has it again"
    return f"{candidate} was taken back from {alias} in entry {entry.number} of the log, by {entry.actor}; {cure}"


def split_for(rules: Rules, dataset: Dataset) -> str:
    """Return the split to compare on; InputError if it has no queries."""
    held_out = [name for name in dataset.manifest.unseen if rules.split in {None, name}]
    if not held_out:
        what = "neither a test nor a valid split" if rules.split is None else f"no {rules.split} split"
        raise InputError(f"[gate]: {dataset.path} has {what} to compare on; ask for one in [ingest]")
    return held_out[0]


def refuse_protected(work: Work) -> None:
    """Raise ConfigError if ``[promote]`` names an alias that asks for a gate: before the training, not after."""
    from rankmill.foundation.errors import ConfigError
    from rankmill.registry.history.state import State

    if work.config.promote is None:
        return
    store, alias, name = work.registry, work.config.promote.alias, work.config.train.name
    if store.exists():
        state = store.state(name) if name in store.names() else State()
        protected = store.policy(state, alias) is not None
    else:  # the training makes it as registries are made
        protected = alias == PRODUCTION
    if protected:
        raise ConfigError(
            f"[promote]: {alias} is protected in {store.root}: only what has passed the gate takes it; "
            "write the section [gate] in place of [promote]"
        )
