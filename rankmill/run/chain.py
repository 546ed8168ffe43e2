"""One run of the whole chain from a configuration: ingest, bin, train, evaluate, gate, re-rank, promote.

A version that does not pass the gate is registered and not promoted, and lists are ranked by the version that stands; the
run then ends with a report, and its caller raises.  One that passes ranks the lists before it is promoted: what cannot rank
today's candidates is not to be what users see.

Each stage publishes what it makes in one step under the work folder, so that a run that dies leaves the last complete
dataset, report and ranked lists.  The same input and configuration give the same bytes, and so the same model version.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.binning import bin_dataset, bin_plan
from pipeline.dataset import Dataset
from pipeline.errors import InputError as PipelineInputError
from pipeline.ingest import ingest
from pipeline.publish import write_atomically
from pipeline.sources.columns import guesses_line
from pipeline.sources.files import find_files
from rankmill.errors import ConfigError, InputError
from rankmill.gate.recording import GateResult, gate, stored_result
from registry import Registry, Version
from registry.history.state import State
from registry.names import PRODUCTION
from scorer.evaluate import evaluate
from scorer.evaluation import Evaluation
from scorer.forest import Forest
from scorer.metrics.conventions import OURS, named_convention
from scorer.rerank import ModelIdentity, RerankReport, rerank
from trainer.cli import train_and_register

if TYPE_CHECKING:
    from rankmill.config import Config, Gate

UNSEEN = ("test", "valid")  # splits to report on, in order of preference; valid has at least decided when to stop


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """What one run made, and where it is."""

    dataset: Dataset
    version: Version
    registry: Path
    split: str | None
    evaluation: Evaluation | None
    evaluation_path: Path | None
    gate: GateResult | None
    ranked: RerankReport | None

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return {
            "dataset": {"path": str(self.dataset.path), "digest": self.dataset.digest},
            "model": {
                "version": str(self.version),
                "sha256": self.version.sha256,
                "registry": str(self.registry),
                "aliases": list(self.version.aliases),
            },
            "evaluation": None if self.evaluation is None else {"split": self.split, **self.evaluation.to_dict()},
            "gate": None if self.gate is None else self._gate(self.gate),
            "ranked": None if self.ranked is None else json.loads(self.ranked.to_json()),
        }

    def render(self, *, json: bool = False) -> str:
        """Return the report for a person, or as one JSON object."""
        if json:
            return _json(self.to_dict())
        manifest = self.dataset.manifest
        lines = [
            f"dataset   {self.dataset.path}: {manifest.rows:,} documents of {manifest.queries:,} queries,"
            f" {len(manifest.features)} features",
            f"model     {self.version} in {self.registry}"
            + (f", now {', '.join(self.version.aliases)}" if self.version.aliases else ", not promoted")
            + f"; sha256 {self.version.sha256[:12]}",
        ]
        if self.evaluation is not None:
            means = ", ".join(f"{metric} {mean:.4f}" for metric, mean in self.evaluation.means.items())
            lines.append(f"{self.split:<9} {means} ({len(self.evaluation.qids):,} queries; {self.evaluation_path})")
        if self.gate is not None:
            verdict = "passed" if self.gate.passed else "did not pass"
            lines.append(
                f"gate      {verdict}, for {self.gate.alias}; look at it with: rankmill models gate {self.version} --show"
            )
        if self.ranked is not None:
            by = "" if str(self.ranked.model) == str(self.version) else f", by {self.ranked.model}"
            lines.append(
                f"ranked    {self.ranked.out}: {self.ranked.rows_written:,} documents of {self.ranked.queries:,} queries{by}"
            )
        return "\n".join(lines)

    def require(self) -> None:
        """Raise PromotionRefused, with the reasons in one line, if the version did not pass the gate."""
        if self.gate is not None:
            self.gate.require_carrying()

    @staticmethod
    def _gate(gate: GateResult) -> dict[str, Any]:
        facts = gate.to_dict()
        kept = ("alias", "passed", "baseline", "entry", "report_sha256")
        return {name: facts[name] for name in kept} | {"reasons": gate.report["reasons"]}


def run_chain(config: Config, folder: Path, registry: Path, say: Callable[[str], None]) -> RunReport:
    """Run every stage that ``config`` asks for.

    Parameters
    ----------
    config
        What to do.
    folder
        Relative paths in ``config`` start here: the folder of its file.
    registry
        Folder of the registry.
    say
        Called with one line as each stage begins.

    Raises
    ------
    InputError
        A pattern matches no file.  All of them are looked up before the first stage.
    Exception
        Whatever a room raises; what the stages before it made stays.
    """
    files = {
        key: _expand(folder, f"ingest.{key}", getattr(config.ingest, key))
        for key in ("sources", "valid", "test", "pairs", "qrels")
    }
    candidates = () if config.rerank is None else _expand(folder, "rerank.candidates", config.rerank.candidates)
    work = folder / config.work
    against = None if config.gate is None else _former_dataset(config.gate, folder, work)
    store = Registry(registry)
    _refuse_protected(store, config)
    work.mkdir(parents=True, exist_ok=True)

    say(f"ingest: {len(files['sources']) + len(files['valid']) + len(files['test'])} files")
    ingest(
        files["sources"],
        work / "dataset",
        valid=files["valid"],
        test=files["test"],
        pairs=files["pairs"],
        qrels=files["qrels"],
        options=config.ingest.options,
        say=say,
    )
    dataset = Dataset.open(work / "dataset")
    split = next((name for name in UNSEEN if len(dataset.queries(name))), None)
    if config.gate is not None:  # said before hours of training
        _split_for(config.gate, dataset)
    say(f"bin: at most {config.bin.max_bin} bins a feature; {bin_plan(dataset, config.bin.memory_bytes).render()}")
    bin_dataset(dataset, config.bin.max_bin, config.bin.memory_bytes)
    dataset = Dataset.open(work / "dataset")
    say(f"train: {config.train.name}")
    base = config.train.base_model
    if base is not None and (folder / base).is_file():
        base = os.fspath(folder / base)
    facts, _ = train_and_register(
        dataset.path,
        config.train.name,
        registry,
        config.train.parameters,
        eval_metrics=config.train.eval_metrics,
        base_model=base,
        n_threads=config.train.n_threads,
        pool_bytes=config.train.pool_bytes,
    )
    version = store.resolve(facts["model"], bare="latest")
    forest = Forest.from_bytes(version.read(), where=str(version))

    evaluation, evaluation_path = None, None
    if split is not None:
        say(f"evaluate: {split}")
        evaluation = evaluate(
            dataset.path, model=forest, split=split, metrics=config.evaluate.metrics, **config.evaluate.conventions
        )
        evaluation_path = work / "evaluation.json"
        report = {"model": {"version": str(version), "sha256": version.sha256}, "split": split, **evaluation.to_dict()}
        write_atomically(evaluation_path, (_json(report) + "\n").encode())
    result = None if config.gate is None else _gated(store, version, dataset, config, config.gate, against, say)
    stands: Version | None = version
    if config.gate is not None and result is not None and not result.carries:
        present = version.state.target(config.gate.alias)
        stands = None if present is None else store.resolve(f"{version.name}@{present}", bare="latest")
        forest = forest if stands is None else Forest.from_bytes(stands.read(), where=str(stands))
    ranked = None
    if config.rerank is not None and stands is None:
        say("rerank: nothing is ranked, since no version stands yet")
    elif config.rerank is not None and stands is not None:
        say(f"rerank: {len(candidates)} files, by {stands}")
        ranked = rerank(
            candidates,
            forest,
            work / config.rerank.out,
            top_k=config.rerank.top_k,
            memory_limit=config.rerank.memory,
            input_format=config.rerank.format,
            absent=config.ingest.absent,
            index_base=config.ingest.index_base,
            columns=config.rerank.columns,
            overwrite=True,
            identity=ModelIdentity(sha256=stands.sha256, name=stands.name, number=stands.number),
        )
        if ranked.columns_guessed:
            say(guesses_line(ranked.columns_guessed))
    aliases = [] if config.promote is None else [config.promote.alias]
    if config.gate is not None and (result is None or result.carries):
        aliases.append(config.gate.alias)
    for alias in aliases:  # last: what could not be ranked with is not to be what users see
        say(f"promote: {version} becomes {alias}")
        store.promote(version.name, version.number, alias=alias, reason="rankmill run")
    version = store.resolve(str(version), bare="latest")
    return RunReport(
        dataset=dataset,
        version=version,
        registry=registry,
        split=split,
        evaluation=evaluation,
        evaluation_path=evaluation_path,
        gate=result,
        ranked=ranked,
    )


def _refuse_protected(store: Registry, config: Config) -> None:
    """Raise ConfigError if ``[promote]`` names an alias that asks for a gate: before the training, not after."""
    if config.promote is None:
        return
    alias, name = config.promote.alias, config.train.name
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


def _gated(
    store: Registry,
    version: Version,
    dataset: Dataset,
    config: Config,
    rules: Gate,
    against: Dataset | None,
    say: Callable[[str], None],
) -> GateResult | None:
    """Let ``version`` pass the gate; one that holds the alias already keeps the result it came in with, if it had one."""
    if version.state.target(rules.alias) == version.number:
        say(f"gate: {version} is {rules.alias} already")
        known = stored_result(store, str(version), rules.alias) if rules.alias in version.gates else None
        return known if known is not None and known.carries else None  # it may have been forced
    measured = config.evaluate
    given = measured.convention != OURS or bool(measured.options)  # else it is the alias that may ask for one
    split = _split_for(rules, dataset)
    say(f"gate: {version} before {rules.alias}, on {split}")
    return gate(
        store,
        str(version),
        dataset,
        split,
        alias=rules.alias,
        metric=rules.metric,
        margin=rules.margin,
        convention=named_convention(measured.convention).but(**measured.options) if given else None,
        against=against,
        reason="rankmill run",
        **rules.limits,
    )


def _former_dataset(rules: Gate, folder: Path, work: Path) -> Dataset | None:
    """Open what ``[gate] against`` names; ConfigError if this run replaces it."""
    if rules.against is None:
        return None
    former = folder / rules.against
    if former.resolve() == (work / "dataset").resolve():
        raise ConfigError(f"[gate] against: {former} is what this run makes anew; name the copy of a former dataset")
    return Dataset.open(former)


def _split_for(rules: Gate, dataset: Dataset) -> str:
    """Return the split to compare on; InputError if it has no queries."""
    held_out = [name for name in UNSEEN if len(dataset.queries(name)) and rules.split in {None, name}]
    if not held_out:
        what = "neither a test nor a valid split" if rules.split is None else f"no {rules.split} split"
        raise InputError(f"[gate]: {dataset.path} has {what} to compare on; ask for one in [ingest]")
    return held_out[0]


def _expand(folder: Path, key: str, patterns: tuple[str, ...]) -> tuple[Path, ...]:
    """Return the files that names, folders and ``patterns`` mean, in the order of their names."""
    try:
        return tuple(find_files(patterns, folder))
    except PipelineInputError as error:
        raise InputError(f"{key}: {error}") from None


def _json(report: dict[str, Any]) -> str:
    return json.dumps(report, sort_keys=True, ensure_ascii=False, allow_nan=False)
