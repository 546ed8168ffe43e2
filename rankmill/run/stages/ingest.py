"""From judgments in files to the dataset."""

from __future__ import annotations

from dataclasses import fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from rankmill.foundation.code_digest import code_digest
from rankmill.foundation.errors import DatasetFormatError, InputError
from rankmill.pipeline.dataset import Dataset
from rankmill.pipeline.ingest import ingest
from rankmill.pipeline.sources.parts import OPTIONAL
from rankmill.pipeline.sources.query_sizes import find_sizes
from rankmill.run.events import Artefact
from rankmill.run.records import CODE, Inputs, as_options
from rankmill.run.stage import Made, Say, Stage

if TYPE_CHECKING:
    from rankmill.run.records import Record

GIVEN = ("sources", "valid", "test", "pairs", "qrels")
WITHOUT_EFFECT = ("memory", "threads")  # on the dataset


class Ingest(Stage):
    """``WORK/dataset`` from the files that ``[ingest]`` names."""

    name = "ingest"

    @cached_property
    def files(self) -> dict[str, tuple[Path, ...]]:
        """The files of each kind; InputError if a pattern matches none."""
        return {key: self.work.expand(f"ingest.{key}", getattr(self.work.config.ingest, key)) for key in GIVEN}

    def inputs(self) -> Inputs:
        config = self.work.config.ingest
        told = {field.name for field in fields(config)} - {*GIVEN, *WITHOUT_EFFECT}
        inputs = {CODE: code_digest("rankmill.pipeline")} | as_options(
            **{name: getattr(config, name) for name in sorted(told)}
        )
        for key, paths in self.files.items():
            for path in paths:
                for file in (path, find_sizes(path)):
                    if file is not None:
                        inputs[f"{key} {self.work.named(file)}"] = self.work.digests.of(file)
        return inputs

    def doing(self) -> str:
        return f"{sum(map(len, self.files.values()))} files"

    def reads(self) -> tuple[Artefact, ...]:
        return tuple(
            self.work.told_file(path, bytes=path.stat().st_size) for paths in self.files.values() for path in paths
        )

    def run(self, say: Say) -> Made:
        known = {self.work.digests.of(path) for paths in self.files.values() for path in paths}
        report = ingest(
            self.files["sources"],
            self.work.dataset_path,
            valid=self.files["valid"],
            test=self.files["test"],
            pairs=self.files["pairs"],
            qrels=self.files["qrels"],
            options=self.work.config.ingest.options,
            say=say,
        )
        if not known >= {file.sha256 for file in report.read}:
            raise InputError("[ingest]: a file was changed between two looks at it; run again when all are complete")
        dataset = self.work.dataset()
        manifest = dataset.manifest
        facts = {
            "dataset": dataset.digest,
            "rows": manifest.rows,
            "queries": manifest.queries,
            "features": len(manifest.features),
            "rejected": manifest.rejected_rows,
        }
        counted = {name: facts[name] for name in ("rows", "queries", "features")}
        return Made(facts=facts, artefacts=(self.work.told_dataset(**counted, columns=_columns(dataset)),))

    def fault(self, record: Record) -> str | None:
        where = self.work.named(self.work.dataset_path)
        try:
            dataset = Dataset.open(self.work.dataset_path)
        except InputError:
            return f"{where} is gone"
        except DatasetFormatError:
            return f"{where} is damaged"
        return None if dataset.digest == record.facts["dataset"] else f"{where} holds other data"


def _columns(dataset: Dataset) -> list[dict[str, str]]:
    """Return names and types of what a row has, for the lineage."""
    ours = {"qid": "string", "doc_id": "string", "grade": "int32"}
    types = ours | {name: str(OPTIONAL[name].type) for name in dataset.optional_columns}
    return [{"name": name, "type": types.get(name, "float32")} for name in (*types, *dataset.feature_names)]
