"""The stages ingest and bin: from files of judgments to a binned dataset."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from rankmill.config import PREVIOUS
from rankmill.foundation.errors import DatasetFormatError, InputError
from rankmill.foundation.options import values_of
from rankmill.pipeline.bins.binning import bin_dataset, bin_plan
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.pipeline.ingest import ingest
from rankmill.pipeline.read.query_sizes import find_sizes
from rankmill.run import CLICKS, JUDGMENTS, PEOPLE
from rankmill.run.drift import drift_of
from rankmill.run.gate_stages import split_for
from rankmill.run.stage import Inputs, Made, Say, Stage, as_options
from rankmill.run.stage_facts import BinFacts, DriftFacts, IngestFacts
from rankmill.scorer.evaluate.slices import GRADE_MIX, QUERY_SIZE

if TYPE_CHECKING:
    from rankmill.run.stage import StageRecord
    from rankmill.run.work import Work

GIVEN = ("sources", "valid", "test", "pairs", "qrels")
WITHOUT_EFFECT = {
    "memory",
    "threads",
    "block_size",
    "cluster",
    "overwrite",
}  # options that do not affect the dataset


class IngestStage(Stage):
    """Builds ``WORK/dataset`` from the files in ``[ingest]``."""

    name, facts, code = "ingest", IngestFacts, ("rankmill.pipeline",)

    @cached_property
    def files(self) -> dict[str, tuple[Path, ...]]:
        """The files of each kind; InputError if a pattern matches none."""
        return {key: self.work.expand(f"ingest.{key}", getattr(self.work.config.ingest, key)) for key in GIVEN}

    def own_inputs(self) -> Inputs:
        config = self.work.config.ingest
        values = {name: value for name, value in values_of(config.options).items() if name not in WITHOUT_EFFECT}
        inputs = as_options(**values)
        inputs |= {f"clicks {path.name}": self.work.digests.of(path) for path in judgments_of(self.work)}
        for key, paths in self.files.items():
            for path in paths:
                for file in (path, find_sizes(path)):
                    if file is not None:
                        inputs[f"{key} {self.work.named(file)}"] = self.work.digests.of(file)
        return inputs

    def doing(self) -> str:
        return f"{sum(map(len, self.files.values()))} files"

    def run(self, say: Say) -> Made:
        self.ingest_into(self.work.dataset_path, judgments_of(self.work), say)
        dataset = self.work.dataset()
        manifest = dataset.manifest
        facts = IngestFacts(
            dataset=dataset.digest,
            rows=manifest.rows,
            queries=manifest.queries,
            features=len(manifest.features),
            rejected=manifest.rejected_rows,
        )
        return Made(facts=facts)

    def ingest_into(self, out: Path, judgments: tuple[Path, ...], say: Say) -> None:
        """Build the dataset ``out`` with the ``judgments`` that were made from clicks."""
        known = {self.work.digests.of(path) for paths in (*self.files.values(), judgments) for path in paths}
        report = ingest(
            self.files["sources"],
            out,
            valid=self.files["valid"],
            test=self.files["test"],
            pairs=self.files["pairs"],
            qrels=(*self.files["qrels"], *judgments),
            options=replace(self.work.config.ingest.options, overwrite=True),
            say=say,
        )
        if not known >= {file.sha256 for file in report.read}:
            raise InputError("[ingest]: a file changed while it was read; run again when all files are complete")

    def fault(self, record: StageRecord) -> str | None:
        where = self.work.named(self.work.dataset_path)
        try:
            dataset = Dataset.open(self.work.dataset_path)
        except InputError:
            return f"{where} is missing"
        except DatasetFormatError:
            return f"{where} is damaged"
        return None if dataset.digest == record.facts.dataset else f"{where} holds other data"


def judgments_of(work: Work, name: str = JUDGMENTS) -> tuple[Path, ...]:
    """Return the files of judgments that the stage clicks wrote, and of human judgments beside them.

    None without ``[clicks]``.
    """
    if work.config.clicks is None:
        return ()
    people = work.path / CLICKS / PEOPLE
    return (work.path / CLICKS / name, *([people] if people.is_file() else []))


class BinStage(Stage):
    """Builds ``WORK/dataset/_bins`` with the options of ``[bin]``."""

    name, facts, code = "bin", BinFacts, ("rankmill.pipeline",)

    def own_inputs(self) -> Inputs:
        self._check_what_follows()
        config = self.work.config.bin.options  # the memory determines whether edges are exact or from a sample
        return {
            "dataset": self.work.dataset().digest,
            **as_options(max_bin=config.max_bin, memory=config.memory, drift=self.work.config.drift),
            **(as_options(max_bin_of=dict(config.max_bin_of)) if config.max_bin_of else {}),
            **self._former(),
        }

    def _former(self) -> Inputs:
        """Return the reference of the drift check if it is a fixed dataset."""
        rules = self.work.config.drift
        if rules is None or rules.against == PREVIOUS:
            return {}
        return {"former dataset": Dataset.open(self.work.one_path(rules.against)).digest}

    def _check_what_follows(self) -> None:
        """Raise InputError if the gate would find no queries or the report no column, before hours of training."""
        dataset = self.work.dataset()
        if self.work.config.gate is not None:
            split_for(self.work.config.gate, dataset)
        known = {QUERY_SIZE, GRADE_MIX, "qid", "doc_id", "grade", *dataset.optional_columns, *dataset.feature_names}
        for column in self.work.config.report.by:
            if column not in known:
                raise InputError(f"[report] by: {InputError.unknown('column', column, sorted(known))}")

    def doing(self) -> str:
        config = self.work.config.bin.options
        return f"at most {config.max_bin} bins per feature; {bin_plan(self.work.dataset(), config.memory).render()}"

    def run(self, say: Say) -> Made:
        config, dataset = self.work.config.bin.options, self.work.dataset()
        spec = bin_dataset(
            dataset, config.max_bin, config.memory, max_bin_of=config.max_bin_of, cluster=config.cluster, say=say
        )
        drift: DriftFacts | None = None
        files: tuple[Path, ...] = ()
        if self.work.config.drift is not None:
            found = drift_of(self.work.dataset(), self.work.config.drift, self.work.one_path, self.work.path)
            say(found.line())
            if self.work.config.drift.stop:
                found.require()
            drift, files = found.facts, (found.path,)
        return Made(
            facts=BinFacts(binspec=spec.digest, max_bin=spec.max_bin, sampled_rows=spec.sampled_rows, drift=drift),
            files=files,
        )

    def fault(self, record: StageRecord) -> str | None:
        dataset = self.work.dataset()
        try:
            found = dataset.bin_set()
        except InputError:
            return "the bins are missing"
        if found.binspec != record.facts.binspec:
            return "others have binned the dataset"
        files = [dataset.bins_folder(found.binspec) / "binspec.json", *dataset.bin_files(found).values()]
        whole = all(file.is_file() for file in files)
        return super().fault(record) if whole else "the bins are damaged"
